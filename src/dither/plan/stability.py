"""Part of the former access.relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dither.errors import InvalidParameter, Unbounded
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.schema import Domain

MOST_ROWS = 1 << 31


@dataclass(frozen=True)
class EstimatedLimit:
    """A bound that the kernel finds privately first, between 1 and `most`; the same tag means the same bound."""

    tag: str = "bound"
    most: int = 1 << 20


RowLimit = int | EstimatedLimit


@dataclass(frozen=True)
class PerKeyBound:
    """At most `rows` rows of one unit in each of at most `groups` values of `keys`.

    `read` holds the columns that the keys compute with, and their domains where the bound was set: a key's value may
    depend on them.
    """

    keys: tuple[Expr, ...]
    max_groups: int
    max_rows: int
    read: tuple[tuple[str, Domain], ...] = ()

    def means(self, keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> bool:
        """Whether these keys, over these columns, have the very values that were bounded."""
        # By their spelling: equal nodes may differ, since Constant(1) == Constant(True).
        return repr(self.keys) == repr(keys) and all(columns.get(name) == domain for name, domain in self.read)


@dataclass(frozen=True)
class Stability:
    """How far one unit moves a relation; None means without bound.

    While `unit` holds, each row carries its unit and a unit moves only its own rows, at most `rows` of them. Otherwise
    `rows` bounds the symmetric difference of the rows (with their order), and `distinct` that of the different rows.
    """

    tracks_unit: bool
    max_rows: int | None
    max_distinct_rows: int | None
    per_key: PerKeyBound | None = None


NONE = Stability(tracks_unit=False, max_rows=0, max_distinct_rows=0)


def multiply(*factors: int | None) -> int | None:
    """Multiplication where None is infinite and zero wins."""
    if 0 in factors:
        return 0
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else None


def add_up(*terms: int | None) -> int | None:
    """Addition where None is infinite."""
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None


def smaller(*bounds: int | None) -> int | None:
    """The smallest bound where None is infinite."""
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known else None


def known_limit(limit: RowLimit) -> int:
    """A limit that is known; an automatic one must be filled first."""
    if isinstance(limit, EstimatedLimit):
        raise Unbounded(f"the automatic bound {limit.tag!r} has not been found yet")
    return limit


def check_limit(limit: RowLimit, name: str) -> None:
    """Limits are integers from 1 to 2^31."""
    most = limit.most if isinstance(limit, EstimatedLimit) else limit
    if type(most) is not int or not 1 <= most <= MOST_ROWS:
        raise InvalidParameter(f"{name} must be an integer from 1 to 2^31")


def stability_after_bounding(
    ctx: Context, child: Stability, unit: str, by: str, each: int, bound: int | None
) -> Stability:
    """The influence of `unit` after each unit of `by` keeps a choice of its own rows, at most `bound` of them.

    One changed row changes at most `each` rows of the choice. See bound_rows.md.
    """
    if unit == by:
        rows = smaller(child.max_rows, bound)
        return Stability(True, rows, smaller(child.max_distinct_rows, rows))
    if ctx.coarser(unit, by) and child.tracks_unit:
        rows = smaller(child.max_rows, multiply(bound, ctx.windows(by)))
        return Stability(True, rows, smaller(child.max_distinct_rows, rows))
    changed = multiply(each, child.max_rows)
    if ctx.coarser(by, unit):
        changed = smaller(changed, multiply(2, bound)) if child.max_rows != 0 else 0
    return Stability(False, changed, changed)
