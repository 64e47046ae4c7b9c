"""`dither prepare`: a command for the curator, on the machine with the data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dither.access.engines import open_engine
from dither.access.inspection import TableInspection, findings
from dither.access.snapshot import prepare, snapshot_path
from dither.cli.options import AsJson
from dither.errors import InvalidSchema, Unsupported
from dither.schema import Dataset, load

app = typer.Typer(add_completion=False)

FILE_SOURCES = {"parquet", "csv", "duckdb"}


def _check_sources(dataset: Dataset) -> None:
    """Refuse engines without snapshots, and databases whose curator has not said where a copy may be kept."""
    for table in dataset.tables.values():
        if table.source.kind not in FILE_SOURCES | {"postgres"}:
            raise Unsupported(f"prepare reads files and PostgreSQL; {table.source.kind} reads the table {table.name}")
        if table.source.kind == "postgres" and "snapshot" not in table.source.options:
            raise InvalidSchema(
                f"prepare copies records out of the database: add snapshot: {dataset.name}.snapshot to the source of "
                f"{table.name}, the folder to keep them in; queries then read that copy until the next prepare"
            )


@app.command(name="prepare")
def command(
    description: Annotated[Path, typer.Argument(help="a dataset description, dataset.yml", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="file to write; by default beside the first table")] = None,
    memory: Annotated[str, typer.Option(help="the most memory to use")] = "3GB",
    as_json: AsJson = False,
) -> None:
    """Write a snapshot of the records, cleaned, sorted and ranked: answers stay the same and become much faster."""
    dataset = load(description)
    _check_sources(dataset)
    path = out or snapshot_path(dataset)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, disable=as_json) as bar:
        tasks = {name: bar.add_task(name, total=1) for name in dataset.tables}
        snapshot = prepare(
            dataset,
            path,
            lambda table, done, parts: bar.update(tasks[table], completed=done, total=parts),
            memory=memory,
        )
    rows = {name: table.rows for name, table in snapshot.tables.items()}
    inspected = {name: table.inspection for name, table in snapshot.tables.items()}
    corrected = _nonzero_counts(inspected)
    found = list(findings(dataset, inspected))
    if as_json:
        facts = {"snapshot": str(path), "rows": rows, "corrected_or_dropped": corrected, "findings": found}
        typer.echo(json.dumps(facts))
        return
    typer.echo(
        f"wrote {path}: "
        + ", ".join(f"{count:,} row{'' if count == 1 else 's'} of {name}" for name, count in rows.items())
    )
    print_corrections(corrected, found)


def inspect_sources(dataset: Dataset) -> tuple[dict[str, int], list[str]]:
    """Open the sources and read every record; return corrected values and dropped rows, and what was found."""
    with closing(open_engine(dataset)) as engine:
        inspected = engine.inspect_tables()
    return _nonzero_counts(inspected), list(findings(dataset, inspected))


def _nonzero_counts(inspected: Mapping[str, TableInspection]) -> dict[str, int]:
    """Return corrected values by "table.column" and dropped rows by "table", without zeros."""
    return {key: count for name, table in inspected.items() for key, count in table.counts(name).items() if count}


def print_corrections(corrected: Mapping[str, int], found: Sequence[str]) -> None:
    """Print what cleaning corrects, and what is found to be wrong, last and in capitals so that nobody misses it."""
    for name, count in corrected.items():
        what, done = ("value", "corrected") if "." in name else ("row", "dropped")
        typer.echo(f"{count:,} {what}{'' if count == 1 else 's'} of {name} {done}")
    for finding in found:
        typer.echo(f"WARNING: {finding}")
    if corrected or found:
        typer.echo("these counts depend on records: look for mistakes in them, and show them to nobody")
