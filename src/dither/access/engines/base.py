"""What all SQL engines share: from a measure to one statement, its groups, and the vector; facts of public tables."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from sqlglot import exp

from dither.access.result_vector import Groups, columns_read, corrections_in, groups_of, laid_out
from dither.errors import EngineFailure, InvalidSchema
from dither.plan.context import Context, PublicFacts
from dither.plan.measures.core import Measure, Vector
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.cleaning import sound
from dither.plan.relations.facts import needs_order
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, case, present, rows_count, select, whole
from dither.plan.sql.dialect import RawKind, Spelling
from dither.plan.sql.statement import Origin, Statement, aliased, named
from dither.schema import Column, Dataset, Reference, Scalar, Table


class SqlEngine(ABC):
    """Answers measures with SQL; an engine says how tables are found, statements run and stopped."""

    spelling: Spelling

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
    def _origin(self, table: Table) -> Origin:
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
        return laid_out(measure, plan, self._answer(plan.select, deadline))

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> Groups:
        """The keys that occur and their counts."""
        plan = measure.plan(self._statement(measure, secret))
        return groups_of(self.ctx, measure, self._answer(plan.select, deadline))

    def sql(self, measure: Measure) -> str:
        """The SQL that would run, for the curator's eyes."""
        return self.spelling.render(measure.plan(self._statement(measure)).select)

    def _statement(self, measure: Measure, secret: int = 0) -> Statement:
        counted, ordered = columns_read(measure), needs_order(measure)
        return Statement(self.ctx, self._origins, self.spelling, secret, counted, ordered=ordered)

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
        flags = [aliased(self._flagged(name, column), f"c{i}") for i, column in enumerate(table.columns.values())]
        rows = select(*flags, aliased(rows_count(), "n")).from_(self._origins[name].source.copy(), copy=False)
        row = self._run(rows).to_pylist()[0]
        counts = {f"{name}.{key}": int(row[f"c{index}"] or 0) for index, key in enumerate(table.columns)}
        return counts | {name: int(row["n"]) - self._kept(name)}

    def _flagged(self, table: str, column: Column) -> Sql:
        """How many records of a column need a correction."""
        origin, raw = self._origins[table], exp.column(column.name, quoted=True)
        right = sound(column, raw, origin.kinds[column.name], self.spelling)
        return exp.Sum(this=case([(right, whole(0))], whole(1)))

    def _kept(self, table: str) -> int:
        statement = Statement(self.ctx, self._origins, self.spelling, ordered=False)
        scan = statement.table(Scan(table))
        counted = self._run(statement.finish(select(aliased(rows_count(), "n")).from_(scan, copy=False)))
        return int(counted.column("n")[0].as_py())

    def _facts(self) -> PublicFacts:
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
        return PublicFacts(values, multiplicity)

    def _frequencies(self, table: str, column: str) -> dict[Scalar, int]:
        statement = Statement(self.ctx, self._origins, self.spelling, ordered=False)
        scan = statement.table(Scan(table))
        key = named(f"c{list(self.ctx.table(table).columns).index(column)}")
        body = select(aliased(key, "k"), aliased(rows_count(), "n")).from_(scan, copy=False)
        body.where(present(key), copy=False)
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
