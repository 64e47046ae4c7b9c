"""Names of what sums add up, in notes on contribution bounds."""

from __future__ import annotations

import pytest

from dither.post.session import Session


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
