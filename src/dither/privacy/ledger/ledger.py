"""The ledger's operations: charge budgets, record answers, manage accounts, and report balances and history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

from dither.errors import BudgetExceeded, InvalidParameter, LedgerError, NotAllowed
from dither.loss import Loss, from_json, to_json
from dither.plan.context import PublicTableFacts
from dither.privacy.accounting.filters import filter_of
from dither.privacy.codec import encode
from dither.privacy.ledger.accounts import AccountLog
from dither.privacy.ledger.added_budgets import PrivacyCostFunction, earlier_losses
from dither.privacy.ledger.charges import Charge, OwnCharge, RecordedAnswer, RecordedRequest
from dither.privacy.ledger.descriptions import DatasetVersion, source_fingerprints, without_sources
from dither.privacy.ledger.keys import KERNEL, key
from dither.privacy.ledger.log import WriteBatch
from dither.privacy.ledger.notes import NotedLog
from dither.privacy.ledger.populations import BudgetBalance, Population
from dither.privacy.ledger.state import LedgerState
from dither.privacy.ledger.store import GENESIS, Row
from dither.privacy.protocol import LAST_PAGE, Balance, HistoryEntry, LedgerHead, Page, UnitLoss
from dither.schema import Dataset

_MINT = object()
LONGEST_SHOWN = 1 << 14  # of a request in a history, of which a page has up to 2000


class Receipt:
    """Proof of a durable charge whose query has no draw yet; only `Ledger.charge` makes one.

    Each step redeems it once. `sequence` is the row of the query's first charge; `again` is True if the charge was
    made before: an earlier attempt to answer it has failed, was killed, or is still under way.
    """

    def __init__(self, mint: object, sequence: int, own: OwnCharge, again: bool = False) -> None:
        if mint is not _MINT:
            raise LedgerError("only Ledger.charge can make a receipt")
        self.sequence, self.own, self.again = sequence, own, again
        self._redeemed: set[str] = set()

    def redeem(self, step: str) -> None:
        """Use the receipt for one read or draw; raise if it was already used for that step."""
        if step in self._redeemed:
            raise LedgerError("this step of the charge was already drawn")
        self._redeemed.add(step)


class Ledger(AccountLog, NotedLog):
    """The durable record of datasets, accounts, charges and answers; one object can serve many threads."""

    # --- Charges and answers ---

    def charge(self, proposed: Charge) -> Receipt | RecordedAnswer:
        """Charge every budget for a query durably, or return its recorded answer; raise if a budget is too small."""

        def needed_keys(state: LedgerState) -> list[str]:
            if state.get(key("dataset", proposed.dataset)) is None:
                return []
            question = key("question", proposed.dataset, state.description(proposed.dataset).version, proposed.digest)
            return (
                [question, key("request", proposed.account, proposed.request_id)] if proposed.request_id else [question]
            )

        return self._submit(lambda batch: self._charge(batch, proposed), needed_keys)

    def _charge(self, batch: WriteBatch, proposed: Charge) -> Receipt | RecordedAnswer:
        """Return the recorded answer or a receipt for a query; add a charge row if someone still has to pay."""
        dataset, population, question = batch.state.resolve_query(proposed.dataset, proposed.digest)
        if proposed.version != question[1]:
            raise LedgerError("another kernel has registered a new version of the dataset; restart this kernel")
        groups = population.groups_of(dataset, proposed.account)
        paid = self._charge_of_request_id(batch.state, proposed, question[1])
        paid = paid or batch.state.paid_charge(population, groups, question)
        if paid is not None and batch.state.is_lost(batch.state.root_of(paid[0])):
            raise BudgetExceeded("possibly answered before the ledger was restored; ask again with another repeat")
        again = paid is not None
        if paid is None:
            root = batch.state.shared_draw(question)
            unpaid_groups = batch.state.unpaid_groups(population, groups, question)
            row = batch.add("charge", self._charge_body(batch.state, proposed, population, root, unpaid_groups))
            view = population.viewing_group(dataset, proposed.account)
            paid = row.sequence, batch.state.charges(proposed.dataset, view)
            if root is None:  # the first charge of its query: nothing was drawn yet
                return Receipt(_MINT, row.sequence, OwnCharge(*paid, row.time, proposed.code, proposed.losses))
        return self._reply(batch, *paid, again)

    def _charge_body(
        self,
        state: LedgerState,
        proposed: Charge,
        population: Population,
        first: int | None,
        unpaid_groups: list[str],
    ) -> dict[str, Any]:
        """Return the body of a charge row; a recorded draw costs what its first charge states, for budgets of then."""
        stated = {"losses": [], "windows": {}} if first is None else state.body(first)
        known = {(unit, kind): loss for unit, kind, loss in stated["losses"]}
        losses = [
            [each.unit, each.kind, known.get((each.unit, each.kind), to_json(each.loss))] for each in proposed.losses
        ]
        return {
            "account": proposed.account,
            "code": proposed.code,
            "costs": [list(cost) for cost in population.costs(losses)],
            "dataset": proposed.dataset,
            "digest": proposed.digest,
            "facts": list(proposed.facts),
            "groups": unpaid_groups,
            "losses": losses,
            "of": first,
            "request": proposed.request,
            "request_id": proposed.request_id,
            "version": state.description(proposed.dataset).version,
            "windows": {unit: list(windows) for unit, windows in proposed.windows.items()} | stated["windows"],
        }

    def _charge_of_request_id(self, state: LedgerState, proposed: Charge, version: str) -> tuple[int, int] | None:
        """Return the row and number of the charge that this account already made under the request id, or None."""
        stored_request = (
            state.get(key("request", proposed.account, proposed.request_id)) if proposed.request_id else None
        )
        if stored_request is None:
            return None
        row, number, digest = stored_request.split()
        if digest != proposed.digest:
            raise InvalidParameter("this request id was already used for another query; use a new request id")
        if state.get(key("answer", int(row))) is None and state.body(int(row))["version"] != version:
            raise InvalidParameter(
                "this request id was already used on an earlier version of the data; use a new request id"
            )
        return int(row), int(number)

    def _reply(self, batch: WriteBatch, charge: int, number: int, again: bool) -> Receipt | RecordedAnswer:
        """Return the recorded answer, or a receipt to draw one; `_submit` hands it out once the charge is durable."""
        body, root = batch.state.body(charge), batch.state.root_of(charge)
        row = next((row for row in batch.rows if row.sequence == charge), None) or self._store.row(charge)
        own = OwnCharge(charge, number, "" if row is None else row.time, body["code"], _decode_losses(body))
        drawn = batch.state.get(key("draw", root))
        if drawn is None:
            return Receipt(_MINT, root, own, again)
        received = batch.state.get(key("answer", charge)) is not None
        return RecordedAnswer(root, batch.state.body(int(drawn))["release"], received, own)

    def record(self, charged: Receipt | RecordedAnswer, release: str) -> str:
        """Record durably that a charge is answered, and return the draw of its query.

        That is `release`, unless another charge, or another process for this one, has recorded a draw before.
        """

        def decide(batch: WriteBatch) -> str:
            drawn = batch.state.get(key("draw", charged.sequence))
            if batch.state.get(key("answer", charged.own.row)) is None:
                batch.add("answer", {"charge": charged.own.row, "release": release if drawn is None else ""})
            return release if drawn is None else str(batch.state.body(int(drawn))["release"])

        return self._submit(decide)

    # --- Datasets and gaps ---

    def register(
        self,
        dataset: Dataset,
        facts: PublicTableFacts | None = None,
        by: str = KERNEL,
        privacy_cost: PrivacyCostFunction | None = None,
    ) -> None:
        """Record a dataset's public description if it is new or has changed.

        A budget that is added later starts with what the earlier charges cost it, by `privacy_cost`.
        """
        body = {
            "by": by,
            "facts": encode(facts or PublicTableFacts()).decode(),
            "schema": encode(without_sources(dataset)).decode(),
            "sources": source_fingerprints(dataset),
        }

        def decide(batch: WriteBatch) -> None:
            position = batch.state.get(key("dataset", dataset.name))
            known = {} if position is None else batch.state.body(int(position.split()[0]))
            if {name: part for name, part in known.items() if name != "earlier"} == body:
                return
            added = batch.state.added_budgets(dataset)
            rows = chain(self._store.rows(), batch.rows) if added else ()
            earlier = {"earlier": earlier_losses(rows, dataset, added, privacy_cost)} if added else {}
            batch.add("dataset", body | earlier)

        self._submit(decide)

    def mark_gap(self, head: LedgerHead, spent: Loss | None, by: str = KERNEL) -> None:
        """Charge a lost ledger segment that ended at `head`: `spent` to every budget; None exhausts all budgets."""
        body = {"by": by, "head": asdict(head), "spent": None if spent is None else to_json(spent)}
        self._submit(lambda batch: batch.add("gap", body))

    def check_head(self, head: LedgerHead) -> bool:
        """Return True if the ledger continues from `head`, False if a gap was marked for it; raise otherwise."""
        with self._latest_state() as state:
            row = self._store.row(head.sequence)
            marked = state.get(key("gap", head.sequence, head.hash))
        continued = head == GENESIS or (row is not None and row.hash == head.hash)
        if not continued and marked is None:
            raise LedgerError("the ledger lacks a head that was seen before: the curator must mark the gap as spent")
        return continued

    def check_writable(self) -> None:
        """Raise LedgerError unless a charge could be recorded durably now."""
        with self._lock:
            self._store.check_writable()

    # --- Previews, balances and history ---

    def preview(self, proposed: Charge) -> tuple[bool, bool]:
        """Return whether a charge would be free and whether its budgets allow it, without writing anything."""
        with self._latest_state() as state:
            batch = self._new_batch(state)
            try:
                self._charge(batch, proposed)
            except BudgetExceeded:
                return False, False
            return not batch.rows, True

    def describe(self, dataset: str) -> DatasetVersion:
        """Return the last registered version of a dataset."""
        with self._latest_state() as state:
            return state.description(dataset)

    def may_query(self, dataset: str, account: str) -> bool:
        """Return True if the account belongs to a group of the dataset, or the dataset needs no groups."""
        with self._latest_state() as state:
            description, population, _ = state.resolve_query(dataset, "")
            try:
                population.groups_of(description, account)
            except NotAllowed:
                return False
            return True

    def balances(self, dataset: str, account: str | None, windows: Mapping[str, Iterable[str]]) -> tuple[Balance, ...]:
        """Return the capped balances that an account's charges add to; without an account, those of every group."""
        with self._latest_state() as state:
            description, population, _ = state.resolve_query(dataset, "")
            all_groups = tuple(group.name for group in description.groups)
            groups = all_groups if account is None else population.groups_of(description, account)
            totals = population.balances_for(groups, KERNEL if account is None else account, windows, fresh=True)
            return tuple(
                _to_balance(total, state.spent(population, total)) for total in totals if total.limit is not None
            )

    def viewing_group(self, dataset: str, account: str | None) -> str:
        """Return the group whose part of the ledger an account sees (see `Population.viewing_group`)."""
        with self._latest_state() as state:
            description, population, _ = state.resolve_query(dataset, "")
            return population.viewing_group(description, account)

    def charges(self, dataset: str, account: str | None = None) -> int:
        """Return the number of charges of a dataset that an account may see."""
        view = self.viewing_group(dataset, account)
        with self._latest_state() as state:
            return state.charges(dataset, view)

    def attempts(self, dataset: str, account: str | None = None) -> int:
        """Return how often an answer that an account may see was computed: once for each charge, and every retry."""
        view = self.viewing_group(dataset, account)
        with self._lock:
            return self.charges(dataset, account) + len(self._acts_on("retry", dataset, view))

    def history(self, dataset: str, account: str | None, page: Page = LAST_PAGE) -> tuple[HistoryEntry, ...]:
        """Return a page of the charges that an account may see."""
        view = self.viewing_group(dataset, account)
        with self._latest_state() as state:
            numbers = _page_numbers(page, state.charges(dataset, view))
            keys = [key("charge", dataset, view, number) for number in numbers]
            state.fetch(keys)
            rows = self._store.rows_at([int(state.get(name) or 0) for name in keys])
            answers = [key("answer", row.sequence) for row in rows]
            state.fetch(answers)
            return tuple(
                _to_history_entry(number, row, state.get(answer) is not None)
                for number, row, answer in zip(numbers, rows, answers, strict=True)
            )

    def last_answer(self, dataset: str, digest: str) -> str | None:
        """Return the last draw of a query that the kernel made, on any version, and every group of today paid for."""
        own, payers = set[int](), dict[int, set[str]]()
        with self._latest_state() as state:
            description, population, _ = state.resolve_query(dataset, "")
            groups = set(population.groups_of(description, KERNEL))
            for row in self._store.rows():
                body = json.loads(row.body)
                if row.kind == "charge" and (body["dataset"], body["digest"]) == (dataset, digest):
                    root = int(body["of"] or row.sequence)
                    own |= {root} if body["account"] == KERNEL else set()
                    payers.setdefault(root, set()).update(body["groups"])
            draws = [state.get(key("draw", root)) for root in sorted(own) if groups <= payers[root]]
            return next((state.body(int(drawn))["release"] for drawn in reversed(draws) if drawn), None)

    def recorded_request(self, dataset: str, request_id: str) -> RecordedRequest | None:
        """Return the request that the kernel made under an id, its answer and who paid for it, or None."""
        with self._latest_state() as state:
            stored = state.get(key("request", KERNEL, request_id))
            charge = 0 if stored is None else int(stored.split()[0])
            drawn = state.get(key("draw", state.root_of(charge))) if charge else None
            if drawn is None or state.body(charge)["dataset"] != dataset:
                return None
            body = state.body(charge)
            return RecordedRequest(body["request"], state.body(int(drawn))["release"], tuple(body["groups"]))

    def rows(self) -> tuple[Row, ...]:
        """Return every row."""
        with self._latest_state():
            return tuple(self._store.rows())

    def page(self, page: Page) -> tuple[Row, ...]:
        """Return a page of the rows."""
        with self._latest_state():
            return tuple(self._store.rows_at(_page_numbers(page, self.head.sequence)))


def _to_balance(total: BudgetBalance, spent: tuple[int, ...]) -> Balance:
    """Convert a running total to the balance that the protocol reports."""
    names = filter_of(total.budget).names
    return Balance(total.level, total.name, total.budget, total.window, names, total.limit or (), spent)


def _to_history_entry(number: int, row: Row, answered: bool) -> HistoryEntry:
    """Convert a charge row to the history entry that the protocol reports."""
    body = json.loads(row.body)
    losses, request = _decode_losses(body), body["request"] if len(body["request"]) <= LONGEST_SHOWN else ""
    return HistoryEntry(number, row.time, body["account"], body["digest"], losses, answered, request)


def _decode_losses(body: Mapping[str, Any]) -> tuple[UnitLoss, ...]:
    """Decode the losses of a charge row."""
    return tuple(UnitLoss(unit, kind, from_json(loss)) for unit, kind, loss in body["losses"])


def _page_numbers(page: Page, last: int) -> range:
    """Return the numbers, from 1 to `last`, of the entries on a page."""
    end = min(page.before or last + 1, last + 1)
    return range(max(1, end - page.limit), end)
