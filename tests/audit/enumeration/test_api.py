from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from dither.audit.enumeration import api, sampler_models, symbolic
from dither.audit.enumeration.api import ExactResult, exact
from dither.audit.enumeration.paths import UNIT, ExactDistribution, Tape
from dither.audit.enumeration.sampler_models import exact_distribution, install_sampler_models, sampler_distribution
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Pure, Renyi
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Geometric, NoisyMax, TopK
from dither.privacy.noise import FULL, bernoulli_exp, discrete_laplace, lattice, uniform_below

F = Fraction
Undecodable = UnicodeDecodeError


# ---- distributions of Dither's samplers, at full width and as they run in production -------------------------------


def test_discrete_laplace_at_full_width() -> None:
    found = exact_distribution(lambda bits: int(discrete_laplace(F(1), 1, bits)[0]), 1e-15)
    assert found.residual <= 1e-15
    for k in (0, 1, -1, 7, -30):
        low, high = found.interval(k)
        assert low <= math.tanh(0.5) * math.exp(-abs(k)) * (1 + 1e-12) and high >= math.tanh(0.5) * math.exp(
            -abs(k)
        ) * (1 - 1e-12)


@pytest.mark.tier("test")
def test_a_wider_scale_at_full_width() -> None:
    found = exact_distribution(lambda bits: int(discrete_laplace(F(20), 1, bits)[0]), 1e-15)
    worst = max(
        abs(float(F(mass, UNIT)) / (math.tanh(1 / 40) * math.exp(-abs(k) / 20)) - 1) for k, mass in found.masses.items()
    )
    assert found.residual <= 1e-15 and worst < 1e-4  # the tail's own masses are near what is left


def test_masses_are_never_too_large() -> None:
    for run, p in (
        (lambda bits: int(bernoulli_exp(F(1), 1, bits)[0]), math.exp(-1)),
        (lambda bits: int(uniform_below(3, 1, bits)[0]), 1 / 3),
    ):
        low, high = exact_distribution(run, 1e-12).interval(1)
        assert low <= F(p) + F(1, 10**15) and high >= F(p) - F(1, 10**15) and high - low <= F(1, 10**12)


def test_comparisons_split_exactly() -> None:
    def run(bits: Tape) -> tuple[bool, ...]:
        a, b, c, d = (bits.below(8) for _ in range(4))
        return a < 2, b <= 2, c > 2, d >= 2

    found = exact_distribution(run, 0)
    shares = [sum(mass for outcome, mass in found.masses.items() if outcome[place]) for place in range(4)]  # type: ignore[index]
    assert [F(share, UNIT) for share in shares] == [F(1, 4), F(3, 8), F(5, 8), F(3, 4)] and found.undecided == 0
    equal = exact_distribution(
        lambda bits: (bits.below(8) == 3, bits.below(8) != 3, bool(bits.below(8)), int(bits.below(3))), 1e-9
    )
    assert F(sum(mass for outcome, mass in equal.masses.items() if outcome[0]), UNIT) == pytest.approx(1 / 8)  # type: ignore[index]


@pytest.mark.tier("test")
def test_rejected_attempts_are_summed() -> None:
    """A table of few cells, where places are accepted or rejected; production has such tables from scale 64 on."""
    sampler = lattice.Sampler(lattice.LatticeWeights(1, F(5)), replace(FULL, cells=2))
    assert sampler.k > 0
    found = sampler_distribution(sampler)
    worst = max(
        abs(float(F(found.masses[k], UNIT)) / (math.tanh(1 / 10) * math.exp(-abs(k) / 5)) - 1) for k in range(-60, 61)
    )
    assert found.residual < 1e-15 and worst < 1e-9


def test_undecided_mass_counts_against_the_claim() -> None:
    half = ExactDistribution({0: UNIT // 2}, 1)
    found = ExactResult(0, 1, half, half, "made up")
    assert found.delta_upper(1) == F(1, 2) and found.delta_lower(1) == 0 and found.epsilon_lower() == 0
    assert found.slack(0) == 1 and not found.refutes(Pure(0))


def test_a_pair_stands_for_its_family_only_where_that_is_proved() -> None:
    moved = exact(DiscreteLaplace(F(1)), ([7], [8]))
    assert "every pair" in moved.family and moved.distribution_b.masses[(8,)] == moved.distribution_a.masses[(7,)]
    assert exact(Geometric(F(1), -5, 5), ([4], [5]), residual=1e-6).family == "this pair alone"


def test_an_operation_with_too_many_cases_is_refused() -> None:
    with pytest.raises(Unsupported, match="cases"):
        exact(lambda value, bits: (bits.integer(40) % 7 + value) % 7, (0, 1))


def test_renyi_claims_exclude_no_more_than_their_delta() -> None:
    half, whole = ExactDistribution({0: UNIT // 2, 1: UNIT // 2}, 1), ExactDistribution({0: UNIT}, 1)
    found = ExactResult(0, 1, half, whole, "made up")
    assert found.excluded == F(1, 2) and found.rho_upper() == 0
    assert found.certifies(ZCDP(0, F(1, 2))) and not found.certifies(ZCDP(5, F(49, 100)))
    assert found.certifies(Renyi(((2, 0),), F(1, 2))) and not found.certifies(Renyi(((2, 9),), F(1, 10)))
    uneven = ExactResult(0, 1, half, ExactDistribution({0: UNIT // 4, 1: UNIT - UNIT // 4}, 1), "made up")
    second = math.log(0.25 / 0.25 + 0.25 / 0.75)  # sum of p^2 / q
    assert uneven.renyi_upper((2.0,))[0][1] == pytest.approx(second)
    assert uneven.certifies(Renyi(((2, F(second)),))) and not uneven.certifies(Renyi(((2, F(second) - F(1, 1000)),)))


def distribution_of(*p: float) -> ExactDistribution:
    """Return the distribution of as many outputs as there are probabilities."""
    return ExactDistribution(dict(enumerate(int(F(each) * UNIT) for each in p)), 1)


@mpmath.workdps(50)
def least_rho(first: list[float], second: list[float]) -> float:
    """Return the largest divergence over its order, searched over many orders and then around the best one."""
    p, q = ([mpf(each) / mpmath.fsum(distribution) for each in distribution] for distribution in (first, second))

    def at(log_gap: Any) -> Any:
        gap = mpmath.exp(log_gap)
        total = mpmath.fsum(a * (a / b) ** gap for a, b in zip(p, q, strict=True))
        return mpmath.log(total) / gap / (1 + gap), log_gap

    best, width = max(at(mpf(each) / 4) for each in range(-100, 40)), mpf(1) / 4
    while width > 1e-9:
        width /= 2
        best = max(best, at(best[1] + width), at(best[1] - width))
    return float(best[0])


RARE = [math.exp(-20), math.exp(-30)]
DISTRIBUTIONS = {
    "randomized response": ([0.9, 0.1], [0.1, 0.9]),
    "nearly equal": ([0.5001, 0.4999], [0.5, 0.5]),
    "a rare output": ([1 - RARE[0], RARE[0]], [1 - RARE[1], RARE[1]]),
    "two rare outputs": ([1 - RARE[0] - 1e-3, RARE[0], 1e-3], [1 - RARE[1] - 1e-5, RARE[1], 1e-5]),
    "a count": ([0.2, 0.3, 0.5], [0.25, 0.35, 0.4]),
    "a threshold": ([0.99, 0.01], [0.9999, 0.0001]),
}


@pytest.mark.parametrize("work", [api.MAX_TERMS, 60])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_order_loses_more_than_the_certified_rho(name: str, work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: orders between those of the grid, and below its first order, were not checked."""
    monkeypatch.setattr(api, "MAX_TERMS", work)
    monkeypatch.setattr(api, "FEWEST_ORDERS", 30)
    p, q = DISTRIBUTIONS[name]
    found, truth = (
        ExactResult(0, 1, distribution_of(*q), distribution_of(*p), "made up"),
        max(least_rho(p, q), least_rho(q, p)),
    )
    assert (
        found.rho_upper()
        == replace(found, distribution_a=found.distribution_b, distribution_b=found.distribution_a).rho_upper()
    )
    if work == 60:
        assert truth <= found.rho_upper() <= 1.5 * truth
        return
    assert truth - 1e-12 <= found.rho_upper() <= truth + 1e-7
    assert found.certifies(ZCDP(F(truth))) and not found.certifies(ZCDP(F(truth) * F(99, 100)), tolerance=0)


def test_the_certified_rho_of_a_gaussian_is_its_own() -> None:
    found = exact(DiscreteGaussian(F(4)), ([0], [2]), residual=1e-18)
    assert 0.5 - 1e-12 <= found.rho_upper() <= 0.5 + 1e-7
    assert found.certifies(ZCDP("1/2")) and not found.certifies(ZCDP("0.499"))


def test_equal_and_disjoint_distributions_have_rhos_too() -> None:
    assert ExactResult(0, 1, distribution_of(0.25, 0.75), distribution_of(0.25, 0.75), "made up").rho_upper() == 0
    apart = ExactResult(0, 1, distribution_of(0.5, 0.5), ExactDistribution({7: UNIT}, 1), "made up")
    assert apart.rho_upper() == math.inf and apart.renyi_upper((2.0,)) == [(2.0, math.inf)]
    assert not apart.certifies(ZCDP(100, 1))


def test_code_that_reads_other_randomness_is_refused() -> None:
    def two_sources(value: int, bits: Tape) -> int:
        return value + (1 if bits.random() < random.random() else 0)

    with pytest.raises(Unsupported, match="not from `bits`"):
        exact(two_sources, (0, 1), most_runs=500)


def test_production_code_is_restored() -> None:
    before = [getattr(home, name) for home, name, _ in sampler_models.SAMPLER_MODELS]
    with pytest.raises(ZeroDivisionError), install_sampler_models():
        _ = 1 / 0
    assert [getattr(home, name) for home, name, _ in sampler_models.SAMPLER_MODELS] == before
    with install_sampler_models():
        assert len(discrete_laplace(F(1), 5000, SystemBits())) == 5000
        assert NoisyMax(F(1)).release(np.array([0, 5000]), SystemBits()).tolist() == [1]
        assert TopK(1, F(1)).release(np.array([0, 5000]), SystemBits()).tolist() == [1]


WORDS: dict[str, Callable[[Any], Any]] = {
    "halves": lambda words: words * 0.5,
    "short floats": lambda words: words * np.float32(0.1),
    "a sum with floats": lambda words: words + np.array([0.5]),
    "wraps at the top": lambda words: words + 65534,
    "wraps at the bottom": lambda words: words - 1,
    "is compared after it wrapped": lambda words: words + 65534 < 7,
    "does not fit": lambda words: words + 65536,
    "becomes wider": lambda words: words + np.int64(-3),
    "signed and unsigned": lambda words: words.astype(np.uint64) + words.astype(np.int64),
    "shifts": lambda words: (words << 13, words >> 1),
    "shifts out": lambda words: words << 15,
    "shifts far": lambda words: words.astype(np.uint64) << np.uint64(62),
    "negative": np.negative,
    "distances": lambda words: np.abs(words.astype(np.int64) - 2),
    "logarithms": lambda words: np.log(words + 1),
    "long logarithms": lambda words: np.log(words.astype(np.uint32) + 1) * 3.0,
    "logarithm of zero": np.log,
    "floors of integers": np.floor,
    "floors of floats": lambda words: np.floor(words * 0.4),
    "truncated": lambda words: (words * 0.7 - 1.5).astype(np.int64),
    "compared after it was truncated": lambda words: (words * 0.7 - 1.5).astype(np.int64) == 1,
    "truncated infinity": lambda words: np.log(words.astype(np.uint64)).astype(np.int64),
    "infinity truncated": lambda words: ((words * math.inf).astype(np.int16), (words + math.nan).astype(np.int16)),
    "narrower": lambda words: (words + 126).astype(np.int8),
    "quotients": lambda words: np.divide(words, 3),
    "quotients of large numbers": lambda words: np.divide(words.astype(np.uint64) + (2**53 + 1), 7),
    "quotients by zero": lambda words: (np.divide(words, 0.0), np.floor_divide(words, 0)),
    "divisors": lambda words: (np.divide(1.0, words), np.floor_divide(7, words)),
    "compared with floats": lambda words: words.astype(np.uint64) + (2**53 - 1) > 2.0**53,
    "compared with short floats": lambda words: words + 65000 == np.float32(65001),
    "bits": lambda words: (words & 2, words ^ 3, words % 3),
    "equal": lambda words: (words == 2, words != 2, words.astype(bool)),
    "listed": lambda words: (words * 0.5).tolist(),
}


@pytest.mark.parametrize("what", WORDS)
def test_lazy_words_behave_as_numpy_arrays(what: str) -> None:
    """Regression: halves of words were truncated to integers, which hid a leak, and integers did not wrap around."""
    late = exact_distribution(lambda bits: WORDS[what](bits.words(1, 3)), 0)
    soon = exact_distribution(lambda bits: WORDS[what](np.array([int(bits.below(8))], np.uint16)), 0)
    assert late.masses == soon.masses and not late.undecided


LATE: dict[str, Callable[[Any], Any]] = {
    "shown": lambda number: (str(number), f"{number}", f"{number:3d}", repr(number)),
    "added to an array": lambda number: number + np.array([100, 2]),
    "an array and it": lambda number: np.array([100, 2]) - number,
    "compared with an array": lambda number: (number < np.array([1, 2]), np.array([1, 2]) < number),
    "logarithms of numbers below zero": lambda number: bool(np.log(number - 5.0) < 0),
    "equal to a logarithm": lambda number: (np.log(number - 5.0) == 0, bool(np.log(number - 5.0))),
    "not a number": lambda number: (number == math.nan, number != math.nan, number < math.nan),
    "beyond numbers": lambda number: (number + math.inf, number * 1e308 * 10 == math.inf),
    "whole numbers of infinities": lambda number: int(np.log(number)),
    "copied": lambda number: (deepcopy(number) < 1, copy(number) < 2),
    "in a dictionary": lambda number: asdict(Held(number)),
}


@pytest.mark.parametrize("what", LATE)
def test_lazy_numbers_give_the_outcomes_of_decided_ones(what: str) -> None:
    """Regression: errors of the comparison itself counted as outcomes of the code, and NaN was equal to everything."""
    late = exact_distribution(lambda bits: LATE[what](bits.below(8)), 0)
    soon = exact_distribution(lambda bits: LATE[what](int(bits.below(8))), 0)
    assert late.masses == soon.masses and not late.undecided


def test_words_are_copied_and_their_source_is_not() -> None:
    """Regression: copies were decided on a tape of their own, so that their most probable outcome had probability 1."""
    assert len(exact_distribution(lambda bits: deepcopy(bits.words(1, 2)) + 1, 0).masses) == 4
    for copied in (copy, deepcopy):
        with pytest.raises(Unsupported, match="copies its source"):
            exact(lambda value, bits, copied=copied: copied(bits).below(2) + value, (0, 1))


def test_words_are_shown_as_arrays() -> None:
    found = exact_distribution(lambda bits: (str(bits.words(1, 1)), repr(bits.words(1, 1))), 0)
    assert ("[1]", "array([0], dtype=uint16)") in found.masses and len(found.masses) == 4


FAILING: dict[str, Callable[[Any, Tape], Any]] = {
    "floors of infinities": lambda value, bits: math.floor(np.log(bits.below(8))) + value,
    "rounded infinities": lambda value, bits: round(np.log(bits.below(8))) + value,
    "floats of large numbers": lambda value, bits: value if bits.integer(1100) * 0.5 > 3 else 0,
    "with words": lambda value, bits: bits.words(1, 3) + math.floor(np.log(bits.below(8))) + value,
    "quotients by zero": lambda value, bits: value if bits.words(1, 3)[0] / 0.0 > 1 else 0,
}


@pytest.mark.parametrize("what", FAILING)
def test_code_that_fails_for_some_numbers_is_refused(what: str) -> None:
    """Regression: if the code failed for the first or last number, it counted as failing for all, and was certified."""
    with pytest.raises(Unsupported, match="fails for some"):
        exact(FAILING[what], (0, 1))


def test_code_that_catches_every_exception_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the code caught the refusal too, returned the same output on both inputs, and was certified."""
    monkeypatch.setattr(symbolic, "MOST_VALUES", 10)
    nothing = ExactDistribution({}, 1)

    def caught(value: int, bits: Tape, act: Callable[[Tape], Any]) -> int:
        try:
            return value + int(act(bits))
        except Exception:
            return 0

    for act in (lambda bits: bits.integer(5), lambda bits: math.floor(np.log(bits.below(8)))):
        with pytest.raises(Unsupported):
            exact(lambda value, bits, act=act: caught(value, bits, act), (0, 1))
    assert exact_distribution(lambda bits: caught(1, bits, lambda tape: tape.draw(nothing)), 0, 5).undecided == UNIT


# ---- bugs that enumeration detects ---------------------------------------------------------------------------------


def signed_geometric(bits: Any, reject_negative_zero: bool) -> int:
    """Draw discrete Laplace noise of scale 1 from a sign and a geometric magnitude."""
    while True:
        magnitude = 0
        while bernoulli_exp(F(1), 1, bits)[0]:
            magnitude += 1
        negative = bits.integer(1) == 1
        if negative and magnitude == 0 and reject_negative_zero:
            continue
        return -magnitude if negative else magnitude


@pytest.mark.tier("test")
def test_negative_zero_costs_exactly_log_two_more(tier: Any) -> None:
    left = tier.pick(quick=1e-7, test=1e-15, deep=1e-15)
    right = exact(lambda value, bits: value + signed_geometric(bits, True), (0, 1), residual=left)
    wrong = exact(lambda value, bits: value + signed_geometric(bits, False), (0, 1), residual=left)
    assert right.certifies(Pure(1)) and not right.refutes(Pure(1))
    assert wrong.refutes(Pure(1)) and wrong.epsilon_lower() == pytest.approx(1 + math.log(2), abs=10 * left + 1e-13)
    assert wrong.epsilon_upper() == pytest.approx(1 + math.log(2), abs=10 * left + 1e-10)
    assert wrong.worst()[0] in (0, 1)


class Named(NamedTuple):
    first: Any


@dataclass(frozen=True)
class Held:
    first: Any


@dataclass(frozen=True)
class HeldToo:
    first: Any


Numbered = IntEnum("Numbered", ["ONE"])
ALIKE: dict[str, list[Any]] = {
    "numbers": [1, 1.0, True, 1 + 0j, F(1), Decimal(1), Numbered.ONE, "1", b"1"],
    "zeros": [0, 0.0, -0.0, False, None, float("nan"), "nan", ("float", "nan")],
    "halves": [0.5, F(1, 2), Decimal("0.5"), 0.5 + 0j],
    "rows": [(1,), [1], np.array([1]), np.array([[1]]), Named(1), {1}, frozenset({1}), 1, (True,), [1.0], Named(True)],
    "tables": [{1: 1}, {1: True}, {1.0: 1}, ("dict", (1, 1)), Counter({1: 1}), Held(1), Held(1.0), HeldToo(1), [1, 1]],
    "equal numbers": [Decimal("1"), Decimal("1.0"), np.longdouble(0.0), np.longdouble(-0.0)],
    "equal ranges": [range(0, 3, 2), range(0, 4, 2)],
    "shapes": [np.zeros((0, 2)), np.zeros((0, 3)), np.zeros(0), np.zeros((2, 0)), [], ()],
    "numpy's own": [np.array([1]), np.array([1], "M8[ns]"), np.array([1], "m8[ns]"), np.datetime64(1, "ns"), 1],
    "fields": [np.array([(1,)], [("a", "i4")]), np.array([(1,)], [("b", "i4")]), np.array([1])],
    "errors": [ValueError, ZeroDivisionError, "raises ValueError", Undecodable, "starts over"],
}


def shown(outcome: Any) -> Any:
    """Return an outcome, or raise it if it is an error."""
    if isinstance(outcome, type):
        raise outcome("x") if outcome is not Undecodable else outcome("ascii", b"", 0, 1, "x")
    return outcome


@pytest.mark.tier("test")
@pytest.mark.parametrize("alike", ALIKE)
def test_outputs_that_an_analyst_can_distinguish_are_different(alike: str) -> None:
    """Regression: 1, 1.0 and True counted as one outcome, so that code whose type revealed its input was certified."""
    for place, first in enumerate(ALIKE[alike]):
        for other, second in enumerate(ALIKE[alike]):
            found = exact(lambda value, bits, one=first, two=second: shown(two if value else one), (0, 1))
            same = place == other
            assert found.certifies(Pure(0)) == same and found.refutes(Pure(9)) != same, (first, second)
            assert found.epsilon_lower() == (0 if same else math.inf)


def test_outputs_that_differ_in_numpy_type_only_are_equal() -> None:
    """Random numbers are Python's here and numpy's in production; a difference of that kind refutes nothing."""
    numbers = ((1, np.int64(1), np.uint8(1), np.array(1)), (1.5, np.float64(1.5), np.float32(1.5)), (True, np.True_))
    for one, *others in numbers:
        for each in others:
            assert exact(lambda value, bits, a=one, b=each: b if value else a, (0, 1)).certifies(Pure(0))
            assert exact(lambda value, bits, a=one, b=each: [b if value else a], (0, 1)).certifies(Pure(0))


def test_outputs_are_shown_and_looked_up_as_the_code_returns_them() -> None:
    found = exact(lambda value, bits: [True, 1.0, 1, (1, 0.5), [2, {1: np.array([3.0])}]][int(bits.below(5))], (0, 1))
    assert sorted(map(repr, found.distribution_a.masses)) == ["(1, 0.5)", "1", "1.0", "True", "[2, {1: array([3.])}]"]
    for outcome in (True, 1.0, 1, np.int64(1), (1, 0.5), [2, {1: np.array([3.0])}]):
        assert found.distribution_a.interval(outcome)[0] == pytest.approx(1 / 5)
    for text in ("nan", "inf", "-0.0", "0.25"):
        assert exact(lambda value, bits, text=text: float(text), (0, 1)).distribution_a.interval(float(text)) == (1, 1)
    assert found.distribution_a.interval(1 + 0j) == (0, F(found.distribution_a.undecided, UNIT))


def test_zeros_of_a_random_number_keep_their_signs() -> None:
    """Regression: a lazy number took the sign of its first zero for all of its zeros."""
    found = exact_distribution(lambda bits: (bits.below(4) - 1) * 0.0, 0)
    assert [found.interval(each)[0] for each in (-0.0, 0.0, 0)] == [F(1, 4), F(3, 4), 0]


def test_an_abandoned_tie_is_undecided() -> None:
    """Regression: the abandoned tie counted as an outcome, an error, and so as decided."""
    none = ExactDistribution({}, 1)
    found = exact_distribution(lambda bits: int(bits.draw(none)) if bits.integer(1) == 1 else 0, 0)
    assert found.masses == {0: UNIT // 2} and found.undecided == UNIT // 2


def test_clamped_noise_is_found_though_no_sample_would_show_it() -> None:
    def clamped(value: int, bits: Tape) -> int:
        noise = int(discrete_laplace(F(1), 1, bits)[0])
        return value + max(-20, min(20, noise))

    found = exact(clamped, (0, 1), residual=1e-24)
    assert found.refutes(Pure(1)) and found.epsilon_lower() >= 30
    outcome, on_a, on_b = found.worst()
    assert outcome in (-20, 21) and min(on_a[0], on_b[0]) == 0
    assert found.delta_lower(1) > F(1, 10**10)  # about e^-20: no number of runs that anyone makes


# ---- code of other libraries ---------------------------------------------------------------------------------------


class DiffprivlibGeometric:
    """The arithmetic of diffprivlib 0.6.6's Geometric, for machines without it (findings.md has the library's own)."""

    def __init__(self, epsilon: float, rng: Any) -> None:
        self._scale, self._rng = -epsilon, rng

    def randomise(self, value: int) -> int:
        unif_rv = self._rng.random() - 0.5
        unif_rv *= 1 + np.exp(self._scale)
        sgn = -1 if unif_rv < 0 else 1
        return int(np.round(value + sgn * np.floor(np.log(sgn * unif_rv) / self._scale)))


def test_a_float_geometric_through_its_random_hook() -> None:
    found: ExactResult = exact(lambda value, bits: DiffprivlibGeometric(1.0, bits).randomise(value), (0, 1), residual=0)
    assert found.residual == 0  # 2^53 floats, all of them
    assert sum(found.distribution_a.masses.values()) == UNIT
    assert found.refutes(Pure(1)) and not found.certifies(Pure(1), tolerance=0)
    assert 0 < found.delta_lower(1) < F(1, 10**13)
    assert set(found.distribution_a.masses) - set(found.distribution_b.masses)  # outputs on one side only


# ---- one verdict ---------------------------------------------------------------------------------------------------


def response(value: int, bits: Any, choices: int = 4, epsilon: float = 1.0) -> int:
    """Return the input with odds e^epsilon against each other choice; the threshold is rounded to a float."""
    if bits.random() < math.exp(epsilon) / (math.exp(epsilon) + choices - 1):
        return value
    other = int(bits.below(choices - 1))
    return other + (other >= value)


@pytest.mark.parametrize("choices", [2, 3, 4, 10])
def test_a_correct_randomised_response_is_certified_and_not_refuted(choices: int) -> None:
    """Regression: its float threshold is off by a delta of 2e-18, and it was certified and refuted at once."""
    found = exact(lambda value, bits: response(value, bits, choices), (0, 1))
    assert found.delta_lower(1) < F(1, 10**15)
    assert found.verdict(Pure(1)) == "certified" and found.certifies(Pure(1)) and not found.refutes(Pure(1))
    assert found.verdict(Pure(F(99, 100))) == "refuted" and not found.certifies(Pure(F(99, 100)))


def test_a_delta_is_compared_with_a_tolerance_too() -> None:
    """A float threshold that tells the input with probability 0.1: 2e-17 away from what is claimed."""
    found = exact(lambda value, bits: value if bits.random() < 0.1 else -1, (0, 1))
    assert found.delta_lower(0) != F(1, 10)
    assert found.verdict(Approximate(0, F(1, 10))) == "certified"
    assert found.verdict(Approximate(0, F(1, 10) - F(1, 10**18))) == "certified"
    assert found.verdict(Approximate(0, F(1, 10) - F(1, 10**5))) == "refuted"


def test_a_verdict_that_is_neither() -> None:
    half = ExactDistribution({0: UNIT // 2}, 1)
    assert ExactResult(0, 1, half, half, "made up").verdict(Pure(5)) == "undecided"
    assert ExactResult(0, 1, half, half, "made up").verdict(ZCDP(5)) == "undecided"


def test_claims_of_every_kind_can_be_refuted() -> None:
    found = exact(DiscreteGaussian(F(4)), ([0], [1]))
    assert found.verdict(ZCDP(F(1, 8))) == "certified" and found.verdict(ZCDP(F(124, 1000))) == "refuted"
    assert (
        found.verdict(Renyi(((2, F(1, 4)),))) == "certified" and found.verdict(Renyi(((2, F(249, 1000)),))) == "refuted"
    )
    one_sided = exact(lambda value, bits: bits.below(4) + value, (0, 1), residual=0)
    assert one_sided.verdict(ZCDP(100)) == "refuted" and one_sided.verdict(ZCDP(100, F(1, 8))) == "undecided"


def test_a_decided_distribution_is_never_undecided() -> None:
    rng = random.Random(3)
    for _ in range(200):
        sides = []
        for _ in range(2):
            first, second = sorted(rng.randrange(UNIT) for _ in range(2))
            sides.append(ExactDistribution({0: first, 1: second - first, 2: UNIT - second}, 1))
        found = ExactResult(0, 1, *sides, "made up")
        least = found.epsilon_upper()
        for epsilon in (1.0, least, least * 0.999):
            expected = "certified" if least <= epsilon + 1e-6 else "refuted"
            assert found.verdict(Pure(F(epsilon))) == expected
            assert found.certifies(Pure(F(epsilon))) is not found.refutes(Pure(F(epsilon)))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda value, bits: value + bits.laplace(1.0), "bits has no 'laplace'; it has: "),
        (lambda value, bits: value + bits.random(5), r"bits.random\(\) takes 1 positional argument.*; it has: "),
    ],
    ids=["missing", "other arguments"],
)
def test_code_that_calls_a_missing_method_of_bits_is_told_which_there_are(code: Any, message: str) -> None:
    with pytest.raises(
        InvalidParameter, match=f"{message}{re.escape('random(), below(n), integer(bits), words(size, bits)')}$"
    ):
        exact(code, (0, 1))


def test_every_method_of_bits_that_is_named_can_be_called() -> None:
    def code(value: int, bits: Any) -> Any:
        return value, bits.random() < 0.5, int(bits.below(3)), int(bits.integer(2)), bits.words(2, 1).tolist()

    result = exact(code, (0, 0))
    assert result.verdict(Pure(0)) == "certified"
    assert not hasattr(Tape(None, UNIT, lambda mass, path: None), "laplace")
