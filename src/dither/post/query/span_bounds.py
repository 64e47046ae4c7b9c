"""Decide from public facts whether the values of units with one row are summed within spans, and build the searches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dither.plan import expressions as expr
from dither.plan.expressions.core import EstimatedValue, Expr
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import GroupBy
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, transform, unfilled_limits, walk
from dither.post.contribution_bound import centre_candidates, judged_cells
from dither.post.query.aggregated_values import without_null
from dither.post.query.public_sizes import public_sizes
from dither.post.query.query_plan import (
    LARGEST_BOUNDS,
    LARGEST_CLIP,
    LARGEST_ROWS,
    MASS,
    ROWS,
    CentreSearch,
    ContributionSearch,
    PlanBuilder,
    at_largest_bounds,
)
from dither.post.query.question import SUMS, Question
from dither.post.query.row_bounds import RowBounds
from dither.post.query.span_terms import (
    SHARE_ABOVE_LIMIT,
    UNITS_NEEDED,
    UNITS_NEEDED_ABOVE_LIMIT,
    SearchShares,
    role_weight,
    search_shares,
)
from dither.post.query.spans import Span, half_lengths
from dither.post.query.spend import Spend
from dither.post.query.terms import Term
from dither.post.query.typical_rows import TAIL_ROWS, known_units, tail_rows, typical_rows


@dataclass(frozen=True)
class SpanBounds(RowBounds):
    """Builds the searches for spans, if `spend` says what a question may spend: without it, none are searched for."""

    spend: Spend | None = None

    def span_shares(self, question: Question, aggregates: int) -> SearchShares | None:
        """Return the shares of the searches for spans; None if plain sums are better, or as good by public facts."""
        if self.spend is None or not self.is_row_of_chosen_bound(question):
            return None
        relation, epsilon = question.relation, self.spend.rough_epsilon / aggregates
        squares = any(aggregate.kind in SUMS - {"count", "sum", "avg"} for aggregate in question.aggregates)
        above_limit = unfilled_limits(self.without_cap(question).relation)
        needed = UNITS_NEEDED_ABOVE_LIMIT if above_limit and not squares else UNITS_NEEDED
        return search_shares(self.known_rows(relation, question.unit), epsilon, self.spend.gaussian, needed)

    def is_row_of_chosen_bound(self, question: Question) -> bool:
        """Return True if each unit has one row, and what it adds may be bounded in any way."""
        one_row = question.knows_unit and self.most_rows(question.relation, question.unit) == 1
        return one_row and self.bound.auto and self.bound.how == "auto"

    def has_public_limit(self, question: Question) -> bool:
        """Return True if a limit on the rows below the values of units need not be chosen: the largest one serves.

        Each unit has one row above it. Spans and quantiles find where values lie however wide their range is, so the
        limit needs to make that range finite only, and a search for it would take a part of the loss.
        """
        if not unfilled_limits(question.relation) or not self.is_row_of_chosen_bound(question):
            return False
        sums = sum(aggregate.kind in SUMS for aggregate in question.aggregates)
        return not sums or self.span_shares(question, sums) is not None

    def fill_public_limit(self, question: Question, builder: PlanBuilder) -> Question:
        """Fill in the largest limit on rows, in a question and in what was built for it."""
        limits = {ROWS: LARGEST_ROWS}
        builder.measures = [(fill_limits(measure, limits), weight) for measure, weight in builder.measures]
        builder.notes.append(
            f"at most {LARGEST_ROWS:,} rows of each {question.unit} are read, and intervals do not cover what is beyond"
        )
        return fill_limits(question, limits)

    def without_cap(self, question: Question) -> Question:
        """Return the question as if the limit on rows below the values of units were to be chosen, not the cap's.

        Hardly any unit reaches a cap: where values are likely to lie is the same with it as without one.
        """

        def open_limit(node: Any) -> Any:
            if isinstance(node, GroupBy) and node.unit is not None and self.is_loose(node.child, node.unit):
                return replace(node, child=LimitRowsPerUnit(node.child, node.unit, EstimatedLimit(ROWS, LARGEST_ROWS)))
            return node

        return replace(question, relation=transform(question.relation, open_limit))

    def likely_scope(self, question: Question) -> Scope:
        """The domains of columns at likely values of the bounds that are still to be chosen."""
        likely = {MASS: LARGEST_CLIP, ROWS: typical_rows(self.context, question.relation, question.unit)}
        return Scope(fill_limits(question.relation, likely).domain(self.context))

    def ample_scope(self, question: Question) -> Scope:
        """The domains of columns at a limit on rows that hardly any unit reaches."""
        ample = max(TAIL_ROWS, tail_rows(self.context, question.relation, question.unit))
        return Scope(fill_limits(question.relation, LARGEST_BOUNDS | {ROWS: ample}).domain(self.context))

    def known_rows(self, relation: Relation, unit: str) -> float:
        """Return about how many rows a relation has in which each unit has one, or 0; conditions may leave fewer."""
        scans = {node for node in walk(relation) if isinstance(node, Scan)}
        single = [scan.table for scan in scans if scan.stability(self.context, unit).max_rows == 1]
        known = [known_units(self.context, unit), *map(self.context.noisy_rows, single)]
        return float(min((count for count in known if count is not None), default=0))

    def span_searches(
        self, question: Question, keys: tuple[GroupKey, ...], term: Term, signed: bool, shares: SearchShares
    ) -> list[CentreSearch | ContributionSearch]:
        """Build the searches for the span of a term: for the median around which it lies, and for its length."""
        searches: list[CentreSearch | ContributionSearch] = []
        asked = role_weight(term.role, self.gaussian)
        asked += role_weight("count", self.gaussian) if term.size is not None else 0
        if term.span is not None and term.span.anchor is not None:
            searches.append(
                replace(self.anchor_search(question, term.span, term.span.anchor), weight=shares.middle * asked)
            )
        if term.span is not None:
            length = self.length_search(question, keys, term.span, signed)
            part = shares.length if term.span.likely == 1 else SHARE_ABOVE_LIMIT * shares.length
            searches.append(replace(length, weight=part * asked))
        return searches

    def anchor_search(self, question: Question, span: Span, number: EstimatedValue) -> CentreSearch:
        """Build the search for the middle of a span: a private median of the values that count."""
        points = centre_candidates(number.lo, number.hi)
        rows = question.relation if span.condition is None else Filter(question.relation, span.condition)
        cuts = tuple((low + high) * number.step / 2 for low, high in pairwise(points))
        histogram = Count(rows, (_places_of(self.present(span.value, rows), cuts),))
        return CentreSearch(number.tag, histogram, tuple(point - number.lo + 1 for point in points))

    def present(self, value: Expr, rows: Relation) -> Expr:
        """Return a value whose domain has no NULL, which no row that counts has: its histogram has no cell for it."""
        return without_null(value, Scope(at_largest_bounds(rows).domain(self.context)))

    def length_search(
        self, question: Question, keys: tuple[GroupKey, ...], span: Span, signed: bool
    ) -> ContributionSearch:
        """Build the search for half the length of a span, from a histogram of what each row needs.

        Values that a span leaves out above and below may cancel, unless it begins at the low end of its range.
        """
        relation, unit, half = question.relation, question.unit, span.half
        bins = half_lengths(half.hi)
        cuts = tuple((2 * bin + 1) * half.step for bin in bins[:-1])
        needed = self.present(span.length_needed, relation)
        histogram = Count(relation, (_places_of(needed, cuts),))
        cells = judged_cells(self.count_groups(relation, keys), self.optimize_for)
        return ContributionSearch(
            half.tag,
            histogram,
            tuple(bin + 1 for bin in bins[:-1]),
            bins,
            cells,
            half.hi,
            signed=signed and span.shape != "from zero",
            quantity=span.per_step,
            typical_rows=span.likely,
            is_range=span.likely == 1,
            sizes=public_sizes(self.context, relation, unit, half.hi, 1, sums=True),
            span=span,
        )


def _places_of(value: Expr, cuts: tuple[Fraction, ...]) -> GroupKey:
    """Return a key with a cell for each place between cuts, also for places that no value of the domain has."""
    return GroupKey("place", expr.Bucket(value, cuts), tuple(map(Fraction, range(len(cuts) + 1))))
