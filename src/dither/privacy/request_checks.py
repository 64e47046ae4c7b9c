"""Checks of a request before its cost is computed: its searches, its selected keys, and the tables that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dither.errors import InvalidPlan, Unsupported
from dither.plan.context import Context
from dither.plan.expressions.core import EstimatedValue, domain_of
from dither.plan.measures.core import Measure, SelectedValues
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.core import Relation
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.traversal import unfilled_limits, unfilled_values, walk
from dither.privacy.protocol import BoundSearch, NewtonRule, Request
from dither.schema import Domain


def check_values_open(request: Request) -> None:
    """Refuse an estimated value that is filled in already: only the kernel fills them, when it reads."""
    plans = [*(search.histogram for search in request.searches), *(part.measure for part in request.parts)]
    if any(isinstance(node, EstimatedValue) and node.value is not None for plan in plans for node in walk(plan)):
        raise InvalidPlan("the kernel chooses estimated values; write a known one as a literal")


def check_order(searches: Sequence[BoundSearch]) -> None:
    """Refuse a search whose histogram has an estimated limit, or a value that no earlier search chooses.

    A Newton rule starts at the weights of an earlier search with the same grid, as many of them.
    """
    chosen: set[str] = set()
    starts: dict[str, BoundSearch] = {}
    for search in searches:
        if unfilled_limits(search.histogram) or {value.tag for value in unfilled_values(search.histogram)} - chosen:
            raise InvalidPlan(f"the search {search.tag[:40]!r} needs a bound or value that no earlier search chooses")
        if isinstance(search.rule, NewtonRule) and search.rule.start:
            start = starts.get(search.rule.start)
            if start is None or start.grid != search.grid or len(start.tags) != len(search.tags):
                raise InvalidPlan(f"the search {search.tag[:40]!r} must start at weights of its own grid and size")
        chosen.update(search.tags)
        starts |= {search.tag: search} if isinstance(search.rule, NewtonRule) else {}


def check_selection(ctx: Context, request: Request) -> None:
    """Refuse rounds that do not select the same keys, and parts whose first keys are not the selected ones in order.

    All of them have the same domains, and rounds depend on no search: nothing that was selected can make a part fail.
    """
    rounds = [part.measure for part in request.selection.rounds] if request.selection else []
    numbers = {len(measure.keys) if isinstance(measure, PartitionCounts) else 0 for measure in rounds}
    wanted = [SelectedValues(position) for position in range(max(numbers, default=0))]
    first_keys = [[key.values for key in getattr(part.measure, "keys", ())[: len(wanted)]] for part in request.parts]
    plans = (tuple(rounds), request.searches, request.parts)
    found = sum(isinstance(node, SelectedValues) for node in walk(plans))
    if len(numbers) > 1 or 0 in numbers or any(keys != wanted for keys in first_keys):
        raise InvalidPlan("all rounds must select the same keys, and every part must have these keys first, in order")
    if found != len(wanted) * len(request.parts):
        raise InvalidPlan("only the first keys of parts can be keys that the request selects")
    if any(isinstance(node, EstimatedValue) for node in walk(tuple(rounds))) or any(map(unfilled_limits, rounds)):
        raise InvalidPlan("a round of a selection cannot use a bound or value that a search chooses")
    measures = [*rounds, *(part.measure for part in request.parts)]
    if wanted and len({_key_domains(ctx, measure, len(wanted)) for measure in measures}) > 1:
        raise InvalidPlan("the selected keys must have the same domain in every round and in every part")


def _key_domains(ctx: Context, measure: Any, count: int) -> tuple[Domain, ...]:
    """Return the domains of the first keys of a measure."""
    scope = Scope(measure.child.domain(ctx))
    return tuple(domain_of(key.value, scope) for key in measure.keys[:count])


def check_covered(ctx: Context, plan: Any) -> None:
    """Refuse to read a private table that no budget covers, unless it is joined to covered rows by its unique key."""
    covered = {table for unit in ctx.budgeted_units for table in ctx.unit(unit).keys}
    uncovered = sorted({name for name in _paid_tables(plan) if ctx.table(name).private and name not in covered})
    if uncovered:
        raise Unsupported(
            f"no budget covers the records of {', '.join(uncovered)}: join them by their unique key to a table that"
            " a budget covers, or declare a budget for a unit that covers them"
        )


def _paid_tables(plan: Any) -> Iterator[str]:
    """Yield the tables that a plan reads, except the public side of inner and left joins, which adds no rows."""
    if isinstance(plan, Scan):
        yield plan.table
    elif isinstance(plan, PublicJoin) and plan.how != "right":
        # A private table can be on the public side only by its enforced unique key: see PublicJoin.multiplicity.
        yield from _paid_tables(plan.child)
    elif isinstance(plan, Measure | Relation):
        yield from (name for part in vars(plan).values() for name in _paid_tables(part))
