"""Samplers of discrete Laplace and Gaussian noise: a cell from a certified table, a uniform point in it, a rejection.

An integer x is m or ~m (that is, -m - 1) by its sign, m = (H << k) + l. The cell is (H, sign); its first point has
|x| = b = (H << k) + [x < 0]. Cells are drawn with weight exp(-g(b)), l uniformly, and x is accepted with probability
exp(g(b) - g(|x|)); so x has probability proportional to exp(-g(|x|)).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dither.privacy.bits import Bits, Words
from dither.privacy.noise.exact import (
    FULL,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Vector,
    Widths,
    check_range,
    decide_below,
    exp_enclosure,
)

GUARD_BITS = 48  # extra bits of the weights, so that rounding errors stay below one unit of a threshold
UNDECIDED = -(1 << 15)  # a guide entry whose bits do not decide the value
LARGEST_DROP = 0.5  # `exp_polynomial` is accurate up to here


@dataclass(frozen=True)
class LatticeWeights:
    """Weights exp(-g(|x|)), g(x) = x^power / (power parameter): power 1 is Laplace, power 2 is Gaussian."""

    power: int
    parameter: Fraction

    def __post_init__(self) -> None:
        name = "scale" if self.power == 1 else "variance"
        check_range(name, self.parameter, SMALLEST_SCALE**self.power, LARGEST_SCALE**self.power)

    def exponent(self, x: int) -> Fraction:
        """Return g(x)."""
        return Fraction(x**self.power) / (self.power * self.parameter)

    def whole_scale(self) -> int:
        """Return the scale, or the standard deviation, rounded down."""
        whole = int(self.parameter)
        return whole if self.power == 1 else isqrt(whole)


@lru_cache(maxsize=32)
def thresholds(distribution: LatticeWeights, k: int, precision: int) -> tuple[list[int], int]:
    """Return lower bounds of the cells' cumulative probabilities, in units of 2^-precision, and the largest error.

    Weights follow w' = w r, r' = r q, each rounded down; `error` bounds what their sums lose. Proof: exact_noise.md.
    """
    unit = precision + GUARD_BITS
    (weight, ratio, other, other_ratio, second), gap = _first_weights(distribution, 1 << k, unit)
    weights: list[int] = []
    while weight >> (GUARD_BITS - 8):
        weights += (weight, other)
        weight, other = weight * ratio >> unit, other * other_ratio >> unit
        ratio, other_ratio = ratio * second >> unit, other_ratio * second >> unit
    error = 2 * (gap + 1) * (len(weights) // 2 + 1) ** 3
    tail = (2 * (weight + error) << unit) // ((1 << unit) - ratio - error) + 1
    sums = list(accumulate(weights))
    total = sums[-1] + error + tail
    return [(part << precision) // total for part in sums], 2 + ((2 * error + tail) >> GUARD_BITS)


def _first_weights(distribution: LatticeWeights, step: int, precision: int) -> tuple[list[int], int]:
    """Return the first cell's weight and its ratio to the next, for x >= 0, then x < 0; then the ratio of ratios."""
    g = distribution.exponent
    exponents = (g(0), g(step), g(1), g(step + 1) - g(1), g(2 * step) - 2 * g(step))
    bounds = [exp_enclosure(x, precision) for x in exponents]
    return [low for low, _ in bounds], max(high - low for low, high in bounds)


class Sampler:
    """Draws from a distribution, by tables that are built once. Proof: exact_noise.md."""

    def __init__(self, distribution: LatticeWeights, widths: Widths = FULL) -> None:
        self.distribution, self.widths = distribution, widths
        self.k = max(0, distribution.whole_scale().bit_length() - widths.cells.bit_length())
        self._step = float(1 / (distribution.power * distribution.parameter))
        lows, slack = thresholds(distribution, self.k, widths.word)
        self._lows = np.array(lows, np.uint64)  # a word w is undecided at cell i if lows[i] <= w <= lasts[i]
        self._lasts = np.minimum(self._lows, np.uint64((1 << widths.word) - slack)) + np.uint64(slack - 1)
        self._guide, self._slow_share = self._make_guide()

    def draw(self, size: int, bits: Bits) -> Vector:
        """Return `size` independent draws."""
        values = np.empty(size, np.int64)
        rejected = []
        for start in range(0, size, self.widths.chunk):
            rejected.append(start + self.attempt(values[start : start + self.widths.chunk], bits))
        again = np.concatenate(rejected) if rejected else ()
        if len(again):
            values[again] = self.draw(len(again), bits)
        return values

    def attempt(self, values: Vector, bits: Bits) -> NDArray[np.intp]:
        """Fill `values` with one candidate each; return the positions that are rejected."""
        return self._attempt_single_cells(values, bits) if self.k == 0 else self._attempt_wide_cells(values, bits)

    def _attempt_single_cells(self, values: Vector, bits: Bits) -> NDArray[np.intp]:
        """Fill `values` where each cell is one integer (k = 0); nothing is rejected."""
        prefixes = bits.words(len(values), self.widths.guide)
        entries = np.take(self._guide, prefixes, mode="clip")
        values[:] = entries
        slow = np.flatnonzero(entries == UNDECIDED)
        cells = self._find_cells(prefixes[self._pad(slow, len(values))], bits)[: len(slow)]
        values[slow] = (cells >> 1) ^ -(cells & 1)
        return slow[:0]

    def _attempt_wide_cells(self, values: Vector, bits: Bits) -> NDArray[np.intp]:
        """Fill `values` with candidates where each cell has 2^k integers; return the positions that are rejected."""
        size, k = len(values), self.k
        prefixes = bits.words(size, self.widths.guide)
        accept_bits = bits.words(size, self.widths.accept)
        offsets = bits.words(size, k)
        entries = np.take(self._guide, prefixes, mode="clip")
        slow = np.flatnonzero(accept_bits >= (entries & 0xFFFF))
        entries >>= 16
        np.left_shift(entries, k, out=values, dtype=np.int64)
        values |= offsets.view(np.int64) if k > 32 else offsets
        padded = self._pad(slow, size)
        candidates, accepted = self._judge_candidates(prefixes[padded], accept_bits[padded], offsets[padded], bits)
        values[slow] = candidates[: len(slow)]
        return slow[~accepted[: len(slow)]]

    def _judge_candidates(
        self, prefixes: Words, accept_bits: Words, offsets: Words, bits: Bits
    ) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the candidates that these bits of cell, acceptance and offset determine, and whether each passes."""
        cells = self._find_cells(prefixes, bits)
        sign, head = cells & 1, cells >> 1 << self.k
        low = offsets.astype(np.int64) ^ (-sign & ((1 << self.k) - 1))
        return (head + low) ^ -sign, self._accept(head + sign, low, accept_bits, bits)

    def _find_cells(self, prefixes: Words, bits: Bits) -> Vector:
        """Return the cells of the uniform numbers that begin with `prefixes`."""
        extra = self.widths.word - self.widths.guide
        words = prefixes.astype(np.uint64) << np.uint64(extra) | bits.words(len(prefixes), extra)
        cells = np.searchsorted(self._lows, words, "right")
        unsure = (cells == len(self._lows)) | (cells > 0) & (words <= self._lasts[cells - 1])
        for i in np.flatnonzero(unsure):
            cells[i] = self._resolve_cell(int(words[i]), bits)
        return cells

    def _resolve_cell(self, word: int, bits: Bits) -> int:
        """Read bits until the cell of a uniform number is decided; cells beyond 64 bits become the last that fits."""
        precision, more = self.widths.word, self.widths.more
        while True:
            precision, word = precision + more, word << more | bits.integer(more)
            lows, slack = thresholds(self.distribution, self.k, precision)
            cell = bisect_right(lows, word)
            if cell < len(lows) and (cell == 0 or word >= lows[cell - 1] + slack):
                return min(cell, (1 << (62 - self.k)) - 1)

    def _accept(self, first: Vector, low: Vector, accept_bits: Words, bits: Bits) -> NDArray[np.bool_]:
        """Draw Bernoulli(exp(g(first) - g(first + low))), given the first bits of the uniform numbers."""
        fine, extra = self.widths.fine, self.widths.fine - self.widths.accept
        prefixes = accept_bits.astype(np.int64) << extra | bits.words(len(accept_bits), extra).astype(np.int64)
        drop = self._drop(first, low)
        excess = prefixes * 2.0**-fine - exp_polynomial(drop)
        accepted: NDArray[np.bool_] = excess < 0
        for i in np.flatnonzero((np.abs(excess) < self.widths.margin + 2.0**-fine) | (drop > LARGEST_DROP)):
            exact = self.distribution.exponent(int(first[i] + low[i])) - self.distribution.exponent(int(first[i]))
            accepted[i] = decide_below(partial(exp_enclosure, exact), bits, self.widths.more, prefixes[i].item(), fine)
        return accepted

    def _drop(self, first: Vector, low: Vector) -> NDArray[np.float64]:
        """Return g(first + low) - g(first), with a relative error below 2^-50."""
        reach = low.astype(np.float64)
        return reach * self._step if self.distribution.power == 1 else reach * (2 * first + low) * self._step

    def _pad(self, slow: NDArray[np.intp], size: int) -> NDArray[np.intp]:
        """Return the positions `slow`, padded with zeros so that nearly all batches take the same work."""
        if not self.widths.padded:
            return slow
        expected = int(size * self._slow_share)
        quota = expected + 6 * isqrt(expected) + 8
        places = np.zeros(-(-(len(slow) + 1) // quota) * quota, np.intp)
        places[: len(slow)] = slow
        return places

    def _make_guide(self) -> tuple[NDArray[np.int16 | np.int32], float]:
        """Build the table of what the first `guide` bits of a word decide; also return the share of undecided draws."""
        size, shift = 1 << self.widths.guide, np.uint64(self.widths.word - self.widths.guide)
        starts = np.bincount((self._lows >> shift).astype(np.intp), minlength=size)
        ends = np.bincount((self._lasts >> shift).astype(np.intp), minlength=size)
        cells = np.cumsum(starts) - starts  # thresholds that begin in an earlier entry
        mixed = (cells != np.cumsum(ends)) | (starts > 0) | (cells == len(self._lows))
        cells[mixed] = 0
        values = (cells >> 1) ^ -(cells & 1)
        if self.k == 0:
            return np.where(mixed, UNDECIDED, values).astype(np.int16), float(mixed.mean())
        sure = np.where(mixed, 0, self._sure_acceptance()[cells])
        return (values << 16 | sure).astype(np.int32), 1 - float(sure.mean()) / (1 << self.widths.accept)

    def _sure_acceptance(self) -> Vector:
        """Return, for each cell, the first acceptance bits below which every point of the cell is accepted."""
        cells = np.arange(len(self._lows))
        drop = self._drop((cells >> 1 << self.k) + (cells & 1), np.full(len(cells), (1 << self.k) - 1))
        least = (exp_polynomial(drop) - self.widths.margin) * 2.0**self.widths.accept
        return np.where(drop > LARGEST_DROP, 0, np.maximum(least, 0)).astype(np.int64)


def exp_polynomial(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(-x) for 0 <= x <= 1/2 to within 2^-44, by multiplications and subtractions only."""
    y = np.ones_like(x)
    for i in range(13, 0, -1):
        y *= x * (1.0 / i)
        np.subtract(1.0, y, out=y)
    return y


@lru_cache(maxsize=64)
def sampler(power: int, parameter: Fraction, widths: Widths = FULL) -> Sampler:
    """Return the sampler of a distribution; it is built once and cached."""
    return Sampler(LatticeWeights(power, parameter), widths)
