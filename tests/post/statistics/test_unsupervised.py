"""Components, clusters, naive Bayes and synthetic data: right without noise, within the declared values with it."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import combinations
from typing import Any

import duckdb
import numpy as np
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.plan.expressions.core import ColumnRef
from dither.post.noise import ScaledNoise
from dither.post.session import Session
from dither.post.statistics.clusters import k_means, merge_cells
from dither.post.statistics.components import find_axes
from dither.post.statistics.design import Scaling
from dither.post.statistics.grid import draw_noise
from dither.post.statistics.joint import JointTable, PairTree, fit_table, fit_tree, mutual_information
from dither.post.statistics.marginals import Attribute
from dither.post.statistics.moments import Moments
from dither.post.statistics.synthesis_report import estimate_errors, fitted_margins

HUGE = 10**7


def test_components_are_those_of_the_correlations(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    rows = "SELECT seconds, price, 3 * price + seconds / 10 AS total FROM actions"
    found = session.components(rows, ["seconds", "price", "total"], standardize="declared", epsilon=HUGE)
    frame = truth.sql(f"SELECT seconds, price, total FROM ({rows})").fetchnumpy()
    exact = np.corrcoef(np.stack([frame[name].astype(float) for name in ("seconds", "price", "total")]))
    values, vectors = np.linalg.eigh(exact)
    # Units above the bound have less weight, so both are close and not equal.
    assert found.explained_variance_ == pytest.approx(values[::-1], abs=0.15)
    assert abs(found.components_[0] @ vectors[:, -1]) > 0.98
    assert found.transform(frame).shape == (len(frame["price"]), 3)
    assert "PC1" in found._repr_html_()


def test_errors_of_components_are_those_of_the_noise() -> None:
    """The spread of 300 draws is within 30% of the stated errors: seven standard deviations of its estimate."""
    random = np.random.default_rng(5)
    data = random.normal(size=(4000, 3)) @ np.diag([1.0, 0.6, 0.3]) @ np.linalg.qr(random.normal(size=(3, 3)))[0]
    terms = np.column_stack([np.ones(len(data)), data])
    gram, scaling = terms.T @ terms, Scaling(np.zeros(3), np.ones(3), 1.0)
    places = tuple(((i, j),) for i in range(4) for j in range(i, 4))
    found = []
    for _ in range(300):
        matrix = gram.copy()
        for ((i, j),) in places:
            matrix[i, j] = matrix[j, i] = gram[i, j] + random.normal(0, 20)
        found.append(find_axes(Moments(matrix, places, np.full(10, 20.0), False), scaling, 2, False))
    spread = np.std([each.variances[:2] for each in found], axis=0)
    assert spread == pytest.approx(np.sqrt((found[0].variance_map[:2] ** 2).sum(axis=1)), rel=0.3)
    turns = np.std([each.axes.ravel() for each in found], axis=0)
    assert turns == pytest.approx(np.sqrt((found[0].axis_map ** 2).sum(axis=1)), rel=0.3, abs=1e-3)


def test_clusters_are_found_on_the_grid() -> None:
    random = np.random.default_rng(1)
    points = np.concatenate([random.normal(centre, 0.05, (200, 2)) for centre in ((0, 0), (1, 0), (0, 1))])
    centres = k_means(points, np.ones(len(points)), 3)
    assert sorted(map(tuple, np.round(centres, 1).tolist())) == [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]


def test_cells_of_a_grid_that_is_too_fine_are_merged() -> None:
    """A grid of 31 x 31 cells for 340 rows has a noisy cell in every place, and k-means followed those."""
    edges = tuple(map(Fraction, range(32)))
    attributes = [Attribute(name, ColumnRef(name), (), edges) for name in "ab"]
    table = np.zeros((31, 31))
    table[3, 4], table[30, 30] = 300.0, 40.0
    merged, noise, coarse = merge_cells(table, 1.4, attributes)
    assert merged.shape == (7, 7) and merged.sum() == 340 and (merged[0, 0], merged[6, 6]) == (300, 40)
    assert noise == pytest.approx(1.4 * 5) and coarse[0].edges[-2:] == (30, 31)
    same, _, kept = merge_cells(table * 1000, 1.4, attributes)
    assert same.shape == (31, 31) and kept[0].edges == edges


def test_clusters_of_a_table_lie_in_its_ranges(session: Session) -> None:
    found = session.cluster("users", ["age", "salary"], 3, epsilon=10)
    assert found.cluster_centers_.shape == (3, 2)
    assert ((found.cluster_centers_ >= [18, 0]) & (found.cluster_centers_ <= [65, 300_000])).all()
    assert sorted(set(map(int, found.predict({"age": [20, 60], "salary": [0, 300_000]})))) != []
    assert found.sizes_.sum() == pytest.approx(400, rel=0.3)


def test_naive_bayes_counts_as_sql_does(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    model = session.naive_bayes("users", "vip", ["age", "gender"], bins={"age": [30, 45]}, epsilon=HUGE)
    frame = truth.sql("SELECT age, gender, vip FROM users").fetchnumpy()
    assert np.exp(model.class_log_prior_)[1] == pytest.approx(frame["vip"].mean(), abs=1e-3)
    share = np.mean(frame["gender"][frame["vip"]] == "m")
    assert np.exp(model.feature_log_prob_[1][1, 1]) == pytest.approx(share, abs=0.02)
    assert 0.5 < model.score(frame) <= 1 and model.predict_proba(frame).sum(axis=1) == pytest.approx(1)


def test_synthetic_data_have_the_pairs_of_the_data(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    names = ["country", "gender", "vip", "age"]
    made = session.synthesize("users", names, bins={"age": 4}, epsilon=HUGE)
    assert made.rows.column_names == names and made.rows.num_rows == 400
    assert set(made.rows.column("country").to_pylist()) <= {"AT", "CH", "DE", "FR", "IT", "NL"}
    assert all(18 <= age <= 65 for age in made.rows.column("age").to_pylist())
    exact = dict(truth.sql("SELECT gender || vip::VARCHAR, COUNT(*) FROM users GROUP BY 1").fetchall())
    rows = made.rows.to_pylist()
    drawn = {key: sum(f"{row['gender']}{str(row['vip']).lower()}" == key for row in rows) for key in exact}
    assert sum(abs(drawn[key] - count) for key, count in exact.items()) < 60
    assert made.sample(10).num_rows == 10 and "verdict" in made._repr_html_()


@pytest.mark.tier("test")
def test_people_with_many_rows_have_a_bound(session: Session) -> None:
    made = session.synthesize("actions", ["action", "seconds"], bins={"seconds": 3}, epsilon=100)
    assert any("chosen privately" in note for note in made.notes)
    assert made.rows.num_rows > 100


def test_synthetic_rows_without_pandas_say_what_to_install(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made = session.synthesize("users", ["gender", "vip"], epsilon=100)
    assert len(made.rows_to_pandas()) == made.rows.num_rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unsupported, match="pip install pandas"):
        made.rows_to_pandas()


def independent(sizes: list[int], random: np.random.Generator) -> Any:
    """A joint table of four columns in which the first two depend on each other."""
    first = random.dirichlet(np.ones(sizes[0] * sizes[1])).reshape(sizes[0], sizes[1])
    table = np.einsum("ab,c,d->abcd", first, *(random.dirichlet(np.ones(size)) for size in sizes[2:]))
    return table


def noisy_fit(noise: ScaledNoise, rows: float, seed: int) -> tuple[JointTable, JointTable, Any]:
    """The truth, a fit to its noisy pairs, and those pairs."""
    sizes, random = [3, 4, 2, 3], np.random.default_rng(seed)
    truth = JointTable(independent(sizes, random))
    pairs = {
        pair: rows * truth.pair(*pair) + draw_noise(noise, truth.pair(*pair).shape, random)
        for pair in combinations(range(4), 2)
    }
    return truth, fit_table(sizes, pairs, noise.variance), pairs


@pytest.mark.tier("test")
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_no_verdict_of_synthetic_data_is_better_than_the_truth(kind: Any) -> None:
    """60 fits of 10 margins: the upper end is passed in at most 5% plus six standard deviations, if fits were one.

    Without the covariance penalty, which a fit to noisy counts owes to their noise, errors are far too small.
    """
    noise, above, naive, honest, real = ScaledNoise(kind, 10.0), [], [], [], []
    for seed in range(60):
        truth, fitted, pairs = noisy_fit(noise, 2_000.0, seed)
        found = estimate_errors(fitted, [3, 4, 2, 3], pairs, noise, refit=True).margins
        plain = estimate_errors(fitted, [3, 4, 2, 3], pairs, noise, refit=False).margins
        for columns, exact in fitted_margins(truth, pairs).items():
            error = float(np.abs(fitted_margins(fitted, pairs)[columns] - exact).sum()) / 2
            above.append(error > found[columns].at_most)
            honest.append(found[columns].error ** 2)
            naive.append(plain[columns].error ** 2)
            real.append(error**2)
    assert np.mean(above) < 0.05 + 6 * np.sqrt(0.05 * 0.95 / 60)
    assert np.mean(honest) > 0.7 * np.mean(real)
    assert np.mean(naive) < 0.65 * np.mean(real)


def test_noise_is_never_called_good(session: Session) -> None:
    names = ["country", "gender", "vip", "age"]
    made = session.synthesize("users", names, epsilon="1/2")
    assert all(row["verdict"] != "good" for row in made.to_dicts() if "," in row["columns"])
    assert "at least" in made.summary[1]


def test_both_fits_return_a_distribution_with_its_pairs() -> None:
    sizes, random = [3, 4, 2, 3], np.random.default_rng(2)
    truth = JointTable(independent(sizes, random))
    pairs = {pair: 10_000 * truth.pair(*pair) for pair in combinations(range(4), 2)}
    for fitted in (fit_table(sizes, pairs, 1.0), fit_tree(sizes, pairs)):
        for pair, table in pairs.items():
            assert np.abs(fitted.pair(*pair) - table / 10_000).sum() < 0.02
        rows = fitted.draw(20_000, random)
        drawn = np.zeros((3, 4))
        np.add.at(drawn, (rows[:, 0], rows[:, 1]), 1 / len(rows))
        assert np.abs(drawn - truth.pair(0, 1)).sum() < 0.1


def test_the_tree_takes_the_pairs_with_most_information() -> None:
    sizes, random = [3, 4, 2, 3], np.random.default_rng(2)
    truth = JointTable(independent(sizes, random))
    pairs = {pair: 10_000 * truth.pair(*pair) for pair in combinations(range(4), 2)}
    tree = fit_tree(sizes, pairs)
    assert isinstance(tree, PairTree) and (0, 1) in {(parent, child) for parent, child, _ in tree.edges}
    assert mutual_information(truth.pair(0, 1)) > 100 * mutual_information(truth.pair(0, 2))


def test_a_fit_survives_any_noise() -> None:
    random = np.random.default_rng(3)
    pairs = {pair: random.normal(0, 1e6, (3, 3)) for pair in combinations(range(3), 2)}
    for fitted in (fit_table([3, 3, 3], pairs, 1e12), fit_tree([3, 3, 3], pairs)):
        assert np.isfinite(fitted.pair(0, 2)).all() and fitted.draw(10, random).shape == (10, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.components("users", ["age"], epsilon=1), "two columns"),
        (lambda s: s.cluster("users", ["age", "country"], 3, epsilon=1), "is no number"),
        (lambda s: s.cluster("users", ["age"], 1, epsilon=1), "count"),
        (lambda s: s.naive_bayes("users", "salary", ["age"], epsilon=1), "too many values"),
        (lambda s: s.naive_bayes("users", "vip", ["vip"], epsilon=1), "cannot be one of the features"),
        (lambda s: s.synthesize("users", ["age"], epsilon=1), "2 to 22"),
        (lambda s: s.synthesize("users", ["age", "joined"], epsilon=1), "no declared values"),
        (lambda s: s.synthesize("users", ["age", "vip"], bins={"x": 3}, epsilon=1), "none of the columns"),
        (lambda s: s.synthesize("users", ["age", "vip"], bins={"age": 1}, epsilon=1), "2 to 1000"),
    ],
)
def test_refusals_come_before_anything_is_read(blind: Session, call: Any, message: str) -> None:
    with pytest.raises((InvalidParameter, Unsupported), match=message):
        call(blind)


def test_strong_dependence_shows_in_synthetic_data_of_few_rows() -> None:
    """Regression: of 344 rows (palmerpenguins at epsilon 1) a quarter had the wrong species for their island."""
    random, std = np.random.default_rng(4), 8.5
    exact = np.array([[44.0, 56.0, 52.0], [0.0, 68.0, 0.0], [124.0, 0.0, 0.0]])
    even = np.outer(exact.sum(axis=0), [0.5, 0.5])
    pairs = {(0, 1): exact, (0, 2): np.outer(exact.sum(axis=1), [0.5, 0.5]), (1, 2): even}
    gaps = []
    for _ in range(20):
        noisy = {pair: table + random.laplace(0, std / np.sqrt(2), table.shape) for pair, table in pairs.items()}
        fitted = fit_table([3, 3, 2], noisy, std**2).pair(0, 1)
        gaps.append(float(np.abs(fitted - exact / exact.sum()).sum() / 2))
    assert np.mean(gaps) < 0.13  # 0.094, give or take 0.005; 0.26 with an entropy as heavy as 600 rows
