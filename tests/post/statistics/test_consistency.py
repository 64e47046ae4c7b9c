"""Fitted tables agree, are the least-squares fit, and their totals are not worse than the measured ones."""

from __future__ import annotations

import numpy as np
import pytest

from dither.post.statistics.consistency import (
    AgreedTable,
    Margin,
    agree,
    project_to_simplex,
    subsets,
    with_whole_numbers,
    without_negatives,
)

SIZES = {"a": 3, "b": 4, "c": 2}


def margins_of(cells: np.ndarray, random: np.random.Generator, noise: float = 1.0) -> list[Margin]:
    table = AgreedTable(SIZES, cells, {})
    variances = [1.0, 4.0, 2.0, 9.0]
    wanted = [("a", "b", "c"), ("a", "b"), ("c",), ()]
    return [
        Margin(keys, table.margin(keys) + noise * random.normal(0, v**0.5, table.margin(keys).shape), v)
        for keys, v in zip(wanted, variances, strict=True)
    ]


def design(keys: tuple[str, ...]) -> np.ndarray:
    """The matrix that adds up the cells of a table to a margin, from unit tables."""
    units = np.eye(24).reshape(24, 3, 4, 2)
    return np.array([AgreedTable(SIZES, unit, {}).margin(keys).ravel() for unit in units]).T


def test_the_fit_is_that_of_the_normal_equations() -> None:
    random = np.random.default_rng(1)
    margins = margins_of(random.poisson(20, (3, 4, 2)).astype(float), random)
    matrices = [design(margin.keys) for margin in margins]
    precision = sum(m.T @ m / margin.variance for m, margin in zip(matrices, margins, strict=True))
    right = sum(m.T @ margin.values.ravel() / margin.variance for m, margin in zip(matrices, margins, strict=True))
    fitted = agree(SIZES, margins)
    assert np.allclose(fitted.cells.ravel(), np.linalg.solve(precision, right))
    for keys in subsets(tuple(SIZES)):
        covariance = design(keys) @ np.linalg.inv(precision) @ design(keys).T
        assert np.allclose(np.diag(covariance), fitted.variance(keys))


def test_a_fit_to_the_truth_is_the_truth() -> None:
    random = np.random.default_rng(2)
    cells = random.poisson(5, (3, 4, 2)).astype(float)
    fitted = agree(SIZES, margins_of(cells, random, noise=0.0))
    assert np.allclose(fitted.cells, cells)
    assert np.allclose(without_negatives(fitted, margins_of(cells, random)).cells, cells)


def test_margins_in_any_order_of_keys_are_the_same() -> None:
    random = np.random.default_rng(3)
    cells = random.normal(0, 1, (3, 4, 2))
    one = agree(SIZES, [Margin(("a", "b", "c"), cells, 1.0)])
    two = agree(SIZES, [Margin(("c", "a", "b"), np.transpose(cells, (2, 0, 1)), 1.0)])
    assert np.allclose(one.cells, two.cells)


def test_interactions_that_nobody_measured_have_infinite_variance() -> None:
    fitted = agree(SIZES, [Margin(("a",), np.array([1.0, 2.0, 3.0]), 1.0)])
    assert fitted.variance(("a",)) == pytest.approx(1.0)
    assert fitted.variance(("a", "b")) == np.inf
    assert np.allclose(fitted.margin(("a",)), [1, 2, 3])


def test_no_cell_is_negative_and_the_total_stays() -> None:
    random = np.random.default_rng(4)
    margins = margins_of(np.zeros((3, 4, 2)), random, noise=3.0)
    fitted = agree(SIZES, margins)
    changed = without_negatives(fitted, margins)
    assert changed.cells.min() >= 0
    assert changed.cells.sum() == pytest.approx(max(0.0, fitted.cells.sum()))


def test_the_nearest_table_without_negatives_is_found() -> None:
    """A projected table is optimal: no feasible direction between two cells makes it nearer."""
    random = np.random.default_rng(5)
    margins = margins_of(random.poisson(1, (3, 4, 2)).astype(float), random)
    fitted = agree(SIZES, margins)
    found = without_negatives(fitted, margins)
    precision = sum(design(m.keys).T @ design(m.keys) / m.variance for m in margins)
    slope = precision @ (found.cells - fitted.cells).ravel()
    positive = found.cells.ravel() > 1e-6
    assert np.ptp(slope[positive]) < 1e-3
    assert slope[~positive].min(initial=np.inf) >= slope[positive].max() - 1e-3


def test_whole_numbers_agree_and_stay_close() -> None:
    random = np.random.default_rng(6)
    cells = random.gamma(1.0, 3.0, (3, 4, 2))
    whole = with_whole_numbers(AgreedTable(SIZES, cells, {}))
    assert np.array_equal(whole.cells, np.round(whole.cells)) and whole.cells.min() >= 0
    assert abs(whole.cells.sum() - cells.sum()) <= 0.5
    assert np.abs(whole.margin(("a",)) - cells.sum(axis=(1, 2))).max() <= 1


def test_totals_are_not_worse_than_measured() -> None:
    """Over 2,000 redraws; the fit's total has 0.72 of the variance, so a false alarm is impossible in practice."""
    random = np.random.default_rng(7)
    cells = random.poisson(3, (3, 4, 2)).astype(float)
    raw, fitted = [], []
    for _ in range(2000):
        margins = margins_of(cells, random)
        raw.append(float(margins[-1].values) - cells.sum())
        fitted.append(agree(SIZES, margins).cells.sum() - cells.sum())
    assert np.mean(np.square(fitted)) < np.mean(np.square(raw))
    assert np.mean(np.square(fitted)) == pytest.approx(agree(SIZES, margins).variance(()), rel=0.25)


def test_the_projection_keeps_the_total() -> None:
    cells = project_to_simplex(np.array([3.0, -1.0, 0.5]), 2.0)
    assert cells.sum() == pytest.approx(2.0) and cells.min() >= 0
    assert np.array_equal(project_to_simplex(np.array([-1.0, -2.0]), 0.0), [0.0, 0.0])
