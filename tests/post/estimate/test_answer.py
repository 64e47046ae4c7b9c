"""Answers: their columns as numbers or arrays, as text, and the notes on contribution bounds."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dither.post.estimate.answer import MAX_ROWS_SHOWN, without_negatives
from dither.post.estimate.clipping import (
    KNOWN_SHARE,
    UNKNOWN_SHARE,
    Clipping,
    clipping_notes,
    raised_notes,
    two_errors_note,
)
from dither.post.estimate.contribution import EstimatedBound
from dither.post.planned_queries import options_for
from dither.post.query.query_plan import CellRef
from dither.post.session import Session
from dither.privacy.contribution_bound import ContributionModel


def test_a_column_without_group_by_is_a_number(session: Session) -> None:
    column = session.sql("SELECT COUNT(*) AS n, COUNT(*) > 100 AS many FROM users", epsilon=1)["n"]
    assert isinstance(column.value, float) and isinstance(column.noise, float)
    low, high = column.interval
    assert isinstance(low, float) and isinstance(high, float) and low < column.value < high
    assert column.value == column.estimate.value[0] and column.noise == column.estimate.std_error[0] > 0


def test_a_boolean_without_group_by_is_a_boolean(session: Session) -> None:
    assert session.sql("SELECT COUNT(*) > 100 AS many FROM users", epsilon=1)["many"].value is True


def test_columns_of_groups_are_arrays(session: Session) -> None:
    """Even where a single group is left, and where no key is selected."""
    for query in (
        "SELECT country, COUNT(*) AS n FROM users GROUP BY country",
        "SELECT COUNT(*) AS n FROM users GROUP BY country",
        "SELECT country, COUNT(*) AS n FROM users GROUP BY country LIMIT 1",
    ):
        answer = session.sql(query, epsilon=1)
        column = answer["n"]
        low, high = column.interval
        assert all(
            isinstance(part, np.ndarray) and part.shape == (len(answer),)
            for part in (column.value, low, high, column.noise)
        )


def test_no_row_is_an_empty_array(session: Session) -> None:
    column = session.sql("SELECT COUNT(*) AS n FROM users HAVING COUNT(*) < 0", epsilon=1)["n"]
    assert column.value.shape == (0,)


@pytest.mark.parametrize(("limit", "ending"), [(60, None), (61, "... and 1 more row"), (64, "... and 4 more rows")])
def test_printing_says_how_many_rows_are_left_out(limit: int, ending: str | None, session: Session) -> None:
    answer = session.sql(
        f"SELECT age, country, COUNT(*) AS n FROM users GROUP BY age, country LIMIT {limit}",
        epsilon=1,
    )
    assert len(answer) == limit
    lines = str(answer).splitlines()
    assert len(lines) == 1 + MAX_ROWS_SHOWN + (ending is not None)
    if ending is not None:
        assert lines[-1] == ending and ending in answer._repr_html_()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT COUNT(*) FROM actions", r"each user adds at most [\d,]+ rows;"),
        ("SELECT action, COUNT(*) FROM actions GROUP BY action", r"each user adds at most [\d,]+ rows;"),
        ("SELECT SUM(price) FROM actions", r"each user adds at most [\d,.e+]+ to the sum of values of price;"),
    ],
)
def test_a_note_describes_the_chosen_bound(query: str, rows: str, session: Session) -> None:
    answer = session.sql(query, epsilon=1)
    (note,) = (note for note in answer.notes if note.startswith("contribution bound chosen privately: "))
    (bound,) = answer.bounds.values()
    assert 0 <= bound.removed_share <= 1
    about = f"clipping removed about {bound.removed_share:.1%} of all contributions"
    assert (about if bound.removed_share_high <= KNOWN_SHARE else UNKNOWN_SHARE) in note
    assert re.search(rows, note)


def bound_of(removed: float, bound: int) -> EstimatedBound:
    """One unit of 100 within the bound, and what lies beyond it."""
    ends = np.array([bound, bound + removed + 1])
    model = ContributionModel(ends, np.ones(2), np.array([100.0, bound + removed]), np.ones((4, 2)), float(bound), 80.0)
    return EstimatedBound(bound, model)


def test_a_declared_cap_is_no_assumption(blind: Session) -> None:
    """Regression: at the cap of the description, notes still assumed that units beyond it grow fewer."""
    query = "SELECT action, COUNT(*) FROM actions GROUP BY action"
    (plan,) = blind._plan([query], options_for([query], {"epsilon": 1})).plans
    below = bound_of(10.0, 300)
    at_cap = replace(below, bound=int(below.model.upper[-1]), limit="311 rows")
    assert clipping_notes(plan, {"b": at_cap}) == (
        "each user adds at most 311 rows, as the description allows: no clipping",
    )
    (assumed,) = (note for note in clipping_notes(plan, {"b": below}) if note.startswith("assumed: "))
    assert "those with most are spread over the groups as the others are" in assumed
    (plan,) = blind._plan(["SELECT COUNT(*) FROM actions"], options_for([query], {"epsilon": 1})).plans
    assert not any("spread over the groups" in note for note in clipping_notes(plan, {"b": below}))


def test_a_share_that_may_be_nearly_all_is_said_to_be_unknown(blind: Session) -> None:
    """Regression: "clipping removed about 0.0% of all contributions, at most 100.0%" was printed."""
    query = "SELECT action, COUNT(*) FROM actions GROUP BY action"
    (plan,) = blind._plan([query], options_for([query], {"epsilon": 1})).plans
    known, unknown = (replace(bound_of(removed, 300), limit="300 rows") for removed in (10.0, 10.0**6))
    assert known.removed_share_high < 0.9 < unknown.removed_share_high
    first, *_ = clipping_notes(plan, {"a": unknown, "b": known})
    assert "adds at most 300 rows; it is not known how much clipping removed; and at most 300 rows, of which" in first
    other, *_ = clipping_notes(plan, {"a": known, "b": unknown})
    assert "it removed at most" not in other and "and it is not known how much clipping removed of it" in other
    assert "100.0%" not in first + other


@pytest.mark.parametrize(("bound", "remedy"), [(2, True), (300, False)])
def test_a_note_says_why_groups_may_add_up_to_more(bound: int, remedy: bool, blind: Session) -> None:
    """The remedy is for tables with one row a person, as far as the chosen bound says."""

    def notes(query: str, removed: float) -> list[str]:
        (plan,) = blind._plan([query], options_for([query], {"epsilon": 1})).plans
        tags = [source.bound_tag for source in plan.sources if isinstance(source, CellRef)]
        return list(raised_notes(plan, {str(tag): bound_of(removed, bound) for tag in tags}))

    (note,) = notes("SELECT action, COUNT(*) FROM actions GROUP BY action", 10.0)
    assert "groups may add up to more" in note
    assert ("if each user has one row, give max_contributions=1" in note) == remedy
    assert notes("SELECT action, COUNT(*) FROM actions GROUP BY action", 0.0) == []
    assert notes("SELECT COUNT(*) FROM actions", 10.0) == []
    assert notes("SELECT action, AVG(seconds) FROM actions GROUP BY action", 10.0) == []


def test_negative_counts_become_zero_on_request_and_stay_in_the_measurements(session: Session) -> None:
    """Counts of ages that nobody has are noise: with 48 groups one is negative, but for one run in 2^40."""
    query = "SELECT age, COUNT(*) AS n, SUM(age) - 5000 AS s FROM users WHERE country LIKE '%where' GROUP BY age"
    raw = session.sql(query, epsilon="1/100")
    shown = without_negatives(raw)
    assert raw["n"].value.min() < 0 and shown["n"].value.min() == shown["n"].interval[0].min() == 0
    assert np.array_equal(shown["n"].value, np.maximum(raw["n"].value, 0))
    assert np.array_equal(shown["s"].value, raw["s"].value), "a difference may be negative"
    assert shown.measurements == raw.measurements
    assert session.sql(query, epsilon="1/100", nonnegative=True)["n"].value.min() == 0
    assert session.batch([query], epsilon="1/100", nonnegative=True)[0]["n"].value.min() == 0


def test_numbers_have_the_digits_that_their_error_leaves(session: Session) -> None:
    found = session.sql("SELECT COUNT(*) AS n, AVG(age) AS a FROM users", epsilon=1)
    estimate = replace(found["a"].estimate, value=np.array([-0.004]), low=np.array([-0.04]), high=np.array([12.3456]))
    assert replace(found["a"], estimate=estimate).texts(0) == ("0.0", "0.0", "12.3"), "no minus before a zero"
    wide = replace(estimate, low=np.array([-np.inf]), high=np.array([np.inf]))
    assert replace(found["a"], estimate=wide).texts(0) == ("-0.004", "-inf", "inf")
    assert "." not in session.sql("SELECT COUNT(*) AS n FROM users", epsilon=1)["n"].cell(0)


def test_what_clipping_removed_leaves_out_undefined_groups_and_is_said_to_be_unknown() -> None:
    """Regression: "clipping removed about nan, at most inf" was printed."""
    nan, three = np.array([np.nan, 2.0, 4.0]), np.array([1.0, 3.0, 5.0])
    assert "about 3, at most 4;" in two_errors_note("s", Clipping(nan, three, three), 0.95, three)
    unknown = np.array([np.inf] * 3)
    for clipping in (Clipping(nan, unknown, three), Clipping(nan * np.nan, three, three)):
        assert two_errors_note("s", clipping, 0.95, three) == "s: it is not known how much clipping removed"
