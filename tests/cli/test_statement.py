"""Test the statement: units, the meaning of a budget, groups, the privacy curve, assumptions and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from dither.cli import app

DATASET = """\
version: 1
name: visits
tables:
  visits:
    private: true
    source: {kind: parquet, path: visits.parquet}
    columns:
      person: {type: identifier, kind: integer}
units:
  person: {kind: user, keys: {visits: person}}
  visit: {kind: row, tables: [visits]}
budgets:
  - {unit: person, kind: pure, epsilon: 1}
  - {unit: visit, kind: zcdp, rho: 1/100}
"""


@pytest.fixture
def description(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"person": [1, 1, 2]}), tmp_path / "visits.parquet")
    (tmp_path / "dataset.yml").write_text(DATASET)
    return tmp_path / "dataset.yml"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_numbers_of_a_statement(description: Path) -> None:
    data = json.loads(run("statement", str(description), "--json"))
    person, visit = data["guarantees"]
    # e^1 times 1%, and 5% of 1 - e^-1 (1 - a): the paper's bound and its other half.
    assert person["tests"][0] == {"false_alarms": "1%", "power_at_most": "2.72%"}
    assert person["groups"][3] == {"units": 10, "loss": "epsilon 10"}
    assert visit["groups"][1] == {"units": 2, "loss": "rho 0.04"}
    assert [row["delta"] for row in visit["curve"]] == ["0.001", "1e-6", "1e-9"]
    epsilons = [float(row["epsilon"]) for row in visit["curve"]]
    assert epsilons == sorted(epsilons) and 0.6 < epsilons[1] < 0.8


def test_a_statement_names_its_units_and_its_limits(description: Path) -> None:
    shown = run("statement", str(description))
    for words in (
        "unit person: all rows of one person",
        "unit visit: one row",
        "Assumptions:",
        "Limits of the guarantee:",
    ):
        assert words in shown


def test_a_statement_can_be_published_as_markdown_and_html(description: Path) -> None:
    text = run("statement", str(description), "--format", "markdown")
    assert text.startswith("# Privacy statement of visits") and "| 1% | 2.72% |" in text
    assert "**unit of privacy**" in text and "not protected here" in text
    page = run("statement", str(description), "--format", "html")
    assert page.startswith("<!doctype html>") and "<td>2.72%</td>" in page


def test_a_statement_as_yaml_has_the_fields_of_the_registry(description: Path) -> None:
    data = yaml.safe_load(run("statement", str(description), "--format", "yaml"))
    deployment = data["deployment"]
    assert set(deployment) == {
        "product", "dp_flavor", "privacy_loss", "model", "accounting", "implementation", "resources",
    }  # fmt: skip
    assert deployment["privacy_loss"]["privacy_parameters"] == {"person": "epsilon 1", "visit": "rho 0.01"}
    assert deployment["dp_flavor"]["name"] == "Pure DP, Zero-Concentrated DP"
    assert len(data["levels_of_sp_800_226"]) == 8
    assert data["statement"]["dataset"] == "visits"


@pytest.mark.parametrize("form", ["text", "markdown", "html", "yaml"])
def test_an_epsilon_is_not_said_twice(description: Path, form: str) -> None:
    """A cap in epsilon is its own epsilon; one in rho is converted."""
    description.write_text(DATASET.replace("epsilon: 1}", "epsilon: 1000}"))
    shown = run("statement", str(description), "--format", form)
    assert "1e+03" not in shown and "epsilon 1000" in shown
    assert shown.lower().count("that is epsilon") == (0 if form == "yaml" else 1)
