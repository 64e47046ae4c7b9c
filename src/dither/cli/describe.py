"""Commands for dataset descriptions: check, init, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Grid

from dither.cli.options import CONSOLE, AsJson
from dither.errors import InvalidParameter
from dither.schema import load
from dither.schema.spec import json_schema
from dither.schema.summary import public_facts, warnings

app = typer.Typer(add_completion=False)

Description = Annotated[Path, typer.Argument(help="a dataset description, dataset.yml", show_default=False)]


@app.command()
def check(description: Description, as_json: AsJson = False) -> None:
    """Check a dataset description and print the facts that it makes public."""
    dataset = load(description)
    public = public_facts(dataset) | {"warnings": list(warnings(dataset))}
    if as_json:
        typer.echo(json.dumps(public, indent=2, ensure_ascii=False))
        return
    _print_facts(public)


def _print_facts(public: dict[str, Any]) -> None:
    """Print the public facts of a description as tables."""
    CONSOLE.print(f"{public['name']}: every fact below becomes public")
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
        numbers = ", ".join(f"{key} {value}" for key, value in budget.items() if key not in ("unit", "kind"))
        CONSOLE.print(f"budget of {budget['unit']}: {budget['kind']}, {numbers}")
    for warning in public["warnings"]:
        CONSOLE.print(f"note: {warning}")


def _unit_text(unit: dict[str, Any]) -> str:
    """Describe a unit of privacy."""
    if unit["kind"] == "row":
        return f"one row of {', '.join(unit['tables'])}"
    keys = ", ".join(f"{table}.{column}" for table, column in unit["tables"].items())
    return f"all rows with the same {keys}" + (f", within one {unit['every']}" if unit["every"] else "")


@app.command()
def init(
    data: Annotated[list[Path], typer.Argument(help="Parquet or CSV files", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="file to write; by default print the draft")] = None,
    as_json: AsJson = False,
) -> None:
    """Draft a dataset description from data files, with names and types only; the curator fills in every bound."""
    from dither.schema.draft import draft

    text = draft(data)
    if out is not None:
        _write_new(out, text)
        text = f"wrote {out}; fill in every empty entry (the file explains each), then run: dither check {out}"
    typer.echo(json.dumps({"draft": text}) if as_json else text)


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
