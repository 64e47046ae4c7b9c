"""Filters: exact units, caps and costs of each kind, and an exact model of adaptive strategies."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.privacy.accounting.composition import compose
from dither.privacy.accounting.conversion import delta_at, epsilon_at, largest_rho, pure_as_renyi, pure_as_rho
from dither.privacy.accounting.filters import Filter, PureFilter, RenyiFilter, ZCDPFilter, filter_of
from dither.privacy.accounting.units import LARGEST_COST, to_femto
from dither.schema import BudgetCap
from privacy.accounting_cases import NEAR, ROUNDING, Distribution, hockey, primes, real, renyi, response, small, tiny

pytestmark = pytest.mark.usefixtures("precision")


# --- Units, caps and costs ---


def fits(spent: tuple[int, ...], cost: tuple[int, ...], cap: tuple[int, ...]) -> bool:
    """The rule that the ledger enforces."""
    return all(a + b <= c for a, b, c in zip(spent, cost, cap, strict=True))


def add(spent: tuple[int, ...], cost: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates after a charge."""
    return tuple(a + b for a, b in zip(spent, cost, strict=True))


def test_ten_tenths_use_up_a_budget_exactly() -> None:
    for enforced, loss, least in (
        (PureFilter(Fraction(1)), Pure(0.1), Pure(1e-15)),
        (ZCDPFilter(Fraction(1)), ZCDP(0.1), ZCDP(1e-15)),
        (RenyiFilter(((Fraction(2), Fraction(1)),)), Renyi(((2, 0.1),)), Renyi(((2, 1e-15),))),
    ):
        spent = (0,) * len(enforced.cap)
        for _ in range(10):
            assert fits(spent, enforced.femto_cost(loss), enforced.cap)
            spent = add(spent, enforced.femto_cost(loss))
        assert spent == enforced.cap
        assert not fits(spent, enforced.femto_cost(least), enforced.cap)
        assert not fits(spent, enforced.femto_cost(type(loss)(*shrunk(least))), enforced.cap)


def shrunk(loss: Loss) -> tuple[object, ...]:
    """A loss a billion times smaller: it still costs a unit."""
    match loss:
        case Pure():
            return (loss.epsilon / 10**9,)
        case ZCDP():
            return (loss.rho / 10**9,)
        case Renyi():
            return (tuple((order, epsilon / 10**9) for order, epsilon in loss.curve),)
        case _:
            raise TypeError(loss)


def test_caps_are_rounded_down() -> None:
    third = 10**15 // 3
    assert (
        PureFilter(Fraction(1, 3), Fraction(1, 3)).cap == ZCDPFilter(Fraction(1, 3), Fraction(1, 3)).cap == (third,) * 2
    )
    assert RenyiFilter(((Fraction(2), Fraction(1, 3)),)).cap == (third, 0)
    assert to_femto(Fraction(1, 3)) == third + 1


def test_two_thousand_primes_neither_drift_nor_grow() -> None:
    enforced, spent, exact = PureFilter(Fraction(4)), (0, 0), Fraction(0)
    for p in primes(2000):
        spent, exact = add(spent, enforced.femto_cost(Pure(Fraction(1, p)))), exact + Fraction(1, p)
    assert exact <= Fraction(spent[0], 10**15) <= exact + Fraction(2000, 10**15)
    assert spent[0].bit_length() <= 63


@given(st.fractions(min_value=0, max_value=10**6))
def test_units_are_rounded_up_by_less_than_one(x: Fraction) -> None:
    assert x <= Fraction(to_femto(x), 10**15) < x + Fraction(1, 10**15) or to_femto(x) == LARGEST_COST


def test_every_cost_fits_into_sixty_three_bits_and_an_enormous_one_never_passes() -> None:
    enforced = PureFilter(Fraction(4611))
    cost = enforced.femto_cost(Pure(10**50))
    assert cost[0] + enforced.cap[0] < 2**63 and not fits((0, 0), cost, enforced.cap)
    for declared in (Fraction(5000), Fraction(-1)):
        with pytest.raises(InvalidParameter):
            _ = PureFilter(declared).cap


@pytest.mark.parametrize(
    ("enforced", "loss", "able"),
    [
        (PureFilter(Fraction(1)), ZCDP(0.1), "zcdp"),
        (PureFilter(Fraction(1)), Approximate(0.1, 1e-6), "zcdp"),
        (PureFilter(Fraction(1)), Renyi(((2, 0.1),)), "renyi"),
        (ZCDPFilter(Fraction(1)), Renyi(((2, 0.1),)), "renyi"),
    ],
)
def test_a_loss_that_a_kind_cannot_express_is_refused(enforced: Filter, loss: Loss, able: str) -> None:
    with pytest.raises(InvalidParameter, match=f"kind {able} can"):
        enforced.femto_cost(loss)


def test_costs_of_each_kind_in_each_budget() -> None:
    unit = 10**15
    assert PureFilter(Fraction(1)).femto_cost(Approximate(1, 0)) == (unit, 0)
    assert PureFilter(Fraction(1), Fraction(1, 10**6)).femto_cost(Approximate(1, 1e-9)) == (unit, 10**6)
    assert ZCDPFilter(Fraction(1)).femto_cost(ZCDP(1, 1e-9)) == (unit, 10**6)
    assert ZCDPFilter(Fraction(1)).femto_cost(Approximate(1, 1e-9)) == (to_femto(pure_as_rho(Fraction(1))), 10**6)
    order = RenyiFilter(((Fraction(2), Fraction(1)), (Fraction(8), Fraction(1))))
    assert order.femto_cost(ZCDP(1, 1e-9)) == (2 * unit, 8 * unit, 10**6)
    assert order.femto_cost(Pure(1)) == (*(to_femto(pure_as_renyi(Fraction(1), Fraction(a))) for a in (2, 8)), 0)
    assert len(order.names) == len(order.cap) == 3


def test_budgets_as_declared() -> None:
    one, delta = Fraction(1), Fraction(1, 10**6)
    assert filter_of(BudgetCap("user", "pure", epsilon=one)) == PureFilter(one)
    assert filter_of(BudgetCap("user", "zcdp", rho=one, delta=delta)) == ZCDPFilter(one, delta)
    assert filter_of(BudgetCap("user", "renyi", epsilon=one, order=Fraction(9))) == RenyiFilter(((Fraction(9), one),))
    both = filter_of(BudgetCap("user", "zcdp", epsilon=one, delta=delta))
    assert both == ZCDPFilter(largest_rho(one, delta * 9 / 10), delta / 10)
    assert epsilon_at(both.guarantee, delta) <= one
    for wrong in (
        BudgetCap("user", "pure"),
        BudgetCap("user", "zcdp"),
        BudgetCap("user", "zcdp", epsilon=one),
        BudgetCap("user", "zcdp", epsilon=one, rho=one, delta=delta),
        BudgetCap("user", "renyi", epsilon=one),
        BudgetCap("user", "renyi", epsilon=one, order=Fraction(1)),
    ):
        with pytest.raises(InvalidParameter):
            filter_of(wrong)


# --- Adaptive strategies ---


# An exact model of full adaptivity: every round's mechanism depends on the answers so far, and the distributions of all
# transcripts are computed. A mechanism answers one of four letters; "!" and "?" betray the data with probability delta.


def one_round(epsilon: Fraction, delta: Fraction) -> dict[str, tuple[mpf, mpf]]:
    """The worst mechanism with a given (epsilon, delta): its distribution on either neighbour."""
    (yes, no), d = response(epsilon)[0], real(delta)
    return {"1": ((1 - d) * yes, (1 - d) * no), "0": ((1 - d) * no, (1 - d) * yes), "!": (d, mpf(0)), "?": (mpf(0), d)}


Strategy = Callable[[str], Approximate]
Rule = Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bool]


def transcripts(
    enforced: Filter, strategy: Strategy, rounds: int, rule: Rule = fits
) -> tuple[Distribution, Distribution]:
    """The distributions of whole transcripts on two neighbours, when the filter stops the strategy."""
    live = [("", (0,) * len(enforced.cap), mpf(1), mpf(1))]
    for _ in range(rounds):
        following = []
        for history, spent, first, second in live:
            wanted = strategy(history)
            cost = enforced.femto_cost(wanted)
            if not rule(spent, cost, enforced.cap):
                following.append((history + ".", spent, first, second))
                continue
            for letter, (p, q) in one_round(wanted.epsilon, wanted.delta).items():
                if first * p or second * q:
                    following.append((history + letter, add(spent, cost), first * p, second * q))
        live = following
    return [first for _, _, first, _ in live], [second for _, _, _, second in live]


def greedy(seed: int, with_delta: bool) -> Strategy:
    """Spends more where the answers so far look telling, and a different amount on every history."""

    def choose(history: str) -> Approximate:
        rng = random.Random(f"{seed}{history}")
        leaning = abs(history.count("1") - history.count("0"))
        epsilon = Fraction(rng.choice([1, 2, 3, 5, 8]), 10) * (1 + leaning)
        return Approximate(epsilon, Fraction(rng.choice([0, 1, 3]), 100) if with_delta else 0)

    return choose


def kept(enforced: Filter, first: Distribution, second: Distribution) -> bool:
    """Whether two distributions satisfy the filter's guarantee."""
    match enforced:
        case PureFilter():
            return hockey(first, second, enforced.epsilon) <= real(enforced.delta) + ROUNDING
        case ZCDPFilter(delta=delta) if delta == 0:
            orders = [Fraction(101, 100), Fraction(2), Fraction(5), Fraction(20)]
            return all(renyi(first, second, a) <= real(a * enforced.rho) + ROUNDING for a in orders)
        case RenyiFilter(delta=delta) if delta == 0:
            return all(renyi(first, second, a) <= real(epsilon) + ROUNDING for a, epsilon in enforced.curve)
        case _:
            points = [Fraction(n, 4) for n in range(1, 20)]
            return all(hockey(first, second, e) <= allowed_delta(enforced.guarantee, e) + ROUNDING for e in points)


@cache
def allowed_delta(loss: Loss, epsilon: Fraction) -> mpf:
    """The delta that a guarantee allows, worked out once."""
    return real(delta_at(loss, epsilon))


FILTERS: list[Filter] = [
    PureFilter(Fraction(1)),
    PureFilter(Fraction(2), Fraction(4, 100)),
    ZCDPFilter(Fraction(1, 2)),
    ZCDPFilter(Fraction(1), Fraction(5, 100)),
    RenyiFilter(((Fraction(3), Fraction(3, 2)),)),
    RenyiFilter(((Fraction(2), Fraction(1)), (Fraction(8), Fraction(3))), Fraction(5, 100)),
]


@pytest.mark.parametrize("enforced", FILTERS, ids=lambda enforced: f"{enforced.kind}-{enforced.delta}")
def test_a_filter_holds_against_adaptive_strategies(enforced: Filter, tier: object) -> None:
    for seed in range(tier.pick(quick=6, test=40, deep=200)):  # type: ignore[attr-defined]
        first, second = transcripts(enforced, greedy(seed, with_delta=enforced.delta > 0), rounds=5)
        assert kept(enforced, first, second) and kept(enforced, second, first)
        assert abs(sum(first) - 1) < NEAR


def test_the_model_catches_a_filter_that_lets_the_last_charge_through() -> None:
    """A named bug: checking the balance before, not after, the charge."""
    broken = []
    for enforced in FILTERS:
        held = True
        for seed in range(6):
            strategy = greedy(seed, with_delta=enforced.delta > 0)
            distributions = transcripts(
                enforced, strategy, 5, rule=lambda spent, _, cap: all(map(int.__le__, spent, cap))
            )
            held = held and kept(enforced, *distributions)
        broken.append(not held)
    assert all(broken)


def test_the_model_catches_a_filter_that_charges_half() -> None:
    """A named bug: rho = epsilon^2 / 8 for a mechanism that is only pure."""

    class Cheap(ZCDPFilter):
        def femto_cost(self, loss: Loss) -> tuple[int, ...]:
            return tuple(cost // 4 for cost in super().femto_cost(loss))

    found = [
        not kept(Cheap(Fraction(1, 2)), *transcripts(Cheap(Fraction(1, 2)), greedy(s, False), 5)) for s in range(6)
    ]
    assert any(found)


@given(st.lists(st.tuples(small, tiny), min_size=1, max_size=30), st.sampled_from(FILTERS))
def test_what_was_let_through_never_exceeds_the_declared_cap(
    wanted: list[tuple[Fraction, Fraction]], enforced: Filter
) -> None:
    spent, passed = (0,) * len(enforced.cap), []
    for epsilon, delta in wanted:
        loss = Approximate(epsilon, delta if enforced.delta else 0)
        if fits(spent, enforced.femto_cost(loss), enforced.cap):
            spent = add(spent, enforced.femto_cost(loss))
            passed.append(loss)
    total = compose(passed)
    assert isinstance(total, Pure | Approximate)
    assert sum((loss.delta for loss in passed), Fraction(0)) <= enforced.delta
    if isinstance(enforced, PureFilter):
        assert total.epsilon <= enforced.epsilon
