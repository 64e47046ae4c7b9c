"""Test the plan fuzzer: its plans follow from its samples and its seed alone."""

from __future__ import annotations

import copy
import json

from dither.audit.attacks import fuzz

SAMPLE = json.dumps({"node": "count", "child": {"node": "filter", "child": {"node": "scan", "table": "people"}}})


def test_the_same_seed_gives_the_same_plans_again() -> None:
    """No plan changes the values that the fuzzer inserts, which all fuzzers share."""
    before = copy.deepcopy(fuzz.ABSURD)
    first, second = (list(fuzz.Fuzzer([SAMPLE.encode()], seed=7).plans(1000)) for _ in range(2))
    assert first == second and before == fuzz.ABSURD
