"""The ledger's operations: charge budgets, record answers, manage accounts, and report balances and history."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from dither.errors import BudgetExceeded, InvalidParameter, InvalidToken, LedgerError, NotAllowed, NotFound
from dither.loss import Loss, from_json, to_json
from dither.plan.context import PublicTableFacts
from dither.privacy.accounting.filters import filter_of
from dither.privacy.codec import encode
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
from dither.privacy.protocol import Balance, HistoryEntry, LedgerHead, UnitLoss
from dither.schema import Dataset

HISTORY_ROWS = 2000  # reading history delays charges, and takes about 3 KB for each charge
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


class Receipt:
    """Proof of a durable charge that has no answer yet; only `Ledger.charge` makes one. Each step redeems it once."""

    def __init__(self, mint: object, sequence: int, time: str, own_charge: tuple[int, str] | None = None) -> None:
        if mint is not _MINT:
            raise LedgerError("only Ledger.charge can make a receipt")
        self.sequence, self.time, self.own_charge = sequence, time, own_charge or (sequence, time)
        self._redeemed: set[str] = set()

    def redeem(self, step: str) -> None:
        """Use the receipt for one read or draw; raise if it was already used for that step."""
        if step in self._redeemed:
            raise LedgerError("this step of the charge was already drawn")
        self._redeemed.add(step)


@dataclass(frozen=True)
class RecordedAnswer:
    """The recorded answer to a repeated query; `paid` is True if this account had already paid for it.

    Under separate budgets `own_charge` is the sequence number and time of the charge by which this account's groups
    paid, so that they do not learn when other groups did.
    """

    sequence: int
    release: str
    paid: bool
    own_charge: tuple[int, str] = field(default=(0, ""), compare=False)


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
        root = self._charge_of_request_id(batch.state, proposed, question[1])
        first, unpaid_groups = batch.state.unpaid_groups(population, dataset, proposed.account, question)
        self._check_unanswered(batch.state, root or first)
        paid = first if root is None and not unpaid_groups else root
        if paid is not None:
            own_charge = self._find_own_charge(batch, population, dataset, proposed.account, question, paid)
            return self._reply(batch, paid, True, own_charge)
        row = batch.add("charge", self._charge_body(proposed, population, question[1], first, unpaid_groups))
        own_charge = (row.sequence, row.time)
        return Receipt(_MINT, *own_charge) if first is None else self._reply(batch, first, False, own_charge)

    def _check_unanswered(self, state: LedgerState, root: int | None) -> None:
        """Raise if the charge `root` may have been answered in a part of the ledger that was lost."""
        lost = state.get(key("closed")) is not None  # closed now or at an earlier time
        if root is None or not lost or state.get(key("answer", root)) is not None:
            return
        if any(row.kind in ("restore", "gap") for row in self._store.rows(root)):
            raise BudgetExceeded("possibly answered before the ledger was restored; ask again with another repeat")

    def _find_own_charge(
        self, batch: WriteBatch, population: Population, dataset: Dataset, account: str, question: tuple[str, str, str],
        root: int,
    ) -> tuple[int, str]:  # fmt: skip
        """Return the number and time of the first charge by which the account's own groups paid for a query."""
        if not population.separate:
            return 0, ""
        groups = population.groups_of(dataset, account)
        paid = (batch.state.get(key("paid", group, *question)) for group in groups)
        sequence = min((int(recorded) for recorded in paid if recorded is not None), default=root)
        row = next((row for row in batch.rows if row.sequence == sequence), None) or self._store.row(sequence)
        return sequence, "" if row is None else row.time

    def _charge_body(
        self, proposed: Charge, population: Population, version: str, first: int | None, unpaid_groups: list[str]
    ) -> dict[str, Any]:
        """Return the body of a charge row."""
        losses = [[each.unit, each.kind, to_json(each.loss)] for each in proposed.losses]
        return {
            "account": proposed.account,
            "code": proposed.code,
            "costs": [list(cost) for cost in population.costs(json.dumps(losses))],
            "dataset": proposed.dataset,
            "digest": proposed.digest,
            "facts": list(proposed.facts),
            "groups": unpaid_groups,
            "losses": losses,
            "of": first,
            "request": proposed.request,
            "request_id": proposed.request_id,
            "version": version,
            "windows": {unit: list(windows) for unit, windows in proposed.windows.items()},
        }

    def _charge_of_request_id(self, state: LedgerState, proposed: Charge, version: str) -> int | None:
        """Return the charge that this account already made under the request id, or None."""
        stored_request = (
            state.get(key("request", proposed.account, proposed.request_id)) if proposed.request_id else None
        )
        if stored_request is None:
            return None
        root, digest = stored_request.split()
        if digest != proposed.digest:
            raise InvalidParameter("this request id was already used for another query; use a new request id")
        if state.get(key("answer", int(root))) is None and state.body(int(root))["version"] != version:
            raise InvalidParameter(
                "this request id was already used on an earlier version of the data; use a new request id"
            )
        return int(root)

    def _reply(self, batch: WriteBatch, root: int, paid: bool, own_charge: tuple[int, str]) -> Receipt | RecordedAnswer:
        """Return the recorded answer, or a receipt to draw one; `_submit` hands it out once the charge is durable."""
        answer = batch.state.get(key("answer", root))
        if answer is not None:
            return RecordedAnswer(root, batch.state.body(int(answer))["release"], paid, own_charge)
        return Receipt(_MINT, root, batch.time, own_charge)

    def record(self, receipt: Receipt, release: str) -> str:
        """Record the answer to a charge durably and return it; if another process recorded one first, return that."""

        def decide(batch: WriteBatch) -> str:
            answer = batch.state.get(key("answer", receipt.sequence))
            if answer is not None:
                return str(batch.state.body(int(answer))["release"])
            batch.add("answer", {"charge": receipt.sequence, "release": release})
            return release

        return self._submit(decide)

    # --- Datasets, accounts and gaps ---

    def register(self, dataset: Dataset, facts: PublicTableFacts | None = None, by: str = KERNEL) -> None:
        """Record a dataset's public description if it is new or has changed."""
        body = {
            "by": by,
            "facts": encode(facts or PublicTableFacts()).decode(),
            "schema": encode(without_sources(dataset)).decode(),
            "sources": source_fingerprints(dataset),
        }

        def decide(batch: WriteBatch) -> None:
            position = batch.state.get(key("dataset", dataset.name))
            if position is None or batch.state.body(int(position.split()[0])) != body:
                batch.add("dataset", body)

        self._submit(decide)

    def add_account(self, name: str, role: str, by: str = KERNEL, days: int | None = None) -> str:
        """Add an account, or replace its token; return the token, of which only the hash is stored."""
        token = f"dither_{secrets.token_urlsafe(32)}"
        expiry = None if days is None else utc_text(self._clock.utc() + timedelta(days=days))
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
        account, token_hash = self._active_account(name)
        if account is None or not hmac.compare_digest(token_hash, presented_hash):
            raise InvalidToken("the token is not valid")
        return account

    def account(self, name: str) -> Account:
        """Return an account that was authenticated by other means; raise if it is unknown, expired or revoked."""
        account, _ = self._active_account(name)
        if account is None:
            raise InvalidToken("the token is not valid")
        return account

    def _active_account(self, name: str | None) -> tuple[Account | None, str]:
        """Return an account and the hash of its token, or None and "" if it is unknown, expired or revoked."""
        with self._latest_state() as state:
            position = state.get(key("account", name)) if name is not None else None
            body = state.body(int(position)) if position is not None else {"token": None, "expires": None}
        expired = body["expires"] is not None and max(self._now(), self._time) >= body["expires"]
        if expired or body["token"] is None:
            return None, ""
        return Account(str(body["name"]), str(body["role"])), str(body["token"])

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

    # --- Previews, balances and history ---

    def preview(self, proposed: Charge) -> tuple[bool, bool]:
        """Return whether a charge would be free and whether its budgets allow it, without writing anything."""
        with self._latest_state() as state:
            batch = WriteBatch(state, self.head, self._time, self._now())
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

    def charges(self, dataset: str) -> int:
        """Return the number of charges of a dataset."""
        with self._latest_state() as state:
            return state.charges(dataset)

    def history(self, dataset: str, account: str | None) -> tuple[HistoryEntry, ...]:
        """Return recent charges that an account may see: all, or those of its groups under separate budgets."""
        with self._latest_state() as state:
            description, population, _ = state.resolve_query(dataset, "")
            groups = set(population.groups_of(description, account)) if account and population.separate else None
            rows = self._store.rows(max(0, self.head.sequence - HISTORY_ROWS))
            charges = ((row, json.loads(row.body)) for row in rows if row.kind == "charge")
            return tuple(
                _to_history_entry(row, body, state.get(key("answer", body["of"] or row.sequence)) is not None)
                for row, body in charges
                if body["dataset"] == dataset and (groups is None or groups & set(body["groups"]))
            )

    def last_answer(self, dataset: str, account: str, digest: str) -> str | None:
        """Return the last recorded answer to a query that the account paid for, on any version of the dataset."""
        identity, charges, recorded = (dataset, account, digest), set[int](), None
        for row in self.rows():
            body = json.loads(row.body)
            if row.kind == "charge" and (body["dataset"], body["account"], body["digest"]) == identity:
                charges.add(row.sequence)
            if row.kind == "answer" and body["charge"] in charges:
                recorded = str(body["release"])
        return recorded

    def rows(self) -> tuple[Row, ...]:
        """Return every row."""
        with self._latest_state():
            return tuple(self._store.rows())

    # --- Side notes, outside the hash chain: refusals, misses, unlocks and latency resets ---

    def record_refusal(self, account: str, dataset: str, reason: str) -> None:
        """Record a refused query."""
        with self._lock:
            self._store.note("refusal", dataset, self._now(), canonical_json({"account": account, "reason": reason}))

    def refusals(self, dataset: str) -> list[SideNote]:
        """Return the recorded refusals of a dataset, oldest first."""
        with self._lock:
            return self._store.notes("refusal", dataset)

    def record_miss(self, dataset: str, time_class: str) -> None:
        """Record a miss: an answer that was late, was cut off or failed."""
        with self._lock:
            self._store.note("miss", dataset, self._now(), time_class)

    def misses(self, dataset: str) -> tuple[list[SideNote], int]:
        """Return every miss of a dataset, and the number of misses since the curator last unlocked it."""
        with self._lock:
            all_misses, last = self._store.notes("miss", dataset), self._last_note_number("unlock", dataset)
        return all_misses, sum(miss.number > last for miss in all_misses)

    def latency_step(self, dataset: str, time_class: str) -> int:
        """Return the number of misses of a time class since the curator last reset the dataset's latency."""
        with self._lock:
            misses, last = self._store.notes("miss", dataset), self._last_note_number("quicken", dataset)
        return sum(miss.body == time_class and miss.number > last for miss in misses)

    def _last_note_number(self, act: str, dataset: str) -> int:
        """Return the number of the last note of a kind, or 0 if there is none."""
        return max((note.number for note in self._store.notes(act, dataset)), default=0)

    def unlock_count(self, dataset: str) -> int:
        """Return the number of times that a dataset was unlocked."""
        with self._lock:
            return len(self._store.notes("unlock", dataset))

    def unlock(self, dataset: str) -> None:
        """Unlock a dataset that was locked by misses."""
        with self._lock:
            self._store.note("unlock", dataset, self._now(), "")

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


def _to_history_entry(row: Row, body: Mapping[str, Any], answered: bool) -> HistoryEntry:
    """Convert a charge row to the history entry that the protocol reports."""
    losses = tuple(UnitLoss(unit, kind, from_json(loss)) for unit, kind, loss in body["losses"])
    return HistoryEntry(row.sequence, row.time, body["account"], body["digest"], losses, answered)
