"""Read truth values as numbers where a query does: smoker = 1, smoker::INT, AVG(smoker); and 'true' as TRUE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dither.errors import DitherError, Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.relations.group_by import GroupAggregate
from dither.plan.sql.builders import Sql
from dither.plan.sql.scope import Scope
from dither.post.query.question import REGRESSIONS, AggregateCall
from dither.post.query.text_functions import TextFunction
from dither.schema import Boolean, Domain, Number

LazyScope = Callable[[], Scope]
SUMMED = frozenset({"sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr", *REGRESSIONS})
# The mean of one unit is rounded to this part of a value's step, or to a larger one where values are large.
FINEST_MEAN = 10**6
LARGEST_MEAN = 1 << 32

TRUTH_TEXTS = {"true": True, "false": False}


@dataclass(frozen=True)
class NumberCast(Expr):
    """A cast to a number; `read_as_number` replaces it, once the domains of columns are known."""

    child: Expr
    whole: bool

    def resolve(self, scope: Scope) -> Expr:
        """Return the plan's expression: true is 1, NULL stays NULL, and a whole number is rounded."""
        if isinstance(self.child.domain(scope), Boolean):
            return expr.AsNumber(self.child)
        return expr.Rounded("round", self.child) if self.whole else self.child

    def domain(self, scope: Scope) -> Domain:
        return self.resolve(scope).domain(scope)

    def sql(self, scope: Scope) -> Sql:
        return self.resolve(scope).sql(scope)


def read_as_number(node: Any, scope: LazyScope) -> Any:
    """Convert the truth values in a cast, a comparison with numbers, an IN list of numbers, or a sum."""
    match node:
        case NumberCast():
            return node.resolve(scope())
        case expr.Compare(left=left, right=right) if _is_of_kind(right, scope, Number):
            return replace(node, left=_as_number(left, scope))
        case expr.Compare(left=left, right=right) if _is_of_kind(left, scope, Number):
            return replace(node, right=_as_number(right, scope))
        case expr.Compare(left=left, right=expr.LiteralValue(str() as text)) if _is_of_kind(left, scope, Boolean):
            return replace(node, right=_truth_value(text))
        case expr.In(child=child, values=values) if _all_numbers(values):
            return replace(node, child=_as_number(child, scope))
        case AggregateCall(kind=kind, values=values) if kind in SUMMED:
            return replace(node, values=tuple(_as_number(value, scope) for value in values))
        case GroupAggregate(kind="sum", value=Expr() as value):
            return replace(node, value=_as_number(value, scope))
        case GroupAggregate(kind="avg", value=Expr() as value):
            return replace(node, value=_with_fine_step(_as_number(value, scope), scope()))
        case TextFunction():
            return node.resolve(scope())
        case _:
            return node


def _truth_value(text: str) -> Expr:
    """Return the truth value that a text names."""
    if text.lower() not in TRUTH_TEXTS:
        raise Unsupported(f"a truth value is compared with the text {text[:40]!r}; write TRUE or FALSE")
    return expr.LiteralValue(TRUTH_TEXTS[text.lower()])


def _with_fine_step(value: Expr, scope: Scope) -> Expr:
    """Return the same number on a finer lattice, so that a mean of it, which is on that lattice, is hardly rounded."""
    domain = value.domain(scope)
    if not isinstance(domain, Number):
        raise Unsupported("AVG takes numbers and truth values; make it a number with CASE")
    most = max(1, *map(abs, bounds_of(domain)))
    finer = [10**digits for digits in range(7) if 10**digits <= FINEST_MEAN and most * 10**digits <= LARGEST_MEAN]
    return expr.Rounded("round", value, domain.step / max(finer, default=1))


def _as_number(node: Expr, scope: LazyScope) -> Expr:
    return expr.AsNumber(node) if _is_of_kind(node, scope, Boolean) else node


def _all_numbers(values: tuple[object, ...]) -> bool:
    return bool(values) and not any(isinstance(value, str | bool) for value in values)


def _is_of_kind(node: Expr, scope: LazyScope, kind: type[Boolean | Number]) -> bool:
    """Return True if a value has this kind of domain; an expression without a domain is refused later."""
    try:
        return isinstance(node.domain(scope()), kind)
    except DitherError:
        return False
