"""Rules that turn released counts into a bound: total, and never outside the public ladder."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.privacy.contribution_bound import choose_contribution_bound, fit_contributions
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.protocol import BoundRule, BoundSearch

POINTS = tuple(1 << power for power in range(20))
LAPLACE = DiscreteLaplace(Fraction(10))


def search(noise: Fraction = Fraction(3, 2), cells: int = 1) -> BoundSearch:
    return BoundSearch(Count(Scan("actions")), LAPLACE, POINTS[:-2], "rows", BoundRule(POINTS, noise, cells))


@pytest.mark.parametrize("mechanism", [LAPLACE, DiscreteGaussian(Fraction(1)), DiscreteLaplace(Fraction(1, 10**3))])
@pytest.mark.parametrize("size", [0, 1, 10**3, 2**62])
def test_any_counts_give_a_rung(mechanism: object, size: int) -> None:
    """Whatever noise may do: negative, huge, all equal."""
    random = np.random.default_rng(size % 7)
    for _ in range(50):
        values = random.integers(-size, size, len(POINTS) + 1, endpoint=True).tolist()
        for cells in (1, 10**6):
            assert choose_contribution_bound(search(cells=cells), values, mechanism) in POINTS[:-2]  # type: ignore[arg-type]
    for noise in (Fraction(0), Fraction(1, 10**40), Fraction(2**62)):
        assert choose_contribution_bound(search(noise), [-size] * (len(POINTS) + 1), mechanism) in POINTS[:-2]  # type: ignore[arg-type]


@pytest.mark.parametrize(("place", "rung_at"), [(-5, 1), (0, 1), (3, 8), (99, POINTS[-3])])
def test_without_a_rule_the_release_is_the_index(place: int, rung_at: int) -> None:
    plain = BoundSearch(Count(Scan("actions")), LAPLACE, POINTS[:-2])
    assert choose_contribution_bound(plain, [place], LAPLACE) == rung_at
    assert choose_contribution_bound(plain, [], LAPLACE) == 1


def test_more_noise_asks_for_a_smaller_bound_and_heavier_units_for_a_larger() -> None:
    counts = [0, *(10**6 >> power for power in range(len(POINTS)))]
    bounds = [
        choose_contribution_bound(search(noise), counts, LAPLACE)
        for noise in (Fraction(1, 100), Fraction(10), Fraction(10**4))
    ]
    assert bounds == sorted(bounds, reverse=True) and len(set(bounds)) == 3
    lighter = [0, *(10**6 >> 2 * power for power in range(len(POINTS)))]
    assert choose_contribution_bound(search(), counts, LAPLACE) > choose_contribution_bound(search(), lighter, LAPLACE)


def test_what_is_removed_is_what_lies_above() -> None:
    """Ten thousand units of 64 to 127 each, without noise: nothing above 127, all of it but one each above 1."""
    counts = np.zeros(len(POINTS) + 1)
    counts[7] = 10_000
    model = fit_contributions(POINTS, counts, 0.0)
    assert np.median(model.removed_totals(127)) == model.removed_squares(127) == model.bin_error(127) == 0
    assert np.median(model.removed_totals(1)) == pytest.approx(model.total() - 10_000)
    assert 64 * 10_000 <= model.total() <= 127 * 10_000
    assert model.seen == 127


def test_beyond_what_is_seen_counts_fall_and_end() -> None:
    """Counts that halve are continued for a while; a sudden fall is not; and without noise nothing is added."""
    halving = np.array([0.0, *(10_000 >> power for power in range(7)), *[0.0] * (len(POINTS) - 7)])
    fallen = np.where(np.arange(len(POINTS) + 1) < 5, 10_000.0, 0.0)
    for counts, most in ((halving, 300), (fallen, 60)):
        beyond = int(np.flatnonzero(counts)[-1]) + 1
        model = fit_contributions(POINTS, counts, 5.0)
        tail = np.median(model.draws, axis=0)[beyond:]
        assert 0 <= tail.sum() <= most and tail[-1] == 0
        exact = fit_contributions(POINTS, counts, 0.0)
        assert (exact.draws[:, beyond:] == 0).mean() > 0.95


def test_a_far_rung_is_believed_only_if_noise_cannot_explain_it() -> None:
    """The named bug: one far bin that noise had lifted made an interval thousands of times too wide."""
    counts = np.zeros(len(POINTS) + 1)
    counts[3] = 10_000
    for lifted, believed in ((60.0, False), (200.0, True)):
        counts[15] = lifted
        model = fit_contributions(POINTS, counts, 5.0)
        assert (model.seen > 10_000) == believed
        assert (np.quantile(model.removed_totals(64), 0.975) > 1_000_000) == believed


def test_the_same_release_gives_the_same_bound() -> None:
    counts = [0, *(10**5 >> power for power in range(len(POINTS)))]
    assert len({choose_contribution_bound(search(), counts, LAPLACE) for _ in range(5)}) == 1
