"""Options and output shared by commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table as Grid

CONSOLE = Console(highlight=False, soft_wrap=True)
# Shows that something runs, on a terminal only.
PROGRESS = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def compose_command(command: Callable[..., None], **builders: Callable[..., Any]) -> Callable[..., None]:
    """Replace parameters of a command by those of their builders, such as `session` by the options that open one.

    The result calls each builder with its own parameters, and then the command with what they built.
    """
    owners = {part.name: name for name, build in builders.items() for part in _parameters(build)}

    @wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: build(**{part: given.pop(part) for part, owner in owners.items() if owner == name})
            for name, build in builders.items()
        }
        command(**built, **given)

    parts = [
        part
        for own in _parameters(command)
        for part in (_parameters(builders[own.name]) if own.name in builders else [own])
    ]
    # Arguments, which have no default, come first (0), then the command's options (1), then those of the session (2).
    parts.sort(key=lambda part: part.default is not Parameter.empty and 1 + (owners.get(part.name) == "session"))
    run.__signature__ = signature(command).replace(parameters=parts)  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in parts}
    del run.__wrapped__
    return run


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return a function's parameters as keyword-only parameters with evaluated annotations."""
    hints = get_type_hints(function, include_extras=True)
    return [
        part.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, part in signature(function).parameters.items()
    ]


def with_flags(message: str) -> str:
    """Write the options that a message names in Python's form, such as max_error=, as those of the command line.

    >>> with_flags("max_contributions='20,report' estimates that")
    '--max-contributions 20,report estimates that'
    >>> with_flags("max_error= does not go with delta=: give epsilon= or rho=")
    '--max-error does not go with --delta: give --epsilon or --rho'
    """
    from dither.post.options import OPTIONS

    named = rf"(?<![\w-])({'|'.join(OPTIONS)})=(?![\w'\"{{.-])"
    bound = re.sub(r"(?<![\w-])max_contributions='([\w,=]+)'", r"--max-contributions \1", message)
    return re.sub(named, lambda found: "--" + found[1].replace("_", "-"), bound)


def text_table(table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> Grid:
    """Return a table for the terminal, from its head and its rows."""
    head, rows = table
    grid = Grid(*head)
    for row in rows:
        grid.add_row(*row)
    return grid


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))
