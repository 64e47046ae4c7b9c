"""A budget that is added later starts with what the earlier answers cost it."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import NotAllowed
from dither.loss import Pure, to_json
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger.keys import canonical_json
from dither.privacy.ledger.maintenance import verify
from dither.privacy.ledger.store import chain_row, open_store
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import Calibrate, Measurement, Request
from dither.schema import Unit
from privacy.kernel_cases import counting
from privacy.ledger_cases import ONE, monthly_units, pure, teams, zcdp

BOTH = {"budgets": (pure(10), zcdp(100))}
MONTHLY = {"budgets": (pure(10), pure(10, "month")), "units": monthly_units()}


def spent(room: Any, account: str = "ann") -> dict[tuple[str, ...], Fraction]:
    """Return what was spent of every budget that the account sees."""
    return {
        (each.level, each.name, each.cap.unit, each.cap.kind, each.window): Fraction(each.spent[0], ONE)
        for each in room.kernel.budget("shop", account)
    }


@pytest.mark.tier("test")
@pytest.mark.parametrize("added", [BOTH, MONTHLY], ids=["a kind of loss", "a unit"])
def test_an_added_budget_starts_with_the_cost_of_the_recorded_answers(
    world: Any, opened: Any, tmp_path: Path, added: dict[str, Any]
) -> None:
    """Regression: it started at 0. A ledger that had both budgets from the beginning is the reference."""
    first = {name: part for name, part in added.items() if name == "units"}
    later, always = opened(world(**first)), opened(world(**added), tmp_path / "always.sqlite")
    for room in (later, always):
        room.kernel.answer(counting(), "ann")
        room.kernel.answer(counting("1/2"), "bob")
    for _ in range(2):  # the second time nothing changes
        later.kernel.register(world(**added))
        assert spent(later) == spent(always) and min(spent(later).values()) > 0
    assert len(later.rows("dataset")) == 2 and verify(later.place, recompute_losses).sound
    later.kernel.register(world(data_version="2", **added))
    assert all(spent(later)[name] > before for name, before in spent(always).items())  # the new version's size
    assert verify(later.place, recompute_losses).sound


def test_a_group_that_repeats_a_question_after_a_budget_was_added_is_charged_for_both(
    world: Any, opened: Any, tmp_path: Path
) -> None:
    """Regression: it got a LedgerError, since the first charge states no loss for the added budget."""
    groups = {"policy": "separate", "groups": teams()}
    later, always = opened(world(**groups)), opened(world(**BOTH, **groups), tmp_path / "always.sqlite")
    for room in (later, always):
        room.kernel.answer(counting(), "ann")
    later.kernel.register(world(**BOTH, **groups))
    answers = [room.kernel.answer(counting(), "cyd") for room in (later, always)]
    assert [answer.losses for answer in answers] == [answers[1].losses] * 2 and len(answers[0].losses) == 2
    for account in ("ann", "cyd"):
        assert spent(later, account) == spent(always, account)
    assert later.kernel.answer(counting(), "dan").cached and verify(later.place, recompute_losses).sound


@pytest.mark.tier("test")
def test_a_budget_that_an_earlier_answer_would_break_is_not_added(world: Any, opened: Any) -> None:
    rows = {"user": world().units["user"], "row": Unit("row", "row", {"actions": "", "users": ""})}
    only_rows = world(budgets=(pure(10, "row"),), units=rows)
    room = opened(only_rows)
    unlimited = Measurement(Count(Scan("actions")), Calibrate("discrete_laplace", Pure(1)))
    room.kernel.answer(Request("shop", (unlimited,)), "ann")
    with pytest.raises(NotAllowed, match=r"user \(pure\) cannot be added.* no bounded loss"):
        room.kernel.register(replace(only_rows, budgets=(pure(10, "row"), pure(10))))
    assert len(room.rows("dataset")) == 1


@pytest.mark.tier("test")
def test_the_verifier_computes_the_cost_of_earlier_answers_again(world: Any, opened: Any, tmp_path: Path) -> None:
    room = opened(world())
    room.kernel.answer(counting(), "ann")
    room.kernel.register(world(**BOTH))
    source, forged = open_store(room.place), open_store(tmp_path / "forged.sqlite")
    for row in source.rows():
        body = json.loads(row.body)
        for entry in body.get("earlier", []):
            entry[1][0][2]["rho"] = "1/1000000"
        assert forged.append(
            forged.head(), [chain_row(forged.head(), row.kind, row.time, canonical_json(body), row.salt)]
        )
    forged.close()
    result = verify(tmp_path / "forged.sqlite", recompute_losses)
    assert result.first_bad == source.head().sequence and "do not match their plans" in result.problem
    source.close()


def by_row_first(world: Any, **changes: Any) -> Any:
    """Return a dataset with separate budgets of rows and of people, in this order."""
    units = {**world().units, "row": Unit("row", "row", {"actions": None, "users": None})}
    settings: dict[str, Any] = {"policy": "separate", "groups": teams(), "units": units}
    return world(**settings | {"budgets": (pure(100, "row"), pure(1000))} | changes)


def test_a_later_payer_pays_for_the_draw_of_its_own_calibration(world: Any, opened: Any) -> None:
    """Regression: the second group got a draw made for the first budget of before, and paid for another one."""
    room = opened(by_row_first(world))
    first = room.kernel.answer(counting(), "ann")
    room.kernel.register(by_row_first(world, budgets=(zcdp(4000), pure(100, "row"), pure(1000))))
    quoted, before = room.kernel.quote(counting(), "cyd"), spent(room, "cyd")
    second = room.kernel.answer(counting(), "cyd")
    assert second.parts[0].mechanism == quoted.parts[0].mechanism != first.parts[0].mechanism
    assert second.losses == quoted.losses and second.digest != first.digest
    assert spent(room, "cyd")["group", "blue", "user", "pure", ""] == before["group", "blue", "user", "pure", ""] + 1
    assert room.kernel.answer(counting(unit="row"), "cyd").parts == first.parts  # named, it is the first question
    assert verify(room.place, recompute_losses).sound


@pytest.mark.parametrize("added", [(), (zcdp(100),)], ids=["another order", "a budget named first"])
def test_a_group_that_is_added_pays_the_size_by_the_present_budgets(world: Any, opened: Any, added: Any) -> None:
    """Regression: it paid for a size of another calibration, and `verify` failed for ever."""
    room = opened(by_row_first(world, groups=teams()[:1]))
    room.kernel.register(by_row_first(world, budgets=(*added, pure(1000), pure(100, "row"))))
    blue = {name[2:]: total for name, total in spent(room, "cyd").items()}
    red = {name[2:]: total for name, total in spent(room, "ann").items()}
    assert verify(room.place, recompute_losses).sound
    assert blue.keys() == red.keys() and all(0 < blue[name] <= red[name] for name in blue)


def with_caps(world: Any, rows: int | None, *budgets: Any, **changes: Any) -> Any:
    """Return a dataset of rows and of people with these budgets; at most `rows` actions of a person are read."""
    user = replace(world().units["user"], max_rows={} if rows is None else {"actions": rows})
    units = {"user": user, "row": Unit("row", "row", {"actions": None, "users": None})}
    return world(budgets=budgets, **{"units": units} | changes)


def test_a_cap_on_rows_that_is_added_with_a_budget_does_not_bound_earlier_answers(world: Any, opened: Any) -> None:
    """Regression: it did, and the added budget started at twice the loss of a row for an unbounded answer."""
    room = opened(with_caps(world, None, pure(10, "row")))
    unlimited = Measurement(Count(Scan("actions")), Calibrate("discrete_laplace", Pure(1)))
    room.kernel.answer(Request("shop", (unlimited,)), "ann")
    for rows in (None, 2):
        with pytest.raises(NotAllowed, match=r"user \(pure\) cannot be added.* no bounded loss"):
            room.kernel.register(with_caps(world, rows, pure(10, "row"), pure(100)))
    assert len(room.rows("dataset")) == 1


@pytest.mark.parametrize(("before", "after"), [(None, 1), (20, 1), (1, None), (1, 20)])
def test_earlier_answers_cost_an_added_budget_what_the_cap_of_then_allows(
    world: Any, opened: Any, tmp_path: Path, before: int | None, after: int | None
) -> None:
    """Regression: the cap of today was counted. A ledger that had both budgets from the beginning is the reference."""
    question = counting()
    fixed = replace(question, parts=(replace(question.parts[0], mechanism=DiscreteLaplace(Fraction(20))),))
    later = opened(with_caps(world, before, zcdp(100)))
    always = opened(with_caps(world, before, zcdp(100), pure(10)), tmp_path / "always.sqlite")
    for room in (later, always):
        room.kernel.answer(fixed, "ann")
    stated = always.rows("charge")[-1]["losses"][1]
    later.kernel.register(with_caps(world, after, zcdp(100), pure(10)))
    assert later.rows("dataset")[-1]["earlier"][-1][1] == [stated] and stated[:2] == ["user", "pure"]
    assert stated[2] == to_json(Pure(Fraction(before or 20, 20))) and verify(later.place, recompute_losses).sound


def test_a_unit_that_has_changed_since_an_earlier_answer_gets_no_budget_by_the_same_name(
    world: Any, opened: Any
) -> None:
    """Regression: a recorded plan was costed as if it had bounded the rows of today's unit, not of the one of then."""
    weeks = {**monthly_units(), "month": replace(monthly_units()["month"], every="week")}
    room = opened(world(units=weeks))
    room.kernel.answer(counting(), "ann")
    both = (pure(10), pure(100, "month"))
    for changed in ({"units": monthly_units()}, {"units": weeks, "timezone": "Asia/Tokyo"}):
        with pytest.raises(NotAllowed, match=r"month cannot be added.* other keys or windows"):
            room.kernel.register(world(budgets=both, **changed))
    renamed = replace(monthly_units()["month"], name="calendar")
    room.kernel.register(world(budgets=(pure(10), pure(100, "calendar")), units={**weeks, "calendar": renamed}))
    assert len(room.rows("dataset")) == 2 and verify(room.place, recompute_losses).sound
