"""Faults that are planted in the samplers, which the enumeration must find."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from dither.privacy.bits import Bits
from dither.privacy.noise import exp_enclosure, lattice
from dither.privacy.noise.lattice import LatticeWeights, Sampler, thresholds
from privacy import exact_distributions
from privacy.noise_cases import SMALL, WIDE_CELLS, F, assert_distribution, attempt_distribution, attempt_once, keep


class NoRefinement(Sampler):
    """Takes the cell that the table suggests where the word is undecided."""

    def _resolve_cell(self, word: int, bits: Bits) -> int:
        return min(int(np.searchsorted(self._lows, np.uint64(word), "right")), len(self._lows) - 1)


class Discards(Sampler):
    """Throws undecided words away and draws others."""

    def _resolve_cell(self, word: int, bits: Bits) -> int:
        return int(self._find_cells(bits.words(1, self.widths.guide), bits)[0])


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


def shifted_thresholds(distribution: LatticeWeights, k: int, precision: int) -> tuple[list[int], int]:
    """The third threshold is too high by 2^-18."""
    lows, slack = thresholds(distribution, k, precision)
    return [low + ((1 << precision) >> 18) * (i == 2) for i, low in enumerate(lows)], slack


@pytest.mark.parametrize("fault", [NoRefinement, Discards, WrongSignAtZero])
def test_enumeration_catches(fault: type[Sampler]) -> None:
    for distribution in (LatticeWeights(1, F(3, 2)), LatticeWeights(2, F(7, 2))):
        assert_distribution(
            attempt_once(Sampler(distribution, SMALL)), attempt_distribution(Sampler(distribution, SMALL)), 0.04
        )
        sampler = fault(distribution, SMALL)
        with pytest.raises(AssertionError):
            assert_distribution(attempt_once(sampler), attempt_distribution(sampler), 0.04)


@pytest.mark.parametrize("distribution", WIDE_CELLS, ids=str)
def test_enumeration_catches_an_off_by_one(distribution: LatticeWeights) -> None:
    sampler = OffByOne(distribution, SMALL)
    with pytest.raises(AssertionError):
        for cell in range(4):
            last = (1 << sampler.k) - 1
            first = (cell >> 1 << sampler.k) + (cell & 1)
            p = mp.exp(exact_distributions.real(distribution.exponent(first) - distribution.exponent(first + last)))
            assert_distribution(keep(sampler, cell, last), lambda kept, p=p: p if kept else 1 - p, 1e-8)


def test_enumeration_catches_a_threshold_wrong_by_two_to_the_minus_18(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "thresholds", shifted_thresholds)
    sampler = Sampler(LatticeWeights(1, F(3, 2)), SMALL)
    with pytest.raises(AssertionError):
        assert_distribution(attempt_once(sampler), attempt_distribution(sampler), 1e-7)


def test_enumeration_catches_an_exp_wrong_by_two_to_the_minus_18(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Fraction, precision: int) -> tuple[int, int]:
        low, high = exp_enclosure(x, precision)
        return low + (low >> 18), high + (low >> 18)

    thresholds.cache_clear()
    monkeypatch.setattr(lattice, "exp_enclosure", wrong)
    sampler = Sampler(LatticeWeights(1, F(37)), SMALL)
    p = mp.exp(exact_distributions.real(-sampler.distribution.exponent(7)))
    with pytest.raises(AssertionError):
        assert_distribution(keep(sampler, 0, 7), lambda kept: p if kept else 1 - p, 1e-7)
    thresholds.cache_clear()
