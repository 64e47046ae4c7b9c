"""Plan a question: choose its measures, their shares of the loss, and its contribution bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dither.errors import Unbounded, Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import ONLY_NULL, cardinality
from dither.plan.expressions.core import Expr
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import GroupKey, Measure, SelectedValues
from dither.plan.measures.partitions import KeyShares
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit, smallest
from dither.plan.traversal import fill_limits, unfilled_limits, walk
from dither.post import formulas
from dither.post.contribution_bound import CENTRED_WEIGHTS, COUNT_WEIGHTS, SIDE_COUNT_WEIGHTS, SUM_WEIGHTS
from dither.post.query.aggregated_values import (
    count_values,
    has_stored_ranks,
    may_be_negative,
    plain_sums,
    quantile_level,
    typical_per_row,
    without_null,
)
from dither.post.query.bins import (
    Bins,
    bins_for,
    check_ranked,
    make_bins,
    make_equal_bins,
    make_growing_bins,
    noisy_bins_for,
    periods_after_first,
)
from dither.post.query.conflicting_units import refuse_conflicting_units
from dither.post.query.public_values import reachable_values
from dither.post.query.query_plan import (
    CLIPPED_NOTE,
    LARGEST_BOUNDS,
    LARGEST_CLIP,
    MASS,
    ROWS,
    VALUES,
    CellRef,
    CentreSearch,
    ContributionSearch,
    PlanBuilder,
    PlannedMeasure,
    QuantileRef,
    QueryPlan,
    at_largest_bounds,
    cell_substitution,
    shift_cells,
)
from dither.post.query.question import SUMS, AggregateCall, OutputColumn, Question
from dither.post.query.shares import divide_loss
from dither.post.query.span_bounds import SpanBounds
from dither.post.query.span_terms import SearchShares, SpanTerms, role_weight
from dither.post.query.spans import Span
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
from dither.post.query.typical_rows import tail_rows
from dither.schema import Dataset, Identifier, Moment, Reference

# With at most this many groups, a unit may count in all of them without a search for a bound.
FEW_GROUPS = 64
# The default number of keys in which a unit counts in partition selection.
SELECTED_KEYS = 100
MAX_GROUPS = 2_000_000
# From this many groups on, a note says how many there are.
MANY_GROUPS = 10_000
ROWS_BEYOND_BOUND_NOTE = (
    "distinct counts, quantiles and per-unit aggregates leave out the rows beyond the chosen contribution bound, "
    "and their intervals do not cover that"
)
# Counts that are clipped and grouped have this many steps per row, so that a unit's share of a group may be a fraction.
STEPS_PER_ROW = 256


@dataclass(frozen=True)
class Planner(SpanBounds):
    """Plans questions over one dataset."""

    def selection_shares(self, question: Question) -> KeyShares:
        """Build the shares of units in keys for partition selection; a unit counts in a limited number of keys."""
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
        limit = self.most_selected_keys()
        selected_keys = tuple(GroupKey(name, expr.ColumnRef(name)) for name, _ in question.keys)
        # LimitGroupsPerUnit states that a unit has one row in each key; LimitRowsPerUnit would allow all in one key.
        return KeyShares(
            LimitGroupsPerUnit(row_per_key, question.unit, tuple(key.value for key in selected_keys), limit, 1),
            selected_keys,
            question.unit,
        )

    def most_selected_keys(self) -> int:
        """Return the number of keys in which a unit counts, in the selection and where its keys are counted."""
        return self.bound.max_groups or self.bound.max_rows or SELECTED_KEYS

    def plan(self, question: Question, select_keys: bool = False) -> QueryPlan:
        """Plan a question with as few measures as possible; its keys may be those that the same request selects."""
        question, bounded_child = self.bound_inner_rows(question)
        has_public_limit = self.has_public_limit(question)
        scope = Scope(at_largest_bounds(question.relation).domain(self.context))
        self.check_keys_and_values(question, scope, select_keys)
        keys = tuple(
            GroupKey(name, value, SelectedValues(position) if select_keys else reachable_values(value, scope))
            for position, (name, value) in enumerate(question.keys)
        )
        builder = PlanBuilder([], [], {}, [], [] if select_keys else self.large_answer_notes(question))
        self.plan_sums(question, scope, keys, builder)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind == "units":
                self.plan_unit_count(question, aggregate, index, keys, builder)
            elif aggregate.kind == "distinct":
                self.plan_distinct_count(question, aggregate, index, keys, builder)
        self.plan_quantiles(question, scope, keys, builder)
        if has_public_limit:
            question, bounded_child = self.fill_public_limit(question, builder), None
        return self._build_plan(question, keys, builder, bounded_child)

    def _build_plan(
        self, question: Question, keys: tuple[GroupKey, ...], builder: PlanBuilder, bounded_child: Relation | None
    ) -> QueryPlan:
        """Assemble the plan; add a search for the row bound of `bounded_child`, unless the builder has one."""
        substitute = cell_substitution(builder.nodes)
        searches = list(builder.searches)
        if bounded_child is not None and not any(search.tag == ROWS for search in searches):
            searches.append(self.row_search(bounded_child, question.unit, 1))
        measures, shared = divide_loss(builder, searches)
        filled = (fill_limits(planned.measure, LARGEST_BOUNDS) for planned in measures)
        refuse_conflicting_units(self.context, question.relation, question.unit, filled)
        return QueryPlan(
            question, question.unit, keys, measures, tuple(builder.sources),
            tuple(OutputColumn(output.name, substitute(output.node)) for output in question.outputs),
            substitute(question.having) if question.having is not None else None,
            tuple(replace(term, node=substitute(term.node)) for term in question.order),
            shared, (*self.notes(question), *builder.notes, *_uncovered_rows_notes(measures, builder.sources)),
            clipped_to=self.clipped_to(question),
        )  # fmt: skip

    def notes(self, question: Question) -> tuple[str, ...]:
        """Return notes on the unit of privacy, and on a given contribution bound."""
        unit = f"unit of privacy: {question.unit}"
        clipped_to = self.clipped_to(question)
        if not clipped_to:
            return (unit,)
        report = "" if self.bound.max_groups else f"; max_contributions='{self.bound.max_rows},report' estimates that"
        return (
            unit,
            f"{CLIPPED_NOTE}: {clipped_to}; estimates lack what is beyond, and the intervals do not cover that{report}",
        )

    def clipped_to(self, question: Question) -> str:
        """Say what a given bound clips the data to; empty if none does, or if it is reported what the bound clips."""
        most = self.most_rows(question.relation, question.unit)
        clips = most is None or (
            self.is_loose(question.relation, question.unit)
            and (self.bound.max_groups is not None or (self.bound.max_rows or most) < most)
        )
        if self.bound.searched or not clips:
            return ""
        where = "" if self.bound.max_groups is None else f" in each of at most {self.bound.max_groups} groups"
        rows = f"{self.bound.max_rows:,} row{'' if self.bound.max_rows == 1 else 's'}"
        return f"each {question.unit} adds at most as much as {rows} can{where}"

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
        scope = Scope(at_largest_bounds(question.relation).domain(self.context))
        groups = 1
        for _, key in question.keys:
            domain = key.domain(scope)
            public = self.context.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
            reachable = reachable_values(key, scope)
            groups *= cardinality(domain, public) if reachable is None else len(reachable)
        return groups

    def large_answer_notes(self, question: Question) -> list[str]:
        """Return a note if the answer has very many groups, most of which may have no record."""
        groups = self.group_count(question)
        if groups <= MANY_GROUPS:
            return []
        return [f"the answer has {groups:,} groups, one for every declared key, also where no record has it"]

    def plan_sums(self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], builder: PlanBuilder) -> None:
        """Plan COUNT, SUM, AVG, VARIANCE, CORR...: one measure has the sums that all of them need."""
        aggregates = [aggregate for aggregate in question.aggregates if aggregate.kind in SUMS]
        if not aggregates:
            return
        averaged = frozenset((a.values[0], a.condition) for a in aggregates if a.kind in ("avg", "var_samp", "var_pop"))
        if (shares := self.span_shares(question, len(aggregates))) is not None:
            likely, ample = self.likely_scope(self.without_cap(question)), self.ample_scope(self.without_cap(question))
            spans = SpanTerms(scope, likely, [], averaged, ample_scope=ample)
            self.add_formulas(question, spans, builder)
            question = replace(question, relation=at_largest_bounds(question.relation))
            self.plan_spans(question, scope, keys, spans, shares, builder)
            return
        needs_bound = self.bound.max_groups is None and self.is_unbounded(question, question.relation)
        clipped = (needs_bound or self.has_few_rows(question)) and not self.keeps_rows(question, aggregates)
        separate = clipped and self.bound.searched
        terms = Terms(
            scope, self.likely_scope(question), [], averaged, CLIPPED_FINEST_STEPS if clipped else FINEST_STEPS,
            private_centres=separate,
        )  # fmt: skip
        self.add_formulas(question, terms, builder)
        if separate and (needs_bound or any(term.role != "count" for term in terms.terms)):
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

    def add_formulas(self, question: Question, terms: Terms, builder: PlanBuilder) -> None:
        """Add the formula of each sum, over cells that follow those of the builder."""
        first = len(builder.sources)
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind in SUMS:
                builder.nodes[index] = shift_cells(terms.formula(aggregate), first)
        builder.notes += terms.notes

    def plan_spans(
        self,
        question: Question,
        scope: Scope,
        keys: tuple[GroupKey, ...],
        terms: SpanTerms,
        shares: SearchShares,
        builder: PlanBuilder,
    ) -> None:
        """Plan sums over rows of which each unit has one: counts and few-valued sums in one measure, spans apart."""
        weights = [role_weight(term.role, self.gaussian) for term in terms.terms]
        scale = COUNT_WEIGHTS["answer"] * sum(a.kind in SUMS for a in question.aggregates) / sum(weights, Fraction(0))
        first, refs = len(builder.sources), dict[int, CellRef]()
        searches: dict[Span, list[CentreSearch | ContributionSearch]] = {}
        together = [index for index, term in enumerate(terms.terms) if term.span is None]
        if together:
            plain, place = [terms.terms[index] for index in together], len(builder.measures)
            factors = term_weights(plain)
            for position, (index, factor) in enumerate(zip(together, factors, strict=True)):
                refs[index] = self.cell_ref(question, scope, terms.terms[index], place, position, factor, None)
            weight = sum((weights[index] for index in together), Fraction(0))
            builder.measures.append((plain_sums(question.relation, plain, factors, keys), scale * weight))
        for index, term in enumerate(terms.terms):
            if term.span is None:
                continue
            tag, size = term.span.half.tag, None if term.size is None else first + term.size
            per_step = term.span.per_step
            ref = self.cell_ref(question, scope, term, len(builder.measures), 0, 1, tag, per_step, size)
            by_row = replace(ref, rounding_error=0.0, row_rounding=float(term.rounding))
            refs[index] = ref if size is None else by_row
            found = self.span_searches(question, keys, term, refs[index].signed, shares)
            searches[term.span] = [replace(search, weight=scale * search.weight) for search in found]
            limit = EstimatedLimit(tag, LARGEST_CLIP)
            measure = ClippedSums(question.relation, question.unit, (term.value,), limit, self.norm, keys)
            builder.measures.append((measure, scale * weights[index]))
        builder.sources += [refs[index] for index in range(len(terms.terms))]
        # Products are added up around spans that are found before their own.
        builder.searches += [search for span in terms.spans for search in searches[span]]

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
        signed = term.role != "count" and may_be_negative(term, scope)
        rounding = float(term.rounding) * self.table_rows(question)
        typical = typical_per_row(term, signed)
        every = term.value == ONE
        return CellRef(
            measure_index, position, factor, signed, tag, per_step, rounding, typical, None, size_index, every
        )

    def plan_separate_sums(
        self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], terms: Terms, builder: PlanBuilder
    ) -> None:
        """Plan sums whose bounds are chosen privately: all counts in one measure, every sum of values in its own.

        Each has a bound of its own, since units with many rows need not have large values; a cap of a few rows bounds
        the counts at once. Values whose average is asked for are summed around a centre that is chosen privately.
        """
        counts = [index for index, term in enumerate(terms.terms) if term.role == "count"]
        values = [index for index, term in enumerate(terms.terms) if term.role != "count"]
        first, refs = len(builder.sources), dict[int, CellRef]()
        if counts:
            counted, place = [terms.terms[index] for index in counts], len(builder.measures)
            weights = SIDE_COUNT_WEIGHTS if values else COUNT_WEIGHTS
            factor, tag = self.plan_counts(question, keys, counted, weights, builder)
            for position, index in enumerate(counts):
                refs[index] = self.cell_ref(question, scope, terms.terms[index], place, position, factor, tag)
        builder.searches += [self.centre_search(question, centre) for centre in terms.centres]
        for number, index in enumerate(values):
            term, tag = terms.terms[index], f"{VALUES}{number}"
            weights = CENTRED_WEIGHTS if term.centre is not None else SUM_WEIGHTS
            size_index = None if term.size is None else first + term.size
            ref = self.cell_ref(question, scope, term, len(builder.measures), 0, 1, tag, None, size_index)
            refs[index] = ref
            builder.searches.append(self.value_search(question, keys, term, tag, ref.signed))
            limit = EstimatedLimit(tag, LARGEST_CLIP)
            measure = ClippedSums(question.relation, question.unit, (term.value,), limit, self.norm, keys)
            builder.measures.append((measure, weights["answer"]))
        builder.sources += [refs[index] for index in range(len(terms.terms))]

    def plan_counts(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        weights: Mapping[str, Fraction],
        builder: PlanBuilder,
    ) -> tuple[int, str | None]:
        """Plan all counts as one measure; return the factor of its values and the tag of the bound that clips them."""
        if self.has_few_rows(question):
            builder.measures.append((plain_sums(question.relation, terms, [1] * len(terms), keys), weights["answer"]))
            return 1, None
        steps = STEPS_PER_ROW if keys or len(terms) > 1 else 1
        groups = self.count_groups(question.relation, keys)
        counted = [term.value for term in terms]
        search = self.row_search(question.relation, question.unit, groups, MASS, steps, counted)
        builder.searches.append(replace(search, weight=weights["search"]))
        summands = tuple(weighted_value(term, steps) for term in terms)
        limit, norm = EstimatedLimit(MASS, LARGEST_CLIP), self.norm
        builder.measures.append(
            (ClippedSums(question.relation, question.unit, summands, limit, norm, keys), weights["answer"])
        )
        return steps, MASS

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """The norm in which contributions are clipped."""
        return "l2" if self.gaussian else "l1"

    def table_rows(self, question: Question) -> float:
        """The noisy size of the largest table that a question reads, or 0 if no size is known."""
        tables = {node.table for node in walk(question.relation) if isinstance(node, Scan)}
        return float(max((self.context.noisy_rows(table) or 0 for table in tables), default=0))

    def bin_count(self, question: Question, keys: tuple[GroupKey, ...]) -> int:
        """The most bins of a histogram, for the rows of a group; fewer where noise hides units with many rows.

        Its cumulative counts cross hundreds of bins that may be empty, and each adds its noise.

        Minima and maxima want few bins: they lie where the noise of empty ones hides the first rows.
        """
        extremes = all(aggregate.kind != "quantile" for aggregate in question.aggregates)
        if extremes or any(isinstance(key.values, SelectedValues) for key in keys):
            return bins_for(0)
        relation, unit = question.relation, question.unit
        rows = self.table_rows(question) / self.group_count(question)
        if not rows or not self.is_loose(relation, unit):
            return bins_for(rows)
        epsilon = self.spend.rough_epsilon if self.spend is not None else 1.0
        likely = tail_rows(self.context, relation, unit)
        return noisy_bins_for(rows * epsilon / min(likely, self.most_rows(relation, unit) or likely))

    def keeps_rows(self, question: Question, aggregates: list[AggregateCall]) -> bool:
        """Return True if the bound keeps a limited number of each unit's rows, False if it scales the unit's sums down.

        A count is the same either way, so rows are kept where their ranks are stored, which is fast. A sum may consist
        of small rows, and a bound on rows would need noise for the largest possible ones.
        """
        if self.bound.how != "auto":
            return self.bound.how == "rows"
        return aggregates == [AggregateCall("count")] and has_stored_ranks(question.relation, self.context)

    def sums_measure(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        factors: list[int],
        builder: PlanBuilder,
        clipped: bool,
    ) -> tuple[Measure, list[int], str | None]:
        """Build the measure of the terms; return it with its factors and the tag of the bound that limits it."""
        relation = question.relation
        if not self.is_unbounded(question, relation):
            return plain_sums(relation, terms, factors, keys), factors, None
        if self.bound.max_groups is not None:
            return plain_sums(self.bound_groups(question, relation, keys), terms, factors, keys), factors, None
        if not clipped:
            bounded = self.bound_rows(question, relation, keys, builder)
            return plain_sums(bounded, terms, factors, keys), factors, ROWS
        return self._clipped_sums(question, keys, terms, factors, builder)

    def _clipped_sums(
        self,
        question: Question,
        keys: tuple[GroupKey, ...],
        terms: list[Term],
        factors: list[int],
        builder: PlanBuilder,
    ) -> tuple[Measure, list[int], str | None]:
        """Build sums that are scaled down for units above the given bound."""
        counts_only = all(term.value == ONE for term in terms)
        steps = STEPS_PER_ROW if keys and counts_only else 1
        factors = [factor * steps for factor in factors]
        largest = largest_row_steps(terms, factors)
        unit, relation = question.unit, question.relation
        rows = smallest(self.bound.max_rows or 1, self.most_rows(relation, unit)) or 1
        limit = min(rows * largest, LARGEST_CLIP)
        values = tuple(weighted_value(term, factor) for term, factor in zip(terms, factors, strict=True))
        return ClippedSums(relation, unit, values, limit, self.norm, keys), factors, MASS

    def plan_unit_count(
        self,
        question: Question,
        aggregate: AggregateCall,
        index: int,
        keys: tuple[GroupKey, ...],
        builder: PlanBuilder,
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
        if any(isinstance(key.values, SelectedValues) for key in keys):
            row_per_group = LimitRowsPerUnit(row_per_group, question.unit, self.most_selected_keys())
        elif self.is_loose(row_per_group, question.unit):
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
        builder: PlanBuilder,
    ) -> None:
        """Plan COUNT(DISTINCT x): count the distinct rows, of which each unit has a limited number."""
        present = [expr.Not(expr.IsNull(value)) for value in aggregate.values]
        conditions = ([aggregate.condition] if aggregate.condition is not None else []) + present
        relation, keys, values = self.filter_rows(
            question.relation, keys, aggregate.values, expr.And(tuple(conditions))
        )
        columns = [(key.name, key.value) for key in keys]
        columns += [(f"value_{position}", value) for position, value in enumerate(values)]
        distinct = self.distinct_rows(question, relation, keys, tuple(columns), builder)
        projected_keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name), key.values) for key in keys)
        scope = Scope(at_largest_bounds(relation).domain(self.context))
        most = count_values([value.domain(scope) for value in values])
        builder.add_measure(index, Count(Distinct(distinct), projected_keys), most)

    def distinct_rows(
        self,
        question: Question,
        relation: Relation,
        keys: tuple[GroupKey, ...],
        columns: tuple[tuple[str, Expr], ...],
        builder: PlanBuilder,
    ) -> Relation:
        """Reduce rows to columns, each unit's distinct ones once, and bound their number unless few are possible."""
        if self.bound.max_groups is not None or not self.is_unbounded(question, relation):
            return Project(self.bound_rows(question, relation, keys, builder), columns)
        rows = GroupBy(relation, columns, (), question.unit)
        most = self.most_rows(rows, question.unit)
        if self.bound.auto and most is not None and most <= FEW_GROUPS:
            return rows
        if self.bound.searched and not any(search.tag == ROWS for search in builder.searches):
            builder.searches.append(self.row_search(rows, question.unit, self.count_groups(relation, keys)))
        return LimitRowsPerUnit(rows, question.unit, self.row_limit())

    def plan_quantiles(
        self, question: Question, scope: Scope, keys: tuple[GroupKey, ...], builder: PlanBuilder
    ) -> None:
        """Plan MEDIAN, QUANTILE, MIN and MAX: one histogram for each value and condition."""
        histograms: dict[tuple[Expr, Expr | None], tuple[int, Bins]] = {}
        for index, aggregate in enumerate(question.aggregates):
            if aggregate.kind not in ("quantile", "min", "max"):
                continue
            (value,) = aggregate.values
            moment = value.domain(scope)
            if isinstance(moment, Moment):
                value = periods_after_first(value, moment)
                aggregate = replace(aggregate, values=(value,))
            ranked = (value, aggregate.condition)
            if ranked not in histograms:
                measure, bins = self.histogram(question, aggregate, isinstance(moment, Moment), keys, builder)
                histograms[ranked] = (len(builder.measures), bins)
                builder.measures.append((measure, COUNT_WEIGHTS["answer"]))
            (place, bins), precision = histograms[ranked], None
            builder.nodes[index] = formulas.NoisyCell(len(builder.sources))
            if isinstance(moment, Moment):
                bins, precision = bins.as_moments(moment), moment.precision
            builder.sources.append(QuantileRef(place, bins, quantile_level(aggregate), precision))

    def histogram(
        self,
        question: Question,
        aggregate: AggregateCall,
        is_moment: bool,
        keys: tuple[GroupKey, ...],
        builder: PlanBuilder,
    ) -> tuple[Measure, Bins]:
        """Build the counts of rows per group and bin, and the bins."""
        (value,) = aggregate.values
        declared = check_ranked(value.domain(Scope(at_largest_bounds(question.relation).domain(self.context))))
        varies = declared != value.domain(self.likely_scope(question))
        present = expr.Not(expr.IsNull(value))
        condition = present if aggregate.condition is None else expr.And((aggregate.condition, present))
        relation, keys, (value,) = self.filter_rows(question.relation, keys, (value,), condition)
        relation = self.bound_rows(question, relation, keys, builder)
        scope = Scope(at_largest_bounds(relation).domain(self.context))
        binned = without_null(value, scope)
        # Conditions may make the range narrower.
        domain = binned.domain(scope)
        if varies:
            bins = make_growing_bins(domain)
        else:
            bins = (make_equal_bins if is_moment else make_bins)(domain, self.bin_count(question, keys))
        return Count(relation, (*keys, GroupKey("bin", bins.key(binned)))), bins


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
