"""Descriptions of units with one row: means and deviations stay useful where a declared range is far too wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from dither.post.session import Session
from dither.post.statistics.description import hidden_or_shown
from dither.post.statistics.description_figures import Description
from post.written_world import NARROW, WIDE, draw_incomes, opened_engines, session_of

PEOPLE = 20_000
DESCRIPTION = """
version: 1
name: incomes
tables:
  people:
    private: true
    source: {{kind: parquet, path: people.parquet}}
    unique: person
    columns:
      person: {{type: identifier, kind: integer}}
      income: {{type: integer, min: 0, max: {most}, nullable: true}}
      region: {{type: integer, min: 1, max: 5}}
      group: {{type: category, values: [a, b]}}
units:
  person: {{kind: user, keys: {{people: person}}}}
budgets:
  - {{unit: person, kind: pure, epsilon: 1000}}
"""
World = Callable[..., Session]


def incomes() -> pa.Table:
    """Return people with incomes below 400,000, one in ten of them missing."""
    random = np.random.default_rng(4)
    income = draw_incomes(random, PEOPLE)
    return pa.table(
        {
            "person": np.arange(PEOPLE),
            "income": pa.array(income, mask=random.random(PEOPLE) < 0.1),
            "region": random.integers(1, 6, PEOPLE),
            "group": random.choice(["a", "b"], PEOPLE),
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Sessions by the largest income that is declared, over some of the people."""
    with opened_engines(tmp_path_factory) as opened:

        def session(most: int, people: int = PEOPLE, table: pa.Table | None = None) -> Session:
            own = incomes() if table is None else table
            engine = opened(DESCRIPTION.format(most=most), {"people": own.slice(0, people)})
            return session_of(engine, people, people=people)

        yield session


def widths(description: Description, row: int = 0) -> tuple[float, float]:
    """Return the widths of the intervals of a mean and a deviation."""
    mean, deviation = (column.estimate for column in description.columns[2:4])
    return float(mean.high[row] - mean.low[row]), float(deviation.high[row] - deviation.low[row])


@pytest.mark.tier("test")
def test_a_range_a_hundred_times_wider_leaves_means_and_deviations_useful(world: World) -> None:
    """Medians of nine; they were 100 times as wide before, and deviations were 0 with an interval of half the range."""
    found = {}
    for most in (NARROW, WIDE):
        session = world(most)
        found[most] = np.median([widths(session.describe("people", epsilon=2, repeat=n)) for n in range(9)], axis=0)
    mean, deviation = found[WIDE] / found[NARROW]
    assert mean < 8 and deviation < 40
    assert found[WIDE][0] < 5_000


@pytest.mark.tier("test")
def test_figures_are_covered(world: World) -> None:
    """Of 30 means, counts and quartiles each, right intervals leave out more than 12 with a probability below 1e-8."""
    session, data = world(WIDE), incomes()
    income = data["income"].drop_null().to_numpy()
    truths = [float(len(income)), float(income.mean()), float(income.std(ddof=1))]
    truths += [float(np.quantile(income, level, method="inverted_cdf")) for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
    held = np.zeros(len(truths))
    for draw in range(30):
        columns = session.describe("people", epsilon=2, repeat=draw).columns[1:]
        held += [
            column.estimate.low[0] <= truth <= column.estimate.high[0]
            for column, truth in zip(columns, truths, strict=True)
        ]
    assert (held >= 18).all()


@pytest.mark.tier("test")
def test_deviations_of_very_heavy_tails_are_covered(world: World) -> None:
    """Of 14 right intervals, more than 8 leave the truth out with a probability below 1e-8.

    Regression test: what clipping removed was inferred from the squares alone, and hardly any interval covered.
    """
    random, people = np.random.default_rng(3), 10_000
    wealth = WIDE // 2 + np.round(1000 * random.standard_t(2, people)).astype(int)
    table = incomes().slice(0, people).drop_columns("income").append_column("income", pa.array(wealth))
    session, held = world(WIDE, people, table), 0
    for draw in range(14):
        deviation = session.describe("people", ["income"], epsilon=1, repeat=draw).columns[3].estimate
        held += deviation.low[0] <= wealth.std(ddof=1) <= deviation.high[0]
    assert held >= 6


def test_a_deviation_that_noise_hides_is_unknown(world: World) -> None:
    """Of eight draws, most are hidden; that none is has a probability below 1e-6."""
    session = world(WIDE, people=200)
    found = [session.describe("people", ["income"], epsilon="0.5", repeat=draw) for draw in range(8)]
    hidden = [one for one in found if np.isnan(one.columns[3].estimate.value[0])]
    assert hidden and all(one.columns[3].estimate.low[0] == 0 for one in hidden)
    alone = "ask for AVG(income) or STDDEV(income) alone, which spends everything on it"
    assert all(any(note.endswith(alone) for note in one.notes) for one in hidden)
    assert all("unknown [0, " in str(one) and ">unknown <" in one._repr_html_() for one in hidden)


def test_a_constant_column_has_no_deviation() -> None:
    assert hidden_or_shown((0.0, 0.01, 0.0, 0.02), 100.0)[0] == 0.0
    assert np.isnan(hidden_or_shown((0.0, 1.0, 0.0, 2.0), 100.0)[0])
    assert hidden_or_shown((0.0, 0.0, 0.0, 0.0), 100.0)[3] == 50.0
    assert hidden_or_shown((5.0, 1.0, 3.0, 7.0), 10.0)[0] == 5.0


def test_quotes_name_every_figure(world: World) -> None:
    quote = world(WIDE).describe.quote("people", epsilon=1)
    names = [column.name for column in quote.expected]
    assert names == ["rows", "rows by group", "mean of income", "std of income", "mean of region", "std of region"]
    known = {column.name: column.known for column in quote.expected}
    assert known["rows"] and known["mean of region"] and not known["mean of income"]
