"""Small requests are served from values drawn earlier, so that their time says nothing about the values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from threading import Lock

import numpy as np

from dither.privacy.bits import Bits, SystemBits, in_forked_child
from dither.privacy.noise.exact import FULL, Vector, Widths, check_size, fraction
from dither.privacy.noise.lattice import sampler

POOL = 1 << 16
LARGEST_REQUEST = 1 << 12
MOST_POOLS = 64


class SampleBuffer:
    """Independent draws of one law; each is handed out once and overwritten."""

    def __init__(self, draw: Callable[[int, SystemBits], Vector]) -> None:
        self._draw = draw
        self._lock = Lock()
        self._values = np.zeros(0, np.int64)
        self._next = 0

    def take(self, size: int) -> Vector:
        """The next `size` values. The cursor moves first: an interrupted call wastes values and never repeats them."""
        with self._lock:
            if self._next + size > len(self._values):
                self.wipe()
                self._values = self._draw(POOL, SystemBits())
                self._next = 0
            start = self._next
            self._next = end = start + size
            taken = self._values[start:end].copy()
            self._values[start:end] = 0
        return taken

    def retire(self) -> None:
        """Wipe, once no other thread is taking."""
        with self._lock:
            self.wipe()

    def wipe(self) -> None:
        """Forget what is left; the next request draws anew."""
        values, self._values = self._values, np.zeros(0, np.int64)
        values.fill(0)


class SampleBuffers:
    """A bounded number of pools, the oldest dropped first; a forked child starts with none."""

    def __init__(self) -> None:
        self._forget()
        in_forked_child(self._forget)

    def _forget(self) -> None:
        for pool in getattr(self, "_pools", {}).values():
            pool.wipe()
        self._pools: dict[tuple[int, int, int], SampleBuffer] = {}
        self._lock = Lock()

    def take(self, power: int, parameter: Fraction, size: int) -> Vector:
        """`size` draws of a law."""
        pool = self._pools.get((power, parameter.numerator, parameter.denominator))
        return (pool or self._add(power, parameter)).take(size)

    def _add(self, power: int, parameter: Fraction) -> SampleBuffer:
        with self._lock:
            key = (power, parameter.numerator, parameter.denominator)
            while len(self._pools) >= MOST_POOLS:
                self._pools.pop(next(iter(self._pools))).retire()
            return self._pools.setdefault(key, SampleBuffer(sampler(power, parameter).draw))


POOLS = SampleBuffers()


def draw(power: int, parameter: Fraction, size: int, bits: Bits, widths: Widths) -> Vector:
    """Draws of a law, from a pool where that applies; injected bits always go straight to the sampler."""
    check_size(size)
    if type(parameter) is not Fraction:
        parameter = fraction("the parameter", parameter)
    if size <= LARGEST_REQUEST and type(bits) is SystemBits and widths is FULL:
        return POOLS.take(power, parameter, size)
    return sampler(power, parameter, widths).draw(size, bits)
