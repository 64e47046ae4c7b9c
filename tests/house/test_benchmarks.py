"""Check that benchmarks start: a script beside them named like a module of Python would be imported in its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
DOCS = FOLDER.parent / "docs"


def test_the_page_of_benchmarks_names_each_and_every_record() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"run", "queries"}  # queries.py is `make bench-peers`
    assert {name for name in programs if f"{name}.py" not in page} == set()
    records = set(re.findall(r"\(records/(\w+)\.md\)", page))
    assert records == {path.stem for path in (DOCS / "records").glob("*.md")}


def test_no_benchmark_hides_a_module_of_python() -> None:
    """Regression test: `statistics.py` broke every benchmark that takes a median."""
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert len(names) > 5 and not names & set(sys.stdlib_module_names)
