"""A chi-squared test of independence of two columns that accounts for the noise and keeps its level.

The statistic divides each squared difference from independence by the cell's expected count plus the variance of its
noise. Its distribution under independence is simulated: multinomial tables with the estimated margins, plus noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dither.errors import InvalidParameter
from dither.post.estimate.answer import Answer
from dither.post.estimate.explain import Expected, default_group_size
from dither.post.noise import Floats, ScaledNoise
from dither.post.statistics.comparison import p_text, population_note, present_question, tail_share
from dither.post.statistics.core import Measurements, Part, Statistic, expected_noise
from dither.post.statistics.grid import draw_noise, level_counts
from dither.post.statistics.power import FOUND, smallest_dependence
from dither.post.statistics.result import Result
from dither.post.statistics.source_rows import SourceRows
from dither.privacy.protocol import Measurement

SIMULATIONS = 1_999
# Values of Cramér's V among which its interval is searched; a wider interval than this says nothing.
GRID, WIDEST_STRENGTH = np.linspace(0, 1, 201), 0.5


@dataclass(frozen=True, repr=False)
class Independence(Result):
    """A noisy contingency table of two columns, and a test that they are independent.

    `p_value` is the probability of a statistic at least as large under independence, noise included, and `cramers_v`
    an estimate of the strength of dependence, from 0 to 1, with what the noise and the sampling add taken off. It has
    an interval, and is nan if noise hides it.
    """

    p_value: float = 1.0
    statistic: float = 0.0
    cramers_v: float = math.nan
    cramers_v_interval: tuple[float, float] = (0.0, 1.0)


def make_independence(rows: SourceRows, one: str, two: str) -> Statistic[Independence]:
    """Make the statistic that tests the independence of two columns."""
    if one.strip() == two.strip():
        raise InvalidParameter(f"independence needs two different columns, got {one!r:.60} twice")
    plan = rows.settings.planner.plan(present_question(rows, ["COUNT(*) AS n"], (one, two)))
    shape = tuple(len(axis.values) for axis in plan.measures[0].measure.axes(rows.context))

    def build(measured: Measurements) -> Independence:
        counts, noise = level_counts(measured.parts[0])
        found = chi_squared_test(counts.reshape(shape), noise, confidence=measured.settings.confidence)
        answer: Answer = measured.parts[0].answer(measured.settings, measured.releases)
        title = f"{one} and {two}"
        summary = (f"{title}: {p_text(found.p_value)} under independence; {strength_text(found)}",)
        fields = {
            name: getattr(answer, name) for name in ("columns", "keys", "confidence", "loss", "releases", "bounds")
        }
        notes = (*measured.notes, population_note(measured.settings))
        return Independence(
            query=title, notes=notes, summary=summary, **fields,
            p_value=found.p_value, statistic=found.statistic, cramers_v=found.cramers_v,
            cramers_v_interval=found.interval,
        )  # fmt: skip

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        cell = expected_noise(rows.settings, "a cell", plan, parts[0])
        size = prod(shape) * default_group_size(rows.context, plan, parts[0])
        smallest = smallest_dependence(shape, size, cell.std_error**2)
        name = f"dependence {FOUND} as Cramér's V"
        return [cell, Expected(name, smallest, smallest, True, size, cell.known)]

    return Statistic(rows.settings, (Part(plan),), build, expect)


@dataclass(frozen=True)
class ChiSquared:
    """The result of a chi-squared test on a noisy table; Cramér's V has an interval, and is nan if noise hides it."""

    p_value: float
    statistic: float
    cramers_v: float
    interval: tuple[float, float]


def chi_squared_test(
    table: Floats, noise: ScaledNoise, simulations: int = SIMULATIONS, seed: int = 1, confidence: float = 0.95
) -> ChiSquared:
    """Test the independence of the rows and columns of a noisy table."""
    total = float(table.sum())
    if total < 1:
        return ChiSquared(1.0, 0.0, math.nan, (0.0, 1.0))
    random = np.random.default_rng(seed)
    row_share, column_share = (margin_shares(table, axis) for axis in (1, 0))
    cells = np.outer(row_share, column_share).ravel()
    drawn = random.multinomial(round(total), cells / cells.sum(), simulations).astype(float)
    simulated = (drawn + draw_noise(noise, drawn.shape, random)).reshape(simulations, *table.shape)
    found = float(noisy_chi_squared(table[None], noise.variance)[0])
    null = noisy_chi_squared(simulated, noise.variance)
    plain, plain_null = float(noisy_chi_squared(table[None], 0.0)[0]), noisy_chi_squared(simulated, 0.0)
    size, freedom = total * max(1, min(table.shape) - 1), max(1, prod(side - 1 for side in table.shape))
    # Dependence adds at most as much to the test's statistic as to the plain one, so the former bounds it from below.
    extra = random.standard_normal(simulations)
    tail = (1 - confidence) / 2
    low = strengths(null, extra, 1.0, size)
    high = strengths(plain_null, extra, float(plain_null.mean()) / freedom, size)
    least = float(GRID[np.flatnonzero([*(np.mean(low >= found, axis=1) > tail)[:-1], True])[0]])
    most = max(least, float(GRID[np.flatnonzero([True, *(np.mean(high <= plain, axis=1) > tail)[1:]])[-1]]))
    strength = math.sqrt(max(0.0, plain - float(plain_null.mean())) / size)
    hidden = most - least > WIDEST_STRENGTH
    value = math.nan if hidden else min(max(strength, least), most)
    return ChiSquared(tail_share(null, found), found, value, (least, most))


def strengths(null: Floats, extra: Floats, variance: float, size: float) -> Floats:
    """Return simulated statistics for each Cramér's V of a grid: what dependence adds, and its product with the noise.

    `variance` is that of a difference from independence, in units of an expected count.
    """
    added = (GRID**2 * size)[:, None]
    return np.asarray(null + added + 2 * np.sqrt(added * variance) * extra)


def strength_text(found: ChiSquared) -> str:
    """Write Cramér's V with its interval, or say that noise hides it."""
    low, high = found.interval
    if math.isnan(found.cramers_v):
        known = f"; at least {low:.2f}" if low >= 0.005 else ""
        return f"noise hides Cramér's V{known}"
    return f"Cramér's V {found.cramers_v:.2f} [{low:.2f}, {high:.2f}]"


def margin_shares(table: Floats, axis: int) -> Floats:
    """Return the shares of a margin of a noisy table, of which none is negative."""
    margin = np.maximum(table.sum(axis=axis), 1e-9)
    return np.asarray(margin / margin.sum())


def noisy_chi_squared(tables: Floats, variance: float) -> Floats:
    """Return, for each table, the sum of squared differences from independence, over expected counts plus variance."""
    rows, columns = np.maximum(tables.sum(axis=2), 0.0), np.maximum(tables.sum(axis=1), 0.0)
    total = np.maximum(tables.sum(axis=(1, 2)), 1.0)
    expected = rows[:, :, None] * columns[:, None, :] / total[:, None, None]
    return np.asarray(((tables - expected) ** 2 / np.maximum(expected + variance, 1.0)).sum(axis=(1, 2)))
