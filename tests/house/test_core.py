"""What a plain installation imports is what a plain installation brings."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dither"
# Rooms of extras: they are imported when asked for, with their own dependencies.
EXTRA = ("audit", "serve", "access/engines/postgres.py", "access/engines/spark.py")
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
