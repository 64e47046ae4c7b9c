"""Regression and classification from noisy sums: exact without noise, honest intervals with it, one charge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.post.session import Session
from dither.post.statistics.design import Scaling
from dither.post.statistics.linear import fit_linear, raw_fit
from dither.post.statistics.logistic import CURVATURE_WEIGHT, last_step
from dither.post.statistics.moments import Moments
from dither.privacy.kernel import LocalKernel
from dither.schema import load
from post.bare import BareKernel

HUGE = 10**7


@pytest.fixture(scope="module")
def books(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with a real kernel and its ledger."""
    kernel = LocalKernel(load(folder / "dataset.yml"), tmp_path_factory.mktemp("books") / "ledger")
    yield Session.from_kernel(kernel, "analyst")
    kernel.close()


def people(truth: duckdb.DuckDBPyConnection) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    frame = truth.sql("SELECT age, salary, gender, country, vip FROM users").fetchnumpy()
    columns = [frame["age"], *(frame["gender"] == level for level in ("m", "x")), frame["vip"]]
    return frame, np.column_stack([np.ones(len(frame["age"])), *columns]).astype(float)


def exact(matrix: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.linalg.lstsq(matrix, target.astype(float), rcond=None)[0])


@pytest.mark.parametrize("spend", [{"epsilon": HUGE}, {"rho": HUGE}], ids=["laplace", "gaussian"])
def test_without_noise_a_regression_is_that_of_least_squares(
    session: Session, truth: duckdb.DuckDBPyConnection, spend: Any
) -> None:
    frame, matrix = people(truth)
    model = session.regress("users", "salary", ["age", "gender", "vip"], **spend)
    wanted = exact(matrix, frame["salary"])
    assert [model.intercept_, *model.coef_] == pytest.approx(wanted, rel=0.01, abs=20)
    assert model.feature_names_in_ == ["age", "gender=m", "gender=x", "vip"]
    assert model.predict(frame) == pytest.approx(matrix @ wanted, rel=0.01)
    assert model.score(frame) == pytest.approx(model.r2_, abs=0.01)
    assert "coefficient" in model._repr_html_() and model.to_pandas()["term"].iloc[0] == "(intercept)"


def test_units_with_many_rows_keep_their_own_regression(session: Session) -> None:
    """A unit above the bound has less weight, so an exact relation stays exact whatever the weights."""
    rows = "SELECT seconds, price, 40 * price - 2 * seconds AS total, action FROM actions"
    model = session.regress(rows, "total", ["seconds", "price", "action"], epsilon=HUGE)
    assert model.coef_ == pytest.approx([-2, 40, 0, 0, 0, 0, 0], abs=0.5)
    assert model.r2_ > 0.999
    assert any("scaled down together" in note for note in model.notes)


def test_a_ridge_penalty_shrinks(session: Session) -> None:
    plain, ridge = (session.regress("users", "salary", ["age"], alpha=a, epsilon=HUGE).coef_[0] for a in (0, 10_000))
    assert abs(ridge) < abs(plain) / 10


@pytest.mark.tier("test")
def test_a_model_is_one_charge_and_its_quote_is_free(books: Session) -> None:
    before = len(books.history)
    quote = books.classify.quote("actions", "action", ["seconds", "price"], positive="view", epsilon=1)
    assert len(books.history) == before and quote.affordable and "epsilon 1" in quote.cost
    model = books.classify("actions", "action", ["seconds", "price"], positive="view", epsilon=1)
    assert len(books.history) == before + 1
    assert float(model.loss[0].epsilon) == pytest.approx(1, abs=1e-9)
    assert float(model.loss[0].epsilon) <= 1


def logistic(matrix: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights = np.zeros(matrix.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-matrix @ weights))
        curvature = (matrix * (chance * (1 - chance))[:, None]).T @ matrix
        weights -= np.linalg.solve(curvature, matrix.T @ (chance - target))
    return weights


def test_without_noise_a_classification_is_that_of_maximum_likelihood(
    session: Session, truth: duckdb.DuckDBPyConnection
) -> None:
    frame, matrix = people(truth)
    rows = "SELECT age, gender, vip, salary + 3000 * age > 300000 AS rich FROM users"
    target = frame["salary"] + 3000 * frame["age"] > 300000
    model = session.classify(rows, "rich", ["age", "gender", "vip"], epsilon=HUGE)
    wanted = logistic(matrix, target)
    assert [model.intercept_, *model.coef_] == pytest.approx(wanted, rel=0.02, abs=0.02)
    assert model.predict(frame) == list(matrix @ wanted > 0)
    assert model.score({**frame, "rich": target}) == pytest.approx(np.mean((matrix @ wanted > 0) == target))
    assert model.predict_proba(frame).sum(axis=1) == pytest.approx(1)


def test_a_sample_of_units_costs_what_was_asked_for(books: Session) -> None:
    asked = {"positive": "view", "sample": "1/2", "epsilon": 1}
    quote = books.classify.quote("actions", "action", ["seconds"], **asked)
    assert 0.99 < float(quote.loss.epsilon) <= 1
    with pytest.raises(InvalidParameter, match="sample="):
        books.classify("actions", "action", ["seconds"], positive="view", sample="1/2", rho=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.regress("users", "country", ["age"], epsilon=1), "use classify"),
        (lambda s: s.regress("users", "salary", [], epsilon=1), "at least one column"),
        (lambda s: s.regress("users", "salary", ["joined"], epsilon=1), "cannot be a column"),
        (lambda s: s.regress("users", "salary", ["age"], standardize="x", epsilon=1), "'declared' or 'private'"),
        (lambda s: s.regress("actions", "price", ["seconds"], population=True, epsilon=1), "one row each"),
        (lambda s: s.classify("users", "country", ["age"], epsilon=1), "positive="),
        (lambda s: s.classify("users", "country", ["age"], positive="ZZ", epsilon=1), "declared value"),
        (lambda s: s.classify("users", "age", ["salary"], epsilon=1), "must be a boolean"),
    ],
)
def test_refusals_come_before_anything_is_read(blind: Session, call: Any, message: str) -> None:
    with pytest.raises((InvalidParameter, Unsupported), match=message):
        call(blind)


def noisy_moments(noise: float, random: np.random.Generator, exact_matrix: np.ndarray[Any, Any]) -> Moments:
    size = len(exact_matrix)
    places = tuple(((i, j),) for i in range(size) for j in range(i, size))
    matrix = exact_matrix.copy()
    for ((i, j),) in places:
        matrix[i, j] += random.laplace(0, noise / np.sqrt(2))
        matrix[j, i] = matrix[i, j]
    return Moments(matrix, places, np.full(len(places), noise), laplace=True)


def coverage(factor: float) -> float:
    """The share of 95% intervals, made `factor` times as wide, that cover the exact coefficients."""
    random = np.random.default_rng(7)
    data = np.column_stack([np.ones(2000), random.uniform(-1, 1, (2000, 2))])
    target = data @ [0.1, 0.5, -0.3] + random.normal(0, 0.1, 2000)
    whole = np.column_stack([data, target])
    gram, wanted = whole.T @ whole, exact(data, target)
    scaling = Scaling(np.zeros(3), np.ones(3), 1.0)
    covered = []
    for _ in range(300):
        moments = noisy_moments(5.0, random, gram)
        fitted = raw_fit(fit_linear(moments, np.zeros(3)), moments, scaling, 0.95, False)
        covered.append(np.abs(fitted.values - wanted) <= factor * fitted.half_widths)
    return float(np.mean(covered))


@pytest.mark.tier("test")
def test_intervals_cover_the_exact_coefficients() -> None:
    """300 draws of 3 coefficients: six standard deviations of the share, if the three were one, are 7.6 points."""
    assert 0.874 < coverage(1.0) <= 1.0
    assert coverage(0.5) < 0.874


def test_the_last_step_has_the_errors_of_its_noise() -> None:
    """The spread of 400 draws is within 25% of the stated errors: seven standard deviations of its estimate."""
    random = np.random.default_rng(3)
    curvature, start = np.array([[900.0, 100.0], [100.0, 500.0]]), np.array([0.2, -0.4])
    wanted = np.array([0.5, 0.1])
    values = np.concatenate([curvature @ (start - wanted), curvature[np.triu_indices(2)] / CURVATURE_WEIGHT])
    fits = [last_step(values + random.normal(0, 2, 5), 2.0, start, np.zeros(2)) for _ in range(400)]
    spread = np.std([fit.weights for fit in fits], axis=0)
    stated = np.sqrt((fits[0].noise_map ** 2).sum(axis=1))
    assert spread == pytest.approx(stated, rel=0.25)
    assert np.mean([fit.weights for fit in fits], axis=0) == pytest.approx(wanted, abs=0.02)


def test_what_is_released_does_not_depend_on_the_kernel(session: Session) -> None:
    assert isinstance(session.kernel, BareKernel)
    session.regress("users", "salary", ["age"], epsilon=1)
    request = session.kernel.requests[-1]
    assert len(request.parts) == 1 and request.searches == ()
