"""The durable record of what was promised, spent and answered: what may be asked of it, row by row."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from dither.errors import BudgetExceeded, InvalidParameter, LedgerError, NotAllowed, NotFound
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
    canonical,
    key,
    source_fingerprints,
    without_sources,
)
from dither.privacy.ledger.store import GENESIS, Row, SideNote
from dither.privacy.protocol import Balance, HistoryEntry, LedgerHead, UnitLoss
from dither.schema import Dataset

HISTORY_ROWS = 2000  # an account that reads its history holds up charges, and takes 3 KB for each of them
_MINT = object()


@dataclass(frozen=True)
class Charge:
    """What a kernel asks to be charged for: a question, and what it costs each unit, from public facts alone.

    `version` is that of the description by which it was worked out; a ledger that has moved on refuses it.
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
    """Who asks, and in what role."""

    name: str
    role: str


class Receipt:
    """A durable charge whose answer is still to be drawn. Only `Ledger.charge` makes one; each step is drawn once."""

    def __init__(self, mint: object, sequence: int, time: str, own: tuple[int, str] | None = None) -> None:
        if mint is not _MINT:
            raise LedgerError("a receipt comes from Ledger.charge alone")
        self.sequence, self.time, self.own = sequence, time, own or (sequence, time)
        self._redeemed: set[str] = set()

    def redeem(self, step: str) -> None:
        """Marks a step as taken; a second time is refused."""
        if step in self._redeemed:
            raise LedgerError("this step of the charge was taken already")
        self._redeemed.add(step)


@dataclass(frozen=True)
class RecordedAnswer:
    """The answer that a question got before; `paid` says whether this account had paid for it already.

    `own` is, under separate budgets, the charge by which this account's groups paid, and its time: they are not to know
    when others did.
    """

    sequence: int
    release: str
    paid: bool
    own: tuple[int, str] = field(default=(0, ""), compare=False)


class Ledger(AppendLog):
    """The durable record of what was promised, spent and answered; one object may serve many threads."""

    # --- Charges and answers ---

    def charge(self, claim: Charge) -> Receipt | RecordedAnswer:
        """Durably charges every budget for a question, or finds its answer; raises where a budget would be passed."""

        def wants(book: LedgerState) -> list[str]:
            if book.get(key("dataset", claim.dataset)) is None:
                return []
            question = key("question", claim.dataset, book.described(claim.dataset).version, claim.digest)
            return [question, key("request", claim.account, claim.request_id)] if claim.request_id else [question]

        return self._submit(lambda draft: self._charge(draft, claim), wants)

    def _charge(self, draft: WriteBatch, claim: Charge) -> Receipt | RecordedAnswer:
        dataset, population, question = draft.book.question(claim.dataset, claim.digest)
        if claim.version != question[1]:
            raise LedgerError("the dataset was registered anew by another kernel; this one must be restarted")
        root = self._repeated(draft.book, claim, question[1])
        first, unpaid = draft.book.unpaid(population, dataset, claim.account, question)
        self._check_unanswered(draft.book, root or first)
        paid = first if root is None and not unpaid else root
        if paid is not None:
            own = self._own(draft, population, dataset, claim.account, question, paid)
            return self._outcome(draft, paid, True, own)
        row = draft.add("charge", self._charge_body(claim, population, question[1], first, unpaid))
        own = (row.sequence, row.time)
        return Receipt(_MINT, *own) if first is None else self._outcome(draft, first, False, own)

    def _check_unanswered(self, book: LedgerState, root: int | None) -> None:
        """Refuses to draw for a charge whose answer may have left in a stretch of the ledger that was lost."""
        lost = book.get(key("closed")) is not None  # now, or at some time
        if root is None or not lost or book.get(key("answer", root)) is not None:
            return
        if any(row.kind in ("restore", "gap") for row in self._store.rows(root)):
            raise BudgetExceeded("paid for before the ledger was restored, and maybe answered: ask for another draw")

    def _own(
        self, draft: WriteBatch, population: Population, dataset: Dataset, account: str, question: tuple[str, str, str],
        root: int,
    ) -> tuple[int, str]:  # fmt: skip
        """The charge by which an account's groups paid for a question, and its time: not that of others before them."""
        if not population.separate:
            return 0, ""
        groups = population.groups_of(dataset, account)
        paid = (draft.book.get(key("paid", group, *question)) for group in groups)
        sequence = min((int(found) for found in paid if found is not None), default=root)
        row = next((row for row in draft.rows if row.sequence == sequence), None) or self._store.row(sequence)
        return sequence, "" if row is None else row.time

    def _charge_body(
        self, claim: Charge, population: Population, version: str, first: int | None, unpaid: list[str]
    ) -> dict[str, Any]:
        losses = [[each.unit, each.kind, to_json(each.loss)] for each in claim.losses]
        return {
            "account": claim.account,
            "code": claim.code,
            "costs": [list(cost) for cost in population.costs(json.dumps(losses))],
            "dataset": claim.dataset,
            "digest": claim.digest,
            "facts": list(claim.facts),
            "groups": unpaid,
            "losses": losses,
            "of": first,
            "request": claim.request,
            "request_id": claim.request_id,
            "version": version,
            "windows": {unit: list(windows) for unit, windows in claim.windows.items()},
        }

    def _repeated(self, book: LedgerState, claim: Charge, version: str) -> int | None:
        """The charge that this account's request id already stands for."""
        held = book.get(key("request", claim.account, claim.request_id)) if claim.request_id else None
        if held is None:
            return None
        root, digest = held.split()
        if digest != claim.digest:
            raise InvalidParameter("this request id stands for another question; use a new one")
        if book.get(key("answer", int(root))) is None and book.body(int(root))["version"] != version:
            raise InvalidParameter(
                "this request id stands for a charge on an earlier version of the data; use a new one"
            )
        return int(root)

    def _outcome(self, draft: WriteBatch, root: int, paid: bool, own: tuple[int, str]) -> Receipt | RecordedAnswer:
        """The recorded answer, or the right to draw one; handed out only once the charge is durable."""
        answer = draft.book.get(key("answer", root))
        if answer is not None:
            return RecordedAnswer(root, draft.book.body(int(answer))["release"], paid, own)
        return Receipt(_MINT, root, draft.time, own)

    def record(self, receipt: Receipt, release: str) -> str:
        """Durably records the answer to a charge; where another process was faster, its answer is the one."""

        def decide(draft: WriteBatch) -> str:
            answer = draft.book.get(key("answer", receipt.sequence))
            if answer is not None:
                return str(draft.book.body(int(answer))["release"])
            draft.add("answer", {"charge": receipt.sequence, "release": release})
            return release

        return self._submit(decide)

    # --- What the curator does ---

    def register(self, dataset: Dataset, facts: PublicTableFacts | None = None, by: str = KERNEL) -> None:
        """Writes down a dataset's public description, if it is new or has changed."""
        body = {
            "by": by,
            "facts": encode(facts or PublicTableFacts()).decode(),
            "schema": encode(without_sources(dataset)).decode(),
            "sources": source_fingerprints(dataset),
        }

        def decide(draft: WriteBatch) -> None:
            at = draft.book.get(key("dataset", dataset.name))
            if at is None or draft.book.body(int(at.split()[0])) != body:
                draft.add("dataset", body)

        self._submit(decide)

    def add_account(self, name: str, role: str, by: str = KERNEL, days: int | None = None) -> str:
        """Makes an account, or a new token for it; returns the token, which is kept nowhere."""
        token = f"dither_{secrets.token_urlsafe(32)}"
        until = None if days is None else utc_text(self._clock.utc() + timedelta(days=days))
        self._set_account(name, role, by, hash_token(token), until)
        return token

    def revoke_account(self, name: str, by: str = KERNEL) -> None:
        """Ends an account's token."""
        with self._reading() as book:
            at = book.get(key("account", name))
            if at is None:
                raise NotFound(f"there is no account {name!r}")
            role = book.body(int(at))["role"]
        self._set_account(name, role, by, None, None)

    def _set_account(self, name: str, role: str, by: str, token: str | None, expires: str | None) -> None:
        body = {"by": by, "expires": expires, "name": name, "role": role, "token": token}
        self._submit(lambda draft: draft.add("account", body))

    def act(self, by: str, act: str, of: str = "") -> None:
        """Writes down what a curator did."""
        self._submit(lambda draft: draft.add("act", {"act": act, "by": by, "of": of}))

    def authenticate(self, token: str) -> Account:
        """Whose token this is; unknown, expired and revoked ones are refused alike."""
        mine = hash_token(token)
        with self._reading() as book:
            name = book.get(key("token", mine))
        account, kept = self._standing(name)
        if account is None or not hmac.compare_digest(kept, mine):
            raise NotAllowed("the token is not valid")
        return account

    def account(self, name: str) -> Account:
        """An account whose owner has shown who they are by other means; refused where a token of it would be."""
        account, _ = self._standing(name)
        if account is None:
            raise NotAllowed("the token is not valid")
        return account

    def _standing(self, name: str | None) -> tuple[Account | None, str]:
        """An account that is neither expired nor revoked, and the hash of its token."""
        with self._reading() as book:
            at = book.get(key("account", name)) if name is not None else None
            body = book.body(int(at)) if at is not None else {"token": None, "expires": None}
        expired = body["expires"] is not None and max(self._now(), self._time) >= body["expires"]
        if expired or body["token"] is None:
            return None, ""
        return Account(str(body["name"]), str(body["role"])), str(body["token"])

    def mark_gap(self, head: LedgerHead, spent: Loss | None, by: str = KERNEL) -> None:
        """Counts a lost stretch that ended at `head` as spent: a loss for everyone, or None for all that was left."""

        body = {"by": by, "head": asdict(head), "spent": None if spent is None else to_json(spent)}
        self._submit(lambda draft: draft.add("gap", body))

    def check_head(self, head: LedgerHead) -> bool:
        """Refuses if this ledger does not continue the one that ended at `head`; false if a gap gave that end up."""
        with self._reading() as book:
            row = self._store.row(head.sequence)
            marked = book.get(key("gap", head.sequence, head.hash))
        continued = head == GENESIS or (row is not None and row.hash == head.hash)
        if not continued and marked is None:
            raise LedgerError("the ledger lies behind a head that was seen: the curator must mark the gap as spent")
        return continued

    # --- What may be read ---

    def preview(self, claim: Charge) -> tuple[bool, bool]:
        """Whether a claim would be free, and whether its budgets allow it; nothing is written."""
        with self._reading() as book:
            draft = WriteBatch(book, self.head, self._time, self._now())
            try:
                self._charge(draft, claim)
            except BudgetExceeded:
                return False, False
            return not draft.rows, True

    def describe(self, dataset: str) -> DatasetVersion:
        """A dataset as last registered."""
        with self._reading() as book:
            return book.described(dataset)

    def may_ask(self, dataset: str, account: str) -> bool:
        """Whether the account's groups let it ask."""
        with self._reading() as book:
            described, population, _ = book.question(dataset, "")
            try:
                population.groups_of(described, account)
            except NotAllowed:
                return False
            return True

    def balances(self, dataset: str, account: str | None, windows: Mapping[str, Iterable[str]]) -> tuple[Balance, ...]:
        """The budgets that an account's charges count against; without an account, everyone's of the dataset."""
        with self._reading() as book:
            described, population, _ = book.question(dataset, "")
            everyone = tuple(group.name for group in described.groups)
            groups = everyone if account is None else population.groups_of(described, account)
            pools = population.balances_for(groups, KERNEL if account is None else account, windows, fresh=True)
            return tuple(_balance(pool, book.spent(population, pool)) for pool in pools if pool.limit is not None)

    def charges(self, dataset: str) -> int:
        """How many charges a dataset has had."""
        with self._reading() as book:
            return book.charges(dataset)

    def history(self, dataset: str, account: str | None) -> tuple[HistoryEntry, ...]:
        """The charges among the latest rows that an account may see: all, or its groups' under separate budgets."""
        with self._reading() as book:
            described, population, _ = book.question(dataset, "")
            groups = set(population.groups_of(described, account)) if account and population.separate else None
            rows = self._store.rows(max(0, self.head.sequence - HISTORY_ROWS))
            charges = ((row, json.loads(row.body)) for row in rows if row.kind == "charge")
            return tuple(
                _entry(row, body, book.get(key("answer", body["of"] or row.sequence)) is not None)
                for row, body in charges
                if body["dataset"] == dataset and (groups is None or groups & set(body["groups"]))
            )

    def last_answer(self, dataset: str, account: str, digest: str) -> str | None:
        """The last recorded answer to a question that an account asked of any version of a dataset."""
        asked, charges, found = (dataset, account, digest), set[int](), None
        for row in self.rows():
            body = json.loads(row.body)
            if row.kind == "charge" and (body["dataset"], body["account"], body["digest"]) == asked:
                charges.add(row.sequence)
            if row.kind == "answer" and body["charge"] in charges:
                found = str(body["release"])
        return found

    def rows(self) -> tuple[Row, ...]:
        """Every row."""
        with self._reading():
            return tuple(self._store.rows())

    # --- Beside the chain: refusals, and what only the curator sees ---

    def refuse(self, account: str, dataset: str, reason: str) -> None:
        """Notes a refusal."""
        with self._turn:
            self._store.note("refusal", dataset, self._now(), canonical({"account": account, "reason": reason}))

    def refusals(self, dataset: str) -> list[SideNote]:
        """The refusals of a dataset, oldest first."""
        with self._turn:
            return self._store.notes("refusal", dataset)

    def record_miss(self, dataset: str, time_class: str) -> None:
        """Notes an answer that was late, cut off or failed."""
        with self._turn:
            self._store.note("miss", dataset, self._now(), time_class)

    def misses(self, dataset: str) -> tuple[list[SideNote], int]:
        """Every miss of a dataset, and how many came after the curator last unlocked it."""
        with self._turn:
            all_of_them, last = self._store.notes("miss", dataset), self._last("unlock", dataset)
        return all_of_them, sum(miss.number > last for miss in all_of_them)

    def latency_step(self, dataset: str, time_class: str) -> int:
        """How many misses of a class count for its prediction: those after the curator last quickened the dataset."""
        with self._turn:
            misses, last = self._store.notes("miss", dataset), self._last("quicken", dataset)
        return sum(miss.body == time_class and miss.number > last for miss in misses)

    def _last(self, act: str, dataset: str) -> int:
        """The number of the curator's last note of a kind; 0 if there is none."""
        return max((note.number for note in self._store.notes(act, dataset)), default=0)

    def unlocked(self, dataset: str) -> int:
        """How often a dataset was unlocked."""
        with self._turn:
            return len(self._store.notes("unlock", dataset))

    def unlock(self, dataset: str) -> None:
        """Lets a dataset that was locked by misses answer again."""
        with self._turn:
            self._store.note("unlock", dataset, self._now(), "")

    def reset_latency(self, dataset: str) -> None:
        """Lets predictions forget the misses so far; the cap on them and the bits that they may tell do not."""
        with self._turn:
            self._store.note("quicken", dataset, self._now(), "")


def hash_token(token: str) -> str:
    """What is kept of a token: it has 256 random bits, so a plain hash does."""
    return hashlib.sha256(token.encode()).hexdigest()


def _balance(pool: BudgetBalance, spent: tuple[int, ...]) -> Balance:
    names = filter_of(pool.budget).names
    return Balance(pool.level, pool.name, pool.budget, pool.window, names, pool.limit or (), spent)


def _entry(row: Row, body: Mapping[str, Any], answered: bool) -> HistoryEntry:
    losses = tuple(UnitLoss(unit, kind, from_json(loss)) for unit, kind, loss in body["losses"])
    return HistoryEntry(row.sequence, row.time, body["account"], body["digest"], losses, answered)
