"""The limits of a release in words: on the rows of a unit, what they leave out, and the windows that are charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dither.errors import Unbounded
from dither.plan.context import Context
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk
from dither.post.estimate.profile import share_beyond
from dither.release.spec import ReleaseSpec

SMALL_SHARE = 0.001
NOT_MEASURED = "how many rows that drops was not measured"


def limit_texts(spec: ReleaseSpec, ctx: Context, relation: Relation) -> tuple[str, ...]:
    """Return the limits on the rows of one unit: those of the release, and those of the dataset on its tables."""
    return (*_own_limits(spec), *_limits_of_tables(ctx, relation))


def _own_limits(spec: ReleaseSpec) -> Iterator[str]:
    """Yield the limits that the release declares."""
    if spec.max_rows is not None:
        yield f"at most {_rows(spec.max_rows)} of one {spec.unit} (max_rows)"
    if spec.key_limit is not None:
        keys, rows = spec.key_limit
        yield (
            f"at most {_rows(rows)} of one {spec.unit} in each row of the table, and at most {_rows(keys)} of the table"
            " (max_rows_per_key)"
        )
    if spec.value_limit is not None:
        limit = spec.value_limit
        yield (
            f"at most {_rows(limit.rows)} of one {spec.unit} for each value of {limit.column}, and at most"
            f" {limit.values:,} values (max_rows_per_value)"
        )


def _limits_of_tables(ctx: Context, relation: Relation) -> Iterator[str]:
    """Yield the caps that the dataset declares for the tables that are read."""
    tables = {node.table for node in walk(relation) if isinstance(node, Scan)}
    for unit in ctx.dataset.units.values():
        for table, rows in unit.max_rows.items():
            if table in tables:
                yield f"at most {_rows(rows)} of one {unit.name} in {table} (max_rows of the dataset)"


def _rows(number: int) -> str:
    """Return a number of rows."""
    return "1 row" if number == 1 else f"{number:,} rows"


def beyond_text(spec: ReleaseSpec, ctx: Context, relation: Relation) -> str:
    """Return what the profile of the dataset says about the rows beyond the limits, or that nobody has measured it.

    A limit on the rows of each key drops at least the rows beyond that many times the number of keys.
    """
    most = min(_most_rows(spec), default=0)
    tables = {node.table for node in walk(relation) if isinstance(node, Scan)} & set(ctx.unit(spec.unit).keys)
    shares = {table: share_beyond(ctx, spec.unit, table, most) for table in sorted(tables)} if most else {}
    lines = [_share_text(table, most, spec, *share) for table, share in shares.items() if share is not None]
    if not most:
        return "how many rows the dataset's own limit drops is for its curator alone (dither check --data)"
    return "; ".join(lines) or NOT_MEASURED


def _most_rows(spec: ReleaseSpec) -> Iterator[int]:
    """Yield the most rows of one unit that each limit of the release leaves."""
    if spec.max_rows is not None:
        yield spec.max_rows
    if spec.key_limit is not None:
        yield spec.key_limit[0] * spec.key_limit[1]
    if spec.value_limit is not None:
        yield spec.value_limit.rows * spec.value_limit.values


def _share_text(table: str, most: int, spec: ReleaseSpec, share: float, high: float) -> str:
    """Return the part of a table's rows that is beyond a limit, by the profile."""
    least = "at least " if spec.key_limit or spec.value_limit else ""
    middle = "hardly any" if share < SMALL_SHARE else f"{least}about {100 * share:.2g}%"
    upper = f"{100 * max(high, SMALL_SHARE):.2g}%"
    return (
        f"by the profile, {middle} of the rows of {table} lie beyond {most:,} rows of one {spec.unit} (97.5% sure: not"
        f" more than {upper}) and are dropped"
    )


def window_text(ctx: Context, unit: str, windows: Sequence[str]) -> str:
    """Return in which of a unit's windows a release is charged; windows are named by their first day."""
    every = ctx.unit(unit).every
    if len(windows) == 1:
        return f"in the {every} of {windows[0]}"
    return f"in each of {len(windows):,} {every}s, from that of {windows[0]} to that of {windows[-1]}"


def narrower_text(ctx: Context, unit: str, windows: Sequence[str]) -> str:
    """Return how to charge fewer windows, if a release is charged for every one that is declared."""
    if len(windows) < ctx.number_of_windows(unit) or len(windows) < 2:
        return ""
    time = next(iter(ctx.unit(unit).times.values()))
    return (
        f"every window that is declared is charged; a condition such as `{time} >= TIMESTAMP '{windows[0]}' AND"
        f" {time} < TIMESTAMP '{windows[1]}'` charges those that it leaves"
    )


def unbounded_release(spec: ReleaseSpec) -> Unbounded:
    """Build the error for a release in which one unit may have any number of rows."""
    return Unbounded(
        f"one {spec.unit} may have any number of rows in this release; limit them with max_rows, max_rows_per_key or"
        " max_rows_per_value (rows beyond are dropped), or release by a unit of one row"
    )
