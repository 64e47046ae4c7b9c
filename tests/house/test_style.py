"""ruff, budgets of lines, and a few habits that no tool checks; mypy is a part of `make lint`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dither"
# Code lines that each trusted room may have, without imports; raising one is a dated decision in docs/design.md.
TRUSTED = {
    "plan": (3805, ("plan",)),
    "access": (1635, ("access",)),
    "bits, noise, mechanisms": (1190, ("privacy/bits.py", "privacy/noise", "privacy/mechanisms")),
    "loss, accounting, amplification": (540, ("loss.py", "privacy/accounting", "privacy/amplification.py")),
    "protocol, codec": (415, ("privacy/protocol.py", "privacy/codec.py")),
    "kernel, cost, registration, contribution_bound, search_rules, pacing, private_log": (
        1255,
        (
            "privacy/kernel.py",
            "privacy/kernel_datasets.py",
            "privacy/kernel_views.py",
            "privacy/receipted_read.py",
            "privacy/cost.py",
            "privacy/budget_loss.py",
            "privacy/plan_facts.py",
            "privacy/request_checks.py",
            "privacy/sql_size.py",
            "privacy/registration.py",
            "privacy/contribution_bound.py",
            "privacy/search_rules.py",
            "privacy/pacing.py",
            "privacy/private_log.py",
        ),
    ),
    "staging, table_release": (360, ("privacy/staging.py", "privacy/table_release.py")),
    "ledger": (1685, ("privacy/ledger",)),
    "also in the kernel's process: schema": (1180, ("schema",)),
    "also in the kernel's process: serve/kernel": (760, ("serve/kernel",)),
    "also in the kernel's process: serve/transport": (395, ("serve/transport",)),
}
ENGINE = 300


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff(arguments: tuple[str, ...]) -> None:
    result = run("ruff", *arguments, ".")
    assert result.returncode == 0, result.stdout + result.stderr


def habits(source: str, *, allow_local_imports: bool = False) -> list[str]:
    """Breaches of house habits in one module: asserts, relative or function-local imports, NotImplementedError."""
    found = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Assert():
                found.append(f"{node.lineno}: assert")
            case ast.ImportFrom(level=level) if level:
                found.append(f"{node.lineno}: relative import")
            case ast.Name(id="NotImplementedError"):
                found.append(f"{node.lineno}: NotImplementedError")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not allow_local_imports:
                inner = (child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom))
                found += [f"{child.lineno}: import inside a function" for child in inner]
    marks = "|".join(("TO" + "DO", "FIX" + "ME"))
    found += [f"{number}: unfinished" for number, line in enumerate(source.splitlines(), 1) if re.search(marks, line)]
    return found


# Optional extras and engines are imported when they are used; each file here is one of those places.
LOCAL_IMPORTS = (
    "cli/",
    "access/engines/",
    "audit/",
    "serve/",
    "connection.py",
    "post/",
    "privacy/kernel",
    "privacy/ledger",
)


def test_habits() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if breaches := habits(path.read_text(), allow_local_imports=name.startswith(LOCAL_IMPORTS)):
            found[name] = breaches
    assert found == {}


def test_breaches_are_seen() -> None:
    source = "from . import a\ndef f():\n    import os\n    assert True\n    raise NotImplementedError\n"
    assert [breach.split(": ")[1] for breach in sorted(habits(source))] == [
        "relative import", "import inside a function", "assert", "NotImplementedError",
    ]  # fmt: skip


def code_lines(source: str) -> int:
    """Lines of code, without blanks, comments, docstrings and imports."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for number, line in lines if number not in texts and line.strip() and not line.strip().startswith("#"))


def room_files(patterns: tuple[str, ...]) -> set[Path]:
    paths = [SOURCE / pattern for pattern in patterns]
    return {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}


def room_lines(patterns: tuple[str, ...]) -> int:
    return sum(code_lines(file.read_text()) for file in room_files(patterns))


def test_code_lines_count_code_only() -> None:
    assert (
        code_lines('"""Doc."""\n\nimport os\n\n# why\nx = 1\ndef f():\n    """Doc\n    more."""\n    return 2\n') == 3
    )


def test_the_trusted_rooms_keep_to_their_budgets() -> None:
    sizes = {room: (room_lines(patterns), budget) for room, (budget, patterns) in TRUSTED.items()}
    sizes |= {
        f"engine {path.stem}": (code_lines(path.read_text()), ENGINE)
        for path in (SOURCE / "access/engines").glob("*.py")
        if path.stem != "__init__"
    }
    for room, (lines, budget) in sizes.items():
        print(f"{room}: {lines} lines of {budget}")
    assert {room: size for room, size in sizes.items() if size[0] > size[1]} == {}


def test_every_file_of_privacy_is_in_a_budget() -> None:
    counted = {file for _, patterns in TRUSTED.values() for file in room_files(patterns)}
    assert set((SOURCE / "privacy").rglob("*.py")) - counted == {SOURCE / "privacy" / "__init__.py"}
