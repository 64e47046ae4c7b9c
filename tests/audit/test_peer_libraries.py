"""Inputs of first-time users of the auditor: outputs of every shape, typing errors, unsuitable files."""

from __future__ import annotations

import datetime
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies
from scipy import stats
from typer.testing import CliRunner

from dither import audit
from dither.audit.attacks import schedules
from dither.audit.attacks.model import Finding, ServiceReply, discover_columns
from dither.audit.blackbox import features
from dither.audit.blackbox.inputs import describe_difference
from dither.audit.claim_syntax import claim_text, import_object
from dither.audit.claim_syntax import parse_claim as parsed
from dither.audit.claims import ceiling, strength
from dither.audit.confidence import Counts, p_value, strength_lower
from dither.audit.enumeration import paths as enumeration
from dither.audit.neighbours import distinct_pairs, fingerprint
from dither.audit.sampling import OutputSampler, as_outputs
from dither.audit.stability import ValueDomain, result_distance, transformation
from dither.cli.audit import app
from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi

pytestmark = pytest.mark.tier("test")

service = import_module("dither.audit.attacks.api")  # its name is that of a function as well
RNG = np.random.default_rng(7)


QUICK: dict[str, Any] = {"samples": 20_000, "mode": "sequential", "seed": 1, "bits": False}


def twice(value: float) -> float:
    """Laplace noise of epsilon 2 whose claim is 1."""
    return float(value + RNG.laplace(scale=0.5))


@dataclass(frozen=True)
class Record:
    """An output with fields."""

    count: float
    name: str = "n"


def above(value: float) -> float | None:
    """Return a noisy count, or None if it is small; both are frequent."""
    return value if value > 0.2 else None


# Each holds all that the noisy number does, and so refutes epsilon 1 as surely: it takes about 1500 of the samples.
SHAPES: dict[str, Callable[[float], Any]] = {
    "a number or nothing": above,
    "a number or a text": lambda value: value if value > 0.2 else "small",
    "fraction": Fraction,
    "decimal": Decimal,
    "complex": lambda value: complex(0, value),
    "complex of numpy": lambda value: np.complex128(value * 1j),
    "dictionary or nothing": lambda value: {"count": value} if value > -1 else None,
    "nested dictionary": lambda value: {"counts": [1, value]},
    "rows": lambda value: [("a", value), ("b", 1)],
    "nested": lambda value: [[value], [1, 2]],
    "record": Record,
    "record of numpy": lambda value: np.array([(value, 1)], dtype=[("a", float), ("b", int)])[0],
    "an integer beyond floats": lambda value: 10**30 + round(100 * value),
    "an integer beyond all floats": lambda value: 10**400 + round(100 * value),
    "an integer of 61 bits": lambda value: 2**60 + round(100 * value),
    "moment": lambda value: datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=value),
    "moment of numpy": lambda value: np.datetime64("2020-01-01", "ns") + np.timedelta64(round(1000 * value), "ns"),
    "a long list": lambda value: [value] * 70,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_leaks_are_found_in_outputs_of_any_shape(shape: Callable[[float], Any]) -> None:
    result = audit.privacy(lambda value: shape(twice(value)), Pure(1), [(0, 1)], **QUICK)
    assert result.refuted
    assert result.epsilon_lower < 2.1


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "generator": lambda values: (value for value in values),
    "arrow": pa.array,
    "frame": lambda values: pa.table({"n": values, "m": values}).to_pandas(),
    "complex": lambda values: values * 1j,
    "unsigned": lambda values: (values * 1000).astype(np.int64).astype(np.uint64) + np.uint64(2**63),
    "masked": lambda values: np.ma.masked_less(values, -1),
    "objects": lambda values: values.astype(object),
    "moments": lambda values: np.datetime64("2020-01-01", "ns") + (values * 1000).astype("m8[ns]"),
}


@pytest.mark.parametrize("made", ARRAYS.values(), ids=ARRAYS)
def test_many_outputs_at_once_may_come_in_any_collection(made: Callable[[Any], Any]) -> None:
    def mechanism(value: float, size: int) -> Any:
        return made(value + RNG.laplace(scale=0.5, size=size))

    assert audit.privacy(mechanism, Pure(1), [(0, 1)], **QUICK).refuted


def test_masked_values_are_ignored() -> None:
    hidden = np.ma.masked_array([1.0, 2.0], [False, True])
    assert np.array_equal(as_outputs(hidden), [1.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("odd", [None, "failed", [1.0, 2.0], 10**400], ids=str)
@pytest.mark.parametrize("usual", [1.5, [0.5, 1.5, 2.5], {"a": 1.5}, "yes"], ids=str)
def test_an_output_unlike_those_seen_before_is_encoded_too(usual: Any, odd: Any) -> None:
    encoder = features.learn_encoder(as_outputs([usual] * 100))
    assert encoder.read(as_outputs([usual, odd, usual])).shape == (3, len(encoder.labels))


def test_categories_are_numbered_without_regard_to_the_input_that_came_first() -> None:
    """Regression: codes in order of appearance seemed to distinguish the inputs, and hid the real difference."""
    first, second = [f"{place:03}" for place in range(0, 100, 2)], [f"{place:03}" for place in range(1, 100, 2)]
    encoder = features.learn_encoder([*first, *second])
    assert np.all(encoder.read(first) + 1 == encoder.read(second))


def test_an_event_among_categories_names_them() -> None:
    result = audit.privacy(lambda value: "yes" if twice(value) > 0.5 else "no", Pure(1), [(0, 1)], samples=4000, seed=1)
    assert str(result.evidence.event) in ("output is 'yes'", "output is not 'yes'", "output is 'no'")


async def later(value: float) -> float:
    return value


def generated(value: float) -> Iterator[float]:
    yield value


def changing(value: list[float]) -> float:
    value.append(1)
    return sum(value)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "one number for many": (lambda value, size: 3.0, "second argument"),
    "nothing for many": (lambda value, size: None, "second argument"),
    "a text for many": (lambda value, size: "a" * size, "second argument"),
    "too few": (lambda value, size: [0] * (size - 1), "asked for .* outputs"),
    "an error": (lambda value: 1 / 0, r"test_peer_libraries.*line \d+.*ZeroDivisionError"),
    "objects": (lambda value: object(), "cannot be compared"),
    "generators": (generated, "cannot be compared"),
    "asynchronous": (later, "asyncio.run"),
    "a list of many lengths": (lambda value: [0.0] * int(RNG.integers(60, 70)), "at most 64"),
}


@pytest.mark.parametrize(("mechanism", "told"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_an_invalid_mechanism_is_refused_with_a_reason(mechanism: Callable[..., Any], told: str, mode: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        audit.privacy(mechanism, Pure(1), [(0, 1)], samples=1000, seed=1, mode=mode)


def test_a_mechanism_that_changes_its_input_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="changes its input"):
        OutputSampler.from_callable(changing, None, False).draw([0.0], 10)


def test_the_error_says_why_an_input_of_the_domain_was_refused() -> None:
    with pytest.raises(InvalidParameter, match="KeyError: 'age'"):
        audit.privacy(lambda rows: rows[0]["age"] if rows else {}["age"], Pure(1), domain={"age": [0, 9]}, samples=1000)


def test_long_inputs_are_distinguished_wherever_they_differ() -> None:
    """Regression: the text of an array leaves out its middle."""
    a, b = np.zeros(5000), np.zeros(5000)
    b[2500] = 1
    frames = [pa.table({"n": side}).to_pandas() for side in (a, b)]
    assert distinct_pairs([(a, b), (a, b.copy()), (a, a.copy())]) == [(a, b)]
    assert len(distinct_pairs([tuple(frames), ([a], [b]), ({"n": a}, {"n": b})])) == 3
    assert fingerprint(np.array([a, None], object)[1:]) != fingerprint(np.array([None, a], object)[1:])


def test_long_inputs_are_shown_with_what_differs() -> None:
    a, b = np.zeros((60, 60)), np.zeros((60, 60))
    b[30, 7] = 1
    where = "entry 7 is 0.0 in the first and 1.0 in the second"
    assert describe_difference(a, b) == f"in entry 30, {where}"
    assert describe_difference([0] * 999, [0] * 1000) == "only the second has 0"
    ragged = [[0]] * 500
    assert describe_difference([*ragged, [1, 2]], [*ragged, [1]]).startswith("entry 500 is [1, 2] in the first")
    assert describe_difference({"n": 1, "k": 2}, {"n": 1, "j": 2}) == "only the first has 'k'; only the second has 'j'"
    assert describe_difference({1, 2}, {2, 3}) == "only the first has 1; only the second has 3"
    frames = [pa.table({"n": side}).to_pandas() for side in ([1, 2], [1, 2, 7])]
    assert describe_difference(*frames) == "only the second has {'n': 7}"
    assert describe_difference(0, 1) == ""


def test_neighbours_may_be_a_strategy() -> None:
    pairs = strategies.integers(0, 20).map(lambda n: (n, n + 1))
    assert len(distinct_pairs(pairs)) > 3
    assert audit.privacy(twice, Pure(1), pairs, **QUICK).refuted


@pytest.mark.parametrize("pairs", [(0, 1), ["ab"], [(0, 1, 2)], [None]], ids=str)
def test_neighbours_must_be_pairs(pairs: Any) -> None:
    with pytest.raises(InvalidParameter, match="pairs of inputs"):
        audit.privacy(twice, Pure(1), pairs, samples=1000)


# ---- the exact audit -----------------------------------------------------------------------------------------------


def counts_calls() -> Callable[[int, Any], int]:
    """Return code that keeps state from one execution to the next."""
    calls: list[int] = []
    return lambda value, bits: calls.append(0) or len(calls) // 300


ELSEWHERE: dict[str, Callable[[int, Any], Any]] = {
    "a generator of its own": lambda value, bits: value if RNG.random() < 0.1 else 0,
    "with bits besides": lambda value, bits: (value if RNG.random() < 0.5 else 0) + int(bits.integer(8) < 100),
    "numpy's, hardly ever": lambda value, bits: bool(np.random.random() < 1e-12),
    "Python's, hardly ever": lambda value, bits: random.random() < 1e-12,
    "state": counts_calls(),
}


@pytest.mark.parametrize("mechanism", ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_randomness_is_never_certified(mechanism: Callable[[int, Any], Any]) -> None:
    """Regression: code that read no bits ran once on each input, and its output was taken for certain."""
    # Unseen with probability below 1e-11 (0.9^500 twice, 0.5^500); the others are seen surely.
    with pytest.raises(Unsupported, match="not from `bits`"):
        audit.exact(mechanism, (1, 0))


def test_outcomes_are_counted_as_an_analyst_sees_them() -> None:
    fair: list[Callable[[int, Any], Any]] = [
        lambda value, bits: float("nan") if bits.integer(1) else 0.0,
        lambda value, bits: {"a": {int(bits.integer(1))}},
    ]
    assert all(audit.exact(mechanism, (0, 1)).epsilon_upper() == 0 for mechanism in fair)
    assert audit.exact(lambda value, bits: -0.0 if value else 0.0, (0, 1)).epsilon_lower() == np.inf


def forever(value: int, bits: Any) -> None:
    while bits.integer(1) >= 0:
        pass


def deciding_forever(value: int, bits: Any) -> None:
    while bits.integer(1) in (0, 1):
        pass


def test_endless_executions_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "MOST_RANDOM_NUMBERS", 10_000)
    monkeypatch.setattr(enumeration, "REPEATED_RUNS", 1)
    for mechanism in (forever, deciding_forever):
        with pytest.raises(Unsupported, match=r"without ending|ended with"):
            audit.exact(mechanism, (0, 1), most_runs=10)


def test_mistakes_in_the_exact_audit_are_refused_with_a_reason() -> None:
    with pytest.raises(InvalidParameter, match="NameError"):
        audit.exact(lambda value, bits: undefined, (0, 1))  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(InvalidParameter, match="two inputs"):
        audit.exact(lambda value, bits: 0, 3)
    with pytest.raises(Unsupported, match="bytearray"):
        audit.exact(lambda value, bits: bytearray(b"a"), (0, 1))


def test_reports_are_standard_json() -> None:
    read = json.loads(audit.exact(lambda value, bits: value, (0, 1)).report(), parse_constant=pytest.fail)
    assert read["epsilon_lower"] == "inf"


# ---- claims of every kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["1.1", "1.5", "2"])
def test_a_renyi_claim_of_a_low_order_alone_can_be_refuted(order: str) -> None:
    """Regression: the bound is steep at 0, where unexpected hits had all the weight."""
    claim, counts = Renyi(((order, "0.1"),)), Counts(740, 900, 225, 1050)
    assert p_value(counts, ceiling(claim, 1.0)) < 1e-9
    # What two coins of these probabilities show is a lower bound; the runs are few.
    p, q, alpha = 740 / 900, 225 / 1050, float(order)
    shown = np.log(p**alpha * q ** (1 - alpha) + (1 - p) ** alpha * (1 - q) ** (1 - alpha)) / (alpha - 1)
    assert 0.7 * shown < 0.1 * strength_lower(counts, claim, 0.01) < shown


def test_unexpected_hits_never_speak_against_the_null(tier: Any) -> None:
    """Such counts have no weight, which never rejects a true claim: up to 400 pairs at the boundary, at 1e-12."""
    rng, claim = np.random.default_rng(5), Renyi((("2", "0.1"),))
    limit = ceiling(claim, 1.0)
    for q in 10 ** rng.uniform(-6, -0.5, tier.pick(quick=20, test=100, deep=400)):
        p = float(limit(np.array([q]))[0])
        counts = Counts(int(rng.binomial(3000, p)), 3000, int(rng.binomial(3000, q)), 3000)
        assert p_value(counts, limit) > 1e-12


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("epsilon=0.5", Pure("1/2")),
        ("ε=1; δ=1e-5", Approximate(1, "1e-5")),
        ("rho=1", ZCDP(1)),
        ("order=8, epsilon=0.5", Renyi(((8, "1/2"),))),
        ("order=8, epsilon=0.5, delta=0.001", Renyi(((8, "1/2"),), "1/1000")),
    ],
)
def test_claims_are_read_as_they_are_written(text: str, claim: Loss) -> None:
    assert parsed(text) == claim == parsed(claim_text(claim))


@pytest.mark.parametrize(
    "text", ["epsilon=1, eps=2", "epsilon=1,epsilon=1", "epsilon=-1", "epsilon=1,delta=2", "1", ""]
)
def test_empty_or_repeated_claims_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parsed(text)


def test_an_invalid_claim_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidParameter, match="Pure"):
        strength("epsilon=1")  # type: ignore[arg-type]


# ---- the other audits ----------------------------------------------------------------------------------------------


def test_a_nan_result_is_an_infinite_change() -> None:
    """Regression: NaN is above no limit."""
    ages = ValueDomain({"age": [0, 120]})
    mean = transformation(lambda rows: sum(row["age"] for row in rows) / len(rows) if rows else np.nan, ages, 1000)
    assert mean.refuted and mean.counterexample is not None and mean.counterexample[0] == []
    assert transformation(len, ages, 1, lambda a, b: float("nan")).refuted
    assert (
        result_distance({"a": 1, "b": np.nan}, {"a": 1, "b": 2}) == np.inf
        and result_distance([np.nan, np.inf], [np.nan, np.inf]) == 0
    )
    for steady in (np.nan, np.inf, None):
        assert not transformation(lambda rows, steady=steady: steady, ages, 1).refuted


def test_a_failing_function_is_distinguished_from_a_constant_one() -> None:
    ages = {"age": [0, 120]}
    with pytest.raises(InvalidParameter, match="every pair: AttributeError"):
        transformation(lambda rows: rows.nothing, ages, 1)  # type: ignore[attr-defined]
    found = transformation(lambda rows: sum(row["agee"] for row in rows), ages, 1000)
    assert (
        found.refuted
        and "KeyError: 'agee'" in str(found)
        and json.loads(json.dumps(found.as_dict()))["largest"] == "inf"
    )


@pytest.mark.parametrize("claimed", [-1, float("nan"), float("inf"), len, "1"], ids=str)
def test_a_claimed_change_must_be_a_finite_number(claimed: Any) -> None:
    with pytest.raises(InvalidParameter, match="claimed must be a finite number"):
        transformation(len, ValueDomain({"age": [0, 120]}), claimed)


@pytest.mark.parametrize("columns", [{"age": 5}, {"age": [120, 0]}, {"age": "young"}, {}], ids=str)
def test_a_domain_is_checked_before_it_is_used(columns: Any) -> None:
    with pytest.raises(InvalidParameter):
        ValueDomain(columns)


@pytest.mark.parametrize("loss", [float("nan"), None])
def test_an_unknown_loss_is_no_evidence(loss: Any) -> None:
    """Regression: NaN is not above epsilon, and so counted in favour of the mechanism."""
    with pytest.raises(InvalidParameter, match="returned NaN"):
        audit.random_dp(lambda rng: (0, 1), loss=lambda a, b: loss, epsilon=1)


def test_random_pairs_are_checked() -> None:
    for options in ({"epsilon": -1}, {"epsilon": 1, "delta": 2}):
        with pytest.raises(InvalidParameter):
            audit.random_dp(lambda rng: (0, 1), loss=lambda a, b: 1.0, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="pair"):
        audit.random_dp(lambda rng: 3, loss=lambda a, b: 1.0)  # type: ignore[arg-type, return-value]


def geometric(points: Any) -> Any:
    return 0.5 ** np.abs(points) / 3


def test_draws_far_out_are_found_without_a_huge_table() -> None:
    """Regression: the table from the smallest to the largest draw had 10^15 integers."""

    def draws(size: int) -> Any:
        return np.append(RNG.geometric(0.5, size - 1) - 1, 10**15)

    assert audit.fit(draws, geometric, draws=2000).worst.name == "draws far out"
    assert audit.fit(draws, stats.geom(0.5, -1), draws=2000).refuted
    lost = audit.fit(lambda size: np.full(size, np.nan), stats.norm(), draws=1000)
    assert lost.refuted and json.loads(lost.report(), parse_constant=pytest.fail)["refuted"]
    with pytest.raises(InvalidParameter, match="too many"):
        audit.fit(
            lambda size: RNG.integers(-(10**12), 10**12, size), lambda points: np.full(len(points), 1e-12), draws=1000
        )


def test_an_invalid_sampler_or_distribution_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="scipy"):
        audit.fit(lambda size: np.zeros(size), geometric, draws=1000)
    with pytest.raises(InvalidParameter, match="distribution must be"):
        audit.fit(lambda size: np.zeros(size, int), None, draws=1000)
    with pytest.raises(InvalidParameter, match="ZeroDivisionError"):
        audit.fit(lambda size: 1 / 0, geometric, draws=1000)


def test_a_detectable_shift_is_at_least_a_step_of_the_clock() -> None:
    ticks = itertools.count()
    coarse = audit.timing(lambda value: None, 0, 1, runs=100, clock=lambda: next(ticks) // 7 * 1000)
    assert coarse.detectable_shift >= 1e-6
    still = audit.timing(lambda value: None, 0, 1, runs=100, clock=lambda: 0)
    assert json.loads(still.report(), parse_constant=pytest.fail)["detectable_shift"] == "inf"


def test_timing_refuses_what_is_not_a_function_with_a_reason() -> None:
    for function, told in ((later, "asyncio.run"), (lambda value: 1 / 0, "ZeroDivisionError"), (None, "function")):
        with pytest.raises(InvalidParameter, match=told):
            audit.timing(function, 0, 1, runs=100)  # type: ignore[arg-type]


class Nothing:
    """An accountant whose functions all return NaN."""

    epsilon_at = delta_at = staticmethod(lambda *given: float("nan"))


class Broken:
    """An accountant whose functions take other arguments."""

    compose = staticmethod(lambda: None)


def refusing(epsilon: Fraction) -> Callable[[Any], None]:
    def charge(loss: Any) -> None:
        raise TypeError("takes something else")

    return charge


def test_an_accountant_that_returns_nan_is_wrong() -> None:
    assert len(audit.accounting(Nothing).failed) == 2
    assert "raises TypeError" in audit.accounting(Broken).failed[0].detail
    games = [check for check in audit.accounting(Broken, refusing).checks if check.name.startswith("adaptivity")]
    assert games and all(check.passed is None for check in games)
    with pytest.raises(InvalidParameter, match="none of the functions"):
        audit.accounting(3)


# ---- files, names and histories ------------------------------------------------------------------------------------

MINE = "def f(value): return 1 / value\ndef make(scale=1): return lambda value: scale\npairs = [(0, 1)]\n"


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words])
    if isinstance(done.exception, DitherError):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["random.py", "json.py", "a.b.py", "mé ch.py", "two words.py"])
def test_a_file_is_found_whatever_it_is_called(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "dïr" / name
    path.parent.mkdir()
    path.write_text(MINE)
    before = sys.modules.get(path.stem)
    assert import_object(f"{path}:f").__code__.co_filename == str(path)
    assert import_object(f"{path}:make(scale=3)")(0) == import_object(f"{path}:make(3)")(0) == 3
    assert before is None or sys.modules[path.stem] is before


def test_failed_imports_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:")
    good = tmp_path / "good_enough.py"
    good.write_text(MINE)
    for place, told in (
        (f"{path}:f", "SyntaxError"),
        (f"{tmp_path}/absent.py:f", "no file 'absent.py'"),
        (f"{good}:make(1, 2, 3)", "TypeError"),
        (f"{good}:make(os)", "arguments must be numbers"),
        (f"{good}:make(**{{}})", "arguments must be numbers"),
    ):
        with pytest.raises(DitherError, match=re.escape(told)):
            import_object(place)


def test_command_line_mistakes_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "slips.py"
    path.write_text(MINE)
    common = ["mechanism", f"{path}:f", "--claim", "epsilon=1", "--samples", "1000"]
    for arguments, expected in (
        ([*common], "which inputs the mechanism takes"),
        ([*common, "--domain", "Numbers(0, 100)"], "ZeroDivisionError"),
        ([*common, "--domain", "Numbers(1, 0)"], "low < high"),
        ([*common, "--domain", "Number(1, 0)"], "--domain must be"),
        ([*common, "--neighbours", "[[0, 1]]"], "slips.py, line 1"),
        ([*common, "--neighbours", "[1, 2]"], "a list of pairs"),
        ([*common, "--neighbours", f"{path}:f"], "TypeError"),
        ([*common, "--report", "report.pdf"], ".html"),
        ([*common, "--report", str(tmp_path / "absent" / "report.html")], "directory does not exist"),
        ([*common, "--seed", "-1"], "--seed"),
        (["sampler", f"{path}:f", "--distribution", "laplace:0"], "above 0"),
        (["timing", f"{path}:f", "--pair", "[0, 1]"], "ZeroDivisionError"),
        (["transformation", f"{path}:f", "--domain", '{"age": 3}', "--claim", "1"], "a list of values"),
    ):
        status, output = command(*arguments)
        assert (status, expected in output) == (2, True), (arguments, output)


def test_a_result_is_printed_even_if_its_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    done = CliRunner().invoke(app, ["zoo", "laplace_double", "--samples", "2000", "--report", str(tmp_path / "r.html")])
    assert "epsilon" in done.output and "Permission denied" in str(done.exception)


def test_a_run_without_a_result_is_no_finding_and_no_regression(tmp_path: Path) -> None:
    """Regression: a misspelt name was recorded in the history as a regression."""
    right, wrong = (schedules.ScheduleEntry("now", ("zoo", "x"), status, 1.0, "") for status in (0, 1))
    slip = schedules.ScheduleEntry("now", ("zoo", "x"), 2, 1.0, "error: the zoo has no member 'x'")
    crash = schedules.ScheduleEntry("now", ("zoo", "x"), 1, 1.0, "error: internal error (KeyError)")
    stopped = schedules.ScheduleEntry("now", ("zoo", "x"), -9, 1.0, "")
    for each in (slip, crash, stopped):
        assert schedules.verdict(each, [right]).startswith("FAILED") and not each.passed
    assert schedules.verdict(wrong, [right, slip]) == "REGRESSION"
    assert schedules.verdict(wrong, [slip]) == "FOUND"


@pytest.mark.tier("test")
def test_a_history_outlives_an_interruption(tmp_path: Path) -> None:
    history = tmp_path / "kept" / "history.jsonl"
    history.parent.mkdir()
    history.write_text('{"started": "then", "comm')
    schedules.run_once(["zoo", "--help"], history)
    assert [each.passed for each in schedules.read_history(history)] == [False, True]
    assert schedules.format_history(schedules.read_history(history))[0].startswith("unreadable line  FAILED")


def test_an_unwritable_history_is_reported_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules.subprocess, "run", pytest.fail)
    with pytest.raises(InvalidParameter, match="cannot be written"):
        schedules.run_once(["zoo"], tmp_path)
    with pytest.raises(InvalidParameter, match="interval"):
        schedules.parse_interval("²h")


def test_a_missing_service_or_unknown_token_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DITHER_TOKEN", "nobody's")
    assert "no answer from" in command("service", "http://127.0.0.1:1")[1]
    assert "must look like" in command("service", "http://127.0.0.1:99999999")[1]
    with pytest.raises(InvalidParameter, match="token"):
        discover_columns(lambda *given: ServiceReply(401, {}, b"{}"), "nobody's")


def test_attacks_that_learn_something_end_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a finding exited with the status of invalid input."""
    monkeypatch.setenv("DITHER_TOKEN", "ann")
    monkeypatch.setattr(service, "ServiceTarget", SimpleNamespace(of=lambda *given: SimpleNamespace(tokens={})))
    for learned, status in ((False, 0), (True, 1)):
        finding = Finding("an attack", "a family", "a secret", learned, "evidence")
        monkeypatch.setattr(service, "run", lambda targets, chosen, finding=finding: [finding])
        done, said = command("service", "http://127.0.0.1:1")
        assert done == status and "1 attacks" in said and ("LEARNED" in said) is learned


@pytest.mark.tier("test")
def test_undecided_mass_is_not_certified() -> None:
    """Regression: undecided mass was ignored, however much it was."""

    def leak(value: int, bits: Any) -> tuple[int, int]:
        drawn = int(bits.integer(16))
        return drawn, value if drawn > 3000 else 0

    found = audit.exact(leak, (0, 1), most_runs=500)
    assert not found.certifies(Pure(1))


@pytest.mark.parametrize(("first", "second"), [(float("nan"), "nan"), ({"a": 1}, [["a", 1]])])
def test_distinguishable_outcomes_are_not_merged(first: Any, second: Any) -> None:
    found = audit.exact(lambda value, bits: second if value else first, (0, 1))
    assert not found.certifies(Pure(5))


@pytest.mark.parametrize("seed", range(4))
def test_words_that_never_repeat_do_not_reveal_which_input_came_first(seed: int) -> None:
    """Regression: an unseen word got the next code, so that the first input's words had the smaller ones."""
    # A true claim (outputs ignore the input), judged at alpha 1e-9.
    rng = random.Random(seed)

    def answer(value: int) -> dict[str, Any]:
        return {"id": f"{rng.getrandbits(64):x}", "value": round(rng.gauss(0, 1) * 3000)}

    assert not audit.privacy(answer, Pure("1/10"), [(0, 1)], samples=6000, alpha=1e-9, seed=seed).refuted


def test_true_is_encoded_alike_whatever_else_was_drawn() -> None:
    kept = as_outputs([False, 0.5, 1.5])
    assert isinstance(kept, list) and kept[0] is False
    assert as_outputs([True, False]).tolist() == [1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda word: {"id": word, "value": 1.0},
        lambda word: (word, 1.0),
        lambda word: ((word, 2), 1.0),
        lambda word: word,
    ],
)
def test_the_encoding_of_a_word_does_not_depend_on_the_words_before_it(make: Any) -> None:
    encoder = features.learn_encoder([make(word) for word in ("b", "a", "c")] * 4)
    alone = encoder.read([make("new")])
    after = encoder.read([make("other"), make("third"), make("new")])[-1:]
    assert np.array_equal(alone, after, equal_nan=True)
    assert np.array_equal(encoder.read([make("other")]), alone, equal_nan=True)
