"""The layers: the contracts hold, each breaks when it should, and `import dither` stays light."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
    "a driver in post": ("post/__init__.py", "import duckdb", "Postprocessing never reaches"),
    "an engine in post": ("post/__init__.py", "import dither.access.engines", "Postprocessing never reaches"),
    "the kernel in post": ("post/__init__.py", "import dither.privacy.kernel", "Postprocessing never reaches"),
    "noise in access": ("access/__init__.py", "import dither.privacy.noise", "knows no noise"),
    "noise in the kernel": ("privacy/kernel.py", "import dither.privacy.noise", "drawn only by mechanisms"),
    "an engine in the ledger": ("privacy/ledger/rules.py", "import dither.access.engines", "Only the kernel reads"),
    "the kernel in the gateway": ("serve/gateway.py", "import dither.privacy.kernel", "The gateway speaks"),
    "a driver in the gateway": ("serve/gateway.py", "import duckdb", "The gateway speaks"),
    "the auditor in the product": ("privacy/__init__.py", "import dither.audit", "never imports the auditor"),
    "upwards": ("errors.py", "import dither.privacy", "Data flows one way"),
}


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
