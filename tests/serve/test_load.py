"""A short version of benchmarks/load.py: many accounts, kills in between, and everything adds up."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

LOAD = Path(__file__).resolve().parents[2] / "benchmarks" / "load.py"


@pytest.mark.tier("deep")
@pytest.mark.xdist_group("servers")
def test_nothing_is_lost_and_nothing_is_free_under_load(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("load", LOAD)
    assert spec is not None and spec.loader is not None
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    found = load.run(accounts=20, requests=1_000, seconds=90, kills=4, folder=tmp_path)
    print(found)
    assert found["charges"] > 20 and found["kills"] == 4
