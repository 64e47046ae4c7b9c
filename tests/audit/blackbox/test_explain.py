"""Explanations: a person can check a refutation by hand, from its words and by the program that it prints."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dither
from dither import audit
from dither.audit.blackbox.inputs import as_code
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.blackbox.wording import comparison
from dither.audit.claim_syntax import import_object

RNG = np.random.default_rng(3)


def textbook(value: float, size: int) -> Any:
    return value + RNG.laplace(size=size)


def members(value: int) -> set[str]:
    return {"a", "b"} if value and RNG.random() < 0.5 else {"a"}


def table(value: int) -> dict[str, Any]:
    return {"count": int(RNG.integers(9)), "size": "large" if value else "small"}


def lacking(value: int) -> dict[str, float]:
    return {"always": 1.0} if RNG.random() < 0.5 else {"always": 1.0, "secret": float(value)}


def undefined(value: int) -> float:
    return nan if value and RNG.random() < 0.5 else 1.0


def nothing(value: int) -> Any:
    return None if value and RNG.random() < 0.5 else 1.0


def entries(value: int) -> list[Any]:
    return ["yes" if value else "no", int(RNG.integers(5))]


def quick(mechanism: Any, pair: tuple[Any, Any] = (0, 1)) -> PrivacyResult:
    result = audit.privacy(mechanism, "epsilon=1", [pair], samples=3000, seed=1)
    assert result.refuted
    return result


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("mechanism", "events"),
    [
        (members, {"output contains 'b'"}),
        (table, {"output['size'] is 'small'", "output['size'] is not 'small'", "output['size'] is 'large'"}),
        (undefined, {"output is NaN"}),
        (nothing, {"output is None", "output is not a number"}),
        (entries, {"output[0] is 'no'", "output[0] is 'yes'", "output[0] is not 'no'", "output[0] is not 'yes'"}),
    ],
)
def test_events_are_in_words(mechanism: Any, events: set[str]) -> None:
    assert str(quick(mechanism).evidence.event) in events


def test_comparisons_are_exact() -> None:
    assert comparison("x", 1.0, 2.0) == "1.0 <= x < 2.0" and comparison("x", -np.inf, 2.0) == "x < 2.0"
    assert comparison("x", 1.0, float(np.nextafter(1.0, 2))) == "x == 1.0"
    after = float(np.nextafter(0.5, 1))
    assert comparison("x", after, np.inf) == "x > 0.5" and comparison("x", -np.inf, after) == "x <= 0.5"


def test_a_float_leak_is_called_one_and_shows_two_outputs() -> None:
    result = audit.privacy(textbook, "epsilon=1", [(0.0, 1.0)], samples=5000, seed=1)
    leak, told = result.evidence.leak, str(result)
    assert result.refuted and leak is not None and leak.second is not None
    for number in (leak.first, leak.second):
        assert f"{number!r} ({number.hex()})" in told
    assert list(result.evidence.event.contains(np.array([leak.first, leak.second]))) == [True, False]
    assert abs(leak.first - leak.second) < 0.05
    for words in ("floating-point leak", "bits=False", "--no-bits", "none was of that kind"):
        assert words in told
    assert result.as_dict()["evidence"]["float_leak"]["first_hex"] == leak.first.hex()


def test_a_set_is_described_by_its_members_and_is_no_float_leak() -> None:
    result = quick(members)
    assert "event: output contains 'b'" in str(result) and "floating-point" not in str(result)
    assert "if 'b' in output" in result.recipe


@pytest.mark.tier("test")
@pytest.mark.parametrize("mechanism", [textbook, members, table, undefined, entries])
def test_the_printed_program_counts_again(mechanism: Any) -> None:
    result = quick(mechanism)
    program = "\n".join(line for line in result.recipe.splitlines() if " as f" not in line and "f = ..." not in line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {"f": mechanism, "result": result})
    share, *_, most = printed.getvalue().split()
    assert float(share) > float(most) and all(line in str(result) for line in program.splitlines())


def test_where_inputs_differ_and_what_the_claim_allows_are_shown() -> None:
    data = list(range(100))
    result = quick(lambda given: len(given) + float(RNG.random()), (data, [*data, 55]))
    assert "they differ: only the second has 55" in str(result) or "only the first has 55" in str(result)
    assert "the claim allows: at most exp(1) * " in str(result)
    assert as_code(np.array([1, 2])) == "np.array([1, 2])" and as_code(data) == "" and as_code(nan) == ""


@pytest.mark.tier("test")
@pytest.mark.parametrize("pair", [(0.0, 3.0), (3.0, 0.0)])
def test_the_page_shows_the_first_input_in_blue(pair: tuple[float, float]) -> None:
    """The named bug: colours went by the order of the pair, the table by the input on which the event is likelier."""
    result = audit.privacy(textbook, "epsilon=1", [pair], samples=5000, seed=1, bits=False)
    plots, means = result.plots, []
    for density in (plots.density_a, plots.density_b):
        means.append(np.average(plots.bin_starts, weights=density))
    assert means == pytest.approx([result.evidence.a, result.evidence.b], abs=0.5)
    page = result.report()
    assert f"first input, {result.evidence.a} (blue)" in page
    assert page.index("stroke='#1565c0'") < page.index("stroke='#c62828'")
    for words in (f"{__name__}:textbook", "<th>Seed of the auditor</th><td>1</td>", dither.__version__, "Count again"):
        assert words in page


def test_the_page_of_a_true_claim_shows_no_violation() -> None:
    result = audit.privacy(textbook, "epsilon=1", [(0.0, 1.0)], samples=2000, alpha=1e-9, seed=1, bits=False)
    page = result.report()
    assert not result.refuted and "#fc6" not in page and "is a violation" not in page
    assert "does not refute it" in page and "by chance" in page and "Power" in page


def test_the_printed_program_runs_for_a_mechanism_in_a_file(tmp_path: Path) -> None:
    """The named bug: `dither audit mechanism mech.py:f` printed `from mech.py import f`."""
    file = tmp_path / "mech.py"
    file.write_text("def exact(value, size):\n    return [value] * size\n")
    result = audit.privacy(import_object(f"{file}:exact"), "epsilon=1", [(0, 1)], samples=5000, seed=1)
    program = replace(result, mechanism=f"{file}:exact").recipe
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue().startswith("1.0 should be at most about 0.0")
