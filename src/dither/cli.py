"""The command line: one-line errors, `--json` everywhere, and commands of other rooms imported when they are used.

Exit codes: 0 done, 1 failed, 2 bad input, 3 refused for want of budget, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from typer.core import TyperGroup

from dither import __version__
from dither.errors import BudgetExceeded, Busy, DitherError, EngineFailure, InvalidParameter, LedgerError
from dither.schema import load
from dither.schema.facts import facts, warnings
from dither.schema.shapes import json_schema

FAILED, BAD_INPUT, REFUSED, INTERRUPTED = 1, 2, 3, 130


@dataclass(frozen=True)
class Room:
    """Commands that live in another room and may need an extra."""

    module: str
    help: str
    extra: str

    def load(self, name: str) -> Any:
        """The command, imported now."""
        try:
            group = typer.main.get_command(import_module(self.module).app)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("dither"):
                raise
            raise DitherError(f"'dither {name}' needs more: pip install 'dither[{self.extra}]'") from None
        return getattr(group, "commands", {}).get(name, group)


ROOMS = {
    "audit": Room("dither.audit.cli", "Test mechanisms, samplers, services and the ledger.", "audit"),
    "kernel": Room("dither.serve.cli", "Hold the data and the budgets; answer typed plans.", "server"),
    "gateway": Room("dither.serve.cli", "Face the analysts: accounts, SQL, the web page.", "server"),
    "serve": Room("dither.serve.cli", "Start a kernel and a gateway on this machine.", "server"),
    "curator": Room("dither.serve.cli", "Administer a kernel through its own socket.", "server"),
}


class Deferred(TyperGroup):
    """A command whose room is imported only when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        name = self.name or ""
        return ROOMS[name].load(name).make_context(info_name, args, parent=parent, **extra)


class Root(TyperGroup):
    """The top command: adds the deferred ones, and turns every error into one line and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, room in ROOMS.items():
            if find_spec(room.module):
                self.commands[name] = Deferred(name=name, help=room.help)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, and never show a traceback unless DITHER_DEBUG is set."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            return super().main(given, *rest, **extra)
        except DitherError as error:
            fail(str(error), error.code, exit_code(error), as_json="--json" in given)
        except KeyboardInterrupt:
            fail("interrupted", "interrupted", INTERRUPTED, as_json="--json" in given)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)
        except Exception as error:
            if os.environ.get("DITHER_DEBUG"):
                raise
            message = f"internal error ({type(error).__name__}); DITHER_DEBUG=1 shows where"
            fail(message, "internal", FAILED, as_json="--json" in given)


def exit_code(error: DitherError) -> int:
    """What a script may tell apart."""
    match error:
        case BudgetExceeded():
            return REFUSED
        case EngineFailure() | LedgerError() | Busy():
            return FAILED
        case _:
            return BAD_INPUT


def fail(message: str, code: str, status: int, *, as_json: bool) -> None:
    """Print one line to the error stream and leave."""
    line = " ".join(message.split())
    text = json.dumps({"error": {"code": code, "message": line}}) if as_json else f"error: {line}"
    print(text, file=sys.stderr)
    sys.exit(status)


app = typer.Typer(
    cls=Root,
    name="dither",
    help="Ask questions of sensitive data under differential privacy.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False, soft_wrap=True)

Description = Annotated[Path, typer.Argument(help="a dataset description, dataset.yml", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"dither {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Ask questions of sensitive data under differential privacy."""


@app.command()
def check(description: Description, as_json: AsJson = False) -> None:
    """Read a dataset description and print what it makes public."""
    dataset = load(description)
    public = facts(dataset) | {"warnings": list(warnings(dataset))}
    if as_json:
        typer.echo(json.dumps(public, indent=2, ensure_ascii=False))
        return
    _print_facts(public)


def _print_facts(public: dict[str, Any]) -> None:
    console.print(f"{public['name']}: everything below becomes public")
    for name, table in public["tables"].items():
        grid = Grid(
            "column", "values", title=f"{name} ({'private' if table['private'] else 'public'}, {table['source']})"
        )
        for column, text in table["columns"].items():
            grid.add_row(column + (" (unique)" if column == table["unique"] else ""), text)
        console.print(grid)
    for name, unit in public["units"].items():
        console.print(f"unit {name}: {_unit_text(unit)}")
    for budget in public["budgets"]:
        numbers = ", ".join(f"{key} {value}" for key, value in budget.items() if key not in ("unit", "kind"))
        console.print(f"budget of {budget['unit']}: {budget['kind']}, {numbers}")
    for warning in public["warnings"]:
        console.print(f"note: {warning}")


def _unit_text(unit: dict[str, Any]) -> str:
    if unit["kind"] == "row":
        return f"one row of {', '.join(unit['tables'])}"
    keys = ", ".join(f"{table}.{column}" for table, column in unit["tables"].items())
    return f"all rows with the same {keys}" + (f", within one {unit['every']}" if unit["every"] else "")


@app.command()
def init(
    data: Annotated[list[Path], typer.Argument(help="Parquet or CSV files", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="where to write; printed unless given")] = None,
    as_json: AsJson = False,
) -> None:
    """Draft a description of data files: names and types only; every bound is the curator's to decide."""
    from dither.schema.draft import draft

    text = draft(data)
    if out is not None:
        _write_new(out, text)
        text = f"wrote {out}; decide every empty entry (the file says why they are empty), then: dither check {out}"
    typer.echo(json.dumps({"draft": text}) if as_json else text)


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise InvalidParameter(f"{path} cannot be written: {error.strerror}") from None


@app.command()
def schema(as_json: AsJson = True) -> None:
    """Print the JSON Schema of dataset descriptions, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))
