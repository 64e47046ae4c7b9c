"""docs/conformance.md against the list of demands: each is done, by code and a test that exist, or says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
DEMANDS = range(1, 50)
STATES = ("done", "not yet")


@dataclass(frozen=True)
class Row:
    """One demand: its number, words, state, what does it and what shows it."""

    number: int
    demand: str
    state: str
    does: str
    shows: str


def rows(text: str) -> list[Row]:
    """The rows of the page's table."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            found.append(Row(int(cells[0]), *(cells[1:] + [""] * 4)[:4]))
    return found


def problems(text: str) -> list[str]:
    """Everything that the page says and that is not so."""
    table = rows(text)
    numbers = [row.number for row in table]
    found = [f"{number} is missing" for number in DEMANDS if number not in numbers]
    found += [f"{number} is there twice" for number in set(numbers) if numbers.count(number) > 1]
    found += [f"{number} is not on the list" for number in numbers if number not in DEMANDS]
    for row in table:
        found += [f"{row.number}: {problem}" for problem in row_problems(row)]
    return found


def row_problems(row: Row) -> Iterator[str]:
    """What is wrong with one row."""
    if row.state not in STATES:
        yield f"the state {row.state!r} is none of {', '.join(STATES)}"
    if len(row.demand) < 10:
        yield "the demand is not said"
    if row.state == "not yet" and len(row.does) < 10:
        yield "'not yet' needs a reason in the column of what does it"
    if row.state == "done":
        yield from reference_problems(row)


def reference_problems(row: Row) -> Iterator[str]:
    """Names that a finished row gives and that do not exist, or are not given."""
    code, tests = re.findall(r"`([^`]+)`", row.does), re.findall(r"`([^`]+)`", row.shows)
    if not code:
        yield "done by nothing: name a `module` or `module:Name`"
    if not tests:
        yield "shown by nothing: name a `tests/file.py` or `tests/file.py::test_name`"
    yield from (f"there is no {name}" for name in code if not code_exists(name))
    yield from (f"there is no test {name}" for name in tests if not test_exists(name))


def code_exists(name: str) -> bool:
    """Whether a module, or a name in it, or a file of the project exists."""
    if "/" in name:
        return (ROOT / name).exists()
    module, _, inner = name.partition(":")
    base = ROOT.joinpath("src", *module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return path.exists() and (not inner or defines(path, inner) or any(defines(p, inner) for p in folder(base)))


def folder(base: Path) -> Iterator[Path]:
    """The files of a package, since a name may live in any of them."""
    return base.rglob("*.py") if base.is_dir() else iter(())


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a class or function; dots reach methods."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        node = next((node for node in body if getattr(node, "name", None) == part), None)
        if node is None:
            return False
        body = getattr(node, "body", [])
    return True


def test_exists(name: str) -> bool:
    """Whether a test file, or a test in it, exists."""
    file, _, test = name.partition("::")
    path = ROOT / file
    if not path.is_file() or not path.name.startswith("test_"):
        return False
    return not test or defines(path, test.replace("::", "."))


test_exists.__test__ = False  # type: ignore[attr-defined]
