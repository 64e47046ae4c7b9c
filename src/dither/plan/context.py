"""The public context in which a plan is read: the dataset's schema and facts about its public tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dither.errors import InvalidPlan, Unsupported
from dither.plan.domains import number_of_periods, truncate, with_null
from dither.schema import Column, Dataset, Domain, Identifier, Moment, Reference, Scalar, Table, Unit

# Keys of a source's options under which a kernel publishes facts to planners: see `with_public_facts`.
RANKS, ROWS, UNITS, PROFILE = "ranks", "rows", "units", ("profile_request", "profile_release")


@dataclass(frozen=True)
class PublicTableFacts:
    """Facts counted in public tables, by "table.column": the values in order, and the most rows with the same value."""

    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    multiplicity: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """A dataset and the facts about its public tables; plans are read in it and never see a record."""

    dataset: Dataset
    facts: PublicTableFacts = field(default_factory=PublicTableFacts)
    # The size of the SQL that reads and cleans each table, if a kernel has measured it: see `privacy.sql_size`.
    scan_nodes: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    # Cached results of relations in this context; a changed copy starts with an empty cache.
    memo: dict[tuple[object, ...], tuple[object, Any]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def table(self, name: str) -> Table:
        """Return a table by name."""
        if name not in self.dataset.tables:
            raise InvalidPlan(f"no table {name[:40]!r}; there are: {', '.join(self.dataset.tables)}")
        return self.dataset.tables[name]

    def unit(self, name: str) -> Unit:
        """Return a privacy unit by name."""
        if name not in self.dataset.units:
            raise InvalidPlan(f"no unit {name[:40]!r}; there are: {', '.join(self.dataset.units)}")
        return self.dataset.units[name]

    @property
    def budgeted_units(self) -> tuple[str, ...]:
        """The units that have a budget; all units if the schema has no budgets, which no kernel accepts."""
        return tuple(dict.fromkeys(cap.unit for cap in self.dataset.budgets)) or tuple(self.dataset.units)

    def keyed_unit(self, name: str) -> Unit:
        """Return a unit that has a key, so that rows can be grouped or bounded by it; refuse row units."""
        unit = self.unit(name)
        if unit.kind == "row":
            raise Unsupported(
                f"the unit {name} is a single row: it needs no limit, and it has no key to group or join by"
            )
        return unit

    def columns(self, name: str) -> dict[str, Domain]:
        """Return the domains of a table's columns, with the bounds of moments at their precision."""
        columns = self.table(name).columns
        return {key: with_null(at_precision(c.domain), _may_be_null(c)) for key, c in columns.items()}

    def public_values(self, table: str, column: str) -> Sequence[Scalar] | None:
        """Return the listed values of a public column, or None if they were not counted."""
        return self.facts.values.get(f"{table}.{column}")

    def has_stored_ranks(self, table: str) -> bool:
        """Tell whether the table's rows are known to have stored ranks, so that bounding them needs no sort."""
        return self.table(table).source.options.get(RANKS) == "stored"

    def noisy_rows(self, table: str) -> int | None:
        """Return the noisy number of rows of a private table, or None if the kernel has not published it."""
        count = self.table(table).source.options.get(ROWS)
        return int(count) if count is not None else None

    def noisy_units(self) -> int | None:
        """Return the noisy number of the coarsest budgeted unit, or None if the kernel has not published it."""
        count = next(iter(self.dataset.tables.values())).source.options.get(UNITS)
        return int(count) if count is not None else None

    def enforces_unique_key(self, table: Table) -> bool:
        """Tell whether a scan of this table keeps one row per value of its unique key.

        It does so only where every keyed unit that covers the table has that same key: otherwise the row of one person
        could displace the row of another.
        """
        keys = {key for unit in self.dataset.units.values() if (key := unit.keys.get(table.name)) is not None}
        return table.unique is not None and keys <= {table.unique}

    def row_cap(self, table: str) -> tuple[str, int] | None:
        """Return the unit whose rows in a table are capped on reading, and the cap; None if nothing is dropped by it.

        A unit has at most one row in a table with an enforced unique key, which no cap shortens.
        """
        caps = [(name, unit.max_rows[table]) for name, unit in self.dataset.units.items() if table in unit.max_rows]
        return caps[0] if caps and not self.enforces_unique_key(self.table(table)) else None

    def multiplicity(self, table: Table, column: str) -> int | None:
        """Return the most rows that share a value of a column, or None if that is not public."""
        if table.unique == column and self.enforces_unique_key(table):
            return 1
        return None if table.private else self.facts.multiplicity.get(f"{table.name}.{column}")

    def is_coarser(self, large: str, small: str) -> bool:
        """Tell whether `large` is strictly coarser: each unit of `small` lies inside one unit of `large`."""
        outer_unit, inner_unit = self.unit(large), self.unit(small)
        if outer_unit.kind != "user" or inner_unit.kind == "user":
            return False
        if inner_unit.kind == "row":
            return all(table in outer_unit.keys for table in inner_unit.keys)
        return all(outer_unit.keys.get(table) == key for table, key in inner_unit.keys.items())

    def number_of_windows(self, name: str) -> int:
        """Count the windows that the declared time ranges of a window unit's tables can touch; 1 for other units."""
        unit = self.unit(name)
        if unit.kind != "window" or unit.every is None:
            return 1
        spans = [self.columns(table)[column] for table, column in unit.times.items()]
        moments = [domain for domain in spans if isinstance(domain, Moment)]
        return number_of_periods(min(m.lo for m in moments), max(m.hi for m in moments), unit.every)


def with_public_facts(
    dataset: Dataset, ranked: bool, rows: Mapping[str, int], profile: tuple[str, str] | None = None
) -> Dataset:
    """Return the schema with the facts that a kernel publishes to planners: stored ranks, noisy sizes, the profile.

    The first table has those of the whole dataset: the number of units, which `rows` has under "", and the profile.
    """
    ranks = {RANKS: "stored"} if ranked else {}
    whole = dict(zip(PROFILE, profile, strict=True)) if profile else {}
    whole |= {UNITS: str(rows[""])} if "" in rows else {}
    tables = {
        name: replace(
            table,
            source=replace(
                table.source,
                options=ranks
                | ({ROWS: str(rows[name])} if name in rows else {})
                | (whole if name == next(iter(dataset.tables)) else {}),
            ),
        )
        for name, table in dataset.tables.items()
    }
    return replace(dataset, tables=tables)


def _may_be_null(column: Column) -> bool:
    """Tell whether a column can hold NULL; identifiers and references can, unless the curator declares a default."""
    return column.domain.nullable or (isinstance(column.domain, Identifier | Reference) and column.default is None)


def at_precision(domain: Domain) -> Domain:
    """Truncate the bounds of a moment to its precision, as records are truncated."""
    if not isinstance(domain, Moment):
        return domain
    return replace(domain, lo=truncate(domain.lo, domain.precision), hi=truncate(domain.hi, domain.precision))
