"""Models, clusters and comparisons of units with one row stay useful where declared ranges are far too wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from dither.post.query.spend import parse_spend
from dither.post.session import Session
from dither.post.statistics.clusters import cells_with_rows, find_clusters
from dither.post.statistics.moments import moved_share, range_shares
from post.written_world import NARROW, WIDE, draw_incomes, opened_engines, session_of

pytestmark = pytest.mark.tier("test")

PEOPLE = 40_000
BOTH = pytest.mark.parametrize("most", [NARROW, WIDE], ids=["narrow", "wide"])
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
      income: {{type: integer, min: 0, max: {most}}}
      rent: {{type: integer, min: 0, max: {most}}}
      fee: {{type: integer, min: 0, max: {most}, nullable: true}}
      region: {{type: integer, min: 1, max: 5}}
      owner: {{type: integer, min: 0, max: 1}}
units:
  person: {{kind: user, keys: {{people: person}}}}
budgets:
  - {{unit: person, kind: pure, epsilon: 1000}}
"""
World = Callable[..., Session]


def table() -> pa.Table:
    """Return people whose rent is 0.3 of their income and 500 more in each region, and who own by their income."""
    random = np.random.default_rng(4)
    income = draw_incomes(random, PEOPLE)
    region = random.integers(1, 6, PEOPLE)
    rent = np.clip(np.round(0.3 * income + 500 * region + random.normal(0, 2000, PEOPLE)), 0, NARROW)
    owner = random.random(PEOPLE) < 1 / (1 + np.exp(-(income - 30_000) / 8_000))
    columns = {"income": income, "rent": rent, "region": region, "owner": owner}
    fee = pa.array(income, mask=random.random(PEOPLE) < 0.5)
    return pa.table(
        {"person": np.arange(PEOPLE), "fee": fee, **{name: each.astype(int) for name, each in columns.items()}}
    )


TABLE = table()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Sessions by the largest number that is declared."""
    with opened_engines(tmp_path_factory) as opened:

        def session(most: int) -> Session:
            return session_of(opened(DESCRIPTION.format(most=most), {"people": TABLE}), PEOPLE, people=PEOPLE)

        yield session


@BOTH
def test_regressions_find_coefficients_in_a_range_that_is_too_wide(world: World, most: int) -> None:
    session = world(most)
    found = session.regress("people", "rent", ["income", "region"], epsilon=1)
    assert found.coef_[0] == pytest.approx(0.3, abs=0.15)  # its standard deviation is 0.014 at most
    assert found.coef_[1] == pytest.approx(500, abs=300)  # 27 at most
    assert np.isfinite(found.std_errors_).all()
    assert any("ranges of income, rent are chosen privately" in note for note in found.notes)
    assert not any("region" in note for note in found.notes)


def test_declared_ranges_are_kept_where_they_are_asked_for(world: World) -> None:
    session = world(WIDE)
    found = session.regress("people", "rent", ["income"], standardize="declared", epsilon=1)
    assert np.isinf(found.std_errors_).all()
    assert not any("privately" in note for note in found.notes)
    few = session.regress("people", "owner", ["region"], epsilon=1)
    assert not any("privately" in note for note in few.notes)


def test_a_quote_of_a_regression_says_which_ranges_are_private(world: World) -> None:
    quote = world(WIDE).regress.quote("people", "rent", ["income"], epsilon=1)
    assert any("ranges of income, rent are chosen privately" in note for note in quote.notes)
    assert quote["income"].half_width < 0.1


def test_the_smaller_the_loss_the_more_rows_are_moved_and_too_few_rows_have_no_private_range() -> None:
    shares = {epsilon: range_shares(100_000, parse_spend(epsilon, None), 2) for epsilon in (1, 100)}
    moved = [moved_share(100_000, parse_spend(epsilon, None), share) for epsilon, share in shares.items() if share]
    assert Fraction(1, 50) > moved[0] > 20 * moved[1] > 0
    assert range_shares(1_000, parse_spend(1, None), 2) is None
    assert range_shares(None, parse_spend(1, None), 2) is None


@BOTH
def test_components_are_found_in_a_range_that_is_too_wide(world: World, most: int) -> None:
    """The standard deviation of 170 draws was 0.03, and the farthest 0.11 away."""
    found = world(most).components("people", ["income", "rent", "region"], epsilon=1)
    assert found.explained_variance_ == pytest.approx([1.94, 0.99, 0.05], abs=0.4)
    assert found.explained_variance_.sum() == pytest.approx(3, abs=0.2)


def test_components_that_noise_hides_are_unknown(world: World) -> None:
    """Regression test: a column whose noisy variance was negative made a variance of 4e26."""
    found = world(WIDE).components("people", ["income", "rent"], standardize="declared", epsilon=1)
    assert np.isnan(found.explained_variance_).all() and np.isnan(found.components_).all()
    assert "the components are unknown" in str(found) and "unknown | unknown" in str(found)
    assert 'unknown; ask with standardize="private", spend more' in str(found)


def test_directions_of_equal_variances_are_unknown(world: World) -> None:
    """Of 20 draws some 19 hide the directions; that fewer than 8 do has a probability below 1e-9."""
    session = world(WIDE)
    found = [session.components("people", ["region", "owner"], epsilon="0.02", repeat=draw) for draw in range(20)]
    hidden = [one for one in found if np.isnan(one.components_).all()]
    assert len(hidden) >= 8 and all("noise hides the direction of" in str(one) for one in hidden)
    assert all(np.isfinite(one.explained_variance_).all() for one in found)


@BOTH
def test_clusters_lie_where_people_are(world: World, most: int) -> None:
    """Regression test: two of three clusters were made of noise, with tight intervals, millions away from anybody."""
    found = world(most).cluster("people", ["income", "rent"], 3, epsilon=1)
    assert len(found.sizes_) == 3 and (found.cluster_centers_[:, 0] < 150_000).all()
    sums = found.sizes_.sum()
    assert sums == pytest.approx(PEOPLE, rel=0.02) and found.sizes_.min() > 100
    near = found.predict(TABLE)
    assert found.sizes_ == pytest.approx(np.bincount(near, minlength=3), rel=0.15)


def test_clusters_that_noise_may_have_made_are_left_out(world: World) -> None:
    found = world(WIDE).cluster("people", ["income", "rent"], 3, bins=31, epsilon=0.1)
    assert len(found.sizes_) == 1 and "3 were asked for: noise hides" in str(found)
    assert found.sizes_[0] == pytest.approx(PEOPLE, rel=0.1)


def test_noise_alone_makes_no_cluster_of_its_own() -> None:
    """Regression test: in 50 grids of 40 x 40 cells with rows in one place, no cluster is far from it."""
    random = np.random.default_rng(3)
    axis = np.linspace(-1, 1, 40)
    points = np.stack([part.ravel() for part in np.meshgrid(axis, axis, indexing="ij")], axis=1)
    far = 0
    for _ in range(50):
        grid = random.laplace(0, np.sqrt(0.5), (40, 40))
        grid[3:5, 3:5] += 200
        kept = cells_with_rows(grid, 1.0)
        found = find_clusters(points, grid.ravel(), kept.ravel(), 1.0, 3)
        far += bool((np.abs(found.centres - axis[4]) > 0.3).any())
    assert far <= 5


@BOTH
def test_naive_bayes_tells_classes_apart_in_a_range_that_is_too_wide(world: World, most: int) -> None:
    session = world(most)
    found = session.naive_bayes("people", "owner", ["income"], epsilon=1)
    assert found.score(TABLE) > 0.7
    assert any("bins of income are cut from private ranges" in note for note in found.notes)
    fees = session.naive_bayes("people", "owner", ["fee"], epsilon=1)
    assert fees.predict_proba({"fee": [10_000, 90_000]})[:, 1] == pytest.approx([0.08, 1], abs=0.25)


@BOTH
def test_synthetic_people_have_incomes_as_people_have(world: World, most: int) -> None:
    made = world(most).synthesize("people", ["income", "owner"], epsilon=1).rows
    levels = [0.25, 0.5, 0.75, 0.9]
    truth = np.quantile(TABLE["income"].to_numpy(), levels)
    assert np.quantile(made["income"].to_numpy(), levels) == pytest.approx(truth, rel=0.4)


@BOTH
def test_comparisons_and_ratios_measure_in_a_range_that_is_too_wide(world: World, most: int) -> None:
    session = world(most)
    found = session.compare("people", "rent", "region", epsilon=1)
    rent, region = (TABLE[name].to_numpy() for name in ("rent", "region"))
    means = [rent[region == each].mean() for each in range(1, 6)]
    assert found["mean"].estimate.value == pytest.approx(means, rel=0.03)
    assert found.p_value < 0.001
    ratio = session.ratio("people", "rent", "income", epsilon=1)
    assert ratio["ratio"].value == pytest.approx(rent.sum() / TABLE["income"].to_numpy().sum(), rel=0.02)
