"""No refunds: charges survive failures, disconnects, kills and restored ledgers; in weakened builds they do not."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dither.access.engines import open_engine
from dither.errors import Busy, EngineFailure
from dither.loss import Pure
from dither.privacy import kernel as kernel_module
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import backup, restore, verify
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.gateway.app import application
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.gateway.rate_limits import Rate
from dither.serve.kernel.server import KernelServer, unix_listener
from dither.serve.transport.framing import Message, send
from dither.serve.transport.socket_client import RemoteKernel, SeenHeads
from serve.servers import Place, place, town, until

QUERY = "SELECT COUNT(*) FROM people"


class Failing:
    """An engine whose reads fail once `broken` is set."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.broken, self.failure = inner, False, None

    def vector(self, *given: Any) -> Any:
        if self.broken:
            raise RuntimeError("Conversion Error: Mrs. Stanton")
        return self.inner.vector(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def failing(folder: Path) -> Any:
    made: list[Failing] = []

    def engine(dataset: Any) -> Any:
        made.append(Failing(open_engine(dataset)))
        return made[-1]

    with place(folder, engine=engine) as there:
        made[0].broken = True
        yield there


def free_failure(there: Place) -> bool:
    """The attack: return True if a query that fails is not charged."""
    before = there.spent()
    reply = there.ask(QUERY)
    assert reply.status_code == 500 and reply.json()["error"]["code"] == "engine_failure"
    assert "Stanton" not in reply.text
    return there.spent() == before


def test_a_failure_costs_what_an_answer_costs(tmp_path: Path) -> None:
    with failing(tmp_path) as there:
        assert not free_failure(there)


def test_a_build_that_charges_after_running_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: run the query first and charge afterwards, as Lomas does."""
    original = LocalKernel.answer

    def after(self: LocalKernel, request: Any, token: str) -> Any:
        _, house = self._authorize_query(request.dataset, token)
        plain, appraisal = self._cost_request(house, request)
        with house.engine() as slot:
            try:
                for step in appraisal.steps:
                    slot.engine.vector(step.measure, None, 0)
            except Exception:
                raise EngineFailure from None
        return original(self, plain, token)

    monkeypatch.setattr(kernel_module.LocalKernel, "answer", after)
    with failing(tmp_path) as there:
        assert free_failure(there)


def test_failures_are_counted_as_done_in_public_metrics(tmp_path: Path) -> None:
    """No account can see in /metrics that another account's query failed."""
    with failing(tmp_path) as there:
        there.ask(QUERY)
        assert 'dither_requests_total{route="/v1/answer",outcome="done"} 1' in there.get("/metrics", "aud").text


def test_hanging_up_in_the_middle_keeps_the_charge_and_the_answer(tmp_path: Path) -> None:
    """The socket closes right after the request is sent: there is one charge, and a retry gets the one answer."""
    with place(tmp_path) as there:
        body = there.remote  # the gateway's own connection is not used here
        assert body is not None
        request = _request(there)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(tmp_path / "k.sock"))
        send(connection, Message({"call": "answer", "token": there.tokens["ann"], "dataset": "town"}, request))
        connection.close()
        until(lambda: sum(row.kind == "answer" for row in there.kernel.ledger.rows()) == 2)
        spent = there.spent()
        replies = [there.remote.call("answer", there.tokens["ann"], "town", request) for _ in range(3)]
        assert there.spent() == spent and len({reply.parts[0].values for reply in replies}) == 1
        assert all(reply.cached for reply in replies)


@contextmanager
def listening(there: Place, **more: Any) -> Iterator[tuple[str, int]]:
    """Serve the gateway on a port of its own."""
    settings = AppSettings(account_rate=Rate(1000, 10_000), unknown_token_rate=Rate(1000, 10_000), tick_ms=0, **more)
    server = uvicorn.Server(uvicorn.Config(application(there.remote, settings), port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[:2]
    server.should_exit = True
    thread.join(10)


def _raw_post(there: Place, body: bytes, length: int | None = None) -> bytes:
    """Return a query as raw HTTP; `length` may announce a longer body than the one sent."""
    head = f"POST /v1/answer HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {there.tokens['ann']}\r\n"
    return f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("when", ["at once", "while it is drawn"])
def test_hanging_up_on_the_gateway_keeps_the_charge_and_the_answer(tmp_path: Path, when: str) -> None:
    """The same over HTTP, as an analyst would attempt it."""
    with place(tmp_path, schedule=Schedule(floor=300)) as there, listening(there) as at:
        body = {"dataset": "town", "query": QUERY, "epsilon": 1, "request_id": "gone"}
        charges = there.charges()
        with socket.create_connection(at) as connection:
            connection.sendall(_raw_post(there, json.dumps(body).encode()))
            if when == "while it is drawn":
                until(lambda: there.charges() == charges + 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        again = [there.post("/v1/answer", body).json() for _ in range(3)]
        assert again[1]["free"] and again[2]["free"] and again[0]["rows"] == again[1]["rows"] == again[2]["rows"]
        assert there.charges() == charges + 1 and sum(row.kind == "answer" for row in there.kernel.ledger.rows()) == 2


def test_a_body_that_never_ends_is_given_up_and_charged_nothing(tmp_path: Path) -> None:
    """Slow-loris with a body: status 408 after the gateway's time limit, in the documented form of errors."""
    with place(tmp_path) as there, listening(there, body_seconds=0.3) as at:
        charges = there.charges()
        reply = _never_ending(there, at, 20)
        assert reply.startswith(b"HTTP/1.1 408") and b'{"error":{"code":' in reply
        assert there.charges() == charges


def test_a_gateway_with_endless_patience_is_found(tmp_path: Path) -> None:
    """The weakened build."""
    with place(tmp_path) as there, listening(there, body_seconds=1000) as at, pytest.raises(TimeoutError):
        _never_ending(there, at, 1.5)


def _never_ending(there: Place, at: tuple[str, int], seconds: float) -> bytes:
    """Return the reply, within some seconds, to a body of which only the beginning is sent."""
    with socket.create_connection(at) as connection:
        connection.settimeout(seconds)
        connection.sendall(_raw_post(there, b'{"dataset": "town"', length=1000))
        found = b""
        while not found.endswith(b"}}") and (piece := connection.recv(65536)):
            found += piece
        return found


def test_a_query_that_times_out_keeps_its_charge(tmp_path: Path) -> None:
    """Timeouts: the query ends at the last release time with the one error, is charged, and a retry is not charged."""
    stuck = threading.Event()

    class Stuck(Failing):
        def vector(self, measure: Any, deadline: float | None = None, secret: int = 0) -> Any:
            if self.broken:
                stuck.wait(deadline)
                raise EngineFailure
            return self.inner.vector(measure, deadline, secret)

    made: list[Failing] = []

    def engine(dataset: Any) -> Any:
        made.append(Stuck(open_engine(dataset)))
        return made[-1]

    with place(tmp_path, engine=engine, schedule=Schedule(floor=20, row=0, cell=0, node=0)) as there:
        before = there.spent()
        made[0].broken = True
        body = {"dataset": "town", "query": QUERY, "epsilon": 1, "request_id": "stuck"}
        assert there.post("/v1/answer", body).status_code == 500
        paid = there.spent()
        assert paid == before + 10**15
        made[0].broken = False
        assert there.post("/v1/answer", body).status_code == 200 and there.spent() == paid


def _request(there: Place) -> bytes:
    from dither.loss import Pure
    from dither.plan.measures.sums import Count
    from dither.plan.relations.scan import Scan
    from dither.privacy.codec import encode
    from dither.privacy.protocol import Calibrate, Measurement, Request

    loss = Calibrate("discrete_laplace", Pure("1/10"))  # type: ignore[arg-type]
    return encode(Request("town", (Measurement(Count(Scan("people")), loss),), request_id="one"))


def test_a_restored_ledger_is_refused_until_the_gap_is_marked(tmp_path: Path) -> None:
    """A restored backup would be a refund: the gateway remembers a later head, and the kernel refuses to continue."""
    path = town(tmp_path / "data")
    token = _run(path, tmp_path, tmp_path / "one.sqlite", asks=0)
    backup(tmp_path / "one.sqlite", tmp_path / "copy.sqlite")
    _run(path, tmp_path, tmp_path / "one.sqlite", asks=3, token=token)
    shutil.copy(tmp_path / "copy.sqlite", tmp_path / "old.sqlite")  # behind the curator's back
    with pytest.raises(Exception, match="lacks a head"):
        _run(path, tmp_path, tmp_path / "old.sqlite", asks=1, token=token)
    head = SeenHeads(tmp_path / "head").last
    assert head is not None and not verify(tmp_path / "old.sqlite", None, head).sound
    restore(tmp_path / "copy.sqlite", tmp_path / "again.sqlite")
    with pytest.raises(Exception, match=r"lacks a head|closed"):
        _run(path, tmp_path, tmp_path / "again.sqlite", asks=1, token=token)


def test_a_second_rollback_is_refused_as_the_first_was(tmp_path: Path) -> None:
    """Regression: the gateway kept the abandoned head, and noticed nothing until the new ledger was longer."""
    path, kept, back = town(tmp_path / "data"), tmp_path / "head", tmp_path / "back.sqlite"
    token = _run(path, tmp_path, tmp_path / "one.sqlite", asks=0)
    backup(tmp_path / "one.sqlite", tmp_path / "copy.sqlite")
    _run(path, tmp_path, tmp_path / "one.sqlite", asks=8, token=token)
    restore(tmp_path / "copy.sqlite", back)
    lost = SeenHeads(kept).last
    ledger = Ledger(back)
    ledger.mark_gap(lost, Pure("8/10"))
    ledger.close()
    shutil.copy(back, tmp_path / "old.sqlite")  # behind the curator's back
    _run(path, tmp_path, back, asks=2, token=token)
    new = SeenHeads(kept).last
    assert new is not None and new.sequence < lost.sequence
    with pytest.raises(Exception, match="lacks a head"):
        _run(path, tmp_path, tmp_path / "old.sqlite", asks=1, token=token)
    assert SeenHeads(kept).last == new
    _run(path, tmp_path, back, asks=3, token=token)


def test_a_gateway_that_forgets_the_end_gives_a_refund(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: nothing remembers the later head, and an old copy continues as if nothing had been spent."""
    path = town(tmp_path / "data")
    token = _run(path, tmp_path, tmp_path / "one.sqlite", asks=0)
    shutil.copy(tmp_path / "one.sqlite", tmp_path / "old.sqlite")
    _run(path, tmp_path, tmp_path / "one.sqlite", asks=3, token=token)
    monkeypatch.setattr(SeenHeads, "record", lambda self, head, replaced: None)
    (tmp_path / "head").unlink()
    _run(path, tmp_path, tmp_path / "old.sqlite", asks=1, token=token)


def _run(path: Path, folder: Path, ledger: Path, asks: int, token: str = "") -> str:
    kernel = LocalKernel(load(path), ledger, trusted=False)
    token = token or kernel.ledger.add_account("ann", "analyst")
    server = KernelServer(kernel, unix_listener(folder / "r.sock"), ledger=kernel.ledger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = RemoteKernel(str(folder / "r.sock"), SeenHeads(folder / "head"))
    try:
        remote.datasets(token)
        for number in range(asks):
            body = _request_numbered(number)
            remote.call("answer", token, "town", body)
    finally:
        remote.close()
        server.close()
        kernel.close()
    return token


def _request_numbered(number: int) -> bytes:
    from dither.loss import Pure
    from dither.plan.measures.sums import Count
    from dither.plan.relations.scan import Scan
    from dither.privacy.codec import encode
    from dither.privacy.protocol import Calibrate, Measurement, Request

    loss = Calibrate("discrete_laplace", Pure("1/10"))  # type: ignore[arg-type]
    return encode(Request("town", (Measurement(Count(Scan("people")), loss),), repeat=number))


def test_a_busy_kernel_refuses_before_any_charge(tmp_path: Path) -> None:
    from dither.serve.kernel.fair_queue import QueueLimits

    with place(tmp_path, limits=QueueLimits(running=1, waiting=1, per_account=1)) as there:
        turns, charges = there.server.answer_queue, there.charges()
        with turns.turn("town", "somebody"):
            turns._enter("town", "another")
            with pytest.raises(Busy, match="nothing was charged"):
                there.remote.call("answer", there.tokens["ann"], "town", _request(there))
            assert there.charges() == charges
        turns._leave("town", "another")
        assert there.ask(QUERY).status_code == 200
