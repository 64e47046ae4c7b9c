"""Snapshots: records cleaned once and stored with their pseudo-random order, their ranks and the sizes of units.

    snapshot/
      manifest.json     format, description, sources, rows and corrections; replaced last, in one step
      <generation>/<table>/part-0000.parquet ...

Every part is sorted by the number of binary digits of the rank, then by time or key: a limit on rows reads few row
groups. With and without a snapshot, the same plan gives the same integers. A snapshot is used only while its schema and
its sources are those from which it was made. A stale one is refused with a remedy: ignoring it would make every answer
slow without notice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
from sqlglot import exp

from dither.access.engines import open_snapshot_writer
from dither.access.engines.duckdb import MEMORY, DuckDBEngine
from dither.access.inspection import TableInspection, findings
from dither.errors import EngineFailure, InvalidSchema
from dither.plan.context import Context
from dither.plan.relations.cleaning import clean_key
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, binary, case, count_star, integer, literal, select
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref, with_alias
from dither.schema import Dataset, Moment, Table

FORMAT = 5
ORDER, RANK, SIZE = "order$", "rank$", "size$"  # stored columns; no declared name contains a $
ROWS_PER_PART = 20_000_000
ROWS_PER_ROW_GROUP = 122_880
STAMPED_BYTES = 1 << 16  # hashed at each end of a source file
MANIFEST = "manifest.json"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SnapshotTable:
    """One table of a snapshot: its directory, its rows, and what cleaning corrected when it was written."""

    directory: str
    rows: int
    inspection: TableInspection


@dataclass(frozen=True)
class Manifest:
    """The sources from which a snapshot was made, and its contents."""

    format: int
    description: str
    sources: Mapping[str, str]
    generation: str
    tables: Mapping[str, SnapshotTable]


def snapshot_path(dataset: Dataset) -> Path:
    """Return the folder of a dataset's snapshot: the one that its first source names, or else beside its file."""
    options = next(iter(dataset.tables.values())).source.options
    if "snapshot" in options:
        return Path(options["snapshot"])
    return Path(options["path"]).parent / f"{dataset.name}.snapshot"


# ---------------------------------------------------------------- reading


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a snapshot, or None if there is none; refuse damaged manifests and other formats."""
    try:
        fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InvalidSchema(f"the snapshot {folder.name} is damaged: {REMEDY}") from None
    if fields.get("format") != FORMAT:
        raise InvalidSchema(
            f"the snapshot {folder.name} has format {str(fields.get('format'))[:20]}, this Dither reads {FORMAT}:"
            f" upgrade Dither, or {REMEDY}"
        )
    tables = {
        name: SnapshotTable(table["directory"], table["rows"], TableInspection.from_json(table["inspection"]))
        for name, table in fields.pop("tables").items()
    }
    return Manifest(**fields, tables=tables)


def check_current(manifest: Manifest, dataset: Dataset) -> None:
    """Refuse a snapshot of another schema or of other records."""
    if manifest.description != description_hash(dataset):
        raise InvalidSchema(f"the snapshot of {dataset.name} was made from another schema: {REMEDY}")
    stale = [
        name for name, table in dataset.tables.items() if manifest.sources.get(name) != source_stamp(table, dataset)
    ]
    if stale:
        raise InvalidSchema(f"the records of {', '.join(stale)} have changed since the snapshot: {REMEDY}")


REMEDY = "run `dither prepare` again, or delete the snapshot's folder to have the files themselves read"


def description_hash(dataset: Dataset) -> str:
    """Return a hash of everything that decides how records are read, ordered and ranked."""
    tables = [
        (
            name,
            table.private,
            table.unique,
            [(key, repr(c.domain), repr(c.default)) for key, c in table.columns.items()],
        )
        for name, table in dataset.tables.items()
    ]
    units = [(name, u.kind, dict(u.keys), dict(u.times), u.every) for name, u in dataset.units.items()]
    caps = [(name, sorted(u.max_rows.items())) for name, u in dataset.units.items() if u.max_rows]
    return sha256(repr((FORMAT, dataset.timezone, tables, units, *caps)).encode()).hexdigest()


def source_stamp(table: Table, dataset: Dataset) -> str:
    """Return a hash of a table's files: names, sizes, modification times, and the bytes at both ends.

    A table of a database has no such mark of a change: the curator's `data_version` stands for it.
    """
    options = table.source.options
    named = sorted((key, value) for key, value in options.items() if key not in ("path", "snapshot"))
    digest = sha256(repr((table.source.kind, named)).encode())
    if "path" not in options:
        digest.update(dataset.data_version.encode())
    for path in sorted(glob(options.get("path", ""))):
        state = os.stat(path)
        digest.update(repr((os.path.basename(path), state.st_size, state.st_mtime_ns)).encode())
        with open(path, "rb") as file:
            digest.update(file.read(STAMPED_BYTES))
            file.seek(max(0, state.st_size - STAMPED_BYTES))
            digest.update(file.read(STAMPED_BYTES))
    return digest.hexdigest()


class SnapshotEngine(DuckDBEngine):
    """DuckDB over a snapshot, with cleaned values and stored orders and ranks."""

    # Rows have stored ranks, so that bounding them needs no sort; public, since plans may depend on it.
    prepared = True

    def __init__(self, dataset: Dataset, folder: Path, manifest: Manifest, memory: str = MEMORY, disk: str = "20GB"):
        check_current(manifest, dataset)
        self._folder, self._manifest = folder, manifest
        super().__init__(dataset, memory, disk)

    def _table_source(self, table: Table) -> TableSource:
        directory = self._folder / self._manifest.generation / self._manifest.tables[table.name].directory
        # Parts are named, since a pattern could find other ones each time that a statement reads it.
        parts = exp.Array(expressions=[exp.Literal.string(str(part)) for part in sorted(directory.glob("*.parquet"))])
        source = exp.Anonymous(this="read_parquet", expressions=[parts])
        ranks, sizes = ({unit: stored + unit for unit in ranked_units(self.ctx, table.name)} for stored in (RANK, SIZE))
        return TableSource(source, dict.fromkeys(table.columns, "other"), True, ORDER, ranks, sizes, deduplicated=True)

    def _readable_directories(self, dataset: Dataset) -> list[str]:
        return [str(self._folder)]

    def inspect_tables(self) -> Mapping[str, TableInspection]:
        """Return, for the curator, the corrections counted when the snapshot was made."""
        return {name: table.inspection for name, table in self._manifest.tables.items()}

    def findings(self) -> list[str]:
        """Return, for the curator, what was found when the snapshot was made."""
        return list(findings(self.ctx.dataset, self.inspect_tables()))


def ranked_units(ctx: Context, table: str) -> list[str]:
    """List the units whose rows in this table have a stored rank."""
    keyed_units = [name for name, unit in ctx.dataset.units.items() if unit.kind != "row"]
    return [name for name in keyed_units if Scan(table).stability(ctx, name).tracks_unit]


def open_engine(
    dataset: Dataset, memory: str = MEMORY, disk: str = "20GB", snapshot: str | None = None
) -> DuckDBEngine:
    """Open an engine over the dataset's snapshot if there is one, else over its files."""
    folder = Path(snapshot) if snapshot is not None else snapshot_path(dataset)
    manifest = read_manifest(folder)
    if manifest is not None:
        return SnapshotEngine(dataset, folder, manifest, memory, disk)
    if snapshot is not None or any("snapshot" in table.source.options for table in dataset.tables.values()):
        raise InvalidSchema(f"there is no snapshot in {folder.name}; run `dither prepare` first")
    return DuckDBEngine(dataset, memory, disk)


# ---------------------------------------------------------------- writing


def prepare(
    dataset: Dataset,
    folder: Path | None = None,
    progress: Progress = lambda table, done, parts: None,
    memory: str = MEMORY,
    disk: str = "50GB",
) -> Manifest:
    """Write a snapshot of all tables; an earlier one stays in use until this one is complete."""
    folder = folder or snapshot_path(dataset)
    sources = {name: source_stamp(table, dataset) for name, table in dataset.tables.items()}
    generation = uuid4().hex
    with _new_generation(folder, generation) as directory:
        writer = open_snapshot_writer(dataset, directory, memory, disk)
        try:
            tables = {name: writer.table(table, progress) for name, table in dataset.tables.items()}
        finally:
            writer.close()
        manifest = Manifest(FORMAT, description_hash(dataset), sources, generation, tables)
        check_current(manifest, dataset)
    _publish(folder, manifest)
    return manifest


@contextmanager
def _new_generation(folder: Path, generation: str) -> Iterator[Path]:
    """Create a directory for a generation, and remove it if an exception occurs."""
    directory = folder / generation
    try:
        directory.mkdir(parents=True)
        yield directory
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()
        if isinstance(error, OSError):
            raise InvalidSchema(f"the snapshot {folder.name} cannot be written: {error.strerror}") from None
        raise


def _publish(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; keep the previous generation for engines that still read it."""
    previous = current_generation(folder)
    temporary = folder / f"{MANIFEST}.{manifest.generation}"
    with temporary.open("w") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)
    for old in folder.iterdir():
        if old.is_dir() and old.name not in (manifest.generation, previous):
            shutil.rmtree(old, ignore_errors=True)


def current_generation(folder: Path) -> str | None:
    """Return the generation in use now, of whatever format, or None."""
    with suppress(OSError, ValueError):
        fields = json.loads((folder / MANIFEST).read_text())
        return str(fields.get("generation")) if isinstance(fields, dict) else None
    return None


class SnapshotWriter(DuckDBEngine):
    """Cleans, orders and ranks the records of each table, part by part."""

    def __init__(self, dataset: Dataset, directory: Path, memory: str, disk: str) -> None:
        self._directory = directory
        super().__init__(dataset, memory, disk)

    def _readable_directories(self, dataset: Dataset) -> list[str]:
        return [*super()._readable_directories(dataset), str(self._directory)]

    def table(self, table: Table, progress: Progress) -> SnapshotTable:
        """Write one table."""
        directory = self._directory / table.name
        directory.mkdir()
        progress(table.name, 0, 1)
        inspection = self._inspect_table(table.name)
        parts = self._parts(table)
        written = 0
        for part in range(parts):
            progress(table.name, part, parts)
            written += self._write(table, directory / f"part-{part:04d}.parquet", part, parts)
        progress(table.name, parts, parts)
        return SnapshotTable(table.name, written, inspection)

    def _parts(self, table: Table) -> int:
        """Return the number of parts, each of whole units; it is 1 unless all units of the table share a key."""
        keys = {self.ctx.unit(unit).keys[table.name] for unit in ranked_units(self.ctx, table.name)}
        return max(1, -(-self._count_valid_rows(table.name) // ROWS_PER_PART)) if len(keys) == 1 else 1

    def _write(self, table: Table, file: Path, part: int, parts: int) -> int:
        """Write one part to a file and return its number of rows."""
        origins = self._sources if parts == 1 else {**self._sources, table.name: self._part_source(table, part, parts)}
        statement = SqlStatement(self.ctx, origins, self.dialect, keeps_order=True)
        rows = snapshot_rows(statement, table).order_by(*sort_columns(self.ctx, table), copy=False)
        copy_statement = copy_to_parquet(statement.finish(rows), file)
        try:
            copied_rows = self._connection.execute(self.dialect.render(copy_statement)).fetchone()
        except duckdb.Error as error:
            self.failure = str(error)
            raise EngineFailure from None
        with file.open("rb") as written:
            os.fsync(written.fileno())
        return int(copied_rows[0]) if copied_rows else 0

    def _part_source(self, table: Table, part: int, parts: int) -> TableSource:
        """Return the source of one part: all records of some of the units, chosen by their key alone."""
        origin, zone = self._sources[table.name], self.ctx.dataset.timezone
        unit = self.ctx.unit(ranked_units(self.ctx, table.name)[0])
        column = table.columns[str(unit.keys[table.name])]
        raw = exp.column(column.name, quoted=True)
        key = clean_key(column, raw, origin.kinds[column.name], zone, self.dialect)
        in_part = binary(exp.EQ, binary(exp.Mod, _call_function("hash", key), literal(parts)), literal(part))
        records = select(exp.Star()).from_(origin.source.copy(), copy=False).where(in_part, copy=False)
        return replace(origin, source=records.subquery("raw", copy=False))


def open_writer(dataset: Dataset, directory: Path, memory: str, disk: str) -> SnapshotWriter:
    """Open the writer of a snapshot of files."""
    return SnapshotWriter(dataset, directory, memory, disk)


def snapshot_rows(statement: SqlStatement, table: Table) -> exp.Select:
    """Select the encoded values under the schema's names, then the order and the ranks."""
    scan, units = Scan(table.name), ranked_units(statement.ctx, table.name)
    columns = [f"c{index}" for index in range(len(table.columns))]
    keys = list(dict.fromkeys(column for unit in units for column in statement.unit_columns(unit)))
    sortable = statement.with_sort_key(statement.table(scan), [*columns, *keys, "o"])
    values = [exp.alias_(column_ref(f"c{index}"), name, quoted=True) for index, name in enumerate(table.columns)]
    ranks = [exp.alias_(_rank_window(statement, unit), RANK + unit, quoted=True) for unit in units]
    counts = [with_alias(_size_window(statement, unit), statement.size_column(unit)) for unit in units]
    body = select(*values, exp.alias_(column_ref("o"), ORDER, quoted=True), *ranks, *counts)
    body = body.from_(statement.add_subquery(sortable), copy=False)
    names = [*table.columns, ORDER, *(RANK + unit for unit in units)]
    sizes = [exp.alias_(_first_size(statement, unit), SIZE + unit, quoted=True) for unit in units]
    kept = [exp.column(name, quoted=True) for name in names]
    return select(*kept, *sizes).from_(statement.add_subquery(body), copy=False)


def sort_columns(ctx: Context, table: Table) -> list[Sql]:
    """Return the sort columns of a part: the number of digits of the rank, then the first moment or column."""
    digits = [
        _call_function("length", _call_function("bin", exp.column(RANK + unit, quoted=True)))
        for unit in ranked_units(ctx, table.name)[:1]
    ]
    moments = [name for name, column in table.columns.items() if isinstance(column.domain, Moment)]
    return [*digits, exp.column((moments or list(table.columns))[0], quoted=True)]


def copy_to_parquet(rows: exp.Select, file: Path) -> Sql:
    """Build the DuckDB statement that writes rows to a file, in row groups of a fixed size."""
    options = {
        "FORMAT": exp.var("parquet"),
        "COMPRESSION": exp.var("zstd"),
        "ROW_GROUP_SIZE": literal(ROWS_PER_ROW_GROUP),
    }
    params = [exp.CopyParameter(this=exp.var(name), expression=value) for name, value in options.items()]
    files = [exp.Literal.string(str(file))]
    return exp.Copy(this=exp.Subquery(this=rows), kind=False, files=files, params=params)


def _rank_window(statement: SqlStatement, unit: str) -> Sql:
    """Build the rank of a row within its unit, by the rows' pseudo-random order."""
    partition = [column_ref(column) for column in statement.unit_columns(unit)]
    return exp.Window(this=exp.RowNumber(), partition_by=partition, order=exp.Order(expressions=[column_ref("s")]))


def _size_window(statement: SqlStatement, unit: str) -> Sql:
    """Build the number of rows of a row's unit."""
    return exp.Window(this=count_star(), partition_by=[column_ref(c) for c in statement.unit_columns(unit)])


def _first_size(statement: SqlStatement, unit: str) -> Sql:
    """Build the number of rows of a unit on its first row, and 0 on the others, which compresses to nothing."""
    is_first = binary(exp.EQ, exp.column(RANK + unit, quoted=True), literal(1))
    return case([(is_first, column_ref(statement.size_column(unit)))], integer(0))


def _call_function(name: str, *arguments: Sql) -> Sql:
    return exp.Anonymous(this=name, expressions=list(arguments))
