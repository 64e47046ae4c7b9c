"""Large answers between processes: the release as the wire's JSON, and its noisy integers as Arrow beside it.

A body is a 4-byte big-endian length and the JSON of the release without its values, then one Arrow stream whose only
column is of 64-bit integers and which has one batch for each part, in their order. Nothing in it is compressed: whoever
reads it needs no more memory than its bytes say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from dither.errors import InvalidPlan
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.protocol import Release
from dither.serve.transport.framing import LENGTH

FORM = "arrow"
LARGE = 1_000  # values from which on JSON is the slower way
SCHEMA = pa.schema([pa.field("values", pa.int64(), nullable=False)])


def large(release: Release) -> bool:
    """Whether an answer is worth packing."""
    return sum(len(part.values) for part in release.parts) >= LARGE


def pack(release: Release) -> bytes:
    """An answer as bytes."""
    text = encode(replace(release, parts=tuple(replace(part, values=()) for part in release.parts)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for part in release.parts:
            writer.write_batch(pa.record_batch([pa.array(part.values, pa.int64())], schema=SCHEMA))
    return b"".join((LENGTH.pack(len(text)), text, memoryview(sink.getvalue())))


def unpack(body: bytes) -> Release:
    """The answer that bytes stand for; anything else is refused."""
    start = LENGTH.size
    end = start + LENGTH.unpack(body[:start])[0] if len(body) >= start else len(body) + 1
    if end > len(body):
        raise InvalidPlan("the answer ends too early")
    release = decode(body[start:end], Release, RESPONSE)
    columns = list(_columns(body[end:], len(release.parts)))
    if len(columns) != len(release.parts) or any(part.values for part in release.parts):
        raise InvalidPlan("the answer's parts and its columns do not fit together")
    parts = zip(release.parts, columns, strict=True)
    return replace(release, parts=tuple(replace(part, values=values) for part, values in parts))


def _columns(data: bytes, most: int) -> Iterator[tuple[int, ...]]:
    """The integers of each batch, of which there are at most so many; each takes as many bytes as it says."""
    try:
        messages = iter(pa.ipc.MessageReader.open_stream(pa.py_buffer(data)))
        first = next(messages, None)
        # Arrow has verified a message as what it says that it is, and reads any message as a schema.
        kind = "" if first is None else first.type
        if kind != "schema" or not pa.ipc.read_schema(first).equals(SCHEMA, check_metadata=True):
            raise InvalidPlan("the answer's column must be of 64-bit integers")
        for number, message in enumerate(messages):
            if number >= most or message.type != "record batch" or not _as_it_is(message.metadata.to_pybytes()):
                raise InvalidPlan("the answer's columns are compressed, or do not fit its parts")
            batch = pa.ipc.read_record_batch(message, SCHEMA)
            batch.validate(full=True)
            if 8 * batch.num_rows > message.body.size or batch.column(0).null_count:
                raise InvalidPlan("the answer's columns do not fit its size")
            yield tuple(batch.column(0).to_pylist())
    except (pa.ArrowException, OSError, ValueError, struct.error):
        raise InvalidPlan("the answer's columns are not an Arrow stream") from None


# A message's metadata is a flatbuffer, which Arrow has verified. Places of fields in their tables, by Message.fbs:
HEADER, CUSTOM = 2, 4
COMPRESSION = 3


def _as_it_is(metadata: bytes) -> bool:
    """Whether a batch's bytes are its numbers: neither of the two ways to name a compression is taken."""
    (message,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, message, HEADER)
    if header is None or _field(metadata, message, CUSTOM) is not None:
        return False
    (there,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + there, COMPRESSION) is None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer's table keeps one of its fields, if it has it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * number)
    return table + offset if offset else None
