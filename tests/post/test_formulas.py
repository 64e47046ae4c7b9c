"""Formulas: arithmetic on noisy columns, and the forms that have exact intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dither.post.formulas import (
    Affine,
    Average,
    ClampedTo,
    FixedValue,
    FunctionCall,
    KeyValue,
    NoisyCell,
    as_affine,
    as_ratio,
    cells_of,
    evaluate,
    strip_increasing,
)

A, B = NoisyCell(0), NoisyCell(1)
CELLS = [np.array([10.0, -3.0]), np.array([4.0, 0.0])]


def number(value: float) -> FixedValue:
    return FixedValue(value)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (FunctionCall("div", (A, B)), [2.5, math.nan]),
        (FunctionCall("mod", (A, B)), [2.0, math.nan]),
        (FunctionCall("round", (FunctionCall("div", (A, number(4.0))),)), [3.0, -1.0]),
        (FunctionCall("coalesce", (FunctionCall("div", (A, B)), number(7.0))), [2.5, 7.0]),
        (FunctionCall("nullif", (B, number(0.0))), [4.0, math.nan]),
        (FunctionCall("case", (FunctionCall("gt", (A, number(0.0))), number(1.0), number(2.0))), [1.0, 2.0]),
        (FunctionCall("case", (FunctionCall("gt", (A, number(0.0))), number(1.0))), [1.0, math.nan]),
        (FunctionCall("least", (A, B)), [4.0, -3.0]),
        (FunctionCall("greatest", (A, B, number(5.0))), [10.0, 5.0]),
        (FunctionCall("sqrt", (A,)), [math.sqrt(10), math.nan]),
        (FunctionCall("ln", (A,)), [math.log(10), math.nan]),
        (Average(A, B, number(5.0), 0.0, 7.0), [7.0, 5.0]),
        (ClampedTo(A, 0.0, 8.0), [8.0, 0.0]),
        (FunctionCall("isin", (A, number(10.0), number(11.0))), [True, False]),
    ],
)
def test_values(node: object, wanted: list[float]) -> None:
    found = np.broadcast_to(evaluate(node, CELLS, []), (2,))  # type: ignore[arg-type]
    assert np.allclose(np.asarray(found, float), np.asarray(wanted, float), equal_nan=True)


def test_affine_forms() -> None:
    node = FunctionCall(
        "sub",
        (
            FunctionCall("mul", (number(2.0), A)),
            FunctionCall("div", (FunctionCall("add", (B, number(3.0))), number(6.0))),
        ),
    )
    assert as_affine(node) == Affine(-0.5, {0: 2.0, 1: pytest.approx(-1 / 6)})
    assert as_affine(FunctionCall("mul", (A, B))) is None
    assert as_affine(FunctionCall("div", (A, B))) is None
    assert as_affine(FixedValue("text")) is None


def test_ratios_are_recognized_under_shifts_and_factors() -> None:
    form = as_ratio(
        FunctionCall("add", (FunctionCall("mul", (number(-2.0), Average(A, B, number(40.0), 18.0, 65.0))), number(1.0)))
    )
    assert form is not None
    assert (form.offset, form.factor, form.low, form.high) == (-79.0, -2.0, -129.0, -35.0)
    assert as_ratio(FunctionCall("mul", (FunctionCall("div", (A, B)), A))) is None


def test_increasing_functions_are_stripped() -> None:
    node = FunctionCall("round", (FunctionCall("sqrt", (A,)), number(2.0)))
    outer, core = strip_increasing(node)
    assert [function.name for function in outer] == ["round", "sqrt"] and core == A
    assert strip_increasing(FunctionCall("abs", (A,))) == ((), FunctionCall("abs", (A,)))


def test_the_cells_that_a_formula_reads() -> None:
    assert cells_of(FunctionCall("add", (A, Average(B, NoisyCell(5), number(0.0), 0.0, 1.0)))) == {0, 1, 5}
    assert cells_of(KeyValue(0)) == frozenset()
