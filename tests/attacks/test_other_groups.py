"""Under separate budgets nothing that a group sees depends on what another group asks.

The same analysts do the same things on two services with equal data and with zeros in place of every draw; on one of
them another group has asked before, between or never. Every reply of every route, every call of the kernel and every
attribute of a session must be equal, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attacks.test_exits import zero_draws
from dither.connection import measure_profile
from dither.errors import DitherError
from dither.post.session import Session
from dither.privacy.bits import SystemBits
from dither.privacy.ledger.store import new_salt
from dither.privacy.pacing import Schedule
from dither.privacy.receipted_read import ReceiptedRead
from dither.serve.gateway.app import Gateway
from dither.serve.transport.rpc import CALLS
from privacy.ledger_cases import ManualClock
from serve.servers import SEPARATE, Place, place

QUERY = "SELECT city, COUNT(*) AS n FROM people GROUP BY city"
OTHER = "SELECT COUNT(*) AS n FROM visits"
ROUTES = {  # every route of the gateway: what ann sends to it, or None for a plain GET
    "/health/live": None, "/health/ready": None, "/metrics": None, "/openapi.json": None, "/": None,
    "/page.js": None, "/page.css": None,
    "/v1/datasets": None, "/v1/budget": None, "/v1/history": None, "/v1/ledger": None, "/v1/statement": None,
    "/v1/quote": {"query": QUERY, "epsilon": "1/10"}, "/v1/explain": {"query": QUERY},
    "/v1/answer": {"query": QUERY, "epsilon": "1/10", "request_id": "r1"},
    "/v1/batch": {"queries": [QUERY, OTHER], "epsilon": "1/10"},
    "/v1/split": {"query": OTHER, "epsilon": "1/10", "threshold": 2},
    "/v1/jobs/{job}": None, "/v1/proofs": None, "/v1/proofs/{name}": None, "/v1/reports": None,
    "/v1/reports/{name}": None, "/v1/kernel/{call}": None,
}  # fmt: skip


STATISTICS: dict[str, dict[str, Any]] = {  # what amy asks, and bob asked before
    "table": {"source": "people", "by": "city"},
    "contributions": {"table": "visits"},
    "top": {"source": "visits", "by": "place"},
    "watch": {"query": "SELECT city, COUNT(*) AS n FROM people GROUP BY city", "above": 10},
    "describe": {"source": "people", "columns": ["age"]},
}


class Onlooker:
    """An analyst who writes down everything that is visible to the own group."""

    def __init__(self, there: Place) -> None:
        self.there, self.seen = there, dict[str, str]()

    def note(self, name: str, reply: Any) -> None:
        """Write down one reply: its status, headers and body."""
        self.seen[f"{len(self.seen)} {name}"] = f"{reply.status_code} {sorted(reply.headers.items())} {reply.text}"

    def look(self) -> None:
        """Call every route, every call of the kernel, and every attribute of a session; answers are charged once."""
        for path, body in ROUTES.items():
            for url in self.urls(path):
                reply = self.there.get(url) if body is None else self.there.post(url, {"dataset": "town", **body})
                self.note(url, reply)
        for call in CALLS:
            headers = self.there.headers("ann")
            self.note(f"call {call}", self.there.http.post(f"/v1/kernel/{call}?dataset=town", headers=headers))
        session = Session.from_kernel(self.there.remote, self.there.tokens["ann"])
        for name in sorted(name for name, value in vars(Session).items() if isinstance(value, property)):
            self.seen[f"{len(self.seen)} session.{name}"] = repr(getattr(session, name))

    def urls(self, path: str) -> list[str]:
        """Return the addresses of a route, with the names of ann's own things in it."""
        if path in ("/v1/budget", "/v1/history", "/v1/ledger", "/v1/statement"):
            return [f"{path}?dataset=town", f"{path}?dataset=town&limit=1", f"{path}?dataset=town&before=2"]
        return [path.format(job="r1", name="kernel.md", call="budget")]

    def ask(self, query: str, who: str = "ann", **more: Any) -> None:
        """Ask, and write down the reply."""
        self.note(f"{who}: {query}", self.there.ask(query, "1/10", who, **more))

    def statistics(self) -> None:
        """Ask every kind of statistic once, as somebody of the own group."""
        session = Session.from_kernel(self.there.remote, self.there.tokens["amy"])
        for name, given in STATISTICS.items():
            method = getattr(session, name)
            shown = [method.quote(**given, epsilon="1/50"), method(**given, epsilon="1/50")]
            self.seen[f"{len(self.seen)} amy: {name}"] = repr([deep(shown[0]), str(shown[1]), shown[1].loss])

    def answer(self) -> None:
        """Call the kernel as the Python client does, and write down releases and errors as they are."""
        session = Session.from_kernel(self.there.remote, self.there.tokens["amy"])
        for query, epsilon in ((OTHER, "1/5"), (QUERY, "1/10"), (QUERY, "100")):
            try:
                shown = [session.quote(query, epsilon=epsilon), session.sql(query, epsilon=epsilon)]
            except DitherError as error:
                shown = [type(error).__name__, str(error)]
            self.seen[f"{len(self.seen)} amy: {query} {epsilon}"] = repr([deep(each) for each in shown])


def deep(value: Any) -> Any:
    """Return every field of a dataclass, however deep, and the text of everything else."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: deep(inner) for name, inner in vars(value).items()}
    return [deep(inner) for inner in value] if isinstance(value, tuple | list) else str(value)


def by_bob(there: Place, query: str = QUERY, times: int = 1, **more: Any) -> None:
    """Another group asks."""
    for repeat in range(times):
        there.ask(query, "1/10", "bob", repeat=repeat, **more)


def statistics_by_bob(there: Place) -> None:
    """Another group asks for the same statistics."""
    session = Session.from_kernel(there.remote, there.tokens["bob"])
    for name, given in STATISTICS.items():
        getattr(session, name)(**given, epsilon="1/50")


def fails_for_bob(there: Place, query: str = QUERY) -> None:
    """Another group's answers fail after the charge, once for each miss that is allowed."""
    engines = [slot.engine for slot in there.kernel._datasets["town"].slots]
    for engine in engines:
        engine.vector = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    for repeat in range(10, 13):
        assert there.ask(query, "1/10", "bob", repeat=repeat).status_code == 500
    assert there.ask(query, "1/10", "bob", repeat=13).status_code == 403
    for engine in engines:
        del engine.vector  # type: ignore[method-assign]


def spend_everything(there: Place) -> None:
    """Another group spends its budget, and is refused."""
    assert there.ask(QUERY, "9.8", "bob").status_code == 200
    assert there.ask(QUERY, "1/10", "bob").status_code == 402


def only_look(there: Place) -> None:
    """Another group looks at everything, and asks nothing."""
    for name in ("datasets", "history", "budget", "statement"):
        assert there.get(f"/v1/{name}?dataset=town", "bob").status_code == 200


OTHERS: dict[str, Callable[[Place], None]] = {
    "the same question": by_bob,
    "the same question, often": partial(by_bob, times=5),
    "the same question and request id": partial(by_bob, request_id="r1"),
    "another question": partial(by_bob, query=OTHER),
    "everything that the budget allows": spend_everything,
    "questions that fail after the charge": fails_for_bob,
    "the same statistics": statistics_by_bob,
    "no question": only_look,
}


def seen_by_red(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: Callable[[Place], Any], between: Callable[[Place], Any]
) -> dict[str, str]:
    """Return everything that group red sees, with something that group blue does before and between."""
    folder.mkdir()
    with zero_draws(monkeypatch):
        options = {"clock": ManualClock(), "schedule": Schedule(floor=2000)}
        with place(folder, policy=SEPARATE, **options) as there:
            measure_profile(Session.from_kernel(there.kernel, there.tokens["ann"]), Fraction(1, 10))
            assert {route.path for route in Gateway(there.remote).routes()} == set(ROUTES)
            red = Onlooker(there)
            before(there)
            red.look()
            between(there)
            red.ask(QUERY, request_id="r1")
            red.ask(QUERY, "amy")
            red.ask(OTHER)
            red.ask(OTHER, repeat=1)
            red.answer()
            red.statistics()
            red.look()
            return red.seen


def nothing(there: Place) -> None:
    """Do nothing."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return everything that group red sees if nobody else asks."""
    with pytest.MonkeyPatch.context() as patched:
        return seen_by_red(tmp_path_factory.mktemp("alone") / "town", patched, nothing, nothing)


@pytest.mark.tier("deep")
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("when", ["before", "between"])
def test_a_group_sees_nothing_of_what_another_group_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, str], what: str, when: str
) -> None:
    steps = (OTHERS[what], nothing) if when == "before" else (nothing, OTHERS[what])
    beside = seen_by_red(tmp_path / "town", monkeypatch, *steps)
    assert {name: (alone[name], beside[name]) for name in alone if alone[name] != beside[name]} == {}


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("before", "between"), [(by_bob, fails_for_bob), (nothing, spend_everything), (statistics_by_bob, nothing)]
)
def test_a_group_sees_nothing_of_another_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, str], before: Any, between: Any
) -> None:
    """The cases that leaked most: a shared draw, misses, and what changes the numbers of rows."""
    beside = seen_by_red(tmp_path / "town", monkeypatch, before, between)
    assert list(alone) == list(beside) and len(alone) > 70
    assert {name: (alone[name], beside[name]) for name in alone if alone[name] != beside[name]} == {}


def test_while_an_answer_is_under_way_history_does_not_show_that_another_group_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: `answered` was true before the answer left, if another group had received it."""
    answered, draw = list[bool](), ReceiptedRead._draw
    with place(tmp_path, policy=SEPARATE, clock=ManualClock(), schedule=Schedule(floor=2000)) as there:
        by_bob(there)
        waited = there.kernel._clock.wait_until

        def look(instant: int) -> None:
            answered.append(there.kernel.history("town", there.tokens["ann"])[-1].answered)
            waited(instant)

        monkeypatch.setattr(there.kernel._clock, "wait_until", look)
        monkeypatch.setattr(ReceiptedRead, "_draw", draw)
        assert there.ask(QUERY).status_code == 200
        assert answered == [False] and there.kernel.history("town", there.tokens["ann"])[-1].answered


@pytest.mark.tier("test")
def test_no_hash_that_a_group_sees_confirms_a_guess_of_another_groups_answer(tmp_path: Path) -> None:
    """Regression: an unsalted head confirmed the right one of 80,627 candidates in 0.2 s.

    The attacker knows more than a real one could: the whole row of the other group's answer but for one noisy value,
    and the times. Every text of 64 digits that is visible before and after serves as a hash.
    """
    with place(tmp_path, policy=SEPARATE, clock=ManualClock()) as there:
        red = Onlooker(there)
        red.look()
        by_bob(there, "SELECT COUNT(*) AS n FROM people")
        charge, answer = there.kernel.ledger.rows()[-2:]
        red.look()
        value = json.loads(json.loads(answer.body)["release"])["parts"][0]["values"][0]
        hashes = set(re.findall(r"[0-9a-f]{64}", " ".join(red.seen.values())))
        assert (charge.kind, answer.kind) == ("charge", "answer") and hashes
        assert recovered(charge, answer, value, hashes, salted=False) == []
        # With the secret salts and the heads, which only auditors have, the same search succeeds.
        heads = {row.hash for row in there.kernel.ledger.rows()}
        assert recovered(charge, answer, value, heads, salted=True) == [value]


def recovered(charge: Any, answer: Any, value: int, hashes: set[str], salted: bool) -> list[int]:
    """Return the values of an answer that link two of the hashes, of 4,001 candidates."""
    found = []
    for head in hashes:
        middle = chained(head, charge, charge.body, salted)
        for guess in range(value - 2000, value + 2001):
            body = answer.body.replace(f'\\"values\\":[{value}]', f'\\"values\\":[{guess}]')
            found += [guess] if chained(middle, answer, body, salted) in hashes else []
    return found


def chained(head: str, row: Any, body: str, salted: bool) -> str:
    """Return the hash of a row with this body after this head."""
    parts = (head, str(row.sequence), row.kind, row.time, *([row.salt] if salted else []), body)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def test_every_row_has_a_secret_salt_of_its_own() -> None:
    """The named bug: a constant salt. A hundred salts of 128 bits are alike by chance once in 10^34 runs."""
    salts = {new_salt(SystemBits()) for _ in range(100)}
    assert len(salts) == 100 and all(len(salt) == 32 for salt in salts)
