"""Cryptographic random bits: AES-256-CTR keyed by the operating system, one stream per thread of each process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dither.errors import InvalidParameter

Words = NDArray[np.unsignedinteger[Any]]

CHUNK_BYTES = 1 << 16
BYTES_PER_KEY = 1 << 30


class Bits(Protocol):
    """A source of independent fair coins."""

    def words(self, size: int, bits: int) -> Words:
        """Return `size` uniform integers of `bits` bits (1 to 64), in the narrowest of u2, u4 and u8 that fits."""

    def integer(self, bits: int) -> int:
        """Return one uniform integer of `bits` bits, for any number of bits."""


class Keystream:
    """An AES-256-CTR keystream; the key comes from the operating system and is replaced after every GiB."""

    def __init__(self) -> None:
        self._zeros = memoryview(bytes(CHUNK_BYTES))
        self._rekey()

    def _rekey(self) -> None:
        """Take a fresh key and counter from the operating system."""
        self._cipher = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        self._left = BYTES_PER_KEY

    def fill(self, target: memoryview) -> None:
        """Overwrite `target`, a flat view of bytes, with keystream."""
        for start in range(0, len(target), CHUNK_BYTES):
            piece = target[start : start + CHUNK_BYTES]
            self._cipher.update_into(self._zeros[: len(piece)], piece)
            self._left -= len(piece)
            if self._left < 0:
                self._rekey()


def call_in_forked_child(forget: Callable[[], None]) -> None:
    """Call `forget` in every child process that Python forks; do nothing on platforms without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


_streams = threading.local()


def _forget_stream() -> None:
    """Drop the stream of a forked child's only thread, so that its next use draws a new key."""
    _streams.__dict__.clear()


call_in_forked_child(_forget_stream)


def _stream() -> Keystream:
    """Return this thread's keystream; create it on first use."""
    try:
        stream: Keystream = _streams.stream
    except AttributeError:
        stream = _streams.stream = Keystream()
    return stream


@final
class SystemBits:
    """The production source. It holds no key, so it may be shared, copied and pickled."""

    def words(self, size: int, bits: int) -> Words:
        """Return `size` uniform integers of `bits` bits."""
        width = word_bytes(bits)
        words: Words = np.empty(size, f"u{width}")
        if size:
            _stream().fill(words.data.cast("B"))
        if bits < 8 * width:
            np.right_shift(words, words.dtype.type(8 * width - bits), out=words)
        return words

    def integer(self, bits: int) -> int:
        """Return one uniform integer of `bits` bits."""
        if bits < 0:
            raise InvalidParameter(f"bits must not be negative, got {bits}")
        buffer = bytearray(-(-bits // 8))
        if buffer:
            _stream().fill(memoryview(buffer))
        return int.from_bytes(buffer, "big") >> (-bits % 8)


def word_bytes(bits: int) -> int:
    """Return the bytes of the narrowest word (2, 4 or 8) that holds `bits` bits."""
    if not 1 <= bits <= 64:
        raise InvalidParameter(f"bits must be from 1 to 64, got {bits}")
    return 2 if bits <= 16 else 4 if bits <= 32 else 8
