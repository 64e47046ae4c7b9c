"""The contract of every mechanism: its loss covers its exact law, draws follow that law, no distance costs nothing."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import stats

import dither
from cases import CASES, OUTSIDE, Case, Law, laplace_reaches, noisy_max_law, optimal_chance, real, softmax
from conftest import require
from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Pure, Renyi, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.accounting.conversion import delta_at, epsilon_at, pure_as_rho
from dither.privacy.bits import SystemBits, Words
from dither.privacy.mechanisms import (
    BY_NAME,
    FLOOR,
    LARGEST_SCALE,
    Mechanism,
    calibrate,
    partitions,
    quantiles,
    saturating_add,
    selection,
)
from dither.privacy.mechanisms.calibration import MAKERS
from dither.privacy.mechanisms.partitions import keep_table
from dither.privacy.mechanisms.selection import draw, first, reaches

ORDERS = (1.001, 1.0625, 1.5, 2, 4, 16, 64)
MARGIN = mpf(10) ** -25
OPTIONS: dict[str, dict[str, Any]] = {
    "snapping": {"bound": 100},
    "top_k": {"count": 2},
    "above_threshold": {"threshold": 20, "count": 2},
    "sparse_vector": {"threshold": 20, "count": 2},
    "quantiles": {"quantiles": ("1/4", "1/2", "3/4")},
    "public_threshold": {"threshold": 10},
    "randomized_response": {"categories": 3},
}
PURE = [name for name in BY_NAME if "gaussian" not in name and name not in ("partition_selection", "laplace_threshold")]


LONE = ("partition_selection", "laplace_threshold", "gaussian_threshold")


def every(case: Case) -> str:
    return case.id


# --- Divergences, computed ------------------------------------------------------------------------------------------


Logs = np.ndarray[Any, Any]


@lru_cache
def logs(case: Case) -> dict[Any, Logs]:
    """The logarithms of each law's probabilities, over the same outputs in the same order; -inf for never."""
    laws = case.laws()
    outputs = sorted({output for law in laws.values() for output in law})
    with np.errstate(divide="ignore"):
        return {exact: np.log([float(law.get(output, 0)) for output in outputs]) for exact, law in laws.items()}


def largest(case: Case, divergence: Callable[[Logs, Logs], float]) -> float:
    """Over every pair, in both directions."""
    known = logs(case)
    with np.errstate(invalid="ignore"):
        return max(divergence(known[one], known[other]) for one, other in case.both_ways())


def log_ratio(one: Logs, other: Logs) -> float:
    return float(np.nanmax(one - other))


def renyi(one: Logs, other: Logs, order: float) -> float:
    if np.isinf(other[one > -np.inf]).any():
        return float("inf")
    terms = order * one + (1 - order) * other
    return float(np.logaddexp.reduce(terms[one > -np.inf]) / (order - 1))


def excess(one: Logs, other: Logs, epsilon: Fraction) -> float:
    """The least delta that goes with epsilon for these two laws."""
    return float(np.maximum(0, np.exp(one) - np.exp(other + float(epsilon))).sum())


def precise(case: Case) -> Any:
    """The largest log ratio in 40 digits."""
    laws = case.laws()
    known = logs(case)
    outputs = sorted({output for law in laws.values() for output in law})
    best = max(case.both_ways(), key=lambda pair: log_ratio(known[pair[0]], known[pair[1]]))
    at = outputs[int(np.nanargmax(known[best[0]] - known[best[1]]))]
    return mp.log(laws[best[0]][at] / laws[best[1]][at])


# --- The contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_written_law_is_a_law(case: Case) -> None:
    for law in case.laws().values():
        assert abs(mp.fsum(law.values()) - 1) < OUTSIDE


EPSILONS = (Fraction(0), Fraction(1, 10), Fraction(1, 2), Fraction(2))


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_loss_covers_the_exact_law(case: Case) -> None:
    loss = case.mechanism.loss(case.sensitivity)
    match loss:
        case Pure():
            seen = precise(case)
            assert real(loss.epsilon) * case.tight - MARGIN <= seen <= real(loss.epsilon) + MARGIN
        case Approximate():
            seen = largest(case, lambda one, other: excess(one, other, loss.epsilon))
            assert seen <= float(loss.delta) * (1 + 1e-9)
        case ZCDP() if loss.delta:
            for epsilon in EPSILONS:
                seen = largest(case, lambda one, other, epsilon=epsilon: excess(one, other, epsilon))
                assert seen <= delta_at(loss, epsilon)
        case ZCDP():
            seen = max(
                largest(case, lambda one, other, order=order: renyi(one, other, order)) / order for order in ORDERS
            )
            assert float(loss.rho) * case.tight <= seen <= float(loss.rho) * (1 + 1e-9)
        case _:
            pytest.fail("a mechanism's own loss is pure, approximate or zCDP")


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_concentrated_loss_covers_the_exact_law(case: Case) -> None:
    loss = case.mechanism.zcdp_loss(case.sensitivity)
    if loss.delta:
        for epsilon in EPSILONS:
            seen = largest(case, lambda one, other, epsilon=epsilon: excess(one, other, epsilon))
            assert seen <= delta_at(loss, epsilon)
        return
    seen = max(largest(case, lambda one, other, order=order: renyi(one, other, order)) / order for order in ORDERS)
    assert seen <= float(loss.rho) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("case", [case for case in CASES if case.mechanism.name in LONE], ids=every)
def test_delta_is_what_a_unit_alone_needs(case: Case) -> None:
    """A unit alone in its groups: the stated delta is reached, but for the bound on a Gaussian tail, and no more."""
    groups, rows = int(case.sensitivity.l0), int(case.sensitivity.linf)
    law, empty = (case.law(case.mechanism, (count,) * groups) for count in (rows, 0))
    assert empty[()] == 1
    seen, stated = 1 - law[()], real(case.mechanism.zcdp_loss(case.sensitivity).delta)
    assert seen - MARGIN <= stated <= seen * (mpf("1.2") if "gaussian" in case.mechanism.name else 1 + mpf(10) ** -15)


@pytest.mark.parametrize("case", CASES, ids=every)
@pytest.mark.parametrize("nothing", [(0, 0), (3, 0)])
def test_no_distance_costs_nothing(case: Case, nothing: tuple[int, int]) -> None:
    still = Sensitivity.of(l0=nothing[0], linf=nothing[1])
    loss = case.mechanism.loss(still)
    assert (loss.rho if isinstance(loss, ZCDP) else loss.epsilon) == 0  # type: ignore[union-attr]
    assert getattr(loss, "delta", 0) == 0
    assert case.mechanism.zcdp_loss(still) == ZCDP(Fraction(0))


@pytest.mark.parametrize("case", CASES, ids=every)
def test_a_longer_way_never_costs_less(case: Case) -> None:
    costs = []
    for l0, linf in [(1, 1), (2, 1), (5, 1)]:
        sensitivity = Sensitivity.of(l0=l0, linf=linf)
        loss = case.mechanism.loss(sensitivity)
        costs.append(loss.rho if isinstance(loss, ZCDP) else loss.epsilon)  # type: ignore[union-attr]
    assert costs == sorted(costs) and costs[0] > 0


# --- Draws ----------------------------------------------------------------------------------------------------------


def drawn(case: Case, exact: tuple[int, ...], size: int) -> Counter[Any]:
    values = np.array(exact, np.int64)
    bits = SystemBits()
    return Counter(tuple(case.mechanism.release(values, bits).tolist()) for _ in range(size))


def unlikely(seen: Counter[Any], law: Law) -> list[Any]:
    """Outcomes whose count is, on its own, too rare: exact binomial tails, shared over all outcomes.

    The chance that a right law gives any is at most 1e-11, whatever the number of outcomes.
    """
    size = sum(seen.values())
    level = 1e-11 / (len(law) + 1)
    chances = {output: min(1.0, max(0.0, float(p))) for output, p in law.items()}
    chances["other"] = max(0.0, 1 - sum(chances.values())) + float(OUTSIDE)
    counts = Counter({output: seen[output] for output in law})
    counts["other"] = size - sum(counts.values())
    found = []
    for output, p in chances.items():
        tail = min(stats.binom.cdf(counts[output], size, p), stats.binom.sf(counts[output] - 1, size, p))
        if tail < level / 2:
            found.append((output, counts[output], size * p))
    return found


@pytest.mark.parametrize("case", CASES, ids=every)
def test_draws_follow_the_law(case: Case, tier: Any) -> None:
    exact = case.pairs[0][0]
    size = tier.pick(quick=500, test=10_000, deep=50_000)
    seen = drawn(case, exact, size if len(exact) < 10 else size // 20)
    assert unlikely(seen, case.law(case.mechanism, exact)) == []  # 40 cases at 1e-11: below 1e-9 in all


def with_half_the_scale(case: Case) -> Case:
    scale: Fraction = case.mechanism.scale / 2  # type: ignore[attr-defined]
    return replace(case, mechanism=replace(case.mechanism, scale=scale))  # type: ignore[type-var]


def apart(one: Law, other: Law) -> float:
    """The distance in total variation."""
    return float(sum(abs(one.get(output, 0) - other.get(output, 0)) for output in {*one, *other}) / 2)


class Branch(Exception):
    """The script of choices ends here; `chances` are those of the next choice."""

    def __init__(self, chances: list[Any]) -> None:
        self.chances = chances


def followed(release: Callable[[], Any], module: Any, monkeypatch: pytest.MonkeyPatch) -> Law:
    """The exact law of a release that only makes choices with `draw`: every script of choices, with its chance."""
    law: Law = {}
    open_ends: list[tuple[tuple[int, ...], Any]] = [((), mpf(1))]
    while open_ends:
        script, chance = open_ends.pop()
        left = iter(script)

        def scripted(misses: Any, rate: Fraction, bits: Any, left: Any = left) -> int:
            for place in left:
                return int(place)
            raise Branch(softmax([-real(rate * int(miss)) for miss in misses]))

        monkeypatch.setattr(module, "draw", scripted)
        try:
            output = tuple(release().tolist())
        except Branch as branch:
            open_ends += [((*script, place), chance * p) for place, p in enumerate(branch.chances)]
            continue
        law[output] = law.get(output, mpf(0)) + chance
    return law


CHOOSING = [
    case
    for case in CASES
    if case.mechanism.name in ("quantiles", "top_k", "exponential") and len(case.pairs[0][0]) < 10
]


@pytest.mark.parametrize("case", CHOOSING, ids=every)
def test_the_choices_have_exactly_the_written_law(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    module = quantiles if case.mechanism.name == "quantiles" else selection
    for exact, law in list(case.laws().items())[:6]:
        values = np.array(exact, np.int64)
        found = followed(lambda values=values: case.mechanism.release(values, SystemBits()), module, monkeypatch)
        assert set(found) <= set(law)
        assert max(abs(found.get(output, 0) - p) for output, p in law.items()) < MARGIN


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_misses_are_distances_of_ranks(counts: list[int], below: int, above: int) -> None:
    found = quantiles.misses(np.array(counts, np.int64), below, above)
    target = Fraction(below * sum(counts), below + above)
    for place, miss in enumerate(found.tolist()):
        low, high = sum(counts[:place]), sum(counts[: place + 1])
        assert Fraction(miss, below + above) == max(Fraction(0), low - target, target - high)


@pytest.mark.tier("test")
def test_draws_at_a_wrong_scale_are_caught() -> None:
    """A test of the test: noise of half the scale does not pass where it changes the law by a tenth."""
    tried = 0
    for case in CASES:
        if hasattr(case.mechanism, "scale"):
            wrong, exact = with_half_the_scale(case), case.pairs[0][0]
            right = case.law(case.mechanism, exact)
            if apart(wrong.law(wrong.mechanism, exact), right) > 0.1:
                tried += 1
                assert unlikely(drawn(wrong, exact, 6_000), right), case.id
    assert tried >= 12


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", ["discrete_laplace", "discrete_gaussian", "geometric", "staircase"])
def test_moments_follow_theory(name: str) -> None:
    """A million cells: the mean of zero and the stated variance, each within 7 standard errors (1e-11)."""
    made = {
        "discrete_laplace": mechanisms.DiscreteLaplace(Fraction(40)),
        "discrete_gaussian": mechanisms.DiscreteGaussian(Fraction(900)),
        "geometric": mechanisms.Geometric(Fraction(3, 2)),
        "staircase": mechanisms.Staircase(Fraction(1, 2), 20, 6),
    }[name]
    size = 1_000_000
    noise = made.release(np.zeros(size, np.int64), SystemBits()).astype(float)
    std = made.std()
    assert abs(noise.mean()) < 7 * std / size**0.5
    spread = (noise**2).std() / size**0.5
    assert abs((noise**2).mean() - std**2) < 7 * spread


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.mechanism.name in ("discrete_laplace", "staircase")], ids=every
)
def test_the_public_law_is_the_law(case: Case) -> None:
    points = np.arange(-200, 201)
    mass = case.mechanism.noise_distribution.mass(points)
    assert mass.sum() == pytest.approx(1, abs=1e-9)
    assert np.sqrt((mass * points**2).sum()) == pytest.approx(case.mechanism.std(), rel=1e-7)
    expected = case.law(case.mechanism, (0,) * len(case.pairs[0][0]))
    if len(case.pairs[0][0]) == 1:
        assert float(expected[(3,)]) == pytest.approx(float(mass[203]), rel=1e-12)


@pytest.mark.parametrize("variance", [Fraction(1, 5), Fraction(2), Fraction(100)])
def test_the_public_gaussian_law(variance: Fraction) -> None:
    made = mechanisms.DiscreteGaussian(variance)
    points = np.arange(-200, 201)
    mass = made.noise_distribution.mass(points)
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    assert np.sqrt((mass * points**2).sum()) == pytest.approx(made.std(), rel=1e-12)


def test_selection_has_no_noise_in_each_cell() -> None:
    with pytest.raises(Unsupported, match="noisy_max"):
        _ = mechanisms.NoisyMax(Fraction(1)).noise_distribution


# --- What cannot be defined or made ---------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["name", "proof", "loss", "release"])
def test_a_mechanism_without_a_loss_or_a_proof_cannot_be_defined(missing: str) -> None:
    body: dict[str, Any] = {
        "name": "bad",
        "proof": "bad.md",
        "loss": lambda self, sensitivity: Pure(Fraction(0)),
        "release": lambda self, exact, bits: exact,
    }
    type("Good", (Mechanism,), dict(body))
    del body[missing]
    with pytest.raises(TypeError, match=missing):
        type("Bad", (Mechanism,), body)


def test_a_subclass_cannot_lean_on_its_parent() -> None:
    parent = type(
        "Parent",
        (Mechanism,),
        {"name": "p", "proof": "p.md", "loss": lambda self, s: Pure(0), "release": lambda self, e, b: e},
    )
    with pytest.raises(TypeError, match="loss"):
        type("Child", (parent,), {"name": "c", "proof": "c.md", "release": lambda self, e, b: e})


def test_every_mechanism_has_a_row_a_maker_and_a_proof_page() -> None:
    pages = Path(dither.__file__).parent / "proofs"
    assert {case.mechanism.name for case in CASES} == set(BY_NAME) == set(MAKERS)
    for name, kind in BY_NAME.items():
        assert kind.name == name
        assert (pages / kind.proof).is_file()
        assert kind in Mechanism.__subclasses__()


@pytest.mark.parametrize("case", CASES, ids=every)
def test_descriptions_are_public_json(case: Case) -> None:
    shown = json.loads(json.dumps(case.mechanism.describe()))
    assert shown["mechanism"] == case.mechanism.name
    assert shown["does"].endswith(".")
    assert {field.name for field in fields(case.mechanism)} <= set(shown)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=every)
def test_texts_make_the_same_mechanism(case: Case) -> None:
    """Rationals may come as "p/q"."""
    texts = {
        name: str(value) if isinstance(value, Fraction) else value for name, value in case.mechanism.__dict__.items()
    }
    assert BY_NAME[case.mechanism.name](**texts) == case.mechanism


@pytest.mark.parametrize("case", CASES, ids=every)
def test_mechanisms_travel_to_workers(case: Case) -> None:
    assert pickle.loads(pickle.dumps(case.mechanism)) == case.mechanism


@pytest.mark.parametrize("scale", [0, -1, "1/1001", 2**40 + 1, "1e-70"])
def test_scales_outside_the_public_limits_are_refused(scale: Any) -> None:
    for name in ("discrete_laplace", "geometric", "noisy_max", "exponential"):
        with pytest.raises(InvalidParameter):
            BY_NAME[name](scale=scale)


def test_the_floor_is_public_and_kept() -> None:
    assert Fraction(1, 2**40) == FLOOR == 1 / LARGEST_SCALE
    one = Sensitivity.of(l0=1, linf=1)
    for name in set(PURE) - {"randomized_response"}:  # which has no scale
        with pytest.raises(InvalidParameter):
            calibrate(name, Pure(FLOOR / 10), one, **OPTIONS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("top_k", {"count": 0, "scale": 1}),
        ("top_k", {"count": True, "scale": 1}),
        ("staircase", {"epsilon": 1, "width": 3, "rise": 4}),
        ("staircase", {"epsilon": 2, "width": 2**40 + 1, "rise": 1}),
        ("geometric", {"scale": 1, "lower": 3, "upper": 2}),
        ("snapping", {"scale": 1, "bound": 0}),
        ("quantiles", {"quantiles": (), "scale": 1}),
        ("quantiles", {"quantiles": ("1/2", "1/4"), "scale": 1}),
        ("quantiles", {"quantiles": (0,), "scale": 1}),
        ("quantiles", {"quantiles": (1,), "scale": 1}),
        ("quantiles", {"quantiles": ("1/10007",), "scale": 1}),
        ("partition_selection", {"epsilon": "1/20000", "delta": "1/100"}),
        ("partition_selection", {"epsilon": 1, "delta": 0}),
        ("randomized_response", {"categories": 1, "flip_probability": "1/2"}),
        ("randomized_response", {"categories": 2, "flip_probability": 0}),
        ("above_threshold", {"threshold": 1.5, "count": 1, "threshold_scale": 1, "score_scale": 1}),
    ],
)
def test_wrong_parameters_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        BY_NAME[name](**wrong)


def test_lengths_are_refused_before_any_charge() -> None:
    for case in CASES:
        case.mechanism.admit(5)
    for made in (mechanisms.NoisyMax(1), mechanisms.ExponentialMechanism(1), mechanisms.Quantiles(("1/2",), 1)):
        for size in (0, 2**18 + 1):
            with pytest.raises(InvalidParameter):
                made.admit(size)
    with pytest.raises(InvalidParameter):
        mechanisms.TopK(3, 1).admit(2)


def test_partition_selection_wants_each_unit_once() -> None:
    with pytest.raises(InvalidParameter, match="distinct units"):
        mechanisms.PartitionSelection(1, "1/100").loss(Sensitivity.of(l0=1, linf=2))


# --- Calibration ----------------------------------------------------------------------------------------------------


def test_calibration_is_exact_where_rationals_are() -> None:
    sensitivity = Sensitivity.of(l0=3, linf=2)
    assert calibrate("discrete_laplace", Pure("1/10"), sensitivity) == mechanisms.DiscreteLaplace(60)
    assert calibrate("discrete_gaussian", ZCDP("1/10"), sensitivity) == mechanisms.DiscreteGaussian(60)
    assert calibrate("noisy_max", Pure("1/10"), sensitivity) == mechanisms.NoisyMax(40)
    assert calibrate("quantiles", Pure("1/10"), sensitivity) == mechanisms.Quantiles(("1/2",), 60)


@pytest.mark.parametrize("name", PURE)
@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(1, 50))
@settings(max_examples=10, deadline=None)
def test_calibration_never_costs_more_and_hardly_less(name: str, epsilon: int, l0: int, linf: int) -> None:
    sensitivity = Sensitivity.of(l0=l0, linf=linf)
    loss = Pure(Fraction(epsilon, 10**5))
    cost = calibrate(name, loss, sensitivity, **OPTIONS.get(name, {})).loss(sensitivity)
    assert isinstance(cost, Pure)
    assert loss.epsilon * Fraction(999999, 10**6) <= cost.epsilon <= loss.epsilon


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "discrete_gaussian"])
@given(st.integers(1, 10**5), st.integers(1, 8))
@settings(max_examples=5, deadline=None)
def test_calibration_to_rho_never_costs_more_and_hardly_less(name: str, rho: int, l0: int) -> None:
    sensitivity = Sensitivity.of(l0=l0, linf=1)
    loss = ZCDP(Fraction(rho, 10**5), Fraction(1, 10**6))
    cost = calibrate(name, loss, sensitivity, **OPTIONS.get(name, {})).zcdp_loss(sensitivity)
    assert loss.rho * Fraction(999999, 10**6) <= cost.rho <= loss.rho
    assert cost.delta <= loss.delta


@pytest.mark.parametrize("name", ["partition_selection", "laplace_threshold", "gaussian_threshold"])
@pytest.mark.parametrize("groups", [1, 3, 40])
def test_keys_are_calibrated_to_epsilon_and_delta(name: str, groups: int) -> None:
    sensitivity = Sensitivity.of(l0=groups, linf=1)
    wanted = Approximate(1, 1e-6)
    cost = calibrate(name, wanted, sensitivity).loss(sensitivity)
    assert epsilon_at(cost, wanted.delta) <= wanted.epsilon
    if isinstance(cost, Approximate):
        assert cost.delta <= wanted.delta and cost.epsilon >= wanted.epsilon * Fraction(999, 1000)


def test_partition_selection_shares_epsilon_and_delta_over_groups() -> None:
    made = calibrate("partition_selection", Approximate(1, "1/1000"), Sensitivity.of(l0=4, linf=1))
    assert isinstance(made, mechanisms.PartitionSelection)
    assert made.epsilon == Fraction(1, 4)
    assert float(made.delta) == pytest.approx(1 - (1 - 1e-3) ** 0.25, rel=1e-12)
    assert made.delta > Fraction(1, 4000)


@pytest.mark.parametrize("name", PURE)
def test_nothing_at_stake_takes_the_least_noise(name: str) -> None:
    made = calibrate(name, Pure(1), Sensitivity.of(l0=0, linf=0), **OPTIONS.get(name, {}))
    assert made.loss(Sensitivity.of(l0=0, linf=0)) == Pure(0)


def test_other_kinds_of_loss() -> None:
    one = Sensitivity.of(l0=1, linf=1)
    gaussian = calibrate("discrete_gaussian", Approximate(1, 1e-6), one)
    assert epsilon_at(gaussian.loss(one), 1e-6) <= 1
    assert calibrate("discrete_gaussian", Renyi(((2, 1), (8, 2))), one).loss(one) == ZCDP(Fraction(1, 4))
    assert calibrate("discrete_laplace", Approximate(1, 1e-6), one) == mechanisms.DiscreteLaplace(1)


@pytest.mark.parametrize(
    ("name", "loss", "options"),
    [
        ("discrete_gaussian", Pure(1), {}),
        ("gaussian_threshold", Pure(1), {}),
        ("partition_selection", Pure(1), {}),
        ("laplace_threshold", ZCDP(1), {}),
        ("discrete_laplace", Pure(0), {}),
        ("discrete_laplace", Pure(1), {"colour": 1}),
        ("top_k", Pure(1), {}),
        ("laplace", Pure(1), {}),
        ("exponential", ZCDP("1e-40"), {}),
    ],
)
def test_what_cannot_be_calibrated_is_refused(name: str, loss: Any, options: dict[str, Any]) -> None:
    with pytest.raises(DitherError):
        calibrate(name, loss, Sensitivity.of(l0=1, linf=1), **options)


junk = st.one_of(st.integers(), st.just(10**400), st.floats(), st.text(max_size=5), st.none(), st.lists(st.integers()))


@given(
    st.sampled_from(sorted(BY_NAME)), junk, junk, st.sampled_from([Pure(1), ZCDP("1/9", "1/99"), Approximate(1, "1/9")])
)
@settings(max_examples=100, deadline=None)
def test_junk_is_refused_with_our_own_errors(name: str, one: Any, other: Any, loss: Any) -> None:
    wanted = {"staircase": ["width"], "geometric": ["lower", "upper"]}.get(name, list(OPTIONS.get(name, {"colour": 1})))
    options = dict(zip(wanted, (one, other), strict=False))
    sensitivity = Sensitivity.of(l0=2, linf=1)
    try:
        made = calibrate(name, loss, sensitivity, **options)
    except DitherError:
        return
    assert made.zcdp_loss(sensitivity).rho >= 0


# --- Single mechanisms ----------------------------------------------------------------------------------------------

words = st.integers(-(2**63), 2**63 - 1)


@given(words, words)
def test_saturating_add(x: int, y: int) -> None:
    total = saturating_add(np.array([x], np.int64), np.array([y], np.int64))
    assert total[0] == max(-(2**63), min(2**63 - 1, x + y))


@given(words, words, st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_reaches_is_exact(score: int, noise: int, threshold: int, bar: int) -> None:
    answer = reaches(np.array([score], np.int64), np.array([noise], np.int64), threshold, bar)
    assert bool(answer[0]) == (score + noise >= threshold + bar)


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3))
def test_reaches_at_the_edge(score: int, noise: int, bar: int) -> None:
    answer = reaches(np.array([score], np.int64), np.array([noise], np.int64), 0, bar)
    assert bool(answer[0]) == (score + noise >= bar)


def test_first_places() -> None:
    assert first(np.array([False, True, True, True]), 2).tolist() == [1, 2]
    assert first(np.array([False, True]), 3).tolist() == [1, -1, -1]


def test_noisy_max_is_permute_and_flip() -> None:
    """The largest score with exponential noise, by integration, has the law of permute-and-flip."""
    made, scores = mechanisms.NoisyMax(Fraction(2)), (2, 0, 1)
    law = noisy_max_law(made, scores)
    scale = real(made.scale)
    for i, score in enumerate(scores):

        def others(x: Any, i: int = i) -> Any:
            below = [1 - mp.exp(-max(mpf(0), x - other) / scale) for j, other in enumerate(scores) if j != i]
            return mp.exp(-(x - scores[i]) / scale) / scale * mp.fprod(below)

        assert abs(mp.quad(others, [score, 2, 3, 5, 10, 40, mp.inf]) - law[i,]) < mpf(10) ** -15


def test_selection_takes_the_whole_range_of_scores() -> None:
    """No overflow, no underflow: the far best candidate wins, ties are shared."""
    low, high = -(2**63), 2**63 - 1
    bits = SystemBits()
    scores = np.array([low, high, 0, high], np.int64)
    for made in (mechanisms.NoisyMax(1), mechanisms.ExponentialMechanism(1)):
        seen = {int(made.release(scores, bits)[0]) for _ in range(200)}
        assert seen == {1, 3}  # wrong by chance once in 2^199
    assert set(mechanisms.TopK(2, 1).release(scores, bits).tolist()) == {1, 3}
    all_low = np.full(3, low, np.int64)
    assert len({int(mechanisms.ExponentialMechanism(1).release(all_low, bits)[0]) for _ in range(400)}) == 3


def test_draw_goes_on_until_one_is_kept() -> None:
    assert draw(np.array([7, 0, 9], np.int64), Fraction(1000), SystemBits()) == 1


def test_several_quantiles_cost_less_than_one_mechanism_each() -> None:
    one = Sensitivity.of(l0=1, linf=1)
    deciles = tuple(Fraction(i, 10) for i in range(1, 10))
    together = mechanisms.Quantiles(deciles, 10)
    apart = [mechanisms.Quantiles((q,), 10) for q in deciles]
    assert together.loss(one).epsilon < sum(made.loss(one).epsilon for made in apart) * Fraction(2, 5)
    assert together.zcdp_loss(one).rho < sum(made.zcdp_loss(one).rho for made in apart) * Fraction(2, 5)


def test_one_quantile_costs_the_rank_times_the_larger_share() -> None:
    for rows in (1, 4):
        sensitivity = Sensitivity.of(l0=1, linf=rows)
        for q in (Fraction(1, 2), Fraction(1, 10), Fraction(9, 10)):
            assert mechanisms.Quantiles((q,), 20).loss(sensitivity) == Pure(2 * rows * max(q, 1 - q) / 20)


def test_quantiles_are_near_and_in_order() -> None:
    """At a scale of a thousandth of the rows, each chosen point is within a hundredth of its rank (miss: e^-100)."""
    counts = np.random.default_rng(1).poisson(1000, 500).astype(np.int64)
    made = mechanisms.Quantiles(tuple(Fraction(i, 8) for i in range(1, 8)), 500)
    places = made.release(counts, SystemBits())
    shares = np.cumsum(counts)[places] / counts.sum()
    assert (np.diff(places) >= 0).all()
    assert np.abs(shares - np.arange(1, 8) / 8).max() < 0.05


def test_quantiles_of_mostly_one_value() -> None:
    counts = np.array([0, 0, 90_000, 4_000, 3_000, 3_000], np.int64)
    made = mechanisms.Quantiles(("1/4", "1/2", "3/4"), 10)
    assert made.release(counts, SystemBits()).tolist() == [2, 2, 2]


def test_quantiles_of_huge_counts_do_not_overflow() -> None:
    counts = np.array([2**63 - 1, 2**63 - 1, -(2**63)], np.int64)
    assert set(mechanisms.Quantiles(("1/2",), 1).release(counts, SystemBits()).tolist()) <= {0, 1, 2}


class OneWord:
    """Every uniform number is the same 128 bits."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, size: int, bits: int) -> Words:
        return np.repeat(np.array([self.word >> 64, self.word % 2**64], np.uint64), size // 2)

    def integer(self, bits: int) -> int:
        return self.word


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1/100"), ("1/20", "1/1000000"), ("1/4", "5e-13"), ("8", "1/2")])
def test_partition_selection_is_optimal_and_rounded_down(epsilon: str, delta: str) -> None:
    """The chances are those of the paper, from below, and each bit pattern is decided as the table says."""
    e, d = Fraction(epsilon), Fraction(delta)
    made, chances = mechanisms.PartitionSelection(e, d), kept_chances(e, d)
    for units in {1, 2, 3, len(chances) // 2, len(chances) - 2, len(chances) - 1} & set(range(1, len(chances))):
        chance, exact = chances[units], np.array([units], np.int64)
        assert 0 <= optimal_chance(e, d, units) - mpf(chance) / 2**128 < mpf(2) ** -75
        assert made.release(exact, OneWord(chance - 1)).tolist() == [0]
        if chance < 2**128:
            assert made.release(exact, OneWord(chance)).tolist() == []
    assert made.release(np.array([0, -5]), OneWord(0)).tolist() == []
    assert made.release(np.array([2**63 - 1]), OneWord(2**128 - 1)).tolist() == [0]


def kept_chances(epsilon: Fraction, delta: Fraction) -> list[int]:
    """The chances of keeping 0, 1, 2, ... units as the table has them, in units of 2^-128."""
    upper, lower = keep_table(epsilon, delta).tolist()
    return [0, *((high << 64 | low) + 1 for high, low in zip(upper, lower, strict=True))]


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1/100"), ("1/20", "1/1000000"), ("1/4", "5e-13")])
def test_the_rounded_chances_are_private(epsilon: str, delta: str) -> None:
    """Both inequalities of (epsilon, delta) for every pair of neighbouring counts, in 60 digits."""
    e, d = Fraction(epsilon), Fraction(delta)
    with mp.workdps(60):
        grown = mp.exp(real(e))
        chances = [mpf(chance) / 2**128 for chance in kept_chances(e, d)]
        for few, many in pairwise(chances):
            assert few <= many <= grown * few + real(d)
            assert 1 - few <= grown * (1 - many) + real(d)


def test_the_threshold_of_the_url_release() -> None:
    """Public shares + Laplace(5) > 100: epsilon 1/5 and about 1e-9 for an action, unless the URLs are declared."""
    action = Sensitivity.of(l0=1, linf=1)
    private = mechanisms.LaplaceThreshold(5, 101).loss(action)
    assert private.epsilon == Fraction(1, 5)
    assert float(private.delta) == pytest.approx(float(laplace_reaches(Fraction(5), 100)), rel=1e-12)
    assert 1.1e-9 < private.delta < 1.3e-9
    assert mechanisms.PublicThreshold(5, 101).loss(action) == Pure(Fraction(1, 5))


def test_public_keys_may_be_named_without_rows() -> None:
    empty = np.zeros(2000, np.int64)
    assert len(mechanisms.PublicThreshold(2, 1).release(empty, SystemBits())) > 0
    assert len(mechanisms.LaplaceThreshold(2, 1).release(empty, SystemBits())) == 0
    assert len(mechanisms.GaussianThreshold(2, 1).release(empty, SystemBits())) == 0


def test_the_exponential_mechanism_alone_has_bounded_range() -> None:
    sensitivity = Sensitivity.of(l0=9, linf=1)
    epsilon = Fraction(1, 10)
    scale = 2 / epsilon
    assert mechanisms.ExponentialMechanism(scale).zcdp_loss(sensitivity).rho == epsilon**2 / 8
    assert mechanisms.TopK(3, scale).zcdp_loss(sensitivity).rho == 3 * epsilon**2 / 8
    noisy = mechanisms.NoisyMax(scale).zcdp_loss(sensitivity).rho
    assert epsilon**2 / 2 * Fraction(99, 100) < noisy <= epsilon**2 / 2


def test_sparse_vector_has_the_corrected_constants() -> None:
    """Lyu, Su and Li: 1 / b1 + 2c / b2 (+ c / b3), where wrong variants leave out the c or the 2."""
    wide = Sensitivity.of(l0=1000, linf=1)
    assert mechanisms.AboveThreshold(0, 5, 10, 20).loss(wide) == Pure(Fraction(1, 10) + Fraction(10, 20))
    assert mechanisms.SparseVector(0, 5, 10, 20, 40).loss(wide) == Pure(Fraction(3, 5) + Fraction(5, 40))
    lone = Sensitivity.of(l0=1, linf=1)
    assert mechanisms.AboveThreshold(0, 5, 10, 20).loss(lone) == Pure(Fraction(1, 20))  # one noisy score tells all


def test_the_stated_costs() -> None:
    """Figures worked out by hand, at a distance where every norm is different: two cells by 3."""
    s = Sensitivity.of(l0=2, linf=3)
    assert mechanisms.DiscreteLaplace(12).loss(s) == mechanisms.Geometric(12).loss(s) == Pure("1/2")
    assert mechanisms.Snapping(12, 64).loss(s) == mechanisms.PublicThreshold(12, 9).loss(s) == Pure("1/2")
    assert mechanisms.DiscreteGaussian(9).loss(s) == ZCDP(1)
    assert mechanisms.Staircase("1/4", 2, 1).loss(s) == Pure(1)  # two steps in each cell
    assert mechanisms.Staircase("1/4", 4, 1).loss(s) == Pure("1/2")  # one
    uneven = Sensitivity(*map(Fraction, (2, 9, 10, 82)))
    assert mechanisms.Staircase("1/4", 4, 1).loss(uneven) == Pure(1)  # 9 is three steps, 1 is one
    assert mechanisms.TopK(2, 12).loss(s) == Pure(1)
    sparse = mechanisms.SparseVector(0, 1, 12, 12, 12)
    assert sparse.loss(s) == Pure(Fraction(6, 12) + Fraction(3, 12))
    crossing = pure_as_rho(Fraction(1, 2))
    assert sparse.zcdp_loss(s) == ZCDP(crossing + Fraction(9, 2 * 144))
    assert replace(sparse, count=5).zcdp_loss(s) == ZCDP(crossing + Fraction(18, 2 * 144))
    deciles = mechanisms.Quantiles(("1/10", "9/10"), 12)
    assert deciles.loss(s) == Pure(Fraction(2 * 6, 12) * (Fraction(9, 10) + Fraction(8, 9)))
    assert deciles.zcdp_loss(s) == ZCDP(Fraction(36, 2 * 144) * (Fraction(9, 10) ** 2 + Fraction(8, 9) ** 2))
    three = mechanisms.Quantiles(("1/10", "2/10", "9/10"), 12)
    assert three.loss(s) == Pure(Fraction(2 * 6, 12) * (Fraction(8, 10) + Fraction(7, 8)))
    groups = Sensitivity.of(l0=3, linf=1)
    assert mechanisms.PartitionSelection("1/5", "1/100").loss(groups).epsilon == Fraction(3, 5)
    assert mechanisms.PartitionSelection("1/5", "1/100").zcdp_loss(groups).rho == 3 * pure_as_rho(Fraction(1, 5))


def test_the_stated_costs_of_laplace_noise_in_rho() -> None:
    """The squares where few cells move far, the hyperbolic tangent where all that move do."""
    uneven, far = Sensitivity(*map(Fraction, (10, 5, 10, 30))), Sensitivity.of(l0=2, linf=30)
    assert mechanisms.DiscreteLaplace(100).zcdp_loss(uneven).rho == Fraction(30, 2 * 100**2)
    assert mechanisms.DiscreteLaplace(2).zcdp_loss(far).rho == 2 * pure_as_rho(Fraction(15))


def test_one_of_several_events() -> None:
    assert partitions.any_of(Fraction(1), 0) == partitions.any_of(Fraction(1, 2), 0) == 0
    assert partitions.any_of(Fraction(1), 3) == 1
    assert partitions.any_of(Fraction(1, 10**50), 2) == Fraction(2, 10**50)
    assert float(partitions.any_of(Fraction(1, 2), 2)) == 0.75
    assert partitions.any_of(Fraction(1, 2), 2) >= Fraction(3, 4)


# --- Others' figures ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def losses() -> Any:
    """The privacy loss distributions of dp-accounting."""
    require(find_spec("dp_accounting"), "comparison with dp-accounting: pip install dp-accounting")
    return import_module("dp_accounting.pld.privacy_loss_distribution")


@pytest.mark.tier("test")
@pytest.mark.parametrize(("scale", "step"), [(1, 1), (5, 2), (20, 7)])
def test_laplace_agrees_with_dp_accounting(losses: Any, scale: int, step: int) -> None:
    theirs = losses.from_discrete_laplace_mechanism(1 / scale, sensitivity=step, value_discretization_interval=1e-4)
    ours = float(mechanisms.DiscreteLaplace(scale).loss(Sensitivity.of(l0=1, linf=step)).epsilon)
    assert theirs.get_epsilon_for_delta(0) == pytest.approx(ours, abs=2e-4)


@pytest.mark.tier("test")
@pytest.mark.parametrize(("variance", "step"), [(100, 1), (4, 2)])
def test_gaussian_covers_dp_accounting(losses: Any, variance: int, step: int) -> None:
    theirs = losses.from_discrete_gaussian_mechanism(
        variance**0.5, sensitivity=step, value_discretization_interval=1e-4
    )
    loss = mechanisms.DiscreteGaussian(variance).loss(Sensitivity.of(l0=1, linf=step))
    tight, ours = theirs.get_epsilon_for_delta(1e-6), float(epsilon_at(loss, 1e-6))
    assert tight <= ours <= 1.15 * tight


@pytest.mark.tier("test")
def test_figures_agree_with_opendp() -> None:
    require(find_spec("opendp"), "comparison with OpenDP: pip install opendp")
    dp = import_module("opendp.prelude")
    dp.enable_features("contrib")
    vector = (dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int))
    s = Sensitivity.of(l0=1, linf=3)
    laplace = dp.m.make_laplace(*vector, scale=7.0).map(3)
    assert float(mechanisms.DiscreteLaplace(7).loss(s).epsilon) == pytest.approx(laplace, rel=1e-12)
    squared = (dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=int))
    gaussian = dp.m.make_gaussian(*squared, scale=7.0).map(3)
    assert float(mechanisms.DiscreteGaussian(49).loss(s).rho) == pytest.approx(gaussian, rel=1e-12)
    scores = (dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int))
    many = Sensitivity.of(l0=50, linf=3)
    flip = dp.m.make_noisy_max(*scores, dp.max_divergence(), scale=7.0).map(3)
    assert float(mechanisms.NoisyMax(7).loss(many).epsilon) == pytest.approx(flip, rel=1e-12)
    gumbel = dp.m.make_noisy_max(*scores, dp.zero_concentrated_divergence(), scale=7.0).map(3)
    assert float(mechanisms.ExponentialMechanism(7).zcdp_loss(many).rho) == pytest.approx(gumbel, rel=1e-12)
    ours = mechanisms.RandomizedResponse(4, Fraction(2, 5))
    truth = dp.m.make_randomized_response(
        categories=[0, 1, 2, 3], prob=float(1 - ours.flip_probability + ours.flip_probability / 4)
    ).map(1)
    assert float(ours.epsilon) == pytest.approx(truth, rel=1e-12)
