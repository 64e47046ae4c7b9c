"""What all SQL engines share: from a measure to one statement, its groups, and the vector; facts of public tables."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from sqlglot import exp

from dither.access.result_vector import ReleasedGroups, corrections_in, read_columns, to_groups, to_vector
from dither.errors import EngineFailure, InvalidSchema
from dither.plan.context import Context, PublicTableFacts
from dither.plan.measures.core import Measure, Vector
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.cleaning import is_clean
from dither.plan.relations.facts import needs_order
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, case, integer, is_not_null, rows_count, select
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref, with_alias
from dither.schema import Column, Dataset, Reference, Scalar, Table


class SqlEngine(ABC):
    """Answers measures with SQL; an engine says how tables are found, statements run and stopped."""

    dialect: Dialect

    def __init__(self, dataset: Dataset) -> None:
        self._lock = threading.Lock()
        self._corrections: dict[str, int] = {}
        self.failure: str | None = None
        self.ctx = Context(dataset)
        self._origins = {name: self._origin(table) for name, table in dataset.tables.items()}
        self._lock_down(dataset)
        self.ctx = Context(dataset, self._facts())

    def _lock_down(self, dataset: Dataset) -> None:
        """Gives up what is no longer needed once the tables are found."""

    @abstractmethod
    def _origin(self, table: Table) -> TableSource:
        """Where a table is and how its columns are stored; InvalidSchema where it cannot be read."""

    @abstractmethod
    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        """Runs a statement, for so many seconds at most."""

    @abstractmethod
    def cancel(self) -> None:
        """Stops what is running, from another thread."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the data."""

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Vector:
        """The integers of a measure, one per declared cell."""
        plan = measure.plan(self._statement(measure, secret))
        return to_vector(measure, plan, self._answer(plan.select, deadline))

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> ReleasedGroups:
        """The keys that occur and their counts."""
        plan = measure.plan(self._statement(measure, secret))
        return to_groups(self.ctx, measure, self._answer(plan.select, deadline))

    def sql(self, measure: Measure) -> str:
        """The SQL that would run, for the curator's eyes."""
        return self.dialect.render(measure.plan(self._statement(measure)).select)

    def _statement(self, measure: Measure, secret: int = 0) -> SqlStatement:
        counted, ordered = read_columns(measure), needs_order(measure)
        return SqlStatement(self.ctx, self._origins, self.dialect, secret, counted, ordered=ordered)

    def _answer(self, statement: Sql, deadline: float | None) -> pa.Table:
        with self._lock:
            try:
                found = self._run(statement, deadline)
            except Exception as error:  # whatever a driver raises, its text may hold a value: the curator's log only
                self.failure = str(error)
                raise EngineFailure from None
        self._corrections["values"] = self._corrections.get("values", 0) + corrections_in(found)
        return found

    def corrections(self) -> Mapping[str, int]:
        """For the curator: how many values were corrected on their way into the answers so far."""
        return dict(self._corrections)

    def inspect(self) -> Mapping[str, int]:
        """For the curator: corrected values by "table.column", and rows dropped for want of a unit key by "table"."""
        found = [self._inspected(name) for name in self.ctx.dataset.tables]
        return {key: count for table in found for key, count in table.items()}

    def _inspected(self, name: str) -> dict[str, int]:
        table = self.ctx.table(name)
        flags = [with_alias(self._flagged(name, column), f"c{i}") for i, column in enumerate(table.columns.values())]
        rows = select(*flags, with_alias(rows_count(), "n")).from_(self._origins[name].source.copy(), copy=False)
        row = self._run(rows).to_pylist()[0]
        counts = {f"{name}.{key}": int(row[f"c{index}"] or 0) for index, key in enumerate(table.columns)}
        return counts | {name: int(row["n"]) - self._kept(name)}

    def _flagged(self, table: str, column: Column) -> Sql:
        """How many records of a column need a correction."""
        origin, raw = self._origins[table], exp.column(column.name, quoted=True)
        right = is_clean(column, raw, origin.kinds[column.name], self.dialect)
        return exp.Sum(this=case([(right, integer(0))], integer(1)))

    def _kept(self, table: str) -> int:
        statement = SqlStatement(self.ctx, self._origins, self.dialect, ordered=False)
        scan = statement.table(Scan(table))
        counted = self._run(statement.finish(select(with_alias(rows_count(), "n")).from_(scan, copy=False)))
        return int(counted.column("n")[0].as_py())

    def _facts(self) -> PublicTableFacts:
        """What may be counted: public tables only."""
        columns = [column.domain for table in self.ctx.dataset.tables.values() for column in table.columns.values()]
        wanted = {(domain.table, domain.column) for domain in columns if isinstance(domain, Reference)}
        public = [table for table in self.ctx.dataset.tables.values() if not table.private]
        values: dict[str, tuple[Scalar, ...]] = {}
        multiplicity: dict[str, int] = {}
        for table, name in ((place, name) for place in public for name in place.columns):
            found = self._frequencies(table.name, name)
            multiplicity[f"{table.name}.{name}"] = max(found.values(), default=0)
            if (table.name, name) in wanted:
                values[f"{table.name}.{name}"] = tuple(sorted(found, key=lambda value: (str(type(value)), value)))
        return PublicTableFacts(values, multiplicity)

    def _frequencies(self, table: str, column: str) -> dict[Scalar, int]:
        statement = SqlStatement(self.ctx, self._origins, self.dialect, ordered=False)
        scan = statement.table(Scan(table))
        key = column_ref(f"c{list(self.ctx.table(table).columns).index(column)}")
        body = select(with_alias(key, "k"), with_alias(rows_count(), "n")).from_(scan, copy=False)
        body.where(is_not_null(key), copy=False)
        found = self._run(statement.finish(body.group_by(key.copy(), copy=False)))
        return dict(zip(found.column("k").to_pylist(), found.column("n").to_pylist(), strict=True))


def kinds_of(table: Table, stored: Mapping[str, RawKind]) -> dict[str, RawKind]:
    """How each declared column is stored; refused where one is missing."""
    missing = [name for name in table.columns if name not in stored]
    if missing:
        raise InvalidSchema(f"the source of table {table.name} has no column {', '.join(missing)}")
    return {name: stored[name] for name in table.columns}


@contextlib.contextmanager
def alarm(seconds: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` after so many seconds, and again until the block ends: an early call may find nothing to stop."""
    if seconds is None:
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(ended, seconds, stop), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(ended: threading.Event, seconds: float, stop: Callable[[], None]) -> None:
    wait = max(0.0, seconds)
    while not ended.wait(wait):
        stop()
        wait = 0.05
