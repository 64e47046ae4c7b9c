from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from dither.audit import adapters, exact
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
    assert min(each for each in found.law_b.masses) == 1


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
    require(find_spec("opendp"), "OpenDP: pip install opendp")
    measured = adapters.opendp_deviations(4095, 2.0**52, 2.0**52 + 2, 1e-3)
    same, changed = [2.0**52 + 1] * 4095, [2.0**52 + 1] * 4094 + [2.0**52 + 2]
    assert (
        abs(measured(same)) < 1 and abs(measured(changed) - 4094) < 1
    )  # states 676; noise of 1e-3 passes 1 at e^-1000


@pytest.mark.tier("test")
def test_findings_are_found_again() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import findings

    assert {finding.name for finding in findings.FINDINGS} >= {"diffprivlib-laplace", "python-dp-gaussian"}
    page = (ROOT / "docs" / "findings.md").read_text()
    assert all(finding.title in page for finding in findings.FINDINGS) and page.count("REFUTED") == 4
    assert "REFUTED" in findings.mean()
