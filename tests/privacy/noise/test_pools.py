"""Buffers of samples: each value is handed out once and then wiped, also with threads and forks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from dither.privacy.bits import Bits, SystemBits
from dither.privacy.noise import discrete_laplace, noisy_max, pools
from dither.privacy.noise.pools import BUFFER_SIZE, BUFFERS, SampleBuffer, SampleBuffers
from privacy.doubles import RecordedBits
from privacy.noise_cases import SMALL, F


@pytest.fixture
def counter() -> Iterator[SampleBuffer]:
    """A pool of 1, 2, 3, ..."""
    fills = iter(range(1000))
    yield SampleBuffer(lambda size, bits: np.arange(1, size + 1) + size * next(fills))


def test_a_pool_hands_out_each_value_once_and_wipes_it(counter: SampleBuffer) -> None:
    taken = [counter.take(size) for size in (1, 10, 0, 1000)]
    assert np.concatenate(taken).tolist() == list(range(1, 1012))
    assert not counter._values[:1011].any()
    assert counter._values[1011:].all()


def test_a_pool_refills_before_it_runs_out(counter: SampleBuffer) -> None:
    old = counter.take(BUFFER_SIZE - 3), counter._values
    assert counter.take(4).tolist() == [BUFFER_SIZE + 1, BUFFER_SIZE + 2, BUFFER_SIZE + 3, BUFFER_SIZE + 4]
    assert not old[1].any()


def test_a_pool_never_hands_out_wiped_values(counter: SampleBuffer) -> None:
    counter.take(5)
    counter.retire()
    assert counter.take(3).all()


def test_a_failed_refill_leaves_the_pool_empty() -> None:
    broken = SampleBuffer(lambda size, bits: {}[size])
    for _ in range(2):
        with pytest.raises(KeyError):
            broken.take(1)


def test_threads_share_a_pool_without_repeats(counter: SampleBuffer) -> None:
    with ThreadPoolExecutor(8) as executor:
        taken = np.concatenate(list(executor.map(counter.take, [7, 1, 100, 13] * 2000)))
    assert len(np.unique(taken)) == len(taken)
    assert taken.all()


def test_only_one_thread_is_inside_a_pool() -> None:
    inside, crowded = [], []

    def slow(size: int, _: Bits) -> NDArray[np.int64]:
        inside.append(1)
        time.sleep(0.02)
        crowded.append(len(inside))
        inside.pop()
        return np.ones(size, np.int64)

    pool = SampleBuffer(slow)
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(pool.take, [4000] * 40))
    assert set(crowded) == {1}
    assert len(crowded) == 3


def test_the_number_of_pools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_BUFFERS", 3)
    store = SampleBuffers()
    store.take(1, F(1), 1)
    (oldest,) = store._pools.values()
    values = oldest._values
    for scale in range(2, 7):
        store.take(1, F(scale), 1)
    assert [numerator for _, numerator, _ in store._pools] == [4, 5, 6]
    assert not values.any()


def test_a_child_forgets_the_pools_and_wipes_them() -> None:
    store = SampleBuffers()
    store.take(1, F(3), 1)
    (pool,) = store._pools.values()
    values = pool._values
    store._forget()
    assert not store._pools
    assert not values.any()


def test_injected_bits_never_touch_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUFFERS, "take", lambda *_: pytest.fail("a pool was used"))
    discrete_laplace(F(7), 10, RecordedBits("straight"))
    discrete_laplace(F(7), 10, SystemBits(), SMALL)
    noisy_max(np.arange(3), F(1), RecordedBits("straight"))
    with pytest.raises(pytest.fail.Exception):
        discrete_laplace(F(7), 10, SystemBits())


def test_results_belong_to_the_caller() -> None:
    first = discrete_laplace(F(10**6), 50, SystemBits())
    kept = first.copy()
    discrete_laplace(F(10**6), 4000, SystemBits())
    assert np.array_equal(first, kept)
