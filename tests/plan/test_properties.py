"""Random plans on random hostile tables, with neighbours: every promise holds, and planted faults are found.

(a) the measured change is at most the stated sensitivity, in every norm; (b) the symmetric difference of the rows is at
most the stated influence; (c) every value lies inside its stated domain; (d) engines agree (see the engines' tests);
(e) the engine agrees with the plain interpreter of reference.py; (f) no statement ever fails.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import plan.faults as faults
import plan.plans as plans
import plan.trials as trials
from dither.plan.measures import BY_NAME as MEASURES_BY_NAME
from dither.plan.measures.core import Measure
from dither.plan.relations import BY_NAME
from dither.plan.relations.core import Relation
from dither.plan.sql.dialect import Dialect
from plan.shrink import shrunk, size, smallest
from plan.trials import DuckBench, Tally, Violation

SEEDS = st.integers(min_value=0, max_value=2**64 - 1)


def hypothesis_settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def run_seeds(examples: int, body: Callable[[int], None], bench: DuckBench) -> None:
    """Runs a body on seeds that Hypothesis chooses; the failing seed is in its report, the smallest case in ours."""

    @hypothesis_settings(examples)
    @given(seed=SEEDS)
    def property_holds(seed: int) -> None:
        try:
            body(seed)
        except Violation as violation:
            raise smallest(violation, bench) from None

    property_holds()


# One batch in eight has every plan in statements of its own, as an engine would run it.
SHARDS, BATCH, ALONE = 8, 5, 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_promises_hold_on_duckdb(
    tier: Any, shard: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shard % 2:  # every limit counts as large: partitions within it are kept unsorted, units within it unclipped
        monkeypatch.setattr(Dialect, "many_rows", 0)
    bench, tally = DuckBench(), Tally()
    plans_wanted = tier.pick(quick=40, test=2_000, deep=50_000) // SHARDS

    def body(seed: int) -> None:
        trials.run_batch(Random(seed * SHARDS + shard), bench, tally, BATCH, alone=seed % ALONE == 0)

    run_seeds(-(-plans_wanted // BATCH), body, bench)
    with capsys.disabled():
        print(f"\n  tests/access {shard + 1}/{SHARDS}: {tally.line('duckdb')}")
    assert tally.plans >= plans_wanted


def test_functions_stay_within_a_step_and_their_domains(tier: Any) -> None:
    """LN, EXP, POWER: rows are checked for domain, influence and failure; values only here against Python's own."""
    bench, tally = DuckBench(), Tally()

    def body(seed: int) -> None:
        rng = Random(seed)
        item = plans.case(rng, exact=False)
        trials.check(item, bench, rng, 2, tally, references=0)

    run_seeds(tier.pick(quick=10, test=200, deep=5_000), body, bench)


def test_a_trial_among_many_is_answered_as_if_alone(tier: Any) -> None:
    """The trial column, which only these tests use, changes no result."""
    bench = DuckBench()

    def body(seed: int) -> None:
        rng = Random(seed)
        item = plans.case(rng, single=True)
        if item.measure is None:
            return
        setting = trials.settle(item, bench, rng, 0, Tally())
        statement = trials.statement_for(setting, item.measure)
        statement.trial = None
        plan = item.measure.vector_query(statement)
        found = trials.to_vector(item.measure, plan, bench.run(plan.select))
        assert found.tolist() == trials.Interpreter(item.ctx, item.data, trials.SECRET).vector(item.measure)

    run_seeds(tier.pick(quick=10, test=150, deep=3_000), body, bench)


# Those left out have tests of their own (test_tight.py, test_selected_keys.py, tests/release): a join on other keys;
# counts and shares of keys that come from the data, which have no declared cells; columns of a static release.
OPERATORS = {name for name, node in BY_NAME.items() if issubclass(node, Relation)} - {"key_join"}
MEASURES = {name for name, node in MEASURES_BY_NAME.items() if issubclass(node, Measure)} - {
    "partition_counts",
    "key_shares",
    "column_counts",
}


@pytest.mark.tier("test")
def test_every_operator_and_measure_reaches_what_it_states(capsys: pytest.CaptureFixture[str]) -> None:
    """Tightness: some random plan moves exactly the stated number of rows, and each norm of each measure as stated."""
    bench, tally, seeds = DuckBench(), Tally(), iter(range(600))
    norms = {(name, norm) for name in MEASURES for norm in trials.NORMS}
    while not (set(tally.rows_reached) >= OPERATORS and set(tally.norms_reached) >= norms):
        trials.run_batch(Random(next(seeds)), bench, tally, BATCH)
    with capsys.disabled():
        print(f"\n  tests/access: equality in {tally.plans} plans: {dict(tally.rows_reached)}, of norms:")
        print(f"  {dict(tally.norms_reached)}")


@pytest.mark.tier("test")
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_planted_fault_is_found(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same generator and checks, steered to the operator at fault, find it within a few hundred plans."""
    bench = DuckBench()
    faults.steer(fault, monkeypatch)
    for seed in range(4):
        trials.run_batch(Random(seed), bench, Tally(), BATCH)
    shown = faults.found(fault, bench, monkeypatch)
    assert shown is not None, f"the fault was not found: {fault}"
    with capsys.disabled():
        print(f"\n  tests/access: found '{fault}' within {shown[0]} plans, by check ({shown[1].kind})")


@pytest.mark.tier("test")
@pytest.mark.parametrize("fault", ["union counted once", "NaN passing a clamp"])
def test_what_broke_a_promise_is_made_small(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator as it is, unsteered: plans of several operators over dozens of rows become a few nodes and rows."""
    bench = DuckBench()
    shown = faults.found(fault, bench, monkeypatch)
    assert shown is not None
    before, found = shown[1].item, smallest(shown[1], bench)
    with capsys.disabled():
        print(f"\n  tests/access: '{fault}' shrunk from {size(before)} to {size(found.item)}\n{found}")
    assert isinstance(found, Violation)
    assert size(found.item)[0] <= 16
    assert sum(len(raw.rows) for raw in found.item.data.values()) <= 2
    assert shrunk(found.item, bench, found.kind) == found.item
