"""Buffers of values drawn in advance: small requests are served from them, so that timing reveals no value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from threading import Lock

import numpy as np

from dither.privacy.bits import Bits, SystemBits, call_in_forked_child
from dither.privacy.noise.exact import FULL, Vector, Widths, check_exact, check_size
from dither.privacy.noise.lattice import sampler

BUFFER_SIZE = 1 << 16
LARGEST_REQUEST = 1 << 12
MAX_BUFFERS = 64


class SampleBuffer:
    """Independent draws of one distribution; each is returned once and then overwritten."""

    def __init__(self, draw: Callable[[int, SystemBits], Vector]) -> None:
        self._draw = draw
        self._lock = Lock()
        self._values = np.zeros(0, np.int64)
        self._next = 0

    def take(self, size: int) -> Vector:
        """Return the next `size` values. The cursor moves first: an interrupted call wastes values, repeats none."""
        with self._lock:
            if self._next + size > len(self._values):
                self.wipe()
                self._values = self._draw(BUFFER_SIZE, SystemBits())
                self._next = 0
            start = self._next
            self._next = end = start + size
            taken = self._values[start:end].copy()
            self._values[start:end] = 0
        return taken

    def retire(self) -> None:
        """Wipe the buffer once no other thread is taking from it."""
        with self._lock:
            self.wipe()

    def wipe(self) -> None:
        """Overwrite and drop the remaining values; the next request draws new ones."""
        values, self._values = self._values, np.zeros(0, np.int64)
        values.fill(0)


class SampleBuffers:
    """A bounded number of buffers, the oldest dropped first; a forked child process starts with none."""

    def __init__(self) -> None:
        self._forget()
        call_in_forked_child(self._forget)

    def _forget(self) -> None:
        """Wipe and drop all buffers."""
        for buffer in getattr(self, "_pools", {}).values():
            buffer.wipe()
        self._pools: dict[tuple[int, int, int], SampleBuffer] = {}
        self._lock = Lock()

    def take(self, power: int, parameter: Fraction, size: int) -> Vector:
        """Return `size` draws of a distribution."""
        buffer = self._pools.get((power, parameter.numerator, parameter.denominator))
        return (buffer or self._add(power, parameter)).take(size)

    def _add(self, power: int, parameter: Fraction) -> SampleBuffer:
        """Add the buffer of a distribution; drop the oldest while there are too many."""
        with self._lock:
            key = (power, parameter.numerator, parameter.denominator)
            while len(self._pools) >= MAX_BUFFERS:
                self._pools.pop(next(iter(self._pools))).retire()
            return self._pools.setdefault(key, SampleBuffer(sampler(power, parameter).draw))


BUFFERS = SampleBuffers()


def draw(power: int, parameter: Fraction, size: int, bits: Bits, widths: Widths) -> Vector:
    """Return draws of a distribution: small requests from a buffer; injected bits always go straight to the sampler."""
    check_size(size)
    if type(parameter) is not Fraction:
        parameter = check_exact("the parameter", parameter)
    if size <= LARGEST_REQUEST and type(bits) is SystemBits and widths is FULL:
        return BUFFERS.take(power, parameter, size)
    return sampler(power, parameter, widths).draw(size, bits)
