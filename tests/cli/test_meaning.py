"""The meaning of a loss: tests, events, groups, and the epsilon-delta curve as text and as a picture."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dither.cli import app
from dither.cli.meaning import epsilon_at_larger_delta
from dither.loss import ZCDP, Pure
from dither.post.interpretation import power_of_test, privacy_curve
from dither.views.meaning import percent
from dither.views.privacy_curve import curve_text

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def test_the_numbers_of_a_meaning() -> None:
    data = json.loads(run("meaning", "--epsilon", "1", "--delta", "1e-6", "--json"))
    assert data["tests"][0] == {"false_alarms": "1%", "power_at_most": "2.72%"}
    assert data["events"][2] == {"probability_without": "10%", "probability_with_at_most": "27.2%"}
    assert data["groups"][1]["loss"].startswith("epsilon 2, delta about 3.71829e-6")
    assert data["curve"][0] == {"delta": 1e-6, "epsilon": 1.0}
    epsilons = [row["epsilon"] for row in data["curve"]]
    assert epsilons == sorted(epsilons, reverse=True) and epsilons[-1] < 0.9


def tables_of(page: str) -> list[list[list[str]]]:
    """The tables of a page without their heads, as cells."""
    found = re.findall(r"(?:^\|.*\n)+", page, flags=re.M)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()[2:]] for rows in found]


def test_the_tables_of_the_page_on_budgets_are_right() -> None:
    pure, zcdp, _, shares = tables_of((ROOT / "docs" / "choosing-a-budget.md").read_text())
    for epsilon, factor, rare, even, power in pure:
        odds = math.exp(float(epsilon))
        guesses = [100 * odds * prior / (odds * prior + 1 - prior) for prior in (0.01, 0.5)]
        told = [float(cell.strip("%")) for cell in (factor, rare, even)]
        assert told == pytest.approx([odds, *guesses], rel=5e-3, abs=0.06)
        assert power == percent(power_of_test(Pure(Fraction(epsilon)), Fraction(1, 100)))
    for rho, at_six, at_nine, power in zcdp:
        loss = ZCDP(Fraction(rho))
        found = [
            f"{float(epsilon):.3g}" for _, epsilon in privacy_curve(loss, [Fraction(1, 10**6), Fraction(1, 10**9)])
        ]
        assert [at_six, at_nine, power] == [*found, percent(power_of_test(loss, Fraction(1, 100)))]
    for share, error, number in shares:
        kind, amount = share.split()
        rough = math.log(20) / float(amount) if kind == "epsilon" else 1.96 / math.sqrt(2 * float(amount))
        total = 3 if kind == "epsilon" else 1 / 8
        assert float(error.strip("± ")) == pytest.approx(rough, rel=0.03)
        assert int(number.replace(",", "")) == int(total / float(amount) + 1e-9)


def test_zcdp_and_pure_losses_have_a_meaning() -> None:
    zcdp = json.loads(run("meaning", "--rho", "1/10", "--json"))
    assert 2.9 < zcdp["curve"][0]["epsilon"] < 3.5
    assert json.loads(run("meaning", "--rho", "1/10", "--delta", "1e-9", "--json"))["groups"][0]["units"] == 1
    assert json.loads(run("meaning", "--epsilon", "2", "--json"))["loss"] == "epsilon 2"


def test_the_curve_of_randomized_response_is_exact() -> None:
    """Randomized response with odds e^epsilon has no smaller epsilon at any delta than the formula gives."""
    for delta in (1e-6, 1e-3, 0.1):
        smaller = epsilon_at_larger_delta(1.0, 0.0, delta)
        truth = math.e / (1 + math.e)
        assert truth - math.exp(smaller) * (1 - truth) == pytest.approx(delta, abs=1e-12)
    assert epsilon_at_larger_delta(0.1, 0.0, 0.5) == 0.0


def test_the_picture_is_an_svg_file(tmp_path: Path) -> None:
    shown = run("meaning", "--epsilon", "1", "--svg", str(tmp_path / "curve.svg"))
    root = ElementTree.fromstring((tmp_path / "curve.svg").read_text())
    assert root.tag.endswith("svg") and "polyline" in (tmp_path / "curve.svg").read_text()
    assert "detects it with probability at most" in shown and "delta" in shown and "*" in shown


def test_a_text_plot_has_its_axes() -> None:
    lines = curve_text([(1e-9, 3.0), (1e-6, 2.0), (1e-3, 1.0)])
    assert lines[1].startswith("       3 |*") and lines[-1].strip().endswith("1e-3")


@pytest.mark.parametrize("words", [(), ("--epsilon", "1", "--rho", "1"), ("--epsilon", "0"), ("--epsilon", "2000")])
def test_one_loss_is_wanted(words: tuple[str, ...]) -> None:
    run("meaning", *words, code=2)
