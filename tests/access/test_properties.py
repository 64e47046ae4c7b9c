"""Random plans on random hostile tables, with neighbours: every promise holds, and planted faults are found.

(a) the measured change is at most the stated sensitivity, in every norm; (b) the symmetric difference of the rows is at
most the stated influence; (c) every value lies inside its stated domain; (d) engines agree (see the engines' tests);
(e) the engine agrees with the plain interpreter of reference.py; (f) no statement ever fails.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlglot import exp

import access.plans as plans
import access.trials as trials
import dither.access.clean as clean
import dither.access.expr as expr
import dither.access.measure as measure
import dither.access.relation as relation
import dither.access.spelling as spelling
from access.trials import DuckBench, Tally, Violation
from dither.access.statement import Statement
from dither.schema import Number

SEEDS = st.integers(min_value=0, max_value=2**64 - 1)


def hypothesis_settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def run_seeds(examples: int, body: Callable[[int], None]) -> None:
    """Runs a body on seeds that Hypothesis chooses; the failing seed is in its report."""

    @hypothesis_settings(examples)
    @given(seed=SEEDS)
    def property_holds(seed: int) -> None:
        body(seed)

    property_holds()


SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_promises_hold_on_duckdb(tier: Any, shard: int, capsys: pytest.CaptureFixture[str]) -> None:
    bench, tally = DuckBench(), Tally()
    examples = tier.pick(quick=100, test=2_000, deep=50_000) // SHARDS

    def body(seed: int) -> None:
        rng = Random(seed * SHARDS + shard)
        trials.run_cases(rng, bench, tally, most=rng.choice([2, 4]))

    run_seeds(examples, body)
    with capsys.disabled():
        print(f"\n  tests/access {shard + 1}/{SHARDS}: {tally.line('duckdb')}")
    assert tally.plans >= examples


def test_functions_stay_within_a_step_and_their_domains(tier: Any) -> None:
    """LN, EXP, POWER: rows are checked for domain, influence and failure; values only here against Python's own."""
    bench, tally = DuckBench(), Tally()

    def body(seed: int) -> None:
        rng = Random(seed)
        item = plans.case(rng, exact=False)
        trials.check(item, bench, rng, 2, tally, references=0)

    run_seeds(tier.pick(quick=10, test=200, deep=5_000), body)


def test_a_trial_among_many_is_answered_as_if_alone(tier: Any) -> None:
    """The trial column, which only these tests use, changes no result."""
    bench = DuckBench()

    def body(seed: int) -> None:
        rng = Random(seed)
        item = plans.case(rng, single=True)
        places = bench.load({name: plans.arrow(raw) for name, raw in item.data.items()})
        if item.measure is None:
            return
        statement = trials.statement_for(bench, item, places, item.measure)
        statement.trial = None
        plan = item.measure.plan(statement)
        found = trials.laid_out(item.measure, plan, bench.run(plan.select))
        assert found.tolist() == trials.Interpreter(item.ctx, item.data, trials.SECRET).vector(item.measure)

    run_seeds(tier.pick(quick=10, test=150, deep=3_000), body)


@pytest.mark.tier("test")
def test_every_operator_reaches_its_stated_influence() -> None:
    """Tightness: for each operator some random plan moves exactly the stated number of rows (more in test_tight.py)."""
    bench, tally = DuckBench(), Tally()
    for seed in range(600):
        trials.run_cases(Random(seed), bench, tally, most=4)
    assert {
        "Scan",
        "Where",
        "Project",
        "Union",
        "Distinct",
        "PublicJoin",
        "GroupBy",
        "Sample",
        "BoundRows",
        "BoundGroups",
    } <= set(tally.rows_reached)


# ---------------------------------------------------------------- planted faults


def unguarded_division(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expr, "nonzero", lambda value: value)
    patch.setattr(
        spelling.Spelling, "quotient", lambda self, a, b: spelling.cast(spelling.binary(exp.Div, a, b), "bigint")
    )


def missing_clamp(patch: pytest.MonkeyPatch) -> None:
    def unclamped(column: Any, domain: Number, raw: Any, kind: str, spelled: Any) -> Any:
        if kind != "integer":
            return number(column, domain, raw, kind, spelled)
        return spelling.case([(clean._is_null(raw), clean._missing(column))], clean._scaled(raw, domain, spelled))

    number = clean._number
    patch.setattr(clean, "_number", unclamped)


def union_counted_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relation.Union, "influence", lambda self, ctx, unit: self.left.influence(ctx, unit))


def group_by_stability_one(patch: pytest.MonkeyPatch) -> None:
    stated = relation.GroupBy.influence

    def halved(self: Any, ctx: Any, unit: str) -> relation.Influence:
        found = stated(self, ctx, unit)
        if found.unit or found.rows is None:
            return found
        return relation.Influence(False, found.rows // 2, found.rows // 2)

    patch.setattr(relation.GroupBy, "influence", halved)


def distinct_merges_units(patch: pytest.MonkeyPatch) -> None:
    def merged(self: Any, statement: Statement) -> Any:
        keys = relation.visible(self.child, statement.ctx)
        hidden = [c for unit in statement.known(self) for c in statement.unit_columns(unit)]
        picked = [relation.aliased(exp.Min(this=relation.named(c)), c) for c in [*hidden, "o", "b"]]
        trial = [relation.named(c) for c in statement.trials()]
        body = spelling.select(*keys, *picked, *trial).from_(statement.table(self.child))
        return body.group_by(*(key.copy() for key in keys), *trial)

    patch.setattr(relation.Distinct, "select", merged)


def multiplicity_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relation.PublicJoin, "multiplicity", lambda self, ctx: 1)


def nan_passes_the_clamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spelling.Spelling, "is_nan", lambda self, value: exp.false())


def saturation_missing(patch: pytest.MonkeyPatch) -> None:
    def unsaturated(value: Any, most: int, least: int | None = None) -> Any:
        return spelling.cast(exp.Coalesce(this=value.copy(), expressions=[spelling.plain(0)]), "bigint")

    patch.setattr(measure, "saturated", unsaturated)


def keys_from_data(patch: pytest.MonkeyPatch) -> None:
    whole = trials.laid_out
    patch.setattr(trials, "laid_out", lambda m, plan, table: whole(m, plan, table)[: table.num_rows * plan.values])


def rank_not_per_unit(patch: pytest.MonkeyPatch) -> None:
    numbered = Statement.numbered
    patch.setattr(
        Statement, "numbered", lambda self, table, columns, by, limit: numbered(self, table, columns, [], limit)
    )


def huge_numbers(patch: pytest.MonkeyPatch) -> None:
    """Not a fault: steers the generator to sums that pass 64 bits."""
    patch.setattr(plans, "number_domain", lambda rng: Number(Fraction(-(2**61)), Fraction(2**61)))


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "unguarded division": (unguarded_division, ("where", "project")),
    "missing clamp": (missing_clamp, ("project",)),
    "union counted once": (union_counted_once, ("union",)),
    "group-by stability 1": (group_by_stability_one, ("group",)),
    "distinct that merges units": (distinct_merges_units, ("distinct",)),
    "join multiplicity ignored": (multiplicity_ignored, ("public",)),
    "NaN passing a clamp": (nan_passes_the_clamp, ("where",)),
    "saturation missing": (saturation_missing, ("rows",)),
    "key set from data": (keys_from_data, ("rows",)),
    "rank not per unit": (rank_not_per_unit, ("rows",)),
}


@pytest.mark.tier("test")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same generator and checks, steered to the operator at fault, find it within a few hundred plans."""
    plant, kinds = FAULTS[fault]
    bench = DuckBench()
    monkeypatch.setattr(plans, "STEPS", kinds)
    if plant is saturation_missing:
        huge_numbers(monkeypatch)
    for seed in range(20):
        trials.run_cases(Random(seed), bench, Tally(), most=4)
    plant(monkeypatch)
    for seed in range(400):
        try:
            trials.run_cases(Random(seed), bench, Tally(), most=4)
        except Violation as violation:
            print(f"\n  found '{fault}' with plan {seed + 1}, by check ({violation.kind})")
            return
    pytest.fail(f"the fault was not found: {fault}")
