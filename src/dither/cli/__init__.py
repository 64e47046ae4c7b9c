"""The command line: errors of one line each, `--json` for every command, and command modules imported on use.

Exit codes: 0 done, 1 failed, 2 bad input, 3 refused because the charge exceeds the budget, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dither import __version__
from dither.errors import BudgetExceeded, Busy, DitherError, EngineFailure, InvalidParameter, InvalidSchema, LedgerError

SOURCE = Path(__file__).resolve().parents[2]
# An address, perhaps after --option=, with a password before its host or among its parameters.
PASSWORD = re.compile(r"(--[\w-]+=)?[a-z][\w+.-]*://([^/?#@]*:[^/?#@]+@|\S*[?&]\w*password=)", re.IGNORECASE)
FAILED, BAD_INPUT, BUDGET_REFUSED, INTERRUPTED = 1, 2, 3, 130


@dataclass(frozen=True)
class CommandEntry:
    """An entry of COMMANDS: the module that defines a command, its help, and the extra that it needs."""

    module: str
    help: str
    extra: str = ""

    def load(self, name: str) -> Any:
        """Import the module and return the command."""
        try:
            group = typer.main.get_command(import_module(self.module).app)
        except ModuleNotFoundError as error:
            if not self.extra or (error.name or "").startswith("dither"):
                raise
            raise DitherError(
                f"'dither {name}' needs the extra '{self.extra}'; run: pip install 'dither[{self.extra}]'"
            ) from None
        return getattr(group, "commands", {}).get(name, group)


COMMANDS = {
    "check": CommandEntry(
        "dither.cli.describe", "Check a dataset description and print the facts that it makes public."
    ),
    "init": CommandEntry(
        "dither.cli.describe", "Draft a dataset description from data files; the curator fills in every bound."
    ),
    "schema": CommandEntry("dither.cli.describe", "Print the JSON Schema of dataset descriptions, for editors."),
    "prepare": CommandEntry(
        "dither.cli.prepare", "Write a snapshot of the records that makes later answers much faster."
    ),
    "profile": CommandEntry(
        "dither.cli.profile", "Measure once, privately, what units contribute; bounds and quotes use it."
    ),
    "demo": CommandEntry("dither.cli.demo", "Run five example queries on a small private dataset."),
    "ask": CommandEntry("dither.cli.ask", "Run a private SQL query and charge the budget."),
    "quote": CommandEntry("dither.cli.ask", "Print the cost and the expected error of a query; free."),
    "explain": CommandEntry("dither.cli.ask", "Explain how a query is answered; free."),
    "datasets": CommandEntry("dither.cli.ask", "List datasets, their tables and the domains of columns."),
    "budget": CommandEntry("dither.cli.ask", "Print the spent and the remaining budget."),
    "history": CommandEntry("dither.cli.ask", "List earlier charges."),
    "statement": CommandEntry(
        "dither.cli.statement", "Print the privacy guarantee, its meaning, its assumptions and its limits."
    ),
    "release": CommandEntry(
        "dither.cli.release", "Write a static table of noisy counts, with its codebook and privacy statement."
    ),
    "meaning": CommandEntry(
        "dither.cli.meaning", "Print the meaning of a privacy loss in numbers, with its epsilon-delta curve."
    ),
    "ledger": CommandEntry("dither.cli.ledger", "Show, verify, back up and restore a ledger."),
    "audit": CommandEntry("dither.cli.audit", "Test mechanisms, samplers, services and the ledger."),
    "serve": CommandEntry("dither.cli.serve", "Start a kernel and a gateway on this machine.", "server"),
    "kernel": CommandEntry("dither.cli.serve", "Run the kernel, which holds the data and the budgets.", "server"),
    "gateway": CommandEntry(
        "dither.cli.serve", "Run the gateway, which serves HTTP requests and the web page.", "server"
    ),
    "curator": CommandEntry("dither.cli.serve", "Administer a kernel through its admin socket.", "server"),
}


class DeferredCommand(TyperGroup):
    """A command whose module is imported only when the command runs."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and build its context."""
        name = self.name or ""
        return COMMANDS[name].load(name).make_context(info_name, args, parent=parent, **extra)


class RootGroup(TyperGroup):
    """The top command: it adds the deferred commands, and turns every error into its lines and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, group in COMMANDS.items():
            if _exists(group.module):
                self.commands[name] = DeferredCommand(name=name, help=group.help)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command; show a traceback only if DITHER_DEBUG is set."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            _check_no_password(arguments)
            return super().main(arguments, *rest, **extra)
        except DitherError as error:
            from dither.cli.options import with_flags

            lines = list(map(str, error.args)) if isinstance(error, InvalidSchema) else [str(error)]
            message = "\n".join(" ".join(with_flags(line).split()) for line in lines)
            exit_with_error(message, error.code, exit_code(error), as_json="--json" in arguments)
        except KeyboardInterrupt:
            exit_with_error("interrupted", "interrupted", INTERRUPTED, as_json="--json" in arguments)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)
        except OSError as error:
            if os.environ.get("DITHER_DEBUG"):
                raise
            where = f"{error.filename}: " if error.filename else ""
            message = f"{where}{error.strerror or type(error).__name__}"
            exit_with_error(message, "system", FAILED, as_json="--json" in arguments)
        except Exception as error:
            if os.environ.get("DITHER_DEBUG"):
                raise
            message = f"internal error ({type(error).__name__}); set DITHER_DEBUG=1 for the traceback"
            exit_with_error(message, "internal", FAILED, as_json="--json" in arguments)


def _check_no_password(arguments: Sequence[str]) -> None:
    """Raise InvalidParameter if an argument is an address that contains a password."""
    if any(PASSWORD.match(word) for word in arguments):
        raise InvalidParameter(
            "leave the password out of the address, because other users can read command-line arguments; give it in "
            "the environment (PGPASSWORD, or the whole address in DITHER_LEDGER or --dsn-env) or in ~/.pgpass"
        )


def _exists(module: str) -> bool:
    """Return True if a module's file exists, without importing the packages around it."""
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py").exists()


def exit_code(error: DitherError) -> int:
    """Return the exit code for an error."""
    match error:
        case BudgetExceeded():
            return BUDGET_REFUSED
        case EngineFailure() | LedgerError() | Busy():
            return FAILED
        case _:
            return BAD_INPUT


def exit_with_error(message: str, code: str, status: int, *, as_json: bool) -> None:
    """Print a line for each line of the message (a mistake of a description) to the error stream and exit."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message}}), file=sys.stderr)
    else:
        print("\n".join(f"error: {line}" for line in message.splitlines()), file=sys.stderr)
    sys.exit(status)


app = typer.Typer(
    cls=RootGroup,
    name="dither",
    help="Query sensitive data under differential privacy.",
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
    """Query sensitive data under differential privacy."""
