"""Draws of one question combined: as exact as their joint loss allows, and intervals that hold.

False alarms: each coverage is compared with a binomial bound that a right interval passes but for a chance of 1e-12,
each variance with a band of ten times its own standard deviation; there are fewer than twenty of both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import Tier
from dither.connection import connect
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure
from dither.post.estimate.combine import QuestionDraws, combine_measurements, inverse_variance_weights
from dither.post.estimate.intervals import estimate
from dither.post.formulas import evaluate
from dither.post.query.spend import Spend
from dither.post.session import Session
from dither.privacy.protocol import ReleasedMeasurement
from post.bare import BareKernel
from post.estimate.test_intervals import fewest, planned, released
from serve.servers import place

BUDGETS = (Spend(Pure(1)), Spend(Pure(3)), Spend(ZCDP("1/2")))
QUERIES = [
    "SELECT COUNT(*) FROM users",
    "SELECT SUM(age) - COUNT(*) FROM users",
    "SELECT AVG(age) FROM users",
    "SELECT MEDIAN(age) FROM users",
    "SELECT QUANTILE(salary, 0.3) FROM users",
    "SELECT VARIANCE(age) FROM users",
]


def draws(session: Session, kernel: BareKernel, query: str, times: int) -> tuple[QuestionDraws, QuestionDraws]:
    """Many redraws at each budget, and the same without noise."""
    plan = planned(session, query, BUDGETS[0])
    made = [released(session, kernel, plan, budget, times) for budget in BUDGETS]
    noisy: list[tuple[ReleasedMeasurement, ...]] = [tuple(one) for one, _ in made]
    return QuestionDraws(plan, tuple(noisy)), QuestionDraws(plan, (tuple(made[0][1]),))


@pytest.mark.tier("test")
@pytest.mark.parametrize("query", QUERIES)
def test_intervals_of_combined_draws_cover(query: str, session: Session, kernel: BareKernel, tier: Tier) -> None:
    times = tier.pick(quick=1_000, test=4_000, deep=20_000)
    drawn, exact = draws(session, kernel, query, times)
    (plan, columns), (plain, truths) = combine_measurements(drawn, {}, 0.95), combine_measurements(exact, {}, 0.95)
    truth = evaluate(plain.outputs[0].node, [column.estimate for column in truths], [])
    found = estimate(plan.outputs[0].node, columns, [], 0.95)
    held = (found.low <= truth + 1e-6) & (truth - 1e-6 <= found.high)
    assert held.mean() >= fewest(times)


def _spread(drawn: QuestionDraws, shares: list[float] | None = None) -> tuple[float, float]:
    """The variance seen of a count over its redraws, and the least that independent draws allow."""
    plan, columns = combine_measurements(drawn, {}, 0.95)
    cells = [column.estimate for column in columns]
    values = evaluate(plan.outputs[0].node, cells, []) if shares is None else np.average(cells, axis=0, weights=shares)
    return float(np.var(values)), 1 / sum(1 / column.noise.variance for column in columns)


def test_draws_are_weighted_by_inverse_variance(session: Session, kernel: BareKernel) -> None:
    """The named bug: a plain mean of the draws, which the noisiest of them dominates."""
    drawn, _ = draws(session, kernel, "SELECT COUNT(*) FROM users", 4_000)
    # The kurtosis of these laws is at most 6: a variance of 4,000 draws has a relative error of about 0.035.
    seen, wanted = _spread(drawn)
    assert seen == pytest.approx(wanted, rel=0.35)
    naive, _ = _spread(drawn, [1.0, 1.0, 1.0])
    assert naive > 1.35 * wanted
    assert inverse_variance_weights([2.0, 2.0]) == [0.5, 0.5]


@pytest.fixture
def local(folder: Path, tmp_path: Path) -> Session:
    return connect(folder / "dataset.yml", ledger=tmp_path / "ledger", another_ledger=True)


def test_no_draw_counts_twice(local: Session) -> None:
    query = "SELECT country, COUNT(*) AS n FROM users GROUP BY country ORDER BY n DESC LIMIT 2"
    first = local.sql(query, epsilon=1, repeat=1)
    before = local.budget[0].spent[0]
    again = local.refine(first, epsilon=1)
    third = local.refine(again, epsilon=2)
    assert local.budget[0].spent[0] - before == 3 * 10**15
    assert len({release.digest for release in third.releases}) == 3
    assert third.loss == (Pure(1), Pure(1), Pure(2))
    assert third["n"].estimate.std_error[0] < again["n"].estimate.std_error[0] < first["n"].estimate.std_error[0]
    assert "3 draws are combined" in third.notes[-1]
    assert len([note for note in third.notes if "draws are combined" in note]) == 1


def test_the_bounds_found_are_kept(local: Session) -> None:
    """Nothing is spent on finding them again, and all draws measure the same."""
    first = local.sql("SELECT action, COUNT(*) AS n, AVG(price) AS p FROM actions GROUP BY action", epsilon=20)
    again = local.refine(first, epsilon=60)
    assert again.bounds == first.bounds
    assert again.releases[1].search_results is None
    assert again.loss[-1] == Pure(60)
    assert np.all(
        again["n"].estimate.high - again["n"].estimate.low < first["n"].estimate.high - first["n"].estimate.low
    )


def test_a_number_of_each_person_is_measured_again(local: Session) -> None:
    query = "SELECT MEDIAN(n) AS m FROM (SELECT user_id, COUNT(*) AS n FROM actions GROUP BY user_id)"
    first = local.sql(query, epsilon=1)
    again = local.refine(first, epsilon=10)
    assert again["m"].estimate.low[0] <= again.value() <= again["m"].estimate.high[0]
    assert again["m"].estimate.std_error[0] <= first["m"].estimate.std_error[0]


def test_answers_of_batches_are_measured_again(local: Session) -> None:
    one, _ = local.batch(["SELECT COUNT(*) FROM users WHERE vip", "SELECT COUNT(*) FROM users"], epsilon=1)
    again = local.refine(one, epsilon=100)
    assert again.value() == pytest.approx(one.value(), abs=60)
    assert again.columns[0].estimate.std_error[0] < one.columns[0].estimate.std_error[0]


def test_only_answers_about_the_same_data_are_combined(local: Session, folder: Path, tmp_path: Path) -> None:
    answer = local.sql("SELECT COUNT(*) FROM users", epsilon=1)
    text = (folder / "dataset.yml").read_text()
    (folder / "later.yml").write_text(text.replace('data_version: "1"', 'data_version: "2"'))
    later = connect(folder / "later.yml", ledger=tmp_path / "ledger2", another_ledger=True)
    before = later.budget[0].spent
    with pytest.raises(InvalidParameter, match="newer version"):
        later.refine(answer, epsilon=1)
    assert later.budget[0].spent == before
    with pytest.raises(InvalidParameter, match="give epsilon= or rho="):
        local.refine(answer)


def test_a_remote_answer_is_measured_again(tmp_path: Path) -> None:
    with place(tmp_path, epsilon=100) as town:
        session = Session.from_kernel(town.remote, town.tokens["ann"], "town")
        first = session.sql("SELECT city, COUNT(*) AS n FROM people GROUP BY city", epsilon=1, max_contributions=1)
        again = session.refine(first, epsilon=3, request_id="second")
        assert session.refine(first, epsilon=3, request_id="second").to_dicts() == again.to_dicts()
        assert again.loss == (Pure(1), Pure(3))
        assert np.all(again["n"].estimate.std_error < first["n"].estimate.std_error)
