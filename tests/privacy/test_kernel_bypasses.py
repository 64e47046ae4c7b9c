"""Answers over a real kernel that once misled: prices of one budget among several, names of another description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dither.errors import InvalidPlan
from dither.loss import Pure
from dither.plan.measures.partitions import SHARE
from dither.post.contribution_bound import ContributionBound
from dither.post.options import ResolvedOptions
from dither.post.query.planner import Planner
from dither.post.session import Session
from dither.privacy.kernel import LocalKernel
from dither.schema import load

DESCRIPTION = """
version: 1
name: town
population: town
data_version: "1"
tables:
  acts:
    private: true
    source: {kind: parquet, path: acts.parquet}
    columns:
      uid: {type: identifier, kind: integer}
      city: {type: category, values: [north, south, east]}
      at: {type: timestamp, min: 2020-01-01, max: 2020-12-31, precision: second}
      value: {type: integer, min: 0, max: 9}
      page: {type: category, values_from: pages.id}
  pages:
    private: false
    source: {kind: parquet, path: pages.parquet}
    unique: id
    columns:
      id: {type: integer, min: 1, max: 5}
units:
  user: {kind: user, keys: {acts: uid}}
  month: {kind: window, keys: {acts: uid}, times: {acts: at}, every: month}
budgets:
  - {unit: user, kind: pure, epsilon: 1000}
  - {unit: month, kind: pure, epsilon: 1000}
"""
ACTS = """SELECT (range % 50) + 1 AS uid,
  ['north', 'north', 'north', 'north', 'south', 'east'][1 + range // 100] AS city,
  TIMESTAMP '2020-01-01' + INTERVAL ((range * 4001) % 525000) MINUTE AS at, (range % 10)::INT AS value,
  1 + range % 5 AS page FROM range(600)"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[LocalKernel]:
    duckdb.execute(f"COPY ({ACTS}) TO '{tmp_path / 'acts.parquet'}'")
    duckdb.execute(f"COPY (SELECT range + 1 AS id FROM range(5)) TO '{tmp_path / 'pages.parquet'}'")
    (tmp_path / "town.yml").write_text(DESCRIPTION)
    opened = LocalKernel(load(tmp_path / "town.yml"), tmp_path / "town.ledger")
    yield opened
    opened.close()


def _spent(session: Session) -> dict[str, int]:
    """The most that was spent of the budgets of each unit."""
    found: dict[str, int] = {}
    for balance in session.budget:
        found[balance.cap.unit] = max(found.get(balance.cap.unit, 0), balance.spent[0])
    return found


def test_every_budget_that_pays_is_named(kernel: LocalKernel) -> None:
    """A question under the month costs a person twelve times as much; price and answer say so."""
    session, query = Session.from_kernel(kernel, "ann"), "SELECT COUNT(*) FROM acts"
    before = _spent(session)
    price = session.quote(query, unit="month", max_contributions=5, epsilon="0.1")
    answer = session.sql(query, unit="month", max_contributions=5, epsilon="0.1")
    charged = {unit: amount - before[unit] for unit, amount in _spent(session).items()}
    assert price.losses == answer.losses
    assert {part.unit: part.loss for part in price.losses} == {
        unit: Pure(f"{amount}/1000000000000000") for unit, amount in charged.items()
    }
    (note,) = [note for note in price.notes if "more than the query asks to spend" in note]
    assert "user" in note
    assert "epsilon 1.2" in note
    assert note in answer.notes
    assert not [
        n for n in session.quote(query, unit="user", max_contributions=5, epsilon=1).notes if "budget of unit user" in n
    ]


def test_cells_are_not_named_by_an_earlier_description(kernel: LocalKernel, tmp_path: Path) -> None:
    """The same number of categories in another order once gave one city's count to another."""
    session = Session.from_kernel(kernel, "ann")
    query = "SELECT city, COUNT(*) AS n FROM acts GROUP BY city"
    text = DESCRIPTION.replace("[north, south, east]", "[south, east, north]")
    (tmp_path / "town.yml").write_text(text.replace('data_version: "1"', 'data_version: "2"'))
    kernel.register(load(tmp_path / "town.yml"))
    for ask in (session.sql, session.quote):
        with pytest.raises(InvalidPlan, match="connect again"):
            ask(query, epsilon=200, max_contributions=100)
    answer = Session.from_kernel(kernel, "ann").sql(query, epsilon=200, max_contributions=12)
    # Laplace noise of scale 12 / 200: beyond 2 with a chance of 3 * exp(-33) < 1e-13.
    wanted = {"north": pytest.approx(400, abs=2), "south": pytest.approx(100, abs=2), "east": pytest.approx(100, abs=2)}
    assert {row["city"]: row["n"] for row in answer.to_dicts()} == wanted


def test_new_data_of_the_same_description_need_no_new_session(kernel: LocalKernel, tmp_path: Path) -> None:
    session = Session.from_kernel(kernel, "ann")
    duckdb.execute(f"COPY ({ACTS} WHERE range < 500) TO '{tmp_path / 'acts.parquet'}'")
    (tmp_path / "town.yml").write_text(DESCRIPTION.replace('data_version: "1"', 'data_version: "2"'))
    kernel.register(load(tmp_path / "town.yml"))
    answer = session.sql("SELECT COUNT(*) FROM acts", epsilon=200, max_contributions=12)
    assert answer.value() == pytest.approx(500, abs=2)


@pytest.mark.parametrize("key", ["page", "value", "city"])
def test_keys_are_selected_at_the_cost_of_one_row_in_each(key: str, kernel: LocalKernel) -> None:
    """Keys listed in a public table once cost as if all of a person's keys were one, and no key was named."""
    session = Session.from_kernel(kernel, "ann")
    question = session._parse(
        f"SELECT {key}, COUNT(*) AS n FROM acts GROUP BY {key}", ResolvedOptions(max_contributions=30)
    )
    found = (
        Planner(session.context, ContributionBound(max_rows=30))
        .selection_shares(question)
        .sensitivity(session.context, "user")
    )
    assert found.linf**2 == found.l2_squared == SHARE**2 and found.equal_shares
    assert found.l0 <= 30 and found.l1 <= SHARE * found.l0


def test_numbers_of_a_public_table_can_be_listed(kernel: LocalKernel) -> None:
    """`page = 3` was answered and `page IN (1, 2)` refused."""
    found = Session.from_kernel(kernel, "ann").sql(
        "SELECT COUNT(*) FROM acts WHERE page IN (1, 2) AND value IN (0, 1.0, 2.5)", epsilon=200, max_contributions=12
    )
    assert found.value() == pytest.approx(120, abs=2)
