"""Losses: exact, checked when made, and the same after a trip through JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.errors import InvalidParameter
from dither.loss import (
    MAX_ORDERS,
    ZCDP,
    Approximate,
    Loss,
    Pure,
    Renyi,
    Sensitivity,
    from_json,
    rational,
    round_up,
    to_json,
)

amounts = st.fractions(min_value=0, max_value=1000, max_denominator=10**40)
deltas = st.fractions(min_value=0, max_value=1, max_denominator=10**40)
orders = st.lists(st.fractions(min_value=Fraction(11, 10), max_value=512), min_size=1, max_size=8, unique=True)


@st.composite
def losses(draw: st.DrawFn) -> Loss:
    """Any loss."""
    match draw(st.integers(0, 3)):
        case 0:
            return Pure(draw(amounts))
        case 1:
            return Approximate(draw(amounts), draw(deltas))
        case 2:
            return ZCDP(draw(amounts), draw(deltas))
        case _:
            return Renyi(tuple((order, draw(amounts)) for order in sorted(draw(orders))), draw(deltas))


@given(losses())
def test_json_returns_the_same_loss(loss: Loss) -> None:
    assert from_json(json.loads(json.dumps(to_json(loss)))) == loss


def test_numbers_mean_what_is_written() -> None:
    assert Pure(0.1) == Pure("1/10") == Pure(Decimal("0.1")) == Pure(Fraction(1, 10))
    assert Approximate(1, 1e-6).delta == Fraction(1, 10**6)
    assert isinstance(ZCDP(1).rho, Fraction) and ZCDP(1).delta == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pure(-1),
        lambda: Pure(float("nan")),
        lambda: Pure(float("inf")),
        lambda: Pure(True),
        lambda: Pure("one"),
        lambda: Pure(None),  # type: ignore[arg-type]
        lambda: Pure("1/0"),
        lambda: Pure(10**61),
        lambda: Pure(Fraction(1, 10**61)),
        lambda: Pure("1e999999999"),
        lambda: Pure("1e-999999999"),
        lambda: Pure(Decimal("1e999999")),
        lambda: Pure("9" * 5000),
        lambda: Approximate(1, 2),
        lambda: Approximate(1, -1e-9),
        lambda: ZCDP(1, "11/10"),
        lambda: ZCDP(-1),
        lambda: Renyi(()),
        lambda: Renyi(((1, 1),)),
        lambda: Renyi(((3, 1), (2, 1))),
        lambda: Renyi(((2, 1), (2, 1))),
        lambda: Renyi(((2, -1),)),
        lambda: Renyi(tuple((order + 2, 1) for order in range(MAX_ORDERS + 1))),
    ],
)
def test_what_is_not_a_loss_is_refused(make: object) -> None:
    with pytest.raises(InvalidParameter):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "pure",
        {},
        {"kind": "pure"},
        {"kind": "pure", "epsilon": 0.1},
        {"kind": "pure", "epsilon": 1},
        {"kind": "pure", "epsilon": "1", "delta": "0"},
        {"kind": "Pure", "epsilon": "1"},
        {"kind": "zcdp", "rho": "1"},
        {"kind": "renyi", "curve": "21", "delta": "0"},
        {"kind": "renyi", "curve": ["21"], "delta": "0"},
        {"kind": "renyi", "curve": [["2"]], "delta": "0"},
        {"kind": "renyi", "curve": [["2", "1"]] * 10_000, "delta": "0"},
        {"kind": "approximate", "epsilon": "1", "delta": "2"},
    ],
)
def test_json_that_is_not_a_loss_is_refused(value: object) -> None:
    with pytest.raises(InvalidParameter):
        from_json(value)


@given(st.fractions(min_value=0, max_value=10**6), st.integers(1, 10**80))
def test_a_long_fraction_is_rounded_up_to_fit(value: Fraction, divisor: int) -> None:
    exact = value / divisor
    short = round_up(exact)
    assert exact <= short <= exact + Fraction(1, 10**30)
    assert rational(short) == short


def test_a_sensitivity_from_cells_and_size() -> None:
    assert Sensitivity.of(l0=3, linf=2) == Sensitivity(*map(Fraction, (3, 2, 6, 12)))


@pytest.mark.parametrize("norm", ["l0", "linf", "l1", "l2_squared"])
def test_a_negative_sensitivity_is_refused(norm: str) -> None:
    """It would cost less than nothing."""
    norms = dict.fromkeys(("l0", "linf", "l1", "l2_squared"), Fraction(1))
    assert Sensitivity(**{**norms, norm: Fraction(0)})
    with pytest.raises(InvalidParameter, match=norm):
        Sensitivity(**{**norms, norm: Fraction(-1, 10**9)})
    with pytest.raises(InvalidParameter):
        Sensitivity.of(l0=-1, linf=1)
