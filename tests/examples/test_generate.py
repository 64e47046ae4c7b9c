"""Test the demonstration data: deterministic, heavy-tailed, inside its description, and written in pieces."""

from __future__ import annotations

import hashlib
import resource
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dither.schema import Category, Moment, Number, load

HOME = Path(__file__).resolve().parents[2] / "examples" / "url_shares"
NAMES = ("urls", "users", "actions")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(HOME / "generate.py"))


@pytest.fixture(scope="module")
def made(script: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where: Path = tmp_path_factory.mktemp("made")
    script["generate"](where, 2_000, 100, 20.0, 0, quiet=True)
    return where


def digests(where: Path) -> list[str]:
    return [hashlib.sha256((where / f"{name}.parquet").read_bytes()).hexdigest() for name in NAMES]


def test_the_same_size_gives_the_same_files(script: dict[str, Any], made: Path, tmp_path: Path) -> None:
    script["generate"](tmp_path / "again", 2_000, 100, 20.0, 0, quiet=True)
    script["generate"](tmp_path / "other", 2_000, 100, 20.0, 1, quiet=True)
    assert digests(tmp_path / "again") == digests(made) != digests(tmp_path / "other")


def test_activity_is_heavy_tailed(made: Path) -> None:
    rows = np.bincount(pq.read_table(made / "actions.parquet")["user_id"].to_numpy(), minlength=2_001)[1:]
    assert np.median(rows) < 12 < 15 < rows.mean() < 30 and rows.max() > 300
    assert np.sort(rows)[-200:].sum() > 0.4 * rows.sum()


def test_records_lie_inside_their_description(made: Path) -> None:
    dataset = load(HOME / "dataset.yml")
    for name in NAMES:
        table = pq.read_table(made / f"{name}.parquet")
        assert table.column_names == list(dataset.tables[name].columns)
        for column in dataset.tables[name].columns.values():
            values = table[column.name]
            match column.domain:
                case Category(values=allowed):
                    assert set(values.unique().to_pylist()) <= set(allowed)
                case Number(lo=lo, hi=hi):
                    assert lo <= min(values.to_pylist()) and max(values.to_pylist()) <= hi
                case Moment(lo=lo, hi=hi):
                    micros = values.to_numpy().astype("datetime64[us]").astype(np.int64)
                    assert lo <= micros.min() and micros.max() <= hi
                case _:
                    assert values.null_count == 0


@pytest.mark.tier("deep")
def test_memory_does_not_grow_with_the_size(tmp_path: Path) -> None:
    peaks = []
    for people in (200_000, 1_000_000):
        command = [sys.executable, HOME / "generate.py", "--users", str(people), "--out", tmp_path / "d", "--quiet"]
        subprocess.run(command, check=True, capture_output=True)
        peaks.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    assert peaks[1] < 1.3 * peaks[0]


def test_new_people_have_their_whole_budget(tmp_path: Path) -> None:
    """Data for another folder leave the ledger of the example as it is."""
    copy, ledger = tmp_path / "generate.py", tmp_path / "dataset.ledger"
    copy.write_text((HOME / "generate.py").read_text())
    command = [sys.executable, str(copy), "--users", "50", "--quiet"]
    assert "removed" not in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for file in (ledger, tmp_path / "dataset.ledger-wal"):
        file.write_text("earlier people")
    elsewhere = subprocess.run([*command, "--out", str(tmp_path / "x")], check=True, capture_output=True, text=True)
    assert "removed" not in elsewhere.stdout and ledger.exists()
    assert "removed the ledger" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert not list(tmp_path.glob("dataset.ledger*")) and (tmp_path / "data" / "users.parquet").exists()
