"""Requests that no proper client sends: missing or foreign tokens, malformed bodies, other methods and paths."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dither.audit.attacks.model import Attack, ServiceReply, ServiceTarget, find_problem

READS = ("/v1/datasets", "/v1/budget?dataset={d}", "/v1/history?dataset={d}", "/v1/statement?dataset={d}",
         "/v1/ledger?dataset={d}", "/v1/jobs/x", "/v1/proofs", "/v1/reports")  # fmt: skip
ASKS = ("/v1/quote", "/v1/answer", "/v1/explain", "/v1/batch", "/v1/split", "/v1/kernel/answer", "/v1/kernel/ledger",
        "/v1/kernel/schema?dataset={d}")  # fmt: skip
TOKENS = {
    "no token": "",
    "an empty bearer": "Bearer ",
    "a guessed token": "Bearer dither_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "the kernel's own name": "Bearer kernel",
    "an account's name": "Bearer analyst",
    "a basic password": "Basic YW5uOmFubg==",
    "a long token": "Bearer " + "x" * 4000,
    "a null": "Bearer null",
    "SQL in a token": "Bearer ' OR 1=1 --",
    "JSON in a token": 'Bearer {"name": "ann"}',
    "a path in a token": "Bearer ../../etc/passwd",
    "two tokens": "Bearer a, Bearer b",
    "a signed token of no algorithm": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.",
}
PATHS = (
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/web/../../../../etc/passwd", "/page.js/../../cli.py",
    "/v1/jobs/..%2f..%2fetc%2fpasswd", "/v1/proofs/..%2f..%2fcli%2f__init__.py", "/v1/proofs/%2fetc%2fpasswd",
    "/v1/reports/..%2fhead", "/v1/reports/.hidden.txt", "/v1/kernel/__init__", "/v1/kernel/close",
    "/v1/kernel/register",
    "/v1/kernel/balances", "/v1/admin", "/admin", "/.env", "/docs", "/v1", "//v1/datasets", "/v1/datasets/",
    "/private/ledger.sqlite", "/v1/ledger?dataset=../private", "/v1/budget?dataset=%00",
    "/v1/budget?dataset=%0d%0aset-cookie:a=b",
    "/v1/statement?dataset=<script>", "/v1/history?dataset=a&dataset=b", "/debug", "/server-status",
)  # fmt: skip
BODY_PATHS = ("/v1/quote", "/v1/answer", "/v1/explain", "/v1/batch", "/v1/split", "/v1/kernel/answer",
              "/v1/kernel/quote")  # fmt: skip
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"epsilon=1",
    "a list": b"[]",
    "a text": b'"x"',
    "deep nesting": b"[" * 100_000,
    "a deep object": b'{"a":' * 50_000,
    "a name twice": b'{"dataset": "x", "dataset": "y", "query": "SELECT 1"}',
    "NaN": b'{"dataset": "x", "query": "SELECT 1", "epsilon": NaN}',
    "infinity": b'{"dataset": "x", "query": "SELECT 1", "epsilon": Infinity}',
    "not UTF-8": b'{"dataset": "\xff\xfe", "query": "SELECT 1"}',
    "a lone surrogate": b'{"dataset": "x", "query": "\\ud800", "epsilon": 1}',
    "a nul": b'{"dataset": "x", "query": "a\\u0000b", "epsilon": 1}',
    "a huge integer": b'{"dataset": "x", "query": "SELECT 1", "repeat": ' + b"9" * 4000 + b"}",
    "a huge exponent": b'{"dataset": "x", "query": "SELECT 1", "epsilon": 1e999999999}',
    "an unknown field": b'{"dataset": "x", "query": "SELECT 1", "account": "kernel"}',
    "a prototype": b'{"__proto__": {"role": "curator"}, "constructor": {}}',
    "a YAML tag": b"!!python/object/apply:os.system ['true']",
    "a pickle": b"\x80\x04cposix\nsystem\n(S'true'\ntR.",
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "a frame of the kernel's socket": b"\x00\x00\x00\x02{}\x00\x00\x00\x00",
    "a wire plan of another class": b'{"version": 2, "node": "Dataset"}',
}
LOSSES: tuple[Any, ...] = (0, -1, "0", "-1/2", "1/0", "abc", [], {}, True, "1e400", "9" * 300, "0x10", " 1", "١")


def _check_header_denied(header: str, targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if any path accepts this authorization header."""
    for target in targets:
        for path in (*READS, *ASKS):
            method = "GET" if path in READS else "POST"
            filled_path = path.replace("{d}", target.columns.dataset)
            headers = {"authorization": header} if header else {}
            reply = target.send(method, filled_path, b"{}" if method == "POST" else b"", headers)
            if reply.status not in (401, 403, 429):
                return f"{path} answered {reply.status}"
            if evidence := find_problem([reply]):
                return f"{path}: {evidence}"
    return ""


def _check_refused(send: Callable[[ServiceTarget], Iterator[ServiceReply]], targets: Sequence[ServiceTarget]) -> str:
    """Return evidence unless every request is refused as documented and nothing is charged."""
    before = [target.spent() for target in targets]
    for replies in zip(*(list(send(target)) for target in targets), strict=True):
        if evidence := find_problem(replies):
            return evidence
        if replies[0].status in (200, 202):
            return "the request was accepted"
    return "" if [target.spent() for target in targets] == before else "a refused request was charged"


def _send_body(body: bytes, target: ServiceTarget) -> Iterator[ServiceReply]:
    for path in BODY_PATHS:
        yield target.call("POST", path, body)


def _send_losses(target: ServiceTarget) -> Iterator[ServiceReply]:
    query = f"SELECT COUNT(*) FROM {target.columns.table}"
    for name in ("epsilon", "rho"):
        for value in LOSSES:
            body = {"dataset": target.columns.dataset, "query": query, name: value}
            yield target.call("POST", "/v1/answer", body)


def _send_options(target: ServiceTarget) -> Iterator[ServiceReply]:
    query = f"SELECT COUNT(*) FROM {target.columns.table}"
    invalid: list[dict[str, Any]] = [
        {"max_contributions": -1},
        {"max_contributions": 0},
        {"max_contributions": []},
        {"max_contributions": {"max_rows": True}},
        {"max_contributions": "x"},
        {"confidence": 2},
        {"confidence": 0},
        {"repeat": -1},
        {"repeat": 2**40},
        {"repeat": 1.5},
        {"request_id": "a b"},
        {"request_id": "x" * 99},
        {"request_id": "a\r\nb"},
        {"unit": "nobody"},
        {"unit": 3},
        {"dataset": "../x"},
        {"dataset": ""},
        {"dataset": {"$ne": ""}},
        {"query": ""},
        {"query": 7},
        {"max_rows_per_key": 0},
        {"max_error": -1, "epsilon": None},
        {"epsilon": None},
        {"rho": "1", "epsilon": "1"},
        {"delta": 0},
        {"delta": -1},
        {"delta": 2},
        {"delta": "x"},
        {"delta": "1/1000000"},
        {"refine": 0},
        {"refine": "x"},
        {"refine": "1", "delta": "1/10"},
    ]
    for options in invalid:
        body = {"dataset": target.columns.dataset, "query": query, "epsilon": "1/1000", **options}
        yield target.call("POST", "/v1/answer", body)


def _send_methods(target: ServiceTarget) -> Iterator[ServiceReply]:
    for path in ("/v1/answer", "/v1/datasets", "/v1/ledger", "/metrics", "/"):
        for method in ("PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "CONNECT", "FOO"):
            yield target.call(method, path)


def _check_paths(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if a path outside the interface is served, shows a file or sets a cookie."""
    for path in PATHS:
        reply = targets[0].call("GET", path)
        if reply.status == 200 and path not in ("/v1/datasets/", "//v1/datasets"):
            return f"{path} was served"
        if b"root:" in reply.body or find_problem([reply]):
            return f"{path}: {find_problem([reply])}"
        if "set-cookie" in {name.lower() for name in reply.headers}:
            return f"{path} set a cookie"
    return ""


def _check_roles(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if an analyst can read the ledger, or an auditor can query data."""
    target = targets[0]
    for method, path in (("GET", "/v1/ledger"), ("POST", "/v1/kernel/ledger")):
        if target.call(method, f"{path}?dataset={target.columns.dataset}").status == 200:
            return "an analyst read the ledger"
    if "auditor" not in target.tokens:
        return ""
    query = f"SELECT COUNT(*) FROM {target.columns.table}"
    for path in ("/v1/answer", "/v1/quote"):
        if target.ask(query, account="auditor", path=path).status == 200:
            return f"an auditor was answered by {path}"
    return ""


def _check_ledger_tokens(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if an account's entry in the ledger holds a token that the service accepts."""
    target = targets[0]
    rows = target.call("GET", f"/v1/ledger?dataset={target.columns.dataset}", account="auditor").json()
    for row in rows.get("items", []) if isinstance(rows, dict) else []:
        token = json.loads(row["body"]).get("token") if row["kind"] == "account" else None
        if token and target.call("GET", "/v1/datasets", account=token).status == 200:
            return "the ledger contains a valid token"
    return ""


def _check_security_headers(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if a response lacks the security policy, allows other origins, or names its server."""
    for path in ("/", "/nowhere", "/v1/datasets"):
        headers = {name.lower(): value for name, value in targets[0].call("GET", path).headers.items()}
        policy = headers.get("content-security-policy", "")
        if (
            "default-src 'none'" not in policy
            or "unsafe" in policy
            or headers.get("x-content-type-options") != "nosniff"
        ):
            return f"{path} lacks a security policy"
        if "access-control-allow-origin" in headers or "server" in headers:
            return f"{path} allows other origins or names its server"
    return ""


def _check_foreign_job(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if an account can see or delete another's job: it must look like a job that does not exist."""
    target, job, missing = targets[0], secrets.token_hex(8), secrets.token_hex(8)
    body = {"dataset": target.columns.dataset, "query": f"SELECT COUNT(*) FROM {target.columns.table}",
            "epsilon": target.epsilon, "request_id": job}  # fmt: skip
    if target.call("POST", "/v1/answer", body, prefer="respond-async").status != 202:
        return ""
    for method in ("GET", "DELETE"):
        foreign, absent = (target.call(method, f"/v1/jobs/{name}", account="other") for name in (job, missing))
        if foreign.status != 404 or (foreign.status, foreign.body) != (absent.status, absent.body):
            return f"{method} showed another account that the job exists"
    if target.call("GET", f"/v1/jobs/{job}").status != 200:
        return "another account deleted the job"
    target.call("DELETE", f"/v1/jobs/{job}")
    return ""


def _check_reused_job_name(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if a second query under the same job name is not refused."""
    target, name = targets[0], secrets.token_hex(8)
    body = {"dataset": target.columns.dataset, "query": f"SELECT COUNT(*) FROM {target.columns.table}",
            "epsilon": target.epsilon, "request_id": name}  # fmt: skip
    other = {**body, "query": f"SELECT SUM({target.columns.number}) FROM {target.columns.table}"}
    first, second = (target.call("POST", "/v1/answer", each, prefer="respond-async") for each in (body, other))
    target.call("DELETE", f"/v1/jobs/{name}")
    return "two queries shared a job" if first.status == 202 and second.status != 400 else ""


def _check_foreign_request_id(targets: Sequence[ServiceTarget]) -> str:
    """Return evidence if a request id of one account has any effect on another account's request with the same id."""
    target, name = targets[0], secrets.token_hex(8)
    mine = target.ask(f"SELECT COUNT(*) FROM {target.columns.table}", request_id=name)
    query = f"SELECT SUM({target.columns.number}) FROM {target.columns.table}"
    other = target.ask(query, "other", request_id=name)
    if mine.status != 200 or other.status not in (200, 402):
        return f"an id that another account used was refused: {other.status}" if mine.status == 200 else ""
    digests = [[release["digest"] for release in reply.json().get("releases", ())] for reply in (mine, other)]
    return "a request id returned another account's answer" if digests[0] == digests[1] else ""


def attacks() -> Iterator[Attack]:
    """Yield the attacks of this module."""
    for name, header in TOKENS.items():
        yield Attack(name, "accounts", "anything without an account", partial(_check_header_denied, header))
    for name, body in {**BODIES, "too large": b" " * (5 << 20)}.items():
        sending = partial(_check_refused, partial(_send_body, body))
        yield Attack(f"a body: {name}", "malformed", "anything by a malformed body", sending)
    yield Attack("invalid losses", "malformed", "an answer for nothing", partial(_check_refused, _send_losses))
    yield Attack(
        "options out of range", "malformed", "an answer outside the rules", partial(_check_refused, _send_options)
    )
    yield Attack("other methods", "malformed", "anything by another method", partial(_check_refused, _send_methods))
    yield Attack("other paths", "malformed", "files, or internal calls of the kernel", _check_paths)
    yield Attack("roles", "accounts", "what another role may see", _check_roles)
    yield Attack("tokens in the ledger", "accounts", "a token that still works", _check_ledger_tokens, ("auditor",))
    yield Attack("security headers", "accounts", "a token, through a page of another origin", _check_security_headers)
    yield Attack(
        "another account's job", "accounts", "that another account sent a query", _check_foreign_job, ("other",)
    )
    yield Attack(
        "another account's request id",
        "accounts",
        "that another account sent a query",
        _check_foreign_request_id,
        ("other",),
    )
    yield Attack("a reused job name", "accounts", "one query's answer under another's name", _check_reused_job_name)
