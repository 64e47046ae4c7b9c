"""Check that benchmarks start: a script beside them named like a module of Python would be imported in its place."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_no_benchmark_hides_a_module_of_python() -> None:
    """Regression test: `statistics.py` broke every benchmark that takes a median."""
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert len(names) > 5 and not names & set(sys.stdlib_module_names)
