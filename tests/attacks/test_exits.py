"""No output reveals an exact number: with a constant in place of every draw, no output depends on the records.

Two towns that have nothing in common but their description stand behind the same service, whose randomness is held.
What leaves the kernel through a mechanism is replaced by zeros. If a record, or a number of them, came out by another
way (an answer, SQL, an explanation, a note, a header, a metric, a log line, an error's text, the ledger, a time), bytes
would differ.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from attacks.sites import COLUMNS
from conftest import Tier
from dither.audit.attacks.oracles import EXPRESSIONS, QUERIES, fill_template
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger import accounts, log
from dither.privacy.mechanisms import Mechanism
from dither.privacy.pacing import Schedule
from dither.privacy.receipted_read import ReceiptedRead
from dither.serve.gateway import app as gateway_app
from dither.views.answers import answer_data
from privacy.doubles import RecordedBits
from privacy.ledger_cases import ManualClock
from serve.servers import SALARY, Place, place, town

HEAVY = {"groups by values of the data"}
ANSWERED = {
    "counts by group": "SELECT city, COUNT(*) AS n FROM people GROUP BY city",
    "sums with a bound to find": "SELECT place, SUM(spent) AS s FROM visits GROUP BY place",
    "an average": "SELECT AVG(salary) AS a FROM people WHERE age > 30",
    "a join": "SELECT city, COUNT(*) AS n FROM visits JOIN people USING (id) GROUP BY city",
    "people": "SELECT COUNT(DISTINCT id) AS n FROM visits",
    "a median": "SELECT MEDIAN(age) AS m FROM people",
    "one person": f"SELECT COUNT(*) AS n FROM people WHERE salary = {SALARY}",
}


def other_town(folder: Path) -> Path:
    """Write a town of fewer people and other values, some outside of their domains, missing or duplicated."""
    path = town(folder)
    duckdb.sql(
        f"""COPY (SELECT nullif(range, 5)::bigint AS id, (range * 7 % 200 - 30)::int AS age,
        (range * 12345 - 70000)::int AS salary, ['west', 'south', NULL][1 + range % 3] AS city, NULL::boolean AS ill
        FROM range(37)) TO '{folder}/people.parquet'"""
    )
    duckdb.sql(
        f"""COPY (SELECT (range % 3)::bigint AS id, 'bar' AS place, 1e300 * range AS spent FROM range(2000))
        TO '{folder}/visits.parquet'"""
    )
    return path


SELECTIONS = ("noisy_max", "top_k", "quantiles", "noisy_max_quantiles", "sparse_vector")


@contextmanager
def zero_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Number the tokens, and draw zeros only; selections choose among zeros by a fixed recording."""
    numbers = itertools.count()

    def zeros(self: ReceiptedRead, name: str, mechanism: Mechanism, exact: Any) -> Any:
        self._receipt.redeem(f"draw {name}")
        nothing = np.zeros_like(exact)
        return mechanism.release(nothing, RecordedBits(name)) if mechanism.name in SELECTIONS else nothing

    with monkeypatch.context() as patched:
        patched.setattr(accounts.secrets, "token_urlsafe", lambda size: f"{next(numbers):043d}")
        patched.setattr(log, "new_salt", lambda bits: f"{next(numbers):032x}")
        patched.setattr(ReceiptedRead, "_draw", zeros)
        yield


def queries(tier: Tier) -> dict[str, str]:
    listed = {name: f"SELECT {text} FROM {{t}}" for name, text in EXPRESSIONS.items()} | QUERIES
    all_of_them = tier.pick(quick=False, test=True, deep=True)
    chosen = {name: text for name, text in listed.items() if name not in HEAVY} if all_of_them else {}
    return ANSWERED | {name: fill_template(text, COLUMNS, SALARY) for name, text in chosen.items()}


def everything(there: Place, asked: dict[str, str], caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Return all that analysts, auditors and operators see after each query was quoted, explained and answered."""
    caplog.clear()
    seen: dict[str, str] = {}

    def look(name: str, reply: Any) -> None:
        seen[name] = f"{reply.status_code} {sorted(reply.headers.items())} {reply.text}"

    for number, (name, query) in enumerate(asked.items()):
        body = {"dataset": "town", "query": query, "epsilon": "1/10", "request_id": f"r{number}"}
        for path in ("/v1/quote", "/v1/explain", "/v1/answer", "/v1/answer"):
            look(f"{path}: {name} {len(seen)}", there.post(path, body))
            assert name not in ANSWERED or list(seen.values())[-1].startswith("200"), list(seen.values())[-1]
    look(
        "a batch", there.post("/v1/batch", {"dataset": "town", "queries": list(ANSWERED.values()), "epsilon": "1/100"})
    )
    split = {"dataset": "town", "query": "SELECT COUNT(*) FROM visits", "epsilon": "1/100", "threshold": 2}
    look("a split", there.post("/v1/split", split))
    for page in ("datasets", "budget", "history", "statement"):
        look(page, there.get(f"/v1/{page}?dataset=town"))
    for page in ("schema", "facts", "budget", "statement"):
        look(f"kernel {page}", there.http.post(f"/v1/kernel/{page}?dataset=town", headers=there.headers("ann")))
    look("ledger", there.get("/v1/ledger?dataset=town", "aud"))
    look("metrics", there.get("/metrics", "aud"))
    lines = "\n".join(each.getMessage() + str(getattr(each, "event", "")) for each in public(caplog))
    seen["log"] = re.sub(r"'ms': \d+", "'ms': 0", lines)  # times are compared in test_time.py
    return seen


def public(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records logged for operators, without the curator's private log."""
    return [each for each in caplog.records if each.name.startswith("dither") and each.name != "dither.private"]


def differing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: dict[str, str],
    weakened: Callable[[], object] = lambda: None,
) -> dict[str, tuple[str, str]]:  # fmt: skip
    """Return the outputs that differ between the two towns, which are served from the same paths in turn."""
    caplog.set_level(logging.INFO)
    found = []
    for number, build in enumerate((town, other_town)):
        path = build(folder / "data")
        path.write_text(path.read_text().replace("epsilon: 10}", "epsilon: 100}"))
        with zero_draws(monkeypatch):
            weakened()
            clock = ManualClock()
            (folder / str(number)).mkdir()
            with place(folder / str(number), described=path, clock=clock, schedule=Schedule(floor=2000)) as there:
                found.append(everything(there, asked, caplog))
    assert list(found[0]) == list(found[1])
    return {name: (found[0][name], found[1][name]) for name in found[0] if found[0][name] != found[1][name]}


@pytest.mark.tier("test")
def test_nothing_but_draws_depends_on_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tier: Tier
) -> None:
    assert differing(tmp_path, monkeypatch, caplog, queries(tier)) == {}


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["the exact size", "rows that are there", "a count in a note", "a count in a log"])
def test_a_way_around_the_draws_is_found(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The weakened builds: exact sizes are public (Snowflake), or an answer (Qrlew) or a log has an exact number."""
    read, shown, size, exact = ReceiptedRead._read, answer_data, LocalKernel._measure_size, list[Any]()

    def seen(self: ReceiptedRead, name: str, measure: Any) -> Any:
        exact.append(read(self, name, measure))
        if how == "a count in a log":
            logging.getLogger("dither.public").info("read", extra={"event": {"rows": int(exact[-1].sum())}})
        return exact[-1].copy()

    def telling(answer: Any) -> dict[str, Any]:
        data = shown(answer)
        if how == "a count in a note":
            return {**data, "notes": [*data["notes"], f"of {int(exact[-1].sum())} rows"]}
        if how == "rows that are there":
            return {**data, "rows": [row for row, count in zip(data["rows"], exact[-1], strict=False) if count]}
        return data

    def sized(self: LocalKernel, house: Any) -> dict[str, int]:
        made = size(self, house)
        return {name: int(each) for name, each in zip(made, (part.sum() for part in exact), strict=False)}

    def weakened() -> None:
        exact.clear()
        monkeypatch.setattr(ReceiptedRead, "_read", seen)
        monkeypatch.setattr(gateway_app, "answer_data", telling)
        if how == "the exact size":
            monkeypatch.setattr(LocalKernel, "_measure_size", sized)

    asked = {"counts by group": ANSWERED["counts by group"]}
    assert differing(tmp_path, monkeypatch, caplog, asked, weakened), how


def test_the_towns_differ_and_the_draws_were_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real noise, the same queries on the two towns differ (each is equal with probability e^-100)."""
    answers = []
    for number, build in enumerate((town, other_town)):
        path = build(tmp_path / "data")
        path.write_text(path.read_text().replace("epsilon: 10}", "epsilon: 1000}"))
        (tmp_path / str(number)).mkdir()
        with place(tmp_path / str(number), described=path) as there:
            answers.append(there.ask(ANSWERED["counts by group"], 100).json()["measurements"][0]["values"])
            assert json.loads(there.get("/v1/history?dataset=town").text)["items"]
    assert answers[0] != answers[1]
