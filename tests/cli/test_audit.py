from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dither import audit
from dither.audit.attacks import schedules
from dither.audit.enumeration import certify as certify_module
from dither.audit.enumeration.certify import certify
from dither.cli.audit import app
from dither.errors import InvalidParameter, NotFound

MINE = """
import numpy
from fractions import Fraction
from dither.audit import Numbers
from dither.audit.neighbours import farther_pairs
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.noise import discrete_laplace

laplace = DiscreteLaplace(Fraction(1))
pairs = [(0, 1)]
far = farther_pairs(pairs, 4)
one_of_them = far[0]
inputs = Numbers(0, 9, change=2)

def made():
    return farther_pairs(pairs, 4)

def wrong(value, size):
    return value + discrete_laplace(Fraction(1, 2), size, SystemBits())

def right(value, size):
    return value + discrete_laplace(Fraction(1), size, SystemBits())

def draws(size):
    return discrete_laplace(Fraction(5), size, SystemBits())

def total(rows):
    return sum(row["age"] for row in rows)

def uneven(value):
    return sum(range(4000 if value else 400))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    # A name of its own for each test: modules are imported once.
    path = tmp_path / f"mine_{tmp_path.name}.py"
    path.write_text(MINE)
    return str(path)


def run(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def test_mechanism(mine: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    common = ["--claim", "epsilon=1", "--samples", "40000", "--alpha", "1e-9"]  # the false-alarm rate of the second
    status, found = run("mechanism", f"{mine}:wrong", *common, "--neighbours", "[[0, 1]]", "--report", str(report))
    assert status == 1 and found["refuted"] and found["epsilon_lower"] > 1.5 and "<svg" in report.read_text()
    status, found = run("mechanism", f"{mine}:right", *common, "--neighbours", f"{mine}:pairs", "--sequential")
    assert status == 0 and not found["refuted"]


@pytest.mark.tier("test")
def test_neighbours_keep_their_steps(mine: str) -> None:
    common = ["--claim", "epsilon=1", "--samples", "4000", "--alpha", "1e-9"]  # the false-alarm rate of each
    stated = '[{"a": 0, "b": 4, "steps": 4}]'
    for given in (stated, f" {stated}", '[[5, 6], {"steps": 4, "b": 4, "a": 0}]', f"{mine}:far", f"{mine}:made"):
        for mode in ([], ["--sequential"]):
            status, found = run("mechanism", f"{mine}:right", *common, "--neighbours", given, *mode)
            assert status == 0 and not found["refuted"]
            assert given.startswith("[[") or found["evidence"]["steps"] == 4
    status, found = run("mechanism", f"{mine}:right", *common, "--neighbours", "[[0, 4]]")
    assert status == 1 and found["refuted"] and found["evidence"]["steps"] == 1
    told = CliRunner().invoke(app, ["mechanism", f"{mine}:right", *common, "--neighbours", stated])
    assert "steps between them: 4" in told.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('[{"a": 0, "b": 8}]', "got 'a', 'b'"),
        ('[{"a": 0, "b": 8, "steps": 8, "step": 8}]', '"steps": 8}; got'),
        ("[{}]", "got nothing"),
        ('[{"a": 0, "b": 8, "steps": 0}]', "whole number"),
        ('[{"a": 0, "b": 8, "steps": 8.0}]', "whole number"),
        ('[{"a": 0, "b": 8, "steps": "8"}]', "whole number"),
        ('[{"a": 0, "b": 8, "steps": true}]', "whole number"),
        ('{"a": 0, "b": 8, "steps": 8}', "a list of pairs"),
        ('["ab"]', "a list of pairs"),
        ("[[0, 1, 2]]", "pairs of inputs"),
        ("[0, 1]", "a list of pairs"),
    ],
)
def test_steps_that_cannot_be_read_are_refused(mine: str, given: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        run("mechanism", f"{mine}:right", "--claim", "epsilon=1", "--neighbours", given)


def test_a_single_pair_is_not_a_list_of_pairs(mine: str) -> None:
    with pytest.raises(InvalidParameter, match="a list of pairs"):
        run("mechanism", f"{mine}:right", "--claim", "epsilon=1", "--neighbours", f"{mine}:one_of_them")


def test_exact(mine: str) -> None:
    status, found = run("exact", f"{mine}:laplace", "--pair", "[[0], [1]]", "--claim", "epsilon=1")
    assert status == 0 and found["verdict"] == "certified" and abs(found["epsilon_lower"] - 1) < 1e-6
    assert run("exact", f"{mine}:laplace", "--pair", "[[0], [1]]", "--claim", "epsilon=0.99")[0] == 1


def test_sampler(mine: str) -> None:
    status, found = run(
        "sampler", f"{mine}:draws", "--distribution", "laplace:5", "--draws", "20000", "--alpha", "1e-9"
    )
    assert status == 0 and not found["refuted"]
    assert run("sampler", f"{mine}:draws", "--distribution", "gaussian:5", "--draws", "20000")[0] == 1


def test_transformation(mine: str) -> None:
    words = ["transformation", f"{mine}:total", "--domain", '{"age": [0, 120]}', "--claim"]
    assert run(*words, "120") == (0, {"refuted": False, "claimed": 120.0, "largest": 120.0, "pairs": 500} | EMPTY)
    status, found = run(*words, "100")
    assert status == 1 and found["counterexample"][0] == "[]" and found["largest"] > 100
    status, found = run("transformation", "builtins:sum", "--domain", "20, 0, 3", "--claim", "2")
    assert status == 1 and "20 x" in found["counterexample"][0]


EMPTY = {"counterexample": None}


def test_an_exact_refutation_says_so(mine: str) -> None:
    done = CliRunner().invoke(app, ["exact", f"{mine}:laplace", "--pair", "[[0], [1]]", "--claim", "epsilon=1/2"])
    assert done.exit_code == 1 and "REFUTED" in done.stdout and "no delta below" in done.stdout


def test_timing(mine: str) -> None:
    status, found = run("timing", f"{mine}:uneven", "--pair", "[0, 1]", "--runs", "300")
    assert status == 1 and found["refuted"]


def test_zoo() -> None:
    status, found = run("zoo")
    assert status == 0 and {"laplace", "laplace_double"} <= {each["name"] for each in found}
    status, found = run("zoo", "laplace_double", "--samples", "40000", "--seed", "1")
    assert status == 1 and found["refuted"]


def test_unreadable_arguments_are_refused(mine: str) -> None:
    for words, error in (
        (["exact", f"{mine}:laplace", "--pair", "0"], InvalidParameter),
        (["exact", f"{mine}:laplace", "--pair", "[0"], InvalidParameter),
        (["exact", f"{mine}:absent", "--pair", "[0, 1]"], NotFound),
        (["exact", "no_such_module:f", "--pair", "[0, 1]"], NotFound),
        (["mechanism", f"{mine}:wrong", "--claim", "privacy"], InvalidParameter),
        (["schedule", "--every", "often", "--", "zoo"], InvalidParameter),
        (["schedule"], InvalidParameter),
        (["transformation", f"{mine}:total"], InvalidParameter),
        (["transformation", f"{mine}:total", "--domain", "3, 0", "--claim", "1"], InvalidParameter),
    ):
        with pytest.raises(error):
            run(*words)


@pytest.mark.tier("test")
def test_schedule_keeps_a_history(mine: str, tmp_path: Path) -> None:
    history = tmp_path / "kept" / "history.jsonl"
    waited: list[float] = []
    command = ["exact", f"{mine}:laplace", "--pair", "[[0], [1]]", "--claim", "epsilon=0.5"]
    assert [each.passed for each in schedules.repeat_audit(command, history, 9.0, 1, waited.append)] == [False]
    right = [*command[:-1], "epsilon=1"]
    assert [each.passed for each in schedules.repeat_audit(right, history, 9.0, 1, waited.append)] == [True]
    kept = schedules.read_history(history)
    assert [each.status for each in kept] == [1, 0] and "CERTIFIED" in kept[1].output and not waited
    status, shown = run("schedule", "--show", "--history", str(history))
    assert status == 0 and [each["status"] for each in shown] == [1, 0]


def test_the_schedule_waits_between_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = schedules.ScheduleEntry("now", ("zoo",), 0, 0.0, "")
    monkeypatch.setattr(schedules, "run_once", lambda command, history: done)
    waited: list[float] = []
    runs = list(schedules.repeat_audit(["zoo"], tmp_path / "h", schedules.parse_interval("30m"), 3, waited.append))
    assert len(runs) == 3 and waited == [1800.0, 1800.0]


def test_an_exact_audit_has_one_verdict_and_an_exit_code_for_it(tmp_path: Path) -> None:
    """Regression: a correct randomised response was certified, called refuted, and the command exited with 1."""
    path = tmp_path / "response.py"
    path.write_text(
        "from math import e\n"
        "def response(value, bits):\n"
        "    if bits.random() < e / (e + 3):\n"
        "        return value\n"
        "    other = int(bits.below(3))\n"
        "    return other + (other >= value)\n"
    )
    words = ["exact", f"{path}:response", "--pair", "[0, 1]", "--claim"]
    for claim, verdict, status, more in (
        ("epsilon=1", "CERTIFIED", 0, []),
        ("epsilon=0.9", "REFUTED", 1, []),
        ("epsilon=1", "UNDECIDED", 2, ["--most-runs", "2"]),
        ("rho=0.5", "CERTIFIED", 0, []),
        ("rho=0.01", "REFUTED", 1, []),
    ):
        done = CliRunner().invoke(app, [*words, claim, *more])
        last = done.stdout.splitlines()[-1]
        assert (done.exit_code, last.split(":")[0]) == (status, verdict), done.stdout
        assert "1e-06" in last or verdict == "UNDECIDED"
        found = json.loads(CliRunner().invoke(app, [*words, claim, *more, "--json"]).stdout)
        assert found["verdict"] == verdict.lower() and found["tolerance"] == 1e-6


def test_functions_of_python_are_not_shaped_for_the_command_line() -> None:
    """Regression: `audit.service` printed its findings, and its parameters were options of typer."""
    for function in (audit.service, certify):
        parameters = signature(function, eval_str=True).parameters.values()
        assert not any(hasattr(each.annotation, "__metadata__") for each in parameters)
    with pytest.raises(InvalidParameter, match="name a neighbour"):
        audit.service("http://127.0.0.1:1", samples=1000, tokens={"analyst": "x"})
    with pytest.raises(InvalidParameter, match="no family nothing"):
        audit.service("http://127.0.0.1:1", families=["nothing"], tokens={"analyst": "x"})


def test_a_mechanism_that_is_not_certified_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the command ended with an error, as if there were no result."""
    monkeypatch.setattr(certify_module, "TOLERANCE", -0.01)
    done = CliRunner().invoke(app, ["certify", "exponential"])
    assert done.exit_code == 1 and "NO" in done.stdout and isinstance(done.exception, SystemExit)


@pytest.mark.tier("test")
def test_the_domain_of_a_mechanism(mine: str) -> None:
    common = ["mechanism", f"{mine}:wrong", "--claim", "epsilon=1", "--samples", "4000", "--no-bits"]
    for domain in ("Numbers(0, 100)", "Choices([0, 3])", f"{mine}:inputs"):
        status, found = run(*common, "--domain", domain)
        assert status == 1 and found["refuted"]
