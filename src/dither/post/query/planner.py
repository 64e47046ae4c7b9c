"""From a question to measures: which vectors to ask for, what share of the loss each takes, how cells are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from dither.errors import Unbounded, Unsupported
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import bounds_of, cardinality
from dither.plan.expressions.core import Expr
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.sums import Count, Sum, SumVector
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.group_by import GroupAggregate as Grouped
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, unfilled_limits, walk
from dither.post import formulas as recipe
from dither.post.contribution_bound import OCTAVES, ContributionBound, candidate_bounds, histogram_edges
from dither.post.query.bins import Bins, Wanted, bins
from dither.post.query.question import AggregateCall, Ordering, OutputColumn, Question
from dither.post.query.terms import CLIPPED_FINEST, FINEST, ONE, Term, Terms, largest_row, weighted, weights
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference, Scalar

MASS, ROWS = "mass", "rows"
FEW_CELLS = 64
SELECTED_KEYS = 10
MOST_GROUPS = 2_000_000
LARGEST_CLIP = 1 << 31
LARGEST_ROWS = 1 << 12
MOST = {MASS: LARGEST_CLIP, ROWS: LARGEST_ROWS}
LIKELY = {MASS: LARGEST_CLIP, ROWS: 16}
HUGE = 1 << 30
WITHIN_BOUND = (
    "distinct values, quantiles and values per unit are of rows within the bound found; intervals allow for no others"
)
FRACTION_OF_ROW = 256
SUMS = frozenset({"count", "sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr"})


@dataclass(frozen=True)
class PlannedMeasure:
    """A vector to measure, and its share of the loss."""

    measure: Measure
    share: Fraction


@dataclass(frozen=True)
class CellRef:
    """A source of the recipe: one value of a piece, whose quantity is divided by `factor`.

    `clipped` is the bound that limits it, and `worth` the quantity that a unit of that bound's mass stands for, where
    it is not the step. Rounding every row may have moved it by `slack`. `typical` is what a row adds, about, where
    values are spread evenly over their range.
    """

    piece: int
    value: int
    factor: int
    signed: bool
    clipped: str | None
    worth: Fraction | None = None
    slack: float = 0.0
    typical: Fraction = Fraction(1)


@dataclass(frozen=True)
class QuantileRef:
    """A source of the recipe: a quantile read off a piece that is a histogram."""

    piece: int
    bins: Bins
    wanted: Wanted


@dataclass(frozen=True)
class ContributionSearch:
    """A bound to be found first: the histogram of contributions, which limit it fills, and the mass of one row.

    `points` are the edges of the histogram, `grid` the bounds that may be found.
    """

    tag: str
    measure: Measure
    points: tuple[int, ...]
    grid: tuple[int, ...]
    cells: int
    row: int


@dataclass(frozen=True)
class QueryPlan:
    """Everything but the loss: pieces, how to read them, what to compute, and the bounds still to be found."""

    question: Question
    unit: str
    keys: tuple[GroupKey, ...]
    pieces: tuple[PlannedMeasure, ...]
    sources: tuple[CellRef | QuantileRef, ...]
    outputs: tuple[OutputColumn, ...]
    having: recipe.Formula | None
    order: tuple[Ordering, ...]
    searches: tuple[ContributionSearch, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Planner:
    """Plans questions over one dataset; `gaussian`: the noise will be Gaussian, so contributions are clipped in L2."""

    context: Context
    bound: ContributionBound
    gaussian: bool = False

    def undeclared(self, question: Question) -> PartitionCounts:
        """Units per key that occurs, for partition selection; each unit counts in at most so many keys."""
        if not question.knows_unit:
            raise Unbounded(
                "rows no longer know their unit, so keys cannot be selected privately; group before the join"
            )
        once = GroupBy(question.relation, question.keys, (), question.unit)
        limit = self.bound.max_groups or self.bound.max_rows or SELECTED_KEYS
        own = tuple(GroupKey(name, expr.ColumnRef(name)) for name, _ in question.keys)
        # One row of each key it has: where keys are many or unknown, a bound on rows alone would not say so.
        return PartitionCounts(LimitGroupsPerUnit(once, question.unit, tuple(key.value for key in own), limit, 1), own)

    def plan(self, question: Question, listed: Mapping[str, tuple[Scalar, ...]] | None = None) -> QueryPlan:
        """The fewest measures that answer a question; `listed` names the keys that partition selection let through."""
        scope = Scope(question.relation.domain(self.context))
        inner: Relation | None = None
        if _huge(question, scope):
            relation, inner = self.inside(question.relation, question.unit)
            question = replace(question, relation=relation)
            scope = Scope(_provisional(relation).domain(self.context))
        if not question.knows_unit and question.relation.stability(self.context, question.unit).max_rows is None:
            relation, inner = self.below(question.relation, question.unit)
            question = replace(question, relation=relation)
            scope = Scope(_provisional(relation).domain(self.context))
        self.check(question, scope, listed is not None)
        keys = tuple(GroupKey(name, value, None if listed is None else listed[name]) for name, value in question.keys)
        made = _Made([], [], {}, [], [])
        self.sums(question, scope, keys, made)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind == "units":
                self.units(question, aggregate, index, keys, made)
            elif aggregate.kind == "distinct":
                self.distinct(question, aggregate, index, keys, made)
        self.quantiles(question, scope, keys, made)
        return self._finished(question, keys, made, inner)

    def _finished(
        self, question: Question, keys: tuple[GroupKey, ...], made: _Made, inner: Relation | None
    ) -> QueryPlan:
        total = sum(weight for _, weight in made.pieces)
        pieces = tuple(PlannedMeasure(measure, weight / total) for measure, weight in made.pieces)
        change = key_substitution(made.nodes)
        searches = list(made.searches)
        if inner is not None and not any(search.tag == ROWS for search in searches):
            searches.append(self.search(inner, question.unit, ROWS, None, 1, 1))
        return QueryPlan(
            question, question.unit, keys, pieces, tuple(made.sources),
            tuple(OutputColumn(output.name, change(output.node)) for output in question.outputs),
            change(question.having) if question.having is not None else None,
            tuple(replace(term, node=change(term.node)) for term in question.order),
            tuple(searches), (*self.notes(question), *made.notes, *_unallowed(pieces, made.sources)),
        )  # fmt: skip

    def notes(self, question: Question) -> tuple[str, ...]:
        """What a reader should know about how the question was understood."""
        unit = f"unit of privacy: {question.unit}"
        if (
            self.bound.auto
            or _provisional(question.relation).stability(self.context, question.unit).max_rows is not None
        ):
            return (unit,)
        where = "" if self.bound.max_groups is None else f" in each of at most {self.bound.max_groups} groups"
        kept = f"of each {question.unit}, {self.bound.max_rows} rows' worth{where} counts"
        return (unit, f"{kept}; what is beyond is missing from the estimates, and their intervals do not allow for it")

    def check(self, question: Question, scope: Scope, listed: bool) -> None:
        """Every expression has a domain, and every key can be listed; errors say which does not."""
        for name, key in question.keys:
            if isinstance(key.domain(scope), Identifier):
                raise Unsupported(
                    f"{name} names people or things, so it cannot be a key of an answer; "
                    "GROUP BY it in a subquery and aggregate that, or COUNT(DISTINCT) it"
                )
        if not listed:
            self.check_size(question)
        for aggregate in question.aggregates:
            for value in (*aggregate.values, *([aggregate.condition] if aggregate.condition is not None else [])):
                value.domain(scope)

    def check_size(self, question: Question) -> None:
        """Refuses answers with more declared keys than anyone reads."""
        keys = tuple(GroupKey(name, value) for name, value in question.keys)
        scope = Scope(_provisional(question.relation).domain(self.context))
        many = 1
        for key in keys:
            domain = key.value.domain(scope)
            public = self.context.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
            many *= cardinality(domain, public)
        if many > MOST_GROUPS:
            raise Unsupported(
                f"GROUP BY gives every declared key, and there are {many} (at most {MOST_GROUPS}); "
                "group by something coarser, such as FLOOR(x / 10), or give delta= to select common keys privately"
            )

    # --- bounding ------------------------------------------------------------------------------------------------

    def inside(self, relation: Relation, unit: str) -> tuple[Relation, Relation | None]:
        """Bounds the rows below per-unit counts and sums, whose size would otherwise have no useful limit."""
        found: list[Relation] = []

        def visit(node: Relation) -> Relation:
            fields = {name: visit(value) for name, value in vars(node).items() if isinstance(value, Relation)}
            node = replace(node, **fields) if fields else node  # type: ignore[type-var]
            if isinstance(node, GroupBy) and node.unit and self.open(node, unit):
                found.append(node.child)
                return replace(node, child=LimitRowsPerUnit(node.child, node.unit, self.row_limit()))
            return node

        changed = visit(relation)
        return changed, found[0] if found and self.bound.auto else None

    def open(self, node: GroupBy, unit: str) -> bool:
        """Whether per-unit counts or sums could be of any size."""
        counting = any(aggregate.kind in ("count", "sum", "distinct") for aggregate in node.aggregates)
        return counting and node.child.stability(self.context, unit).max_rows is None

    def below(self, relation: Relation, unit: str) -> tuple[Relation, Relation | None]:
        """Bounds rows just under the steps at which they stop knowing their unit."""
        found: list[Relation] = []

        def visit(node: Relation) -> Relation:
            stability = node.stability(self.context, unit)
            if stability.max_rows is not None:
                return node
            if stability.tracks_unit:
                found.append(node)
                return LimitRowsPerUnit(node, unit, self.row_limit())
            fields = {name: visit(value) for name, value in vars(node).items() if isinstance(value, Relation)}
            return replace(node, **fields) if fields else node  # type: ignore[type-var]

        changed = visit(relation)
        return changed, found[0] if found and self.bound.auto else None

    def row_limit(self) -> int | EstimatedLimit:
        """The limit on rows of one unit: given, or to be found."""
        return EstimatedLimit(ROWS, LARGEST_ROWS) if self.bound.max_rows is None else self.bound.max_rows

    def unbounded(self, question: Question, relation: Relation) -> bool:
        """Whether one unit may move any number of rows; refused once rows no longer know their unit."""
        if _provisional(relation).stability(self.context, question.unit).max_rows is not None:
            return False
        if not question.knows_unit:
            raise Unbounded(
                "one unit could change this without limit, and rows no longer know their unit; "
                "group or join by the unit's key, or aggregate before the step that loses it"
            )
        return True

    def bounded(self, question: Question, relation: Relation, keys: tuple[GroupKey, ...], made: _Made) -> Relation:
        """The relation with at most so many rows of each unit."""
        if not self.unbounded(question, relation):
            return relation
        if self.bound.max_groups is not None:
            return self.by_groups(question, relation, keys)
        if self.bound.auto and not any(search.tag == ROWS for search in made.searches):
            made.searches.append(self.search(relation, question.unit, ROWS, None, 1, self.cells(relation, keys)))
        return LimitRowsPerUnit(relation, question.unit, self.row_limit())

    def by_groups(self, question: Question, relation: Relation, keys: tuple[GroupKey, ...]) -> Relation:
        """At most so many rows in each of at most so many groups."""
        if not keys:
            raise Unsupported("a bound by groups needs GROUP BY; give a number of rows instead")
        groups, rows = self.bound.max_groups or 1, self.bound.max_rows or 1
        return LimitGroupsPerUnit(relation, question.unit, tuple(key.value for key in keys), groups, rows)

    def search(
        self, relation: Relation, unit: str, tag: str, mass: Expr | None, largest: int, cells: int
    ) -> ContributionSearch:
        """A histogram of what each unit contributes, over powers of two."""
        kind: Callable[..., Grouped] = Grouped
        aggregate = kind("mass", "count") if mass is None else kind("mass", "sum", mass)
        per_unit = GroupBy(relation, (), (aggregate,), unit)
        points = histogram_edges(largest)
        if mass is None:
            # Rows are counted, and a row has the mass `largest`.
            points = tuple(largest << octave for octave in range(OCTAVES) if largest << octave <= LARGEST_CLIP)
            cuts = tuple(Fraction(point, largest) for point in points)
        else:
            # A mass is a whole number of steps, whatever lattice its expression has.
            cuts = tuple(map(Fraction, points))
        histogram = Count(per_unit, (GroupKey("mass", expr.Bucket(expr.ColumnRef("mass"), cuts)),))
        return ContributionSearch(tag, histogram, points, candidate_bounds(points, MOST[tag]), cells, largest)

    def cells(self, relation: Relation, keys: tuple[GroupKey, ...]) -> int:
        """The number of groups."""
        return Count(relation, keys).size(self.context)

    # --- measures ------------------------------------------------------------------------------------------------

    def sums(self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], made: _Made) -> None:
        """COUNT, SUM, AVG, VARIANCE, CORR...: one vector of sums for all of them."""
        wanted = [aggregate for aggregate in question.aggregates if aggregate.kind in SUMS]
        if not wanted:
            return
        averaged = frozenset((a.values[0], a.condition) for a in wanted if a.kind in ("avg", "var_samp", "var_pop"))
        open_ended = self.bound.max_groups is None and self.unbounded(question, question.relation)
        clipped = open_ended and not self.keeps_rows(question, wanted)
        terms = Terms(scope, self.usual(question), [], averaged, CLIPPED_FINEST if clipped else FINEST)
        first = len(made.sources)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind in SUMS:
                made.nodes[index] = _moved(terms.node(aggregate), first)
        made.notes += terms.notes
        factors = weights(terms.found)
        measure, factors, tag = self.vector(question, keys, terms.found, factors, made, clipped)
        for place, (term, factor) in enumerate(zip(terms.found, factors, strict=True)):
            signed = term.role != "count" and _negative(term, scope)
            worth = term.most * term.step if tag == ROWS else None
            slack = float(term.rounding) * self.rows(question)
            typical = _typical(term, signed)
            made.sources.append(CellRef(len(made.pieces), place, factor, signed, tag, worth, slack, typical))
        made.pieces.append((measure, Fraction(len(wanted))))

    def usual(self, question: Question) -> Scope:
        """The columns as they are at likely bounds, where bounds are still to be found."""
        return Scope(fill_limits(question.relation, LIKELY).domain(self.context))

    def rows(self, question: Question) -> float:
        """The noisy size of the largest table that is read; 0 where none is known."""
        tables = {node.table for node in walk(question.relation) if isinstance(node, Scan)}
        return float(max((self.context.rows(table) or 0 for table in tables), default=0))

    def keeps_rows(self, question: Question, wanted: list[AggregateCall]) -> bool:
        """Whether so many rows of each unit are kept, and not all of them scaled down.

        Both keep min(rows, bound) of a unit's rows in a count, so the cheaper is taken: rows, where their ranks are
        stored. In sums a row may weigh little, and a bound on rows would pay for the heaviest.
        """
        if self.bound.how != "auto":
            return self.bound.how == "rows"
        return wanted == [AggregateCall("count")] and _ranked(question.relation, self.context)

    def vector(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        factors: list[int],
        made: _Made,
        clipped: bool,
    ) -> tuple[Measure, list[int], str | None]:
        """The measure of the terms, its factors, and the tag of the bound that clips it."""
        relation = question.relation
        if not self.unbounded(question, relation):
            return _plain(relation, terms, factors, keys), factors, None
        if self.bound.max_groups is not None:
            return _plain(self.by_groups(question, relation, keys), terms, factors, keys), factors, None
        if not clipped:
            return _plain(self.bounded(question, relation, keys, made), terms, factors, keys), factors, ROWS
        fine = FRACTION_OF_ROW if keys and all(term.value == ONE for term in terms) else 1
        factors = [factor * fine for factor in factors]
        largest = largest_row(terms, factors)
        limit: int | EstimatedLimit = (
            EstimatedLimit(MASS, LARGEST_CLIP)
            if self.bound.max_rows is None
            else min(self.bound.max_rows * largest, LARGEST_CLIP)
        )
        if self.bound.auto:
            mass = None if all(term.value == ONE for term in terms) else _mass(terms, factors)
            made.searches.append(self.search(relation, question.unit, MASS, mass, largest, self.cells(relation, keys)))
        values = tuple(weighted(term, factor) for term, factor in zip(terms, factors, strict=True))
        return ClippedSums(relation, question.unit, values, limit, "l2" if self.gaussian else "l1", keys), factors, MASS

    def units(
        self, question: Question, aggregate: AggregateCall, index: int, keys: tuple[GroupKey, ...], made: _Made
    ) -> None:
        """COUNT(DISTINCT unit's key): each unit once per group."""
        if not question.knows_unit:
            raise Unbounded(
                "rows no longer know their unit here, so units cannot be counted; count before the join or group"
            )
        relation = _filtered(question.relation, aggregate.condition)
        once: Relation = GroupBy(relation, tuple((key.name, key.value) for key in keys), (), question.unit)
        own = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        if once.stability(self.context, question.unit).max_rows is None:
            cells = self.cells(once, own)
            limit: int | EstimatedLimit = cells if cells <= FEW_CELLS else self.row_limit()
            if isinstance(limit, EstimatedLimit) and not any(search.tag == ROWS for search in made.searches):
                made.searches.append(self.search(once, question.unit, ROWS, None, 1, cells))
            once = LimitRowsPerUnit(once, question.unit, limit)
        made.add(index, Count(once, own))

    def distinct(
        self, question: Question, aggregate: AggregateCall, index: int, keys: tuple[GroupKey, ...], made: _Made
    ) -> None:
        """COUNT(DISTINCT x): rows that differ, after bounding."""
        present = [expr.Not(expr.IsNull(value)) for value in aggregate.values]
        wanted = ([aggregate.condition] if aggregate.condition is not None else []) + present
        relation = self.bounded(question, _filtered(question.relation, expr.And(tuple(wanted))), keys, made)
        columns = [(key.name, key.value) for key in keys]
        columns += [(f"value_{place}", value) for place, value in enumerate(aggregate.values)]
        own = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        made.add(index, Count(Distinct(Project(relation, tuple(columns))), own))

    def quantiles(self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], made: _Made) -> None:
        """MEDIAN, QUANTILE, MIN and MAX: one histogram for each value and condition."""
        pieces: dict[tuple[Expr, Expr | None], int] = {}
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind not in ("quantile", "min", "max"):
                continue
            (value,) = aggregate.values
            domain = value.domain(scope)
            grid = bins(domain, growing=domain != value.domain(self.usual(question)))
            chosen = (value, aggregate.condition)
            if chosen not in pieces:
                pieces[chosen] = len(made.pieces)
                made.pieces.append((self.histogram(question, aggregate, grid, keys, made), Fraction(1)))
            wanted: Wanted = (
                "min" if aggregate.kind == "min" else "max" if aggregate.kind == "max" else _level(aggregate)
            )
            made.nodes[index] = recipe.NoisyCell(len(made.sources))
            made.sources.append(QuantileRef(pieces[chosen], grid, wanted))

    def histogram(
        self, question: Question, aggregate: AggregateCall, grid: Bins, keys: tuple[GroupKey, ...], made: _Made
    ) -> Measure:
        """Rows per group and bin."""
        (value,) = aggregate.values
        present = expr.Not(expr.IsNull(value))
        condition = present if aggregate.condition is None else expr.And((aggregate.condition, present))
        relation = self.bounded(question, _filtered(question.relation, condition), keys, made)
        return Count(relation, (*keys, GroupKey("bin", expr.Bucket(value, grid.edges))))


@dataclass
class _Made:
    """What a plan is made of, while it is being made."""

    pieces: list[tuple[Measure, Fraction]]
    sources: list[CellRef | QuantileRef]
    nodes: dict[int, recipe.Formula]
    searches: list[ContributionSearch]
    notes: list[str]

    def add(self, index: int, measure: Measure) -> None:
        """A piece of its own with one value."""
        self.nodes[index] = recipe.NoisyCell(len(self.sources))
        self.sources.append(CellRef(len(self.pieces), 0, 1, False, None))
        self.pieces.append((measure, Fraction(1)))


def _unallowed(pieces: Sequence[PlannedMeasure], sources: Sequence[CellRef | QuantileRef]) -> list[str]:
    """A note where a bound that is found drops rows and intervals do not say what that does."""
    bounded = {place for place, piece in enumerate(pieces) if unfilled_limits(piece.measure)}
    silent = any(source.piece in bounded and getattr(source, "clipped", None) is None for source in sources)
    return [WITHIN_BOUND] if silent else []


def _huge(question: Question, scope: Scope) -> bool:
    """Whether a value that is added up or ranked has no useful limit: a per-unit count or sum that nothing bounds."""
    domains = [value.domain(scope) for aggregate in question.aggregates for value in aggregate.values]
    return any(max(map(abs, bounds_of(domain))) >= HUGE for domain in domains if isinstance(domain, Number))


def _ranked(relation: Relation, context: Context) -> bool:
    """Whether rows are those of a table with stored ranks, each once."""
    match relation:
        case Scan(table=table):
            return context.ranked(table)
        case Project(child=child):
            return _ranked(child, context)
        case PublicJoin(child=child):
            return relation.ranked_here(context) and _ranked(child, context)
        case _:
            return False


def _provisional(relation: Relation) -> Relation:
    """The relation as if every bound that is still to be found were the largest."""
    return fill_limits(relation, MOST)


def _level(aggregate: AggregateCall) -> Fraction:
    if aggregate.level is None:
        raise TypeError("a quantile has a level")
    return aggregate.level


def _plain(relation: Relation, terms: list[Term], factors: list[int], keys: tuple[GroupKey, ...]) -> Measure:
    values = tuple(weighted(term, factor) for term, factor in zip(terms, factors, strict=True))
    if values == (ONE,):
        return Count(relation, keys)
    return Sum(relation, values[0], keys) if len(values) == 1 else SumVector(relation, values, keys)


def _mass(terms: list[Term], factors: list[int]) -> Expr:
    """The weighted size of a row, in steps: at least what it can add to the vector."""
    total: Expr | None = None
    for term, factor in zip(terms, factors, strict=True):
        steps = Fraction(factor) / term.step
        size = expr.Absolute(term.value) if term.value != ONE else ONE
        part = expr.Coalesce((expr.Arithmetic("*", expr.LiteralValue(steps), size), expr.LiteralValue(Fraction(0))))
        total = part if total is None else expr.Arithmetic("+", total, part)
    if total is None:
        raise TypeError("a vector has at least one term")
    return total


def _negative(term: Term, scope: Scope) -> bool:
    domain = term.value.domain(scope)
    return isinstance(domain, Number) and bounds_of(domain)[0] < 0


def _typical(term: Term, signed: bool) -> Fraction:
    """What a row adds to a term, about: a square has a third of its most, other sums half of it or nothing."""
    if term.role == "count":
        return Fraction(1)
    if term.role == "product":
        return term.usual * term.step / 3 if _square(term.value) else Fraction(0)
    return Fraction(0) if signed else term.usual * term.step / 2


def _square(value: Expr) -> bool:
    match value:
        case expr.Arithmetic("*", left, right):
            return left == right
        case expr.Rounded(child=inner) | expr.Case(branches=((_, inner),)):
            return _square(inner)
        case _:
            return False


def _filtered(relation: Relation, condition: Expr | None) -> Relation:
    return relation if condition is None else Filter(relation, condition)


def _moved(node: recipe.Formula, first: int) -> recipe.Formula:
    return key_substitution({index: recipe.NoisyCell(index + first) for index in recipe.cells_of(node)})(node)


def key_substitution(cells: dict[int, recipe.Formula]) -> Callable[[recipe.Formula], recipe.Formula]:
    """Replaces cells by nodes, everywhere."""

    def change(node: recipe.Formula) -> recipe.Formula:
        match node:
            case recipe.NoisyCell(index):
                return cells[index]
            case recipe.FunctionCall(name, arguments):
                return recipe.FunctionCall(name, tuple(map(change, arguments)))
            case recipe.Average():
                return replace(node, total=change(node.total), size=change(node.size))
            case recipe.ClampedTo():
                return replace(node, inner=change(node.inner))
            case _:
                return node

    return change


def sample_value(domain: Domain, context: Context) -> Scalar:
    """Some value of a domain, to stand for a key that is not known yet."""
    match domain:
        case Number(lo=lo) | Moment(lo=lo):
            return lo
        case Category(values=values):
            return values[0]
        case Boolean():
            return False
        case Reference(table=table, column=column) if public := context.public_values(table, column):
            return public[0]
        case Reference(kind="text"):
            return ""
        case Reference():
            return 0
        case Identifier():
            raise Unsupported("an identifier cannot be a key of an answer")


def with_bounds(plan: QueryPlan, context: Context, limits: Mapping[str, int]) -> QueryPlan:
    """The plan at the bounds that were found: histograms then have only the bins that their values can reach."""
    filled = fill_limits(plan, limits) if limits else plan
    sources = tuple(_reached(source, filled, context) for source in filled.sources)
    return replace(filled, sources=sources)


def _reached(source: CellRef | QuantileRef, plan: QueryPlan, context: Context) -> CellRef | QuantileRef:
    if isinstance(source, CellRef):
        return source
    held = plan.pieces[source.piece].measure.axes(context)[-1].values
    return replace(source, bins=source.bins.between(int(held[0]), int(held[-1])))  # type: ignore[arg-type]


def with_tags(plan: QueryPlan, suffix: str) -> QueryPlan:
    """The plan with bounds of its own, for a request that other plans share."""
    changed: QueryPlan = _retagged(plan, suffix)
    return changed


def _retagged(node: Any, suffix: str) -> Any:
    if isinstance(node, tuple):
        return tuple(_retagged(item, suffix) for item in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    made = type(node)(**{part.name: _retagged(getattr(node, part.name), suffix) for part in fields(node)})
    match made:
        case EstimatedLimit(tag=tag) | ContributionSearch(tag=tag):
            return replace(made, tag=tag + suffix)
        case CellRef(clipped=str(tag)):
            return replace(made, clipped=tag + suffix)
        case _:
            return made


def axes(context: Context, plan: QueryPlan) -> tuple[tuple[str, Sequence[Scalar]], ...]:
    """The declared keys of the answer."""
    measure = plan.pieces[0].measure
    found = measure.axes(context)[: len(plan.keys)]
    return tuple((axis.name, axis.values) for axis in found)
