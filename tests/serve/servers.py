"""A small dataset, the town, behind a kernel and a gateway, in threads of this process or in separate processes."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import httpx
from starlette.testclient import TestClient

from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.gateway.app import application
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.gateway.rate_limits import Rate
from dither.serve.kernel.admin import call_admin
from dither.serve.kernel.fair_queue import QueueLimits
from dither.serve.kernel.process import descriptions_hash
from dither.serve.kernel.server import KernelServer, unix_listener
from dither.serve.transport.socket_client import RemoteKernel, SeenHeads

SALARY = 91_000  # of person 7, who must not be found
PEOPLE = 200

TOWN = """
version: 1
name: town
population: town
data_version: "1"
tables:
  people:
    private: true
    source: {kind: parquet, path: people.parquet}
    unique: id
    columns:
      id: {type: identifier, kind: integer}
      age: {type: integer, min: 0, max: 120}
      salary: {type: decimal, min: 0, max: 200000, step: 100}
      city: {type: category, values: [north, south, east], default: east}
      ill: {type: boolean}
  visits:
    private: true
    source: {kind: parquet, path: visits.parquet}
    columns:
      id: {type: identifier, kind: integer}
      place: {type: category, values: [shop, bar, church]}
      spent: {type: decimal, min: 0, max: 100, step: 0.01}
units:
  person:
    kind: user
    keys: {people: id, visits: id}
budgets:
  - {unit: person, kind: pure, epsilon: EPSILON}
POLICY
"""
SHARED = ""
SEPARATE = """
policy: separate
groups:
  - {name: red, analysts: [ann, amy]}
  - {name: blue, analysts: [bob]}
"""


def town(folder: Path, epsilon: object = 10, policy: str = SHARED, without: int | None = None) -> Path:
    """Write the town, optionally without one person, and return the path of its description."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = f"WHERE id <> {without}" if without is not None else ""
    duckdb.sql(
        f"""COPY (SELECT * FROM (SELECT range::bigint AS id, (range % 90)::int AS age,
        (CASE WHEN range = 7 THEN {SALARY} ELSE 20000 + 100 * range END)::int AS salary,
        ['north', 'south', 'east'][1 + range % 3] AS city, range % 5 = 0 AS ill FROM range({PEOPLE})) {kept})
        TO '{folder}/people.parquet'"""
    )
    duckdb.sql(
        f"""COPY (SELECT * FROM (SELECT (range % {PEOPLE})::bigint AS id,
        ['shop', 'bar', 'church'][1 + range % 3] AS place, (range % 100)::double AS spent FROM range(600)) {kept})
        TO '{folder}/visits.parquet'"""
    )
    path = folder / "town.yml"
    path.write_text(TOWN.replace("EPSILON", str(epsilon)).replace("POLICY", policy))
    return path


@dataclass
class Place:
    """A running kernel server and the gateway in front of it, with accounts."""

    kernel: LocalKernel
    server: KernelServer
    remote: RemoteKernel
    http: TestClient
    tokens: dict[str, str]
    folder: Path
    calls: int = 0

    def ask(self, query: str, epsilon: object = "0.1", who: str = "ann", **more: Any) -> httpx.Response:
        body = {"dataset": "town", "query": query, "epsilon": epsilon, **more}
        return self.post("/v1/answer", body, who)

    def post(self, path: str, body: Any, who: str = "ann", **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, headers=self.headers(who, **more))

    def get(self, path: str, who: str = "ann") -> httpx.Response:
        return self.http.get(path, headers=self.headers(who))

    def headers(self, who: str, **more: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens.get(who, who)}", **more}

    def spent(self, level: str = "dataset", who: str = "ann") -> int:
        return sum(each.spent[0] for each in self.kernel.budget("town", self.tokens[who]) if each.level == level)

    def charges(self) -> int:
        return sum(row.kind == "charge" for row in self.kernel.ledger.rows())


@contextmanager
def place(
    folder: Path,
    *,
    epsilon: object = 10,
    policy: str = SHARED,
    limits: QueueLimits | None = None,
    settings: AppSettings | None = None,
    described: Path | None = None,
    **options: Any,
) -> Iterator[Place]:
    """Open the town's kernel behind a socket, and a gateway, both in this process."""
    path = described or town(folder / "data", epsilon, policy)
    kernel = LocalKernel(load(path), folder / "ledger.sqlite", trusted=False, **options)
    tokens = {name: kernel.ledger.add_account(name, "analyst", days=1) for name in ("ann", "amy", "bob", "eve")}
    tokens |= {"aud": kernel.ledger.add_account("aud", "auditor"), "cur": kernel.ledger.add_account("cur", "curator")}
    door = str(folder / "k.sock")
    lines = limits or QueueLimits(running=1)
    server = KernelServer(
        kernel,
        unix_listener(door),
        ledger=kernel.ledger,
        limits=lines,
        account_of=kernel.account_name,
        role_of=kernel.account_role,
        descriptions_hash=partial(descriptions_hash, kernel),
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    remote = RemoteKernel(door, SeenHeads(folder / "head"))
    fast = settings or AppSettings(account_rate=Rate(1000, 10_000), unknown_token_rate=Rate(1000, 10_000), tick_ms=0)
    try:
        with TestClient(application(remote, fast), raise_server_exceptions=False) as http:
            yield Place(kernel, server, remote, http, tokens, folder)
    finally:
        remote.close()
        server.close()
        thread.join(5)
        kernel.close()


@dataclass
class Town:
    """A kernel and a gateway as separate processes of `dither serve`."""

    state: Path
    process: subprocess.Popen[bytes]
    url: str
    tokens: dict[str, str] = field(default_factory=dict)

    def desk(self, call: str, /, **given: str) -> Any:
        return call_admin(self.state / "private" / "admin.sock", call, **given)

    def account(self, name: str, role: str = "analyst") -> str:
        self.tokens[name] = self.desk("account", name=name, role=role)["token"]
        return self.tokens[name]

    def children(self) -> dict[str, int]:
        """Return the process ids of kernel and gateway by name."""
        found = {}
        listing = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for number in map(int, listing):
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            for name in ("kernel", "gateway"):
                if name.encode() in words[:5]:
                    found[name] = number
        return found


def until(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := done():
                return found
        except Exception:  # not yet there
            pass
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Return the result of some work; fail instead of hanging if it takes longer."""
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, work()))
        except BaseException as problem:
            outcome.append((False, problem))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"not done within {seconds} seconds"
    done, value = outcome[0]
    if not done:
        raise value
    return value


@contextmanager
def serving(
    description: Path, state: Path, *words: str, python: str = sys.executable, groups: tuple[int, ...] | None = None,
    **environment: str,
) -> Iterator[Town]:  # fmt: skip
    """Run `dither serve` on a free port."""
    command = [python, "-m", "dither", "serve", str(description), "--state", str(state), "--port", "0", "--tick", "10",
               *words]  # fmt: skip
    (state / "gateway" / "address").unlink(missing_ok=True)  # of an earlier server
    process = subprocess.Popen(command, env={**os.environ, **environment}, extra_groups=groups)
    try:
        town_there = Town(state, process, "")
        until(lambda: town_there.desk("status")["datasets"])
        town_there.url = until(lambda: (state / "gateway" / "address").read_text())
        until(lambda: httpx.get(f"{town_there.url}/health/ready").status_code == 200)
        yield town_there
    finally:
        process.terminate()
        process.wait(40)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


__all__ = ["SALARY", "SEPARATE", "SHARED", "Place", "Schedule", "Town", "place", "serving", "town", "until", "within"]


class Careless(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with the same dataset, without checking tokens."""

    def answer(self) -> None:
        columns = {"age": "0 to 120 in steps of 1"}
        data = {"datasets": [{"name": "d", "tables": {"people": {"private": True, "columns": columns}}}]}
        body = json.dumps(data).encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *given: object) -> None:
        """Log nothing."""
