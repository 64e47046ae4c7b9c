from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from dither.errors import InvalidParameter
from dither.privacy import bits as bits_module
from dither.privacy.bits import Keystream, SystemBits
from dither.privacy.noise import discrete_laplace

WIDE = Fraction(1 << 40)


def sample() -> set[object]:
    """Traces of this thread's stream: single words, and runs of noise from a pool and from a large batch.

    Two independent samples share an element with probability below 1e-12.
    """
    source = SystemBits()
    words = source.words(64, 64).tolist()
    pooled = discrete_laplace(WIDE, 64, source).tolist()
    batch = discrete_laplace(WIDE, 5000, source).tolist()
    runs = [tuple(values[i : i + 3]) for values in (pooled, batch) for i in range(len(values) - 2)]
    return {*words, source.integer(200), *runs}


def assert_disjoint(samples: list[set[object]]) -> None:
    assert len(set().union(*samples)) == sum(map(len, samples))


def in_forked_children(work: Callable[[], set[object]], children: int) -> list[set[object]]:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(children)]

    def child(sender: Connection) -> None:
        sender.send(work())

    processes = [context.Process(target=child, args=(sender,)) for _, sender in pipes]
    for process in processes:
        process.start()
    results = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return results


@pytest.mark.parametrize("bits", [1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64])
def test_words_have_the_width_that_was_asked_for(bits: int) -> None:
    words = SystemBits().words(4096, bits)
    assert words.dtype == (np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)
    assert len(words) == 4096
    assert int(words.max()).bit_length() == bits  # fails with probability 2^-4096


def test_words_of_size_zero() -> None:
    assert len(SystemBits().words(0, 7)) == 0


@pytest.mark.parametrize("bits", [0, 65, -1])
def test_widths_that_no_word_has_are_refused(bits: int) -> None:
    with pytest.raises(InvalidParameter, match="1 to 64"):
        SystemBits().words(1, bits)


def test_integers_of_any_width() -> None:
    source = SystemBits()
    assert source.integer(0) == 0
    assert {source.integer(1) for _ in range(200)} == {0, 1}
    assert max(source.integer(1000) for _ in range(200)).bit_length() == 1000
    with pytest.raises(InvalidParameter):
        source.integer(-1)


@pytest.mark.parametrize("bits", [4, 12, 24, 40])
def test_words_are_uniform(bits: int) -> None:
    words = SystemBits().words(1 << 17, bits)
    for shift in range(0, bits, 4):
        counts = np.bincount((words >> words.dtype.type(shift)).astype(np.int64) & 15, minlength=16)
        statistic = float(((counts - 8192.0) ** 2 / 8192).sum())
        assert statistic < chi2.isf(1e-11, 15)  # 22 cases at 1e-11 each


def test_the_keystream_is_aes_256_in_counter_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """NIST SP 800-38A, F.5.5: CTR-AES256.Encrypt, with the plain text taken away."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    monkeypatch.setattr(os, "urandom", lambda size: {32: key, 16: counter}[size])
    stream = bytearray(32)
    Keystream().fill(memoryview(stream))
    expected = "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
    assert stream.hex() == expected


def test_long_fills_are_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    whole, first, rest = bytearray(200_001), bytearray(70_000), bytearray(130_001)
    Keystream().fill(memoryview(whole))
    pieces = Keystream()
    pieces.fill(memoryview(first))
    pieces.fill(memoryview(rest))
    assert whole == first + rest


def test_keys_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    urandom = os.urandom
    monkeypatch.setattr(bits_module, "BYTES_PER_KEY", 1 << 17)
    monkeypatch.setattr(os, "urandom", lambda size: calls.append(size) or urandom(size))
    stream = Keystream()
    for _ in range(8):
        stream.fill(memoryview(bytearray(1 << 16)))
    assert calls.count(32) >= 3


def test_there_is_no_seed() -> None:
    with pytest.raises(TypeError):
        SystemBits(1)  # type: ignore[call-arg]


def test_a_pickled_source_carries_no_key() -> None:
    source = SystemBits()
    source.words(1, 64)
    assert source.__dict__ == {}
    assert len(pickle.dumps(source)) < 100


def test_threads_never_share_a_stream() -> None:
    together = Barrier(8)

    def work(_: int) -> set[object]:
        together.wait()
        return sample()

    with ThreadPoolExecutor(8) as executor:
        assert_disjoint([*executor.map(work, range(8)), sample()])


def test_each_thread_has_a_keystream_of_its_own() -> None:
    together = Barrier(4)

    def work(_: int) -> list[Keystream]:
        together.wait()
        return [bits_module._stream(), bits_module._stream()]

    with ThreadPoolExecutor(4) as executor:
        pairs = list(executor.map(work, range(4)))
    assert all(first is second for first, second in pairs)
    assert len({id(first) for first, _ in pairs}) == 4


def test_forked_processes_never_share_a_stream_or_a_pool() -> None:
    sample()  # the parent has a stream and a half-used pool
    assert_disjoint([*in_forked_children(sample, 4), sample()])


def test_grandchildren_never_share_a_stream() -> None:
    sample()
    families = in_forked_children(lambda: {frozenset(sample()), *map(frozenset, in_forked_children(sample, 2))}, 2)
    assert_disjoint([set(member) for family in families for member in family])  # type: ignore[call-overload]


def test_the_fork_test_sees_a_stream_that_is_not_forgotten() -> None:
    """A child that keeps its parent's key repeats the parent's words: what the two tests above look for."""
    stream = Keystream()

    def work() -> set[object]:
        words = bytearray(64)
        stream.fill(memoryview(words))
        return {bytes(words)}

    with pytest.raises(AssertionError):
        assert_disjoint(in_forked_children(work, 2))


@pytest.mark.tier("test")
def test_spark_tasks_never_share_a_stream(spark: Any) -> None:
    def task(_: Any) -> list[list[int]]:
        from dither.privacy.bits import SystemBits
        from dither.privacy.noise import discrete_laplace

        source = SystemBits()
        noise = discrete_laplace(WIDE, 64, source).tolist()
        return [[*source.words(64, 64).tolist(), *noise]]

    rows = spark.sparkContext.parallelize(range(8), 8).mapPartitions(task).collect()
    assert len(rows) == 8
    assert_disjoint([{*row[:64], *zip(row[64:], row[65:], row[66:], strict=False)} for row in rows])
