"""Small widths, samplers to enumerate and checks of distributions, for the tests of the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dither.privacy.bits import Bits, SystemBits
from dither.privacy.noise import Widths, lattice
from dither.privacy.noise.lattice import LatticeWeights, Sampler
from privacy import exact_distributions
from privacy.doubles import ScriptedBits, enumerate_distribution

F = Fraction
bits = SystemBits()
SMALL = Widths(guide=4, word=7, accept=2, fine=5, more=3, cells=2, ticks=3, padded=False)
SMALLEST = Widths(guide=3, word=4, accept=1, fine=2, more=1, cells=1, ticks=2, padded=False)
TICKS = replace(SMALLEST, cells=2, ticks=1)  # exponential variables without rejection, one digit at once
Probability = Callable[[Any], mp.mpf]
WIDE_CELLS = [
    LatticeWeights(1, F(5)),
    LatticeWeights(1, F(13, 3)),
    LatticeWeights(2, F(30)),
    LatticeWeights(2, F(401, 10)),
]


def cell_weights(distribution: LatticeWeights, k: int, count: int) -> list[mp.mpf]:
    firsts = ((cell >> 1 << k) + (cell & 1) for cell in range(count))
    return [mp.exp(-exact_distributions.real(distribution.exponent(first))) for first in firsts]


def assert_distribution(run: Callable[[ScriptedBits], Any], p: Probability, undecided: float) -> None:
    """mass <= p <= mass + undecided for every outcome, and no mass is missing."""
    distribution, left = enumerate_distribution(run, undecided, most_runs=3_000_000)
    assert left <= undecided
    for outcome, mass in distribution.items():
        assert exact_distributions.real(mass) <= p(outcome) <= exact_distributions.real(mass + left), outcome


def attempt_once(sampler: Sampler) -> Callable[[ScriptedBits], int | None]:
    def run(bits: Bits) -> int | None:
        values = np.zeros(1, np.int64)
        return None if len(sampler.attempt(values, bits)) else int(values[0])

    return run


def attempt_distribution(sampler: Sampler) -> Probability:
    """A candidate x is kept with probability exp(-g(x)) / (2^k total); None stands for a rejection."""
    total = mp.fsum(cell_weights(sampler.distribution, sampler.k, 2000)) * 2**sampler.k
    weight = [mp.exp(-exact_distributions.real(sampler.distribution.exponent(x))) for x in range(3000)]
    kept = (2 * mp.fsum(weight) - 1) / total
    return lambda x: 1 - kept if x is None else weight[abs(x)] / total


def draw_cell(sampler: Sampler) -> Callable[[ScriptedBits], int]:
    """The cell alone: from the guide where it decides, else by search and refinement."""

    def run(bits: Bits) -> int:
        prefix = bits.words(1, sampler.widths.guide)
        entry = int(sampler._guide[prefix[0]])
        slow = entry == lattice.UNDECIDED if sampler.k == 0 else entry & 0xFFFF == 0
        value = entry if sampler.k == 0 else entry >> 16
        return int(sampler._find_cells(prefix, bits)[0]) if slow else (2 * value if value >= 0 else 2 * ~value + 1)

    return run


def keep(sampler: Sampler, cell: int, low: int) -> Callable[[ScriptedBits], bool]:
    """The acceptance of one place of one cell."""
    first = (cell >> 1 << sampler.k) + (cell & 1)

    def run(bits: Bits) -> bool:
        look = bits.words(1, sampler.widths.accept)
        if look[0] < sampler._sure_acceptance()[cell]:
            return True
        return bool(sampler._accept(np.array([first]), np.array([low]), look, bits)[0])

    return run


# Each statistic raises a false alarm with probability at most 1e-9 (about 150 of them in all: 1.5e-7).
ALARM = 1e-9
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


def assert_counts(counts: NDArray[np.int64], probabilities: list[float]) -> None:
    """Chi-squared."""
    seen, wanted = grouped(counts, np.array(probabilities) * counts.sum())
    assert ((seen - wanted) ** 2 / wanted).sum() < chi2.isf(ALARM, max(1, len(seen) - 1))
