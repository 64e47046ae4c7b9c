"""The ledger's operations: charge budgets, record answers, manage accounts, and report balances and history."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from dither.errors import BudgetExceeded, InvalidParameter, InvalidToken, LedgerError, NotAllowed, NotFound
from dither.loss import Loss, from_json, to_json
from dither.plan.context import PublicTableFacts
from dither.privacy.accounting.filters import filter_of
from dither.privacy.codec import encode
from dither.privacy.ledger.added_budgets import PrivacyCostFunction, earlier_losses
from dither.privacy.ledger.log import AppendLog, WriteBatch, utc_text
from dither.privacy.ledger.state import (
    KERNEL,
    BudgetBalance,
    DatasetVersion,
    LedgerState,
    Population,
    canonical_json,
    key,
    source_fingerprints,
    without_sources,
)
from dither.privacy.ledger.store import GENESIS, Row, SideNote
from dither.privacy.protocol import LAST_PAGE, Balance, HistoryEntry, LedgerHead, Page, UnitLoss
from dither.schema import Dataset

_MINT = object()


@dataclass(frozen=True)
class Charge:
    """A charge that a kernel proposes: a query and its privacy loss for each unit, computed from public facts alone.

    `version` is the dataset version that the losses were computed from; the ledger rejects all but its current one.
    """

    dataset: str
    version: str
    account: str
    digest: str
    request: str
    losses: tuple[UnitLoss, ...]
    windows: Mapping[str, tuple[str, ...]]
    facts: tuple[str, ...] = ()
    request_id: str = ""
    code: str = ""


@dataclass(frozen=True)
class Account:
    """The name of an account and its role."""

    name: str
    role: str


@dataclass(frozen=True)
class OwnCharge:
    """The charge by which an account's group, or under a shared policy anyone, paid for an answer.

    It is all that the account sees of the ledger beside its answer: a number among the charges that it may see, and
    time, code version and losses of that charge; the first payer's would show when others asked. `row` stays inside.
    """

    row: int
    sequence: int
    time: str
    code: str
    losses: tuple[UnitLoss, ...]


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


@dataclass(frozen=True)
class RecordedAnswer:
    """The recorded draw of a query; `paid` is True if this account's group had already paid for it and received it.

    `sequence` is the row of the query's first charge.
    """

    sequence: int
    release: str
    paid: bool
    own: OwnCharge = field(compare=False)


@dataclass(frozen=True)
class RecordedRequest:
    """A request of the kernel's and its draw, as JSON, and the groups that paid for it under separate budgets."""

    request: str
    release: str
    groups: tuple[str, ...]

    def is_paid_by(self, view: str) -> bool:
        """Return True if a viewing group paid for it; the whole dataset, "", did with the first charge."""
        return view in ("", *self.groups)


class Ledger(AppendLog):
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

    # --- Datasets, accounts and gaps ---

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

    def add_account(self, name: str, role: str, by: str = KERNEL, days: int | None = None) -> str:
        """Add an account, or replace its token; return the token, of which only the hash is stored."""
        token = f"dither_{secrets.token_urlsafe(32)}"
        expiry = None if days is None else utc_text(self.now() + timedelta(days=days))
        self._set_account(name, role, by, hash_token(token), expiry)
        return token

    def revoke_account(self, name: str, by: str = KERNEL) -> None:
        """Revoke an account's token."""
        with self._latest_state() as state:
            position = state.get(key("account", name))
            if position is None:
                raise NotFound(f"there is no account {name!r}")
            role = state.body(int(position))["role"]
        self._set_account(name, role, by, None, None)

    def _set_account(self, name: str, role: str, by: str, token: str | None, expires: str | None) -> None:
        """Add a row with an account's role and token hash; None revokes the token."""
        body = {"by": by, "expires": expires, "name": name, "role": role, "token": token}
        self._submit(lambda batch: batch.add("account", body))

    def record_act(self, by: str, act: str, of: str = "") -> None:
        """Record an action of a curator."""
        self._submit(lambda batch: batch.add("act", {"act": act, "by": by, "of": of}))

    def authenticate(self, token: str) -> Account:
        """Return the account of a token; unknown, expired and revoked tokens raise the same error."""
        presented_hash = hash_token(token)
        with self._latest_state() as state:
            name = state.get(key("token", presented_hash))
        body = self._account_body(name)
        expired = body["expires"] is not None and self._now() >= body["expires"]
        if expired and body["token"] is not None:
            self._remember_time()
        if expired or not hmac.compare_digest(body["token"] or "", presented_hash):
            raise InvalidToken("the token is not valid")
        return Account(body["name"], body["role"])

    def account(self, name: str) -> Account:
        """Return an account that was authenticated by other means, which have an expiry of their own."""
        body = self._account_body(name)
        if body["token"] is None:
            raise InvalidToken("the token is not valid")
        return Account(body["name"], body["role"])

    def _account_body(self, name: str | None) -> Mapping[str, Any]:
        """Return the last row of an account; its token is None if it was revoked, or if there is no such account."""
        with self._latest_state() as state:
            position = state.get(key("account", name)) if name is not None else None
            return state.body(int(position)) if position is not None else {"token": None, "expires": None}

    def now(self) -> datetime:
        """Return the time by which the ledger judges: the clock's, but never earlier than a time it has seen.

        It is stored, since a token may be refused by it.
        """
        with self._latest_state():
            now = self._now()
            self._remember_time()
            return datetime.fromisoformat(now)

    def reset_time(self, by: str = KERNEL) -> str:
        """Set the ledger's time back to the clock, after a clock that was wrong; return the time it had.

        Tokens that the wrong time ended are valid again.
        """

        def decide(batch: WriteBatch) -> str:
            before, batch.time = batch.time, utc_text(self._clock.utc())
            if batch.time >= before:
                raise InvalidParameter("the ledger's time is not ahead of the clock: there is nothing to set back")
            batch.add("clock", {"by": by, "from": before})
            return before

        before = self._submit(decide)
        self._store.write_meta("clock", self._time)
        return before

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

    # --- Side notes, outside the hash chain: refusals, misses, retries, unlocks and latency resets ---

    def record_refusal(self, account: str, dataset: str, reason: str) -> None:
        """Record a refused query."""
        with self._lock:
            self._store.note("refusal", dataset, self._now(), canonical_json({"account": account, "reason": reason}))

    def refusals(self, dataset: str) -> list[SideNote]:
        """Return the recorded refusals of a dataset, oldest first."""
        with self._lock:
            return self._store.notes("refusal", dataset)

    def record_miss(self, dataset: str, time_class: str, group: str = "") -> None:
        """Record a miss: an answer that was late, was cut off or failed; `group` is the viewing group of its payer."""
        with self._lock:
            self._store.note("miss", dataset, self._now(), f"{time_class} {group}".rstrip())

    def record_retry(self, dataset: str, group: str = "") -> None:
        """Record durably that an answer is about to be computed again; `group` is the viewing group of its payer."""
        with self._lock:
            self._store.note("retry", dataset, self._now(), group)

    def misses(self, dataset: str, group: str = "") -> tuple[list[SideNote], int]:
        """Return the misses that a viewing group sees, and how many there are since the curator last unlocked."""
        with self._lock:
            seen, last = self._misses_of(dataset, group), self._last_note_number("unlock", dataset, group)
        return seen, sum(miss.number > last for miss in seen)

    def latency_step(self, dataset: str, time_class: str, group: str = "") -> int:
        """Return a viewing group's misses of a time class since the curator last reset the dataset's latency."""
        with self._lock:
            seen, last = self._misses_of(dataset, group), self._last_note_number("quicken", dataset)
        return sum(miss.body.partition(" ")[0] == time_class and miss.number > last for miss in seen)

    def _misses_of(self, dataset: str, group: str) -> list[SideNote]:
        """Return the misses that a viewing group sees: its own, and all for the whole dataset."""
        noted = self._store.notes("miss", dataset)
        return [miss for miss in noted if not group or miss.body.partition(" ")[2] in ("", group)]

    def _acts_on(self, act: str, dataset: str, group: str) -> list[SideNote]:
        """Return the notes of a kind on a viewing group or on everyone; for the whole dataset, all."""
        return [note for note in self._store.notes(act, dataset) if not group or note.body in ("", group)]

    def _last_note_number(self, act: str, dataset: str, group: str = "") -> int:
        """Return the number of the last act of a kind on a viewing group, or 0 if there is none."""
        return max((note.number for note in self._acts_on(act, dataset, group)), default=0)

    def unlock_count(self, dataset: str, group: str = "") -> int:
        """Return the number of times that a viewing group was unlocked."""
        with self._lock:
            return len(self._acts_on("unlock", dataset, group))

    def unlock(self, dataset: str, group: str = "") -> None:
        """Unlock a dataset for a viewing group that was locked by misses, or for everyone."""
        with self._lock:
            self._store.note("unlock", dataset, self._now(), group)

    def reset_latency(self, dataset: str) -> None:
        """Reset latency predictions; the miss cap and the leakage bound are unchanged."""
        with self._lock:
            self._store.note("quicken", dataset, self._now(), "")


def hash_token(token: str) -> str:
    """Hash a token for storage; a token has 256 random bits, so an unsalted hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def _to_balance(total: BudgetBalance, spent: tuple[int, ...]) -> Balance:
    """Convert a running total to the balance that the protocol reports."""
    names = filter_of(total.budget).names
    return Balance(total.level, total.name, total.budget, total.window, names, total.limit or (), spent)


def _to_history_entry(number: int, row: Row, answered: bool) -> HistoryEntry:
    """Convert a charge row to the history entry that the protocol reports."""
    body = json.loads(row.body)
    return HistoryEntry(number, row.time, body["account"], body["digest"], _decode_losses(body), answered)


def _decode_losses(body: Mapping[str, Any]) -> tuple[UnitLoss, ...]:
    """Decode the losses of a charge row."""
    return tuple(UnitLoss(unit, kind, from_json(loss)) for unit, kind, loss in body["losses"])


def _page_numbers(page: Page, last: int) -> range:
    """Return the numbers, from 1 to `last`, of the entries on a page."""
    end = min(page.before or last + 1, last + 1)
    return range(max(1, end - page.limit), end)
