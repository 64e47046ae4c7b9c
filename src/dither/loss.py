"""Sensitivities and privacy losses (pure, approximate, zCDP, Renyi), as exact rationals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, assert_never

from dither.errors import InvalidParameter

Rational = int | str | float | Decimal | Fraction

LARGEST_TERM = 10**60
LONGEST_TEXT = 200
MAX_ORDERS = 64


def rational(value: Rational, name: str = "value") -> Fraction:
    """Return the exact rational that a number or a text stands for; a float is read by its decimal digits: 0.1 is 1/10.

    >>> rational(0.1), rational("2/3")
    (Fraction(1, 10), Fraction(2, 3))
    """
    if isinstance(value, bool):
        raise InvalidParameter(f"{name} must be a number, got {value}")
    try:
        exact = _parse_exact(value)
    except (ValueError, TypeError, ArithmeticError):
        raise InvalidParameter(f"{name} must be a number such as 0.1 or '1/10', got {str(value)[:40]!r}") from None
    if max(abs(exact.numerator), exact.denominator) > LARGEST_TERM:
        raise InvalidParameter(f"{name} must have at most 60 digits in its numerator and in its denominator")
    return exact


def _parse_exact(value: Rational) -> Fraction:
    """Parse a fraction; raise ValueError for texts such as 1e999999, whose value would have a million digits."""
    if isinstance(value, int | Fraction):
        return Fraction(value)
    text = float.__repr__(value) if isinstance(value, float) else str(value)
    if len(text) > LONGEST_TEXT or ("/" not in text and abs(Decimal(text).adjusted()) > LONGEST_TEXT):
        raise ValueError
    return Fraction(text)


def round_up(value: Fraction) -> Fraction:
    """Return the value itself if its numerator and denominator are short enough for a loss, else round up to 1e-30."""
    if max(abs(value.numerator), value.denominator) <= LARGEST_TERM:
        return value
    return Fraction(-(-value * 10**30 // 1), 10**30)


@dataclass(frozen=True)
class Sensitivity:
    """A bound on how far one unit can change a vector: the number of changed cells, and norms of the change.

    With `equal_shares`, a unit that changes k cells adds (or removes) at most sqrt(l2_squared / k) in each of them.
    """

    l0: Fraction
    linf: Fraction
    l1: Fraction
    l2_squared: Fraction
    equal_shares: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("l0", "linf", "l1", "l2_squared"):
            if not getattr(self, name) >= 0:
                raise InvalidParameter(f"a sensitivity must not be negative, got {name} = {getattr(self, name)}")

    @classmethod
    def of(cls, *, l0: Rational, linf: Rational) -> Sensitivity:
        """Return the sensitivity of at most `l0` changed cells, each changed by at most `linf`."""
        cells, most = rational(l0), rational(linf)
        return cls(cells, most, cells * most, cells * most * most)


@dataclass(frozen=True)
class Pure:
    """Pure differential privacy: every output is at most e^epsilon times as likely on a neighbour."""

    kind: ClassVar[str] = "pure"
    epsilon: Fraction

    def __post_init__(self) -> None:
        _set_fields(self, epsilon=_nonnegative(self.epsilon, "epsilon"))


@dataclass(frozen=True)
class Approximate:
    """(epsilon, delta)-DP: every event has at most e^epsilon times its probability on a neighbour, plus delta."""

    kind: ClassVar[str] = "approximate"
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        _set_fields(self, epsilon=_nonnegative(self.epsilon, "epsilon"), delta=_probability(self.delta))


@dataclass(frozen=True)
class ZCDP:
    """zCDP: Renyi divergence at most rho * order for every order above 1, outside events of probability delta."""

    kind: ClassVar[str] = "zcdp"
    rho: Fraction
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        _set_fields(self, rho=_nonnegative(self.rho, "rho"), delta=_probability(self.delta))


@dataclass(frozen=True)
class Renyi:
    """Renyi DP: divergence at most epsilon at each (order, epsilon) of a curve, outside events of probability delta."""

    kind: ClassVar[str] = "renyi"
    curve: tuple[tuple[Fraction, Fraction], ...]
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        curve = tuple((rational(order, "order"), _nonnegative(epsilon, "epsilon")) for order, epsilon in self.curve)
        orders = [order for order, _ in curve]
        if not 1 <= len(orders) <= MAX_ORDERS or orders[0] <= 1 or sorted(set(orders)) != orders:
            raise InvalidParameter(f"a Renyi curve needs 1 to {MAX_ORDERS} increasing orders, all above 1")
        _set_fields(self, curve=curve, delta=_probability(self.delta))


Loss = Pure | Approximate | ZCDP | Renyi


def to_json(loss: Loss) -> dict[str, object]:
    """Return the loss as JSON: its kind, and its rationals as text.

    >>> to_json(Approximate(0.1, "1/3"))
    {'kind': 'approximate', 'epsilon': '1/10', 'delta': '1/3'}
    """
    match loss:
        case Pure():
            return {"kind": "pure", "epsilon": str(loss.epsilon)}
        case Approximate():
            return {"kind": "approximate", "epsilon": str(loss.epsilon), "delta": str(loss.delta)}
        case ZCDP():
            return {"kind": "zcdp", "rho": str(loss.rho), "delta": str(loss.delta)}
        case Renyi():
            curve = [[str(order), str(epsilon)] for order, epsilon in loss.curve]
            return {"kind": "renyi", "curve": curve, "delta": str(loss.delta)}
        case _:
            assert_never(loss)


def from_json(value: object) -> Loss:
    """Return the loss that `to_json` wrote; refuse anything else.

    >>> from_json({"kind": "pure", "epsilon": "1/10"})
    Pure(epsilon=Fraction(1, 10))
    """
    match value:
        case {"kind": "pure", "epsilon": epsilon, **rest} if not rest:
            return Pure(_rational_from_text(epsilon))
        case {"kind": "approximate", "epsilon": epsilon, "delta": delta, **rest} if not rest:
            return Approximate(_rational_from_text(epsilon), _rational_from_text(delta))
        case {"kind": "zcdp", "rho": rho, "delta": delta, **rest} if not rest:
            return ZCDP(_rational_from_text(rho), _rational_from_text(delta))
        case {"kind": "renyi", "curve": [*points], "delta": delta, **rest} if not rest:
            return Renyi(tuple(_curve_point(point) for point in points[: MAX_ORDERS + 1]), _rational_from_text(delta))
        case Mapping():
            raise InvalidParameter(
                "a loss must have the kind pure, approximate, zcdp or renyi, and exactly the fields of that kind"
            )
        case _:
            raise InvalidParameter("a loss must be an object such as {'kind': 'pure', 'epsilon': '1/10'}")


def _curve_point(value: object) -> tuple[Fraction, Fraction]:
    """Return one (order, epsilon) point of a Renyi curve."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise InvalidParameter("a point of a Renyi curve must be a pair: order, epsilon")
    return _rational_from_text(value[0]), _rational_from_text(value[1])


def _rational_from_text(value: object) -> Fraction:
    """Return the rational that a text holds; refuse a JSON number, which a parser may have rounded."""
    if not isinstance(value, str):
        raise InvalidParameter(f"a rational must be text such as '1/10', got {type(value).__name__}")
    return rational(value)


def _nonnegative(value: Rational, name: str) -> Fraction:
    """Return the value as a rational; refuse a negative one."""
    exact = rational(value, name)
    if exact < 0:
        raise InvalidParameter(f"{name} must not be negative, got {exact}")
    return exact


def _probability(value: Rational) -> Fraction:
    """Return delta as a rational; refuse one outside 0 to 1."""
    exact = rational(value, "delta")
    if not 0 <= exact <= 1:
        raise InvalidParameter(f"delta must be between 0 and 1, got {exact}")
    return exact


def _set_fields(self: object, **fields: object) -> None:
    """Write the checked fields of a frozen dataclass while it is being constructed."""
    for name, value in fields.items():
        object.__setattr__(self, name, value)
