"""Recorded answers: repeated queries, request ids, second groups and new versions of the data."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from dither.errors import BudgetExceeded, InvalidParameter, NotAllowed
from dither.privacy.ledger import KERNEL, Ledger, Receipt
from dither.privacy.protocol import MAX_PAGE, Page
from dither.schema import Group
from privacy.ledger_cases import ONE, charge_for, dataset, pay, recorded, teams, total_spent


def test_the_same_question_costs_nothing_twice_under_a_shared_budget(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams()))
    receipt = pay(ledger, charge_for("q", "1/2"))
    assert ledger.record(receipt, "the answer") == "the answer"
    for account in ("ann", "bob", "cyd"):
        again = ledger.charge(charge_for("q", "1/2", account))
        assert again == recorded(receipt.sequence, "the answer", paid=True)
    assert total_spent(ledger) == [(ONE // 2, 0)]


def test_a_second_group_pays_for_the_recorded_answer_without_a_redraw(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    receipt = pay(ledger, charge_for("q", "3/4"))
    ledger.record(receipt, "the answer")
    assert ledger.charge(charge_for("q", "3/4", "bob")) == recorded(receipt.sequence, "the answer", paid=True)
    for _ in range(2):  # paid by the first call, and received when it is recorded
        later = ledger.charge(charge_for("q", "3/4", "cyd"))
        assert later == recorded(receipt.sequence, "the answer", paid=False)
    assert ledger.record(later, "") == "the answer"
    assert ledger.charge(charge_for("q", "3/4", "dan")) == recorded(receipt.sequence, "the answer", paid=True)
    assert total_spent(ledger, "ann", "group") == total_spent(ledger, "cyd", "group") == [(3 * ONE // 4, 0)]
    with pytest.raises(BudgetExceeded, match="group blue"):
        ledger.charge(charge_for("p", "1/2", "cyd"))
    with pytest.raises(NotAllowed):
        ledger.charge(charge_for("q", "3/4", "eve"))
    assert [len(ledger.history("shop", name)) for name in ("ann", "cyd")] == [1, 1]


def test_a_second_group_that_cannot_pay_does_not_get_the_recorded_answer(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    ledger.record(pay(ledger, charge_for("q", "3/4")), "the answer")
    pay(ledger, charge_for("other", "1/2", "cyd"))
    with pytest.raises(BudgetExceeded):
        ledger.charge(charge_for("q", "3/4", "cyd"))


def test_the_kernels_own_questions_are_paid_by_every_group(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    ledger.record(pay(ledger, charge_for("size", "1/100", KERNEL)), "size")
    assert total_spent(ledger, "ann", "group") == total_spent(ledger, "cyd", "group") == [(ONE // 100, 0)]
    ledger.register(dataset(1, policy="separate", groups=(*teams(), Group("green", ("gil",)))))
    assert ledger.charge(charge_for("size", "1/100", KERNEL)) == recorded(2, "size", paid=False)
    assert total_spent(ledger, "gil", "group") == total_spent(ledger, "ann", "group") == [(ONE // 100, 0)]


def test_a_request_id_stands_for_one_question(ledger: Ledger) -> None:
    first = pay(ledger, charge_for("q", "1/4", request_id="r1"))
    again = pay(ledger, charge_for("q", "1/4", request_id="r1"))
    assert again.sequence == first.sequence
    ledger.record(again, "the answer")
    assert ledger.record(first, "another draw") == "the answer"
    assert ledger.charge(charge_for("q", "1/4", request_id="r1")) == recorded(first.sequence, "the answer", paid=True)
    with pytest.raises(InvalidParameter, match="another query"):
        ledger.charge(charge_for("other", "1/4", request_id="r1"))
    assert pay(ledger, charge_for("other", "1/4", "bob", request_id="r1")).sequence != first.sequence
    assert total_spent(ledger) == [(ONE // 2, 0)]


def test_a_charge_without_an_answer_stays_spent_and_can_still_be_answered(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    first = pay(ledger, charge_for("q", "3/4"))
    ledger.close()
    later = Ledger(place)
    assert total_spent(later) == [(3 * ONE // 4, 0)]
    again = pay(later, charge_for("q", "3/4"))
    assert again.sequence == first.sequence
    assert total_spent(later) == [(3 * ONE // 4, 0)]
    with pytest.raises(BudgetExceeded):
        later.charge(charge_for("p", "1/2"))


def test_a_new_version_empties_the_cache_and_never_the_budget(ledger: Ledger) -> None:
    ledger.record(pay(ledger, charge_for("q", "1/4", request_id="a")), "old")
    unanswered = pay(ledger, charge_for("u", "1/4", request_id="b"))
    ledger.register(dataset(1, data_version="2"))
    assert isinstance(ledger.charge(charge_for("q", "1/4")), Receipt)
    assert total_spent(ledger) == [(3 * ONE // 4, 0)]
    assert ledger.charge(charge_for("q", "1/4", request_id="a")) == recorded(2, "old", paid=True)
    with pytest.raises(InvalidParameter, match="earlier version"):
        ledger.charge(charge_for("u", "1/4", request_id="b"))
    assert ledger.record(unanswered, "late") == "late"


def test_a_changed_description_is_a_new_question_too(ledger: Ledger) -> None:
    ledger.record(pay(ledger, charge_for("q", "1/4")), "old")
    users = dataset().tables["users"]
    wider = replace(users, columns={**users.columns, "age": replace(users.columns["age"], default=Fraction(30))})
    ledger.register(dataset(1, tables={**dataset().tables, "users": wider}))
    assert isinstance(ledger.charge(charge_for("q", "1/4")), Receipt)


def test_registering_again_changes_nothing(ledger: Ledger) -> None:
    before = ledger.head
    for _ in range(3):
        ledger.register(dataset(1))
    assert ledger.head == before


def test_a_page_of_a_history_has_no_request_of_megabytes(ledger: Ledger) -> None:
    """Anyone who asks may fill a page with 2000 of them, which everyone's quotes would then read."""
    for number, length in enumerate((100, 3_000_000)):
        pay(ledger, replace(charge_for(number, "1/100"), request="x" * length))
    assert [entry.request for entry in ledger.history("shop", "ann")] == ["x" * 100, ""]


def test_history_and_rows_come_in_pages(ledger: Ledger) -> None:
    for number in range(8):
        pay(ledger, charge_for(number, "1/100"))
    everything = ledger.history("shop", "ann")
    assert [entry.sequence for entry in everything] == list(range(1, 9))
    for before, limit, numbers in ((0, 3, [6, 7, 8]), (6, 3, [3, 4, 5]), (3, 3, [1, 2]), (1, 3, []), (99, 2, [7, 8])):
        page = Page(before, limit)
        assert ledger.history("shop", "ann", page) == tuple(everything[number - 1] for number in numbers)
        assert ledger.page(page) == tuple(row for row in ledger.rows() if row.sequence in page_numbers(page))
    for wrong in ({"before": -1}, {"limit": 0}, {"limit": MAX_PAGE + 1}):
        with pytest.raises(InvalidParameter, match="limit from 1"):
            Page(**wrong)


def page_numbers(page: Page) -> list[int]:
    """The rows of a page of a ledger with nine rows."""
    return [number for number in range(1, 10) if not page.before or number < page.before][-page.limit :]
