"""Describe tables whose units have few rows: means and deviations are measured as AVG and STDDEV measure them.

Every number has its own spans or bounds for them, found privately, so that a declared range that is far too wide costs
little. All counts are exact but for noise.
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
from dither.post.statistics.description import (
    ROWS_WEIGHT,
    SUMS_WEIGHT,
    TABLE_WEIGHT,
    TREE_SHARE,
    TREE_WEIGHT,
    Description,
    Figure,
    Figures,
    combined_total,
    count_figure,
    described_columns,
    figure_columns,
    figures_of,
    make_shared_description,
    plan_total,
    quantile_figures,
)
from dither.post.statistics.grid import MOST_LEAVES, Tree, fit_tree, make_tree, plan_tree
from dither.post.statistics.quantiles import leaves_for
from dither.post.statistics.result import noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows, quote_name
from dither.schema import Number

# The rows of a table whose size is not known.
UNKNOWN_ROWS = 1000.0
# A deviation that may be 0 is shown if it is surely no more than this share of the declared range.
HIDDEN_SHARE = 1e-3


@dataclass(frozen=True)
class BoundedNumber:
    """The measures of a number: the levels of a tree of counts, and its mean and deviation."""

    name: str
    nullable: bool
    tree: Tree
    levels: tuple[QueryPlan, ...]
    moments: QueryPlan


@dataclass(frozen=True)
class BoundedPlan:
    """The plan of a description: the number of rows, numbers, and the counts of categories by name."""

    rows: SourceRows
    total: QueryPlan
    numbers: tuple[BoundedNumber, ...]
    tables: dict[str, QueryPlan]

    def parts(self) -> tuple[Part, ...]:
        """Return the parts: the rows, the categories, and of each number the levels of its tree and its moments."""
        found = [Part(self.total, ROWS_WEIGHT), *(Part(table, TABLE_WEIGHT) for table in self.tables.values())]
        for number in self.numbers:
            found += [Part(level, TREE_WEIGHT / len(number.levels)) for level in number.levels]
            found.append(Part(number.moments, SUMS_WEIGHT))
        return tuple(found)

    def split(self, parts: Sequence[MeasuredPart]) -> tuple[list[MeasuredPart], list[list[MeasuredPart]]]:
        """Return the parts of the rows and of the categories, and those of each number."""
        counts, rest = list(parts[: 1 + len(self.tables)]), list(parts[1 + len(self.tables) :])
        own = []
        for number in self.numbers:
            own.append(rest[: len(number.levels) + 1])
            rest = rest[len(number.levels) + 1 :]
        return counts, own


def make_description(rows: SourceRows, columns: Sequence[str] | None) -> Statistic[Description]:
    """Make the statistic that describes columns: by default, all whose values can be listed or averaged."""
    chosen, total = described_columns(rows, columns), plan_total(rows)
    if total.searches or total.clipped_to:
        return make_shared_description(rows, chosen)
    numbers = [name for name in chosen if isinstance(rows.domain(name), Number)]
    others = [name for name in chosen if name not in numbers]
    tables = {name: rows.plan([f"COUNT(*) AS {quote_name(f'rows by {name}')}"], by=[name]) for name in others}
    whole = ROWS_WEIGHT + TABLE_WEIGHT * len(tables) + (TREE_WEIGHT + SUMS_WEIGHT) * len(numbers)
    known = expected_rows(rows.context, total.question.relation, rows.settings.unit) or UNKNOWN_ROWS
    plan = BoundedPlan(rows, total, tuple(plan_number(rows, name, whole, known) for name in numbers), tables)

    def build(measured: Measurements) -> Description:
        return build_description(plan, measured)

    def extend(columns: Sequence[Expected]) -> list[Expected]:
        return expected_figures(plan, columns)

    return Statistic(rows.settings, plan.parts(), build, extend=extend)


def plan_number(rows: SourceRows, name: str, whole: Fraction, known_rows: float) -> BoundedNumber:
    """Plan the tree and the moments of a number; the tree has the more leaves, the more rows there are."""
    settings, domain = rows.settings, rows.domain(name)
    column = quote_name(name)
    own = replace(settings.planner, spend=Spend(settings.spend.share(SUMS_WEIGHT / whole)))
    moments = own.plan(rows.question([f"AVG({column}) AS mean", f"STDDEV({column}) AS deviation"]))
    known = TREE_SHARE * known_rows * float(settings.spend.amount) * float((TREE_WEIGHT + SUMS_WEIGHT) / whole)
    tree = make_tree(domain, min(leaves_for(known), MOST_LEAVES))
    return BoundedNumber(name, domain.nullable, tree, tuple(plan_tree(rows, name, tree)), moments)


def build_description(plan: BoundedPlan, measured: Measurements) -> Description:
    """Build the description from what was released."""
    settings, (counts, own) = measured.settings, plan.split(measured.parts)
    every_row = [*counts, *(parts[0] for number, parts in zip(plan.numbers, own, strict=True) if not number.nullable)]
    rows = combined_total([(part.values()[:, 0], part.noise()) for part in every_row], settings.confidence)
    pairs = zip(plan.numbers, own, strict=True)
    figures = [read_figures(number, parts, rows, measured) for number, parts in pairs]
    answers = [part.answer(settings, measured.releases) for part in counts[1:]]
    columns = figure_columns([number.name for number in plan.numbers], figures) if figures else []
    size = noisy_column("rows", *([part] for part in rows)).cell(0)
    fields = result_fields(measured, "description", columns, [f"{size} rows"], hidden_notes(plan, figures))
    return Description(**fields, categories=dict(zip(plan.tables, answers, strict=True)))


def hidden_notes(plan: BoundedPlan, figures: Sequence[Figures]) -> list[str]:
    """Say which deviations noise hides."""
    hidden = [number.name for number, own in zip(plan.numbers, figures, strict=True) if np.isnan(own.deviation[0])]
    if not hidden:
        return []
    return [f"std is unknown for {', '.join(hidden)}: noise hides it; spend more, or narrow the declared range"]


def read_figures(number: BoundedNumber, parts: Sequence[MeasuredPart], rows: Figure, measured: Measurements) -> Figures:
    """Compute the figures of a number from its tree and its moments."""
    fitted = fit_tree(number.tree, parts[:-1])
    mean, deviation = figures_of(parts[-1].answer(measured.settings, measured.releases))
    return Figures(
        count_figure(number.nullable, fitted, rows, 0.0, measured.settings.confidence),
        mean,
        hidden_or_shown(deviation, float(number.tree.grid.hi - number.tree.grid.lo)),
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


def expected_figures(plan: BoundedPlan, columns: Sequence[Expected]) -> list[Expected]:
    """Return the expected errors of the rows, the counts of categories, the means and the deviations.

    `columns` has those of all parts; the levels of a tree have one each, and are left out.
    """
    names, rest = ["rows", *(f"rows by {name}" for name in plan.tables)], list(columns)
    found = [replace(error, name=name) for name, error in zip(names, rest, strict=False)]
    rest = rest[len(names) :]
    for number in plan.numbers:
        mean, deviation = rest[len(number.levels) : len(number.levels) + 2]
        found += [replace(mean, name=f"mean of {number.name}"), replace(deviation, name=f"std of {number.name}")]
        rest = rest[len(number.levels) + 2 :]
    return found
