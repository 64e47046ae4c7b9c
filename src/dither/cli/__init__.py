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
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dither import __version__
from dither.errors import BudgetExceeded, Busy, DitherError, EngineFailure, LedgerError

SOURCE = Path(__file__).resolve().parents[2]
FAILED, BAD_INPUT, REFUSED, INTERRUPTED = 1, 2, 3, 130


@dataclass(frozen=True)
class CommandGroup:
    """Commands that live in another room and may need an extra."""

    module: str
    help: str
    extra: str = ""

    def load(self, name: str) -> Any:
        """The command, imported now."""
        try:
            group = typer.main.get_command(import_module(self.module).app)
        except ModuleNotFoundError as error:
            if not self.extra or (error.name or "").startswith("dither"):
                raise
            raise DitherError(f"'dither {name}' needs more: pip install 'dither[{self.extra}]'") from None
        return getattr(group, "commands", {}).get(name, group)


COMMANDS = {
    "check": CommandGroup("dither.cli.describe", "Read a dataset description and print what it makes public."),
    "init": CommandGroup(
        "dither.cli.describe", "Draft a description of data files, leaving every bound to the curator."
    ),
    "schema": CommandGroup("dither.cli.describe", "Print the JSON Schema of dataset descriptions, for editors."),
    "prepare": CommandGroup(
        "dither.cli.prepare", "Write a snapshot of the records that makes later answers much faster."
    ),
    "demo": CommandGroup("dither.cli.demo", "Ask five questions of a small private dataset."),
    "ask": CommandGroup("dither.cli.ask", "Ask a question in SQL; pays what it says."),
    "quote": CommandGroup("dither.cli.ask", "Cost and expected error of a question; free."),
    "explain": CommandGroup("dither.cli.ask", "How a question is understood; free."),
    "datasets": CommandGroup("dither.cli.ask", "What can be asked: datasets, tables, domains of columns."),
    "budget": CommandGroup("dither.cli.ask", "What is left."),
    "history": CommandGroup("dither.cli.ask", "Earlier charges."),
    "statement": CommandGroup("dither.cli.statement", "What the guarantee is, means, rests on and does not promise."),
    "ledger": CommandGroup("dither.cli.ledger", "Show, verify, back up and restore a ledger."),
    "release": CommandGroup("dither.release.cli", "Make a protected table."),
    "audit": CommandGroup("dither.cli.audit", "Test mechanisms, samplers, services and the ledger.", "audit"),
    "serve": CommandGroup("dither.cli.serve", "Start a kernel and a gateway on this machine.", "server"),
    "kernel": CommandGroup("dither.cli.serve", "Hold the data and the budgets; answer typed plans.", "server"),
    "gateway": CommandGroup("dither.cli.serve", "Face the analysts: accounts, SQL, the web page.", "server"),
    "curator": CommandGroup("dither.cli.serve", "Administer a kernel through its own socket.", "server"),
}


class Deferred(TyperGroup):
    """A command whose room is imported only when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        name = self.name or ""
        return COMMANDS[name].load(name).make_context(info_name, args, parent=parent, **extra)


class Root(TyperGroup):
    """The top command: adds the deferred ones, and turns every error into one line and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, room in COMMANDS.items():
            if _exists(room.module):
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


def _exists(module: str) -> bool:
    """Whether a module's file is there; finding it by import would import the rooms around it."""
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py").exists()


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
