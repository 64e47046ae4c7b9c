"""Commands for dataset descriptions: check, init, schema."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Grid

from dither.cli.advice import warnings
from dither.cli.options import CONSOLE, AsJson
from dither.errors import InvalidParameter
from dither.post.display import amount_text
from dither.post.interpretation import cap_loss
from dither.schema import Dataset, load
from dither.schema.spec import json_schema
from dither.schema.summary import public_facts
from dither.views.statement import stated_text

if TYPE_CHECKING:
    from dither.cli.draft import DraftTable

app = typer.Typer(add_completion=False)

DSN_ENV = "DITHER_DSN"

Description = Annotated[Path, typer.Argument(help="a dataset description, dataset.yml", show_default=False)]


@app.command()
def check(
    description: Description,
    data: Annotated[bool, typer.Option("--data", help="also open the sources and read every record")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a dataset description and print the facts that it makes public; with --data, check the records too."""
    dataset = load(description)
    public = public_facts(dataset) | {"warnings": list(warnings(dataset))}
    for budget, cap in zip(public["budgets"], dataset.budgets, strict=True):
        budget["stated"] = stated_text(cap_loss(cap))
    private, lines = _inspect(dataset) if data else ({}, [])
    if as_json:
        typer.echo(json.dumps(public | private, indent=2, ensure_ascii=False))
        return
    _print_facts(public)
    if not data:
        lines = [f"the records were not looked at; dither check --data {description} opens them"]
    elif not lines:
        lines = ["the sources can be read, and every value lies in its declared domain"]
    typer.echo("\n".join(lines))


def _inspect(dataset: Dataset) -> tuple[dict[str, Any], list[str]]:
    """Open the sources; return what cleaning corrects in them, as data and as lines, for the curator alone."""
    from dither.cli.prepare import correction_lines, inspect_sources, inspection_facts

    inspected = inspect_sources(dataset)
    return inspection_facts(dataset, inspected), correction_lines(dataset, inspected)


def _print_facts(public: dict[str, Any]) -> None:
    """Print the public facts of a description as tables."""
    CONSOLE.print(f"{public['name']}: every fact below becomes public")
    CONSOLE.print(f"dates and times are readings of the wall clock of {public['timezone']}")
    for name, table in public["tables"].items():
        grid = Grid(
            "column", "values", title=f"{name} ({'private' if table['private'] else 'public'}, {table['source']})"
        )
        for column, text in table["columns"].items():
            grid.add_row(column + (" (unique)" if column == table["unique"] else ""), text)
        CONSOLE.print(grid)
    for name, unit in public["units"].items():
        CONSOLE.print(f"unit {name}: {_unit_text(unit)}")
    for budget in public["budgets"]:
        numbers = ", ".join(
            f"{key} {amount_text(Fraction(value))}"
            for key, value in budget.items()
            if key not in ("unit", "kind", "stated")
        )
        stated = "" if budget["kind"] == "pure" else f"; that is {budget['stated']}"
        CONSOLE.print(f"budget of {budget['unit']}: {budget['kind']}, {numbers}{stated}")
    private = ", ".join(name for name, table in public["tables"].items() if table["private"])
    CONSOLE.print(
        f"size_epsilon {public['size_epsilon']}: charged once, before the first question, for noisy sizes of its"
        f" private tables ({private}); quotes and time limits use them"
    )
    if public["profile_epsilon"] != "0":
        CONSOLE.print(
            f"profile_epsilon {public['profile_epsilon']}: charged once for each data_version, when it is first opened,"
            " for the profile (what units contribute, and where their values lie), which becomes public"
        )
    for warning in public["warnings"]:
        CONSOLE.print(f"note: {warning}")


def _unit_text(unit: dict[str, Any]) -> str:
    """Describe a unit of privacy."""
    if unit["kind"] == "row":
        return f"one row of {', '.join(unit['tables'])}"
    keys = ", ".join(f"{table}.{column}" for table, column in unit["tables"].items())
    caps = "".join(f"; at most {rows:,} rows in {table}" for table, rows in unit["max_rows"].items())
    return f"all rows with the same {keys}" + (f", within one {unit['every']}" if unit["every"] else "") + caps


@app.command()
def init(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Parquet or CSV files, or an address postgresql://... and its tables", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; by default print the draft")] = None,
    dsn_env: Annotated[
        str | None, typer.Option(help="environment variable with the address of a PostgreSQL server; DATA names tables")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draft a dataset description from names and types alone; the curator fills in every bound."""
    from dither.cli.draft import draft

    text = draft(_draft_tables(data or [], out, dsn_env), out)
    if out is not None:
        _write_new(out, text)
    command = f"dither check {out or 'dataset.yml'}"
    if as_json:
        typer.echo(json.dumps({"draft": text, "written": str(out) if out else None, "next": command}))
    elif out is None:
        typer.echo(text)
    else:
        typer.echo(f"wrote {out}; decide what it marks with DECIDE (the file explains each), then run: {command}")


def _draft_tables(data: list[str], out: Path | None, dsn_env: str | None) -> Sequence[DraftTable]:
    """Read the tables of a draft from files, or from the PostgreSQL server that the arguments name."""
    from dither.cli.draft import file_tables, postgres_tables

    if data and data[0].startswith(("postgresql://", "postgres://")):
        typer.echo(
            f"note: the address is not written to the draft; set the environment variable {dsn_env or DSN_ENV} to it.",
            err=True,
        )
        return postgres_tables(data[0], dsn_env or DSN_ENV, data[1:])
    if dsn_env is not None:
        if not os.environ.get(dsn_env):
            raise InvalidParameter(f"the environment variable {dsn_env} is not set; set it to postgresql://...")
        return postgres_tables(os.environ[dsn_env], dsn_env, data)
    if not data:
        raise InvalidParameter("give Parquet or CSV files, or the address of a PostgreSQL server and its tables")
    return file_tables(data, out)


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet."""
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise InvalidParameter(f"cannot write {path}: {error.strerror}") from None


@app.command()
def schema(as_json: AsJson = True) -> None:
    """Print the JSON Schema of dataset descriptions, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))
