"""`dither prepare`: a command for the curator, on the machine with the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dither.access.snapshot import prepare, snapshot_path
from dither.cli.options import AsJson
from dither.errors import Unsupported
from dither.schema import load

app = typer.Typer(add_completion=False)

FILE_SOURCES = {"parquet", "csv", "duckdb"}


@app.command(name="prepare")
def command(
    description: Annotated[Path, typer.Argument(help="a dataset description, dataset.yml", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="file to write; by default beside the first table")] = None,
    memory: Annotated[str, typer.Option(help="the most memory to use")] = "3GB",
    as_json: AsJson = False,
) -> None:
    """Write a snapshot of the records, cleaned, sorted and ranked: answers stay the same and become much faster."""
    dataset = load(description)
    if {table.source.kind for table in dataset.tables.values()} - FILE_SOURCES:
        raise Unsupported("prepare takes Parquet, CSV and DuckDB files only; other engines read their own tables")
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
    corrected = {key: count for table in snapshot.tables.values() for key, count in table.corrections.items() if count}
    if as_json:
        typer.echo(json.dumps({"snapshot": str(path), "rows": rows, "corrected_or_dropped": corrected}))
        return
    typer.echo(
        f"wrote {path}: "
        + ", ".join(f"{count:,} row{'' if count == 1 else 's'} of {name}" for name, count in rows.items())
    )
    for name, count in corrected.items():
        what, done = ("value", "corrected") if "." in name else ("row", "dropped")
        typer.echo(f"{count:,} {what}{'' if count == 1 else 's'} of {name} {done}")
