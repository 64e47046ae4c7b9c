"""Evaluate expressions on declared values, before any record is read: conditions of counts, keys of histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from math import ceil, floor, prod
from typing import Any

from dither.errors import DitherError
from dither.plan import expressions as expr
from dither.plan.domains import cardinality, domain_values, normalise
from dither.plan.expressions.core import Expr
from dither.plan.expressions.numeric import round_half_away
from dither.plan.relations.project import columns_read
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Number, Scalar

# The values of a key are computed from at most this many combinations of values of its columns.
MAX_COMBINATIONS = 20_000
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {"floor": floor, "ceil": ceil, "round": round_half_away}


def reachable_values(key: Expr, scope: Scope) -> tuple[Scalar, ...] | None:
    """List the numbers that a key can be, NULL last, if they are fewer than its lattice has; None for other keys."""
    domain = key.domain(scope)
    if not isinstance(domain, Number) or isinstance(key, expr.ColumnRef):
        return None
    names = sorted(columns_read(key))
    domains = [scope.columns[name] for name in names]
    try:
        if not names or prod(map(cardinality, domains)) > MAX_COMBINATIONS:
            return None
        if not all(isinstance(each, Number | Category | Boolean) for each in domains):
            return None
        rows = product(*(domain_values(each, MAX_COMBINATIONS) for each in domains))
        found = {value_of(key, dict(zip(names, row, strict=True))) for row in rows}
    except (DitherError, NotEvaluable, TypeError):
        return None
    numbers = tuple(normalise(Fraction(value)) for value in sorted(value for value in found if value is not None))
    listed: tuple[Scalar, ...] = (*numbers, None) if None in found else numbers
    return listed if numbers and len(listed) < cardinality(domain) else None


def as_bins(key: Expr, scope: Scope) -> Expr:
    """Write a histogram's key so that its lattice is that of its bins: FLOOR(x / 5) * 5 is x rounded down to a 5."""
    match key:
        case expr.Arithmetic("+" | "-" as op, left, expr.LiteralValue() as right):
            inner = as_bins(left, scope)
            return key if inner == left else expr.Arithmetic(op, inner, right)
        case expr.Arithmetic("*", inner, expr.LiteralValue(Fraction() as width)) if width > 0:
            return _bins_of_width(inner, width, scope) or key
        case expr.Arithmetic("*", expr.LiteralValue(Fraction() as width), inner) if width > 0:
            return _bins_of_width(inner, width, scope) or key
        case expr.Arithmetic("-", value, expr.Arithmetic("%", other, expr.LiteralValue(Fraction() as width))):
            whole = value == other and width > 0 and _never_negative(value, scope)
            return expr.Rounded("floor", value, width) if whole else key
        case _:
            return _without_sign(key, scope)


def _bins_of_width(inner: Expr, width: Fraction, scope: Scope) -> Expr | None:
    """Return the value rounded to multiples of a width, for its quotient by that width rounded to a whole number."""
    match _without_sign(inner, scope):
        case expr.Rounded(how, expr.Arithmetic("/", value, expr.LiteralValue(Fraction() as by)), step):
            return expr.Rounded(how, value, width) if by == width and step == 1 else None
        case _:
            return None


def _without_sign(node: Expr, scope: Scope) -> Expr:
    """Return x // c without its case for negative x, where there are none."""
    match node:
        case expr.Case(
            ((expr.Compare(">=", quotient, _), expr.Rounded("floor", inner) as down),), expr.Rounded("ceil")
        ):
            plain = quotient == inner and isinstance(quotient, expr.Arithmetic) and _never_negative(quotient, scope)
            return down if plain else node
        case _:
            return node


def _never_negative(value: Expr, scope: Scope) -> bool:
    domain = value.domain(scope)
    return isinstance(domain, Number) and domain.lo >= 0


class NotEvaluable(Exception):
    """Raised for an expression that `value_of` does not evaluate."""


def value_of(node: Expr, row: Mapping[str, Scalar]) -> Any:
    """Evaluate an expression on public values of its columns, exactly, with SQL's three-valued logic."""
    match node:
        case expr.ColumnRef(name):
            return row[name]
        case expr.LiteralValue(value):
            return value
        case expr.IsNull(child):
            return value_of(child, row) is None
        case expr.Not(child):
            inner = value_of(child, row)
            return None if inner is None else not inner
        case expr.And(children):
            return _three_valued_and_or([value_of(child, row) for child in children], False)
        case expr.Or(children):
            return _three_valued_and_or([value_of(child, row) for child in children], True)
        case expr.In(child, values):
            inner = value_of(child, row)
            return None if inner is None else inner in values
        case expr.Compare(op, left, right):
            return _three_valued_comparison(op, value_of(left, row), value_of(right, row))
        case expr.Arithmetic("+" | "-" | "*" as op, left, right):
            return _three_valued_arithmetic(op, value_of(left, row), value_of(right, row))
        case expr.Case(branches, default):
            chosen = (then for when, then in branches if value_of(when, row) is True)
            return value_of(next(chosen, default), row)
        case expr.Coalesce(children):
            return next((value for child in children if (value := value_of(child, row)) is not None), None)
        case expr.Rounded(how, child, step):
            inner = value_of(child, row)
            return None if inner is None else ROUNDINGS[how](Fraction(inner) / step) * step
        case _:
            raise NotEvaluable


def _three_valued_and_or(values: list[Any], decisive: bool) -> Any:
    """Three-valued AND, which one False decides, or OR, which one True decides."""
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _three_valued_comparison(op: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    tests = {"=": left == right, "<>": left != right}
    if op in tests:
        return tests[op]
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _three_valued_arithmetic(op: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return left + right if op == "+" else left - right if op == "-" else left * right
