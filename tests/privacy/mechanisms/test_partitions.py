"""Partition selection and thresholds: the chance that a group is kept, and its delta."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from cases import laplace_reaches, optimal_chance, real
from dither.loss import ZCDP, Pure, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.bits import SystemBits, Words
from dither.privacy.mechanisms import calibrate, partitions
from dither.privacy.mechanisms.partitions import keep_probabilities


class OneWord:
    """Every uniform number is the same 128 bits."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, size: int, bits: int) -> Words:
        return np.repeat(np.array([self.word >> 64, self.word % 2**64], np.uint64), size // 2)

    def integer(self, bits: int) -> int:
        return self.word


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1/100"), ("1/20", "1/1000000"), ("1/4", "5e-13"), ("8", "1/2")])
def test_partition_selection_is_optimal_and_rounded_down(epsilon: str, delta: str) -> None:
    """The chances are those of the paper, from below, and each bit pattern is decided as the table says."""
    e, d = Fraction(epsilon), Fraction(delta)
    made, chances = mechanisms.PartitionSelection(e, d), kept_chances(e, d)
    for units in {1, 2, 3, len(chances) // 2, len(chances) - 2, len(chances) - 1} & set(range(1, len(chances))):
        chance, exact = chances[units], np.array([units], np.int64)
        assert 0 <= optimal_chance(e, d, units) - mpf(chance) / 2**128 < mpf(2) ** -75
        assert made.release(exact, OneWord(chance - 1)).tolist() == [0]
        if chance < 2**128:
            assert made.release(exact, OneWord(chance)).tolist() == []
    assert made.release(np.array([0, -5]), OneWord(0)).tolist() == []
    assert made.release(np.array([2**63 - 1]), OneWord(2**128 - 1)).tolist() == [0]


def kept_chances(epsilon: Fraction, delta: Fraction) -> list[int]:
    """The chances of keeping 0, 1, 2, ... units as the table has them, in units of 2^-128."""
    upper, lower = keep_probabilities(epsilon, delta).tolist()
    return [0, *((high << 64 | low) + 1 for high, low in zip(upper, lower, strict=True))]


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1/100"), ("1/20", "1/1000000"), ("1/4", "5e-13")])
def test_the_rounded_chances_are_private(epsilon: str, delta: str) -> None:
    """Both inequalities of (epsilon, delta) for every pair of neighbouring counts, in 60 digits."""
    e, d = Fraction(epsilon), Fraction(delta)
    with mp.workdps(60):
        grown = mp.exp(real(e))
        chances = [mpf(chance) / 2**128 for chance in kept_chances(e, d)]
        for few, many in pairwise(chances):
            assert few <= many <= grown * few + real(d)
            assert 1 - few <= grown * (1 - many) + real(d)


def test_the_threshold_of_the_url_release() -> None:
    """Public shares + Laplace(5) > 100: epsilon 1/5 and about 1e-9 for an action, unless the URLs are declared."""
    action = Sensitivity.of(l0=1, linf=1)
    private = mechanisms.LaplaceThreshold(5, 101).loss(action)
    assert private.epsilon == Fraction(1, 5)
    assert float(private.delta) == pytest.approx(float(laplace_reaches(Fraction(5), 100)), rel=1e-12)
    assert 1.1e-9 < private.delta < 1.3e-9
    assert mechanisms.PublicThreshold(5, 101).loss(action) == Pure(Fraction(1, 5))


def test_public_keys_may_be_named_without_rows() -> None:
    empty = np.zeros(2000, np.int64)
    assert len(mechanisms.PublicThreshold(2, 1).release(empty, SystemBits())) > 0
    assert len(mechanisms.LaplaceThreshold(2, 1).release(empty, SystemBits())) == 0
    assert len(mechanisms.GaussianThreshold(2, 1).release(empty, SystemBits())) == 0


def test_one_of_several_events() -> None:
    assert partitions.any_probability(Fraction(1), 0) == partitions.any_probability(Fraction(1, 2), 0) == 0
    assert partitions.any_probability(Fraction(1), 3) == 1
    assert partitions.any_probability(Fraction(1, 10**50), 2) == Fraction(2, 10**50)
    assert float(partitions.any_probability(Fraction(1, 2), 2)) == 0.75
    assert partitions.any_probability(Fraction(1, 2), 2) >= Fraction(3, 4)


SELECTORS = {
    "partition_selection": mechanisms.PartitionSelection(Fraction(1, 2), Fraction(1, 1000)),
    "laplace_threshold": mechanisms.LaplaceThreshold(Fraction(2), 12),
    "gaussian_threshold": mechanisms.GaussianThreshold(Fraction(4), 8),
}


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("groups", [1, 2, 5, 40])
def test_delta_covers_every_group_that_a_person_may_touch(name: str, groups: int) -> None:
    """A person alone in several groups is revealed as soon as one of them is released."""
    mechanism, sensitivity = SELECTORS[name], Sensitivity.of(l0=groups, linf=1)
    with mp.workdps(60):
        alone = 1 - (1 - alone_chance(mechanism)) ** groups
        losses = [mechanism.zcdp_loss(sensitivity), mechanism.loss(sensitivity)]
        for stated in losses:
            assert alone <= real(stated.delta) <= alone * mpf("1.1")  # type: ignore[union-attr]


def alone_chance(mechanism: Any) -> Any:
    """The chance that a group of one person is released, by the definition of the noise."""
    if isinstance(mechanism, mechanisms.PartitionSelection):
        return real(mechanism.delta)
    need = mechanism.threshold - 1
    if isinstance(mechanism, mechanisms.LaplaceThreshold):
        return laplace_reaches(mechanism.scale, need)
    weights = {k: mp.exp(-mpf(k * k) / (2 * real(mechanism.variance))) for k in range(-200, 201)}
    return sum(weight for k, weight in weights.items() if k >= need) / sum(weights.values())


def shares(groups: int) -> Sensitivity:
    """At most `groups` groups, among which a unit divides a share of 60 equally."""
    return Sensitivity(*map(Fraction, (groups, 60, 60 * groups, 3600)), equal_shares=True)


def worst_lone_unit(mechanism: Any, groups: int) -> Any:
    """The largest chance, over all numbers of groups of a lone unit, that one of them is released."""
    weights = {k: mp.exp(-mpf(k * k) / (2 * real(mechanism.variance))) for k in range(-3000, 3001)}
    total, tails, mass = sum(weights.values()), {}, mpf(0)
    for k in range(3000, -3001, -1):
        mass += weights[k]
        tails[k] = mass / total
    return max(1 - (1 - tails[mechanism.threshold - int((3600 // k) ** 0.5)]) ** k for k in range(1, groups + 1))


@pytest.mark.parametrize("groups", [1, 2, 7, 30, 100])
@pytest.mark.parametrize("variance", [100, 3600, 40_000])
def test_delta_covers_a_lone_unit_of_any_number_of_keys(groups: int, variance: int) -> None:
    """Equal shares: one key with the whole share, or many with little each; delta for one group only is too small."""
    mechanism = calibrate("gaussian_threshold", ZCDP(Fraction(1800, variance), "1/100000"), shares(groups))
    with mp.workdps(40):
        worst = worst_lone_unit(mechanism, groups)
        stated = real(mechanism.zcdp_loss(shares(groups)).delta)
        assert worst <= stated <= worst * mpf("1.5") and stated <= mpf("1.00001e-5")


def test_the_worst_number_of_keys_sets_delta() -> None:
    """Narrow noise: one key with the whole share is the worst; wide noise: many keys with little each."""
    for variance, threshold in ((100, 100), (40_000, 1000)):
        mechanism = mechanisms.GaussianThreshold(variance, threshold)
        with mp.workdps(40):
            worst = worst_lone_unit(mechanism, 8)  # up to 8, every number of keys is counted by itself
            assert worst <= real(mechanism.loss(shares(8)).delta) <= worst * mpf("1.2")


def test_a_delta_for_one_group_only_is_caught(monkeypatch: Any) -> None:
    """With wide noise, many small shares are more likely to be named than one whole share."""
    mechanism = calibrate("gaussian_threshold", ZCDP(Fraction(1800, 40_000), "1/100000"), shares(100))
    with mp.workdps(40):
        worst = worst_lone_unit(mechanism, 100)
        monkeypatch.setattr(partitions, "lone_counts", lambda _: [(1, 60)])
        assert real(mechanism.zcdp_loss(shares(100)).delta) < worst / 5
