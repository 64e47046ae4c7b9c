"""Large answers as raw integers over the kernel's socket: the same release, and nothing else is taken for one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
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
from dither.serve.transport.vectors import COUNT, FORM, LARGE, is_large, pack, unpack
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
    assert replace(unpack(packed.body), cached=False) == release
    assert is_large(release) and len(release.parts[0].values) > LARGE
    assert len(packed.body) < 20_000 + 8 * len(release.parts[0].values)


def test_small_answers_stay_json(there: Place, release: Release) -> None:
    assert not is_large(replace(release, parts=release.parts[1:]))
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
    headers = there.headers("ann", accept="application/vnd.dither+int64")
    packed = there.http.post(path, content=request(), headers=headers)
    plain = there.http.post(path, content=request(), headers=there.headers("ann"))
    assert packed.headers["content-type"] == "application/vnd.dither+int64"
    assert plain.headers["content-type"] == "application/vnd.dither+json"
    assert unpack(packed.content).parts == decode(plain.content, Release, RESPONSE).parts


def vectors(*vectors: list[int], count: int | None = None) -> bytes:
    """Vectors as they follow the JSON; `count` claims another length than they have."""
    return b"".join(COUNT.pack(len(v) if count is None else count) + np.array(v, "<i8").tobytes() for v in vectors)


def bare(release: Release) -> bytes:
    text = encode(replace(release, parts=tuple(replace(part, values=()) for part in release.parts)))
    return LENGTH.pack(len(text)) + text


def test_ends_of_the_range_travel(release: Release) -> None:
    ends = replace(release, parts=tuple(replace(part, values=(-(2**63), 2**63 - 1)) for part in release.parts))
    assert unpack(pack(ends)) == ends
    nothing = replace(release, parts=tuple(replace(part, values=()) for part in release.parts))
    assert unpack(pack(nothing)) == nothing


@pytest.mark.parametrize("how", ["nothing", "short", "no vectors", "one vector", "three vectors", "half an integer",
                                 "a count alone", "values twice", "cut off", "a length beyond", "JSON"])  # fmt: skip
def test_anything_else_is_refused(release: Release, how: str) -> None:
    head = bare(release)
    body = {
        "nothing": b"", "short": b"\x00\x00", "no vectors": head, "one vector": head + vectors([1]),
        "three vectors": head + vectors([1], [2], [3]), "half an integer": head + vectors([1], [2])[:-4],
        "a count alone": head + vectors([1]) + COUNT.pack(1),
        "values twice": LENGTH.pack(len(encode(release))) + encode(release) + vectors([1], [2]),
        "cut off": pack(release)[:-200], "a length beyond": LENGTH.pack(2**32 - 1) + head[4:],
        "JSON": encode(release),
    }[how]  # fmt: skip
    with pytest.raises(InvalidPlan):
        unpack(body)


@pytest.mark.parametrize("count", [3, 2**31, 2**61, 2**63, 2**64 - 1])
def test_a_count_beyond_the_bytes_is_refused_and_nothing_is_allocated(release: Release, count: int) -> None:
    body = bare(release) + vectors([1, 2], count=count)
    tracemalloc.start()
    with pytest.raises(InvalidPlan, match="too early"):
        unpack(body)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_damaged_bytes_never_give_another_error(release: Release, tmp_path: Path) -> None:
    """Each of many single flipped bytes is refused, or gives a release of the same shape."""
    data = pack(release)
    for place_of in range(0, len(data), max(1, len(data) // 400)):
        damaged = data[:place_of] + bytes([data[place_of] ^ 0x55]) + data[place_of + 1 :]
        with suppress(DitherError):
            assert len(unpack(damaged).parts) == 2
