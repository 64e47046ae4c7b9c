"""Mechanisms that cannot be defined or made; descriptions, texts and copies of those that can."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import dither
from cases import CASES, Case
from dither.errors import InvalidParameter
from dither.loss import Pure, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.mechanisms import BY_NAME, FLOOR, LARGEST_SCALE, Mechanism, calibrate
from dither.privacy.mechanisms.calibration import KINDS
from privacy.mechanism_cases import OPTIONS, PURE, every


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
    assert {case.mechanism.name for case in CASES} == set(BY_NAME) == {kind.name for kind, _ in KINDS.values()}
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
        case.mechanism.check_length(6)
    for made in (mechanisms.NoisyMax(1), mechanisms.ExponentialMechanism(1), mechanisms.Quantiles(("1/2",), 1)):
        for size in (0, 2**18 + 1):
            with pytest.raises(InvalidParameter):
                made.check_length(size)
    with pytest.raises(InvalidParameter):
        mechanisms.TopK(3, 1).check_length(2)
    mechanisms.TopK(64, 1).check_length(2**18)
    with pytest.raises(InvalidParameter, match="at most 64 of 262144"):  # each choice draws for every candidate
        mechanisms.TopK(65, 1).check_length(2**18)


def test_partition_selection_wants_each_unit_once() -> None:
    with pytest.raises(InvalidParameter, match="distinct units"):
        mechanisms.PartitionSelection(1, "1/100").loss(Sensitivity.of(l0=1, linf=2))
