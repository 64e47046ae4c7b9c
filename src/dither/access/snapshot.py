"""Snapshots: records cleaned once, with their pseudo-random order and their rank within each unit stored beside them.

    snapshot/
      manifest.json     format, description, sources, rows and corrections; replaced last, in one step
      <generation>/<table>/part-0000.parquet ...

Every part is sorted by how many binary digits the rank has, then by time or key: a bound on rows reads few row groups.
Both paths give the same integers for the same plan. A snapshot is used only while its description and its sources are
those that it was made from; a stale one is refused with what to do about it, since passing it over would make every
answer slow, and late, without a word.
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

from dither.access.engines.duckdb import MEMORY, DuckDBEngine
from dither.errors import EngineFailure, InvalidSchema
from dither.plan.context import Context
from dither.plan.relations.cleaning import clean_key
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, binary, literal, select
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref
from dither.schema import Dataset, Moment, Table

FORMAT = 3
ORDER, RANK = "order$", "rank$"
ROWS_A_PART = 20_000_000
ROWS_A_GROUP = 122_880
EDGE = 1 << 16
MANIFEST = "manifest.json"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SnapshotTable:
    """One table of a snapshot: its directory, its rows, and what was corrected or dropped on the way in."""

    directory: str
    rows: int
    corrections: Mapping[str, int]


@dataclass(frozen=True)
class Manifest:
    """What a snapshot was made from and what it holds."""

    format: int
    description: str
    sources: Mapping[str, str]
    generation: str
    tables: Mapping[str, SnapshotTable]


def snapshot_path(dataset: Dataset) -> Path:
    """Where a dataset's snapshot is kept: beside its first table."""
    first = next(iter(dataset.tables.values()))
    return Path(first.source.options["path"]).parent / f"{dataset.name}.snapshot"


# ---------------------------------------------------------------- reading


def read_manifest(place: Path) -> Manifest | None:
    """The manifest of a snapshot, or None where there is none; refused where a newer Dither has written it."""
    try:
        found: dict[str, Any] = json.loads((place / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InvalidSchema(f"the snapshot {place.name} is damaged: {REMEDY}") from None
    if found.get("format") != FORMAT:
        raise InvalidSchema(
            f"the snapshot {place.name} has format {str(found.get('format'))[:20]}, this Dither reads {FORMAT}: upgrade"
            f" Dither, or {REMEDY}"
        )
    tables = {name: SnapshotTable(**table) for name, table in found.pop("tables").items()}
    return Manifest(**found, tables=tables)


def check_current(manifest: Manifest, dataset: Dataset) -> None:
    """Refuses a snapshot of another description or of other records."""
    if manifest.description != description_hash(dataset):
        raise InvalidSchema(f"the snapshot of {dataset.name} was made from another description: {REMEDY}")
    stale = [name for name, table in dataset.tables.items() if manifest.sources.get(name) != source_stamp(table)]
    if stale:
        raise InvalidSchema(f"the records of {', '.join(stale)} have changed since the snapshot: {REMEDY}")


REMEDY = "run `dither prepare` again, or delete the snapshot's folder to have the files themselves read"


def description_hash(dataset: Dataset) -> str:
    """A fingerprint of all that decides how records are read, ordered and ranked."""
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
    return sha256(repr((FORMAT, dataset.timezone, tables, units)).encode()).hexdigest()


def source_stamp(table: Table) -> str:
    """A fingerprint of a table's files: names, sizes, times of change, and the bytes at both ends."""
    options = table.source.options
    found = sha256(repr((table.source.kind, sorted((k, v) for k, v in options.items() if k != "path"))).encode())
    for path in sorted(glob(options["path"])):
        state = os.stat(path)
        found.update(repr((os.path.basename(path), state.st_size, state.st_mtime_ns)).encode())
        with open(path, "rb") as file:
            found.update(file.read(EDGE))
            file.seek(max(0, state.st_size - EDGE))
            found.update(file.read(EDGE))
    return found.hexdigest()


class SnapshotEngine(DuckDBEngine):
    """DuckDB over a snapshot: values are ready, orders and ranks are stored."""

    # Rows have stored ranks, so that bounding them costs no sort; public, since plans may depend on it.
    prepared = True

    def __init__(self, dataset: Dataset, place: Path, manifest: Manifest, memory: str = MEMORY, disk: str = "20GB"):
        check_current(manifest, dataset)
        self._place, self._manifest = place, manifest
        super().__init__(dataset, memory, disk)

    def _origin(self, table: Table) -> TableSource:
        directory = self._place / self._manifest.generation / self._manifest.tables[table.name].directory
        files = exp.Literal.string(str(directory / "*.parquet"))
        source = exp.Anonymous(this="read_parquet", expressions=[files])
        ranks = {unit: RANK + unit for unit in ranked_units(self.ctx, table.name)}
        return TableSource(source, dict.fromkeys(table.columns, "other"), True, ORDER, ranks, unique=True)

    def _places(self, dataset: Dataset) -> list[str]:
        return [str(self._place)]

    def inspect(self) -> Mapping[str, int]:
        """For the curator: what was corrected and dropped when the snapshot was made."""
        return {key: count for table in self._manifest.tables.values() for key, count in table.corrections.items()}


def ranked_units(ctx: Context, table: str) -> list[str]:
    """The units whose rows in this table have a stored rank."""
    keyed = [name for name, unit in ctx.dataset.units.items() if unit.kind != "row"]
    return [name for name in keyed if Scan(table).stability(ctx, name).tracks_unit]


def open_engine(
    dataset: Dataset, memory: str = MEMORY, disk: str = "20GB", snapshot: str | None = None
) -> DuckDBEngine:
    """An engine over the dataset's snapshot if there is one, else over its files."""
    place = Path(snapshot) if snapshot is not None else snapshot_path(dataset)
    manifest = read_manifest(place)
    if manifest is not None:
        return SnapshotEngine(dataset, place, manifest, memory, disk)
    if snapshot is not None:
        raise InvalidSchema(f"there is no snapshot in {place.name}; run `dither prepare` first")
    return DuckDBEngine(dataset, memory, disk)


# ---------------------------------------------------------------- writing


def prepare(
    dataset: Dataset,
    place: Path | None = None,
    progress: Progress = lambda table, done, parts: None,
    memory: str = MEMORY,
    disk: str = "50GB",
) -> Manifest:
    """Writes a snapshot of all tables; an earlier one stays in use until this one is complete."""
    place = place or snapshot_path(dataset)
    sources = {name: source_stamp(table) for name, table in dataset.tables.items()}
    generation = uuid4().hex
    with _building(place, generation) as directory:
        writer = SnapshotWriter(dataset, directory, memory, disk)
        try:
            tables = {name: writer.table(table, progress) for name, table in dataset.tables.items()}
        finally:
            writer.close()
        manifest = Manifest(FORMAT, description_hash(dataset), sources, generation, tables)
        check_current(manifest, dataset)
    _publish(place, manifest)
    return manifest


@contextmanager
def _building(place: Path, generation: str) -> Iterator[Path]:
    """A directory that is removed again if anything goes wrong."""
    directory = place / generation
    try:
        directory.mkdir(parents=True)
        yield directory
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):
            place.rmdir()
        if isinstance(error, OSError):
            raise InvalidSchema(f"the snapshot {place.name} cannot be written: {error.strerror}") from None
        raise


def _publish(place: Path, manifest: Manifest) -> None:
    """The manifest is replaced in one step; the generation before stays for engines that still read it."""
    before = manifest_before(place)
    waiting = place / f"{MANIFEST}.{manifest.generation}"
    with waiting.open("w") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(waiting, place / MANIFEST)
    for old in place.iterdir():
        if old.is_dir() and old.name not in (manifest.generation, before):
            shutil.rmtree(old, ignore_errors=True)


def manifest_before(place: Path) -> str | None:
    """The generation that is in use now, of whatever format."""
    with suppress(OSError, ValueError):
        found = json.loads((place / MANIFEST).read_text())
        return str(found.get("generation")) if isinstance(found, dict) else None
    return None


class SnapshotWriter(DuckDBEngine):
    """Cleans, orders and ranks the records of each table, part by part."""

    def __init__(self, dataset: Dataset, directory: Path, memory: str, disk: str) -> None:
        self._directory = directory
        super().__init__(dataset, memory, disk)

    def _places(self, dataset: Dataset) -> list[str]:
        return [*super()._places(dataset), str(self._directory)]

    def table(self, table: Table, progress: Progress) -> SnapshotTable:
        """Writes one table."""
        directory = self._directory / table.name
        directory.mkdir()
        progress(table.name, 0, 1)
        corrections = self._inspected(table.name)
        parts = self._parts(table)
        written = 0
        for part in range(parts):
            progress(table.name, part, parts)
            written += self._write(table, directory / f"part-{part:04d}.parquet", part, parts)
        progress(table.name, parts, parts)
        return SnapshotTable(table.name, written, corrections)

    def _parts(self, table: Table) -> int:
        """Parts hold whole units, so there are several only where all units of the table share their key."""
        keys = {self.ctx.unit(unit).keys[table.name] for unit in ranked_units(self.ctx, table.name)}
        return max(1, -(-self._kept(table.name) // ROWS_A_PART)) if len(keys) == 1 else 1

    def _write(self, table: Table, file: Path, part: int, parts: int) -> int:
        origins = self._origins if parts == 1 else {**self._origins, table.name: self._share(table, part, parts)}
        statement = SqlStatement(self.ctx, origins, self.dialect, ordered=True)
        rows = statement.finish(self._rows(statement, table))
        options = {
            "FORMAT": exp.var("parquet"),
            "COMPRESSION": exp.var("zstd"),
            "ROW_GROUP_SIZE": literal(ROWS_A_GROUP),
        }
        copied = exp.Copy(
            this=exp.Subquery(this=rows),
            kind=False,
            files=[exp.Literal.string(str(file))],
            params=[exp.CopyParameter(this=exp.var(name), expression=value) for name, value in options.items()],
        )
        try:
            found = self._connection.execute(self.dialect.render(copied)).fetchone()
        except duckdb.Error as error:
            self.failure = str(error)
            raise EngineFailure from None
        with file.open("rb") as written:
            os.fsync(written.fileno())
        return int(found[0]) if found else 0

    def _share(self, table: Table, part: int, parts: int) -> TableSource:
        """The records of some of the units, all of each, chosen before anything but their key is worked out."""
        origin, zone = self._origins[table.name], self.ctx.dataset.timezone
        unit = self.ctx.unit(ranked_units(self.ctx, table.name)[0])
        column = table.columns[str(unit.keys[table.name])]
        raw = exp.column(column.name, quoted=True)
        key = clean_key(column, raw, origin.kinds[column.name], zone, self.dialect)
        chosen = binary(exp.EQ, binary(exp.Mod, _function("hash", key), literal(parts)), literal(part))
        records = select(exp.Star()).from_(origin.source.copy(), copy=False).where(chosen, copy=False)
        return replace(origin, source=records.subquery("raw", copy=False))

    def _rows(self, statement: SqlStatement, table: Table) -> exp.Select:
        """Values in their held form under the schema's names, then the order and the ranks."""
        scan, units = Scan(table.name), ranked_units(self.ctx, table.name)
        columns = [f"c{index}" for index in range(len(table.columns))]
        keys = list(dict.fromkeys(column for unit in units for column in statement.unit_columns(unit)))
        placed = statement.placed(statement.table(scan), [*columns, *keys, "o"])
        values = [exp.alias_(column_ref(f"c{index}"), name, quoted=True) for index, name in enumerate(table.columns)]
        ranks = [exp.alias_(_rank(statement, unit), RANK + unit, quoted=True) for unit in units]
        body = select(*values, exp.alias_(column_ref("o"), ORDER, quoted=True), *ranks)
        ranked = select(exp.Star()).from_(statement.add(body.from_(statement.add(placed), copy=False)), copy=False)
        return ranked.order_by(*self._sorted(table, units), copy=False)

    def _sorted(self, table: Table, units: list[str]) -> list[Sql]:
        digits = [_function("length", _function("bin", exp.column(RANK + unit, quoted=True))) for unit in units[:1]]
        moments = [name for name, column in table.columns.items() if isinstance(column.domain, Moment)]
        return [*digits, exp.column((moments or list(table.columns))[0], quoted=True)]


def _rank(statement: SqlStatement, unit: str) -> Sql:
    partition = [column_ref(column) for column in statement.unit_columns(unit)]
    return exp.Window(this=exp.RowNumber(), partition_by=partition, order=exp.Order(expressions=[column_ref("s")]))


def _function(name: str, *arguments: Sql) -> Sql:
    return exp.Anonymous(this=name, expressions=list(arguments))
