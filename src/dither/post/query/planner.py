"""Plan a question: choose its measures, their shares of the loss, and its contribution bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from dither.plan.relations.group_by import Distinct, GroupAggregate, GroupBy
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, transform, unfilled_limits, walk
from dither.post import formulas
from dither.post.contribution_bound import OCTAVES, ContributionBound, candidate_bounds, histogram_edges
from dither.post.query.bins import Bins, QuantileLevel, make_bins
from dither.post.query.question import AggregateCall, Ordering, OutputColumn, Question
from dither.post.query.terms import (
    CLIPPED_FINEST_STEPS,
    FINEST_STEPS,
    ONE,
    Term,
    Terms,
    largest_row_steps,
    term_weights,
    weighted_value,
)
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference, Scalar

# Tags of the two bounds that may be chosen privately: on the sum of a unit's weighted values ("mass"), and on its rows.
MASS, ROWS = "mass", "rows"
# With at most this many groups, a unit may count in all of them without a search for a bound.
FEW_GROUPS = 64
# The default number of keys in which a unit counts in partition selection.
SELECTED_KEYS = 10
MAX_GROUPS = 2_000_000
LARGEST_CLIP = 1 << 31
LARGEST_ROWS = 1 << 12
LARGEST_BOUNDS = {MASS: LARGEST_CLIP, ROWS: LARGEST_ROWS}
# For choosing weights before a bound is known; sensitivities use LARGEST_BOUNDS.
LIKELY_BOUNDS = {MASS: LARGEST_CLIP, ROWS: 16}
# Values of this many steps come from per-unit counts and sums that nothing bounds.
HUGE_VALUE = 1 << 30
ROWS_BEYOND_BOUND_NOTE = (
    "distinct counts, quantiles and per-unit aggregates leave out the rows beyond the chosen contribution bound, "
    "and their intervals do not cover that"
)
# Counts that are clipped and grouped have this many steps per row, so that a unit's share of a group may be a fraction.
STEPS_PER_ROW = 256
SUMS = frozenset({"count", "sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr"})


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
    `typical_per_row`, if values are spread evenly over their range.
    """

    measure_index: int
    value_index: int
    factor: int
    signed: bool
    bound_tag: str | None
    quantity_per_step: Fraction | None = None
    rounding_error: float = 0.0
    typical_per_row: Fraction = Fraction(1)


@dataclass(frozen=True)
class QuantileRef:
    """A noisy column that formulas read: a quantile of a measure that is a histogram."""

    measure_index: int
    bins: Bins
    level: QuantileLevel


@dataclass(frozen=True)
class ContributionSearch:
    """A contribution bound to choose privately, from a histogram of what each unit contributes.

    `tag` names the limits that the bound fills in, `edges` are those of the histogram, `candidates` are the bounds to
    choose from, `groups` is the number of groups of the answer, and `row_size` the most that one row contributes.
    """

    tag: str
    measure: Measure
    edges: tuple[int, ...]
    candidates: tuple[int, ...]
    groups: int
    row_size: int


@dataclass(frozen=True)
class QueryPlan:
    """A plan without its loss: measures, the noisy columns read from them, formulas, and bounds still to be chosen."""

    question: Question
    unit: str
    keys: tuple[GroupKey, ...]
    measures: tuple[PlannedMeasure, ...]
    sources: tuple[CellRef | QuantileRef, ...]
    outputs: tuple[OutputColumn, ...]
    having: formulas.Formula | None
    order: tuple[Ordering, ...]
    searches: tuple[ContributionSearch, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Planner:
    """Plans questions over one dataset; with `gaussian` noise, contributions are clipped in L2 instead of L1."""

    context: Context
    bound: ContributionBound
    gaussian: bool = False

    def selection_counts(self, question: Question) -> PartitionCounts:
        """Build the counts of units per key for partition selection; a unit counts in a limited number of keys."""
        if not question.knows_unit:
            raise Unbounded(
                "delta= needs rows that belong to one unit each, and a join or GROUP BY in this query mixes units; "
                "join on the unit's key, or leave the join out"
            )
        row_per_key = GroupBy(question.relation, question.keys, (), question.unit)
        limit = self.bound.max_groups or self.bound.max_rows or SELECTED_KEYS
        selected_keys = tuple(GroupKey(name, expr.ColumnRef(name)) for name, _ in question.keys)
        # LimitGroupsPerUnit states that a unit has one row in each key; LimitRowsPerUnit would allow all in one key.
        return PartitionCounts(
            LimitGroupsPerUnit(row_per_key, question.unit, tuple(key.value for key in selected_keys), limit, 1),
            selected_keys,
        )

    def plan(self, question: Question, listed: Mapping[str, tuple[Scalar, ...]] | None = None) -> QueryPlan:
        """Plan a question with as few measures as possible; `listed` has key values that were selected privately."""
        question, bounded_child = self.bound_inner_rows(question)
        scope = Scope(_at_largest_bounds(question.relation).domain(self.context))
        self.check_keys_and_values(question, scope, listed is not None)
        keys = tuple(GroupKey(name, value, None if listed is None else listed[name]) for name, value in question.keys)
        builder = _PlanBuilder([], [], {}, [], [])
        self.plan_sums(question, scope, keys, builder)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind == "units":
                self.plan_unit_count(question, aggregate, index, keys, builder)
            elif aggregate.kind == "distinct":
                self.plan_distinct_count(question, aggregate, index, keys, builder)
        self.plan_quantiles(question, scope, keys, builder)
        return self._build_plan(question, keys, builder, bounded_child)

    def _build_plan(
        self, question: Question, keys: tuple[GroupKey, ...], builder: _PlanBuilder, bounded_child: Relation | None
    ) -> QueryPlan:
        """Assemble the plan; add a search for the row bound of `bounded_child`, unless the builder has one."""
        total = sum(weight for _, weight in builder.measures)
        measures = tuple(PlannedMeasure(measure, weight / total) for measure, weight in builder.measures)
        substitute = cell_substitution(builder.nodes)
        searches = list(builder.searches)
        if bounded_child is not None and not any(search.tag == ROWS for search in searches):
            searches.append(self.contribution_search(bounded_child, question.unit, ROWS, None, 1, 1))
        return QueryPlan(
            question, question.unit, keys, measures, tuple(builder.sources),
            tuple(OutputColumn(output.name, substitute(output.node)) for output in question.outputs),
            substitute(question.having) if question.having is not None else None,
            tuple(replace(term, node=substitute(term.node)) for term in question.order),
            tuple(searches), (*self.notes(question), *builder.notes, *_uncovered_rows_notes(measures, builder.sources)),
        )  # fmt: skip

    def notes(self, question: Question) -> tuple[str, ...]:
        """Return notes on the unit of privacy, and on a given contribution bound."""
        unit = f"unit of privacy: {question.unit}"
        stability = _at_largest_bounds(question.relation).stability(self.context, question.unit)
        if self.bound.auto or stability.max_rows is not None:
            return (unit,)
        where = "" if self.bound.max_groups is None else f" in each of at most {self.bound.max_groups} groups"
        rows = f"{self.bound.max_rows:,} row{'' if self.bound.max_rows == 1 else 's'}"
        limit = f"max_contributions: each {question.unit} adds at most as much as {rows} can{where}"
        return (unit, f"{limit}; estimates lack what is beyond, and the intervals do not cover that")

    def check_keys_and_values(self, question: Question, scope: Scope, listed: bool) -> None:
        """Refuse keys that cannot be listed, and expressions without a domain."""
        for name, key in question.keys:
            if isinstance(key.domain(scope), Identifier):
                raise Unsupported(
                    f"{name} is an identifier, which cannot be a GROUP BY key of the answer; GROUP BY it in a subquery "
                    "and aggregate that, ask for COUNT(DISTINCT ...), or, if its values are public, have the curator "
                    "declare values_from"
                )
        if not listed:
            self.check_group_count(question)
        for aggregate in question.aggregates:
            for value in (*aggregate.values, *([aggregate.condition] if aggregate.condition is not None else [])):
                value.domain(scope)

    def check_group_count(self, question: Question) -> None:
        """Refuse questions whose answers would have more than MAX_GROUPS groups."""
        scope = Scope(_at_largest_bounds(question.relation).domain(self.context))
        groups = 1
        for _, key in question.keys:
            domain = key.domain(scope)
            public = self.context.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
            groups *= cardinality(domain, public)
        if groups > MAX_GROUPS:
            raise Unsupported(
                f"GROUP BY returns a row for every declared value, which here makes {groups} groups, and the most is "
                f"{MAX_GROUPS}; group by something coarser, such as FLOOR(x / 10), or give delta= to select common "
                "keys privately"
            )

    # --- bounding ------------------------------------------------------------------------------------------------

    def bound_inner_rows(self, question: Question) -> tuple[Question, Relation | None]:
        """Limit the rows of a unit inside the question's relation, where its own rows could not be limited later.

        Return the question, and the first child with a limit to be chosen privately, if there is one.
        """
        bounded_child: Relation | None = None
        if _has_huge_values(question, Scope(question.relation.domain(self.context))):
            relation, bounded_child = self.bound_rows_in_groups(question.relation, question.unit)
            question = replace(question, relation=relation)
        if not question.knows_unit and question.relation.stability(self.context, question.unit).max_rows is None:
            relation, bounded_child = self.bound_rows_below(question.relation, question.unit)
            question = replace(question, relation=relation)
        return question, bounded_child

    def bound_rows_in_groups(self, relation: Relation, unit: str) -> tuple[Relation, Relation | None]:
        """Limit the rows of a unit below per-unit counts and sums, whose values would otherwise have no useful limit.

        Return the relation, and the first child with a limit to be chosen privately, if there is one.
        """
        children: list[Relation] = []

        def limit_rows(node: Any) -> Any:
            if isinstance(node, GroupBy) and node.unit and self.has_unbounded_aggregate(node, unit):
                children.append(node.child)
                return replace(node, child=LimitRowsPerUnit(node.child, node.unit, self.row_limit()))
            return node

        changed: Relation = transform(relation, limit_rows)
        return changed, children[0] if children and self.bound.auto else None

    def has_unbounded_aggregate(self, node: GroupBy, unit: str) -> bool:
        """Return True if a per-unit GROUP BY has counts or sums of unlimited size."""
        counts_or_sums = any(aggregate.kind in ("count", "sum", "distinct") for aggregate in node.aggregates)
        return counts_or_sums and node.child.stability(self.context, unit).max_rows is None

    def bound_rows_below(self, relation: Relation, unit: str) -> tuple[Relation, Relation | None]:
        """Limit the rows of a unit just before each join or GROUP BY that mixes units.

        Return the relation, and the first child with a limit to be chosen privately, if there is one.
        """
        children: list[Relation] = []

        def visit(node: Relation) -> Relation:
            stability = node.stability(self.context, unit)
            if stability.max_rows is not None:
                return node
            if stability.tracks_unit:
                children.append(node)
                return LimitRowsPerUnit(node, unit, self.row_limit())
            fields = {name: visit(value) for name, value in vars(node).items() if isinstance(value, Relation)}
            return replace(node, **fields) if fields else node  # type: ignore[type-var]

        changed = visit(relation)
        return changed, children[0] if children and self.bound.auto else None

    def row_limit(self) -> int | EstimatedLimit:
        """The limit on rows of one unit: as given, or to be chosen privately."""
        return EstimatedLimit(ROWS, LARGEST_ROWS) if self.bound.max_rows is None else self.bound.max_rows

    def is_unbounded(self, question: Question, relation: Relation) -> bool:
        """Return True if one unit may have any number of rows; refuse that for rows that belong to no single unit."""
        if _at_largest_bounds(relation).stability(self.context, question.unit).max_rows is not None:
            return False
        if not question.knows_unit:
            raise Unbounded(
                "one unit could change the result without limit, and a join or GROUP BY mixes rows of different units, "
                "so no limit per unit is possible; join and group by the unit's key, or aggregate before that step"
            )
        return True

    def bound_rows(
        self, question: Question, relation: Relation, keys: tuple[GroupKey, ...], builder: _PlanBuilder
    ) -> Relation:
        """Limit the rows of each unit, unless something else does."""
        if not self.is_unbounded(question, relation):
            return relation
        if self.bound.max_groups is not None:
            return self.bound_groups(question, relation, keys)
        if self.bound.auto and not any(search.tag == ROWS for search in builder.searches):
            builder.searches.append(
                self.contribution_search(relation, question.unit, ROWS, None, 1, self.count_groups(relation, keys))
            )
        return LimitRowsPerUnit(relation, question.unit, self.row_limit())

    def bound_groups(self, question: Question, relation: Relation, keys: tuple[GroupKey, ...]) -> Relation:
        """Limit each unit to max_rows_per_group rows in each of max_groups groups."""
        if not keys:
            raise Unsupported(
                "max_contributions has max_groups, which needs GROUP BY; give a number of rows instead, such as 20"
            )
        groups, rows = self.bound.max_groups or 1, self.bound.max_rows or 1
        return LimitGroupsPerUnit(relation, question.unit, tuple(key.value for key in keys), groups, rows)

    def contribution_search(
        self, relation: Relation, unit: str, tag: str, contribution: Expr | None, row_size: int, groups: int
    ) -> ContributionSearch:
        """Build the search for a bound, from a histogram over powers of two of what each unit contributes.

        A row contributes `contribution`, at most `row_size`; without that expression, every row contributes `row_size`.
        """
        aggregate = (
            GroupAggregate("mass", "count") if contribution is None else GroupAggregate("mass", "sum", contribution)
        )
        per_unit = GroupBy(relation, (), (aggregate,), unit)
        edges = histogram_edges(row_size)
        if contribution is None:
            # The histogram counts rows, and each contributes `row_size`.
            edges = tuple(row_size << octave for octave in range(OCTAVES) if row_size << octave <= LARGEST_CLIP)
            cuts = tuple(Fraction(edge, row_size) for edge in edges)
        else:
            # A contribution is a whole number of steps, whatever lattice its expression has.
            cuts = tuple(map(Fraction, edges))
        histogram = Count(per_unit, (GroupKey("mass", expr.Bucket(expr.ColumnRef("mass"), cuts)),))
        candidates = candidate_bounds(edges, LARGEST_BOUNDS[tag])
        return ContributionSearch(tag, histogram, edges, candidates, groups, row_size)

    def count_groups(self, relation: Relation, keys: tuple[GroupKey, ...]) -> int:
        """The number of groups of the answer."""
        return Count(relation, keys).size(self.context)

    # --- measures ------------------------------------------------------------------------------------------------

    def plan_sums(self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], builder: _PlanBuilder) -> None:
        """Plan COUNT, SUM, AVG, VARIANCE, CORR...: one measure has the sums that all of them need."""
        aggregates = [aggregate for aggregate in question.aggregates if aggregate.kind in SUMS]
        if not aggregates:
            return
        averaged = frozenset((a.values[0], a.condition) for a in aggregates if a.kind in ("avg", "var_samp", "var_pop"))
        needs_bound = self.bound.max_groups is None and self.is_unbounded(question, question.relation)
        clipped = needs_bound and not self.keeps_rows(question, aggregates)
        terms = Terms(
            scope, self.likely_scope(question), [], averaged, CLIPPED_FINEST_STEPS if clipped else FINEST_STEPS
        )
        first = len(builder.sources)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind in SUMS:
                builder.nodes[index] = _shift_cells(terms.formula(aggregate), first)
        builder.notes += terms.notes
        factors = term_weights(terms.terms)
        measure, factors, tag = self.sums_measure(question, keys, terms.terms, factors, builder, clipped)
        for position, (term, factor) in enumerate(zip(terms.terms, factors, strict=True)):
            signed = term.role != "count" and _may_be_negative(term, scope)
            per_step = term.max_steps * term.step if tag == ROWS else None
            rounding = float(term.rounding) * self.table_rows(question)
            typical = _typical_per_row(term, signed)
            builder.sources.append(
                CellRef(len(builder.measures), position, factor, signed, tag, per_step, rounding, typical)
            )
        builder.measures.append((measure, Fraction(len(aggregates))))

    def likely_scope(self, question: Question) -> Scope:
        """The domains of columns at likely values of the bounds that are still to be chosen."""
        return Scope(fill_limits(question.relation, LIKELY_BOUNDS).domain(self.context))

    def table_rows(self, question: Question) -> float:
        """The noisy size of the largest table that a question reads, or 0 if no size is known."""
        tables = {node.table for node in walk(question.relation) if isinstance(node, Scan)}
        return float(max((self.context.noisy_rows(table) or 0 for table in tables), default=0))

    def keeps_rows(self, question: Question, aggregates: list[AggregateCall]) -> bool:
        """Return True if the bound keeps a limited number of each unit's rows, False if it scales the unit's sums down.

        A count is the same either way, so rows are kept where their ranks are stored, which is fast. A sum may consist
        of small rows, and a bound on rows would need noise for the largest possible ones.
        """
        if self.bound.how != "auto":
            return self.bound.how == "rows"
        return aggregates == [AggregateCall("count")] and _has_stored_ranks(question.relation, self.context)

    def sums_measure(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        factors: list[int],
        builder: _PlanBuilder,
        clipped: bool,
    ) -> tuple[Measure, list[int], str | None]:
        """Build the measure of the terms; return it with its factors and the tag of the bound that limits it."""
        relation = question.relation
        if not self.is_unbounded(question, relation):
            return _plain_sums(relation, terms, factors, keys), factors, None
        if self.bound.max_groups is not None:
            return _plain_sums(self.bound_groups(question, relation, keys), terms, factors, keys), factors, None
        if not clipped:
            bounded = self.bound_rows(question, relation, keys, builder)
            return _plain_sums(bounded, terms, factors, keys), factors, ROWS
        return self._clipped_sums(question, keys, terms, factors, builder)

    def _clipped_sums(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        factors: list[int],
        builder: _PlanBuilder,
    ) -> tuple[Measure, list[int], str | None]:
        """Build sums that are scaled down for units above the bound, and the search for the bound if none is given."""
        counts_only = all(term.value == ONE for term in terms)
        steps = STEPS_PER_ROW if keys and counts_only else 1
        factors = [factor * steps for factor in factors]
        largest = largest_row_steps(terms, factors)
        limit: int | EstimatedLimit = (
            EstimatedLimit(MASS, LARGEST_CLIP)
            if self.bound.max_rows is None
            else min(self.bound.max_rows * largest, LARGEST_CLIP)
        )
        unit, relation = question.unit, question.relation
        if self.bound.auto:
            contribution = None if counts_only else _row_contribution(terms, factors)
            groups = self.count_groups(relation, keys)
            builder.searches.append(self.contribution_search(relation, unit, MASS, contribution, largest, groups))
        values = tuple(weighted_value(term, factor) for term, factor in zip(terms, factors, strict=True))
        return ClippedSums(relation, unit, values, limit, "l2" if self.gaussian else "l1", keys), factors, MASS

    def plan_unit_count(
        self,
        question: Question,
        aggregate: AggregateCall,
        index: int,
        keys: tuple[GroupKey, ...],
        builder: _PlanBuilder,
    ) -> None:
        """Plan COUNT(DISTINCT unit's key): each unit counts once per group."""
        if not question.knows_unit:
            raise Unbounded(
                "units cannot be counted here, since a join or GROUP BY mixes rows of different units; "
                "count them before that step, or join on the unit's key"
            )
        relation = _filter_rows(question.relation, aggregate.condition)
        row_per_group: Relation = GroupBy(relation, tuple((key.name, key.value) for key in keys), (), question.unit)
        grouped_keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        if row_per_group.stability(self.context, question.unit).max_rows is None:
            groups = self.count_groups(row_per_group, grouped_keys)
            limit: int | EstimatedLimit = groups if groups <= FEW_GROUPS else self.row_limit()
            if isinstance(limit, EstimatedLimit) and not any(search.tag == ROWS for search in builder.searches):
                builder.searches.append(self.contribution_search(row_per_group, question.unit, ROWS, None, 1, groups))
            row_per_group = LimitRowsPerUnit(row_per_group, question.unit, limit)
        builder.add_measure(index, Count(row_per_group, grouped_keys))

    def plan_distinct_count(
        self,
        question: Question,
        aggregate: AggregateCall,
        index: int,
        keys: tuple[GroupKey, ...],
        builder: _PlanBuilder,
    ) -> None:
        """Plan COUNT(DISTINCT x): count the distinct rows within the contribution bound."""
        present = [expr.Not(expr.IsNull(value)) for value in aggregate.values]
        conditions = ([aggregate.condition] if aggregate.condition is not None else []) + present
        relation = self.bound_rows(
            question, _filter_rows(question.relation, expr.And(tuple(conditions))), keys, builder
        )
        columns = [(key.name, key.value) for key in keys]
        columns += [(f"value_{position}", value) for position, value in enumerate(aggregate.values)]
        projected_keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        builder.add_measure(index, Count(Distinct(Project(relation, tuple(columns))), projected_keys))

    def plan_quantiles(
        self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], builder: _PlanBuilder
    ) -> None:
        """Plan MEDIAN, QUANTILE, MIN and MAX: one histogram for each value and condition."""
        histograms: dict[tuple[Expr, Expr | None], int] = {}
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind not in ("quantile", "min", "max"):
                continue
            (value,) = aggregate.values
            domain = value.domain(scope)
            bins = make_bins(domain, growing=domain != value.domain(self.likely_scope(question)))
            ranked = (value, aggregate.condition)
            if ranked not in histograms:
                histograms[ranked] = len(builder.measures)
                builder.measures.append((self.histogram(question, aggregate, bins, keys, builder), Fraction(1)))
            builder.nodes[index] = formulas.NoisyCell(len(builder.sources))
            builder.sources.append(QuantileRef(histograms[ranked], bins, _quantile_level(aggregate)))

    def histogram(
        self,
        question: Question,
        aggregate: AggregateCall,
        bins: Bins,
        keys: tuple[GroupKey, ...],
        builder: _PlanBuilder,
    ) -> Measure:
        """Build the counts of rows per group and bin."""
        (value,) = aggregate.values
        present = expr.Not(expr.IsNull(value))
        condition = present if aggregate.condition is None else expr.And((aggregate.condition, present))
        relation = self.bound_rows(question, _filter_rows(question.relation, condition), keys, builder)
        return Count(relation, (*keys, GroupKey("bin", expr.Bucket(value, bins.edges))))


@dataclass
class _PlanBuilder:
    """Collects the parts of a plan; `nodes` has the formula of each aggregate, by its index."""

    measures: list[tuple[Measure, Fraction]]
    sources: list[CellRef | QuantileRef]
    nodes: dict[int, formulas.Formula]
    searches: list[ContributionSearch]
    notes: list[str]

    def add_measure(self, index: int, measure: Measure) -> None:
        """Add a measure with one value, for one aggregate."""
        self.nodes[index] = formulas.NoisyCell(len(self.sources))
        self.sources.append(CellRef(len(self.measures), 0, 1, False, None))
        self.measures.append((measure, Fraction(1)))


def _uncovered_rows_notes(measures: Sequence[PlannedMeasure], sources: Sequence[CellRef | QuantileRef]) -> list[str]:
    """Warn if a bound to be chosen drops rows and some column's interval does not cover that."""
    bounded = {position for position, planned in enumerate(measures) if unfilled_limits(planned.measure)}
    uncovered = any(
        source.measure_index in bounded and (isinstance(source, QuantileRef) or source.bound_tag is None)
        for source in sources
    )
    return [ROWS_BEYOND_BOUND_NOTE] if uncovered else []


def _has_huge_values(question: Question, scope: Scope) -> bool:
    """Return True if an aggregated value has no useful limit, as a per-unit count or sum that nothing bounds."""
    domains = [value.domain(scope) for aggregate in question.aggregates for value in aggregate.values]
    return any(max(map(abs, bounds_of(domain))) >= HUGE_VALUE for domain in domains if isinstance(domain, Number))


def _has_stored_ranks(relation: Relation, context: Context) -> bool:
    """Return True if the rows are those of a table with stored ranks, each at most once."""
    match relation:
        case Scan(table=table):
            return context.has_stored_ranks(table)
        case Project(child=child):
            return _has_stored_ranks(child, context)
        case PublicJoin(child=child):
            return relation.keeps_stored_ranks(context) and _has_stored_ranks(child, context)
        case _:
            return False


def _at_largest_bounds(relation: Relation) -> Relation:
    """The relation with the largest value for every bound that is still to be chosen."""
    return fill_limits(relation, LARGEST_BOUNDS)


def _quantile_level(aggregate: AggregateCall) -> QuantileLevel:
    if aggregate.kind == "min" or aggregate.kind == "max":
        return aggregate.kind
    if aggregate.level is None:
        raise TypeError("a quantile has a level")
    return aggregate.level


def _plain_sums(relation: Relation, terms: list[Term], factors: list[int], keys: tuple[GroupKey, ...]) -> Measure:
    values = tuple(weighted_value(term, factor) for term, factor in zip(terms, factors, strict=True))
    if values == (ONE,):
        return Count(relation, keys)
    return Sum(relation, values[0], keys) if len(values) == 1 else SumVector(relation, values, keys)


def _row_contribution(terms: list[Term], factors: list[int]) -> Expr:
    """The expression of a row's contribution to the weighted terms: the sum of their absolute values, in steps."""
    total: Expr | None = None
    for term, factor in zip(terms, factors, strict=True):
        steps = Fraction(factor) / term.step
        size = expr.Absolute(term.value) if term.value != ONE else ONE
        part = expr.Coalesce((expr.Arithmetic("*", expr.LiteralValue(steps), size), expr.LiteralValue(Fraction(0))))
        total = part if total is None else expr.Arithmetic("+", total, part)
    if total is None:
        raise TypeError("a row has at least one term")
    return total


def _may_be_negative(term: Term, scope: Scope) -> bool:
    domain = term.value.domain(scope)
    return isinstance(domain, Number) and bounds_of(domain)[0] < 0


def _typical_per_row(term: Term, signed: bool) -> Fraction:
    """Guess what a row adds to a term: a third of the most for a square, else half of it, or 0 for a signed sum."""
    if term.role == "count":
        return Fraction(1)
    if term.role == "product":
        return term.likely_steps * term.step / 3 if _is_square(term.value) else Fraction(0)
    return Fraction(0) if signed else term.likely_steps * term.step / 2


def _is_square(value: Expr) -> bool:
    match value:
        case expr.Arithmetic("*", left, right):
            return left == right
        case expr.Rounded(child=inner) | expr.Case(branches=((_, inner),)):
            return _is_square(inner)
        case _:
            return False


def _filter_rows(relation: Relation, condition: Expr | None) -> Relation:
    return relation if condition is None else Filter(relation, condition)


def _shift_cells(node: formulas.Formula, first: int) -> formulas.Formula:
    return cell_substitution({index: formulas.NoisyCell(index + first) for index in formulas.cells_of(node)})(node)


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
            case _:
                return node

    return change


def sample_value(domain: Domain, context: Context) -> Scalar:
    """Return some value of a domain, as a placeholder for a key that is not selected yet."""
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
            raise Unsupported("an identifier cannot be a GROUP BY key of the answer")


def with_bounds(plan: QueryPlan, context: Context, limits: Mapping[str, int]) -> QueryPlan:
    """Fill in chosen bounds, and restrict histograms to the bins that their values can then reach."""
    filled = fill_limits(plan, limits) if limits else plan
    sources = tuple(_restrict_bins(source, filled, context) for source in filled.sources)
    return replace(filled, sources=sources)


def _restrict_bins(source: CellRef | QuantileRef, plan: QueryPlan, context: Context) -> CellRef | QuantileRef:
    if isinstance(source, CellRef):
        return source
    reachable = plan.measures[source.measure_index].measure.axes(context)[-1].values
    return replace(source, bins=source.bins.between(int(reachable[0]), int(reachable[-1])))  # type: ignore[arg-type]


def bound_name(tag: str) -> str:
    """Name a bound for people; the tags of a batch end in the position of their query."""
    return f"the contribution bound of {'sums' if tag.partition(' ')[0] == MASS else 'rows'}"


def rows_text(bound: int, row_size: int, aggregates: Sequence[AggregateCall]) -> str:
    """Write a bound in rows, rounded up; a bound on sums as the rows with the largest values that add as much."""
    if bound < row_size:
        rows = f"{bound / row_size:.1%} of a row"
    else:
        whole = -(-bound // row_size)
        rows = f"{whole:,} row{'' if whole == 1 else 's'}"
    if row_size == 1 or all(aggregate.kind == "count" for aggregate in aggregates):
        return rows
    return f"as much as {rows} with the largest possible values"


def with_tags(plan: QueryPlan, suffix: str) -> QueryPlan:
    """Append a suffix to the tags of a plan's bounds, to tell them from those of other plans in one request."""

    def append_suffix(node: Any) -> Any:
        match node:
            case EstimatedLimit(tag=tag) | ContributionSearch(tag=tag):
                return replace(node, tag=tag + suffix)
            case CellRef(bound_tag=str(tag)):
                return replace(node, bound_tag=tag + suffix)
            case _:
                return node

    changed: QueryPlan = transform(plan, append_suffix)
    return changed


def answer_axes(context: Context, plan: QueryPlan) -> tuple[tuple[str, Sequence[Scalar]], ...]:
    """Return the GROUP BY keys of the answer, each with its values."""
    axes = plan.measures[0].measure.axes(context)[: len(plan.keys)]
    return tuple((axis.name, axis.values) for axis in axes)
