"""Describe a table for one stated loss: sizes, means, standard deviations, quantiles, and counts of categories.

Where units have few rows, all counts are exact but for noise, and means and deviations are measured as AVG and STDDEV
measure them: every number has its own spans or bounds for them, found privately, so that a declared range that is far
too wide costs little. Units with many rows: `shared_description`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.post.estimate.explain import Expected
from dither.post.estimate.prediction import expected_rows
from dither.post.query.query_plan import QueryPlan
from dither.post.query.spend import Spend
from dither.post.statistics.core import MeasuredPart, Measurements, Part, Statistic
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
    described_columns,
    figures_of,
    plan_number_tree,
    plan_total,
    quantile_figures,
    show_figures,
    split_columns,
    total_weight,
)
from dither.post.statistics.grid import fit_tree
from dither.post.statistics.shared_description import make_shared_description
from dither.post.statistics.source_rows import SourceRows, quote_name

# The rows of a table whose size is not known.
UNKNOWN_ROWS = 1000.0
# A deviation that may be 0 is shown if it is surely no more than this share of the declared range.
HIDDEN_SHARE = 1e-3


@dataclass(frozen=True)
class AveragedNumber:
    """A number's tree of counts, and the plan of its mean and deviation."""

    counts: NumberTree
    moments: QueryPlan


@dataclass(frozen=True)
class AveragesPlan(DescriptionPlan[AveragedNumber]):
    """The plan of a description whose means and deviations have bounds of their own."""

    def parts(self) -> tuple[Part, ...]:
        """Return the parts: the rows, the categories, and of each number the levels of its tree and its moments."""
        found = [Part(self.total, ROWS_WEIGHT), *(Part(table, TABLE_WEIGHT) for table in self.tables.values())]
        for number in self.numbers:
            found += [Part(level, TREE_WEIGHT / len(number.counts.levels)) for level in number.counts.levels]
            found.append(Part(number.moments, MOMENTS_WEIGHT))
        return tuple(found)

    def split(self, parts: Sequence[MeasuredPart]) -> tuple[list[MeasuredPart], list[list[MeasuredPart]]]:
        """Return the parts of the rows and of the categories, and those of each number."""
        counts, rest = list(parts[: 1 + len(self.tables)]), list(parts[1 + len(self.tables) :])
        own = []
        for number in self.numbers:
            own.append(rest[: len(number.counts.levels) + 1])
            rest = rest[len(number.counts.levels) + 1 :]
        return counts, own


def make_description(rows: SourceRows, columns: Sequence[str] | None) -> Statistic[Description]:
    """Make the statistic that describes columns: by default, all whose values can be listed or averaged."""
    chosen, total = described_columns(rows, columns), plan_total(rows)
    if total.searches or total.clipped_to:
        return make_shared_description(rows, total, chosen)
    numbers, tables = split_columns(rows, chosen)
    whole = total_weight(len(numbers), len(tables))
    known = expected_rows(rows.context, total.question.relation, rows.settings.unit) or UNKNOWN_ROWS
    plan = AveragesPlan(rows, total, tuple(plan_number(rows, name, whole, known) for name in numbers), tables)

    def build(measured: Measurements) -> Description:
        return build_description(plan, measured)

    def extend(columns: Sequence[Expected]) -> list[Expected]:
        return expected_figures(plan, columns)

    return Statistic(rows.settings, plan.parts(), build, extend=extend)


def plan_number(rows: SourceRows, name: str, whole: Fraction, known_rows: float) -> AveragedNumber:
    """Plan the tree and the moments of a number."""
    settings, column = rows.settings, quote_name(name)
    own = replace(settings.planner, spend=Spend(settings.spend.share(MOMENTS_WEIGHT / whole)))
    moments = own.plan(rows.question([f"AVG({column}) AS mean", f"STDDEV({column}) AS deviation"]))
    known = known_rows * float(settings.spend.amount) * float((TREE_WEIGHT + MOMENTS_WEIGHT) / whole)
    return AveragedNumber(plan_number_tree(rows, name, known), moments)


def build_description(plan: AveragesPlan, measured: Measurements) -> Description:
    """Build the description from what was released."""
    settings, (counts, own) = measured.settings, plan.split(measured.parts)
    pairs = list(zip(plan.numbers, own, strict=True))
    every_row = [*counts, *(parts[0] for number, parts in pairs if not number.counts.nullable)]
    rows = combined_total([(part.values()[:, 0], part.noise()) for part in every_row], settings.confidence)
    figures = [read_figures(number, parts, rows, measured) for number, parts in pairs]
    answers = [part.answer(settings, measured.releases) for part in counts[1:]]
    categories = dict(zip(plan.tables, answers, strict=True))
    return show_figures(measured, rows, figures, categories, hidden_notes(figures))


def hidden_notes(figures: Sequence[Figures]) -> list[str]:
    """Say which deviations noise hides."""
    hidden = [own.name for own in figures if np.isnan(own.deviation[0])]
    if not hidden:
        return []
    alone = f"ask for AVG({hidden[0]}) or STDDEV({hidden[0]}) alone, which spends everything on it"
    return [
        f"std is unknown for {', '.join(hidden)}: noise hides it; spend more, narrow the declared range, or {alone}"
    ]


def read_figures(
    number: AveragedNumber, parts: Sequence[MeasuredPart], rows: Figure, measured: Measurements
) -> Figures:
    """Compute the figures of a number from its tree and its moments."""
    fitted = fit_tree(number.counts.tree, parts[:-1])
    mean, deviation = figures_of(parts[-1].with_paired_squares().answer(measured.settings, measured.releases))
    return Figures(
        number.counts.name,
        count_figure(number.counts.nullable, fitted, rows, 0.0, measured.settings.confidence),
        mean,
        hidden_or_shown(deviation, float(number.counts.tree.grid.hi - number.counts.tree.grid.lo)),
        quantile_figures(fitted, 0.0, measured),
    )


def hidden_or_shown(deviation: Figure, width: float) -> Figure:
    """Return a deviation, or nan in its place if noise hides whether values of this range differ at all.

    Where noise left no variance that is possible, the deviation may be anything up to half of the range.
    """
    value, error, low, high = deviation
    if not np.isfinite(value) or high <= 0:
        return np.nan, error, 0.0, width / 2
    hidden = low <= 0 and high > HIDDEN_SHARE * width
    return (np.nan, error, low, high) if hidden else deviation


def expected_figures(plan: AveragesPlan, columns: Sequence[Expected]) -> list[Expected]:
    """Return the expected errors of the rows, the counts of categories, the means and the deviations.

    `columns` has those of all parts; the levels of a tree have one each, and are left out.
    """
    names, rest = ["rows", *(f"rows by {name}" for name in plan.tables)], list(columns)
    found = [replace(error, name=name) for name, error in zip(names, rest, strict=False)]
    rest = rest[len(names) :]
    for number in plan.numbers:
        mean, deviation = rest[len(number.counts.levels) : len(number.counts.levels) + 2]
        found += [
            replace(mean, name=f"mean of {number.counts.name}"),
            replace(deviation, name=f"std of {number.counts.name}"),
        ]
        rest = rest[len(number.counts.levels) + 2 :]
    return found
