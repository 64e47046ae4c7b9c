"""Privacy filters: each caps the sum of losses charged to one budget, and states the guarantee that the cap gives.

Costs and caps are integers in units of 1e-15; costs are rounded up and caps down.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.privacy.accounting.conversion import as_renyi, as_zcdp, delta_of, largest_rho
from dither.privacy.accounting.units import FEMTO, LARGEST_COST, to_femto
from dither.schema import BudgetCap

RESERVED_DELTA_SHARE = Fraction(
    1, 10
)  # of an (epsilon, delta) budget's delta: pays for mechanisms that have a delta; the rest converts rho


def _cap_femto(x: Fraction) -> int:
    """Return a cap in units of 1e-15, rounded down."""
    units = x.numerator * FEMTO // x.denominator
    if not 0 <= units < LARGEST_COST:
        raise InvalidParameter("a budget must be at least 0 and below 4611")
    return units


# --- Filters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PureFilter:
    """Caps the sum of epsilons, and the sum of deltas if the budget has a delta."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "pure"
    names: ClassVar[tuple[str, ...]] = ("epsilon", "delta")
    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @property
    def cap(self) -> tuple[int, ...]:
        """The cap of each component, in units of 1e-15, rounded down."""
        return _cap_femto(self.epsilon), _cap_femto(self.delta)

    @property
    def guarantee(self) -> Pure | Approximate:
        """The guarantee while the cap is enforced, also for adaptively chosen queries."""
        return Approximate(self.epsilon, self.delta) if self.delta else Pure(self.epsilon)

    def femto_cost(self, loss: Loss) -> tuple[int, ...]:
        """Return the cost of a loss for each component, in units of 1e-15, rounded up."""
        match loss:
            case Pure() | Approximate():
                delta = delta_of(loss)
                if delta and not self.delta:
                    raise _incompatible_loss(loss, self.kind, "zcdp")
                return to_femto(loss.epsilon), to_femto(delta)
            case ZCDP():
                raise _incompatible_loss(loss, self.kind, "zcdp")
            case Renyi():
                raise _incompatible_loss(loss, self.kind, "renyi")
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
        """The cap of each component, in units of 1e-15, rounded down."""
        return _cap_femto(self.rho), _cap_femto(self.delta)

    @property
    def guarantee(self) -> ZCDP:
        """The guarantee while the cap is enforced, also for adaptively chosen queries."""
        return ZCDP(self.rho, self.delta)

    def femto_cost(self, loss: Loss) -> tuple[int, ...]:
        """Return the cost of a loss for each component, in units of 1e-15, rounded up."""
        if isinstance(loss, Renyi):
            raise _incompatible_loss(loss, self.kind, "renyi")
        cost = as_zcdp(loss)
        return to_femto(cost.rho), to_femto(cost.delta)


@dataclass(frozen=True)
class RenyiFilter:
    """Caps the sum of Renyi divergences at each of a few orders fixed in advance, and the sum of deltas."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "renyi"
    curve: tuple[tuple[Fraction, Fraction], ...]
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        Renyi(self.curve, self.delta)  # refuses an invalid curve

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each component."""
        return (*(f"epsilon at order {order}" for order, _ in self.curve), "delta")

    @property
    def cap(self) -> tuple[int, ...]:
        """The cap of each component, in units of 1e-15, rounded down."""
        return (*(_cap_femto(epsilon) for _, epsilon in self.curve), _cap_femto(self.delta))

    @property
    def guarantee(self) -> Renyi:
        """The guarantee while the cap is enforced, also for adaptively chosen queries."""
        return Renyi(self.curve, self.delta)

    def femto_cost(self, loss: Loss) -> tuple[int, ...]:
        """Return the cost of a loss for each component, in units of 1e-15, rounded up."""
        cost = as_renyi(loss, [order for order, _ in self.curve])
        return (*(to_femto(epsilon) for _, epsilon in cost.curve), to_femto(cost.delta))


Filter = PureFilter | ZCDPFilter | RenyiFilter


@lru_cache(maxsize=256)
def filter_of(cap: BudgetCap) -> Filter:
    """Return the filter that enforces a declared budget.

    Proof: filters.md.
    """
    match cap.kind:
        case "pure" if cap.epsilon is not None and cap.rho is None:
            return PureFilter(cap.epsilon, cap.delta)
        case "zcdp" if cap.rho is not None and cap.epsilon is None:
            return ZCDPFilter(cap.rho, cap.delta)
        case "zcdp" if cap.epsilon is not None and cap.rho is None:
            return ZCDPFilter(
                largest_rho(cap.epsilon, cap.delta * (1 - RESERVED_DELTA_SHARE)), cap.delta * RESERVED_DELTA_SHARE
            )
        case "renyi" if cap.epsilon is not None and cap.order is not None and cap.rho is None:
            return RenyiFilter(((cap.order, cap.epsilon),), cap.delta)
        case _:
            raise InvalidParameter(
                "a budget needs epsilon if pure, rho or (epsilon, delta) if zcdp, order and epsilon if renyi"
            )


def _incompatible_loss(loss: Loss, kind: str, suitable_kind: str) -> InvalidParameter:
    """Return the error for a loss that this kind of budget cannot count; it names a kind that can."""
    return InvalidParameter(
        f"a budget of kind {kind} cannot take this {loss.kind} loss; one of kind {suitable_kind} can"
        " (delta= needs a budget with a delta)"
    )
