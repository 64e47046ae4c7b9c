"""ROLLUP, CUBE and GROUPING SETS are one charge, and sums over windows of the answer have intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest

from dither.errors import DitherError, InvalidParameter
from dither.loss import Pure
from dither.post.estimate.windows import sum_of_noises
from dither.post.noise import ScaledNoise, interval_half_width
from dither.post.session import Session
from post.bare import BareKernel

ROLLUP = (
    "SELECT country, gender, GROUPING(country, gender) AS g, COUNT(*) AS n FROM users GROUP BY ROLLUP (country, gender)"
)


def test_grouping_sets_are_one_charge(session: Session, kernel: BareKernel) -> None:
    before = len(kernel.requests)
    answer = session.sql(ROLLUP, epsilon=3)
    assert len(kernel.requests) == before + 1
    assert len(kernel.requests[-1].parts) == 3
    assert sum(loss.epsilon for loss in answer.loss if isinstance(loss, Pure)) == 3
    assert len(answer) == 6 * 3 + 6 + 1
    assert [column.key for column in answer.columns] == [True, True, False, False]
    assert sorted(set(answer["g"].value)) == [0, 1, 3]
    assert "share the loss" in answer.notes[-1] and "3 grouping sets" in str(answer.notes)


def test_order_and_limit_apply_to_all_sets_together(session: Session) -> None:
    answer = session.sql(ROLLUP + " ORDER BY n DESC, country LIMIT 4 OFFSET 1", epsilon=10**9)
    assert list(answer["n"].value) == sorted(answer["n"].value, reverse=True) and len(answer) == 4
    assert [column.name for column in answer.columns] == ["country", "gender", "g", "n"]
    assert len(session.quote(ROLLUP + " ORDER BY n", epsilon=1).expected) == 3


def test_a_batch_takes_grouping_sets(session: Session) -> None:
    first, second = session.batch([ROLLUP, "SELECT COUNT(*) AS n FROM users"], epsilon=10**9)
    assert len(first) == 25 and second["n"].value == max(first["n"].value) == 400


@pytest.mark.parametrize(("query", "options", "reason"), [
    (ROLLUP, {"delta": "1/1000"}, "delta= takes a plain GROUP BY"),
    ("SELECT country, SUM(COUNT(*)) OVER () AS n FROM users GROUP BY ROLLUP (country)", {}, "whose rows overlap"),
    ("SELECT COUNT(*) AS n FROM users GROUP BY GROUPING SETS ((country), (country))", {}, "occurs twice"),
    ("SELECT COUNT(*) AS n FROM users GROUP BY country WITH ROLLUP", {}, "with the keys in parentheses"),
    ("SELECT country, GROUPING(age) AS g, COUNT(*) AS n FROM users GROUP BY country", {}, "neither aggregated"),
    ("SELECT country, RANK() OVER (ORDER BY COUNT(*)) AS r FROM users GROUP BY country", {}, "over the rows of an"),
    ("SELECT country, SUM(AVG(age)) OVER () AS r FROM users GROUP BY country", {}, "over the rows of an answer"),
    ("SELECT country, SUM(COUNT(*)) OVER (ROWS 2 PRECEDING) AS r FROM users GROUP BY country", {}, "frame"),
    ("SELECT SUM(n) AS s FROM (SELECT user_id, SUM(COUNT(*)) OVER () AS n FROM actions GROUP BY 1) t", {}, "window"),
])  # fmt: skip
def test_what_does_not_go_with_them_is_refused(
    query: str, options: dict[str, str], reason: str, session: Session
) -> None:
    with pytest.raises(DitherError, match=reason):
        session.sql(query, epsilon=1, **options)  # type: ignore[arg-type]


def test_refining_names_the_reason(session: Session) -> None:
    with pytest.raises(InvalidParameter, match="plain GROUP BY"):
        session.refine(session.sql(ROLLUP, epsilon=3), epsilon=1)


def test_the_sum_of_several_noises_has_their_interval() -> None:
    noise = ScaledNoise("laplace", 3.0)
    for count in (1, 2, 5, 30):
        wanted = interval_half_width([noise] * count, 0.95)
        assert wanted <= interval_half_width([sum_of_noises(noise, count, 0.95)], 0.95) <= 1.1 * wanted + 1


@pytest.mark.tier("test")
def test_intervals_of_shares_and_running_totals_cover(session: Session) -> None:
    """Nominal 95% intervals miss in about 5% of 400 answers; 14% in one of 12 cells has a chance below 1e-9.

    (Binomial tail by its Chernoff bound, 7e-11 for each cell.) Intervals of half the width miss far more often.
    """
    query = (
        "SELECT country, COUNT(*) * 1.0 / SUM(COUNT(*)) OVER () AS share, "
        "SUM(COUNT(*)) OVER (ORDER BY country) AS upto FROM users GROUP BY country ORDER BY country"
    )
    exact = session.sql(query, epsilon=10**9)
    missed, halved = dict.fromkeys(("share", "upto"), 0), dict.fromkeys(("share", "upto"), 0)
    for _ in range(400):
        answer = session.sql(query, epsilon=0.2, max_contributions=1)
        for name in missed:
            low, high = answer[name].interval
            middle, half = (low + high) / 2, (high - low) / 2
            away = np.abs(exact[name].value - middle)
            missed[name] += int(np.sum(away > half + 1e-9))
            halved[name] += int(np.sum(away > half / 2))
    assert all(count < 0.14 * 2400 for count in missed.values()), missed
    assert all(count > 0.15 * 2400 for count in halved.values()), halved
