"""Tiers choose what is run, and a missing service is never passed over in silence where all are required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """\
import pytest
from conftest import require

def test_always(tier): assert tier.pick(quick=1, test=2, deep=3) in (1, 2, 3)

@pytest.mark.tier("test")
def test_longer(): pass

@pytest.mark.tier("deep")
def test_longest(): pass

def test_service(): require(False, "no such service")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    tier(name): x\n")
    return tmp_path


def outcome(folder: Path, tier: str, *, all_required: bool) -> tuple[int, str]:
    required = "1" if all_required else "0"
    environment = {**os.environ, "DITHER_REQUIRE_ALL": required, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "-p", "no:cacheprovider", "--tier", tier, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.tier("test")
@pytest.mark.parametrize(("tier", "passed"), [("quick", 1), ("test", 2), ("deep", 3)])
def test_a_tier_runs_itself_and_those_below(folder: Path, tier: str, passed: int) -> None:
    status, out = outcome(folder, tier, all_required=False)
    assert status == 0 and f"{passed} passed" in out and "1 skipped" in out and "no such service" in out


def test_a_missing_service_fails_where_all_are_required(folder: Path) -> None:
    status, out = outcome(folder, "quick", all_required=True)
    assert status == 1 and "required, but missing: no such service" in out
