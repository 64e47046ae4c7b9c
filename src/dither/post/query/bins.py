"""Part of the former post.quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from dither.errors import Unsupported
from dither.plan.domains import bounds_of
from dither.post.noise import Floats
from dither.schema import Number

WHOLE = 512
COARSE = 256
FINE = 16
FEW = 10

Wanted = Fraction | Literal["min", "max"]


@dataclass(frozen=True)
class Bins:
    """Bin i holds the values from low[i] to high[i]; `edges` are the lower ends of all but the first."""

    low: Floats
    high: Floats
    edges: tuple[Fraction, ...]

    def between(self, first: int, last: int) -> Bins:
        """Those from one to another, whose values alone occur."""
        return Bins(self.low[first : last + 1], self.high[first : last + 1], self.edges[first:last])


def bins(domain: object, growing: bool = False) -> Bins:
    """Every value of a small range, else equal bins over it; `growing` ones where a bound to be found cuts it."""
    if not isinstance(domain, Number):
        raise Unsupported("MIN, MAX, MEDIAN and quantiles need a number with a declared range; COUNT groups instead")
    first, last = bounds_of(domain)
    width = max(1, -(-(last - first + 1) // COARSE)) if last - first >= WHOLE else 1
    starts = _growing(first, last) if growing else list(range(first, last + 1, width))
    stops = [start - 1 for start in starts[1:]] + [last]
    scaled = [np.array([float(place * domain.step) for place in places]) for places in (starts, stops)]
    return Bins(scaled[0], scaled[1], tuple(place * domain.step for place in starts[1:]))


def _growing(first: int, last: int) -> list[int]:
    """Single values about zero, then a sixteenth of their size wide on either side."""
    sizes, at = [0], 1
    while at <= max(last, -first):
        sizes.append(at)
        at += max(1, at // FINE)
    return sorted({first} | {place for size in sizes for place in (size, 1 - size) if first <= place <= last})
