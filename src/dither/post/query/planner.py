"""Plan a question: choose its measures, their shares of the loss, and its contribution bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, Literal

from dither.errors import Unbounded, Unsupported
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import ONLY_NULL, bounds_of, cardinality
from dither.plan.expressions.core import EstimatedValue, Expr
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
from dither.plan.traversal import fill_limits, fill_values, transform, unfilled_limits, walk
from dither.post import formulas
from dither.post.contribution_bound import (
    CENTRED_WEIGHTS,
    COUNT_WEIGHTS,
    SIDE_COUNT_WEIGHTS,
    SUM_WEIGHTS,
    ContributionBound,
    centre_candidates,
    row_bins,
    value_bins,
)
from dither.post.query.bins import Bins, QuantileLevel, make_bins
from dither.post.query.question import AggregateCall, Ordering, OutputColumn, Question
from dither.post.query.terms import (
    CLIPPED_FINEST_STEPS,
    FINEST_STEPS,
    NULL,
    ONE,
    ZERO,
    Centre,
    Term,
    Terms,
    largest_row_steps,
    term_weights,
    weighted_value,
)
from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Moment, Number, Reference, Scalar

# Tags of bounds that may be chosen privately: on a unit's counts ("mass"), on its rows, and on each sum of its values.
MASS, ROWS, VALUES = "mass", "rows", "values"
# With at most this many groups, a unit may count in all of them without a search for a bound.
FEW_GROUPS = 64
# The default number of keys in which a unit counts in partition selection.
SELECTED_KEYS = 10
MAX_GROUPS = 2_000_000
# From this many groups on, a note says how many there are.
MANY_GROUPS = 10_000
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
    `typical_per_row`, if values are spread evenly over their range. The exact value is at most `most`, if known.
    `size_index` is the index of the column that counts the rows of this one, if there is one.
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
    Contributions are multiples of `step`; what is removed from a `signed` sum may have either sign. `quantity` is the
    value of one step, if values are summed and not rows, and `share` is that of the loss.
    """

    tag: str
    measure: Measure
    edges: tuple[int, ...]
    candidates: tuple[int, ...]
    groups: int
    row_size: int
    step: int = 1
    signed: bool = False
    quantity: Fraction | None = None
    weight: Fraction = COUNT_WEIGHTS["search"]
    share: Fraction = Fraction(1, 5)


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


@dataclass(frozen=True)
class Planner:
    """Plans questions over one dataset; with `gaussian` noise, contributions are clipped in L2 instead of L1."""

    context: Context
    bound: ContributionBound
    gaussian: bool = False

    def selection_counts(self, question: Question) -> PartitionCounts:
        """Build the counts of units per key for partition selection; a unit counts in a limited number of keys."""
        if not question.keys:
            raise Unsupported("delta= selects the keys of GROUP BY, and this query has none; leave delta= out")
        if self.context.dataset.units[question.unit].kind == "row":
            raise Unsupported(
                f"delta= counts the units that have a key, and the unit {question.unit} is a single row; "
                "group by columns with declared values, or ask with the unit= of a person"
            )
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
        keys = tuple(
            GroupKey(name, value, None if listed is None else in_domain_order(listed[name], value.domain(scope)))
            for name, value in question.keys
        )
        builder = _PlanBuilder([], [], {}, [], [] if listed is not None else self.large_answer_notes(question))
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
            searches.append(self.row_search(bounded_child, question.unit, 1))
        whole = total + sum((search.weight for search in searches), Fraction(0))
        searches = [replace(search, share=search.weight / whole) for search in searches]
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
                    f"{name} is an identifier, which cannot be a GROUP BY key of the answer; "
                    f"{_way_out_of_identifier(key, self.context.dataset)}"
                )
        if not listed:
            self.check_group_count(question)
        for aggregate in question.aggregates:
            if aggregate.condition is not None:
                aggregate.condition.domain(scope)
            for value in aggregate.values:
                if value.domain(scope) == ONLY_NULL and aggregate.kind not in ("count", "distinct"):
                    raise Unsupported("the argument of an aggregate is NULL in every row; leave the aggregate out")

    def check_group_count(self, question: Question) -> None:
        """Refuse questions whose answers would have more than MAX_GROUPS groups."""
        groups = self.group_count(question)
        if groups > MAX_GROUPS:
            raise Unsupported(
                f"GROUP BY returns a row for every declared value, which here makes {groups} groups, and the most is "
                f"{MAX_GROUPS}; group by something coarser, such as FLOOR(x / 10) or CLAMP(x, 0, 20), or give delta= "
                "to select common keys privately"
            )

    def group_count(self, question: Question) -> int:
        """Count the groups of an answer that has every declared key."""
        scope = Scope(_at_largest_bounds(question.relation).domain(self.context))
        groups = 1
        for _, key in question.keys:
            domain = key.domain(scope)
            public = self.context.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
            groups *= cardinality(domain, public)
        return groups

    def large_answer_notes(self, question: Question) -> list[str]:
        """Return a note if the answer has very many groups, most of which may have no record."""
        groups = self.group_count(question)
        if groups <= MANY_GROUPS:
            return []
        return [f"the answer has {groups:,} groups, one for every declared key, also where no record has it"]

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
            groups = self.count_groups(relation, keys)
            builder.searches.append(self.row_search(relation, question.unit, groups))
        return LimitRowsPerUnit(relation, question.unit, self.row_limit())

    def bound_groups(self, question: Question, relation: Relation, keys: tuple[GroupKey, ...]) -> Relation:
        """Limit each unit to max_rows_per_group rows in each of max_groups groups."""
        if not keys:
            raise Unsupported(
                "max_contributions has max_groups, which needs GROUP BY; give a number of rows instead, such as 20"
            )
        groups, rows = self.bound.max_groups or 1, self.bound.max_rows or 1
        return LimitGroupsPerUnit(relation, question.unit, tuple(key.value for key in keys), groups, rows)

    def row_search(
        self,
        relation: Relation,
        unit: str,
        groups: int,
        tag: str = ROWS,
        steps: int = 1,
        counted: Sequence[Expr] = (ONE,),
    ) -> ContributionSearch:
        """Build the search for a bound on the counts of each unit: each adds `steps` for every row that is counted."""
        per_row: Expr | None = None if list(counted) == [ONE] else _sum_of(counted)
        aggregate = GroupAggregate("mass", "count") if per_row is None else GroupAggregate("mass", "sum", per_row)
        per_unit = GroupBy(relation, (), (aggregate,), unit)
        bins = row_bins(steps)
        cuts = tuple(Fraction(bin, steps) + 1 for bin in bins[:-1])
        edges = tuple(bin + steps for bin in bins[:-1])
        return self._search(per_unit, expr.ColumnRef("mass"), cuts, edges, bins, groups, tag, steps, step=steps)

    def value_search(
        self, question: Question, keys: tuple[GroupKey, ...], term: Term, tag: str, signed: bool
    ) -> ContributionSearch:
        """Build the search for a bound on the sums of a term: on their absolute values over all groups of a unit."""
        named = tuple((key.name, key.value) for key in keys)
        total = GroupAggregate("mass", "sum", expr.Coalesce((term.value, ZERO)))
        per_group = GroupBy(question.relation, named, (total,), question.unit)
        size: Expr = expr.Absolute(expr.ColumnRef("mass"))
        per_unit: Relation = per_group
        if keys:
            per_unit = GroupBy(per_group, (), (GroupAggregate("mass", "sum", size),), question.unit)
            size = expr.ColumnRef("mass")
        bins = value_bins(term.max_steps)
        edges = tuple(bin + 1 for bin in bins[:-1])
        cuts = tuple(edge * term.step for edge in edges)
        groups = self.count_groups(question.relation, keys)
        weights = CENTRED_WEIGHTS if term.centre is not None else SUM_WEIGHTS
        search = self._search(per_unit, size, cuts, edges, bins, groups, tag, term.max_steps, step=1)
        return replace(search, signed=signed, quantity=term.step, weight=weights["search"])

    def _search(
        self,
        per_unit: Relation,
        size: Expr,
        cuts: tuple[Fraction, ...],
        edges: tuple[int, ...],
        bins: tuple[int, ...],
        groups: int,
        tag: str,
        row_size: int,
        step: int,
    ) -> ContributionSearch:
        """Build a search from a histogram of the units' sizes, cut at `cuts`."""
        histogram = Count(per_unit, (GroupKey("mass", expr.Bucket(size, cuts)),))
        candidates = tuple(bin for bin in bins if bin <= (LARGEST_ROWS if tag == ROWS else LARGEST_CLIP))
        return ContributionSearch(tag, histogram, edges, candidates, groups, row_size, step)

    def centre_search(self, question: Question, centre: Centre) -> CentreSearch:
        """Build the search for a centre, from a histogram of each unit's mean over the candidates nearest to it."""
        number = centre.number
        points = centre_candidates(number.lo, number.hi)
        value = centre.value if centre.condition is None else expr.Case(((centre.condition, centre.value),), NULL)
        per_unit = GroupBy(question.relation, (), (GroupAggregate("mean", "avg", value),), question.unit)
        cuts = tuple((low + high) * number.step / 2 for low, high in pairwise(points))
        nearest = expr.Bucket(expr.ColumnRef("mean"), cuts)
        # Units without a mean count nowhere: the places are listed, and NULL is none of them.
        histogram = Count(per_unit, (GroupKey("mean", nearest, tuple(map(Fraction, range(len(points))))),))
        return CentreSearch(number.tag, histogram, tuple(point - number.lo + 1 for point in points))

    def count_groups(self, relation: Relation, keys: tuple[GroupKey, ...]) -> int:
        """The number of groups of the answer."""
        return Count(relation, keys).size(self.context)

    def filter_rows(
        self, relation: Relation, keys: tuple[GroupKey, ...], values: tuple[Expr, ...], condition: Expr | None
    ) -> tuple[Relation, tuple[GroupKey, ...], tuple[Expr, ...]]:
        """Filter the rows of one aggregate; return them with the keys and values to read from them.

        A filter narrows the domains of columns. All aggregates must have the same groups, so keys that would change
        are computed before the filter.
        """
        if condition is None:
            return relation, keys, values
        filtered = Filter(relation, condition)
        scopes = [Scope(_at_largest_bounds(each).domain(self.context)) for each in (relation, filtered)]
        if all(key.values is not None or len({key.value.domain(scope) for scope in scopes}) == 1 for key in keys):
            return filtered, keys, values
        columns = {f"key_{index}": key.value for index, key in enumerate(keys)}
        columns |= {f"value_{index}": value for index, value in enumerate(values)} | {"kept": condition}
        before = Project(relation, tuple(columns.items()))
        same_keys = tuple(replace(key, value=expr.ColumnRef(f"key_{index}")) for index, key in enumerate(keys))
        read = tuple(expr.ColumnRef(f"value_{index}") for index in range(len(values)))
        return Filter(before, expr.ColumnRef("kept")), same_keys, read

    # --- measures ------------------------------------------------------------------------------------------------

    def plan_sums(self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], builder: _PlanBuilder) -> None:
        """Plan COUNT, SUM, AVG, VARIANCE, CORR...: one measure has the sums that all of them need."""
        aggregates = [aggregate for aggregate in question.aggregates if aggregate.kind in SUMS]
        if not aggregates:
            return
        averaged = frozenset((a.values[0], a.condition) for a in aggregates if a.kind in ("avg", "var_samp", "var_pop"))
        needs_bound = self.bound.max_groups is None and self.is_unbounded(question, question.relation)
        clipped = needs_bound and not self.keeps_rows(question, aggregates)
        separate = clipped and self.bound.auto
        terms = Terms(
            scope, self.likely_scope(question), [], averaged, CLIPPED_FINEST_STEPS if clipped else FINEST_STEPS,
            private_centres=separate,
        )  # fmt: skip
        first = len(builder.sources)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind in SUMS:
                builder.nodes[index] = _shift_cells(terms.formula(aggregate), first)
        builder.notes += terms.notes
        if separate:
            self.plan_separate_sums(question, scope, keys, terms, builder)
            return
        factors = term_weights(terms.terms)
        measure, factors, tag = self.sums_measure(question, keys, terms.terms, factors, builder, clipped)
        for position, (term, factor) in enumerate(zip(terms.terms, factors, strict=True)):
            per_step = term.max_steps * term.step if tag == ROWS else None
            builder.sources.append(
                self.cell_ref(question, scope, term, len(builder.measures), position, factor, tag, per_step)
            )
        builder.measures.append((measure, len(aggregates) * COUNT_WEIGHTS["answer"]))

    def cell_ref(
        self,
        question: Question,
        scope: Scope,
        term: Term,
        measure_index: int,
        position: int,
        factor: int,
        tag: str | None,
        per_step: Fraction | None = None,
        size_index: int | None = None,
    ) -> CellRef:
        """Describe the noisy column of a term."""
        signed = term.role != "count" and _may_be_negative(term, scope)
        rounding = float(term.rounding) * self.table_rows(question)
        typical = _typical_per_row(term, signed)
        return CellRef(measure_index, position, factor, signed, tag, per_step, rounding, typical, size_index=size_index)

    def plan_separate_sums(
        self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], terms: Terms, builder: _PlanBuilder
    ) -> None:
        """Plan sums whose bounds are chosen privately: all counts in one measure, every sum of values in its own.

        Each has a bound of its own, since units with many rows need not have large values. Values whose average is
        asked for are summed around a centre that is chosen privately.
        """
        counts = [index for index, term in enumerate(terms.terms) if term.role == "count"]
        values = [index for index, term in enumerate(terms.terms) if term.role != "count"]
        first, refs = len(builder.sources), dict[int, CellRef]()
        groups = self.count_groups(question.relation, keys)
        norm: Literal["l1", "l2"] = "l2" if self.gaussian else "l1"
        if counts:
            weights = SIDE_COUNT_WEIGHTS if values else COUNT_WEIGHTS
            steps = STEPS_PER_ROW if keys or len(counts) > 1 else 1
            counted = [terms.terms[index].value for index in counts]
            search = self.row_search(question.relation, question.unit, groups, MASS, steps, counted)
            builder.searches.append(replace(search, weight=weights["search"]))
            summands = tuple(weighted_value(terms.terms[index], steps) for index in counts)
            for position, index in enumerate(counts):
                place = len(builder.measures)
                refs[index] = self.cell_ref(question, scope, terms.terms[index], place, position, steps, MASS)
            limit = EstimatedLimit(MASS, LARGEST_CLIP)
            measure = ClippedSums(question.relation, question.unit, summands, limit, norm, keys)
            builder.measures.append((measure, weights["answer"]))
        builder.searches += [self.centre_search(question, centre) for centre in terms.centres]
        for number, index in enumerate(values):
            term, tag = terms.terms[index], f"{VALUES}{number}"
            weights = CENTRED_WEIGHTS if term.centre is not None else SUM_WEIGHTS
            size_index = None if term.size is None else first + term.size
            ref = self.cell_ref(question, scope, term, len(builder.measures), 0, 1, tag, None, size_index)
            refs[index] = ref
            builder.searches.append(self.value_search(question, keys, term, tag, ref.signed))
            limit = EstimatedLimit(tag, LARGEST_CLIP)
            measure = ClippedSums(question.relation, question.unit, (term.value,), limit, norm, keys)
            builder.measures.append((measure, weights["answer"]))
        builder.sources += [refs[index] for index in range(len(terms.terms))]

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
        """Build sums that are scaled down for units above the given bound."""
        counts_only = all(term.value == ONE for term in terms)
        steps = STEPS_PER_ROW if keys and counts_only else 1
        factors = [factor * steps for factor in factors]
        largest = largest_row_steps(terms, factors)
        limit = min((self.bound.max_rows or 1) * largest, LARGEST_CLIP)
        unit, relation = question.unit, question.relation
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
        relation, keys, _ = self.filter_rows(question.relation, keys, (), aggregate.condition)
        row_per_group: Relation = GroupBy(relation, tuple((key.name, key.value) for key in keys), (), question.unit)
        grouped_keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        if row_per_group.stability(self.context, question.unit).max_rows is None:
            groups = self.count_groups(row_per_group, grouped_keys)
            limit: int | EstimatedLimit = groups if groups <= FEW_GROUPS else self.row_limit()
            if isinstance(limit, EstimatedLimit) and not any(search.tag == ROWS for search in builder.searches):
                builder.searches.append(self.row_search(row_per_group, question.unit, groups))
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
        relation, keys, values = self.filter_rows(
            question.relation, keys, aggregate.values, expr.And(tuple(conditions))
        )
        relation = self.bound_rows(question, relation, keys, builder)
        columns = [(key.name, key.value) for key in keys]
        columns += [(f"value_{position}", value) for position, value in enumerate(values)]
        projected_keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        scope = Scope(_at_largest_bounds(relation).domain(self.context))
        most = _count_values([value.domain(scope) for value in values])
        builder.add_measure(index, Count(Distinct(Project(relation, tuple(columns))), projected_keys), most)

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
                builder.measures.append(
                    (self.histogram(question, aggregate, bins, keys, builder), COUNT_WEIGHTS["answer"])
                )
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
        relation, keys, (value,) = self.filter_rows(question.relation, keys, (value,), condition)
        relation = self.bound_rows(question, relation, keys, builder)
        binned = _without_null(value, Scope(_at_largest_bounds(relation).domain(self.context)))
        return Count(relation, (*keys, GroupKey("bin", expr.Bucket(binned, bins.edges))))


@dataclass
class _PlanBuilder:
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


def _way_out_of_identifier(key: Expr, dataset: Dataset) -> str:
    """Say what to do instead of grouping by an identifier; the values of a public table can be listed."""
    column = key.name if isinstance(key, expr.ColumnRef) else ""
    for table in dataset.tables.values():
        found = table.columns.get(column)
        if not table.private and found is not None and isinstance(found.domain, Identifier):
            declared = f"{{type: category, values_from: {table.name}.{column}, kind: {found.domain.kind}}}"
            return f"the table {table.name} is public, so the curator can declare {column}: {declared} in it"
    return (
        "GROUP BY it in a subquery and aggregate that, ask for COUNT(DISTINCT ...), or, if its values are public, have "
        "the curator declare values_from"
    )


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


def _sum_of(values: Sequence[Expr]) -> Expr:
    """The expression of the sum of values, of which none is NULL."""
    total = values[0]
    for value in values[1:]:
        total = expr.Arithmetic("+", total, value)
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


def _count_values(domains: Sequence[Domain]) -> int | None:
    """Return the number of values, or of combinations of values, that columns declare, or None if one does not."""
    if not all(isinstance(domain, Number | Category | Boolean) for domain in domains):
        return None
    return prod(cardinality(domain) - domain.nullable for domain in domains)


def _without_null(value: Expr, scope: Scope) -> Expr:
    """Return a value whose domain has no NULL, for rows that were filtered to have none: the bin of NULL is left out.

    A filter takes NULL out of the domain of a column, but not out of that of an expression over columns.
    """
    domain = value.domain(scope)
    if not isinstance(domain, Number) or not domain.nullable:
        return value
    return expr.Coalesce((value, expr.LiteralValue(min(max(domain.lo, Fraction(0)), domain.hi))))


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


def in_domain_order(values: Sequence[Scalar], domain: Domain) -> tuple[Scalar, ...]:
    """Sort key values as a declared key has them: a category's in the order of the schema, and NULL last."""
    order = {value: index for index, value in enumerate(domain.values)} if isinstance(domain, Category) else {}
    known: list[Any] = [value for value in values if value is not None]
    return (*sorted(known, key=lambda value: order.get(value, value)), *((None,) if None in values else ()))


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
    filled = _fix_chosen_values(fill_values(fill_limits(plan, limits), limits)) if limits else plan
    sources = tuple(_restrict_bins(source, filled, context) for source in filled.sources)
    return replace(filled, sources=sources)


def _fix_chosen_values(plan: QueryPlan) -> QueryPlan:
    """Replace the values that are chosen by now by literals."""

    def fix_formula(node: Any) -> Any:
        match node:
            case formulas.ChosenValue(EstimatedValue(value=int(steps), step=step)):
                return formulas.FixedValue(float(steps * step))
            case _:
                return node

    def fix_expression(node: Any) -> Any:
        match node:
            case EstimatedValue(value=int(steps), step=step):
                return expr.LiteralValue(steps * step)
            case _:
                return node

    fixed: QueryPlan = transform(transform(plan, fix_formula), fix_expression)
    return fixed


def _restrict_bins(source: CellRef | QuantileRef, plan: QueryPlan, context: Context) -> CellRef | QuantileRef:
    if isinstance(source, CellRef):
        return source
    reachable = plan.measures[source.measure_index].measure.axes(context)[-1].values
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
        return f"{float(bound * search.quantity):,.4g} to the sum of values"
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


def answer_axes(context: Context, plan: QueryPlan) -> tuple[tuple[str, Sequence[Scalar]], ...]:
    """Return the GROUP BY keys of the answer, each with its values."""
    axes = plan.measures[0].measure.axes(context)[: len(plan.keys)]
    return tuple((axis.name, axis.values) for axis in axes)
