from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOAD = ["-p", "dither.audit.pytest_plugin"]


def installed() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == "dither.audit.pytest_plugin" for each in entry_points(group="pytest11"))


def run(where: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (where / "test_mine.py").write_text(text)
    load = [] if installed() else LOAD
    command = [sys.executable, "-m", "pytest", "-q", *load, "-p", "no:cacheprovider", "--strict-markers", *options]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


@pytest.mark.tier("test")
def test_the_file_in_the_docs_finds_its_bug(tmp_path: Path) -> None:
    text = re.search(r"```python\n(# test_mine.py.*?)```", (ROOT / "docs" / "auditing.md").read_text(), re.S)
    assert text is not None and len([line for line in text[1].splitlines() if line]) <= 7
    done = run(tmp_path, text[1])
    assert done.returncode == 1 and "REFUTED" in done.stdout and "event: output" in done.stdout


SEEDED = """
import numpy, pytest

def mine(scale):
    rng = numpy.random.default_rng(5)
    stop = 1 - numpy.exp(-1 / scale)
    return lambda value, size: value + rng.geometric(stop, size) - rng.geometric(stop, size)

@pytest.mark.private("epsilon=1", neighbours=[(0, 1)], samples=20_000)
def test_right():
    return mine(1)

@pytest.mark.private("epsilon=1", neighbours=[(0, 1)], samples=20_000)
def test_wrong():
    return mine(0.5)

def test_result(assert_private):
    assert assert_private(mine(1), "epsilon=1", neighbours=[(0, 1)], samples=20_000).alpha == 1e-6

@pytest.mark.private
def test_without_a_claim():
    return mine(1)
"""


@pytest.mark.tier("test")
def test_markers_options_and_the_same_verdict_twice(tmp_path: Path) -> None:
    first, second = (run(tmp_path, SEEDED, "--audit-seed=3") for _ in range(2))
    assert "2 failed, 2 passed" in first.stdout, first.stdout
    assert "test_wrong" in first.stdout and "needs a claim" in first.stdout
    counts = [re.findall(r"REFUTED.*", each.stdout) for each in (first, second)]
    assert counts[0] and counts[0] == counts[1]


WEAK = """
import numpy, pytest

rng = numpy.random.default_rng(5)

def wrong_delta(value, size):
    return value + 3.1 * rng.standard_normal(size)

OPTIONS = {"neighbours": [(0.0, 1.0)], "samples": 4000, "bits": False}

@pytest.mark.private("epsilon=1, delta=1e-6", **OPTIONS)
def test_that_warns():
    return wrong_delta

@pytest.mark.private("epsilon=1, delta=1e-6", detect="epsilon=3, delta=1e-6", **OPTIONS)
def test_that_fails():
    return wrong_delta

@pytest.mark.private("epsilon=1, delta=1e-6", detect="epsilon=40, delta=1e-6", **OPTIONS)
def test_that_is_strong_enough():
    return wrong_delta
"""


@pytest.mark.tier("test")
def test_a_test_without_power_does_not_pass_silently(tmp_path: Path) -> None:
    done = run(tmp_path, WEAK)
    assert "1 failed, 2 passed, 1 warning" in done.stdout, done.stdout
    assert "AuditPowerWarning: this test passed, but it is weak: a true loss of epsilon=2, delta=1e-06" in done.stdout
    assert re.search(r"this test is too weak: a true loss of epsilon=3.*it needs about [\d,]+ samples", done.stdout)


def test_loading_is_light() -> None:
    """Every pytest run of everyone who installs the package pays for this."""
    code = (
        "import sys, dither.audit.pytest_plugin; print([m for m in ('numpy', 'scipy', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["epsilon", "epsilon=", "delta=1", "epsilon=1, rho=1", ""])
def test_claims_that_say_nothing(text: str) -> None:
    from dither.audit.claim_syntax import parse_claim
    from dither.errors import InvalidParameter

    with pytest.raises(InvalidParameter):
        parse_claim(text)
