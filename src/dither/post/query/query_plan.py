"""A planned query: its measures, the noisy columns that formulas read, and the bounds that are still to be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import EstimatedValue
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.relations.core import Relation
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, fill_values, transform
from dither.post import formulas
from dither.post.contribution_bound import CENTRED_WEIGHTS, COUNT_WEIGHTS
from dither.post.query.bins import Bins, QuantileLevel
from dither.post.query.question import Ordering, OutputColumn, Question
from dither.post.query.spans import Span
from dither.post.query.term_names import summed_text
from dither.post.query.typical_rows import TYPICAL_ROWS
from dither.privacy.protocol import KnownSize
from dither.schema import Precision, Scalar

# Tags of bounds that may be chosen privately: on a unit's counts ("mass"), on its rows, and on each sum of its values.
MASS, ROWS, VALUES = "mass", "rows", "values"
SUM_OF = " to the sum of "
CLIPPED_NOTE = "this is an answer about clipped data"
LARGEST_CLIP = 1 << 31
LARGEST_ROWS = 1 << 12
LARGEST_BOUNDS = {MASS: LARGEST_CLIP, ROWS: LARGEST_ROWS}


@dataclass(frozen=True)
class PlannedMeasure:
    """A measure and its share of the loss."""

    measure: Measure
    share: Fraction


@dataclass(frozen=True)
class CellRef:
    """A noisy column that formulas read: one value of a measure, divided by `factor`.

    `bound_tag` names the bound that clips it, and `quantity_per_step` is the quantity of one step of that bound, if
    that is not the measure's step. Rounding of rows may have moved the column by `rounding_error`. A row adds about
    `typical_per_row`, if values are spread evenly over their range. The exact value is at most `most`, if known.
    `size_index` is the index of the column that counts the rows of this one, if there is one. If it `counts_rows`, the
    column is the number of all rows of a group. Noise may not hide that each row that `size_index` counts was rounded,
    by at most `row_rounding`. If it `is_unclipped`, another column allows for what clipping removed from this one.
    """

    measure_index: int
    value_index: int
    factor: int
    signed: bool
    bound_tag: str | None
    quantity_per_step: Fraction | None = None
    rounding_error: float = 0.0
    typical_per_row: Fraction = Fraction(1)
    most: int | None = None
    size_index: int | None = None
    counts_rows: bool = False
    row_rounding: float = 0.0
    is_unclipped: bool = False


@dataclass(frozen=True)
class QuantileRef:
    """A noisy column that formulas read: a quantile of a measure that is a histogram.

    `precision` is that of dates and timestamps, whose bins are in microseconds.
    """

    measure_index: int
    bins: Bins
    level: QuantileLevel
    precision: Precision | None = None


@dataclass(frozen=True)
class ContributionSearch:
    """A contribution bound to choose privately, from a histogram of what each unit contributes.

    `tag` names the limits that the bound fills in, `edges` are those of the histogram, `candidates` are the bounds to
    choose from, `cells` is the number of cells by which they are judged, `row_size` the most that one row contributes.
    Contributions are multiples of `step`; what is removed from a `signed` sum may have either sign. `quantity` is the
    value of one step, if values are summed and not rows, and `share` is that of the loss. Quotes assume that the bound
    leaves `typical_rows` rows, if nothing better is known; `sizes` are what is public about all units together. If it
    `is_range`, the largest bound leaves a row its whole declared range, and quotes assume that. It may be half the
    length of a `span`.
    """

    tag: str
    measure: Measure
    edges: tuple[int, ...]
    candidates: tuple[int, ...]
    cells: int
    row_size: int
    step: int = 1
    signed: bool = False
    quantity: Fraction | None = None
    weight: Fraction = COUNT_WEIGHTS["search"]
    share: Fraction = Fraction(1, 5)
    typical_rows: Fraction = Fraction(TYPICAL_ROWS)
    sizes: tuple[KnownSize, ...] = ()
    is_range: bool = False
    span: Span | None = None


@dataclass(frozen=True)
class CentreSearch:
    """A centre to choose privately: the median, over units, of the candidate nearest to each unit's mean.

    `tag` names the value that is filled in, `candidates` are counted from 1 at the low end of its range, and `share` is
    that of the loss.
    """

    tag: str
    measure: Measure
    candidates: tuple[int, ...]
    weight: Fraction = CENTRED_WEIGHTS["centre"]
    share: Fraction = Fraction(2, 25)


@dataclass(frozen=True)
class QueryPlan:
    """A plan without its loss: measures, the noisy columns read from them, formulas, and bounds still to be chosen.

    `selected` has the keys that were selected privately; the answer leaves out other combinations of their values.
    `clipped_to` says what a given bound clips the data to, if the answer is about clipped data.
    """

    question: Question
    unit: str
    keys: tuple[GroupKey, ...]
    measures: tuple[PlannedMeasure, ...]
    sources: tuple[CellRef | QuantileRef, ...]
    outputs: tuple[OutputColumn, ...]
    having: formulas.Formula | None
    order: tuple[Ordering, ...]
    searches: tuple[CentreSearch | ContributionSearch, ...]
    notes: tuple[str, ...]
    selected: frozenset[tuple[Scalar, ...]] | None = None
    clipped_to: str = ""


@dataclass
class PlanBuilder:
    """Collects the parts of a plan; `nodes` has the formula of each aggregate, by its index."""

    measures: list[tuple[Measure, Fraction]]
    sources: list[CellRef | QuantileRef]
    nodes: dict[int, formulas.Formula]
    searches: list[CentreSearch | ContributionSearch]
    notes: list[str]

    def add_measure(self, index: int, measure: Measure, most: int | None = None) -> None:
        """Add a measure with one value, which is at most `most`, for one aggregate."""
        self.nodes[index] = formulas.NoisyCell(len(self.sources))
        self.sources.append(CellRef(len(self.measures), 0, 1, False, None, most=most))
        self.measures.append((measure, COUNT_WEIGHTS["answer"]))


def at_largest_bounds(relation: Relation) -> Relation:
    """The relation with the largest value for every bound that is still to be chosen."""
    return fill_limits(relation, LARGEST_BOUNDS)


def cell_substitution(cells: dict[int, formulas.Formula]) -> Callable[[formulas.Formula], formulas.Formula]:
    """Return a function that replaces the cells of a formula by other formulas, by index."""

    def change(node: formulas.Formula) -> formulas.Formula:
        match node:
            case formulas.NoisyCell(index):
                return cells[index]
            case formulas.FunctionCall(name, arguments):
                return formulas.FunctionCall(name, tuple(map(change, arguments)))
            case formulas.Average():
                return replace(node, total=change(node.total), size=change(node.size))
            case formulas.ClampedTo():
                return replace(node, inner=change(node.inner))
            case formulas.WindowSum(inner, partition, order):
                terms = tuple((change(term), descending) for term, descending in order)
                return formulas.WindowSum(change(inner), tuple(map(change, partition)), terms)
            case _:
                return node

    return change


def shift_cells(node: formulas.Formula, first: int) -> formulas.Formula:
    """Renumber the cells of a formula, from `first` on."""
    return cell_substitution({index: formulas.NoisyCell(index + first) for index in formulas.cells_of(node)})(node)


def with_bounds(plan: QueryPlan, context: Context, limits: Mapping[str, int]) -> QueryPlan:
    """Fill in chosen bounds, and restrict histograms to the bins that their values can then reach."""
    filled = fill_chosen(plan, limits)
    sources = tuple(_restrict_bins(source, filled, context) for source in filled.sources)
    return replace(filled, sources=sources)


def fill_chosen(plan: QueryPlan, limits: Mapping[str, int]) -> QueryPlan:
    """Fill in chosen bounds and centres, by tag; others stay to be chosen."""
    return _fix_chosen_values(fill_values(fill_limits(plan, limits), limits)) if limits else plan


def _fix_chosen_values(plan: QueryPlan) -> QueryPlan:
    """Replace the values that are chosen by now by literals."""

    def fix_formula(node: Any) -> Any:
        match node:
            case formulas.ChosenValue(EstimatedValue(value=int(steps), step=step), None):
                return formulas.FixedValue(float(steps * step))
            case formulas.ChosenValue(
                EstimatedValue(value=int(steps), step=step, lo=low, hi=high), EstimatedValue(value=int(half))
            ):
                return formulas.FixedValue(float(max(min(steps, high - half), low + half) * step))
            case _:
                return node

    def fix_expression(node: Any) -> Any:
        match node:
            case EstimatedValue(value=int(steps), step=step):
                # Rounded, which changes nothing, it keeps its step: the bounds of later draws count steps.
                return expr.Rounded("round", expr.LiteralValue(steps * step), step)
            case _:
                return node

    fixed: QueryPlan = transform(transform(plan, fix_formula), fix_expression)
    return fixed


def _restrict_bins(source: CellRef | QuantileRef, plan: QueryPlan, context: Context) -> CellRef | QuantileRef:
    if isinstance(source, CellRef):
        return source
    reachable = plan.measures[source.measure_index].measure.axes(context)[-1].values
    if len(reachable) == len(source.bins.low):
        return source
    return replace(source, bins=source.bins.between(int(reachable[0]), int(reachable[-1])))  # type: ignore[arg-type]


def bound_name(tag: str) -> str:
    """Name a bound for people; the tags of a batch end in the position of their query."""
    kind = tag.partition(" ")[0]
    if kind.startswith("centre"):
        return "the centre of the values"
    return f"the contribution bound of {'rows' if kind in (MASS, ROWS) else 'sums'}"


def bound_text(bound: int, search: ContributionSearch) -> str:
    """Write a bound as the most that a unit may add: in rows, rounded up, or in the unit of the sum."""
    if search.quantity is not None:
        return f"{float(f'{float(bound * search.quantity):.4g}'):,.12g}{SUM_OF}{summed_text(search.measure)}"
    whole = -(-bound // search.row_size)
    return f"{whole:,} row{'' if whole == 1 else 's'}"


def with_tags(plan: QueryPlan, suffix: str) -> QueryPlan:
    """Append a suffix to the tags of a plan's bounds, to tell them from those of other plans in one request."""

    def append_suffix(node: Any) -> Any:
        match node:
            case (
                EstimatedLimit(tag=tag) | EstimatedValue(tag=tag) | ContributionSearch(tag=tag) | CentreSearch(tag=tag)
            ):
                return replace(node, tag=tag + suffix)
            case CellRef(bound_tag=str(tag)):
                return replace(node, bound_tag=tag + suffix)
            case _:
                return node

    changed: QueryPlan = transform(plan, append_suffix)
    return changed


def precision_of(plan: QueryPlan, node: formulas.Formula) -> Precision | None:
    """Return the precision of a column that is MIN, MAX or a quantile of dates; None for other columns."""
    # Cells beyond the sources are sums over windows.
    if not isinstance(node, formulas.NoisyCell) or node.index >= len(plan.sources):
        return None
    source = plan.sources[node.index]
    return source.precision if isinstance(source, QuantileRef) else None


def answer_axes(context: Context, plan: QueryPlan) -> tuple[tuple[str, Sequence[Scalar]], ...]:
    """Return the GROUP BY keys of the answer, each with its values."""
    axes = plan.measures[0].measure.axes(context)[: len(plan.keys)]
    return tuple((axis.name, axis.values) for axis in axes)
