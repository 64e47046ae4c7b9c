"""Describe tables whose units have many rows: all counts are measured at one bound on them, chosen once.

Means and standard deviations come from noisy sums of the values and their squares. Every interval allows for the rows
that the bound removes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from dither.plan.expressions.core import Expr, LiteralValue
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, fill_values
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.explain import Expected
from dither.post.estimate.measured import ChosenBounds, estimated_bound
from dither.post.estimate.rehearsal import ends_of_bounds
from dither.post.noise import interval_half_width
from dither.post.query.planner import STEPS_PER_ROW
from dither.post.query.query_plan import LARGEST_CLIP, MASS, CentreSearch, ContributionSearch, QueryPlan, with_bounds
from dither.post.query.request import bound_search, default_bound
from dither.post.statistics.contrasts import contrast_intervals
from dither.post.statistics.core import MeasuredPart, Measurements
from dither.post.statistics.description_figures import (
    MOMENTS_WEIGHT,
    ROWS_WEIGHT,
    TABLE_WEIGHT,
    TREE_WEIGHT,
    Description,
    DescriptionPlan,
    Figure,
    Figures,
    NumberTree,
    combined_total,
    count_figure,
    figures_of,
    plan_number_tree,
    quantile_figures,
    show_figures,
    split_columns,
    tree_quantiles,
)
from dither.post.statistics.design import Scaling, read_columns
from dither.post.statistics.grid import MOST_LEAVES, FittedTree, fit_tree
from dither.post.statistics.linear import (
    moment_plan,
    not_built,
    private_limits,
    reach_notes,
    table_rows,
)
from dither.post.statistics.moments import SEARCH_SHARE, MomentPlan, Moments
from dither.post.statistics.source_rows import Settings, SourceRows
from dither.post.statistics.steps import Released, Step, SteppedStatistic, expected_noise, with_shares
from dither.privacy.protocol import BoundRule, BoundSearch, Measurement

# The share of the loss for choosing how many rows of a unit count, and the number of cells that it is chosen for.
BOUND_SHARE, TYPICAL_CELLS = Fraction(1, 10), 16
# The most leaves of a number's tree.
MOST_SHARED_LEAVES = 1024
# The levels at which a tail is read off the quantiles.
TAIL_LEVELS = 8
# The L1 norm of a typical row's 1, z and z squared, in units of the private scale.
TYPICAL_ROW_SIZE = 1.75


@dataclass(frozen=True)
class SharedMoments(MomentPlan):
    """Sums of a number's values, scaled down by the bound on rows that all counts share, without a search of its own.

    A unit with a typical spread reaches the bound with as many rows as it may have.
    """

    @property
    def searches_radius(self) -> bool:
        """False: the bound on rows takes the radius's place."""
        return False

    def radius(self) -> Expr:
        """Return the steps of one unit of a product, so that a typical row has the size of a counted row."""
        return LiteralValue(Fraction(int(STEPS_PER_ROW / TYPICAL_ROW_SIZE)))

    def measure(self) -> Measure:
        """Build the measure of all products, bounded as the counts are."""
        sums = super().measure()
        return replace(sums, bound=EstimatedLimit(MASS, LARGEST_CLIP)) if isinstance(sums, ClippedSums) else sums


@dataclass(frozen=True)
class SummedNumber:
    """A number's tree of counts, and the sums of its values and squares."""

    counts: NumberTree
    sums: MomentPlan


@dataclass(frozen=True)
class SharedPlan(DescriptionPlan[SummedNumber]):
    """The plan of a description whose counts and sums share one bound, with their shares of the loss."""

    @property
    def settings(self) -> Settings:
        """The settings of the statistic."""
        return self.rows.settings

    @cached_property
    def unit_share(self) -> Fraction:
        """The share of the loss for a weight of 1."""
        return (1 - (BOUND_SHARE if self.total.searches else 0)) / self.weight

    def searches(self) -> tuple[BoundSearch, ...]:
        """Build the search for the bound on rows, and those of the sums of each number."""
        found = [self._bound_search(search) for search in self.total.searches]
        for number in self.numbers:
            own = number.sums.searches()
            share = self.unit_share * MOMENTS_WEIGHT * SEARCH_SHARE / max(1, len(own))
            found += with_shares(own, self.settings, share)
        return tuple(found)

    def _bound_search(self, search: CentreSearch | ContributionSearch) -> BoundSearch:
        """Build the search for the bound on rows, for the noise of a tree's cells rather than of the total."""
        spend, context = self.settings.spend, self.settings.context
        own = replace(search, share=BOUND_SHARE)
        made = bound_search(replace(self.total, searches=(own,)), own, spend, context)
        if not isinstance(made.rule, BoundRule):
            return made
        noise = Fraction(spend.noise(self.unit_share)).limit_denominator(1000)
        return replace(made, rule=replace(made.rule, noise=noise, cells=TYPICAL_CELLS))

    def steps(self) -> tuple[Step, ...]:
        """Build the steps: the rows, the levels of each tree, the tables, and the sums."""
        unit = self.unit_share
        found = [Step(self.total.measures[0].measure, unit * ROWS_WEIGHT)]
        for number in self.numbers:
            share = unit * TREE_WEIGHT / len(number.counts.levels)
            found += [Step(plan.measures[0].measure, share) for plan in number.counts.levels]
        found += [Step(plan.measures[0].measure, unit * TABLE_WEIGHT) for plan in self.tables.values()]
        for number in self.numbers:
            rest = 1 - (SEARCH_SHARE if number.sums.searches() else 0)
            found.append(Step(number.sums.measure(), unit * MOMENTS_WEIGHT * rest))
        return tuple(found)

    def bounds(self, released: Released) -> ChosenBounds:
        """Return the bound on rows that was chosen, with what it removes."""
        limits = {search.tag: released.chosen[search.tag] for search in self.total.searches}
        if not released.releases:
            made_up = next(ends_of_bounds(self.total))
            return ChosenBounds(limits, made_up.bounds)
        results = released.releases[0].search_results or ()
        bounds = {
            search.tag: estimated_bound(search, result.values, result.mechanism, limits[search.tag])
            for search, result in zip(self.total.searches, results, strict=False)
            if isinstance(search, ContributionSearch)
        }
        return ChosenBounds(limits, bounds)

    def part(self, plan: QueryPlan, released: Released, place: int, chosen: ChosenBounds) -> MeasuredPart:
        """Return the release of a plan of counts."""
        filled = with_bounds(plan, self.settings.context, chosen.limits)
        return MeasuredPart(filled, (released.parts[place],), chosen.bounds, chosen.limits)


def make_shared_description(
    rows: SourceRows, total: QueryPlan, columns: Sequence[str]
) -> SteppedStatistic[Description]:
    """Make the statistic that describes columns of units with many rows; `total` counts the rows within their bound."""
    numbers, tables = split_columns(rows, columns)
    shared = any(search.tag == MASS for search in total.searches)
    plan = SharedPlan(rows, total, tuple(plan_number(rows, name, len(columns), shared) for name in numbers), tables)

    def finish(released: Released) -> Description:
        return build_description(plan, released)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_figures(plan, parts[0])

    notes = (f"unit of privacy: {rows.settings.unit}",)
    return SteppedStatistic(rows.settings, (), not_built, expect, notes, plan.searches(), plan.steps(), finish)


def plan_number(rows: SourceRows, name: str, columns: int, shared: bool) -> SummedNumber:
    """Plan the tree and the sums of a number, one of so many columns."""
    (column,) = read_columns(rows, [name])
    # A number that is 0 or 1 is measured as any other: its standard deviation follows from its square.
    sums = moment_plan(rows, [name], (replace(column, indicator=False),), None)
    design = replace(sums.design, suffix=f" {name}")
    sums = SharedMoments(sums.settings, design) if shared else replace(sums, design=design)
    known = table_rows(sums) * float(rows.settings.spend.amount) / columns
    return SummedNumber(plan_number_tree(rows, name, known, MOST_SHARED_LEAVES if shared else MOST_LEAVES), sums)


def build_description(plan: SharedPlan, released: Released) -> Description:
    """Build the description from what was released."""
    chosen, settings = plan.bounds(released), plan.settings
    rows = row_figure(plan, released, chosen)
    removed = max((bound.removed_share_high for bound in chosen.bounds.values()), default=0.0)
    place, figures = 1, []
    sums_place = 1 + sum(len(number.counts.levels) for number in plan.numbers) + len(plan.tables)
    measured = Measurements(settings, (), released.releases)
    for offset, number in enumerate(plan.numbers):
        parts = [plan.part(level, released, place + depth, chosen) for depth, level in enumerate(number.counts.levels)]
        place += len(parts)
        moments = number.sums.read(
            released.values(sums_place + offset), released.noise(sums_place + offset), released.chosen
        )
        scaling = number.sums.design.scaling(released.chosen)
        long_tail = bool(private_limits(number.sums, scaling))
        fitted = fit_tree(number.counts.tree, parts)
        figures.append(read_figures(number, fitted, moments, scaling, rows, removed, measured, long_tail))
    categories = {
        name: plan.part(table, released, place + index, chosen).answer(settings, released.releases)
        for index, (name, table) in enumerate(plan.tables.items())
    }
    notes = [f"unit of privacy: {settings.unit}", *bound_notes(chosen.bounds, settings.unit)]
    for number in plan.numbers:
        notes += reach_notes(number.sums, number.sums.design.scaling(released.chosen))
    return show_figures(measured, rows, figures, categories, notes)


def row_figure(plan: SharedPlan, released: Released, chosen: ChosenBounds) -> Figure:
    """Return the number of rows; if no bound removes any, all tables that count every row make it more precise."""
    own = figures_of(plan.part(plan.total, released, 0, chosen).answer(plan.settings, released.releases))[-1]
    if chosen.limits or plan.total.clipped_to:
        return own
    first = 1 + sum(len(number.counts.levels) for number in plan.numbers)
    places, place = [0, *range(first, first + len(plan.tables))], 1
    for number in plan.numbers:
        places += [] if number.counts.nullable else [place]
        place += len(number.counts.levels)
    counts = [(released.values(place), released.noise(place)) for place in places]
    return combined_total(counts, plan.settings.confidence)


def bound_notes(bounds: Mapping[str, EstimatedBound], unit: str) -> list[str]:
    """Say which bound on rows was chosen, and what the intervals assume about the rest."""
    return [
        f"a bound chosen privately: each {unit} adds at most {bound.limit}; what is beyond counts less. Intervals of "
        f"quantiles allow for it wherever it lies; those of means take it to be like the rest, but in columns with a "
        f"private range to be what lies farthest out"
        for bound in bounds.values()
    ]


def read_figures(
    number: SummedNumber,
    fitted: FittedTree,
    moments: Moments,
    scaling: Scaling,
    rows: Figure,
    removed: float,
    measured: Measurements,
    long_tail: bool,
) -> Figures:
    """Compute the figures of a number from its tree and its sums."""
    confidence = measured.settings.confidence
    count = count_figure(number.counts.nullable, fitted, rows, removed, confidence)
    weighted = min(1.0, max(0.0, 1 - float(moments.matrix[0, 0]) / max(count[0], 1.0))) if removed else 0.0
    mean, deviation = moment_figures(moments, scaling, weighted, confidence)
    mean = with_far_rows(mean, deviation[0], fitted, weighted) if long_tail else mean
    domain = number.counts.tree.grid
    low, high = float(domain.lo), float(domain.hi)
    return Figures(
        number.counts.name,
        count,
        clip_figure(mean, low, high),
        clip_figure(deviation, 0.0, (high - low) / 2),
        quantile_figures(fitted, removed, measured),
    )


def clip_figure(figure: Figure, low: float, high: float) -> Figure:
    """Clip an estimate and its interval to what is possible."""
    value, error, first, last = figure
    value, first, last = (float(end) for end in np.clip([value, first, last], low, high))
    return value, error, first, last


def with_far_rows(mean: Figure, deviation: float, fitted: FittedTree, removed: float) -> Figure:
    """Widen the interval of a mean by what it would lack if the rows that count less were those farthest out.

    How far that is say the quantiles, and the standard deviation of the others.
    """
    value, error, low, high = mean
    usual = deviation * math.sqrt(removed / max(1e-9, 1 - removed))
    levels = removed * (np.arange(TAIL_LEVELS) + 0.5) / TAIL_LEVELS
    least, most = (float(tree_quantiles(fitted, side).mean()) for side in (levels, 1 - levels))
    down, up = (max(removed * distance, usual) for distance in (value - least, most - value))
    return value, error, low - down, high + up


def moment_figures(moments: Moments, scaling: Scaling, removed: float, confidence: float) -> tuple[Figure, Figure]:
    """Return the mean and the standard deviation in raw units, from noisy sums of 1, z and z squared."""
    centre, scale = float(scaling.centres[0]), float(scaling.scales[0])
    found = contrast_intervals(moments, moments.matrix[:1, :1], np.ones((1, 1)), confidence)
    if found.hidden.any():
        everything = (np.inf, -np.inf, np.inf)
        return (centre, *everything), (scale / 2, *everything)
    cells = np.array([moments.matrix[entries[0]] for entries in moments.places])
    drawn = cells - moments.draws * moments.noises
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.where(drawn[:, 0] > 0, drawn[:, 0], np.nan)
        variances = drawn[:, 2] / size - (drawn[:, 1] / size) ** 2
    tail = (1 - confidence) / 2
    # As samples are described: the divisor is one less than the number of values.
    sample_scale = scale * float(np.sqrt(cells[0] / max(1.0, cells[0] - 1)))
    deviations = np.sqrt(np.maximum(variances, 0.0)) * sample_scale
    low, high = np.nanquantile(deviations, [tail, 1 - tail])
    # Noise may leave no variance above 0; then it is at most about as large as the noise.
    high = max(high, float(np.sqrt(np.nanstd(variances))) * sample_scale)
    variance = cells[2] / cells[0] - (cells[1] / cells[0]) ** 2
    deviation = float(np.clip(np.sqrt(max(variance, 0.0)) * sample_scale, low, high))
    # Rows that count less are taken to be like the rest for the mean, and anywhere within reach for the deviation.
    more, far = removed * deviation, np.sqrt(removed) * scale * scaling.reach
    mean = centre + scale * float(found.values[0])
    ends = centre + scale * np.array([found.lows[0], found.highs[0]])
    return (
        (mean, scale * float(found.std_errors[0]), float(ends[0]) - more, float(ends[1]) + more),
        (deviation, float(np.nanstd(deviations)), float(low) - more, float(np.hypot(high, far))),
    )


# --- quotes ----------------------------------------------------------------------------------------------------------


def expected_figures(plan: SharedPlan, parts: Sequence[Measurement]) -> list[Expected]:
    """Return the expected errors of the rows, the counts of categories and the means."""
    settings, known = plan.settings, not plan.total.searches
    assumed = {search.tag: default_bound(search) for search in plan.total.searches}

    def expected_count(name: str, place: int) -> Expected:
        filled = replace(parts[place], measure=fill_limits(parts[place].measure, assumed))
        noise = expected_noise(settings.context, settings.unit, filled)
        factor = getattr(plan.total.sources[0], "factor", 1)
        noise = noise.times(1 / factor)
        return Expected(name, noise.std, interval_half_width([noise], settings.confidence), False, known=known)

    first_table = 1 + sum(len(number.counts.levels) for number in plan.numbers)
    found = [expected_count("rows", 0)]
    found += [expected_count(f"rows by {name}", first_table + index) for index, name in enumerate(plan.tables)]
    for offset, number in enumerate(plan.numbers):
        sums, measurement = number.sums, parts[first_table + len(plan.tables) + offset]
        choices = sums.assumed_choices(48)
        filled = replace(measurement, measure=fill_limits(fill_values(measurement.measure, choices), assumed))
        noise = expected_noise(settings.context, settings.unit, filled)
        moments, rows = sums.read(np.zeros(len(sums.pairs)), noise, choices), table_rows(sums)
        scale, errors = float(sums.design.scaling(choices).scales[0]), moments.noises[1] / rows
        half = float(np.quantile(np.abs(moments.draws[:, 1]), settings.confidence))
        found.append(
            Expected(
                f"mean of {number.counts.name}", scale * errors, scale * errors * half, True, rows, not sums.searches()
            )
        )
    return found
