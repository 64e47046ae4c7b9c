"""DuckDB, in the process: Parquet, CSV and DuckDB's own files; read-only, with limits on memory, disk and time."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
from sqlglot import exp

from dither.access.clean import corrected
from dither.access.context import Context, PublicFacts
from dither.access.engines.layout import Groups, columns_read, corrections_in, groups_of, laid_out
from dither.access.measure import Measure, PartitionCounts, Vector
from dither.access.relation import Scan, needs_order
from dither.access.spelling import RawKind, Spelling, Sql, binary, case, rows_count, select, whole
from dither.access.statement import Origin, Statement, aliased, named
from dither.errors import EngineFailure, InvalidSchema
from dither.schema import Dataset, Reference, Scalar, Table

KINDS: dict[str, RawKind] = {
    "TINYINT": "integer", "SMALLINT": "integer", "INTEGER": "integer", "BIGINT": "integer", "HUGEINT": "integer",
    "UTINYINT": "integer", "USMALLINT": "integer", "UINTEGER": "integer", "UBIGINT": "integer", "UHUGEINT": "integer",
    "FLOAT": "float", "DOUBLE": "float", "VARCHAR": "text", "BOOLEAN": "boolean", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamp", "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp", "TIMESTAMP_NS": "timestamp",
}  # fmt: skip


def kind_of(declared: str) -> RawKind:
    """How records of a DuckDB type are read."""
    if declared.startswith("DECIMAL"):
        return "decimal"
    return "text" if declared.startswith("ENUM") else KINDS.get(declared, "other")


class DuckDBEngine:
    """Answers measures with DuckDB; only the aggregated groups leave it, as Arrow."""

    spelling = Spelling()

    def __init__(self, dataset: Dataset, memory: str = "4GB", disk: str = "20GB", threads: int | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="dither-")
        self._connection = duckdb.connect(":memory:")
        self._lock = threading.Lock()
        self._corrections: dict[str, int] = {}
        self.failure: str | None = None
        self._limit(memory, disk, threads)
        self.ctx = Context(dataset)
        self._origins = {name: self._origin(table, index) for index, (name, table) in enumerate(dataset.tables.items())}
        self._lock_down(dataset)
        self.ctx = Context(dataset, self._facts())

    def _limit(self, memory: str, disk: str, threads: int | None) -> None:
        settings = {
            "memory_limit": memory,
            "temp_directory": self._scratch.name,
            "max_temp_directory_size": disk,
            # The first rewrites ROW_NUMBER() <= k at 2.5 times the time and spills without end. The second believes
            # Parquet's statistics, which leave NaN out, and folds away every check for it.
            "disabled_optimizers": "top_n_window_elimination,statistics_propagation",
            "preserve_insertion_order": "false",
            "TimeZone": "UTC",
        }
        for name, value in settings.items():
            self._set(name, exp.Literal.string(value))
        if threads is not None:
            self._set("threads", exp.Literal.number(threads))

    def _set(self, name: str, value: Sql) -> None:
        item = exp.SetItem(this=exp.EQ(this=exp.var(name), expression=value))
        self._connection.execute(self.spelling.render(exp.Set(expressions=[item])))

    def _lock_down(self, dataset: Dataset) -> None:
        """Nothing outside the sources can be read from here on, and no setting changed."""
        paths = [str(Path(table.source.options["path"]).parent) for table in dataset.tables.values()]
        allowed = [exp.Literal.string(path) for path in dict.fromkeys([*paths, self._scratch.name])]
        self._set("allowed_directories", exp.Array(expressions=allowed))
        self._set("enable_external_access", exp.false())
        self._set("lock_configuration", exp.true())

    def _run(self, statement: Sql) -> pa.Table:
        found: pa.Table = self._connection.sql(self.spelling.render(statement)).to_arrow_table()
        return found

    def _origin(self, table: Table, index: int) -> Origin:
        options = table.source.options
        try:
            source = self._source(table, options, index)
            described = self._connection.execute(
                "DESCRIBE " + self.spelling.render(select(exp.Star()).from_(source.copy(), copy=False))
            ).fetchall()
        except duckdb.Error:
            raise InvalidSchema(f"the source of table {table.name} cannot be read") from None
        kinds = {str(row[0]): kind_of(str(row[1])) for row in described}
        missing = [name for name in table.columns if name not in kinds]
        if missing:
            raise InvalidSchema(f"the source of table {table.name} has no column {', '.join(missing)}")
        return Origin(source, {name: kinds[name] for name in table.columns})

    def _source(self, table: Table, options: Mapping[str, str], index: int) -> Sql:
        path = exp.Literal.string(options["path"])
        match table.source.kind:
            case "parquet":
                return exp.Anonymous(this="read_parquet", expressions=[path])
            case "csv":
                # Types guessed from the data would be a function of the records: everything is read as text.
                fixed = {
                    "all_varchar": exp.true(),
                    "header": exp.true(),
                    "delim": exp.Literal.string(options.get("delimiter", ",")),
                }
                named_options = [exp.PropertyEQ(this=exp.to_identifier(k), expression=v) for k, v in fixed.items()]
                return exp.Anonymous(this="read_csv", expressions=[path, *named_options])
            case _:
                name = f"source{index}"
                attached = exp.Attach(
                    this=exp.alias_(path, name), expressions=[exp.AttachOption(this=exp.var("READ_ONLY"))]
                )
                self._connection.execute(self.spelling.render(attached))
                return exp.table_(
                    options.get("table", table.name), db=options.get("schema", "main"), catalog=name, quoted=True
                )

    def _facts(self) -> PublicFacts:
        """What may be counted: public tables only."""
        wanted = {
            (column.domain.table, column.domain.column)
            for table in self.ctx.dataset.tables.values()
            for column in table.columns.values()
            if isinstance(column.domain, Reference)
        }
        values: dict[str, tuple[Scalar, ...]] = {}
        multiplicity: dict[str, int] = {}
        for table in self.ctx.dataset.tables.values():
            if table.private:
                continue
            for name in table.columns:
                found = self._frequencies(table.name, name)
                multiplicity[f"{table.name}.{name}"] = max(found.values(), default=0)
                if (table.name, name) in wanted:
                    values[f"{table.name}.{name}"] = tuple(sorted(found, key=lambda value: (str(type(value)), value)))
        return PublicFacts(values, multiplicity)

    def _frequencies(self, table: str, column: str) -> dict[Scalar, int]:
        statement = Statement(self.ctx, self._origins, self.spelling, ordered=False)
        scan = statement.table(Scan(table))
        key = named(f"c{list(self.ctx.table(table).columns).index(column)}")
        present = exp.not_(binary(exp.Is, key, exp.null()))
        body = (
            select(aliased(key, "k"), aliased(rows_count(), "n"))
            .from_(scan, copy=False)
            .where(present, copy=False)
            .group_by(key.copy(), copy=False)
        )
        found = self._run(statement.finish(body))
        return dict(zip(found.column("k").to_pylist(), found.column("n").to_pylist(), strict=True))

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Vector:
        """The integers of a measure, one per declared cell."""
        plan = measure.plan(self._statement(measure, secret))
        return laid_out(measure, plan, self._answer(plan.select, deadline))

    def _statement(self, measure: Measure, secret: int = 0) -> Statement:
        counted, ordered = columns_read(measure), needs_order(measure)
        return Statement(self.ctx, self._origins, self.spelling, secret, counted, ordered=ordered)

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> Groups:
        """The keys that occur and their counts."""
        plan = measure.plan(self._statement(measure, secret))
        return groups_of(self.ctx, measure, self._answer(plan.select, deadline))

    def sql(self, measure: Measure) -> str:
        """The SQL that would run, for the curator's eyes."""
        return self.spelling.render(measure.plan(self._statement(measure)).select)

    def _answer(self, statement: Sql, deadline: float | None) -> pa.Table:
        with self._lock, self._until(deadline):
            try:
                found = self._run(statement)
            except (duckdb.Error, MemoryError, RuntimeError) as error:
                self.failure = str(error)
                raise EngineFailure from None
        self._corrections["values"] = self._corrections.get("values", 0) + corrections_in(found)
        return found

    @contextlib.contextmanager
    def _until(self, deadline: float | None) -> Iterator[None]:
        if deadline is None:
            yield
            return
        timer = threading.Timer(max(0.0, deadline), self.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def corrections(self) -> Mapping[str, int]:
        """For the curator: how many values were corrected on their way into the answers so far."""
        return dict(self._corrections)

    def inspect(self) -> Mapping[str, int]:
        """For the curator: corrected values by "table.column", and rows dropped for want of a unit key by "table"."""
        found: dict[str, int] = {}
        for name, table in self.ctx.dataset.tables.items():
            origin, zone = self._origins[name], self.ctx.dataset.timezone
            flags = [
                aliased(
                    exp.Sum(
                        this=case(
                            [
                                (
                                    corrected(c, exp.column(k, quoted=True), origin.kinds[k], zone, self.spelling),
                                    whole(1),
                                )
                            ],
                            whole(0),
                        )
                    ),
                    f"c{index}",
                )
                for index, (k, c) in enumerate(table.columns.items())
            ]
            row = self._run(
                select(*flags, aliased(rows_count(), "n")).from_(origin.source.copy(), copy=False)
            ).to_pylist()[0]
            found |= {f"{name}.{key}": int(row[f"c{index}"] or 0) for index, key in enumerate(table.columns)}
            found[name] = int(row["n"]) - self._kept(name)
        return found

    def _kept(self, table: str) -> int:
        statement = Statement(self.ctx, self._origins, self.spelling, ordered=False)
        scan = statement.table(Scan(table))
        counted = self._run(statement.finish(select(aliased(rows_count(), "n")).from_(scan, copy=False)))
        return int(counted.column("n")[0].as_py())

    def cancel(self) -> None:
        """Stops what is running, from another thread."""
        self._connection.interrupt()

    def close(self) -> None:
        """Lets go of the data and of scratch files."""
        self._connection.close()
        self._scratch.cleanup()


def open_engine(dataset: Dataset, memory: str = "4GB", disk: str = "20GB") -> DuckDBEngine:
    """An engine over the dataset's files."""
    return DuckDBEngine(dataset, memory, disk)
