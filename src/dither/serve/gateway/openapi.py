"""The gateway's interface as an OpenAPI document; a test compares it with the routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dither import __version__
from dither.post.contribution_bound import OPTIMIZE_FOR
from dither.post.options import Form, Place, options_of
from dither.privacy.protocol import MAX_PAGE
from dither.serve.transport.rpc import CALLS

TEXT: dict[str, Any] = {"type": "string"}
AMOUNT = {
    "oneOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9}|/[1-9][0-9]{0,9})?$"},
    ]
}
PROBABILITY = {
    "oneOf": [
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "pattern": r"^(0?\.[0-9]{1,9}|1/[1-9][0-9]{0,9})$"},
    ]
}
REQUEST_ID = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,48}$"}
WHOLE = {"type": "integer", "minimum": 1, "maximum": 2147483647}
GROUPS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["max_rows_per_group"],
    "properties": {"max_groups": WHOLE, "max_rows_per_group": WHOLE, "how": {"enum": ["clip", "rows"]}},
}
ROWS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["max_rows"],
    "properties": {"max_rows": WHOLE, "how": {"enum": ["clip", "rows"]}, "report": {"type": "boolean"}},
}
FORMS: dict[Form, dict[str, Any]] = {
    "amount": AMOUNT,
    "probability": PROBABILITY,
    "positive": WHOLE,
    "count": {"type": "integer", "minimum": 0, "maximum": 2147483647},
    "text": {"type": "string", "minLength": 1, "maxLength": 200},
    "aim": {"enum": list(OPTIMIZE_FOR)},
    "flag": {"type": "boolean"},
    "contributions": {"oneOf": [{"const": "auto"}, WHOLE, GROUPS, ROWS]},
}
DATASET = FORMS["text"]
QUERY = {"type": "string", "minLength": 1, "maxLength": 50000}


def _body(place: Place, **more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a request body: its dataset, the options of its kind of query, and further fields."""
    options = {name: {**FORMS[each.form], "description": each.help} for name, each in options_of(place).items()}
    required = [name for name in ("query", "queries", "threshold") if name in more]
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
ERROR_STATUSES = {
    "400": "the request is malformed, or has no private answer; nothing was charged",
    "401": "the token is missing or not valid",
    "402": "the charge would exceed the budget; no data was read",
    "403": "the account may not do this",
    "404": "no dataset, job, document or call has that name",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "429": "too many requests; nothing was charged",
    "500": "the constant error for failures after a charge",
    "503": "busy, or the ledger is behind a head that was seen before; nothing was charged",
}


def _content(schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    """Return the content of a response or request: its media type and schema."""
    return {kind: {"schema": schema}}


@dataclass(frozen=True)
class Operation:
    """One HTTP method of one path.

    `dataset` says whether it takes the query parameter of that name, which an account with one dataset may leave out.
    `path` and `query` have the schemas of its parameters, `more` further media types of the result. A `job` may answer
    202, and an operation about being `ready` 503.
    """

    name: str
    summary: str
    result: dict[str, Any] = field(default_factory=lambda: OBJECT)
    kind: str = "application/json"
    body: dict[str, Any] | None = None
    dataset: bool = False
    path: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    token: bool = True
    more: dict[str, Any] = field(default_factory=dict)
    job: bool = False
    ready: bool = False

    def data(self) -> dict[str, Any]:
        """Return the operation in OpenAPI's form."""
        document: dict[str, Any] = {"operationId": self.name, "summary": self.summary, "parameters": self._parameters()}
        if self.body is not None:
            document["requestBody"] = {"required": True, "content": _content(self.body)}
        done = {"description": "done", "content": {**_content(self.result, self.kind), **self.more}}
        document["responses"] = {"200": done}
        if self.job:
            document["responses"]["202"] = {"description": "started as a job", "content": _content(OBJECT)}
        if self.ready:
            document["responses"]["503"] = {"description": ERROR_STATUSES["503"], "content": _content(ERROR)}
        if self.token:
            document["security"] = [{"token": []}]
            errors = {
                status: {"description": text, "content": _content(ERROR)} for status, text in ERROR_STATUSES.items()
            }
            document["responses"] |= errors
        return document

    def _parameters(self) -> list[dict[str, Any]]:
        parameters = [
            {"name": key, "in": "path", "required": True, "schema": value} for key, value in self.path.items()
        ]
        if self.dataset:
            parameters.append({"name": "dataset", "in": "query", "required": False, "schema": DATASET})
        return parameters + [
            {"name": key, "in": "query", "required": False, "schema": value} for key, value in self.query.items()
        ]


PAGE = {
    "before": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1, "description": "only entries before this one"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "description": "the most entries, the last ones"},
}
JOB = {"job": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,48}$"}}
DOCUMENT = {"name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"}}
CALL = {"call": {"type": "string", "enum": list(CALLS)}}
BINARY = {"schema": {"type": "string", "format": "binary"}}
DOCUMENTS = dict.fromkeys(("text/html", "text/plain", "text/markdown"), BINARY)
ARROW = {"application/vnd.apache.arrow.stream": BINARY}
PACKED = {"application/vnd.dither+int64": BINARY}
OPERATIONS = {
    "/health/live": {"get": Operation("live", "Report that the gateway runs", token=False)},
    "/health/ready": {
        "get": Operation("ready", "Report whether the kernel can charge and answer queries", token=False, ready=True)
    },
    "/metrics": {"get": Operation("metrics", "Return counters for Prometheus; for auditors", TEXT, "text/plain")},
    "/openapi.json": {"get": Operation("openapi", "Return this document", token=False)},
    "/v1/datasets": {"get": Operation("datasets", "List the account's datasets")},
    "/v1/budget": {"get": Operation("budget", "Return the spent and the remaining budget", ITEMS, dataset=True)},
    "/v1/history": {
        "get": Operation("history", "List the charges that the account may see", ITEMS, dataset=True, query=PAGE)
    },
    "/v1/ledger": {
        "get": Operation("ledger", "Return rows of the ledger; for auditors", ITEMS, dataset=True, query=PAGE)
    },
    "/v1/statement": {"get": Operation("statement", "Return the facts of the privacy statement", dataset=True)},
    "/v1/quote": {
        "post": Operation("quote", "Return the cost and expected error of a query; free",
                          body={"oneOf": [QUESTION, BATCH]})
    },
    "/v1/explain": {"post": Operation("explain", "Explain how a query is answered; free", body=QUESTION)},
    "/v1/answer": {
        "post": Operation("answer", "Answer a query and charge the budget; with `Prefer: respond-async` as a job",
                          body=QUESTION, more=ARROW, job=True)
    },
    "/v1/batch": {"post": Operation("batch", "Answer several queries in one charge", body=BATCH)},
    "/v1/split": {"post": Operation("split", "Answer a query for units with few and with many rows", body=SPLIT)},
    "/v1/jobs/{job}": {
        "get": Operation("job", "Return the state of a job", path=JOB),
        "delete": Operation("forget", "Delete a job; its charge stands", path=JOB),
    },
    "/v1/proofs": {"get": Operation("proofs", "List the proofs of this version", ITEMS)},
    "/v1/proofs/{name}": {"get": Operation("proof", "Return one proof", TEXT, "text/markdown", path=DOCUMENT)},
    "/v1/reports": {"get": Operation("reports", "List the published audit reports", ITEMS)},
    "/v1/reports/{name}": {
        "get": Operation("report", "Return one audit report", OBJECT, path=DOCUMENT, more=DOCUMENTS)
    },
    "/v1/kernel/{call}": {
        "post": Operation(
            "call", "Call the kernel in its own JSON format", kind="application/vnd.dither+json", body=OBJECT,
            dataset=True, path=CALL, more=PACKED,
        )
    },
}  # fmt: skip


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dither", "version": __version__, "description": "Differentially private answers."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            path: {method: operation.data() for method, operation in methods.items()}
            for path, methods in OPERATIONS.items()
        },
    }
