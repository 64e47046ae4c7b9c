"""Test messages, fair queues, rate limits, metrics, jobs and request parsing, one by one."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dither.errors import Busy, InvalidParameter, InvalidPlan, NotFound
from dither.privacy.protocol import LedgerHead
from dither.serve.gateway.jobs import Jobs
from dither.serve.gateway.metrics import Metrics
from dither.serve.gateway.rate_limits import InFlight, Rate, RecentTokens, TokenBuckets
from dither.serve.gateway.requests import read_query
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.transport.framing import LENGTH, ConnectionClosed, Message, head_text, parse_head, receive, send
from dither.serve.transport.socket_client import SeenHeads
from serve.servers import until, within


def test_a_message_arrives_as_it_was_sent() -> None:
    left, right = socket.socketpair()
    with left, right:
        send(left, Message({"call": "x", "name": "ä"}, b"\x00" * 70_000))
        assert receive(right, 1 << 20) == Message({"call": "x", "name": "ä"}, b"\x00" * 70_000)


@pytest.mark.parametrize("data", [LENGTH.pack(1 << 30), LENGTH.pack(2) + b"[]", LENGTH.pack(9) + b'{"a": 1} ',
                                  LENGTH.pack(1) + b"\xff", LENGTH.pack(2) + b"{}" + LENGTH.pack(1 << 31)])  # fmt: skip
def test_a_malformed_frame_is_refused(data: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        with pytest.raises(InvalidPlan):
            receive(right, 1 << 10)


def test_an_endless_message_times_out() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"\x00")
        with pytest.raises(ConnectionClosed):
            within(10, lambda: receive(right, 1 << 10, message_seconds=0.05))


def test_a_silent_connection_times_out() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(ConnectionClosed):
        within(10, lambda: receive(right, 1 << 10, idle_seconds=0.05))


def test_a_ledger_head_has_one_text_form() -> None:
    head = LedgerHead(17, "a" * 64)
    assert parse_head(head_text(head)) == head
    for wrong in ("", "17", "x:" + "a" * 64, "1:2", "-1:" + "a" * 64, "١:" + "a" * 64):
        with pytest.raises(InvalidPlan):
            parse_head(wrong)


def test_the_latest_head_is_stored_on_disk(tmp_path: Path) -> None:
    heads = SeenHeads(tmp_path / "head")
    heads.record(LedgerHead(5, "a" * 64))
    heads.record(LedgerHead(4, "b" * 64))
    assert heads.last == LedgerHead(5, "a" * 64) == SeenHeads(tmp_path / "head").last


def test_a_head_that_a_gap_replaced_is_replaced_once(tmp_path: Path) -> None:
    """Responses can arrive out of order: after a gap the latest head counts, and late responses change nothing."""
    lost, heads = LedgerHead(41, "a" * 64), SeenHeads(tmp_path / "head")
    heads.record(lost)
    heads.record(LedgerHead(12, "b" * 64), LedgerHead(40, "c" * 64))  # another end was given up, not this one
    assert heads.last == lost
    for sequence, furthest in ((13, 13), (12, 13), (14, 14)):
        heads.record(LedgerHead(sequence, "b" * 64), lost)
        assert heads.last == LedgerHead(furthest, "b" * 64) == SeenHeads(tmp_path / "head").last
    heads.record(LedgerHead(11, "b" * 64))
    assert heads.last == LedgerHead(14, "b" * 64) == SeenHeads(tmp_path / "head").last


def test_concurrent_heads_share_a_write_and_return_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, written, write = SeenHeads(tmp_path / "head"), list[str](), SeenHeads._write

    def slowly(self: SeenHeads, place: Path, text: str) -> None:
        time.sleep(0.2)
        write(self, place, text)
        written.append(text)

    monkeypatch.setattr(SeenHeads, "_write", slowly)

    def saw(number: int) -> bool:
        heads.record(LedgerHead(number, "a" * 64))
        return any(int(text.partition(":")[0]) >= number for text in written)

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(saw, range(20, 0, -1)))
    assert len(written) <= 5 and SeenHeads(tmp_path / "head").last == LedgerHead(20, "a" * 64)


@pytest.mark.parametrize("damage", ["", "17", "\x00" * 80])
def test_a_damaged_head_file_says_what_to_do(tmp_path: Path, damage: str) -> None:
    (tmp_path / "head").write_text(damage)
    with pytest.raises(InvalidParameter, match="remove the file"):
        SeenHeads(tmp_path / "head")


def test_the_queue_rotates_over_accounts() -> None:
    """Ten queries of one account do not delay the next query of another."""
    turns, order = FairQueue(QueueLimits(running=1, waiting=50, per_account=20)), list[str]()

    def ask(account: str) -> None:
        with turns.turn("d", account):
            order.append(account)

    def asked() -> None:
        with turns.turn("d", "first"):
            for place, account in enumerate(["greedy"] * 5 + ["modest"]):
                threading.Thread(target=ask, args=(account,), daemon=True).start()
                until(lambda seen=place: sum(turns.waiting("d", each) for each in ("greedy", "modest")) == seen + 1, 10)

    within(20, asked)
    until(lambda: len(order) == 6, 10)
    assert order[:2] == ["greedy", "modest"] and turns.waiting("d", "greedy") == turns.waiting("d", "modest") == 0


def test_a_full_queue_refuses_at_once() -> None:
    turns = FairQueue(QueueLimits(running=1, waiting=1, per_account=1))

    def refused() -> None:
        with turns.turn("d", "a"):
            with pytest.raises(Busy, match="an account may have"), turns.turn("d", "a"):
                pass
            turns._enter("d", "b")
            with pytest.raises(Busy, match="queue is full"), turns.turn("d", "c"):
                pass
            with turns.turn("another", "a"):
                pass

    within(10, refused)


def test_a_failure_frees_its_place_in_the_queue() -> None:
    turns = FairQueue(QueueLimits(running=1, waiting=1, per_account=1))

    def failing() -> None:
        with pytest.raises(KeyError), turns.turn("d", "a"):
            raise KeyError

    for _ in range(3):
        within(10, failing)


def test_buckets_fill_with_time() -> None:
    now = [0.0]
    buckets = TokenBuckets(Rate(2, 3), max_names=2, now=lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    now[0] = 0.5
    assert buckets.take("a") == 0 and buckets.take("a") > 0 and buckets.take("b") == 0
    buckets.take("c")
    assert buckets.take("a") == 0  # forgotten, since only two are kept


def test_requests_in_progress_are_limited_per_account() -> None:
    under_way = InFlight(2)
    with under_way.admit("a"), under_way.admit("a"):
        with pytest.raises(Busy, match="requests in progress"), under_way.admit("a"):
            pass
        with under_way.admit("b"):
            pass
    with pytest.raises(KeyError), under_way.admit("a"):
        raise KeyError
    assert not under_way._counts


def test_the_number_of_remembered_tokens_is_limited() -> None:
    known = RecentTokens(max_tokens=2)
    for name in "abc":
        known.add(name, name.upper())
    assert known.get("a") is None and known.get("b") == "B"
    known.add("d", "D")
    assert known.get("c") is None and known.get("b") == "B"  # asked for later than the other
    known.discard("b")
    assert known.get("b") is None


def test_metrics_know_routes_and_outcomes_only() -> None:
    metrics = Metrics()
    metrics.start_request()
    metrics.end_request("/v1/answer", refused=False)
    assert 'dither_requests_total{route="/v1/answer",outcome="done"} 1' in metrics.text()
    assert "dither_requests_open 0" in metrics.text()


def test_jobs_belong_to_their_account() -> None:
    jobs = Jobs(workers=1, max_per_account=1)
    hold = threading.Event()
    job = jobs.submit("a", "one", "q", 1_000_000, lambda: {"waited": hold.wait(10)})
    assert jobs.submit("a", "one", "q", 5, dict) is job
    with pytest.raises(InvalidParameter, match="a different query"):
        jobs.submit("a", "one", "r", 5, dict)
    assert job.data()["status"] == "waiting" and job.data()["progress"] == 0.0
    with pytest.raises(Busy):
        jobs.submit("a", "two", "q", 5, dict)
    with pytest.raises(NotFound):
        jobs.find("b", "one")
    hold.set()
    assert until(lambda: job.data()["status"] == "done") and job.data()["answer"] == {"waited": True}
    jobs.delete("a", "one")
    with pytest.raises(NotFound):
        jobs.find("a", "one")
    jobs.close()


def test_a_failed_job_can_start_again() -> None:
    """A job that failed because the kernel was busy can be submitted again under its name."""
    jobs, ends = Jobs(workers=1, max_per_account=1), iter([Busy("later"), None])

    def work() -> dict[str, int]:
        problem = next(ends)
        if problem is not None:
            raise problem
        return {"done": 1}

    first = jobs.submit("a", "one", "q", 1, work)
    until(lambda: first.failed)
    assert first.data()["error"]["code"] == "busy"
    second = jobs.submit("a", "one", "q", 1, work)
    assert until(lambda: second.data()["status"] == "done") and jobs.submit("a", "one", "q", 1, work) is second
    jobs.close()


@pytest.mark.parametrize("body", [
    b'{"dataset": "d", "query": "q", "epsilon": true}', b'{"dataset": "d", "query": "q", "epsilon": " 1"}',
    b'{"dataset": "d", "query": "q", "bound": {"rows": "3"}}', b'{"dataset": "d", "query": "q", "x": 1}',
    b'{"dataset": "d"}', b'{"dataset": "d", "query": "q", "query": "r"}',
    b'{"dataset": "d", "query": "q", "repeat": NaN}',
])  # fmt: skip
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidParameter):
        read_query(body)


def test_a_request_may_leave_out_the_dataset() -> None:
    assert read_query(b'{"query": "q", "epsilon": 1}').dataset == ""


def test_a_decimal_is_exact() -> None:
    asked = read_query(b'{"dataset": "d", "query": "q", "epsilon": 0.1, "confidence": 0.9}')
    assert str(asked.options["epsilon"]) == "1/10" and str(asked.options["confidence"]) == "9/10"
