"""Quantiles by private selection on a fine grid, whole distribution functions with simultaneous bands, histograms.

Quantiles spend most of the loss on the points, and the rest on a tree of counts, from which their intervals come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import rational
from dither.plan import expressions as expr
from dither.post.estimate.answer import AnswerColumn
from dither.post.estimate.explain import Expected, default_group_size
from dither.post.estimate.measured import cell_shares
from dither.post.estimate.prediction import expected_rows, expected_units
from dither.post.noise import Floats, interval_half_width
from dither.post.options import excerpt
from dither.post.query.aggregated_values import without_null
from dither.post.query.query_plan import CellRef, QueryPlan
from dither.post.query.value_grid import ValueGrid, make_equal_grid, make_grid
from dither.post.statistics.arguments import LARGEST_LIST, read_list
from dither.post.statistics.contingency import normal_factor
from dither.post.statistics.core import MeasuredPart, Measurements, Part, Statistic, expected_noise
from dither.post.statistics.grid import (
    MOST_LEAVES,
    FittedTree,
    Tree,
    fit_tree,
    level_counts,
    make_tree,
    plan_cells,
    plan_grid,
    plan_tree,
    row_step,
)
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.selection import mechanism_at, selection_gap
from dither.post.statistics.source_rows import SourceRows
from dither.privacy.protocol import Measurement
from dither.schema import Number

FINEST_GRID = 1 << 18
FINEST_NOISY_MAX_GRID = 1 << 20
# The share of the loss for intervals is a tenth at this many rows times epsilon. It falls with the root of them: then
# more rows make both points and intervals better.
TENTH_ROWS, LEAST_SHARE, MOST_SHARE = 100_000, Fraction(1, 40), Fraction(1, 2)
# Leaves of a tree for so many rows times its epsilon: a typical leaf then has about as many rows as the noise hides.
LEAVES = ((500, 256), (3_000, 1024), (8_000, 4096))
MORE_LEAVES = 8000
DEFAULT_LEVELS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
SAMPLING_NOTE = (
    "intervals include sampling error, as if the rows were drawn independently from a large population; without "
    "population=True they are about these rows alone"
)
# A band for all ranks at once is as wide by sampling as if the variance of a rank were this, for each row.
BAND_VARIANCE = 0.57
POINTS_NOTE = "there are no intervals: the whole loss went to the points, which are off by some rows in rank"
# A note suggests other bins if one of several equal ones has a larger share of all rows than this.
CROWDED = 0.9
NO_ROWS = "the noisy number of rows is not above 0, so the shares are not defined"


def make_quantiles(
    rows: SourceRows, column: str, levels: Sequence[Any], population: bool, intervals: bool = True
) -> Statistic[QuantileTable]:
    """Make the statistic of the quantiles of a column."""
    wanted = read_levels(levels)
    domain = rows.domain(column)
    grid = make_grid(domain, FINEST_GRID if rows.settings.spend.gaussian else FINEST_NOISY_MAX_GRID)
    fine = plan_grid(rows, column, grid, ranked=True)
    if not intervals:
        return points_alone(rows, column, wanted, grid, fine, population)
    tree, share = interval_tree(rows, domain, fine)
    trees = plan_tree(rows, column, tree)
    points = Part(fine, 1 - share, rows.settings.spend.quantile_kind, (("quantiles", wanted),))
    parts = (points, *(Part(plan, share / len(trees)) for plan in trees))

    def build(measured: Measurements) -> QuantileTable:
        places = list(measured.parts[0].released[0].values)
        fitted = fit_tree(tree, measured.parts[1:])
        low, high = level_intervals(fitted, [float(level) for level in wanted], measured, population)
        value = grid.middles()[places]
        errors = (np.maximum(high, value) - np.minimum(low, value)) / (
            2 * normal_factor(False, rows.settings.confidence)
        )
        columns = [
            key_column("level", [float(level) for level in wanted]),
            noisy_column(column, value, errors, np.minimum(low, value), np.maximum(high, value)),
        ]
        notes = [*((SAMPLING_NOTE,) if population else ()), *hidden_points(wanted, fitted.total, measured, grid)]
        return QuantileTable(**result_fields(measured, f"quantiles of {column}", columns, notes=notes))

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        share = max(float(level * (1 - level)) for level in wanted) if population else 0.0
        return expected_ranks(rows, trees, parts[1:], share)

    return Statistic(rows.settings, parts, build, expect)


def hidden_points(
    wanted: tuple[Fraction, ...], total: float, measured: Measurements, grid: ValueGrid
) -> tuple[str, ...]:
    """Return a note on the levels with fewer rows beyond them than noise hides: any value beyond is then as likely.

    The exponential mechanism chooses among thousands of values that no row has as if some of those rows were there.
    """
    chosen, source = measured.parts[0].released[0].mechanism, measured.parts[0].plan.sources[0]
    gap = selection_gap(chosen, grid.size, 1, measured.settings.confidence)
    gap /= source.factor if isinstance(source, CellRef) else 1
    hidden = [f"{float(level):g}" for level in wanted if float(min(level, 1 - level)) * total < gap]
    if not hidden:
        return ()
    return (
        f"noise may hide about {gap:,.0f} rows in the choice of a point, and fewer lie beyond {', '.join(hidden)}: "
        "such a point may be far off, and only its interval tells where it is",
    )


def points_alone(
    rows: SourceRows, column: str, wanted: tuple[Fraction, ...], grid: ValueGrid, fine: QueryPlan, population: bool
) -> Statistic[QuantileTable]:
    """Make the statistic of quantiles without intervals, which spends the whole loss on the points."""
    if population:
        raise InvalidParameter("population=True widens intervals, so it needs intervals=True")

    def build(measured: Measurements) -> QuantileTable:
        value = grid.middles()[list(measured.parts[0].released[0].values)]
        columns = [key_column("level", [float(level) for level in wanted]), key_column(column, value.tolist())]
        return QuantileTable(**result_fields(measured, f"quantiles of {column}", columns, notes=[POINTS_NOTE]))

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        gap = selection_gap(mechanism_at(rows.settings, parts[0][0]), grid.size, 1, rows.settings.confidence)
        # A quantile is off by as much as those that it is chosen between, and by its own choice.
        gap *= len(wanted).bit_length()
        name = "rows by which the rank of a point may be off at most"
        return [Expected(name, gap / 2, gap, False, known=not fine.searches)]

    part = Part(fine, Fraction(1), rows.settings.spend.quantile_kind, (("quantiles", wanted),))
    return Statistic(rows.settings, (part,), build, expect)


def interval_tree(rows: SourceRows, domain: object, fine: QueryPlan) -> tuple[Tree, Fraction]:
    """Choose the tree for the intervals of quantiles, and its share of the loss: more if there are few rows.

    The public, noisy size of the table decides. Where units have many rows, their number stands for it, since noise
    hides units, and the share is half.
    """
    context, unit, relation = rows.context, rows.settings.unit, fine.question.relation
    size = expected_units(context, relation, unit) if fine.searches else expected_rows(context, relation, unit)
    known = max(0.0, size or 0.0) * float(rows.settings.spend.amount)
    share = MOST_SHARE if fine.searches else interval_share(known)
    return make_tree(domain, leaves_for(known * float(share))), share


def interval_share(rows: float) -> Fraction:
    """Return the share of the loss that goes to intervals, for a number of rows times epsilon.

    >>> [str(interval_share(rows)) for rows in (2_000, 20_000, 100_000, 1_000_000, 10_000_000)]
    ['1/2', '9/40', '1/10', '1/40', '1/40']
    """
    wanted = Fraction(round(4 * math.sqrt(TENTH_ROWS / max(rows, 1.0))), 40)
    return min(MOST_SHARE, max(LEAST_SHARE, wanted))


def leaves_for(rows: float) -> int:
    """Return the most leaves of a tree, for a number of rows times the epsilon of the tree."""
    return next((leaves for most, leaves in LEAVES if rows < most), MORE_LEAVES)


@dataclass(frozen=True, repr=False)
class QuantileTable(Result):
    """Quantiles of a column; each interval contains the quantile with the stated confidence.

    One that noise hides is nan, shown as unknown.
    """

    def cells(self, row: int) -> list[str]:
        """Return a row as text."""
        return [text.replace("nan", "unknown", 1) for text in super().cells(row)]

    def _repr_html_(self) -> str:
        return super()._repr_html_().replace(">nan ", ">unknown ")


def read_levels(levels: Any) -> tuple[Fraction, ...]:
    """Return the levels of quantiles as increasing rationals between 0 and 1."""
    wanted = sorted({rational(level, "a level") for level in read_list("levels", levels)})
    if wanted[0] <= 0 or wanted[-1] >= 1:
        raise InvalidParameter("the levels of quantiles lie between 0 and 1, such as [0.25, 0.5, 0.75]")
    return tuple(wanted)


def expected_ranks(
    rows: SourceRows, plans: Sequence[QueryPlan], parts: Sequence[Sequence[Measurement]], sampling: float = 0.0
) -> list[Expected]:
    """Return the expected half width of intervals, as a number of rows by which the rank may be off.

    `sampling` is the variance of a rank by sampling, for each row; 0 if intervals are about the rows at hand.
    """
    leaves = expected_noise(rows.settings, "rank", plans[-1], parts[-1])
    terms = sum(plan.measures[0].measure.size(rows.context) ** (1 / len(plans)) / 2 for plan in plans)
    size = default_group_size(rows.context, plans[0], parts[0]) * plans[0].measures[0].measure.size(rows.context)
    drawn, factor = math.sqrt(sampling * size), normal_factor(False, rows.settings.confidence)
    error, half = leaves.std_error * terms**0.5, leaves.half_width * terms**0.5
    error, half = math.hypot(error, drawn), math.hypot(half, factor * drawn)
    name = "rows by which the rank of an end of an interval may be off"
    return [Expected(name, error, half, sampling > 0, size if sampling > 0 else None, leaves.known)]


def level_intervals(
    fitted: FittedTree, levels: Sequence[float], measured: Measurements, population: bool
) -> tuple[Floats, Floats]:
    """Return the ends of the interval of each quantile: the leaves where the level may be crossed."""
    grid, factor = fitted.tree.grid, normal_factor(fitted.laplace, measured.settings.confidence)
    cumulative, total = fitted.cumulative, fitted.total
    lows, highs = grid.low_ends(), grid.high_ends()
    ends = []
    for level in levels:
        sampling = level * (1 - level) * max(total, 1.0) if population else 0.0
        width = factor * np.sqrt(fitted.excess_variances(level) + sampling) + 1e-9 * (1 + abs(total))
        excess = cumulative - level * total
        before = np.concatenate([[-np.inf], (excess - width)[:-1]])
        possible = np.flatnonzero((excess + width >= 0) & (before <= 0))
        ends.append((lows[possible[0]], highs[possible[-1]]) if len(possible) else (lows[0], highs[-1]))
    return np.array([low for low, _ in ends]), np.array([high for _, high in ends])


# --- the whole distribution ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Distribution(Result):
    """The empirical distribution function of a column: the share of rows up to each value, with a simultaneous band.

    With the stated confidence, the band contains the whole function.
    """

    values: Floats = field(default_factory=lambda: np.zeros(0))
    starts: Floats = field(default_factory=lambda: np.zeros(0))

    def at(self, value: float) -> tuple[float, float, float]:
        """Return the share of rows up to a value, with the ends of its band."""
        place = int(np.searchsorted(self.values, value, side="right")) - 1
        estimate = self.columns[-1].estimate
        if place < 0:
            return 0.0, 0.0, 0.0
        return float(estimate.value[place]), float(estimate.low[place]), float(estimate.high[place])

    def quantile(self, level: float) -> tuple[float, float, float]:
        """Return a quantile, with the ends of its interval: those of all levels hold together."""
        estimate = self.columns[-1].estimate
        place, first, last = (
            min(int(np.searchsorted(side, level)), len(self.values) - 1)
            for side in (estimate.value, estimate.high, estimate.low)
        )
        middle = (self.starts[place] + self.values[place]) / 2
        return float(middle), float(self.starts[first]), float(self.values[last])

    def __str__(self) -> str:
        rows = [f"{level:.0%} | {value:,.6g} [{low:,.6g}, {high:,.6g}]" for level, value, low, high in self._deciles()]
        return "\n".join([*self.summary, "share of rows | up to", *rows])

    def _deciles(self) -> list[tuple[float, float, float, float]]:
        return [(level, *self.quantile(level)) for level in (0.01, 0.05, *(k / 10 for k in range(1, 10)), 0.95, 0.99)]


def make_distribution(rows: SourceRows, column: str, population: bool) -> Statistic[Distribution]:
    """Make the statistic of a column's empirical distribution function."""
    tree = make_tree(rows.domain(column))
    plans = plan_tree(rows, column, tree)

    def build(measured: Measurements) -> Distribution:
        fitted = fit_tree(tree, measured.parts)
        share, error, low, high = simultaneous_band(fitted, measured.settings.confidence, population)
        values = tree.grid.high_ends()
        columns = [key_column("up to", values.tolist()), noisy_column("share", share, error, low, high)]
        notes = [*((SAMPLING_NOTE,) if population else ()), *(() if fitted.total > 0 else (NO_ROWS,))]
        level = f"{measured.settings.confidence:.0%}"
        summary = [
            f"{column}: about {max(0.0, fitted.total):,.0f} rows; {level} of such bands contain the whole function"
        ]
        return Distribution(
            **result_fields(measured, f"distribution of {column}", columns, summary, notes),
            values=values,
            starts=tree.grid.low_ends(),
        )

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_ranks(rows, plans, parts, BAND_VARIANCE if population else 0.0)

    return Statistic(rows.settings, tuple(map(Part, plans)), build, expect)


def simultaneous_band(fitted: FittedTree, confidence: float, population: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the shares of rows up to each leaf, their standard errors, and the ends of a simultaneous band.

    The band is the same number of standard errors wide everywhere: the quantile of the largest simulated error. For a
    population, the Dvoretzky-Kiefer-Wolfowitz bound is added, and each has half of what the confidence leaves.
    """
    total = max(fitted.total, 1.0)
    share = np.clip(smooth(fitted.cumulative / total), 0.0, 1.0)
    errors = (fitted.cumulative_errors - share * fitted.errors.sum(axis=1, keepdims=True)) / total
    std = errors.std(axis=0)
    largest = np.max(np.abs(errors) / np.maximum(std, 1e-300) * (std > 1e-12), axis=1)
    level = 1 - (1 - confidence) / 2 if population else confidence
    width = std * float(np.quantile(largest, level, method="higher"))
    if population:
        width = width + math.sqrt(math.log(2 / (1 - level)) / (2 * total))
    return share, std, np.clip(smooth(share - width), 0.0, 1.0), np.clip(smooth(share + width), 0.0, 1.0)


def smooth(values: Floats) -> Floats:
    """Return a function that never falls, between its running maximum and its running minimum from the end."""
    rising, falling = np.maximum.accumulate(values), np.minimum.accumulate(values[::-1])[::-1]
    return np.asarray((rising + falling) / 2)


# --- histograms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Histogram(Result):
    """A histogram: bin i has the values from `edges[i]` up to those below `edges[i + 1]`; the last includes its end."""

    edges: tuple[float, ...] = ()


PRIVATE_NOTE = "the edges are noisy quantiles, chosen in the same charge; the counts have noise of their own"
RESTORED_NOTE = "counts include an estimate of what bounds removed, and their intervals allow for its error"
BIN_NOTE = "a bin has the values from its first end up to those below its second; the last bin has its second end, too"


def make_histogram(
    rows: SourceRows, column: str, bins: int | Sequence[Any] | Literal["private"], most: int
) -> Statistic[Histogram]:
    """Make the statistic of a histogram with public edges, or with edges that are chosen privately."""
    domain = rows.domain(column)
    if isinstance(bins, str):
        if bins != "private":
            raise InvalidParameter("bins must be a number of bins, a list of edges, or 'private'")
        return _private_histogram(rows, column, most)
    whole, edges = make_equal_grid(domain, 1), public_edges(domain, bins)
    plan = _bucket_plan(rows, column, edges)
    ends = [float(whole.lo), *map(float, edges), float(whole.hi)]

    def build(measured: Measurements) -> Histogram:
        counted = bin_counts(measured)
        notes = [BIN_NOTE, *restored_notes(measured.parts[0])]
        notes += crowded_note(counted.estimate.value, ends) if isinstance(bins, int | np.integer) else []
        fields = result_fields(measured, f"histogram of {column}", [*bin_columns(ends), counted], notes=notes)
        return Histogram(**fields, edges=tuple(ends))

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return [expected_noise(rows.settings, "a bin", plan, parts[0])]

    return Statistic(rows.settings, (Part(plan),), build, expect)


def bin_counts(measured: Measurements) -> AnswerColumn:
    """Return the counts of public bins; where units have a bound, as COUNT(*) by group estimates them."""
    part = measured.parts[0]
    if part.bounds:
        return replace(part.answer(measured.settings, measured.releases).columns[-1], name="n")
    counts, noise = level_counts(part)
    half = interval_half_width([noise], measured.settings.confidence)
    return noisy_column("n", counts, np.full(len(counts), noise.std), counts - half, counts + half)


def restored_notes(part: MeasuredPart) -> list[str]:
    """Say that counts have what a bound removed added back, if one may have removed anything."""
    return [] if all(bound.clips_nothing for bound in part.bounds.values()) else [RESTORED_NOTE]


def crowded_note(counts: Floats, ends: Sequence[float]) -> list[str]:
    """Suggest other bins if one of several equal bins has nearly all rows."""
    place, total = int(np.argmax(counts)), float(np.maximum(counts, 0.0).sum())
    if counts[place] <= CROWDED * total:
        return []
    low, high = ends[place], ends[place + 1]
    return [
        f"{counts[place] / total:.0%} of all rows are in one bin, from {low:g} to {high:g}: the declared range is wide "
        "for them; bins='private' chooses bins with about as many rows each, in one charge"
    ]


def public_edges(domain: object, bins: int | Sequence[Any]) -> tuple[Fraction, ...]:
    """Return the inner edges of public bins: as given, or of equal bins over the declared range."""
    if isinstance(bins, int | np.integer):
        if isinstance(bins, bool) or not 2 <= bins <= LARGEST_LIST:
            raise InvalidParameter(f"a histogram has 2 to {LARGEST_LIST:,} bins, got {excerpt(bins)}")
        grid = make_equal_grid(domain, int(bins))
        width = grid.pieces[0].width * grid.step
        return tuple(grid.lo + number * width for number in range(1, grid.size))
    lo, hi = (domain.lo, domain.hi) if isinstance(domain, Number) else (Fraction(0), Fraction(0))
    given = sorted({rational(edge, "an edge") for edge in read_list("bins", bins)})
    inner = tuple(edge for edge in given if lo < edge < hi)
    if not inner:
        raise InvalidParameter(f"no edge lies inside the declared range, from {float(lo):g} to {float(hi):g}")
    return inner


def _bucket_plan(rows: SourceRows, column: str, edges: tuple[Fraction, ...]) -> QueryPlan:
    """Plan the counts of rows between edges."""
    question, value = rows.question(["COUNT(*) AS n"]), without_null(rows.expression(column), rows.scope)
    return plan_cells(rows, column, replace(question, keys=(("bin", expr.Bucket(value, edges)),)))


def _private_histogram(rows: SourceRows, column: str, most: int) -> Statistic[Histogram]:
    """Make a histogram whose edges are noisy quantiles; its counts come from a tree with noise of its own."""
    domain = rows.domain(column)
    if not 2 <= most <= MOST_LEAVES:
        raise InvalidParameter(f"most= must be from 2 to {MOST_LEAVES}, got {excerpt(most)}")
    tree = make_tree(domain)
    wanted = tuple(Fraction(number, most) for number in range(1, most))
    plans = plan_tree(rows, column, tree)
    ranked = plan_grid(rows, column, tree.levels[-1], ranked=True)
    chosen = Part(ranked, Fraction(1), rows.settings.spend.quantile_kind, (("quantiles", wanted),))
    parts = (chosen, *(Part(plan, Fraction(2, len(plans))) for plan in plans))

    def build(measured: Measurements) -> Histogram:
        inner = sorted({int(place) for place in measured.parts[0].released[0].values} - {0})
        starts = [0, *inner]
        fitted, confidence = fit_tree(tree, measured.parts[1:], restored=True), measured.settings.confidence
        counts, error = fitted.between(starts)
        half = normal_factor(fitted.laplace, confidence) * error
        less, more = clipping_errors(counts, measured.parts[1], confidence)
        low, high = counts - np.hypot(half, less), counts + np.hypot(half, more)
        error = np.hypot(error, (less + more) / (2 * normal_factor(False, confidence)))
        lows = tree.grid.low_ends()
        ends = [*(float(lows[start]) for start in starts), float(tree.grid.hi)]
        columns = [*bin_columns(ends), noisy_column("n", counts, error, low, high)]
        notes = [BIN_NOTE, PRIVATE_NOTE, *restored_notes(measured.parts[1])]
        return Histogram(**result_fields(measured, f"histogram of {column}", columns, notes=notes), edges=tuple(ends))

    return Statistic(rows.settings, parts, build, lambda parts: expected_ranks(rows, plans, parts[1:]))


def clipping_errors(counts: Floats, part: MeasuredPart, confidence: float) -> tuple[Floats, Floats]:
    """Return how much less, and how much more, the bound of a part may have removed from counts than was added back."""
    less = more = np.zeros(len(counts))
    share = cell_shares(counts, float(counts.sum()), 1.0)
    for bound in part.bounds.values():
        less, more = (row_step(part) * each for each in bound.missing(share, confidence)[1:])
    return less, more


def bin_columns(ends: Sequence[float]) -> list[Any]:
    """Return the key columns of a histogram: the ends of each bin."""
    lows, highs = zip(*pairwise(ends), strict=True)
    return [key_column("from", lows), key_column("to", highs)]
