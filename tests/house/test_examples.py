"""The examples of README and docs run, and print what they show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from house import examples

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if list(examples.blocks(page.read_text()))]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has after cloning: the examples, and nothing made yet; ledgers go to a home of their own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.tier("test")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, workspace: Path) -> None:
    assert examples.run_page(page, workspace) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```python\nprint(1 / 0)\n```\n", "ZeroDivisionError"),
        ("```python\nprint('a 17')\n```\n\n```text\nb 18\n```\n", "and not"),
        ("```console\n$ make nothing\n```\n", "no target nothing"),
        ("```console\n$ dither check nowhere.yml\n```\n", "ended with 2"),
        ("```console\n$ dither --version\nsomething else\n```\n", "and not"),
        ("```console\n$ rm -rf x\n```\n", "cannot check"),
    ],
)
def test_a_wrong_example_is_seen(page: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    assert any(problem in found for found in examples.run_page(tmp_path / "page.md", tmp_path))


def test_numbers_and_table_lines_do_not_count(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('views | 314,222 ± 12')\n```\n\n```text\nviews  │ -3.5 ± 1,000\n```\n")
    assert examples.run_page(page, tmp_path) == []
