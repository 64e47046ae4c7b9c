"""Spark in other processes: a standalone cluster of two workers, and Spark Connect, give DuckDB's integers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import plan.worlds as worlds
from access.other_process import vectors
from access.test_spark import ROWS

TESTS = Path(__file__).parents[1]
MOST_SECONDS = 900

pytestmark = pytest.mark.tier("deep")


def answered(where: str, path: Path, address: str, plans: int) -> dict[str, Any]:
    """What a program of its own found there."""
    command = [sys.executable, "-m", "access.other_process", where, str(path), address, str(plans)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def here(tmp_path: Path) -> list[list[int]]:
    engine = worlds.engine(tmp_path, worlds.USER, worlds.ACTION, worlds.MONTH, **ROWS)
    found = vectors(engine)
    engine.close()
    return found


def test_a_cluster_of_two_workers_gives_the_same_integers(
    tier: Any, tmp_path: Path, here: list[list[int]], spark_cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered("cluster", tmp_path, spark_cluster.url, tier.pick(quick=5, test=5, deep=20))
    with capsys.disabled():
        print(f"\n  tests/access: two workers: {found['plans']} plans x {found['neighbours']} neighbours, 0 violations")
    assert found["vectors"] == here
    assert len(found["workers"]) == 2


def test_spark_connect_gives_the_same_integers(
    tier: Any, tmp_path: Path, here: list[list[int]], spark_connect: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered("connect", tmp_path, spark_connect, tier.pick(quick=5, test=5, deep=20))
    with capsys.disabled():
        print(f"\n  tests/access: Connect: {found['plans']} plans x {found['neighbours']} neighbours, 0 violations")
    assert found["vectors"] == here
    assert "connect" in found["session"]
