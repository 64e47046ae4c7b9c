"""The durable record of what was promised, spent and answered: an append-only chain of rows."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from dither.access.context import PublicFacts
from dither.errors import BudgetExceeded, InvalidParameter, LedgerError, NotAllowed, NotFound
from dither.loss import Loss, from_json, to_json
from dither.privacy.accounting import filter_of
from dither.privacy.ledger.rules import (
    KERNEL,
    Book,
    Described,
    Memory,
    Pool,
    Population,
    canonical,
    fingerprints,
    key,
    public,
)
from dither.privacy.ledger.stores import GENESIS, Note, Row, Store, link, open_store
from dither.privacy.pacing import Clock, SystemClock
from dither.schema import Dataset
from dither.wire.codec import encode
from dither.wire.model import Balance, Entry, Head, UnitLoss

BATCH = 128
GATHER_SECONDS = 0.001
SNAPSHOT_ROWS = 1024
HISTORY_ROWS = 10_000
T = TypeVar("T")
_MINT = object()
_HOT = ('["spent",', '["charges",', '["population",', '["dataset",', '["account",', '["closed"]')  # kept in memory


@dataclass(frozen=True)
class Claim:
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

    def __init__(self, mint: object, sequence: int, time: str) -> None:
        if mint is not _MINT:
            raise LedgerError("a receipt comes from Ledger.charge alone")
        self.sequence, self.time = sequence, time
        self._redeemed: set[str] = set()

    def redeem(self, step: str) -> None:
        """Marks a step as taken; a second time is refused."""
        if step in self._redeemed:
            raise LedgerError("this step of the charge was taken already")
        self._redeemed.add(step)


@dataclass(frozen=True)
class Recorded:
    """The answer that a question got before; `paid` says whether this account had paid for it already."""

    sequence: int
    release: str
    paid: bool


class _Overtaken(Exception):
    """Another process has moved the snapshot past the last row that was seen here."""


class _Ticket(Generic[T]):
    """One decision that waits for its turn, and then its outcome."""

    def __init__(self, decide: Callable[[_Draft], T], wants: Callable[[Book], list[str]]) -> None:
        self._decide, self.wants = decide, wants
        self.done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._outcome: T | None = None
        self._problem: Exception | None = None

    def wait(self) -> None:
        """Waits until it is done, or until it is its turn to lead."""
        self._gate.acquire()

    def wake(self) -> None:
        """Ends the wait."""
        self._gate.release()

    def run(self, draft: _Draft) -> None:
        """Decides, on the state as the tickets before it leave it."""
        self._problem = None
        try:
            self._outcome = self._decide(draft)
        except _Overtaken:
            raise
        except Exception as problem:
            self._problem = problem

    def fail(self, problem: BaseException) -> None:
        """What was decided may not have been written."""
        known = problem if isinstance(problem, LedgerError) else LedgerError("the ledger could not be written")
        self._problem = self._problem or known

    def result(self) -> T:
        """The outcome, or the error."""
        if self._problem is not None:
            raise self._problem
        return self._outcome  # type: ignore[return-value]


class _Draft:
    """Rows that are about to be written together."""

    def __init__(self, book: Book, head: Head, last_time: str, now: str) -> None:
        self.book, self.head, self.time = book, head, max(now, last_time)
        self.rows: list[Row] = []

    def add(self, kind: str, body: Mapping[str, Any]) -> Row:
        """The next row, if the rules allow it."""
        self.book.apply(kind, body, self.head.sequence + 1)
        row = link(self.head, kind, self.time, canonical(body))
        self.rows.append(row)
        self.head = row.head
        return row


class Ledger:
    """The durable record of what was promised, spent and answered; one object may serve many threads."""

    def __init__(self, place: str | Path, clock: Clock | None = None, *, create: bool = True) -> None:
        self._store: Store = open_store(place, create=create)
        self._clock = clock or SystemClock()
        self._renew()

    def _renew(self) -> None:
        """What belongs to one process: a forked child starts with its own."""
        self._process = os.getpid()
        self._turn, self._queue, self._led, self._expected = threading.RLock(), threading.Lock(), False, 0
        self._waiting: list[_Ticket[Any]] = []
        self._memory = Memory()
        self._forget()

    def _forget(self) -> None:
        """Starts from the snapshot and the rows after it."""
        self._changes: dict[str, str] = {}
        self._hot: dict[str, str | None] = {}
        self._base = self._store.state_at()
        self.head, self._time = self._base_head(), ""
        self._catch_up()

    def _catch_up(self) -> None:
        """Takes in the rows that others have written; should the snapshot overtake this, starts from there."""
        try:
            for row in self._store.rows(self.head.sequence):
                self._take(row)
        except _Overtaken:
            self._forget()

    def _base_head(self) -> Head:
        row = self._store.row(self._base)
        if row is None and self._base:
            raise LedgerError("the ledger's rows end before its snapshot")
        return row.head if row else GENESIS

    def _take(self, row: Row) -> None:
        """Takes in a row that was written after the snapshot, by the rules."""
        if link(self.head, row.kind, row.time, row.body) != row:
            raise LedgerError(f"row {row.sequence} of the ledger does not follow from those before it")
        book = self._book()
        book.apply(row.kind, json.loads(row.body), row.sequence)
        self._remember(book.updates)
        self.head, self._time = row.head, row.time

    def _remember(self, updates: Mapping[str, str]) -> None:
        """What rows after the snapshot changed; the hot part is at hand in any case."""
        self._changes.update(updates)
        self._hot.update({name: value for name, value in updates.items() if name.startswith(_HOT)})

    # --- Writing: one of those who wait leads, and writes for all of them in one durable step ---

    def _submit(self, decide: Callable[[_Draft], T], wants: Callable[[Book], list[str]] = lambda book: []) -> T:
        if self._process != os.getpid():
            self._renew()
        ticket = _Ticket(decide, wants)
        with self._queue:
            self._waiting.append(ticket)
            leads, self._led = not self._led, True
        if not leads:
            ticket.wait()
        if not ticket.done:
            self._lead()
        return ticket.result()

    def _lead(self) -> None:
        """Serves those who wait, and lets the first of those who came meanwhile lead next."""
        self._gather()
        with self._queue:
            tickets = self._waiting[:BATCH]
            del self._waiting[: len(tickets)]
        try:
            with self._turn:
                self._serve(tickets)
        finally:
            with self._queue:
                following = self._waiting[:1]
                self._led, self._expected = bool(following), min(BATCH, len(self._waiting) + len(tickets))
            for ticket in tickets:
                ticket.done = True
            for ticket in (*following, *tickets):
                ticket.wake()

    def _gather(self) -> None:
        """Waits a moment for as many as were here last time: they share one durable step."""
        until = time.monotonic() + GATHER_SECONDS
        while len(self._waiting) < self._expected and time.monotonic() < until:
            time.sleep(GATHER_SECONDS / 20)

    def _serve(self, tickets: list[_Ticket[Any]]) -> None:
        try:
            written = self._write(tickets, presuming=True)
            while not written:
                self._catch_up()
                written = self._write(tickets, presuming=False)
        except BaseException as problem:
            for ticket in tickets:
                ticket.fail(problem)
            if not isinstance(problem, LedgerError):
                raise

    def _write(self, tickets: list[_Ticket[Any]], presuming: bool) -> bool:
        """Decides for every ticket and writes what they decided; false if another writer was faster.

        When presuming, questions are taken for new without looking, and the same step that writes makes sure of it.
        """
        draft = _Draft(self._book(), self.head, self._time, self._now())
        try:
            asked = dict.fromkeys(name for ticket in tickets for name in ticket.wants(draft.book))
            new = [name for name in asked if name not in self._changes] if presuming else []
            draft.book.fetch(asked, absent=new)
            for ticket in tickets:
                ticket.run(draft)
        except _Overtaken:
            return False
        if not (self._store.append(self.head, draft.rows, new) if draft.rows else not new and self._current()):
            return False
        self._remember(draft.book.updates)
        self.head, self._time = draft.head, draft.rows[-1].time if draft.rows else self._time
        if self.head.sequence - self._base >= SNAPSHOT_ROWS:
            self._snapshot()
        return True

    def _current(self) -> bool:
        return self._store.head() == self.head

    def _snapshot(self) -> None:
        """Moves the snapshot on; if that fails the rows still stand, and it is tried again later."""
        with suppress(LedgerError):
            self._store.snapshot(self.head.sequence, self._changes)
            self._base, self._changes = self.head.sequence, {}

    def _book(self) -> Book:
        return Book(self._state, self._store.row, self._memory, self._hot)

    def _state(self, names: list[str]) -> dict[str, str]:
        """State after the last row that was seen."""
        known = {name: self._changes.get(name, self._hot.get(name)) for name in names}
        rest = [name for name, value in known.items() if value is None and name not in self._hot]
        at, found = self._store.state(rest) if rest else (0, {})
        if at > self.head.sequence:
            raise _Overtaken
        self._hot.update({name: found.get(name) for name in rest if name.startswith(_HOT)})
        return found | {name: value for name, value in known.items() if value is not None}

    def _state_or_newer(self, names: list[str]) -> dict[str, str]:
        """The same for readers, who may see a little ahead."""
        try:
            return self._state(names)
        except _Overtaken:
            self._forget()
            return self._state_or_newer(names)

    def _now(self) -> str:
        return _instant(self._clock.utc())

    @contextmanager
    def _reading(self) -> Iterator[Book]:
        """The state as it stands."""
        if self._process != os.getpid():
            self._renew()
        with self._turn:
            self._catch_up()
            yield Book(self._state_or_newer, self._store.row, self._memory)

    # --- Charges and answers ---

    def charge(self, claim: Claim) -> Receipt | Recorded:
        """Durably charges every budget for a question, or finds its answer; raises where a budget would be passed."""

        def wants(book: Book) -> list[str]:
            if book.get(key("dataset", claim.dataset)) is None:
                return []
            question = key("question", claim.dataset, book.described(claim.dataset).version, claim.digest)
            return [question, key("request", claim.account, claim.request_id)] if claim.request_id else [question]

        return self._submit(lambda draft: self._charge(draft, claim), wants)

    def _charge(self, draft: _Draft, claim: Claim) -> Receipt | Recorded:
        dataset, population, question = draft.book.question(claim.dataset, claim.digest)
        if claim.version != question[1]:
            raise LedgerError("the dataset was registered anew by another kernel; this one must be restarted")
        root = self._repeated(draft.book, claim, question[1])
        if root is not None:
            return self._outcome(draft, root, paid=True)
        first, unpaid = draft.book.unpaid(population, dataset, claim.account, question)
        if first is not None and not unpaid:
            return self._outcome(draft, first, paid=True)
        row = draft.add("charge", self._charge_body(claim, population, question[1], first, unpaid))
        return Receipt(_MINT, row.sequence, row.time) if first is None else self._outcome(draft, first, paid=False)

    def _charge_body(
        self, claim: Claim, population: Population, version: str, first: int | None, unpaid: list[str]
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

    def _repeated(self, book: Book, claim: Claim, version: str) -> int | None:
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

    def _outcome(self, draft: _Draft, root: int, paid: bool) -> Receipt | Recorded:
        """The recorded answer, or the right to draw one; handed out only once the charge is durable."""
        answer = draft.book.get(key("answer", root))
        if answer is not None:
            return Recorded(root, draft.book.body(int(answer))["release"], paid)
        return Receipt(_MINT, root, draft.time)

    def record(self, receipt: Receipt, release: str) -> str:
        """Durably records the answer to a charge; where another process was faster, its answer is the one."""

        def decide(draft: _Draft) -> str:
            answer = draft.book.get(key("answer", receipt.sequence))
            if answer is not None:
                return str(draft.book.body(int(answer))["release"])
            draft.add("answer", {"charge": receipt.sequence, "release": release})
            return release

        return self._submit(decide)

    # --- What the curator does ---

    def register(self, dataset: Dataset, facts: PublicFacts | None = None, by: str = KERNEL) -> None:
        """Writes down a dataset's public description, if it is new or has changed."""
        body = {
            "by": by,
            "facts": encode(facts or PublicFacts()).decode(),
            "schema": encode(public(dataset)).decode(),
            "sources": fingerprints(dataset),
        }

        def decide(draft: _Draft) -> None:
            at = draft.book.get(key("dataset", dataset.name))
            if at is None or draft.book.body(int(at.split()[0])) != body:
                draft.add("dataset", body)

        self._submit(decide)

    def add_account(self, name: str, role: str, by: str = KERNEL, days: int | None = None) -> str:
        """Makes an account, or a new token for it; returns the token, which is kept nowhere."""
        token = f"dither_{secrets.token_urlsafe(32)}"
        until = None if days is None else _instant(self._clock.utc() + timedelta(days=days))
        self._set_account(name, role, by, hashed(token), until)
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
        mine = hashed(token)
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

    def mark_restored(self, source: Head) -> None:
        """Closes a ledger that was restored from a copy, until the gap is marked."""
        self._submit(lambda draft: draft.add("restore", {"head": _head(source)}))

    def mark_gap(self, head: Head, spent: Loss | None, by: str = KERNEL) -> None:
        """Counts a lost stretch that ended at `head` as spent: a loss for everyone, or None for all that was left."""

        def decide(draft: _Draft) -> None:
            loss, names = None if spent is None else to_json(spent), draft.book.populations()
            draft.add("gap", {"by": by, "head": _head(head), "populations": names, "spent": loss})

        self._submit(decide)

    def check_head(self, head: Head) -> None:
        """Refuses if this ledger is not a continuation of the one that ended at `head`."""
        with self._reading() as book:
            row = self._store.row(head.sequence)
            marked = book.get(key("gap", head.sequence, head.hash))
        if head != GENESIS and (row is None or row.hash != head.hash) and marked is None:
            raise LedgerError("the ledger lies behind a head that was seen: the curator must mark the gap as spent")

    # --- What may be read ---

    def preview(self, claim: Claim) -> tuple[bool, bool]:
        """Whether a claim would be free, and whether its budgets allow it; nothing is written."""
        with self._reading() as book:
            draft = _Draft(book, self.head, self._time, self._now())
            try:
                self._charge(draft, claim)
            except BudgetExceeded:
                return False, False
            return not draft.rows, True

    def describe(self, dataset: str) -> Described:
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
            if account is None:
                groups = tuple(group.name for group in described.groups)
                pools = population.pools(groups, KERNEL, windows, fresh=True)
            else:
                pools = population.pools(population.groups_of(described, account), account, windows, fresh=True)
            return tuple(_balance(pool, book.spent(population, pool)) for pool in pools if pool.limit is not None)

    def charges(self, dataset: str) -> int:
        """How many charges a dataset has had."""
        with self._reading() as book:
            return book.charges(dataset)

    def history(self, dataset: str, account: str | None) -> tuple[Entry, ...]:
        """The latest charges that an account may see: everyone's, or its groups' under separate budgets."""
        with self._reading() as book:
            described, population, _ = book.question(dataset, "")
            groups = set(population.groups_of(described, account)) if account and population.separate else None
            rows = self._store.rows(max(0, self.head.sequence - HISTORY_ROWS))
            charges = [(row, json.loads(row.body)) for row in rows if row.kind == "charge"]
            return tuple(
                _entry(row, body, book.get(key("answer", body["of"] or row.sequence)) is not None)
                for row, body in charges
                if body["dataset"] == dataset and (groups is None or groups & set(body["groups"]))
            )

    def last_answer(self, dataset: str, account: str, digest: str) -> str | None:
        """The last recorded answer to a question that an account asked of any version of a dataset."""
        charges, found = set[int](), None
        for row in self.rows():
            body = json.loads(row.body)
            if row.kind == "charge" and (body["dataset"], body["account"], body["digest"]) == (
                dataset,
                account,
                digest,
            ):
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

    def refusals(self, dataset: str) -> list[Note]:
        """The refusals of a dataset, oldest first."""
        with self._turn:
            return self._store.notes("refusal", dataset)

    def miss(self, dataset: str, time_class: str) -> None:
        """Notes an answer that was late, cut off or failed."""
        with self._turn:
            self._store.note("miss", dataset, self._now(), time_class)

    def misses(self, dataset: str) -> tuple[list[Note], int]:
        """Every miss of a dataset, and how many came after the curator last unlocked it."""
        with self._turn:
            all_of_them, unlocked = self._store.notes("miss", dataset), self._store.notes("unlock", dataset)
        last = unlocked[-1].number if unlocked else 0
        return all_of_them, sum(miss.number > last for miss in all_of_them)

    def unlock(self, dataset: str) -> None:
        """Lets a dataset that was locked by misses answer again."""
        with self._turn:
            self._store.note("unlock", dataset, self._now(), "")

    def close(self) -> None:
        """Lets go of the database."""
        if self._changes and self._process == os.getpid():
            self._snapshot()
        self._store.close()


def _instant(moment: datetime) -> str:
    """A moment to the second."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def hashed(token: str) -> str:
    """What is kept of a token: it has 256 random bits, so a plain hash does."""
    return hashlib.sha256(token.encode()).hexdigest()


def _head(head: Head) -> dict[str, object]:
    return {"hash": head.hash, "sequence": head.sequence}


def _balance(pool: Pool, spent: tuple[int, ...]) -> Balance:
    names = filter_of(pool.budget).names
    return Balance(pool.level, pool.name, pool.budget, pool.window, names, pool.limit or (), spent)


def _entry(row: Row, body: Mapping[str, Any], answered: bool) -> Entry:
    losses = tuple(UnitLoss(unit, kind, from_json(loss)) for unit, kind, loss in body["losses"])
    return Entry(row.sequence, row.time, body["account"], body["digest"], losses, answered)
