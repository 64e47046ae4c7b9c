"""Reference pages made from the code: docs/api.md (also the snapshot of the public API), docs/cli.md,
docs/functions.md, and the table in docs/mechanisms.md.

python tests/house/reference.py --update   write them anew
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import dither
from dither import cli
from dither.post.query.functions import FUNCTIONS
from dither.privacy.mechanisms import BY_NAME

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from house import proofs

ROOT = Path(__file__).resolve().parents[2]
API, CLI, SQL, MECHANISMS = (ROOT / "docs" / name for name in ("api.md", "cli.md", "functions.md", "mechanisms.md"))
MADE = "<!-- from the proof pages, by tests/house/reference.py -->"
UPDATE = "run: python tests/house/reference.py --update"


def signature(thing: Any) -> str:
    """The parameters of a callable as they are written, without quotes around annotations."""
    try:
        text = str(inspect.signature(thing, eval_str=False))
    except (TypeError, ValueError):
        return ""
    plain = re.sub(r"""(: |-> )(['"])(.*?)\2(?=,|\)| =|$)""", r"\1\3", text)
    return re.sub(r"\(self(, )?", "(", plain)


def summary(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines or inherits from Dither, in order of name."""
    for name in sorted(dir(thing)):
        home = next((base for base in thing.__mro__ if name in base.__dict__), object)
        if not name.startswith("_") and home.__module__.startswith("dither"):
            yield name, home.__dict__[name]


def api_lines() -> Iterator[str]:
    """The page of the Python interface."""
    yield "# The Python interface\n"
    yield "Made from the code by `tests/house/reference.py`; a test fails when it is out of date.\n"
    for name in sorted(set(dither.__all__) - {"__version__"}):
        thing = getattr(dither, name)
        if isinstance(thing, type) and issubclass(thing, dither.DitherError):
            yield f"## dither.{name}\n\nAn error, code `{thing.code}`. {summary(thing)}\n"
            continue
        yield f"## dither.{name}\n\n```text\n{name}{signature(thing)}\n```\n\n{summary(thing)}\n"
        if isinstance(thing, type):
            yield from class_lines(thing)


def class_lines(thing: type) -> Iterator[str]:
    """One line for every member of a class that says something of itself."""
    for name, member in members(thing):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isroutine(function) or isinstance(member, property):
            text = name if isinstance(member, property) else f"{name}{signature(function)}"
            yield f"- `.{text}`: {summary(function)}\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its words, deferred ones too."""
    root = typer.main.get_command(cli.app)
    for name in getattr(root, "commands", {}):
        room = cli.COMMANDS.get(name)
        yield from below(name, room.load(name) if room else root.commands[name])  # type: ignore[attr-defined]


def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, or the commands of a group."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
    for name, child in (inner or {}).items():
        yield from below(f"{words} {name}", child)


def cli_lines() -> Iterator[str]:
    """The page of the command line."""
    yield "# The command line\n"
    yield "Made from the code by `tests/house/reference.py`; a test fails when it is out of date.\n"
    yield f"{' '.join((cli.__doc__ or '').splitlines()[2:]).strip()}\n"
    for words, command in commands():
        yield f"## dither {words}\n\n{' '.join((command.help or '').split())}\n"
        for parameter in command.params:
            names = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
            if names != "--help":
                yield f"- `{names}`: {getattr(parameter, 'help', '') or ''}\n"


def function_lines() -> Iterator[str]:
    """The page of SQL functions."""
    yield "# SQL functions\n"
    yield "Made from the code by `tests/house/reference.py`; a test fails when it is out of date.\n"
    yield "| call | value | over answers |\n|---|---|---|"
    for name in sorted(FUNCTIONS):
        each = FUNCTIONS[name]
        yield f"| `{each.usage}` | {each.summary} | {'yes' if each.formula else 'no'} |"
    yield "\nThe last column says whether the function also takes aggregates, as in `ROUND(AVG(age), 1)`."


def mechanism_rows() -> Iterator[str]:
    """The table of mechanisms: what the front lines of their proof pages say."""
    yield "| name | releases | loss | for a budget in rho |\n|---|---|---|---|"
    for name, kind in BY_NAME.items():
        text = (proofs.PAGES / kind.proof).read_text()
        front = {field: re.search(rf"^{field}: (.*)$", text, flags=re.M) for field in ("releases", "loss", "rho")}
        cells = [found[1] if found else f"({field} is missing in {kind.proof})" for field, found in front.items()]
        yield f"| `{name}` | {' | '.join(cells)} |"


def mechanism_lines() -> Iterator[str]:
    """The page of mechanisms, with its table made anew."""
    start = MECHANISMS.read_text().index(MADE) + len(MADE)
    text = MECHANISMS.read_text()
    rest = text[start:].split("\n\n", 1)[1]
    yield text[:start] + "\n" + "\n".join(mechanism_rows()) + "\n\n" + rest.rstrip()


def page(lines: Iterator[str]) -> str:
    """Lines as a page, the bullets of a list close together."""
    return re.sub(r"(^- .*\n)\n(?=- )", r"\1", "\n".join(lines), flags=re.M).rstrip() + "\n"


PAGES = {API: api_lines, CLI: cli_lines, SQL: function_lines, MECHANISMS: mechanism_lines}


def main() -> int:
    """Write the pages, or say which are out of date."""
    stale = [path for path, lines in PAGES.items() if not path.exists() or path.read_text() != page(lines())]
    for path in stale:
        if "--update" in sys.argv[1:]:
            path.write_text(page(PAGES[path]()))
        print(("wrote " if "--update" in sys.argv[1:] else "out of date: ") + str(path.relative_to(ROOT)))
    return 0 if "--update" in sys.argv[1:] or not stale else 1


if __name__ == "__main__":
    raise SystemExit(main())
