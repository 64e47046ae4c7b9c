"""Large answers as Arrow over the kernel's socket: the same release, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dither.errors import DitherError, InvalidPlan
from dither.loss import Pure
from dither.plan.expressions.core import ColumnRef
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.protocol import Calibrate, Measurement, Release, Request
from dither.serve.transport.framing import LENGTH, Message
from dither.serve.transport.vectors import FORM, LARGE, SCHEMA, large, pack, unpack
from serve.servers import Place, place


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("columns"), epsilon=100) as made:
        yield made


def request(draw: int = 0) -> bytes:
    """A count by each of 2,001 salaries, and one of everybody."""
    loss = Calibrate("discrete_laplace", Pure(Fraction(1, 10)))
    by_salary = Measurement(Count(Scan("people"), (GroupKey("salary", ColumnRef("salary")),)), loss)
    return encode(Request("town", (by_salary, Measurement(Count(Scan("people")), loss)), repeat=draw))


def asked(there: Place, draw: int = 0, **header: str) -> Message:
    given = {"call": "answer", "token": there.tokens["ann"], "dataset": "town", **header}
    return there.server.respond(Message(given, request(draw)))


@pytest.fixture(scope="module")
def release(there: Place) -> Release:
    return decode(asked(there).body, Release, RESPONSE)


def test_both_forms_say_the_same(there: Place, release: Release) -> None:
    packed = asked(there, accept=FORM)
    assert packed.header["form"] == FORM and "form" not in asked(there).header
    assert replace(unpack(packed.body), head=release.head, cached=False) == release
    assert large(release) and len(release.parts[0].values) > LARGE
    assert len(packed.body) < 20_000 + 8 * len(release.parts[0].values)


def test_small_answers_stay_json(there: Place, release: Release) -> None:
    assert not large(replace(release, parts=release.parts[1:]))
    assert there.ask("SELECT COUNT(*) FROM people", 1).status_code == 200


def test_a_session_over_the_socket_gets_them_so(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    forms: list[str] = []
    respond = there.server.respond

    def listening(message: Message) -> Message:
        reply = respond(message)
        forms.append(reply.header.get("form", ""))
        return reply

    monkeypatch.setattr(there.server, "respond", listening)
    found = there.remote.call("answer", there.tokens["ann"], "town", request(3))
    assert forms == [FORM] and found.parts[0].values == unpack(asked(there, 3, accept=FORM).body).parts[0].values


def test_over_http_for_whoever_takes_it(there: Place) -> None:
    path = "/v1/kernel/answer?dataset=town"
    headers = there.headers("ann", accept="application/vnd.dither+arrow")
    packed = there.http.post(path, content=request(), headers=headers)
    plain = there.http.post(path, content=request(), headers=there.headers("ann"))
    assert packed.headers["content-type"] == "application/vnd.dither+arrow"
    assert plain.headers["content-type"] == "application/vnd.dither+json"
    assert unpack(packed.content).parts == decode(plain.content, Release, RESPONSE).parts


def streamed(*columns: list[Any], schema: pa.Schema = SCHEMA) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for values in columns:
            writer.write_batch(pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema))
    return bytes(sink.getvalue())


def bare(release: Release) -> bytes:
    text = encode(replace(release, parts=tuple(replace(part, values=()) for part in release.parts)))
    return LENGTH.pack(len(text)) + text


def test_ends_of_the_range_travel(release: Release) -> None:
    ends = replace(release, parts=tuple(replace(part, values=(-(2**63), 2**63 - 1)) for part in release.parts))
    assert unpack(pack(ends)) == ends
    nothing = replace(release, parts=tuple(replace(part, values=()) for part in release.parts))
    assert unpack(pack(nothing)) == nothing


@pytest.mark.parametrize("how", ["nothing", "short", "no stream", "one column", "three columns", "doubles", "texts",
                                 "nulls", "a name", "values twice", "cut off", "a length beyond", "JSON"])  # fmt: skip
def test_anything_else_is_refused(release: Release, how: str) -> None:
    head, real = bare(release), pa.schema([("values", pa.float64())])
    nullable = pa.schema([("values", pa.int64())])
    made = {
        "nothing": b"", "short": b"\x00\x00", "no stream": head, "one column": head + streamed([1]),
        "three columns": head + streamed([1], [2], [3]), "doubles": head + streamed([1.5], [2.5], schema=real),
        "texts": head + streamed(["1"], ["2"], schema=pa.schema([("values", pa.string())])),
        "nulls": head + streamed([1, None], [2], schema=nullable),
        "a name": head + streamed([1], [2], schema=pa.schema([pa.field("other", pa.int64(), nullable=False)])),
        "values twice": LENGTH.pack(len(encode(release))) + encode(release) + streamed([1], [2]),
        "cut off": pack(release)[:-200], "a length beyond": LENGTH.pack(2**32 - 1) + head[4:],
        "JSON": encode(release),
    }[how]  # fmt: skip
    with pytest.raises(InvalidPlan):
        unpack(made)


def swollen(rows: int, compression: str | None = "zstd", version: Any = pa.ipc.MetadataVersion.V5) -> bytes:
    """Two columns of zeros."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, metadata_version=version)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        for _ in range(2):
            writer.write_batch(pa.record_batch([pa.array(np.zeros(rows, np.int64))], schema=SCHEMA))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_columns_that_swell_are_refused_before_they_do(release: Release, compression: str) -> None:
    """A few kilobytes of compressed zeros would be 64 MB: they are refused, and nothing is allocated for them."""
    body = bare(release) + swollen(4_000_000, compression)
    assert len(body) < 1_000_000
    before, most = pa.total_allocated_bytes(), pa.default_memory_pool().max_memory()
    with pytest.raises(InvalidPlan, match="compressed"):
        unpack(body)
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert pa.default_memory_pool().max_memory() <= max(most, before + 1_000_000)


def test_a_small_batch_may_not_be_compressed_either(release: Release) -> None:
    """The length of each buffer is inside it, and could say anything."""
    with pytest.raises(InvalidPlan, match="compressed"):
        unpack(bare(release) + swollen(100))
    assert len(unpack(bare(release) + swollen(100, None)).parts[0].values) == 100
    assert len(unpack(bare(release) + swollen(100, None, pa.ipc.MetadataVersion.V4)).parts[0].values) == 100


def test_notes_beside_a_batch_are_refused(release: Release) -> None:
    """An older form names its compression there."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for _ in range(2):
            made = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)
            writer.write_batch(made, custom_metadata={"ARROW:experimental_compression": "zstd"})
    with pytest.raises(InvalidPlan, match="compressed"):
        unpack(bare(release) + bytes(sink.getvalue()))


def test_damaged_bytes_never_give_another_error(release: Release, tmp_path: Path) -> None:
    """Each of many single flipped bytes is refused, or gives a release of the same shape."""
    data = pack(release)
    for place_of in range(0, len(data), max(1, len(data) // 400)):
        damaged = data[:place_of] + bytes([data[place_of] ^ 0x55]) + data[place_of + 1 :]
        with suppress(DitherError):
            assert len(unpack(damaged).parts) == 2


def test_a_first_message_that_is_no_schema_is_not_read_as_one(release: Release) -> None:
    """Arrow would read it all the same, unchecked: with one byte more out of place, that ended the process."""
    whole = streamed([1], [2])
    kinds = {
        place_of: pa.ipc.MessageReader.open_stream(whole[:place_of] + b"\x80" + whole[place_of + 1 :])
        for place_of in range(8, 64)
    }
    (place_of,) = [at for at, reader in kinds.items() if _type_of(reader) == "unknown"]
    for first in (0, 2, 3, 128, 255):
        for other in range(8, 136):
            damaged = bytearray(whole)
            damaged[other] ^= 0x80
            damaged[place_of] = first
            with pytest.raises(InvalidPlan):
                unpack(bare(release) + bytes(damaged))


def _type_of(reader: Any) -> str:
    try:
        return str(reader.read_next_message().type)
    except (pa.ArrowException, OSError):
        return ""
