"""The layers: the contracts hold, each breaks when it should, and `import dither` stays light."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "duckdb",
    "scipy",
    "pyspark",
    "numpy",
    "pyarrow",
    "sqlglot",
    "starlette",
    "fastapi",
    "uvicorn",
    "psycopg",
    "yaml",
)

# (file to change, line to add, words of the contract that must break)
BREACHES = {
    "upwards": ("errors.py", "import dither.privacy", "Imports point down"),
    "upwards in plan": ("plan/domains.py", "import dither.plan.relations", "Inside plan"),
    "upwards in privacy": ("privacy/bits.py", "import dither.privacy.kernel", "Inside privacy"),
    "upwards in post": ("post/query/spend.py", "import dither.post.estimate.answer", "Inside post"),
    "upwards in serve": ("serve/transport/rpc.py", "import dither.serve.gateway.jobs", "Inside serve"),
    "a driver in post": ("post/__init__.py", "import duckdb", "Postprocessing and the gateway"),
    "an engine in post": ("post/__init__.py", "import dither.access.engines", "Postprocessing and the gateway"),
    "the kernel in post": ("post/__init__.py", "import dither.privacy.kernel", "Postprocessing and the gateway"),
    "the ledger in the gateway": (
        "serve/gateway/app.py", "import dither.privacy.ledger", "Postprocessing and the gateway",
    ),
    "a driver in the gateway": ("serve/gateway/app.py", "import duckdb", "Postprocessing and the gateway"),
    "post in the kernel": ("serve/kernel/admin.py", "import dither.post.session", "The kernel's process loads nothing"),
    "answers in the kernel": ("serve/kernel/process.py", "import dither.views.answers", "The kernel's process loads"),
    "noise in access": ("access/__init__.py", "import dither.privacy.noise", "knows no noise"),
    "noise in plan": ("plan/__init__.py", "import dither.privacy.noise", "knows no noise"),
    "the auditor in the product": ("privacy/__init__.py", "import dither.audit", "never imports the auditor"),
}  # fmt: skip

# What only the named files may import, whatever files there are: (modules, who may)
RESERVED = {
    "engines are opened by the kernel, the prepare command and the auditor": (
        ("dither.access.engines",),
        (
            "access/",
            "privacy/kernel.py",
            "privacy/kernel_datasets.py",
            "privacy/receipted_read.py",
            "privacy/table_release.py",
            "cli/prepare.py",
            "audit/",
        ),
    ),
    "noise is drawn by mechanisms": (("dither.privacy.noise",), ("privacy/noise/", "privacy/mechanisms/", "audit/")),
    "drivers are imported by engines": (
        ("duckdb", "pyspark"),
        ("access/",),
    ),
    "the library of mechanisms, which charges nothing, is for programs outside": (
        ("dither.mechanisms",),
        ("mechanisms.py",),
    ),
}


@cache
def imported_names(source: str) -> set[str]:
    """Every module that a source text names in an import, at any depth, or as text handed to import_module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{each.name}" for each in names)}
            case ast.Constant(value=str(text)) if re.fullmatch(r"dither(\.\w+)+", text):
                found.add(text)
    return found


def trespassers(modules: tuple[str, ...], allowed: tuple[str, ...], source: Path) -> list[str]:
    """Files outside `allowed` that import one of the modules."""
    wanted = tuple(f"{module}." for module in modules)
    return [
        name
        for path in sorted(source.rglob("*.py"))
        if not (name := path.relative_to(source).as_posix()).startswith(allowed)
        and any(f"{each}.".startswith(wanted) for each in imported_names(path.read_text()))
    ]


@pytest.mark.parametrize("rule", RESERVED)
def test_reserved_modules_are_imported_where_they_may_be(rule: str) -> None:
    assert trespassers(*RESERVED[rule], ROOT / "src" / "dither") == []


@pytest.mark.parametrize("rule", RESERVED)
@pytest.mark.parametrize("form", ["import {}", "def f():\n    from {} import x", "m = import_module('{}')"])
def test_a_new_file_that_trespasses_is_seen(rule: str, form: str, tmp_path: Path) -> None:
    modules, allowed = RESERVED[rule]
    if "import_module" in form and not modules[0].startswith("dither"):
        form = "import {}"
    (tmp_path / "post").mkdir()
    (tmp_path / "post" / "new.py").write_text(form.format(modules[0]) + "\n")
    assert trespassers(modules, allowed, tmp_path) == ["post/new.py"]


LOGGERS = ("dither.public", "dither.private")


def test_no_import_hides_in_a_text() -> None:
    """The linter does not see modules named in strings: only tables of lazily imported names may hold them."""
    tables = ("__init__.py", "audit/__init__.py", "cli/__init__.py", "access/engines/__init__.py")
    hidden = {
        name: texts
        for path in sorted((ROOT / "src" / "dither").rglob("*.py"))
        if (name := path.relative_to(ROOT / "src" / "dither").as_posix()) not in tables
        and (
            texts := [
                t for t in string_constants(path.read_text()) if re.fullmatch(r"dither(\.\w+)+", t) and t not in LOGGERS
            ]
        )
    }
    assert hidden == {}


def string_constants(source: str) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def lint(where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {"PYTHONPATH": str(where / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(
        [*command, "--no-cache"], cwd=where, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", where / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", where)
    return where


def test_the_contracts_hold(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.tier("test")
@pytest.mark.parametrize("breach", BREACHES)
def test_each_contract_breaks_when_it_should(breach: str, copy: Path) -> None:
    file, line, contract = BREACHES[breach]
    path = copy / "src" / "dither" / file
    assert path.exists(), f"{file} does not exist; the contract about it protects nothing"
    text = path.read_text()
    path.write_text(f"{text}\n{line}\n")
    try:
        result = lint(copy)
    finally:
        path.write_text(text)
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(contract in row and "BROKEN" in row for row in result.stdout.splitlines()), result.stdout


def test_every_file_of_post_is_watched(copy: Path) -> None:
    """`import duckdb` in any file of post/ breaks a contract: tried on the last file, by name, of the room."""
    path = sorted((copy / "src/dither/post").rglob("*.py"))[-1]
    text = path.read_text()
    path.write_text(text + "\nimport duckdb\n")
    try:
        assert lint(copy).returncode == 1
    finally:
        path.write_text(text)


def import_graph(source: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports when it is loaded."""
    files = {
        ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    return {name: loaded_modules(path.read_text(), set(files)) - {name} for name, path in files.items()}


def loaded_modules(source: str, known: set[str]) -> set[str]:
    """The known modules that the statements at the top of a file import; those for type checkers do not count."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {f"{module}.{each.name}" if f"{module}.{each.name}" in known else module for each in names}
    return found & known


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that import each other in a circle: what each reaches and is reached by."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in graph if other in reach[name] and name in reach[other]) for name in graph}
    return [set(group) for group in groups if group]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    pending = list(graph[start])
    while pending:
        if (name := pending.pop()) not in found:
            found.add(name)
            pending += graph[name]
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A package counts as the modules that its `__init__` loads: those may not load the package again."""
    graph = import_graph(ROOT / "src" / "dither")
    assert len(graph) > 200
    assert cycles(graph) == []


def test_a_circle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def test_import_dither_is_light() -> None:
    code = (
        "import sys, resource; import dither; "
        "usage = resource.getrusage(resource.RUSAGE_SELF); print(usage.ru_utime + usage.ru_stime); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, loaded = result.stdout.splitlines()
    assert loaded == "[]"
    assert float(seconds) < 0.5  # CPU time of the whole process, not wall time


def test_windows_is_refused_clearly() -> None:
    code = "import sys; sys.platform = 'win32'\ntry:\n    import dither\nexcept ImportError as error:\n    print(error)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "does not run on Windows" in result.stdout
