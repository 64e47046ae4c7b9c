from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from dither.audit import adapters, exact
from dither.audit import claim_syntax as stated
from dither.audit.stability import transformation
from dither.errors import InvalidParameter
from dither.loss import Pure

ROOT = Path(__file__).resolve().parents[2]


class Rounded:
    """A mechanism with the two hooks of diffprivlib's: `_rng` and `randomise`."""

    _rng: Any = None

    def randomise(self, value: int) -> int:
        return int(np.floor(np.log1p(-self._rng.random()) / -0.5)) + value


def test_a_generator_attribute_is_replaced_by_bits() -> None:
    found = exact(adapters.diffprivlib_exact(Rounded), (0, 1), residual=0)
    assert found.residual == 0 and found.refutes(Pure(5))  # noise on one side only: 0 tells the inputs apart
    assert min(each for each in found.distribution_b.masses) == 1


def test_each_library_is_called_its_own_way() -> None:
    class Adds:
        def add_noise(self, value: float) -> float:
            return value + 0.5

    assert adapters.python_dp(Adds())(1) == 1.5
    assert adapters.opendp(lambda value: value + 1)(1) == 2
    mechanism = Rounded()
    mechanism._rng = np.random.default_rng(1)
    assert adapters.diffprivlib(mechanism)(3) >= 3


def test_a_missing_library_is_named() -> None:
    if find_spec("pydp") is None:
        with pytest.raises(InvalidParameter, match="python-dp"):
            adapters.python_dp_gaussian()


def test_opendp_moves_more_than_it_states() -> None:
    """Neighbours are searched for and made plain by the tool; false alarms are impossible, as nothing is random."""
    require(find_spec("opendp"), "OpenDP: pip install opendp")
    said = adapters.opendp_deviations()
    found = transformation(said.function, said.space, said.claimed)
    assert found.refuted and found.counterexample is not None
    assert round(found.claimed, 2) == 40.60 and round(found.largest, 2) == 63.94
    assert [len(set(side)) for side in found.counterexample] == [1, 2] and "1024 x" in str(found)


def test_what_the_place_returns_when_it_is_called() -> None:
    assert stated.import_object("math:gcd(12, 18)") == 6 and stated.import_object("math:gcd")(4, 6) == 2
    with pytest.raises(InvalidParameter, match="arguments"):
        stated.import_object("math:gcd(print)")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.tier("test")
def test_findings_are_found_again(benchmarks: None) -> None:
    """Each in a process of its own, by the command that the page shows."""
    import findings

    page = (ROOT / "docs" / "findings.md").read_text()
    assert all(finding.title in page and finding.command in page for finding in findings.FINDINGS)
    assert page.count("REFUTED") == len(findings.FINDINGS) == 5
    names = {finding.name: finding for finding in findings.FINDINGS}
    for name in ("private-mean", "opendp-deviations"):
        assert "REFUTED" in findings.audited(names[name])


@pytest.mark.tier("deep")
@pytest.mark.parametrize("name", ["diffprivlib-laplace", "python-dp-gaussian", "diffprivlib-geometric"])
def test_findings_in_other_environments(name: str, benchmarks: None) -> None:
    import findings
    import peer

    try:
        said = findings.audited(next(each for each in findings.FINDINGS if each.name == name))
    except peer.Unavailable as reason:
        require(False, str(reason))
    assert "REFUTED" in said


@pytest.mark.tier("deep")
@pytest.mark.parametrize(
    ("library", "name", "samples"), [("smartnoise-sql", "smartnoise", "1000"), ("tumult", "tumult", "0")]
)
def test_adapters_run_the_real_libraries(library: str, name: str, samples: str, benchmarks: None) -> None:
    """A count of 6 with noise of scale 1: ten answers beyond 60 have probability below 1e-22 together."""
    import peer

    try:
        environment = peer.beside(library)
    except peer.Unavailable as reason:
        require(False, str(reason))
    script = ROOT / "benchmarks" / "peers" / "adapters.py"
    command = [sys.executable, "-W", "ignore", str(script), name, "10", samples]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(set(found["answers"])) > 1 and all(abs(answer - 6) <= 60 for answer in found["answers"])
    if samples != "0":  # the claim of 1/20 is false by far; the true one is refuted with probability 1e-4 at most
        assert found["false"]["refuted"] and found["false"]["epsilon_lower"] < 1.5
