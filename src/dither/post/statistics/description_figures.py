"""The figures of a description, their weights in its loss, and the table that shows them.

The quantiles of a number come from one tree of counts, so they are in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np

from dither.errors import NotFound, Unsupported
from dither.plan.expressions.core import LiteralValue
from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.query_plan import QueryPlan
from dither.post.statistics.contingency import normal_factor
from dither.post.statistics.core import Measurements
from dither.post.statistics.grid import MOST_LEAVES, FittedTree, Tree, make_tree, plan_tree
from dither.post.statistics.quantiles import leaves_for, level_intervals, smooth
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows, quote_name
from dither.schema import Boolean, Category, Moment, Number

# An estimate, its standard error, and the ends of its interval.
Figure = tuple[float, float, float, float]
QUANTILES = tuple(Fraction(number, 100) for number in (5, 25, 50, 75, 95))
# Weights in the loss: of the number of rows, of a category's counts, and of a number's tree and its moments.
ROWS_WEIGHT, TABLE_WEIGHT, TREE_WEIGHT, MOMENTS_WEIGHT = Fraction(1), Fraction(1), Fraction(2), Fraction(2)
# About the share of a number's tree if it is one of many.
TREE_SHARE = 0.4
# Variances below this count as this, so that weights stay finite.
LEAST_VARIANCE = 1e-200


@dataclass(frozen=True, repr=False)
class Description(Result):
    """A description of a table: moments and quantiles of numbers, and `categories` with the counts of the others."""

    categories: Mapping[str, Answer] = field(default_factory=dict)

    def cells(self, row: int) -> list[str]:
        """Return a row as text; figures that noise hides are unknown."""
        return [text.replace("nan", "unknown", 1) for text in super().cells(row)]

    def __str__(self) -> str:
        parts = [super().__str__() if len(self) else "\n".join(self.summary), *map(str, self.categories.values())]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        table = super()._repr_html_().replace(">nan ", ">unknown ")
        return "".join([table, *(answer._repr_html_() for answer in self.categories.values())])


@dataclass(frozen=True)
class Figures:
    """A number's figures: each an estimate, a standard error, and the ends of an interval."""

    name: str
    count: Figure
    mean: Figure
    deviation: Figure
    quantiles: tuple[Figure, ...]


@dataclass(frozen=True)
class NumberTree:
    """A number, its tree of counts, and the plans of the tree's levels."""

    name: str
    nullable: bool
    tree: Tree
    levels: tuple[QueryPlan, ...]


N = TypeVar("N")


@dataclass(frozen=True)
class DescriptionPlan(Generic[N]):
    """The plan of a description: the number of rows, numbers, and the counts of categories by name."""

    rows: SourceRows
    total: QueryPlan
    numbers: tuple[N, ...]
    tables: Mapping[str, QueryPlan]

    @property
    def weight(self) -> Fraction:
        """The sum of all weights."""
        return total_weight(len(self.numbers), len(self.tables))


def plan_total(rows: SourceRows) -> QueryPlan:
    """Plan the number of rows as a table with one key, so that its bound has the steps of the other tables."""
    question = rows.question(["COUNT(*) AS rows"])
    return rows.settings.planner.plan(replace(question, keys=(("all", LiteralValue(Fraction(0))),)))


def described_columns(rows: SourceRows, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to describe; refuse unknown ones and those that cannot be described."""
    known = {
        name: domain for name, domain in rows.scope.columns.items() if isinstance(domain, Number | Category | Boolean)
    }
    if columns is None:
        if not known:
            raise NotFound("no column is a number, a category or true or false, so there is nothing to describe")
        return list(known)
    names, all_columns = list(columns), rows.scope.columns
    moments = [name for name in names if isinstance(all_columns.get(name), Moment)]
    if moments:
        raise Unsupported(
            f"{moments[0]} is a date or a time, and describe takes numbers, categories and booleans; leave it out, or "
            f"count its periods: session.table(source, [\"DATE_TRUNC('year', {moments[0]})\"])"
        )
    if not names or any(name not in known for name in names):
        raise NotFound(f"columns must be some of: {', '.join(known)}")
    return names


def split_columns(rows: SourceRows, names: Sequence[str]) -> tuple[list[str], dict[str, QueryPlan]]:
    """Return the columns that are numbers, and the plans of the counts of all others."""
    numbers = [name for name in names if isinstance(rows.domain(name), Number)]
    others = [name for name in names if name not in numbers]
    return numbers, {name: rows.plan([f"COUNT(*) AS {quote_name(f'rows by {name}')}"], by=[name]) for name in others}


def total_weight(numbers: int, tables: int) -> Fraction:
    """Return the sum of the weights of a description of so many numbers and categories."""
    return ROWS_WEIGHT + TABLE_WEIGHT * tables + (TREE_WEIGHT + MOMENTS_WEIGHT) * numbers


def plan_number_tree(rows: SourceRows, name: str, known: float, most_leaves: int = MOST_LEAVES) -> NumberTree:
    """Plan the tree of a number; the larger `known` is (rows times epsilon or rho), the more leaves it has."""
    domain = rows.domain(name)
    tree = make_tree(domain, min(leaves_for(TREE_SHARE * known), most_leaves))
    return NumberTree(name, domain.nullable, tree, tuple(plan_tree(rows, name, tree)))


def figures_of(answer: Answer) -> list[Figure]:
    """Return the estimate, standard error and interval of each noisy column in the first row of an answer."""
    estimates = [column.estimate for column in answer.columns if not column.key]
    parts = [(one.value, one.std_error, one.low, one.high) for one in estimates]
    return [tuple(float(np.atleast_1d(part)[0]) for part in own) for own in parts]  # type: ignore[misc]


def combined_total(counts: Sequence[tuple[Floats, ScaledNoise]], confidence: float) -> Figure:
    """Return the number of rows from several tables that count every row, each weighted by its precision."""
    sums = np.array([values.sum() for values, _ in counts])
    variances = np.maximum([noise.variance * values.size for values, noise in counts], LEAST_VARIANCE)
    error = float(1 / np.sqrt((1 / variances).sum()))
    value = float((sums / variances).sum() * error**2)
    half = normal_factor(counts[0][1].kind == "laplace", confidence) * error
    return value, error, value - half, value + half


def count_figure(nullable: bool, fitted: FittedTree, rows: Figure, removed: float, confidence: float) -> Figure:
    """Return the number of values: all rows if none may be missing, else the total of the tree, at most all rows."""
    if not nullable:
        return rows
    errors = fitted.errors.sum(axis=1)
    half = float(np.quantile(np.abs(errors), confidence))
    most = 1 / max(1e-9, 1 - removed)
    value = min(max(0.0, fitted.total) * (1 + most) / 2, rows[0])
    high = min((fitted.total + half) * most, rows[3])
    return value, float(errors.std()), min(fitted.total - half, value), max(value, high)


def quantile_figures(fitted: FittedTree, removed: float, measured: Measurements) -> tuple[Figure, ...]:
    """Return the quantiles with intervals, in order; rows that a bound removed may lie anywhere."""
    levels, kept = np.array([float(level) for level in QUANTILES]), max(1e-9, 1 - removed)
    lows, _ = level_intervals(fitted, np.clip((levels - removed) / kept, 0.0, 1.0).tolist(), measured, False)
    _, highs = level_intervals(fitted, np.clip(levels / kept, 0.0, 1.0).tolist(), measured, False)
    lows, highs = np.minimum.accumulate(lows[::-1])[::-1], np.maximum.accumulate(highs)
    points = np.clip(tree_quantiles(fitted, levels), lows, highs)
    return tuple((float(p), float(b - a) / 4, float(a), float(b)) for p, a, b in zip(points, lows, highs, strict=True))


def tree_quantiles(fitted: FittedTree, levels: Floats) -> Floats:
    """Return quantiles of the fitted counts, rounded to the column's step."""
    grid, total = fitted.tree.grid, max(fitted.total, 1.0)
    shares = np.clip(smooth(fitted.cumulative / total), 0.0, 1.0)
    ends = np.concatenate([[float(grid.lo)], grid.high_ends()])
    rising = np.concatenate([[0.0], shares]) + 1e-12 * np.arange(len(shares) + 1)
    step = float(grid.step)
    return np.asarray(np.round(np.interp(levels, rising, ends) / step) * step)


def figure_columns(figures: Sequence[Figures]) -> list[AnswerColumn]:
    """Return the columns of the table, one row for each number."""
    titles = ["n", "mean", "std", *(f"{float(level):.0%}" for level in QUANTILES)]
    rows = [[own.count, own.mean, own.deviation, *own.quantiles] for own in figures]
    shown = [noisy_column(title, *np.array([row[place] for row in rows]).T) for place, title in enumerate(titles)]
    return [key_column("column", [own.name for own in figures]), *shown]


def show_figures(
    measured: Measurements,
    rows: Figure,
    figures: Sequence[Figures],
    categories: Mapping[str, Answer],
    notes: Sequence[str],
) -> Description:
    """Build the description that shows the number of rows, the figures of numbers, and the counts of categories."""
    columns = figure_columns(figures) if figures else []
    size = noisy_column("rows", *([part] for part in rows)).cell(0)
    return Description(
        **result_fields(measured, "description", columns, [f"{size} rows"], notes), categories=categories
    )
