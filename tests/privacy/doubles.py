"""Bits that are not random: recorded ones, and scripts that walk through every outcome of a sampler."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from dither.privacy.bits import Bits, Words, word_bytes

Outcome = TypeVar("Outcome", bound=Hashable)


class RecordedBits:
    """The same stream for the same label, on every machine."""

    def __init__(self, label: str, length: int = 1 << 22) -> None:
        self._bytes = memoryview(hashlib.shake_256(label.encode()).digest(length))
        self.used = 0

    def _read(self, length: int) -> memoryview:
        self.used += length
        assert self.used <= len(self._bytes), "the recording is too short"
        return self._bytes[self.used - length : self.used]

    def words(self, size: int, bits: int) -> Words:
        width = word_bytes(bits)
        return np.frombuffer(self._read(size * width), f"<u{width}") >> np.array(8 * width - bits, f"u{width}")

    def integer(self, bits: int) -> int:
        return int.from_bytes(self._read(-(-bits // 8)), "big") >> (-bits % 8)


class SerialBits:
    """Reads one long number from its first digit on: however many digits a step takes, the number is the same."""

    def __init__(self, label: str, length: int = 1 << 12) -> None:
        self._digits = int.from_bytes(hashlib.shake_256(label.encode()).digest(length // 8), "big")
        self._left = length

    def integer(self, bits: int) -> int:
        self._left -= bits
        assert self._left >= 0, "the recording is too short"
        return self._digits >> self._left & ((1 << bits) - 1)

    def words(self, size: int, bits: int) -> Words:
        return np.array([self.integer(bits) for _ in range(size)], f"u{word_bytes(bits)}")


class CountingBits:
    """Counts how often single integers were asked for: the refinements."""

    def __init__(self, inner: Bits) -> None:
        self._inner = inner
        self.integers = 0

    def words(self, size: int, bits: int) -> Words:
        return self._inner.words(size, bits)

    def integer(self, bits: int) -> int:
        self.integers += 1
        return self._inner.integer(bits)


class Exhausted(Exception):
    """The script ends where this many further bits are wanted."""

    def __init__(self, bits: int) -> None:
        self.bits = bits


class ScriptedBits:
    """Answers with the numbers of a script, then raises."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self._script = iter(script)

    def integer(self, bits: int) -> int:
        for value in self._script:
            return value
        raise Exhausted(bits)

    def words(self, size: int, bits: int) -> Words:
        return np.array([self.integer(bits) for _ in range(size)], f"u{word_bytes(bits)}")


def enumerate_distribution(
    run: Callable[[ScriptedBits], Outcome], undecided: float, most_runs: int = 200_000
) -> tuple[dict[Outcome, Fraction], Fraction]:
    """Follow every continuation of the bits, likeliest first, until the mass not yet decided is at most `undecided`.

    Returns the mass that is known to lead to each outcome, and the mass left.
    """
    distribution: dict[Outcome, Fraction] = defaultdict(Fraction)
    open_ends: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    left, runs = Fraction(1), 0
    while open_ends and left > undecided:
        used, _, script = heappop(open_ends)
        runs += 1
        assert runs <= most_runs, f"{float(left)} undecided after {runs} runs"
        try:
            outcome = run(ScriptedBits(script))
        except Exhausted as end:
            for value in range(1 << end.bits):
                heappush(open_ends, (used + end.bits, runs, (*script, value)))
            continue
        distribution[outcome] += Fraction(1, 1 << used)
        left -= Fraction(1, 1 << used)
    return distribution, left
