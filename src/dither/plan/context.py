"""The public surroundings in which a plan is read: the dataset's description and facts about its public tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from dither.errors import InvalidPlan, Unsupported
from dither.plan.domains import EPOCH, number_of_periods, truncate, with_null
from dither.schema import Column, Dataset, Domain, Identifier, Moment, Reference, Scalar, Table, Unit

RANKS, ROWS = "ranks", "rows"


@dataclass(frozen=True)
class PublicTableFacts:
    """What was counted in public tables, by "table.column": the values in order, and the most rows of one value."""

    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    multiplicity: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """A dataset and the facts about its public tables; plans are read in it, and never see a record."""

    dataset: Dataset
    facts: PublicTableFacts = field(default_factory=PublicTableFacts)
    # What relations have worked out in this context; a changed copy of it starts anew.
    memo: dict[tuple[object, ...], tuple[object, Any]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def table(self, name: str) -> Table:
        """A table by name."""
        if name not in self.dataset.tables:
            raise InvalidPlan(f"no table {name[:40]!r}; there are: {', '.join(self.dataset.tables)}")
        return self.dataset.tables[name]

    def unit(self, name: str) -> Unit:
        """A unit by name."""
        if name not in self.dataset.units:
            raise InvalidPlan(f"no unit {name[:40]!r}; there are: {', '.join(self.dataset.units)}")
        return self.dataset.units[name]

    @property
    def budgeted(self) -> tuple[str, ...]:
        """The units that have a budget; all of them in a description without budgets, which no kernel takes."""
        return tuple(dict.fromkeys(cap.unit for cap in self.dataset.budgets)) or tuple(self.dataset.units)

    def keyed(self, name: str) -> Unit:
        """A unit that has a key, so that rows can be grouped or bounded by it."""
        unit = self.unit(name)
        if unit.kind == "row":
            raise Unsupported(f"the unit {name} is a single row: it needs no bound and has no key to group or join by")
        return unit

    def columns(self, name: str) -> dict[str, Domain]:
        """The domains of a table's columns, moments on the dataset's wall clock."""
        zone, columns = self.dataset.timezone, self.table(name).columns
        return {key: with_null(on_wall_clock(c.domain, zone), _may_be_null(c)) for key, c in columns.items()}

    def public_values(self, table: str, column: str) -> Sequence[Scalar] | None:
        """The listed values of a public column, if they are at hand."""
        return self.facts.values.get(f"{table}.{column}")

    def ranked(self, table: str) -> bool:
        """Whether the table's rows are known to have stored ranks: bounding them then costs no sort."""
        return self.table(table).source.options.get(RANKS) == "stored"

    def rows(self, table: str) -> int | None:
        """The noisy number of a private table's rows, if a kernel has said it."""
        said = self.table(table).source.options.get(ROWS)
        return int(said) if said is not None else None

    def enforced(self, table: Table) -> bool:
        """Whether reading this table keeps one row per value of its unique key.

        Only where every keyed unit that covers the table has that very key: otherwise one person's row could push out
        another's.
        """
        keys = {key for unit in self.dataset.units.values() if (key := unit.keys.get(table.name)) is not None}
        return table.unique is not None and keys <= {table.unique}

    def multiplicity(self, table: Table, column: str) -> int | None:
        """The most rows that share a value of a column, if it is public."""
        if table.unique == column and self.enforced(table):
            return 1
        return None if table.private else self.facts.multiplicity.get(f"{table.name}.{column}")

    def coarser(self, large: str, small: str) -> bool:
        """Whether each unit of `small` lies inside one unit of `large` (and they are not the same)."""
        outer, inner = self.unit(large), self.unit(small)
        if outer.kind != "user" or inner.kind == "user":
            return False
        if inner.kind == "row":
            return all(table in outer.keys for table in inner.keys)
        return all(outer.keys.get(table) == key for table, key in inner.keys.items())

    def windows(self, name: str) -> int:
        """How many windows the declared time ranges of a window unit's tables can touch together."""
        unit = self.unit(name)
        if unit.kind != "window" or unit.every is None:
            return 1
        spans = [self.columns(table)[column] for table, column in unit.times.items()]
        moments = [domain for domain in spans if isinstance(domain, Moment)]
        return number_of_periods(min(m.lo for m in moments), max(m.hi for m in moments), unit.every)


def with_public_facts(dataset: Dataset, ranked: bool, rows: Mapping[str, int]) -> Dataset:
    """The description with what a kernel says to those who plan questions: stored ranks, and noisy sizes of tables."""
    ranks = {RANKS: "stored"} if ranked else {}
    tables = {
        name: replace(
            table,
            source=replace(table.source, options=ranks | ({ROWS: str(rows[name])} if name in rows else {})),
        )
        for name, table in dataset.tables.items()
    }
    return replace(dataset, tables=tables)


def _may_be_null(column: Column) -> bool:
    """Names of people and things have no stand-in for what is missing, unless the curator gives one."""
    return column.domain.nullable or (isinstance(column.domain, Identifier | Reference) and column.default is None)


def on_wall_clock(domain: Domain, zone: str) -> Domain:
    """A moment's bounds on the wall clock of a time zone, at the starts of its precision's periods."""
    if not isinstance(domain, Moment):
        return domain
    shifts = [shift for _, shift in offsets(domain.lo, domain.hi, zone)] if zoned(domain, zone) else [0]
    lo, hi = (truncate(end, domain.precision) for end in (domain.lo + min(shifts), domain.hi + max(shifts)))
    return replace(domain, lo=lo, hi=hi)


def zoned(domain: Moment, zone: str) -> bool:
    """Whether a moment is moved to the wall clock of a zone; days have none."""
    return domain.precision != "day" and zone != "UTC"


@cache
def offsets(lo: int, hi: int, zone: str) -> tuple[tuple[int, int], ...]:
    """The offsets of a zone between two moments: (from which microsecond, how many microseconds to add)."""
    place = ZoneInfo(zone)
    found = [(lo, _offset(lo, place))]
    step = 86_400_000_000
    for day in range(lo, hi + step, step):
        end = min(day + step, hi)
        if _offset(end, place) != found[-1][1]:
            found.append((_change(found[-1][0] if day == lo else day, end, place), _offset(end, place)))
    return tuple(found)


def _offset(moment: int, place: ZoneInfo) -> int:
    utc = (
        datetime.min + timedelta(days=1) if moment < -62_135_510_400_000_000 else EPOCH + timedelta(microseconds=moment)
    )
    shift = place.fromutc(utc.replace(tzinfo=place)).utcoffset() if utc.year < 9999 else place.utcoffset(utc)
    return (shift or timedelta()) // timedelta(microseconds=1)


def _change(before: int, after: int, place: ZoneInfo) -> int:
    """The first microsecond at which the offset is that of `after`."""
    wanted = _offset(after, place)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _offset(middle, place) == wanted else (middle, after)
    return after
