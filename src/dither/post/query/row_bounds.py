"""Bound the rows of each unit where a question needs it, and build the searches for bounds and centres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dither.errors import Unbounded, Unsupported
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import GroupKey, SelectedValues
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit, multiply
from dither.plan.traversal import transform, walk
from dither.post.contribution_bound import (
    CENTRED_WEIGHTS,
    FEW_ROWS,
    FINEST_PRODUCT_SHARE,
    FINEST_SHARE,
    SUM_WEIGHTS,
    ContributionBound,
    OptimizeFor,
    centre_candidates,
    judged_cells,
    row_bins,
    up_to,
    value_bins,
)
from dither.post.query.public_sizes import public_sizes
from dither.post.query.query_plan import (
    LARGEST_CLIP,
    LARGEST_ROWS,
    ROWS,
    CentreSearch,
    ContributionSearch,
    PlanBuilder,
    at_largest_bounds,
)
from dither.post.query.question import Question
from dither.post.query.spans import ZERO
from dither.post.query.terms import CLIPPED_FINEST_STEPS, NULL, ONE, Centre, Term
from dither.post.query.typical_rows import typical_rows
from dither.privacy.protocol import KnownSize
from dither.schema import Number

# Values of this many steps come from per-unit counts and sums that nothing bounds.
HUGE_VALUE = 1 << 30
# Values around their centre add up to about this part of their range for each row; others to about half of it.
PART_OF_RANGE = 16
# The number of groups that plans assume while their keys are still to be selected.
TYPICAL_SELECTED = 100


@dataclass(frozen=True)
class RowBounds:
    """Bounds what each unit contributes to a question, and builds the searches for bounds that are chosen privately.

    With `gaussian` noise, contributions are clipped in L2 instead of L1. Bounds that are chosen are best for what
    `optimize_for` names.
    """

    context: Context
    bound: ContributionBound
    gaussian: bool = False
    optimize_for: OptimizeFor = "answer"

    def bound_inner_rows(self, question: Question) -> tuple[Question, Relation | None]:
        """Limit the rows of a unit inside the question's relation, where its own rows could not be limited later.

        Return the question, and the first child with a limit to be chosen privately, if there is one.
        """
        bounded_child: Relation | None = None
        if has_huge_values(question, Scope(question.relation.domain(self.context))):
            relation, bounded_child = self.bound_rows_in_groups(question.relation, question.unit)
            question = replace(question, relation=relation)
        if not question.knows_unit and self.is_loose(question.relation, question.unit):
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
        return changed, children[0] if children and self.bound.searched else None

    def has_unbounded_aggregate(self, node: GroupBy, unit: str) -> bool:
        """Return True if a per-unit GROUP BY has counts or sums of unlimited size."""
        counts_or_sums = any(aggregate.kind in ("count", "sum", "distinct") for aggregate in node.aggregates)
        return counts_or_sums and self.most_rows(node.child, unit) is None

    def bound_rows_below(self, relation: Relation, unit: str) -> tuple[Relation, Relation | None]:
        """Limit the rows of a unit just before each join or GROUP BY that mixes units.

        Return the relation, and the first child with a limit to be chosen privately, if there is one.
        """
        children: list[Relation] = []

        def visit(node: Relation) -> Relation:
            if not self.is_loose(node, unit):
                return node
            if node.stability(self.context, unit).tracks_unit:
                children.append(node)
                return LimitRowsPerUnit(node, unit, self.row_limit())
            fields = {name: visit(value) for name, value in vars(node).items() if isinstance(value, Relation)}
            return replace(node, **fields) if fields else node  # type: ignore[type-var]

        changed = visit(relation)
        return changed, children[0] if children and self.bound.searched else None

    def row_limit(self) -> int | EstimatedLimit:
        """The limit on rows of one unit: as given, or to be chosen privately."""
        if self.bound.max_rows is None or self.bound.report:
            return EstimatedLimit(ROWS, LARGEST_ROWS)
        return self.bound.max_rows

    def most_rows(self, relation: Relation, unit: str) -> int | None:
        """Return the most rows that one unit may have, or None if nothing bounds them."""
        return at_largest_bounds(relation).stability(self.context, unit).max_rows

    def is_loose(self, relation: Relation, unit: str) -> bool:
        """Return True if a unit's rows have no bound, or none but the description's cap, which may be far too high."""
        most = self.most_rows(relation, unit)
        return most is None or (most > FEW_ROWS and self.is_bounded_by_cap(relation))

    def is_bounded_by_cap(self, relation: Relation) -> bool:
        """Return True if the description's cap is all that bounds a unit's rows."""
        nodes = list(walk(relation))
        capped = any(isinstance(node, Scan) and self.context.row_cap(node.table) is not None for node in nodes)
        return capped and not any(isinstance(node, LimitRowsPerUnit | LimitGroupsPerUnit) for node in nodes)

    def has_few_rows(self, question: Question) -> bool:
        """Return True if a cap of a few rows bounds the counts of a unit at once, and only its values are searched."""
        most = self.most_rows(question.relation, question.unit)
        few = most is not None and 1 < most <= FEW_ROWS
        return few and self.bound.auto and question.knows_unit and self.is_bounded_by_cap(question.relation)

    def is_unbounded(self, question: Question, relation: Relation) -> bool:
        """Return True if a unit's rows are to be bounded; refuse that for rows that belong to no single unit."""
        if not self.is_loose(relation, question.unit):
            return False
        if not question.knows_unit and self.most_rows(relation, question.unit) is not None:
            return False
        if not question.knows_unit:
            raise Unbounded(
                "one unit could change the result without limit, and a join or GROUP BY mixes rows of different units, "
                "so no limit per unit is possible; join and group by the unit's key, or aggregate before that step"
            )
        return True

    def bound_rows(
        self, question: Question, relation: Relation, keys: tuple[GroupKey, ...], builder: PlanBuilder
    ) -> Relation:
        """Limit the rows of each unit, unless something else does."""
        if not self.is_unbounded(question, relation):
            return relation
        if self.bound.max_groups is not None:
            return self.bound_groups(question, relation, keys)
        if self.bound.searched and not any(search.tag == ROWS for search in builder.searches):
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
        per_row: Expr | None = None if list(counted) == [ONE] else sum_of(counted)
        aggregate = GroupAggregate("mass", "count") if per_row is None else GroupAggregate("mass", "sum", per_row)
        per_unit = GroupBy(relation, (), (aggregate,), unit)
        bins = up_to(row_bins(steps), multiply(self.most_rows(relation, unit), steps * len(counted)))
        cuts = tuple(Fraction(bin, steps) + 1 for bin in bins[:-1])
        edges = tuple(bin + steps for bin in bins[:-1])
        search = self._search(per_unit, expr.ColumnRef("mass"), cuts, edges, bins, groups, tag, steps, step=steps)
        # Counts of values that may be missing are sums: a row may add less than it can.
        sums = per_row is not None
        return replace(search, sizes=self._sizes(relation, unit, search, steps * len(counted), sums))

    def value_search(
        self, question: Question, keys: tuple[GroupKey, ...], term: Term, tag: str, signed: bool
    ) -> ContributionSearch:
        """Build the search for a bound on the sums of a term: on their absolute values over all groups of a unit."""
        named = tuple((key.name, key.value) for key in keys)
        value: Expr = expr.Coalesce((term.value, ZERO))
        domain = value.domain(Scope(at_largest_bounds(question.relation).domain(self.context)))
        if isinstance(domain, Number) and domain.step != term.step:  # the 0 is a multiple of any step, as they are
            value = expr.Rounded("round", value, term.step)
        total = GroupAggregate("mass", "sum", value)
        per_group = GroupBy(question.relation, named, (total,), question.unit)
        size: Expr = expr.Absolute(expr.ColumnRef("mass"))
        per_unit = per_group
        if keys:
            per_unit = GroupBy(per_group, (), (GroupAggregate("mass", "sum", size),), question.unit)
            size = expr.ColumnRef("mass")
        bins = up_to(
            value_bins(term.max_steps, self._finest_share(term)),
            multiply(self.most_rows(question.relation, question.unit), term.max_steps),
        )
        edges = tuple(bin + 1 for bin in bins[:-1])
        cuts = tuple(edge * term.step for edge in edges)
        groups = self.count_groups(question.relation, keys)
        weights = CENTRED_WEIGHTS if term.centre is not None else SUM_WEIGHTS
        search = self._search(per_unit, size, cuts, edges, bins, groups, tag, term.max_steps, step=1)
        rows = search.typical_rows / (PART_OF_RANGE if term.centre is not None else 2)
        sizes = self._sizes(question.relation, question.unit, search, term.max_steps, sums=True)
        quantity, weight = term.step, weights["search"]
        return replace(search, signed=signed, quantity=quantity, weight=weight, typical_rows=rows, sizes=sizes)

    def _finest_share(self, term: Term) -> int:
        """Return the smallest share of the largest row that is measured; products may be far smaller than that row."""
        return FINEST_SHARE if term.max_steps <= CLIPPED_FINEST_STEPS else FINEST_PRODUCT_SHARE

    def _sizes(
        self, relation: Relation, unit: str, search: ContributionSearch, row_size: int, sums: bool
    ) -> tuple[KnownSize, ...]:
        """Return what is public about the units of a search, as far as a row adds at most `row_size`."""
        return public_sizes(self.context, relation, unit, row_size, search.step, sums)

    def _search(
        self,
        per_unit: GroupBy,
        size: Expr,
        cuts: tuple[Fraction, ...],
        edges: tuple[int, ...],
        bins: tuple[int, ...],
        groups: int,
        tag: str,
        row_size: int,
        step: int,
    ) -> ContributionSearch:
        """Build a search from a histogram of the units' sizes, cut at `cuts`; a given bound is the only candidate."""
        histogram = Count(per_unit, (GroupKey("mass", expr.Bucket(size, cuts)),))
        largest = LARGEST_ROWS if tag == ROWS else LARGEST_CLIP
        candidates = tuple(bin for bin in bins if bin <= largest)
        if self.bound.max_rows is not None:
            candidates = (min(self.bound.max_rows * row_size, largest),)
        cells, rows = judged_cells(groups, self.optimize_for), typical_rows(self.context, per_unit, per_unit.unit or "")
        search = ContributionSearch(tag, histogram, edges, candidates, cells, row_size, step)
        return replace(search, typical_rows=Fraction(rows))

    def centre_search(self, question: Question, centre: Centre) -> CentreSearch:
        """Build the search for a centre, from a histogram of each unit's mean over the candidates nearest to it."""
        number = centre.number
        points = centre_candidates(number.lo, number.hi)
        value = centre.value if centre.condition is None else expr.Case(((centre.condition, centre.value),), NULL)
        per_unit = GroupBy(question.relation, (), (GroupAggregate("mean", "avg", value),), question.unit)
        cuts = tuple((low + high) * number.step / 2 for low, high in pairwise(points))
        # Units without a mean count nowhere. A filter says so in less SQL than a list of the places would.
        mean = expr.ColumnRef("mean")
        present = Filter(per_unit, expr.Not(expr.IsNull(mean)))
        histogram = Count(present, (GroupKey("mean", expr.Bucket(mean, cuts)),))
        return CentreSearch(number.tag, histogram, tuple(point - number.lo + 1 for point in points))

    def count_groups(self, relation: Relation, keys: tuple[GroupKey, ...]) -> int:
        """The number of groups of the answer; a typical one if they are still to be selected."""
        if any(isinstance(key.values, SelectedValues) for key in keys):
            return TYPICAL_SELECTED
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
        scopes = [Scope(at_largest_bounds(each).domain(self.context)) for each in (relation, filtered)]
        if all(key.values is not None or len({key.value.domain(scope) for scope in scopes}) == 1 for key in keys):
            return filtered, keys, values
        columns = {f"key_{index}": key.value for index, key in enumerate(keys)}
        columns |= {f"value_{index}": value for index, value in enumerate(values)} | {"kept": condition}
        before = Project(relation, tuple(columns.items()))
        same_keys = tuple(replace(key, value=expr.ColumnRef(f"key_{index}")) for index, key in enumerate(keys))
        read = tuple(expr.ColumnRef(f"value_{index}") for index in range(len(values)))
        return Filter(before, expr.ColumnRef("kept")), same_keys, read


def has_huge_values(question: Question, scope: Scope) -> bool:
    """Return True if an aggregated value has no useful limit, as a per-unit count or sum that nothing bounds."""
    domains = [value.domain(scope) for aggregate in question.aggregates for value in aggregate.values]
    return any(max(map(abs, bounds_of(domain))) >= HUGE_VALUE for domain in domains if isinstance(domain, Number))


def sum_of(values: Sequence[Expr]) -> Expr:
    """The expression of the sum of values, of which none is NULL."""
    total = values[0]
    for value in values[1:]:
        total = expr.Arithmetic("+", total, value)
    return total
