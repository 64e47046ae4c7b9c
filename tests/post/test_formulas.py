"""Recipes: arithmetic on noisy columns, and the shapes that have exact intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dither.post.formulas import (
    Affine,
    Apply,
    Cell,
    Constant,
    Key,
    Mean,
    Within,
    affine,
    cells_of,
    evaluate,
    peel,
    ratio,
)

A, B = Cell(0), Cell(1)
CELLS = [np.array([10.0, -3.0]), np.array([4.0, 0.0])]


def number(value: float) -> Constant:
    return Constant(value)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (Apply("div", (A, B)), [2.5, math.nan]),
        (Apply("mod", (A, B)), [2.0, math.nan]),
        (Apply("round", (Apply("div", (A, number(4.0))),)), [3.0, -1.0]),
        (Apply("coalesce", (Apply("div", (A, B)), number(7.0))), [2.5, 7.0]),
        (Apply("nullif", (B, number(0.0))), [4.0, math.nan]),
        (Apply("case", (Apply("gt", (A, number(0.0))), number(1.0), number(2.0))), [1.0, 2.0]),
        (Apply("case", (Apply("gt", (A, number(0.0))), number(1.0))), [1.0, math.nan]),
        (Apply("least", (A, B)), [4.0, -3.0]),
        (Apply("greatest", (A, B, number(5.0))), [10.0, 5.0]),
        (Apply("sqrt", (A,)), [math.sqrt(10), math.nan]),
        (Apply("ln", (A,)), [math.log(10), math.nan]),
        (Mean(A, B, 5.0, 0.0, 7.0), [7.0, 5.0]),
        (Within(A, 0.0, 8.0), [8.0, 0.0]),
        (Apply("isin", (A, number(10.0), number(11.0))), [True, False]),
    ],
)
def test_values(node: object, wanted: list[float]) -> None:
    found = np.broadcast_to(evaluate(node, CELLS, []), (2,))  # type: ignore[arg-type]
    assert np.allclose(np.asarray(found, float), np.asarray(wanted, float), equal_nan=True)


def test_affine_forms() -> None:
    node = Apply("sub", (Apply("mul", (number(2.0), A)), Apply("div", (Apply("add", (B, number(3.0))), number(6.0)))))
    assert affine(node) == Affine(-0.5, {0: 2.0, 1: pytest.approx(-1 / 6)})
    assert affine(Apply("mul", (A, B))) is None
    assert affine(Apply("div", (A, B))) is None
    assert affine(Constant("text")) is None


def test_ratios_are_found_under_shifts_and_factors() -> None:
    form = ratio(Apply("add", (Apply("mul", (number(-2.0), Mean(A, B, 40.0, 18.0, 65.0))), number(1.0))))
    assert form is not None
    assert (form.offset, form.factor, form.low, form.high) == (-79.0, -2.0, -129.0, -35.0)
    assert ratio(Apply("mul", (Apply("div", (A, B)), A))) is None


def test_rising_functions_are_peeled() -> None:
    node = Apply("round", (Apply("sqrt", (A,)), number(2.0)))
    outer, core = peel(node)
    assert [function.name for function in outer] == ["round", "sqrt"] and core == A
    assert peel(Apply("abs", (A,))) == ((), Apply("abs", (A,)))


def test_what_a_recipe_reads() -> None:
    assert cells_of(Apply("add", (A, Mean(B, Cell(5), 0.0, 0.0, 1.0)))) == {0, 1, 5}
    assert cells_of(Key(0)) == frozenset()
