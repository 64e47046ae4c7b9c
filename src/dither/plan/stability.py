"""Stability: the most rows of a relation that one privacy unit can change, and the limits that bound it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dither.errors import InvalidParameter, Unbounded
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.schema import Domain

MAX_ROWS = 1 << 31


@dataclass(frozen=True)
class EstimatedLimit:
    """A placeholder for a limit from 1 to `most` that the kernel estimates privately; equal tags get the same limit."""

    tag: str = "bound"
    most: int = 1 << 20


RowLimit = int | EstimatedLimit


@dataclass(frozen=True)
class PerKeyBound:
    """The bound that a unit has at most `max_rows` rows in each of at most `max_groups` values of `keys`.

    `key_columns` holds the columns that the keys are computed from, with their domains where the bound was applied:
    the value of a computed key may depend on these domains.
    """

    keys: tuple[Expr, ...]
    max_groups: int
    max_rows: int
    key_columns: tuple[tuple[str, Domain], ...] = ()

    def applies_to(self, keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> bool:
        """Tell whether these keys, over these columns, have the same values as the keys that were bounded."""
        # Compared by repr: nodes that compare equal may differ, since In(x, (1,)) == In(x, (True,)).
        return repr(self.keys) == repr(keys) and all(columns.get(name) == domain for name, domain in self.key_columns)


@dataclass(frozen=True)
class Stability:
    """The most rows of a relation that one unit can change; None means unbounded.

    While `tracks_unit` is true, each row carries its unit, and a unit changes only its own rows, at most `max_rows` of
    them. Otherwise `max_rows` bounds the symmetric difference of the rows (with their order), and `max_distinct_rows`
    that of the distinct rows.
    """

    tracks_unit: bool
    max_rows: int | None
    max_distinct_rows: int | None
    per_key: PerKeyBound | None = None


UNAFFECTED = Stability(tracks_unit=False, max_rows=0, max_distinct_rows=0)


def multiply(*factors: int | None) -> int | None:
    """Multiply bounds, where None is infinite and zero times infinity is zero."""
    if 0 in factors:
        return 0
    finite = [factor for factor in factors if factor is not None]
    return prod(finite) if len(finite) == len(factors) else None


def add_up(*terms: int | None) -> int | None:
    """Add bounds, where None is infinite."""
    finite = [term for term in terms if term is not None]
    return sum(finite) if len(finite) == len(terms) else None


def smallest(*bounds: int | None) -> int | None:
    """Return the smallest bound, where None is infinite."""
    finite = [bound for bound in bounds if bound is not None]
    return min(finite) if finite else None


def known_limit(limit: RowLimit) -> int:
    """Return the limit as an integer; refuse an estimated limit that has not been filled in."""
    if isinstance(limit, EstimatedLimit):
        raise Unbounded(f"the limit {limit.tag!r} has not been estimated yet; fill it in with fill_limits() first")
    return limit


def check_limit(limit: RowLimit, name: str) -> None:
    """Refuse limits that are not integers from 1 to 2^31."""
    most = limit.most if isinstance(limit, EstimatedLimit) else limit
    if type(most) is not int or not 1 <= most <= MAX_ROWS:
        raise InvalidParameter(f"{name} must be an integer from 1 to 2^31")


def stability_after_bounding(
    ctx: Context, child: Stability, unit: str, bounded_unit: str, changes_per_row: int, bound: int | None
) -> Stability:
    """Return the stability for `unit` after every `bounded_unit` keeps at most `bound` of its own rows.

    One changed row changes at most `changes_per_row` kept rows. Proof: limit_rows_per_unit.md.
    """
    if unit == bounded_unit:
        rows = smallest(child.max_rows, bound)
        return Stability(True, rows, smallest(child.max_distinct_rows, rows))
    if ctx.is_coarser(unit, bounded_unit) and child.tracks_unit:
        rows = smallest(child.max_rows, multiply(bound, ctx.number_of_windows(bounded_unit)))
        return Stability(True, rows, smallest(child.max_distinct_rows, rows))
    changed = multiply(changes_per_row, child.max_rows)
    if ctx.is_coarser(bounded_unit, unit):
        changed = smallest(changed, multiply(2, bound)) if child.max_rows != 0 else 0
    return Stability(False, changed, changed)
