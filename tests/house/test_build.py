"""The wheel: it holds what it must and nothing else, and works in an empty environment outside the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from house import try_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", where, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return try_wheel.newest_wheel(where)


@pytest.mark.tier("test")
def test_the_wheel_holds_what_it_must(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"dither/py.typed", "dither/examples/url_shares/dataset.yml"}
    wanted |= {f"dither/proofs/{page.name}" for page in (ROOT / "src/dither/proofs").glob("*.md")}
    assert wanted <= names
    strangers = [name for name in names if not name.startswith(("dither/", "dither-"))]
    assert strangers == [] and not any(name.endswith((".parquet", ".duckdb", ".pyc")) for name in names)


@pytest.mark.tier("deep")
def test_the_wheel_works_in_an_empty_environment(wheel: Path) -> None:
    assert "question 5" in try_wheel.try_wheel(wheel).lower()
