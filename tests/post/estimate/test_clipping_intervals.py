"""The proved part of intervals that allow for clipping; `test_contribution.py` measures the modelled part."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dither.errors import InvalidParameter
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.post.contribution_bound import OPTIMIZE_FOR, judged_cells
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import estimate
from dither.post.estimate.measured import clipped_column
from dither.post.formulas import NoisyCell
from dither.post.noise import ScaledNoise, interval_half_width
from dither.post.session import Session
from dither.privacy import contribution_bound
from dither.privacy.contribution_bound import (
    FALSE_BIN,
    SEEN_TOGETHER,
    choose_contribution_bound,
    fit_contributions,
)
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import BoundRule, BoundSearch

SCALE, SIZE = 5.0, 62


def chance_beyond(level: float, bins: int) -> float:
    """The exact probability that discrete Laplace noises of some bins add up to more than `level` scales."""
    reach = 400
    points = np.arange(-reach, reach + 1)
    one = np.exp(-np.abs(points) / SCALE)
    one, total = one / one.sum(), np.ones(1)
    for _ in range(bins):
        total = np.convolve(total, one)
    sums = np.arange(len(total)) - bins * reach
    return float(total[sums > level * SCALE].sum())


def false_alarms() -> float:
    """The sum, over all windows, of the exact chance that noise alone lifts one above its level."""
    levels = {bins: contribution_bound._seen_level(bins, SIZE) for bins in SEEN_TOGETHER}
    return sum(SIZE * chance_beyond(level, bins) for bins, level in levels.items())


def test_noise_alone_is_seen_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, no draws. The planted fault, a level for one window instead of for all, is an alarm."""
    assert false_alarms() <= 2 * FALSE_BIN
    monkeypatch.setattr(contribution_bound, "_seen_level", lambda bins, size: -np.log(2 * FALSE_BIN))
    assert false_alarms() > 2 * FALSE_BIN


def column(bound: int, top: int, signed: bool = False) -> EstimatedBound:
    """A bound with what is inferred from a noisy histogram of people with up to 64 rows."""
    points = tuple(1 << power for power in range(1, 7))
    counts = np.array([500.0, 400, 300, 200, 100, 60, 30])
    return EstimatedBound(bound, fit_contributions(points, counts, SCALE, top=top), signed)


def test_at_a_cap_the_interval_is_that_of_the_noise() -> None:
    """And the planted fault, a bound below the cap taken for the cap, is not."""
    noise, values = ScaledNoise("laplace", 80.0), np.array([1000.0, 200.0])
    half = interval_half_width([noise], 0.95)
    for bound, exact in ((128, True), (32, False)):
        source = clipped_column(values, noise, values / values.sum(), column(bound, 128), 1.0, 0.95)
        found = estimate(NoisyCell(0), [source], [], 0.95)
        assert np.allclose(found.value, values) == exact
        assert np.allclose((found.high - found.low) / 2, half) == exact


def test_sums_of_either_sign_are_not_raised_and_err_both_ways() -> None:
    missing, less, more = column(16, 128, signed=True).missing(np.ones(1), 0.95)
    assert missing == 0 and less == more > 0
    raised, _, _ = column(16, 128).missing(np.ones(1), 0.95)
    assert raised > 0


def test_noise_and_clipping_are_told_apart(session: Session) -> None:
    """The square of the whole error is that of both parts, and the estimate includes what was removed.

    A cell of few rows may be negative by its noise, and so is its share of what was removed.
    """
    found = session.sql("SELECT action, COUNT(*) AS n FROM actions GROUP BY action", epsilon=1)
    (removed, most), total = found["n"].clipped, found["n"].std_error
    assert removed.sum() > 0 and (most >= removed).all() and (total >= found["n"].noise).all()
    assert found.table["n_clipped"].to_pylist() == removed.tolist()
    assert any(note.startswith("n: the standard error is") for note in found.notes)
    plain = session.sql("SELECT COUNT(*) AS n FROM users", epsilon=1)
    assert plain["n"].clipped == (0.0, 0.0) and "n_clipped" not in plain.table.column_names


def test_a_given_bound_is_labelled_or_reported(session: Session) -> None:
    query = "SELECT COUNT(*) AS n FROM actions"
    truth = session.sql(query, epsilon=100)["n"].value
    label = session.sql(query, epsilon=10, max_contributions=2)
    assert str(label).startswith("n (of clipped data)") and label["n"].interval[1] < truth
    assert any("this is an answer about clipped data: each user adds at most" in note for note in label.notes)
    covered = session.sql(query, epsilon=10, max_contributions={"max_rows": 2, "report": True})
    low, high = covered["n"].interval
    assert low < truth < high and str(covered).startswith("n\n")
    assert any(note.startswith("contribution bound as given: each user adds at most 2 rows") for note in covered.notes)


def test_a_bound_may_be_best_for_small_groups(session: Session) -> None:
    """The same histogram, judged for smaller and smaller cells, asks for less noise and so for smaller bounds."""
    counts, mechanism = [20_000 >> power for power in range(20)], DiscreteLaplace(Fraction(5))
    points, bounds = tuple(1 << power for power in range(1, 20)), []
    for aim in ("answer", "typical", "smallest"):
        rule = BoundRule(points, Fraction(7, 4), judged_cells(16, OPTIMIZE_FOR[aim]))
        search = BoundSearch(Count(Scan("actions")), mechanism, points, "mass", rule)
        bounds.append(choose_contribution_bound(search, counts, mechanism))
    assert bounds == sorted(set(bounds), reverse=True) and len(bounds) == 3
    assert judged_cells(16, "total") == judged_cells(1, "smallest") == 1
    query = "SELECT action, COUNT(*) AS n FROM actions GROUP BY action"
    assert session.explain(query, optimize_for="smallest").lines
    with pytest.raises(InvalidParameter, match="optimize_for must be one of answer, total, typical, smallest"):
        session.sql(query, epsilon=1, optimize_for="all")
