"""Test the demonstration: five queries, one of them refused, and a second run that costs nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dither.cli import app


def demo(directory: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["demo", "--directory", str(directory), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def test_five_questions_and_what_they_cost(directory: Path) -> None:
    shown = demo(directory)
    for number in range(1, 6):
        assert f"Question {number}." in shown
    assert shown.count("]") >= 1 + 6 + 9 + 5 and shown.count("cost: epsilon") == 4
    assert "refused: the dataset has epsilon 1.39 left" in shown and "Next steps" in shown
    assert "2.61" in shown  # 0.01 for the private size, 0.1 + 1 + 0.5 + 1 for the answers


def test_a_second_run_finds_the_answers_of_the_first(directory: Path) -> None:
    first, second = (json.loads(demo(directory, "--json")) for _ in range(2))
    assert [asked.get("rows") for asked in first] == [asked.get("rows") for asked in second]
    assert "refused" in second[4]
    assert demo(directory).count("cost: nothing") == 4


def test_the_first_answers_are_near_the_truth(directory: Path) -> None:
    asked = json.loads(demo(directory, "--json"))
    # Discrete Laplace of scale 10: |error| > 300 has probability below 1e-12.
    assert abs(asked[0]["rows"][0]["people"] - 20_000) < 300
    assert [row["action"] for row in asked[1]["rows"]] == ["view", "click", "share", "like", "comment", "report"]
    assert len(asked[2]["rows"]) == 9 and len(asked[3]["rows"]) == 5


def test_a_folder_that_nothing_names_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: `dither demo --json` left its data behind, in a folder that it did not name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = json.loads(CliRunner().invoke(app, ["demo", "--json"]).stdout)
    assert len(asked) == 5 and not list(tmp_path.glob("dither-demo-*"))
