from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from dither.errors import InvalidParameter
from dither.privacy import noise
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.noise import (
    FULL,
    Widths,
    bernoulli,
    bernoulli_exp,
    bernoulli_exp_each,
    discrete_gaussian,
    discrete_laplace,
    exact,
    exp_enclosure,
    exponential,
    geometric,
    lattice,
    noisy_max,
    pools,
    race,
    staircase,
    uniform_below,
)
from dither.privacy.noise.lattice import LatticeWeights, Sampler, thresholds
from dither.privacy.noise.pools import POOL, POOLS, SampleBuffer, SampleBuffers
from dither.privacy.noise.race import extend
from privacy import laws
from privacy.doubles import CountingBits, RecordedBits, ScriptedBits, SerialBits, enumerate_law

F = Fraction
bits = SystemBits()
VECTORS = Path(__file__).parent / "noise_vectors.json"
SMALL = Widths(guide=4, word=7, accept=2, fine=5, more=3, cells=2, ticks=3, padded=False)
SMALLEST = Widths(guide=3, word=4, accept=1, fine=2, more=1, cells=1, ticks=2, padded=False)
TICKS = replace(SMALLEST, cells=2, ticks=1)  # exponential variables without rejection, one digit at once
Probability = Callable[[Any], mp.mpf]


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [0, 1, 5, 16, 64, 200, 1000])
@pytest.mark.parametrize("x", [F(0), F(1, 10**9), F(1, 3), F(1), F(31, 32), F(7, 2), F(100), F(5001, 7), F(10**6)])
def test_exp_enclosure_holds_and_is_tight(x: Fraction, precision: int) -> None:
    low, high = exp_enclosure(x, precision)
    with mp.workdps(400):
        assert low <= mp.exp(-laws.real(x)) * 2**precision <= high
    assert high - low <= 2


@pytest.mark.parametrize("precision", [8, 64, 128])
@pytest.mark.parametrize(
    "law",
    [
        LatticeWeights(1, F(1, 2)),
        LatticeWeights(1, F(7)),
        LatticeWeights(1, F(1000, 3)),
        LatticeWeights(2, F(1, 10)),
        LatticeWeights(2, F(30)),
        LatticeWeights(2, F(10**5)),
    ],
)
def test_thresholds_enclose_the_cumulative_law_of_the_cells(law: LatticeWeights, precision: int) -> None:
    k = Sampler(law, FULL).k
    lows, slack = thresholds(law, k, precision)
    weights = cell_weights(law, k, len(lows) + len(lows) // 2 + 100)
    total, partial_sum = mp.fsum(weights), mp.mpf(0)
    assert slack <= 3
    for low, weight in zip(lows, weights, strict=False):
        partial_sum += weight
        assert low <= partial_sum / total * 2**precision <= low + slack


def cell_weights(law: LatticeWeights, k: int, count: int) -> list[mp.mpf]:
    firsts = ((cell >> 1 << k) + (cell & 1) for cell in range(count))
    return [mp.exp(-laws.real(law.exponent(first))) for first in firsts]


def test_the_polynomial_is_within_its_margin() -> None:
    x = np.append(np.random.default_rng(5).random(2000) / 2, [0, 0.5])
    worst = max(
        abs(y - mp.exp(-mp.mpf(v))) for v, y in zip(x.tolist(), lattice.exp_polynomial(x).tolist(), strict=True)
    )
    assert worst < 2**-44


# ---- every continuation of the bits ----------------------------------------------------------------------------------


def assert_law(run: Callable[[ScriptedBits], Any], p: Probability, undecided: float) -> None:
    """mass <= p <= mass + undecided for every outcome, and no mass is missing."""
    law, left = enumerate_law(run, undecided, most_runs=3_000_000)
    assert left <= undecided
    for outcome, mass in law.items():
        assert laws.real(mass) <= p(outcome) <= laws.real(mass + left), outcome


def attempt_once(sampler: Sampler) -> Callable[[ScriptedBits], int | None]:
    def run(bits: Bits) -> int | None:
        values = np.zeros(1, np.int64)
        return None if len(sampler.attempt(values, bits)) else int(values[0])

    return run


def attempt_law(sampler: Sampler) -> Probability:
    """A candidate x is kept with probability exp(-g(x)) / (2^k total); None stands for a rejection."""
    total = mp.fsum(cell_weights(sampler.law, sampler.k, 2000)) * 2**sampler.k
    weight = [mp.exp(-laws.real(sampler.law.exponent(x))) for x in range(3000)]
    kept = (2 * mp.fsum(weight) - 1) / total
    return lambda x: 1 - kept if x is None else weight[abs(x)] / total


def draw_cell(sampler: Sampler) -> Callable[[ScriptedBits], int]:
    """The cell alone: from the guide where it decides, else by search and refinement."""

    def run(bits: Bits) -> int:
        prefix = bits.words(1, sampler.widths.guide)
        entry = int(sampler._guide[prefix[0]])
        slow = entry == lattice.SLOW if sampler.k == 0 else entry & 0xFFFF == 0
        value = entry if sampler.k == 0 else entry >> 16
        return int(sampler._cells(prefix, bits)[0]) if slow else (2 * value if value >= 0 else 2 * ~value + 1)

    return run


def keep(sampler: Sampler, cell: int, low: int) -> Callable[[ScriptedBits], bool]:
    """The acceptance of one place of one cell."""
    first = (cell >> 1 << sampler.k) + (cell & 1)

    def run(bits: Bits) -> bool:
        look = bits.words(1, sampler.widths.accept)
        if look[0] < sampler._sure_acceptance()[cell]:
            return True
        return bool(sampler._kept(np.array([first]), np.array([low]), look, bits)[0])

    return run


WIDE_CELLS = [
    LatticeWeights(1, F(5)),
    LatticeWeights(1, F(13, 3)),
    LatticeWeights(2, F(30)),
    LatticeWeights(2, F(401, 10)),
]


@pytest.mark.parametrize("widths", [SMALL, SMALLEST], ids=["small", "smallest"])
@pytest.mark.parametrize("scale", [F(1, 1000), F(1, 3), F(1), F(3, 2)])
def test_laplace_by_enumeration(scale: Fraction, widths: Widths) -> None:
    assert_law(lambda bits: int(discrete_laplace(scale, 1, bits, widths)[0]), laws.laplace(scale), 1e-8)


@pytest.mark.parametrize("widths", [SMALL, SMALLEST], ids=["small", "smallest"])
@pytest.mark.parametrize("variance", [F(1, 10**6), F(1, 3), F(1), F(7, 2)])
def test_gaussian_by_enumeration(variance: Fraction, widths: Widths) -> None:
    assert_law(lambda bits: int(discrete_gaussian(variance, 1, bits, widths)[0]), laws.gaussian(variance), 1e-8)


@pytest.mark.parametrize("widths", [SMALLEST, replace(SMALLEST, cells=2, guide=4, word=6)], ids=["one", "two"])
@pytest.mark.parametrize("law", WIDE_CELLS, ids=str)
def test_one_attempt_by_enumeration(law: LatticeWeights, widths: Widths, tier: Any) -> None:
    sampler = Sampler(law, widths)
    assert sampler.k > 0
    assert_law(attempt_once(sampler), attempt_law(sampler), tier.pick(quick=0.1, test=5e-3, deep=5e-4))


@pytest.mark.parametrize("law", WIDE_CELLS, ids=str)
def test_cells_by_enumeration(law: LatticeWeights) -> None:
    for widths in (SMALL, SMALLEST):
        sampler = Sampler(law, widths)
        weights = cell_weights(law, sampler.k, 400)
        total = mp.fsum(weights)
        assert_law(draw_cell(sampler), lambda cell, w=weights, t=total: w[cell] / t, 1e-8)


@pytest.mark.parametrize("widths", [SMALL, replace(SMALL, margin=0.3), replace(SMALL, cells=4, more=1)], ids=str)
@pytest.mark.parametrize("law", [LatticeWeights(1, F(37)), LatticeWeights(2, F(401))], ids=str)
def test_acceptance_by_enumeration(law: LatticeWeights, widths: Widths) -> None:
    """Also where the margin is so wide that nearly every comparison is refined."""
    sampler = Sampler(law, widths)
    for cell in (0, 1, 2, 7):
        for low in (0, 1, (1 << sampler.k) - 1):
            first = (cell >> 1 << sampler.k) + (cell & 1)
            p = mp.exp(laws.real(law.exponent(first) - law.exponent(first + low)))
            assert_law(keep(sampler, cell, low), lambda kept, p=p: p if kept else 1 - p, 1e-8)


@pytest.mark.parametrize("scale", [F(1, 3), F(3, 2)])
def test_geometric_by_enumeration(scale: Fraction) -> None:
    assert_law(lambda bits: int(geometric(scale, 1, bits, SMALL)[0]), laws.geometric(scale), 1e-8)


@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(2), 2, 1), (F(3, 2), 2, 2), (F(5), 1, 1)])
def test_staircase_by_enumeration(epsilon: Fraction, width: int, rise: int, tier: Any) -> None:
    law = laws.staircase(epsilon, width, rise)
    undecided = tier.pick(quick=0.4, test=0.1, deep=0.05)
    assert_law(lambda bits: int(staircase(epsilon, width, rise, 1, bits, SMALLEST)[0]), law, undecided)


@pytest.mark.parametrize("precision", [0, 1, 7, 64, 300])
@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(1), 10, 4), (F(1, 1 << 20), 1 << 20, 1), (F(700), 5, 5)])
def test_the_middle_step_is_enclosed(epsilon: Fraction, width: int, rise: int, precision: int) -> None:
    low, high = noise._middle_enclosure(epsilon, width, rise, precision)
    with mp.workdps(800):
        b = mp.exp(-laws.real(epsilon))
        a = (2 * rise - 1) * (1 - b)
        assert low <= a / (a + 2 * width * b) * 2**precision <= high
    assert high - low <= 2


@pytest.mark.parametrize("p", [F(0), F(1), F(1, 2), F(1, 3), F(127, 128), F(99, 1000)])
def test_bernoulli_by_enumeration(p: Fraction) -> None:
    law = {1: laws.real(p), 0: laws.real(1 - p)}
    assert_law(lambda bits: int(bernoulli(p, 1, bits, SMALL)[0]), law.__getitem__, 1e-9)


@pytest.mark.parametrize("x", [F(0), F(1, 100), F(1), F(7, 3), F(2000)])
def test_bernoulli_exp_by_enumeration(x: Fraction) -> None:
    p = mp.exp(-laws.real(x))
    law = {1: p, 0: 1 - p}
    assert_law(lambda bits: int(bernoulli_exp(x, 1, bits, SMALL)[0]), law.__getitem__, 1e-9)
    assert_law(lambda bits: int(bernoulli_exp_each(x / 3, np.array([3]), bits, TICKS)[0]), law.__getitem__, 2e-2)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_uniform_below_by_enumeration(n: int) -> None:
    assert_law(lambda bits: int(uniform_below(n, 1, bits)[0]), lambda x: mp.mpf(1) / n, 1e-2)


def test_exponential_variables_by_enumeration() -> None:
    for precision in (0, 1):
        law = laws.geometric(F(1 << precision))
        assert_law(lambda bits, p=precision: exponential(p, bits, TICKS), law, 1e-6)
    assert_law(lambda bits: exponential(2, bits, TICKS), laws.geometric(F(4)), 5e-2)


@pytest.mark.parametrize(("precision", "more"), [(0, 1), (1, 2), (2, 3)])
def test_further_digits_by_enumeration(precision: int, more: int) -> None:
    """Given what is known, digit string d has probability proportional to exp(-d / 2^(precision + more))."""
    weights = [mp.exp(-mp.mpf(d) / 2 ** (precision + more)) for d in range(1 << more)]

    def run(bits: Bits) -> int:
        known, have = extend(5, precision, bits, more)
        assert (known >> more, have) == (5, precision + more)
        return known & ((1 << more) - 1)

    assert_law(run, lambda d: weights[d] / mp.fsum(weights), 2e-2)


@pytest.mark.parametrize(("scores", "rate"), [([0, 1], F(1, 2)), ([4, 4], F(1)), ([-3, 5], F(1, 3))])
def test_noisy_max_by_enumeration(scores: list[int], rate: Fraction, tier: Any) -> None:
    law = laws.permute_and_flip(scores, rate)
    undecided = tier.pick(quick=0.4, test=0.25, deep=0.15)
    assert_law(lambda bits: noisy_max(np.array(scores), rate, bits, TICKS), law.__getitem__, undecided)


@pytest.mark.parametrize("nudges", [(0, 1, -1), (2, 1, 0), (-1, 0, 5), (3, 7, 8)])
def test_choices_are_decided_by_the_exact_numbers(nudges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponential variables are replaced by given rationals, a few 2^-300 from a tie."""
    scores, rate = np.array([7, 5, 6]), F(1, 3)
    given = [3 - rate * score + F(nudge, 1 << 300) for score, nudge in zip(scores.tolist(), nudges, strict=True)]

    class Digits(int):
        """The first digits of a given number; remembers which."""

    def reveal(known: int, precision: int, bits: Bits, more: int) -> tuple[int, int]:
        where = known.where if isinstance(known, Digits) else [int(e * (1 << 37)) for e in given].index(known)
        digits = Digits(int(given[where] * (1 << precision + more)))
        digits.where = where
        return digits, precision + more

    monkeypatch.setattr(race, "as_words", lambda *_: np.array([int(e * (1 << 37)) for e in given]))
    monkeypatch.setattr(race, "extend", reveal)
    assert noisy_max(scores, rate, bits) == nudges.index(max(nudges))
    counts = np.array([9, 9, 9])
    ties = [given[0] / 9 - F(1, 1 << 310), given[1] / 9 + F(1, 1 << 290), given[2] / 9 - F(1, 1 << 290)]
    assert [int(bernoulli_exp_each(tie, counts, bits)[i]) for i, tie in enumerate(ties)] == [1, 0, 1]


# ---- planted faults: the tests above must see them -------------------------------------------------------------------


class NoRefinement(Sampler):
    """Takes the cell that the table suggests where the word is undecided."""

    def _deep_cell(self, word: int, bits: Bits) -> int:
        return min(int(np.searchsorted(self._lows, np.uint64(word), "right")), len(self._lows) - 1)


class Discards(Sampler):
    """Throws undecided words away and draws others."""

    def _deep_cell(self, word: int, bits: Bits) -> int:
        return int(self._cells(bits.words(1, self.widths.guide), bits)[0])


class OffByOne(Sampler):
    """Compares with <= where < is meant: a place too far into the cell is accepted at once."""

    def _sure_acceptance(self) -> NDArray[np.int64]:
        return super()._sure_acceptance() + 1


class WrongSignAtZero(Sampler):
    """Takes -m for ~m, so that zero is counted from both sides."""

    def attempt(self, values: NDArray[np.int64], bits: Bits) -> NDArray[np.intp]:
        rejected = super().attempt(values, bits)
        values[values < 0] += 1
        return rejected


def shifted_thresholds(law: LatticeWeights, k: int, precision: int) -> tuple[list[int], int]:
    """The third threshold is too high by 2^-18."""
    lows, slack = thresholds(law, k, precision)
    return [low + ((1 << precision) >> 18) * (i == 2) for i, low in enumerate(lows)], slack


@pytest.mark.parametrize("fault", [NoRefinement, Discards, WrongSignAtZero])
def test_enumeration_catches(fault: type[Sampler]) -> None:
    for law in (LatticeWeights(1, F(3, 2)), LatticeWeights(2, F(7, 2))):
        assert_law(attempt_once(Sampler(law, SMALL)), attempt_law(Sampler(law, SMALL)), 0.04)
        sampler = fault(law, SMALL)
        with pytest.raises(AssertionError):
            assert_law(attempt_once(sampler), attempt_law(sampler), 0.04)


@pytest.mark.parametrize("law", WIDE_CELLS, ids=str)
def test_enumeration_catches_an_off_by_one(law: LatticeWeights) -> None:
    sampler = OffByOne(law, SMALL)
    with pytest.raises(AssertionError):
        for cell in range(4):
            last = (1 << sampler.k) - 1
            first = (cell >> 1 << sampler.k) + (cell & 1)
            p = mp.exp(laws.real(law.exponent(first) - law.exponent(first + last)))
            assert_law(keep(sampler, cell, last), lambda kept, p=p: p if kept else 1 - p, 1e-8)


def test_enumeration_catches_a_threshold_wrong_by_two_to_the_minus_18(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "thresholds", shifted_thresholds)
    sampler = Sampler(LatticeWeights(1, F(3, 2)), SMALL)
    with pytest.raises(AssertionError):
        assert_law(attempt_once(sampler), attempt_law(sampler), 1e-7)


def test_enumeration_catches_an_exp_wrong_by_two_to_the_minus_18(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Fraction, precision: int) -> tuple[int, int]:
        low, high = exp_enclosure(x, precision)
        return low + (low >> 18), high + (low >> 18)

    thresholds.cache_clear()
    monkeypatch.setattr(lattice, "exp_enclosure", wrong)
    sampler = Sampler(LatticeWeights(1, F(37)), SMALL)
    p = mp.exp(laws.real(-sampler.law.exponent(7)))
    with pytest.raises(AssertionError):
        assert_law(keep(sampler, 0, 7), lambda kept: p if kept else 1 - p, 1e-7)
    thresholds.cache_clear()


# ---- refinement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [LatticeWeights(1, F(1, 3)), LatticeWeights(1, F(9)), LatticeWeights(2, F(1)), LatticeWeights(2, F(1000))],
    ids=str,
)
def test_a_cell_depends_on_the_uniform_number_and_not_on_how_it_is_read(law: LatticeWeights) -> None:
    readers = [Sampler(law, replace(widths, cells=64, padded=False)) for widths in (FULL, SMALL, SMALLEST)]
    for label in map(str, range(300)):
        assert len({draw_cell(reader)(SerialBits(label)) for reader in readers}) == 1


@pytest.mark.parametrize(
    "law", [LatticeWeights(1, F(10**6)), LatticeWeights(2, F(10**12)), LatticeWeights(2, F(2**79))], ids=str
)
def test_acceptance_depends_on_the_uniform_number_and_not_on_how_it_is_read(law: LatticeWeights) -> None:
    all_widths = (FULL, replace(FULL, margin=0.5), replace(FULL, accept=1, fine=2, more=1))
    readers = [Sampler(law, replace(widths, padded=False)) for widths in all_widths]
    for label in map(str, range(100)):
        low = int(label) * (1 << readers[0].k) // 100
        assert len({keep(reader, 17, low)(SerialBits(label)) for reader in readers}) == 1


def test_acceptance_far_out_does_not_trust_the_polynomial() -> None:
    """With few cells a drop may be 6, where the polynomial is negative; a uniform number near 0 is below exp(-6)."""
    sampler = Sampler(LatticeWeights(2, F(401)), replace(FULL, cells=1, padded=False))
    assert keep(sampler, 20, 15)(ScriptedBits((0,) * 9))
    assert not keep(sampler, 20, 15)(ScriptedBits((1 << 15,) + (0,) * 9))


def test_refinement_is_forced_by_a_wide_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    refined: list[int] = []
    monkeypatch.setattr(lattice, "refine", lambda *given: refined.append(1) or exact.refine(*given))
    for margin, most in ((2.0**-40, 0), (2.0**-6, 5000)):
        Sampler(LatticeWeights(1, F(10**6)), replace(FULL, margin=margin)).draw(5000, bits)
        assert min(most, 20) <= len(refined) <= most  # about 100 are expected; false alarm below 1e-9
    source = CountingBits(bits)
    assert_counts(np.bincount(below_third(source), minlength=2), [2 / 3, 1 / 3])
    assert source.integers > 1000


def below_third(source: Bits) -> NDArray[np.int64]:
    """Bernoulli(1/3) of which a quarter is undecided at first."""
    return bernoulli(F(1, 3), 20_000, source, replace(FULL, word=2, more=1))


def test_draws_do_the_same_slow_work_whatever_they_find() -> None:
    """The bits read for 2^16 candidates do not vary."""
    sampler = Sampler(LatticeWeights(2, F(10**12)), FULL)
    used = set()
    for label in map(str, range(40)):
        source = RecordedBits(label)
        sampler.attempt(np.zeros(1 << 16, np.int64), source)
        used.add(source.used)
    assert len(used) == 1  # a quota of six standard deviations: false alarm below 1e-7 if the bits were fresh


def test_the_far_tail_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def __len__(self) -> int:
            return 1 << 62

        def __getitem__(self, i: int) -> int:
            return 0 if i < 1 << 61 else 1 << 200

    sampler = Sampler(LatticeWeights(1, F(1 << 40)), replace(FULL, padded=False))
    monkeypatch.setattr(lattice, "thresholds", lambda *_: (Endless(), 2))
    cell = sampler._deep_cell((1 << 64) - 1, SystemBits())
    assert 1 << 60 <= cell >> 1 << sampler.k < (1 << 61)


# ---- statistics ------------------------------------------------------------------------------------------------------
# Each statistic raises a false alarm with probability at most 1e-9 (about 150 of them in all: 1.5e-7).

ALARM = 1e-9
SCALES = [F(1, 2), F(1), F(5), F(100), F(10**6), F(10**9), F(1 << 40)]
SAMPLERS = [(1, scale) for scale in SCALES] + [(2, scale**2) for scale in SCALES] + [(2, F(2, 7)), (1, F(200, 3))]


FEWEST_EXPECTED = 400


def grouped(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cells with rare ones put together, and these with the least of the others where they are still rare.

    One draw in a cell of 0.003 expected is no alarm; from 400 on the tails are those of chi-squared, at 1e-9 too.
    """
    common = expected >= FEWEST_EXPECTED
    common[np.argmax(expected)] = True
    seen, wanted = (np.append(each[common], each[~common].sum()) for each in (counts, expected))
    if wanted[-1] < FEWEST_EXPECTED:
        least = int(np.argmin(wanted[:-1]))
        seen[least], wanted[least] = seen[least] + seen[-1], wanted[least] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    return seen, wanted


def chi_squared(values: NDArray[np.int64], law: laws.Cumulative) -> float:
    """How far the statistic is from where it would raise the alarm; negative is an alarm."""
    scale = float(law.parameter) ** (1 / law.power)
    edges = np.unique(np.round(np.linspace(-5, 5, 61) * scale).astype(np.int64))
    expected = np.diff(law(edges), prepend=0, append=1) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    observed, wanted = grouped(counts, expected)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(chi2.isf(ALARM, len(wanted)) - statistic)


def spread(values: NDArray[np.int64], law: laws.Cumulative) -> NDArray[np.float64]:
    """Uniform numbers, sorted: each value is spread over the step of its distribution function."""
    below, upto = law(values - 1), law(values)
    uniform = below + (upto - below) * np.random.default_rng().random(len(values))
    uniform.sort()
    return np.clip(uniform, 1e-300, 1 - 2.0**-53)


def anderson_darling(uniform: NDArray[np.float64]) -> float:
    """P(A^2 > z) is about sqrt(3 / (pi z)) exp(-z): 5e-10 at 20 (and 1% at 3.878)."""
    n = len(uniform)
    weights = 2 * np.arange(1, n + 1) - 1
    return 20 - float(-n - (weights * (np.log(uniform) + np.log1p(-uniform[::-1]))).sum() / n)


def kolmogorov_smirnov(uniform: NDArray[np.float64]) -> float:
    """Dvoretzky, Kiefer, Wolfowitz, Massart: P(sqrt(n) D > t) <= 2 exp(-2 t^2)."""
    n = len(uniform)
    steps = np.arange(n + 1) / n
    distance = max(float((steps[1:] - uniform).max()), float((uniform - steps[:-1]).max()))
    return float(np.sqrt(np.log(2 / ALARM) / 2) - np.sqrt(n) * distance)


def low_digits(values: NDArray[np.int64], scale: float) -> float:
    """The last four binary digits are uniform to 1e-9 from scale 30 on, and independent from one value to the next."""
    if scale < 100:
        return 1.0
    digits = values & 15
    pairs = np.bincount(digits[:-1:2] * 16 + digits[1::2], minlength=256)
    expected = pairs.sum() / 256
    return float(chi2.isf(ALARM, 255) - ((pairs - expected) ** 2 / expected).sum())


def margins(values: NDArray[np.int64], power: int, parameter: Fraction) -> list[float]:
    law = laws.Cumulative(power, parameter)
    uniform = spread(values, law)
    scale = float(parameter) ** (1 / power)
    return [
        chi_squared(values, law),
        anderson_darling(uniform),
        kolmogorov_smirnov(uniform),
        low_digits(values, scale),
    ]


def sample(power: int, parameter: Fraction, size: int) -> NDArray[np.int64]:
    return (discrete_laplace if power == 1 else discrete_gaussian)(parameter, size, SystemBits())


@pytest.mark.parametrize(("power", "parameter"), SAMPLERS, ids=str)
def test_draws_follow_the_law(power: int, parameter: Fraction, tier: Any) -> None:
    size = tier.pick(quick=100_000, test=1_000_000, deep=10_000_000)
    assert min(margins(sample(power, parameter, size), power, parameter)) > 0


@pytest.mark.parametrize(("power", "parameter"), [(1, F(5)), (2, F(10**12))])
def test_pooled_draws_follow_the_law(power: int, parameter: Fraction) -> None:
    values = np.concatenate([sample(power, parameter, size) for size in (1, 7, 100, 1000) * 90])
    assert min(margins(values, power, parameter)) > 0


@pytest.mark.parametrize("scale", [F(1, 2), F(30), F(10**7)])
def test_geometric_draws_follow_the_law(scale: Fraction) -> None:
    """Given a fair sign (as -x - 1) a geometric variable is not Laplace; its own distribution function is simple."""
    values = geometric(scale, 200_000, SystemBits())
    q = np.exp(-1 / float(scale))
    uniform = -np.expm1(-values / float(scale)) + (1 - q) * q**values * np.random.default_rng().random(len(values))
    uniform.sort()
    uniform = np.clip(uniform, 1e-300, 1 - 2.0**-53)
    assert anderson_darling(uniform) > 0
    assert kolmogorov_smirnov(uniform) > 0


def assert_counts(counts: NDArray[np.int64], probabilities: list[float]) -> None:
    """Chi-squared."""
    seen, wanted = grouped(counts, np.array(probabilities) * counts.sum())
    assert ((seen - wanted) ** 2 / wanted).sum() < chi2.isf(ALARM, max(1, len(seen) - 1))


def test_counts_of_another_law_are_noticed() -> None:
    """A rare cell that is half too full is seen, and a single draw where hardly any is expected is not."""
    assert_counts(np.array([199_999, 1]), [1 - 1e-8, 1e-8])
    with pytest.raises(AssertionError):
        assert_counts(np.array([180_000, 18_500, 1_500]), [0.9, 0.095, 0.005])


@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(1), 10, 4), (F(1, 10), 3, 3), (F(3), 1, 1), (F(2), 1000, 1)])
def test_staircase_draws_follow_the_law(epsilon: Fraction, width: int, rise: int) -> None:
    values = staircase(epsilon, width, rise, 200_000, SystemBits())
    law = laws.staircase(epsilon, width, rise)
    probabilities = np.array([float(law(x)) for x in range(-6 * width, 6 * width + 1)])
    edges = np.arange(-6 * width, 6 * width + 1, max(1, width // 5))
    parts = np.add.reduceat(probabilities[:-1], edges[:-1] + 6 * width)
    inside = values[(values >= edges[0]) & (values < edges[-1])]
    counts = np.histogram(inside, edges)[0]
    assert_counts(np.append(counts, len(values) - len(inside)), [*parts, 1 - parts.sum()])


def test_other_draws_follow_the_law() -> None:
    bits = SystemBits()
    assert_counts(np.bincount(bernoulli(F(1, 3), 100_000, bits), minlength=2), [2 / 3, 1 / 3])
    p = float(mp.exp(-mp.mpf(1) / 7))
    assert_counts(np.bincount(bernoulli_exp(F(1, 7), 100_000, bits), minlength=2), [1 - p, p])
    assert_counts(np.bincount(bernoulli_exp_each(F(1, 70), np.full(100_000, 10), bits), minlength=2), [1 - p, p])
    assert_counts(np.bincount(uniform_below(11, 100_000, bits), minlength=11), [1 / 11] * 11)
    large = uniform_below(3 << 61, 100_000, bits)
    assert_counts(np.bincount(large >> 61, minlength=3), [1 / 3] * 3)


@pytest.mark.parametrize(
    ("scores", "rate"), [([3, 1, 2, 2], F(1, 2)), ([0, 0, 0], F(0)), ([2**62, 2**62 - 3], F(1, 3))]
)
def test_noisy_max_follows_the_law(scores: list[int], rate: Fraction, tier: Any) -> None:
    bits, vector = SystemBits(), np.array(scores)
    draws = [noisy_max(vector, rate, bits) for _ in range(tier.pick(quick=5_000, test=50_000, deep=300_000))]
    law = [float(p) for p in laws.permute_and_flip(scores, rate)]
    assert_counts(np.bincount(draws, minlength=len(scores)), law)


def test_noisy_max_at_the_ends_of_the_range() -> None:
    scores = np.array([-(2**63), 2**63 - 1])
    assert noisy_max(scores, F(1), SystemBits()) == 1
    assert noisy_max(scores[::-1].copy(), F(1 << 40), SystemBits()) == 0


FAULTS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] = {
    "shifted by one": lambda x: x + 1,
    "wrong sign at zero": lambda x: np.where(x < 0, x + 1, x),
    "even only": lambda x: x & ~1,
    "clamped": lambda x: np.clip(x, -8, 8),
    "scale one percent too small": lambda x: np.where(np.random.default_rng().random(len(x)) < 0.05, x * 4 // 5, x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_statistics_catch(fault: str) -> None:
    for power, parameter in ((1, F(5)), (2, F(25))):
        values = FAULTS[fault](sample(power, parameter, 400_000))
        assert min(margins(values, power, parameter)) < 0


# ---- recorded bits ---------------------------------------------------------------------------------------------------

RECORDED: dict[str, Callable[[Bits], NDArray[np.int64]]] = {
    "laplace 1/2": partial(discrete_laplace, F(1, 2), 70_000),
    "laplace 100": partial(discrete_laplace, F(100), 70_000),
    "laplace 2^40": partial(discrete_laplace, F(1 << 40), 70_000),
    "gaussian 2": partial(discrete_gaussian, F(2), 70_000),
    "gaussian 10^12": partial(discrete_gaussian, F(10**12), 70_000),
    "gaussian small widths": lambda bits: discrete_gaussian(F(30), 300, bits, SMALL),
    "geometric 3": partial(geometric, F(3), 1000),
    "staircase": partial(staircase, F(1), 10, 4, 1000),
    "bernoulli 1/3": partial(bernoulli, F(1, 3), 1000),
    "bernoulli exp 1": partial(bernoulli_exp, F(1), 1000),
    "uniform below 1000": partial(uniform_below, 1000, 1000),
    "noisy max": lambda bits: np.array([noisy_max(np.arange(50), F(1, 9), bits) for _ in range(100)]),
    "exponential": lambda bits: np.array([exponential(60, bits) for _ in range(100)]),
}


def record(name: str) -> dict[str, object]:
    values = RECORDED[name](RecordedBits(name))
    digest = hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()
    return {"first": values[:12].tolist(), "sha256": digest}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_bits_give_the_recorded_values(name: str) -> None:
    """After a deliberate change of how bits are read: python tests/privacy/test_noise.py"""
    assert record(name) == json.loads(VECTORS.read_text())[name]


# ---- pools -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counter() -> Iterator[SampleBuffer]:
    """A pool of 1, 2, 3, ..."""
    fills = iter(range(1000))
    yield SampleBuffer(lambda size, bits: np.arange(1, size + 1) + size * next(fills))


def test_a_pool_hands_out_each_value_once_and_wipes_it(counter: SampleBuffer) -> None:
    taken = [counter.take(size) for size in (1, 10, 0, 1000)]
    assert np.concatenate(taken).tolist() == list(range(1, 1012))
    assert not counter._values[:1011].any()
    assert counter._values[1011:].all()


def test_a_pool_refills_before_it_runs_out(counter: SampleBuffer) -> None:
    old = counter.take(POOL - 3), counter._values
    assert counter.take(4).tolist() == [POOL + 1, POOL + 2, POOL + 3, POOL + 4]
    assert not old[1].any()


def test_a_pool_never_hands_out_wiped_values(counter: SampleBuffer) -> None:
    counter.take(5)
    counter.retire()
    assert counter.take(3).all()


def test_a_failed_refill_leaves_the_pool_empty() -> None:
    broken = SampleBuffer(lambda size, bits: {}[size])
    for _ in range(2):
        with pytest.raises(KeyError):
            broken.take(1)


def test_threads_share_a_pool_without_repeats(counter: SampleBuffer) -> None:
    with ThreadPoolExecutor(8) as executor:
        taken = np.concatenate(list(executor.map(counter.take, [7, 1, 100, 13] * 2000)))
    assert len(np.unique(taken)) == len(taken)
    assert taken.all()


def test_only_one_thread_is_inside_a_pool() -> None:
    inside, crowded = [], []

    def slow(size: int, _: Bits) -> NDArray[np.int64]:
        inside.append(1)
        time.sleep(0.02)
        crowded.append(len(inside))
        inside.pop()
        return np.ones(size, np.int64)

    pool = SampleBuffer(slow)
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(pool.take, [4000] * 40))
    assert set(crowded) == {1}
    assert len(crowded) == 3


def test_the_number_of_pools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST_POOLS", 3)
    store = SampleBuffers()
    store.take(1, F(1), 1)
    (oldest,) = store._pools.values()
    values = oldest._values
    for scale in range(2, 7):
        store.take(1, F(scale), 1)
    assert [numerator for _, numerator, _ in store._pools] == [4, 5, 6]
    assert not values.any()


def test_a_child_forgets_the_pools_and_wipes_them() -> None:
    store = SampleBuffers()
    store.take(1, F(3), 1)
    (pool,) = store._pools.values()
    values = pool._values
    store._forget()
    assert not store._pools
    assert not values.any()


def test_injected_bits_never_touch_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POOLS, "take", lambda *_: pytest.fail("a pool was used"))
    discrete_laplace(F(7), 10, RecordedBits("straight"))
    discrete_laplace(F(7), 10, SystemBits(), SMALL)
    noisy_max(np.arange(3), F(1), RecordedBits("straight"))
    with pytest.raises(pytest.fail.Exception):
        discrete_laplace(F(7), 10, SystemBits())


def test_results_belong_to_the_caller() -> None:
    first = discrete_laplace(F(10**6), 50, SystemBits())
    kept = first.copy()
    discrete_laplace(F(10**6), 4000, SystemBits())
    assert np.array_equal(first, kept)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: discrete_laplace(F(1, 1001), 1, bits),
        lambda: discrete_laplace(F((1 << 40) + 1), 1, bits),
        lambda: discrete_laplace(F(0), 1, bits),
        lambda: discrete_laplace(F(-1), 5000, bits),
        lambda: discrete_laplace(0.5, 1, bits),  # type: ignore[arg-type]
        lambda: discrete_laplace(True, 1, bits),
        lambda: discrete_laplace("1", 1, bits),  # type: ignore[arg-type]
        lambda: discrete_laplace(F(1), -1, bits),
        lambda: discrete_gaussian(F(1, 10**6 + 1), 1, bits),
        lambda: discrete_gaussian(F((1 << 80) + 1), 1, bits),
        lambda: geometric(F(0), 1, bits),
        lambda: staircase(F(0), 1, 1, 1, bits),
        lambda: staircase(F(1), 0, 1, 1, bits),
        lambda: staircase(F(1), 3, 4, 1, bits),
        lambda: staircase(F(1), 3, 0, 1, bits),
        lambda: staircase(F(1, 1 << 30), 1 << 20, 1, 1, bits),
        lambda: bernoulli(F(4, 3), 1, bits),
        lambda: bernoulli(F(-1, 3), 1, bits),
        lambda: bernoulli(F(1, 3), -1, bits),
        lambda: bernoulli_exp(F(-1), 1, bits),
        lambda: bernoulli_exp_each(F(1), np.array([1, -1]), bits),
        lambda: uniform_below(0, 1, bits),
        lambda: uniform_below((1 << 63) + 1, 1, bits),
        lambda: uniform_below(2, -1, bits),
        lambda: noisy_max(np.array([], np.int64), F(1), bits),
        lambda: noisy_max(np.array([1]), F(-1), bits),
        lambda: exponential(-1, bits),
    ],
)
def test_other_parameters_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidParameter):
        call()


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65537])
@pytest.mark.parametrize("scale", [F(1, 1000), F(1 << 40)])
def test_results_are_int64_of_the_size_asked_for(size: int, scale: Fraction) -> None:
    for values in (
        discrete_laplace(scale, size, bits),
        discrete_gaussian(scale**2, size, bits),
        geometric(scale, size, bits),
        bernoulli(F(1, 2), size, bits),
        uniform_below(7, size, bits),
        staircase(F(1), 3, 2, size, bits),
    ):
        assert values.dtype == np.int64
        assert values.shape == (size,)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps({name: record(name) for name in RECORDED}, indent=1) + "\n")
