"""Rules that turn released counts into a bound: total, and never outside the public ladder."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dither.errors import InvalidPlan
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.privacy import contribution_bound
from dither.privacy.contribution_bound import choose_contribution_bound, fit_contributions
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.protocol import MAX_SIZES, BoundRule, BoundSearch, KnownSize

POINTS = tuple(1 << power for power in range(20))
LAPLACE = DiscreteLaplace(Fraction(10))
COUNT = Count(Scan("actions"))
ROWS = (1, 2, 3, 4, *(round(2 ** (half / 2)) for half in range(5, 40)))


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


def hidden_units(seed: int) -> list[int]:
    """Noise of scale 300 hides every bin of 4,000 units that have 16 to 511 rows each, about 95 on average."""
    counts = np.zeros(len(ROWS) + 1)
    counts[8:18] = 100, 200, 400, 500, 600, 700, 700, 500, 200, 100
    return np.rint(counts + np.random.default_rng(seed).laplace(0, 300, len(counts))).astype(int).tolist()


SIZES = (KnownSize(256, 340_000, 51_200, True), KnownSize(1, 4_000, 200, True))


def test_where_noise_hides_the_units_public_sizes_keep_bounds_and_add_backs_sane() -> None:
    """The named bug: bounds of up to 5,792 rows, and 14 to 72% believed clipped, where no unit has more than 575.

    Fixed seeds: with sizes, no search goes that wrong. Without, several miss half of all rows or double them.
    """
    mechanism = DiscreteLaplace(Fraction(300))
    for sizes, wrong in ((SIZES, range(1)), ((), range(4, 20))):
        rule, far_off = BoundRule(ROWS, Fraction(100), 1, sizes=sizes), 0
        for seed in range(20):
            noisy, sought = hidden_units(seed), BoundSearch(COUNT, mechanism, ROWS, "rows", rule)
            bound = choose_contribution_bound(sought, noisy, mechanism)
            model = fit_contributions(ROWS, noisy, 300.0, sizes=sizes)
            far_off += not (64 <= bound <= 1_024 and 190_000 <= model.total() <= 760_000)
        assert far_off in wrong


def test_a_size_that_is_only_a_limit_does_not_raise_what_is_believed() -> None:
    """The named bug: a condition leaves 10 of 4,000 units, and the size of the whole table made them 4,000 again."""
    counts = [10, *[0] * len(ROWS)]
    limits = tuple(KnownSize(size.clip, size.amount, size.scale, False) for size in SIZES)
    totals = [fit_contributions(ROWS, counts, 1_000.0, sizes=sizes).total() for sizes in ((), limits, SIZES)]
    assert totals[1] <= totals[0] < totals[2] / 5


def test_what_is_seen_is_part_of_a_size_and_is_not_made_up_again() -> None:
    """50,000 units of 4 or 5 rows that noise cannot hide are the whole table: no others are believed beyond them."""
    counts = np.zeros(len(ROWS) + 1)
    counts[4], whole = 50_000, (KnownSize(2**15, 200_000, 2_000, True),)
    for seed in range(4):
        noisy = np.rint(counts + np.random.default_rng(seed).laplace(0, 300, len(counts)))
        assert 150_000 < fit_contributions(ROWS, noisy, 300.0, sizes=whole).total() < 300_000


@pytest.mark.parametrize("size", [KnownSize(1, 2**62, 1, True), KnownSize(2**62, -(2**62), 2**62, False)])
def test_any_sizes_give_a_rung(size: KnownSize) -> None:
    for values in ([0] * (len(ROWS) + 1), hidden_units(0), [2**62] * (len(ROWS) + 1)):
        rule = BoundRule(ROWS, Fraction(1), 1, sizes=(size,) * MAX_SIZES)
        assert choose_contribution_bound(BoundSearch(COUNT, LAPLACE, ROWS, "rows", rule), values, LAPLACE) in ROWS


def test_sizes_that_could_fail_or_take_long_are_refused() -> None:
    for parts in ((0, 1, 1), (1, 1, 0), (1, 2**63, 1), (2**63, 1, 1)):
        with pytest.raises(InvalidPlan, match="known size"):
            KnownSize(*parts, True)
    with pytest.raises(InvalidPlan, match="known sizes"):
        BoundRule(POINTS, Fraction(1), 1, sizes=SIZES * MAX_SIZES)


def removed_beyond(bound: int) -> tuple[float, float]:
    """What a bound removes from 20,000 people of Pareto index 1.1 with a cap, about: by the model, and exactly."""
    index, people, cap = 1.1, 20_000, 5_000
    edges = tuple(point + 1 for point in ROWS if point < cap)
    above = np.array([1.0, *((3 / edge) ** index for edge in np.maximum(edges, 3.0)), 0.0])
    model = fit_contributions(edges, people * -np.diff(above), 5.0, 1, cap)
    whole = 3**index * (cap ** (1 - index) - bound ** (1 - index)) / (1 - index)
    return float(np.median(model.removed_totals(bound))), people * whole


def test_what_a_pareto_tail_loses_up_to_a_cap_is_added_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected counts instead of noisy ones, so nothing here is random."""
    found, exact = removed_beyond(512)
    assert found == pytest.approx(exact, rel=0.08)
    whole = contribution_bound._mean_positions

    def in_the_middle(lower: Any, upper: Any, counts: Any, scale: float) -> Any:
        return np.append(whole(lower, upper, counts, scale)[:-1], (lower[-1] + upper[-1]) / 2)

    monkeypatch.setattr(contribution_bound, "_mean_positions", in_the_middle)
    contribution_bound._fit_once.cache_clear()
    missed, _ = removed_beyond(512)
    contribution_bound._fit_once.cache_clear()
    assert missed < 0.9 * exact
