"""Attacks: requests to one service, or to two whose data differ by one person, and a check of the replies."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from dither.errors import InvalidParameter

DOCUMENTED_STATUSES = {200, 202, 400, 401, 402, 403, 404, 405, 408, 413, 429, 503}
INTERNAL_DETAIL = re.compile(
    rb"Traceback|File \"|duckdb|psycopg|pyspark|parquet|sqlite|Conversion Error|Out of Range|Binder Error"
    rb"|Invalid Input Error|division by zero|/home/|/tmp/|/root/",
    re.IGNORECASE,
)
# Fields that may differ between neighbours: noise, positions in the ledger, and the time class and duration of a query,
# which depend on the noisy table size.
WIDE_NOTE = ": the interval is wider than half the value"
NOISY_FIELDS = {
    "values", "rows", "digest", "sequence", "time", "head", "hash", "spent", "balances", "free", "time_class",
    "milliseconds",
}  # fmt: skip


@dataclass(frozen=True)
class ServiceReply:
    """The status, headers and body of an HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body parsed as JSON, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def code(self) -> str:
        """The code of the error, or an empty string."""
        data = self.json()
        error = data.get("error") if isinstance(data, dict) else None
        return str(error.get("code", "")) if isinstance(error, dict) else ""

    def public_parts(self) -> tuple[Any, ...]:
        """Return the parts that must be equal between neighbours: all but noise and the position in the ledger."""
        data = self.json()
        names = tuple(sorted(name for name in self.headers if name.lower() != "content-length"))
        return self.status, names, json.dumps(_without_noise(data), sort_keys=True)


def _without_noise(data: Any) -> Any:
    """Return the data without noisy numbers; rows are reduced to their keys, in order, and values to their number."""
    if isinstance(data, dict):
        public = {name: _without_noise(value) for name, value in data.items() if name not in NOISY_FIELDS}
        if isinstance(data.get("rows"), list) and isinstance(data.get("columns"), list):
            keys = [column["name"] for column in data["columns"] if column.get("key")]
            public["rows"] = [[row.get(key) for key in keys] for row in data["rows"]]
        if isinstance(data.get("values"), list):
            public["values"] = len(data["values"])
        return public
    return [_without_noise(item) for item in data if not _is_about_noise(item)] if isinstance(data, list) else data


def _is_about_noise(item: Any) -> bool:
    """Tell whether an item is a note that follows from noisy values alone: in an answer with wide intervals."""
    return isinstance(item, str) and WIDE_NOTE in item


Send = Callable[[str, str, bytes, Mapping[str, str]], ServiceReply]


@dataclass(frozen=True)
class Columns:
    """The names that attacks use: a dataset, a private table, a numeric column with its range, a category."""

    dataset: str
    table: str
    number: str
    low: int
    high: int
    category: str = ""

    @property
    def middle(self) -> int:
        """A value within the range of the numeric column."""
        return (self.low + self.high) // 2


@dataclass(frozen=True)
class ServiceTarget:
    """A service to attack: tokens by account name ("analyst", optionally "other" and "auditor"), and column names.

    `epsilon` is the loss of each query; `secret` is a value of the numeric column that one person may have.
    """

    send: Send
    tokens: Mapping[str, str]
    columns: Columns
    epsilon: str = "1/1000"
    secret: str = ""

    @classmethod
    def of(
        cls, url: str, tokens: Mapping[str, str], dataset: str | None = None, epsilon: str = "1/1000"
    ) -> ServiceTarget:
        """Connect to the service at a URL and choose the columns to attack."""
        send = http_sender(url)
        try:
            columns = discover_columns(send, tokens["analyst"], dataset)
        except (OSError, http.client.HTTPException) as error:
            raise InvalidParameter(f"no answer from {url}: {error}") from None
        return cls(send, dict(tokens), columns, epsilon)

    def call(self, method: str, path: str, body: Any = None, account: str = "analyst", **headers: str) -> ServiceReply:
        """Send one request with the token of an account; an unknown account name is sent as the token itself."""
        token = self.tokens.get(account, account)
        named = {"authorization": f"Bearer {token}", "content-type": "application/json", **headers}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.send(method, path, data, {name.replace("_", "-"): value for name, value in named.items()})

    def ask(self, query: str, account: str = "analyst", path: str = "/v1/answer", **more: Any) -> ServiceReply:
        """Send an SQL query; `more` holds further fields of the request."""
        body = {"dataset": self.columns.dataset, "query": query, "epsilon": self.epsilon, **more}
        return self.call("POST", path, body, account)

    def spent(self, account: str = "analyst") -> dict[str, str]:
        """Return the amount spent of every budget that the account sees."""
        data = self.call("GET", f"/v1/budget?dataset={self.columns.dataset}", account=account).json()
        items = data.get("items", []) if isinstance(data, dict) else []
        return {f"{each['level']} {each['name']} {each['unit']} {each['kind']}": str(each["spent"]) for each in items}


def _has_valid_port(url: str) -> bool:
    """Return False if the URL names a port that is not a valid one."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def http_sender(url: str) -> Send:
    """Return a function that sends requests to a URL as they are, by http.client, which normalises nothing."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_valid_port(url):
        raise InvalidParameter(f"the URL of a service must look like http://127.0.0.1:8765, got {url!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def send(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServiceReply:
        connection = kind(parts.hostname or "", parts.port, timeout=120)
        try:
            connection.request(method, parts.path.rstrip("/") + path, body or None, dict(headers))
            response = connection.getresponse()
            return ServiceReply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    return send


def discover_columns(send: Send, token: str, dataset: str | None = None) -> Columns:
    """Find a private table with an integer column in the service's public list of datasets."""
    reply = send("GET", "/v1/datasets", b"", {"authorization": f"Bearer {token}"})
    if reply.status in (401, 403):
        raise InvalidParameter("the service rejects the analyst's token")
    listing = reply.json()
    for entry in listing.get("datasets", []) if isinstance(listing, dict) else []:
        if dataset is not None and entry["name"] != dataset:
            continue
        for table, about in entry["tables"].items():
            columns = {name: domain for name, domain in about["columns"].items() if about["private"]}
            for name, domain in columns.items():
                integers = re.fullmatch(r"(-?\d+) to (-?\d+) in steps of 1", domain)
                if integers:
                    category = next((other for other, words in columns.items() if words.startswith("one of")), "")
                    return Columns(entry["name"], table, name, int(integers[1]), int(integers[2]), category)
    raise InvalidParameter("the account sees no dataset with a private table that has an integer column")


@dataclass(frozen=True)
class Finding:
    """The result of an attack: `learned` is True if it succeeded, and `evidence` says how."""

    attack: str
    family: str
    secret: str
    learned: bool
    evidence: str = ""
    requests: int = 0


Check = Callable[[Sequence[ServiceTarget]], str]


@dataclass(frozen=True)
class Attack:
    """A few requests and the secret that they must not reveal; `check` sends them and returns evidence, or "".

    `needed_accounts` names the accounts whose tokens the attack uses besides the analyst's.
    """

    name: str
    family: str
    secret: str
    check: Check
    needed_accounts: tuple[str, ...] = field(default=())

    def run(self, targets: Sequence[ServiceTarget]) -> Finding:
        """Run the attack and count its requests."""
        counters = [CountingTarget(target) for target in targets]
        evidence = self.check([counter.target for counter in counters])
        requests = sum(counter.count for counter in counters)
        return Finding(self.name, self.family, self.secret, bool(evidence), evidence, requests)


class CountingTarget:
    """Counts the requests that are sent through `target`."""

    def __init__(self, target: ServiceTarget) -> None:
        self.count, self._send = 0, target.send
        self.target = ServiceTarget(self._send_and_count, target.tokens, target.columns, target.epsilon, target.secret)

    def _send_and_count(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServiceReply:
        self.count += 1
        return self._send(method, path, body, headers)


def find_problem(replies: Sequence[ServiceReply], sent: str = "") -> str:
    """Return a problem of replies to the same request, or "".

    Problems are undocumented statuses and error shapes, internal detail in the text, and replies of neighbours that
    differ by more than noise. Text of the request `sent` may be quoted back.
    """
    for reply in replies:
        if reply.code == "engine_failure":
            return "an expression made the engine fail"
        if reply.status not in DOCUMENTED_STATUSES:
            return f"undocumented status {reply.status}"
        if reply.status >= 400 and not _has_error_shape(reply):
            return f"the error, of status {reply.status}, does not have the documented fields"
        for detail in INTERNAL_DETAIL.finditer(reply.body):
            if detail[0].decode().lower() not in sent.lower():
                return f"the reply contains internal detail: {detail[0].decode()!r}"
    if len({reply.public_parts() for reply in replies}) > 1:
        statuses = "; ".join(str(reply.public_parts()[0]) for reply in replies)
        return f"the replies of neighbours differ: statuses {statuses}"
    return ""


def _has_error_shape(reply: ServiceReply) -> bool:
    data = reply.json()
    return isinstance(data, dict) and set(data) == {"error"} and set(data["error"]) == {"code", "message"}
