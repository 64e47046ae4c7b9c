"""`dither prepare`: a command for the curator, on the machine with the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dither.access.engines import open_engine
from dither.access.inspection import ColumnInspection, TableInspection, findings
from dither.access.snapshot import prepare, snapshot_path
from dither.cli.options import AsJson
from dither.errors import InvalidSchema, Unsupported
from dither.schema import Column, Dataset, Identifier, load
from dither.schema.summary import default_text

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
    if as_json:
        typer.echo(json.dumps({"snapshot": str(path), "rows": rows} | inspection_facts(dataset, inspected)))
        return
    typer.echo(f"wrote {path}: " + ", ".join(f"{plural(count, 'row')} of {name}" for name, count in rows.items()))
    for line in correction_lines(dataset, inspected):
        typer.echo(line)


def inspect_sources(dataset: Dataset) -> dict[str, TableInspection]:
    """Open the sources and read every record; return the corrections of every table."""
    with closing(open_engine(dataset)) as engine:
        return dict(engine.inspect_tables())


def inspection_facts(dataset: Dataset, inspected: Mapping[str, TableInspection]) -> dict[str, Any]:
    """Return corrected values and dropped rows, and what was found to be wrong, as plain data."""
    return {"corrected_or_dropped": _nonzero_counts(inspected), "findings": list(findings(dataset, inspected))}


def _nonzero_counts(inspected: Mapping[str, TableInspection]) -> dict[str, int]:
    """Return corrected values by "table.column" and dropped rows by "table", without zeros."""
    return {key: count for name, table in inspected.items() for key, count in table.counts(name).items() if count}


def correction_lines(dataset: Dataset, inspected: Mapping[str, TableInspection]) -> list[str]:
    """Return what cleaning corrects, and what is found to be wrong, last and in capitals so that nobody misses it."""
    warnings = [f"WARNING: {finding}" for finding in findings(dataset, inspected)]
    lines = [*_corrections(dataset, inspected), *warnings]
    secret = "these counts depend on records: look for mistakes in them, and show them to nobody"
    return [*lines, secret] if lines else []


def _corrections(dataset: Dataset, inspected: Mapping[str, TableInspection]) -> Iterator[str]:
    """Yield a line for each column with corrected values, which says what they become, and for dropped rows."""
    for table, counted in inspected.items():
        for name, found in counted.columns.items():
            if found.corrected:
                column = dataset.tables[table].columns[name]
                share = f"{plural(found.corrected, 'value')} of {table}.{name} corrected"
                yield f"{share} ({rough_percent(found.corrected, counted.rows)}): {', '.join(_fates(column, found))}"
        if counted.dropped:
            yield f"{plural(counted.dropped, 'row')} of {table} dropped"
        if counted.capped:
            yield f"{plural(counted.capped, 'row')} of {table} (beyond max_rows) dropped"


def _fates(column: Column, found: ColumnInspection) -> Iterator[str]:
    """Yield what becomes of the corrected values of a column, by the reason for which they are corrected."""
    default = "no key, and their row is dropped" if isinstance(column.domain, Identifier) else default_text(column)
    if found.missing:
        yield f"{found.missing:,} missing become {default}"
    if found.unreadable:
        yield f"{found.unreadable:,} that are not read become {default}"
    if found.below + found.above:
        yield f"{found.below:,} below min become min, {found.above:,} above max become max"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "row"), plural(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rough_percent(part: int, whole: int) -> str:
    """Return a share in percent, roughly.

    >>> rough_percent(3, 1000), rough_percent(612, 1000)
    ('less than 1%', 'about 61%')
    """
    percent = round(100 * part / whole)
    return f"about {percent}%" if percent else "less than 1%"
