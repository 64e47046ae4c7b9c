"""Names of what sums add up, in notes on contribution bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dither.plan import expressions as expr
from dither.plan.measures.sums import Count
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.relations.scan import Scan
from dither.post.query.term_names import summed_text
from dither.post.session import Session
from dither.post.statistics.steps import listed_key


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT SUM(price) AS x FROM actions", {"values of price"}),
        ("SELECT STDDEV(price) AS x FROM actions", {"values of price", "squares of price"}),
        ("SELECT SUM(price * price) AS x FROM actions", {"squares of price"}),
        ("SELECT SUM(SQRT(price)) AS x FROM actions", {"values"}),
    ],
)
def test_a_bound_on_a_sum_names_what_is_added_up(query: str, names: set[str], session: Session) -> None:
    answer = session.sql(query, epsilon=1)
    found = {bound.limit.partition(" to the sum of ")[2] for bound in answer.bounds.values()} - {""}
    assert found == names


def test_squares_of_the_sums_of_a_subquery_are_called_squares() -> None:
    """Regression: a bound of 156 million on squares was said to be one on values."""
    total, price = expr.ColumnRef("t"), expr.ColumnRef("price")
    own = (("user_id", expr.ColumnRef("user_id")),)
    sums = GroupBy(Scan("actions"), own, (GroupAggregate("t", "sum", price),), "user")
    counts = GroupBy(Scan("actions"), own, (GroupAggregate("t", "count", None),), "user")
    for rows, value, text in (
        (sums, total, "values of price"),
        (sums, expr.Arithmetic("*", total, total), "squares of price"),
        (counts, expr.Arithmetic("*", total, total), "squares"),
    ):
        lengths = listed_key("length", range(2), expr.Bucket(value, (Fraction(1),)))
        assert summed_text(Count(rows, (lengths,))) == text
