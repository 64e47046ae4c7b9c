"""The gateway's interface as an OpenAPI document; a test compares it with the routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dither import __version__
from dither.post.options import Form, Place, options_of

TEXT: dict[str, Any] = {"type": "string"}
AMOUNT = {
    "oneOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9}|/[1-9][0-9]{0,9})?$"},
    ]
}
CALLS = ("datasets", "schema", "facts", "quote", "answer", "budget", "history", "ledger", "statement")
REQUEST_ID = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,48}$"}
WHOLE = {"type": "integer", "minimum": 1, "maximum": 2147483647}
GROUPS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["max_rows_per_group"],
    "properties": {"max_groups": WHOLE, "max_rows_per_group": WHOLE, "how": {"enum": ["clip", "rows"]}},
}
FORMS: dict[Form, dict[str, Any]] = {
    "amount": AMOUNT,
    "number": AMOUNT,
    "probability": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "positive": WHOLE,
    "count": {"type": "integer", "minimum": 0, "maximum": 2147483647},
    "text": {"type": "string", "minLength": 1, "maxLength": 200},
    "contributions": {"oneOf": [{"const": "auto"}, WHOLE, GROUPS]},
}
DATASET = FORMS["text"]
QUERY = {"type": "string", "minLength": 1, "maxLength": 50000}


def _body(place: Place, **more: dict[str, Any]) -> dict[str, Any]:
    """The body of a kind of query: its options by the table, and what it takes besides."""
    options = {name: {**FORMS[each.form], "description": each.help} for name, each in options_of(place).items()}
    required = [name for name in ("dataset", "query", "queries", "threshold") if name in {"dataset", *more}]
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": {"dataset": DATASET, **options, **more},
    }


QUESTION = _body("question", query=QUERY, request_id=REQUEST_ID, refine=AMOUNT)
BATCH = _body("batch", request_id=REQUEST_ID, queries={"type": "array", "minItems": 1, "maxItems": 64, "items": QUERY})
SPLIT = _body("split", query=QUERY, threshold=WHOLE)
ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "additionalProperties": False,
            "properties": {"code": TEXT, "message": TEXT},
        }
    },
}
ITEMS = {"type": "object", "required": ["items"], "properties": {"items": {"type": "array"}}}
OBJECT = {"type": "object"}
REFUSALS = {
    "400": "the request is malformed, or cannot be answered privately; nothing was charged",
    "401": "no valid token",
    "402": "the budget does not allow it; nothing was read",
    "403": "the account may not do this",
    "404": "there is no such dataset, job or call",
    "408": "the body took too long",
    "413": "the body is too large",
    "429": "too many requests; nothing was charged",
    "500": "the constant error for what fails after a charge",
    "503": "busy, or the ledger lies behind; nothing was charged",
}


def _content(schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {kind: {"schema": schema}}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    name: str
    summary: str
    result: dict[str, Any] = field(default_factory=lambda: OBJECT)
    kind: str = "application/json"
    body: dict[str, Any] | None = None
    dataset: bool | None = None
    path: dict[str, Any] = field(default_factory=dict)
    token: bool = True
    more: dict[str, Any] = field(default_factory=dict)
    job: bool = False

    def data(self) -> dict[str, Any]:
        """As OpenAPI writes it."""
        made: dict[str, Any] = {"operationId": self.name, "summary": self.summary, "parameters": self._parameters()}
        if self.body is not None:
            made["requestBody"] = {"required": True, "content": _content(self.body)}
        done = {"description": "done", "content": {**_content(self.result, self.kind), **self.more}}
        made["responses"] = {"200": done}
        if self.job:
            made["responses"]["202"] = {"description": "under way, as a job", "content": _content(OBJECT)}
        if self.token:
            made["security"] = [{"token": []}]
            refusals = {status: {"description": text, "content": _content(ERROR)} for status, text in REFUSALS.items()}
            made["responses"] |= refusals
        return made

    def _parameters(self) -> list[dict[str, Any]]:
        made = [{"name": key, "in": "path", "required": True, "schema": value} for key, value in self.path.items()]
        if self.dataset is not None:
            made.append({"name": "dataset", "in": "query", "required": self.dataset, "schema": DATASET})
        return made


JOB = {"job": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,48}$"}}
PAPER = {"name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"}}
CALL = {"call": {"type": "string", "enum": list(CALLS)}}
BINARY = {"schema": {"type": "string", "format": "binary"}}
PAPERS = dict.fromkeys(("text/html", "text/plain", "text/markdown"), BINARY)
ARROW = {"application/vnd.apache.arrow.stream": BINARY}
PACKED = {"application/vnd.dither+arrow": BINARY}
OPERATIONS = {
    "/health": {"get": Operation("health", "Whether the gateway runs and reaches its kernel", token=False)},
    "/metrics": {"get": Operation("metrics", "Counters for Prometheus", TEXT, "text/plain", token=False)},
    "/openapi.json": {"get": Operation("openapi", "This document", token=False)},
    "/v1/datasets": {"get": Operation("datasets", "The datasets of the account")},
    "/v1/budget": {"get": Operation("budget", "What is spent and what is left", ITEMS, dataset=True)},
    "/v1/history": {"get": Operation("history", "Charges that the account may see", ITEMS, dataset=True)},
    "/v1/ledger": {"get": Operation("ledger", "Every row of the ledger; for auditors", ITEMS, dataset=True)},
    "/v1/statement": {"get": Operation("statement", "The facts of the privacy statement", dataset=True)},
    "/v1/quote": {"post": Operation("quote", "Cost and expected error; free", body={"oneOf": [QUESTION, BATCH]})},
    "/v1/explain": {"post": Operation("explain", "How a question is understood; free", body=QUESTION)},
    "/v1/answer": {
        "post": Operation("answer", "Ask, and pay; with `Prefer: respond-async` as a job", body=QUESTION, more=ARROW,
                          job=True)
    },
    "/v1/batch": {"post": Operation("batch", "Several questions in one charge", body=BATCH)},
    "/v1/split": {"post": Operation("split", "One question of light units and of heavy ones", body=SPLIT)},
    "/v1/jobs/{job}": {
        "get": Operation("job", "A question under way", path=JOB),
        "delete": Operation("forget", "Forget a job; the charge stands", path=JOB),
    },
    "/v1/proofs": {"get": Operation("proofs", "The proofs of this version", ITEMS)},
    "/v1/proofs/{name}": {"get": Operation("proof", "One proof", TEXT, "text/markdown", path=PAPER)},
    "/v1/reports": {"get": Operation("reports", "Reports of audits that the operator laid out", ITEMS)},
    "/v1/reports/{name}": {
        "get": Operation("report", "One report", OBJECT, path=PAPER, more=PAPERS)
    },
    "/v1/kernel/{call}": {
        "post": Operation(
            "call", "A typed call, as the wire spells it", kind="application/vnd.dither+json", body=OBJECT,
            dataset=False, path=CALL, more=PACKED,
        )
    },
}  # fmt: skip


def document() -> dict[str, Any]:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dither", "version": __version__, "description": "Differentially private answers."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            path: {method: operation.data() for method, operation in methods.items()}
            for path, methods in OPERATIONS.items()
        },
    }
