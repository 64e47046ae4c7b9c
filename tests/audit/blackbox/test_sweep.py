"""Faults inside a domain are found by the default call: few runs of many pairs, before the search. Seeds are fixed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dither import audit
from dither.audit import Choices, Examples, Numbers, Records, Vectors
from dither.audit.blackbox.sweep import describe_pairs
from dither.audit.input_domains import neighbours_in, neighbours_throughout
from dither.audit.neighbours import DistantPair
from dither.audit.stability import ValueDomain

Mechanism = Callable[[Any, int], Any]


def geometric(rng: np.random.Generator, size: Any, epsilon: float = 1.0) -> Any:
    """Return two-sided geometric noise."""
    stop = 1 - math.exp(-epsilon)
    return rng.geometric(stop, size) - rng.geometric(stop, size)


def counts(rng: np.random.Generator) -> Mechanism:
    """Return the right mechanism: noise on one count, or on each of several."""
    return lambda value, size: np.asarray(value) + geometric(rng, (size, *np.shape(value)))


def without_small_counts(rng: np.random.Generator, below: int) -> Mechanism:
    """Return the mechanism that decides by the true counts which ones it suppresses."""
    return lambda value, size: np.where(np.asarray(value) < below, 0, counts(rng)(value, size))


def one_of_three(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism on a vector of three counts, of which the input is the first."""
    return lambda value, size: mechanism([value, 40, 3], size)


def rounded(rng: np.random.Generator) -> Mechanism:
    """Return the mechanism that rounds the true count to 5, which may change it by 5, and adds noise for 1."""
    return lambda value, size: 5 * round(value / 5) + geometric(rng, size)


FAULTS: dict[str, tuple[Callable[[np.random.Generator], Mechanism], Any]] = {
    "a count below 5 is suppressed": (lambda rng: without_small_counts(rng, 5), Numbers(0, 100)),
    "a count below 5 of at most 10": (lambda rng: without_small_counts(rng, 5), Numbers(0, 10)),
    "a count below 10 of any size": (lambda rng: without_small_counts(rng, 10), Numbers(0, 10**9)),
    "a count below 10 of three is suppressed": (
        lambda rng: one_of_three(without_small_counts(rng, 10)), Numbers(0, 100),
    ),
    "counts below 10 of three are suppressed": (
        lambda rng: without_small_counts(rng, 10), Vectors(3, 0, 100, change=1),
    ),
    "a count is rounded to 5 before the noise": (rounded, Numbers(0, 100)),
    "few records are suppressed": (
        lambda rng: lambda rows, size: without_small_counts(rng, 11)(len(rows), size), Records(0, 1),
    ),
    "a small cell is suppressed": (
        lambda rng: lambda rows, size: without_small_counts(rng, 5)(sum(row["sex"] == "f" for row in rows), size),
        {"sex": ["m", "f"], "age": [0, 120]},
    ),
}  # fmt: skip


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_inside_a_domain_is_refuted_by_the_default_call(name: str) -> None:
    """The named bug: small-cell suppression passed, since only pairs at the ends of the domain and at 10 were tried."""
    make, domain = FAULTS[name]
    found = audit.privacy(make(np.random.default_rng(1)), "epsilon=1", domain=domain, seed=1)
    assert found.refuted and found.epsilon_lower > 3, str(found)
    # As in pytest: fewer samples, and a stricter alpha.
    assert audit.privacy(
        make(np.random.default_rng(2)), "epsilon=1", domain=domain, samples=200_000, alpha=1e-6, seed=2
    ).refuted


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("domain", "mode"),
    [(Numbers(0, 100), "fixed"), (Numbers(0, 100), "sequential"), (Vectors(3, 0, 100, change=1), "fixed")],
    ids=str,
)
def test_right_counts_are_not_refuted_and_the_sweep_is_stated(domain: Any, mode: str) -> None:
    # alpha 1e-9
    result = audit.privacy(
        counts(np.random.default_rng(1)), "epsilon=1", domain=domain, samples=100_000, alpha=1e-9, mode=mode, seed=1
    )
    assert not result.refuted and result.sweep is not None
    assert result.pairs_tried == len(neighbours_in(domain)) + result.sweep.kept
    assert len(result.as_dict()["sweep"]["pairs"]) == len(result.sweep.pairs) > 90
    assert "on this pair" in str(result) and "notices gross violations alone" in str(result)


def test_a_sweep_uses_no_more_samples_than_allowed_and_says_what_it_left_out() -> None:
    runs = 0
    rng = np.random.default_rng(1)

    def count(value: int, size: int) -> Any:
        nonlocal runs
        runs += size
        return value + geometric(rng, size)

    # alpha 1e-9
    result = audit.privacy(count, "epsilon=1", domain=Numbers(0, 100), samples=20_000, alpha=1e-9, seed=1)
    assert not result.refuted and runs == result.samples == 20_000
    assert result.sweep is not None and len(result.sweep.pairs) + result.sweep.skipped == 97
    assert "more were left out for want of samples" in str(result)
    assert audit.privacy(count, "epsilon=1", [(0, 1)], samples=2000, alpha=1e-9, seed=1).sweep is None


@pytest.mark.tier("deep")
def test_the_sweep_notices_the_leak_that_it_states() -> None:
    """An output of one input alone, of the stated probability: 10 of 10 seeds, and 7 of 10 at half of it."""
    refuted = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)

        def leaky(value: int, size: int, rng: np.random.Generator = rng) -> Any:
            return np.where((value >= 38) & (rng.random(size) < 0.25), 1000, value + geometric(rng, size))

        refuted += audit.privacy(leaky, "epsilon=1", domain=Numbers(0, 100), samples=200_000, seed=seed).refuted
    assert refuted >= 8


@pytest.mark.parametrize(
    "domain",
    [
        Numbers(0, 100), Numbers(0, 10**9), Numbers(), Numbers(-5, 5, change=2), Numbers(0.0, 0.5), Numbers(-3, -2),
        Numbers(1e300, math.inf, change=1e290), Numbers(-math.inf, 7), Numbers(0.0, 10.0, change=0.001),
        Vectors(1, 0, 1), Vectors(3, 0, 100, change=1), Vectors(9, -1.0, 1.0),
    ],
    ids=str,
)  # fmt: skip
def test_the_pairs_of_a_sweep_are_distinct_neighbours_in_the_domain(domain: Any) -> None:
    pairs = [*neighbours_throughout(domain, np.random.default_rng(1)), *neighbours_in(domain)]
    for a, b in pairs:
        one, other = (list(each) if isinstance(each, list) else [each] for each in (a, b))
        assert len(one) == len(other) and all(domain.low <= each <= domain.high for each in [*one, *other])
        changes = [abs(y - x) for x, y in zip(one, other, strict=True) if x != y]
        assert len(changes) == 1 and changes[0] <= (domain.change or math.inf) * (1 + 1e-9)


def test_every_step_of_a_short_range_and_the_small_and_round_numbers_of_a_long_one_are_candidates() -> None:
    rng = np.random.default_rng(1)
    short = set(neighbours_throughout(Numbers(0, 300), rng))
    assert {(place, place + 1) for place in range(300)} <= short
    long = set(neighbours_throughout(Numbers(0, 10**6), rng))
    assert {(4, 5), (9, 10), (10, 11), (99, 100), (100, 101), (127, 128), (49_999, 50_000)} <= long
    lengths = {(len(a), len(b)) for a, b in neighbours_throughout(Records(0, 1), rng)}
    assert {(count, count + 1) for count in range(20)} <= lengths
    units = ValueDomain({"who": [1, 1000], "sex": ["f", "m"]}, unit="who")
    for a, b in neighbours_throughout(units, rng):
        assert b[:-1] == a and len({row["who"] for row in b}) == len(b)
    assert (0, 9) in neighbours_throughout(Choices(range(10)), rng)
    assert ([1, 3], [1, 2, 3]) in neighbours_throughout(Examples([[1, 2, 3]]), rng)


def test_a_domain_of_another_kind_has_no_sweep() -> None:
    class Pairs:
        def neighbours(self) -> list[Any]:
            return [(0, 1), DistantPair(0, 2, steps=2)]

    # alpha 1e-9
    found = audit.privacy(
        counts(np.random.default_rng(1)), "epsilon=1", domain=Pairs(), samples=4000, alpha=1e-9, seed=1
    )
    assert not found.refuted and found.sweep is None and "2 tried" in str(found)


def test_pairs_are_named_by_the_stretches_that_they_cover() -> None:
    steps = [(place, place + 1) for place in range(9)]
    assert describe_pairs(steps) == "each step from 0 to 9"
    assert describe_pairs([*steps, (0, math.nan), (20, 21)]) == "each step from 0 to 9 and from 20 to 21"
    assert "3 more stretches" in describe_pairs([(place, place + 1) for place in range(0, 27, 3)])
    assert describe_pairs([(0, 10), (10, 20), (3, 4)]) == "each step from 0 to 20"
    assert describe_pairs([(40, 41), *steps]) == "each step from 0 to 9 and from 40 to 41"
    assert describe_pairs([([0] * 99, "a\nb")]) == f"such as {str([0] * 99)[:57]}... and 'a\\nb'"
    assert describe_pairs([([0], [1])]) == "such as [0] and [1]"
