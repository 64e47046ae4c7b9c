"""Large answers between processes: the release as JSON without its noisy integers, and these as raw bytes after it.

A body is a 4-byte big-endian length, the JSON of the release without its values, and then for each part an 8-byte count
and as many 8-byte integers, all little-endian. A reader needs no more memory than the body has bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dither.errors import InvalidPlan
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.protocol import Release
from dither.serve.transport.framing import LENGTH

FORM = "int64"
LARGE = 1_000  # with at least this many values, JSON is slower
COUNT = struct.Struct("<Q")
INTEGER = np.dtype("<i8")


def is_large(release: Release) -> bool:
    """Return true if a release has so many values that packing is faster than JSON."""
    return sum(len(part.values) for part in release.parts) >= LARGE


def pack(release: Release) -> bytes:
    """Encode a release as JSON followed by its values."""
    text = encode(replace(release, parts=tuple(replace(part, values=()) for part in release.parts)))
    return b"".join((LENGTH.pack(len(text)), text, *(_encode_vector(part.values) for part in release.parts)))


def unpack(body: bytes) -> Release:
    """Decode a packed release; raise InvalidPlan if the bytes are not one."""
    start = LENGTH.size
    end = start + LENGTH.unpack(body[:start])[0] if len(body) >= start else len(body) + 1
    if end > len(body):
        raise InvalidPlan("the answer ends too early")
    release = decode(body[start:end], Release, RESPONSE)
    if any(part.values for part in release.parts):
        raise InvalidPlan("the answer has values in its JSON and after it")
    values = list(_vectors(memoryview(body)[end:], len(release.parts)))
    parts = zip(release.parts, values, strict=True)
    return replace(release, parts=tuple(replace(part, values=vector) for part, vector in parts))


def _encode_vector(values: Sequence[int]) -> bytes:
    return COUNT.pack(len(values)) + np.array(values, INTEGER).tobytes()


def _vectors(data: memoryview, parts: int) -> Iterator[tuple[int, ...]]:
    """Decode one vector for each part; raise InvalidPlan if bytes are missing or left over."""
    place = 0
    for _ in range(parts):
        if len(data) - place < COUNT.size:
            raise InvalidPlan("the answer ends too early")
        (count,) = COUNT.unpack_from(data, place)
        place += COUNT.size
        if count * INTEGER.itemsize > len(data) - place:
            raise InvalidPlan("the answer ends too early")
        yield tuple(np.frombuffer(data, INTEGER, count, place).tolist())
        place += count * INTEGER.itemsize
    if place != len(data):
        raise InvalidPlan("the answer has more bytes than its parts")
