"""What an attack is: requests to one target or to two that differ by one person, and what was learned."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from dither.errors import InvalidParameter

DOCUMENTED = {200, 202, 400, 401, 402, 403, 404, 405, 408, 413, 429, 503}
TALKATIVE = re.compile(
    rb"Traceback|File \"|duckdb|psycopg|pyspark|parquet|sqlite|Conversion Error|Out of Range|Binder Error"
    rb"|Invalid Input Error|division by zero|/home/|/tmp/|/root/",
    re.IGNORECASE,
)
# What differs between neighbours by right: noise, the noisy size (and the time that follows from it), the ledger's end.
NOISE = {
    "values", "rows", "digest", "sequence", "time", "head", "hash", "spent", "balances", "free", "time_class",
    "milliseconds",
}  # fmt: skip


@dataclass(frozen=True)
class ServiceReply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as data, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def code(self) -> str:
        """The error's code, or nothing."""
        data = self.json()
        error = data.get("error") if isinstance(data, dict) else None
        return str(error.get("code", "")) if isinstance(error, dict) else ""

    def public(self) -> tuple[Any, ...]:
        """All that may be compared between neighbours: everything but the noise and the place in the ledger."""
        data = self.json()
        names = tuple(sorted(name for name in self.headers if name.lower() != "content-length"))
        return self.status, names, json.dumps(_without_noise(data), sort_keys=True)


def _without_noise(data: Any) -> Any:
    """The data with every noisy number left out, and the keys of rows, in their order, kept."""
    if isinstance(data, dict):
        made = {name: _without_noise(value) for name, value in data.items() if name not in NOISE}
        if isinstance(data.get("rows"), list) and isinstance(data.get("columns"), list):
            keys = [column["name"] for column in data["columns"] if column.get("key")]
            made["rows"] = [[row.get(key) for key in keys] for row in data["rows"]]
        if isinstance(data.get("values"), list):
            made["values"] = len(data["values"])
        return made
    return [_without_noise(item) for item in data] if isinstance(data, list) else data


Send = Callable[[str, str, bytes, Mapping[str, str]], ServiceReply]


@dataclass(frozen=True)
class Columns:
    """Names to attack with: a private table, a number in it and its range, a category, and the dataset's name."""

    dataset: str
    table: str
    number: str
    low: int
    high: int
    category: str = ""

    @property
    def middle(self) -> int:
        """A value within the number's range."""
        return (self.low + self.high) // 2


@dataclass(frozen=True)
class ServiceTarget:
    """A service, the tokens of accounts on it by name ("analyst", and perhaps "other", "auditor"), and its columns."""

    send: Send
    tokens: Mapping[str, str]
    columns: Columns
    epsilon: str = "1/1000"
    secret: str = ""

    @classmethod
    def of(
        cls, url: str, tokens: Mapping[str, str], dataset: str | None = None, epsilon: str = "1/1000"
    ) -> ServiceTarget:
        """A service at an address."""
        send = over_http(url)
        try:
            columns = discovered(send, tokens["analyst"], dataset)
        except (OSError, http.client.HTTPException) as error:
            raise InvalidParameter(f"{url} does not answer: {error}") from None
        return cls(send, dict(tokens), columns, epsilon)

    def call(self, method: str, path: str, body: Any = None, who: str = "analyst", **headers: str) -> ServiceReply:
        """One request, as one of the accounts."""
        token = self.tokens.get(who, who)
        made = {"authorization": f"Bearer {token}", "content-type": "application/json", **headers}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.send(method, path, data, {name.replace("_", "-"): value for name, value in made.items()})

    def ask(self, query: str, who: str = "analyst", path: str = "/v1/answer", **more: Any) -> ServiceReply:
        """A question in SQL."""
        body = {"dataset": self.columns.dataset, "query": query, "epsilon": self.epsilon, **more}
        return self.call("POST", path, body, who)

    def spent(self, who: str = "analyst") -> dict[str, str]:
        """What every budget that the account sees has spent."""
        data = self.call("GET", f"/v1/budget?dataset={self.columns.dataset}", who=who).json()
        items = data.get("items", []) if isinstance(data, dict) else []
        return {f"{each['level']} {each['name']} {each['unit']} {each['kind']}": str(each["spent"]) for each in items}


def _has_port(url: str) -> bool:
    """Whether the port, if one is named, can be one."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def over_http(url: str) -> Send:
    """Sends over plain sockets, so that nothing is corrected on the way."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(url):
        raise InvalidParameter("an address looks like http://127.0.0.1:8765")
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


def discovered(send: Send, token: str, dataset: str | None = None) -> Columns:
    """A private table with a number, from what the service makes public."""
    reply = send("GET", "/v1/datasets", b"", {"authorization": f"Bearer {token}"})
    if reply.status in (401, 403):
        raise InvalidParameter("the service does not know the token")
    data = reply.json()
    for each in data.get("datasets", []) if isinstance(data, dict) else []:
        if dataset is not None and each["name"] != dataset:
            continue
        for table, about in each["tables"].items():
            columns = {name: text for name, text in about["columns"].items() if about["private"]}
            for name, text in columns.items():
                found = re.fullmatch(r"(-?\d+) to (-?\d+) in steps of 1", text)
                if found:
                    category = next((each for each, words in columns.items() if words.startswith("one of")), "")
                    return Columns(each["name"], table, name, int(found[1]), int(found[2]), category)
    raise InvalidParameter("the account sees no dataset with a private table that has a whole number in it")


@dataclass(frozen=True)
class Finding:
    """What came of an attack; `learned` says that it succeeded, `evidence` by what."""

    attack: str
    family: str
    secret: str
    learned: bool
    evidence: str = ""
    requests: int = 0


Check = Callable[[Sequence[ServiceTarget]], str]


@dataclass(frozen=True)
class Attack:
    """A few requests, and what must not be learned from them. `check` returns the evidence, or nothing."""

    name: str
    family: str
    secret: str
    check: Check
    needs: tuple[str, ...] = field(default=())

    def run(self, targets: Sequence[ServiceTarget]) -> Finding:
        """Tries it; an attack that cannot even be tried has learned nothing."""
        counting = [Counted(target) for target in targets]
        evidence = self.check([each.target for each in counting])
        requests = sum(each.count for each in counting)
        return Finding(self.name, self.family, self.secret, bool(evidence), evidence, requests)


class Counted:
    """A target that counts its requests."""

    def __init__(self, target: ServiceTarget) -> None:
        self.count, self._send = 0, target.send
        self.target = ServiceTarget(self._counted, target.tokens, target.columns, target.epsilon, target.secret)

    def _counted(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServiceReply:
        self.count += 1
        return self._send(method, path, body, headers)


def judged(replies: Sequence[ServiceReply], sent: str = "") -> str:
    """What is wrong with replies to the same request, if anything: undocumented, talkative, or not equal."""
    for reply in replies:
        if reply.code == "engine_failure":
            return "an expression made the engine fail"
        if reply.status not in DOCUMENTED:
            return f"an undocumented status {reply.status}"
        if reply.status >= 400 and not _shaped(reply):
            return f"an error of another shape, status {reply.status}"
        for found in TALKATIVE.finditer(reply.body):
            if found[0].decode().lower() not in sent.lower():  # what was sent may be quoted back
                return f"the reply speaks of {found[0].decode()!r}"
    if len({reply.public() for reply in replies}) > 1:
        return "the replies of neighbours differ: " + "; ".join(str(reply.public()[0]) for reply in replies)
    return ""


def _shaped(reply: ServiceReply) -> bool:
    data = reply.json()
    return isinstance(data, dict) and set(data) == {"error"} and set(data["error"]) == {"code", "message"}
