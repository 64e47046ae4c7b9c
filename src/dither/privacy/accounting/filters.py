"""Part of the former privacy.accounting."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.privacy.accounting.conversion import _delta_of, as_renyi, as_zcdp, largest_rho
from dither.privacy.accounting.units import FEMTO, LARGEST_COST, to_femto
from dither.schema import BudgetCap

RESERVED = Fraction(1, 10)  # the part of an (epsilon, delta) budget's delta kept for mechanisms that have one


def _cap_femto(x: Fraction) -> int:
    """A cap in integers of 1e-15, rounded down."""
    units = x.numerator * FEMTO // x.denominator
    if not 0 <= units < LARGEST_COST:
        raise InvalidParameter("a budget must be at least 0 and below 4611")
    return units


# --- Filters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PureFilter:
    """Caps the sum of epsilons, and of deltas where the curator allowed any."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "pure"
    names: ClassVar[tuple[str, ...]] = ("epsilon", "delta")
    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return _cap_femto(self.epsilon), _cap_femto(self.delta)

    @property
    def guarantee(self) -> Pure | Approximate:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return Approximate(self.epsilon, self.delta) if self.delta else Pure(self.epsilon)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        match loss:
            case Pure() | Approximate():
                delta = _delta_of(loss)
                if delta and not self.delta:
                    raise _refused(loss, self.kind, "zcdp")
                return to_femto(loss.epsilon), to_femto(delta)
            case ZCDP():
                raise _refused(loss, self.kind, "zcdp")
            case Renyi():
                raise _refused(loss, self.kind, "renyi")
            case _:
                assert_never(loss)


@dataclass(frozen=True)
class ZCDPFilter:
    """Caps the sum of rhos and the sum of deltas."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "zcdp"
    names: ClassVar[tuple[str, ...]] = ("rho", "delta")
    rho: Fraction
    delta: Fraction = Fraction(0)

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return _cap_femto(self.rho), _cap_femto(self.delta)

    @property
    def guarantee(self) -> ZCDP:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return ZCDP(self.rho, self.delta)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        if isinstance(loss, Renyi):
            raise _refused(loss, self.kind, "renyi")
        cost = as_zcdp(loss)
        return to_femto(cost.rho), to_femto(cost.delta)


@dataclass(frozen=True)
class RenyiFilter:
    """Caps the sum of divergences at each of a few orders that were fixed beforehand, and the sum of deltas."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "renyi"
    curve: tuple[tuple[Fraction, Fraction], ...]
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        Renyi(self.curve, self.delta)  # refuses what is not a curve

    @property
    def names(self) -> tuple[str, ...]:
        """What each coordinate counts."""
        return (*(f"epsilon at order {order}" for order, _ in self.curve), "delta")

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return (*(_cap_femto(epsilon) for _, epsilon in self.curve), _cap_femto(self.delta))

    @property
    def guarantee(self) -> Renyi:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return Renyi(self.curve, self.delta)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        cost = as_renyi(loss, [order for order, _ in self.curve])
        return (*(to_femto(epsilon) for _, epsilon in cost.curve), to_femto(cost.delta))


Filter = PureFilter | ZCDPFilter | RenyiFilter


@lru_cache(maxsize=256)
def filter_of(cap: BudgetCap) -> Filter:
    """The filter that enforces a declared budget.

    Proof: filters.md.
    """
    match cap.kind:
        case "pure" if cap.epsilon is not None and cap.rho is None:
            return PureFilter(cap.epsilon, cap.delta)
        case "zcdp" if cap.rho is not None and cap.epsilon is None:
            return ZCDPFilter(cap.rho, cap.delta)
        case "zcdp" if cap.epsilon is not None and cap.rho is None:
            return ZCDPFilter(largest_rho(cap.epsilon, cap.delta * (1 - RESERVED)), cap.delta * RESERVED)
        case "renyi" if cap.epsilon is not None and cap.order is not None and cap.rho is None:
            return RenyiFilter(((cap.order, cap.epsilon),), cap.delta)
        case _:
            raise InvalidParameter(
                "a budget needs epsilon (pure), rho or (epsilon, delta) (zcdp), order and epsilon (renyi)"
            )


def _refused(loss: Loss, kind: str, able: str) -> InvalidParameter:
    """The error that names a kind of budget that can take the loss."""
    return InvalidParameter(f"a budget of kind {kind} cannot take this {loss.kind} loss; one of kind {able} can")
