"""Undeclared keys are selected in rounds and answered over, for one charge."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

from dither.access.result_vector import KeyHolders
from dither.errors import BudgetExceeded, InvalidPlan, Unsupported
from dither.loss import ZCDP, Approximate, Pure
from dither.plan.expressions import Case, ColumnRef, Compare, EstimatedValue, LiteralValue
from dither.plan.measures.core import MAX_CELLS, MAX_SELECTED, GroupKey, SelectedValues
from dither.plan.measures.partitions import SHARE, KeyShares, PartitionCounts, fitting_keys, selected_cells, share_of
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import GroupBy
from dither.plan.relations.scan import Scan
from dither.privacy import cost as cost_module
from dither.privacy.accounting.conversion import epsilon_at
from dither.privacy.cost import recompute_losses
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger.maintenance import verify
from dither.privacy.mechanisms import ColumnGaussian, GaussianThreshold
from dither.privacy.pacing import Schedule
from dither.privacy.protocol import Calibrate, KeySelection, Measurement, Request
from dither.schema import BudgetCap
from privacy.kernel_cases import KINDS, Room, automatic
from privacy.ledger_cases import ManualClock, teams, zcdp

DELTA = Fraction(1, 10**5)
ONE_ROW = GroupBy(Scan("actions"), (("kind", ColumnRef("kind")),), (), "user")
SHARES = KeyShares(LimitGroupsPerUnit(ONE_ROW, "user", (ColumnRef("kind"),), 10, 1), KINDS, "user")
ROUND = Measurement(SHARES, Calibrate("gaussian_threshold", ZCDP("1/2", DELTA)))
OPEN = (GroupKey("kind", ColumnRef("kind"), SelectedValues(0)),)
COUNT = Measurement(
    Count(LimitRowsPerUnit(Scan("actions"), "user", 20), OPEN), Calibrate("discrete_gaussian", ZCDP("1/2"))
)
BOTH = KeySelection((ROUND, ROUND))


def asked(selection: KeySelection | None = BOTH, **changes: Any) -> Request:
    return replace(Request("shop", (COUNT,), selection=selection), **changes)


def approximate(epsilon: Any, delta: Any) -> BudgetCap:
    return BudgetCap("user", "pure", epsilon=Fraction(epsilon), delta=Fraction(delta))


def test_selection_and_answer_are_one_charge(world: Any, opened: Any) -> None:
    """100 people with each kind: a share of 2^16 each is 60 standard deviations above the threshold."""
    room = opened(world(budgets=(zcdp(3, delta="1/1000"),)))
    before = room.spent()[0]
    answer = room.kernel.answer(asked(), "ann")
    loss = answer.losses[0].loss
    assert isinstance(loss, ZCDP) and loss.rho == Fraction(3, 2) and DELTA < loss.delta <= 2 * DELTA
    assert room.spent()[0] - before == 1_500_000_000_000_000 and len(room.rows("charge")) == 2
    first, second = answer.selection_results or ()
    assert set(first.keys or ()) == {("view",), ("click",), ("share",)} and second.keys == ()
    (part,) = answer.parts
    assert part.keys == first.keys and part.shape == (3, 1)
    assert all(abs(value - 2000) < 20 * 20 for value in part.values)  # 20 standard deviations
    assert len(room.spy.reads) == 2  # the holders of keys are read once for both rounds
    assert room.kernel.answer(asked(), "ann").cached
    assert verify(room.place, recompute_losses).sound
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(asked(repeat=1, selection=KeySelection((ROUND,) * 4)), "ann")


@pytest.mark.tier("test")
def test_killed_after_the_selection_one_draw_is_recorded_and_each_group_pays_for_it(world: Any, opened: Any) -> None:
    described = world(budgets=(zcdp(3, delta="1/1000"),), policy="separate", groups=teams())
    room = opened(described, clock=ManualClock(), schedule=Schedule())
    room.kernel.ledger.close()
    child = os.fork()
    if child == 0:
        try:
            other = LocalKernel(described, room.place, clock=ManualClock(), schedule=Schedule())
            vector = other._datasets["shop"].slots[0].engine.vector
            killing = lambda *given: (vector(*given), os.kill(os.getpid(), SIGKILL))  # noqa: E731 read by the parts
            other._datasets["shop"].slots[0].engine.vector = killing  # type: ignore[method-assign, assignment]
            other.answer(asked(), "ann")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == SIGKILL
    room = opened(described, clock=ManualClock(), schedule=Schedule())
    first, second, third = (room.kernel.answer(asked(), who) for who in ("ann", "cyd", "bob"))
    assert first.parts == second.parts == third.parts and first.selection_results == second.selection_results
    assert [room.kernel.ledger.attempts("shop", who) for who in ("ann", "cyd", None)] == [3, 2, 4]
    assert len(room.rows("charge")) == 3 and len({*room.spent("ann", "group"), *room.spent("cyd", "group")}) == 1
    assert verify(room.place, recompute_losses).sound


def test_a_search_may_follow_the_selection(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    searched = automatic()
    part = Measurement(replace(searched.parts[0].measure, keys=OPEN), searched.parts[0].mechanism)
    answer = room.kernel.answer(asked(parts=(part,), searches=searched.searches), "ann")
    assert answer.chosen_bounds == (32,) and answer.parts[0].shape == (3, 1)


def test_without_a_selected_key_nothing_more_is_read(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    rare = replace(ROUND, mechanism=GaussianThreshold(Fraction(SHARE**2), SHARE * 400))  # 300 sigma above
    answer = room.kernel.answer(asked(KeySelection((rare,))), "ann")
    assert answer.parts[0].values == () and answer.parts[0].shape == (0, 1) and answer.parts[0].keys == ()
    assert answer.chosen_bounds is None and len(room.spy.reads) == 1 and len(room.rows("charge")) == 2


@pytest.mark.parametrize(
    "request_",
    [
        asked(None),
        asked(parts=(replace(COUNT, measure=replace(COUNT.measure, keys=KINDS)),)),
        asked(parts=(replace(COUNT, measure=replace(COUNT.measure, keys=(*KINDS, *OPEN))),)),
        asked(parts=(replace(COUNT, measure=replace(COUNT.measure, keys=(*OPEN, *OPEN))),)),
        asked(KeySelection((replace(COUNT, measure=replace(COUNT.measure, keys=KINDS)),))),
        asked(searches=(replace(automatic().searches[0], histogram=COUNT.measure),)),
    ],
)
def test_open_keys_are_the_first_of_every_part_and_nowhere_else(request_: Request, world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    with pytest.raises(InvalidPlan, match=r"keys|search"):
        room.kernel.quote(request_, "ann")


NUMBER = GroupKey(
    "kind", Case(((Compare("=", ColumnRef("kind"), LiteralValue("view")), LiteralValue(1)),), LiteralValue(0))
)
OPEN_NUMBER = (replace(NUMBER, values=SelectedValues(0)),)
SEARCH = replace(automatic().searches[0], tag="w")
VALUE = EstimatedValue("w", 0, 10)
CHOSEN = Filter(Scan("actions"), Compare("<=", LiteralValue(1), VALUE))
ROUND_OF_VALUE = replace(
    SHARES,
    child=LimitGroupsPerUnit(
        GroupBy(CHOSEN, (("kind", ColumnRef("kind")),), (), "user"), "user", (ColumnRef("kind"),), 10, 1
    ),
)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(parts=(replace(COUNT, measure=replace(COUNT.measure, keys=OPEN_NUMBER)),)), "same domain"),
        (asked(parts=(replace(COUNT, mechanism=Calibrate("top_k", Pure(1), (("count", 20),))),)), "any number of keys"),
        (asked(parts=(replace(COUNT, mechanism=ColumnGaussian((Fraction(1), Fraction(2)))),)), "any number of keys"),
        (
            asked(
                KeySelection((replace(ROUND, measure=ROUND_OF_VALUE),)),
                parts=(replace(COUNT, measure=Count(LimitRowsPerUnit(CHOSEN, "user", 20), OPEN)),),
                searches=(SEARCH,),
            ),
            "a search chooses",
        ),
    ],
)
def test_no_selected_key_can_make_a_part_fail(request_: Request, words: str, world: Any, opened: Any) -> None:
    """Regression test: a failure after the charge showed a bit of the selection, and a retry drew again for free."""
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    with pytest.raises(InvalidPlan, match=words):
        room.kernel.answer(request_, "ann")
    assert len(room.rows("charge")) == 1


def test_shares_need_a_bound_on_keys_and_one_row_in_each(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    by_kind = (ColumnRef("kind"),)
    for child in (Scan("actions"), LimitGroupsPerUnit(Scan("actions"), "user", by_kind, 10, 2)):
        with pytest.raises(Unsupported, match="one row for each unit and key"):
            room.kernel.quote(asked(KeySelection((replace(ROUND, measure=replace(SHARES, child=child)),))), "ann")


def excess(room: Room, request: Request) -> float:
    """Return how far the loss that all draws really have, in a pure budget, is above what was charged."""
    release = room.kernel.answer(request, "ann")
    drawn = [*(release.selection_results or ()), *release.parts]
    losses = [part.mechanism.zcdp_loss(part.sensitivity) for part in drawn]
    rho, own = sum(loss.rho for loss in losses), sum(loss.delta for loss in losses)
    paid = release.losses[0].loss
    if not isinstance(paid, Approximate) or paid.delta <= own:
        return float("inf")
    return float(epsilon_at(ZCDP(rho, own), paid.delta) - paid.epsilon)


@pytest.mark.parametrize("bug", [None, "the selection is free", "only the last round is paid", "no delta of rounds"])
def test_all_steps_are_paid_in_a_pure_budget(bug: str | None, world: Any, opened: Any, monkeypatch: Any) -> None:
    room = opened(world(budgets=(approximate(100, "1/1000"),)))
    total, convert = cost_module._total_loss, cost_module.convert_to_pure
    if bug in ("the selection is free", "only the last round is paid"):
        first = 2 if bug == "the selection is free" else 1
        monkeypatch.setattr(cost_module, "_total_loss", lambda *facts: total(*facts[:3], facts[3][first:], facts[4]))
    if bug == "no delta of rounds":
        monkeypatch.setattr(cost_module, "convert_to_pure", lambda loss, more: replace(convert(loss, more), delta=more))
    assert (excess(room, asked(replace(BOTH, conversion_delta=DELTA))) > 1e-9) == (bug is not None)


def test_a_budget_that_nothing_touches_pays_nothing() -> None:
    assert cost_module.convert_to_pure(ZCDP(0), DELTA) == Pure(0)
    assert cost_module.convert_to_pure(ZCDP("1/2", DELTA), DELTA).delta > DELTA  # type: ignore[union-attr]


# --- Shares and cells ---


def holders(rng: np.random.Generator, units: int = 40, keys: int = 30) -> KeyHolders:
    held = [(unit, key) for unit in range(units) for key in range(keys) if rng.random() < 0.3]
    pairs = np.array(held, dtype=np.int64)
    return KeyHolders(tuple((key,) for key in range(keys)), pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize("fault", [None, "each key counts whole", "closed keys count"])
def test_a_unit_divides_its_share_among_open_keys(fault: str | None, monkeypatch: Any) -> None:
    """Removing one unit moves k cells by at most sqrt(SHARE^2 / k) each, whatever keys are closed."""
    if fault == "each key counts whole":
        monkeypatch.setattr("dither.access.result_vector.share_of", lambda keys: SHARE)
    rng, worst, uneven = np.random.default_rng(3), 0, 0
    for _ in range(20):
        whole = holders(rng)
        closed = [(key,) for key in range(30) if rng.random() < 0.4]
        stay = whole.pair_units != 7
        less = KeyHolders(whole.keys, whole.pair_units[stay], whole.pair_keys[stay])
        moved = whole.without(closed) - less.without(closed)
        if fault == "closed keys count":
            moved = whole.without(()) - less.without(()) + moved
        worst = max(worst, int((moved**2).sum()))
        uneven = max(uneven, int(np.count_nonzero(moved) * moved.max() ** 2))
        assert fault is not None or not moved[[key for (key,) in closed]].any()
    assert (max(worst, uneven) > SHARE**2) == (fault is not None)


def test_shares_are_the_largest_integers_within_the_norm() -> None:
    for keys in [*range(1, 200), 10**4, 10**6]:
        assert keys * share_of(keys) ** 2 <= SHARE**2 < keys * (share_of(keys) + 1) ** 2


def test_the_cells_of_selected_keys() -> None:
    keys = (("a", 1), ("b", None), ("a", 2), ("c", 1))
    exact = np.arange(3 * 3 * 2, dtype=np.int64)  # a, b, c by 1, None, 2; two values each
    assert selected_cells(exact, keys).tolist() == [0, 1, 8, 9, 4, 5, 12, 13]


def test_more_keys_than_fit_are_left_out() -> None:
    assert len(fitting_keys(((key,) for key in range(2 * MAX_SELECTED)), 1)) == MAX_SELECTED
    pairs = tuple((key, -key) for key in range(100))
    kept = fitting_keys(pairs, MAX_CELLS // 50)
    assert kept == pairs[:7]  # 7 x 7 combinations of values


def test_counts_of_closed_keys_are_zero(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(30, delta="1/1000"),)))
    for measure in (SHARES, PartitionCounts(SHARES.child, KINDS)):
        found = room.spy.inner.groups(measure)
        assert found.without([("view",)])[found.keys.index(("view",))] == 0 < found.without(()).min()
