"""The one door to the data: validate, charge, read, release, on schedule.

appraise        what the request costs, from public facts; refuses what is not bounded
ledger.charge   durable before any data is read; never refunded
_read           the only read: demands the charge's receipt
_draw           the only exit: demands the charge's receipt
ledger.record   the answer, on schedule: kept at the instant at which it may be seen, and before it leaves
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any, assert_never

from dither.access.engines import Engine, another_engine, engine_pool, open_engine
from dither.errors import BudgetExceeded, EngineFailure, InvalidPlan, NotAllowed, NotFound
from dither.plan.context import Context, PublicTableFacts, with_public_facts
from dither.plan.measures.core import Measure
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.codec import RESPONSE, decode, digest, encode, schema_hash
from dither.privacy.contribution_bound import choose_contribution_bound
from dither.privacy.cost import CostedStep, PrivacyCost, privacy_cost, steps_at_bounds, windows_of, work_of
from dither.privacy.ledger import KERNEL, Account, Charge, Ledger, Receipt, RecordedAnswer
from dither.privacy.ledger.state import without_sources
from dither.privacy.mechanisms import Mechanism, Vector
from dither.privacy.pacing import LOCKED, Clock, Gate, Schedule, SystemClock, Work, departure
from dither.privacy.private_log import PrivateLog
from dither.privacy.protocol import (
    Balance,
    CostQuote,
    HistoryEntry,
    LedgerRow,
    PrivacyStatement,
    Release,
    ReleasedMeasurement,
    Request,
)
from dither.privacy.registration import size_measurements
from dither.schema import Dataset, Scalar, Unit, load


@cache
def code_version() -> str:
    """The version that a release was made by."""
    try:
        return version("dither")
    except PackageNotFoundError:
        return "unknown"


@dataclass
class EngineSlot:
    """A place for one engine; one that failed is replaced by the next request that gets the place."""

    engine: Engine
    failed: bool = False
    corrected: Counter[str] = field(default_factory=Counter)  # by engines that had this place before


@dataclass(frozen=True)
class RegisteredDataset:
    """A registered dataset: its context, its engines (each serves one request at a time) and its noisy sizes."""

    context: Context
    version: str
    engines: queue.Queue[EngineSlot]
    rows: Mapping[str, int]
    slots: tuple[EngineSlot, ...]
    prepared: bool = False

    gate: Gate = field(default_factory=Gate)

    @contextmanager
    def engine(self) -> Iterator[EngineSlot]:
        """An engine that is free; kept until the answer leaves, so that waiting depends on the schedule alone."""
        taken = self.engines.get()
        try:
            yield taken
        finally:
            taken.engine.ctx.memo.clear()  # what was worked out for this request's plan
            self.engines.put(taken)


@dataclass(frozen=True)
class ChargedRequest:
    """A charged request, and the engine that will answer it."""

    registered: RegisteredDataset
    slot: EngineSlot
    request: Request
    cost: PrivacyCost
    outcome: Receipt | RecordedAnswer


class LocalKernel:
    """The kernel in this process. With `trusted`, a token is an account's name and is believed; else it is checked."""

    def __init__(
        self,
        datasets: Dataset | Sequence[Dataset],
        ledger: str | Path,
        *,
        trusted: bool = True,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
        slots: int = 1,
        engine: Callable[[Dataset], Engine] = open_engine,
        sign_in: Callable[[str], str | None] = lambda token: None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._schedule, self._trusted, self._slots, self._open = schedule, trusted, slots, engine
        self._bits: Bits = SystemBits()
        self._sign_in = sign_in
        self._datasets: dict[str, RegisteredDataset] = {}
        self.ledger = Ledger(ledger, self._clock)
        self.log = PrivateLog()
        for dataset in (datasets,) if isinstance(datasets, Dataset) else datasets:
            self.register(dataset)

    # --- The door ---

    def answer(self, request: Request, token: str) -> Release:
        """Charges, reads, releases; on schedule."""
        account, registered = self._authorize(request.dataset, token)
        request, cost = self._cost_request(registered, request)
        self._check_open(request, registered)
        outcome = self._charge(self._charge_for(registered, request, cost, account.name))
        if isinstance(outcome, RecordedAnswer) and outcome.paid:
            return self._recorded(outcome, cached=True)
        with registered.gate.passing(lambda: self._misses_left(request.dataset)), registered.engine() as slot:
            return self._paced(ChargedRequest(registered, slot, request, cost, outcome))

    def _charge(self, charge: Charge) -> Receipt | RecordedAnswer:
        """The durable charge; a refusal reads nothing and is noted apart."""
        try:
            return self.ledger.charge(charge)
        except BudgetExceeded:
            self.ledger.refuse(charge.account, charge.dataset, BudgetExceeded.code)
            raise

    def _paced(self, task: ChargedRequest) -> Release:
        """What the task gives, or the one constant error, at an instant that public facts decide.

        Until then nothing changes that anyone can see: neither the ledger nor the number of misses.
        """
        if self._schedule is None:
            return self._now(task)
        name, work = task.request.dataset, self._work(task.registered, task.cost)
        start = self._clock.milliseconds()
        instants = self._schedule.instants(start, work, self.ledger.latency_step(name, work.time_class))
        try:
            drawn: Release | EngineFailure = self._guarded(task, lambda: self._draw_all(task, instants[-1]))
        except EngineFailure as problem:
            drawn = problem
            task.slot.failed &= self._clock.milliseconds() < instants[-1]  # being cut off breaks no engine
        leaving = departure(instants, self._clock.milliseconds())
        self._clock.wait_until(leaving.instant)
        if leaving.missed or isinstance(drawn, EngineFailure):
            self.ledger.record_miss(name, work.time_class)
            self.log.note(event="miss", dataset=name, time_class=work.time_class)
        if isinstance(drawn, EngineFailure):
            raise drawn
        release = drawn
        return self._guarded(task, lambda: self._record(task, release))

    def _now(self, task: ChargedRequest) -> Release:
        """What the task gives, without a schedule."""
        return self._guarded(task, lambda: self._record(task, self._draw_all(task, None)))

    def _guarded(self, task: ChargedRequest, work: Callable[[], Release]) -> Release:
        """After the charge every failure looks the same; the curator's log has the detail."""
        try:
            return work()
        except Exception as problem:
            detail = getattr(task.slot.engine, "failure", None) or str(problem)
            task.slot.failed |= isinstance(problem, EngineFailure)
            name = task.request.dataset
            self.log.note(event="failure", dataset=name, error=type(problem).__name__, detail=detail[:2000])
            raise EngineFailure from None

    def _draw_all(self, task: ChargedRequest, deadline: int | None) -> Release:
        """Reads and draws each step."""
        outcome, request, cost = task.outcome, task.request, task.cost
        if isinstance(outcome, RecordedAnswer):
            return self._recorded(outcome, cached=False)
        left, secret = partial(self._left, deadline), self._bits.integer(128)
        drawing = ReceiptedRead(outcome, self._working(task), self._bits, secret, left)
        find = tuple(drawing.release(f"find {number}", step) for number, step in enumerate(cost.searches))
        bound = _bounds(request, find)
        steps = steps_at_bounds(replace(task.registered.context), request, bound) if find else cost.steps
        parts = tuple(drawing.release(f"part {number}", step) for number, step in enumerate(steps))
        return Release(
            dataset=request.dataset,
            data_version=task.registered.context.dataset.data_version,
            digest=digest(request),
            parts=parts,
            losses=cost.losses,
            chosen_bounds=bound or None,
            search_results=find or None,
            cached=False,
            sequence=outcome.sequence,
            head=self.ledger.head,
            time=outcome.time,
            code=code_version(),
        )

    def _record(self, task: ChargedRequest, drawn: Release) -> Release:
        """The answer, once it stands in the ledger: this draw, or that of whoever was faster with the same question."""
        if isinstance(task.outcome, RecordedAnswer):
            return drawn
        release = encode(replace(drawn, head=self.ledger.head)).decode()
        recorded = self.ledger.record(task.outcome, release)
        mine = RecordedAnswer(task.outcome.sequence, recorded, paid=False, own=task.outcome.own)
        return self._recorded(mine, cached=False)

    def _working(self, task: ChargedRequest) -> Engine:
        """The task's engine, replaced if it has failed: the public tables must be those that were registered."""
        if task.slot.failed:
            before, opened = task.slot.engine, partial(self._open, task.registered.context.dataset)
            working = next((slot.engine for slot in task.registered.slots if not slot.failed), None)
            task.slot.engine = opened() if working is None else another_engine(working, opened)
            task.slot.corrected.update(before.corrections())
            with suppress(Exception):
                before.close()
            if task.slot.engine.ctx.facts != task.registered.context.facts:
                raise EngineFailure
            task.slot.failed = False
        return task.slot.engine

    def _left(self, deadline: int | None) -> float | None:
        """Seconds until the engine is cut off."""
        return None if deadline is None else max(0.001, (deadline - self._clock.milliseconds()) / 1000)

    def _recorded(self, outcome: RecordedAnswer, cached: bool) -> Release:
        release = decode(outcome.release.encode(), Release, RESPONSE)
        sequence, time = outcome.own if outcome.own[1] else (release.sequence, release.time)
        return replace(release, cached=cached, head=self.ledger.head, sequence=sequence, time=time)

    # --- Before the charge ---

    def _authorize(self, dataset: str, token: str) -> tuple[Account, RegisteredDataset]:
        account = self._account(token)
        if account.role != "analyst" or not self._may_see(dataset, account):
            raise NotAllowed("this account may not ask this dataset")
        return account, self._registered(dataset)

    def _account(self, token: str) -> Account:
        if not self._trusted:
            name = self._sign_in(token)  # who somebody is by a token that is not the ledger's
            return self.ledger.authenticate(token) if name is None else self.ledger.account(name)
        if not token or token == KERNEL:
            raise NotAllowed("an account needs a name, and not the kernel's own")
        return Account(token, "analyst")

    def _may_see(self, dataset: str, account: Account) -> bool:
        return dataset in self._datasets and (account.role != "analyst" or self.ledger.may_ask(dataset, account.name))

    def _registered(self, dataset: str) -> RegisteredDataset:
        if dataset not in self._datasets:
            raise NotFound(f"there is no dataset {dataset[:60]!r}")
        return self._datasets[dataset]

    def _seeing(self, dataset: str, token: str, *roles: str) -> Account:
        """An account that may look: in this process, everyone may."""
        account = self._account(token)
        if not self._may_see(dataset, account) or (roles and account.role not in roles and not self._trusted):
            raise NotAllowed("this account may not see this")
        return account

    def _cost_request(self, registered: RegisteredDataset, request: Request) -> tuple[Request, PrivacyCost]:
        """The request as its JSON says it, and what it costs: nothing but a plan gets further.

        The context is a copy, so that what is worked out for this plan is forgotten with it.
        """
        plain = decode(encode(request), Request)
        if plain.schema_hash and plain.schema_hash != schema_hash(registered.context):
            raise InvalidPlan("the dataset's description is not what it was when this session began; connect again")
        return plain, privacy_cost(replace(registered.context), plain)

    def _check_open(self, request: Request, registered: RegisteredDataset) -> None:
        if request.expect_head is not None:
            self.ledger.check_head(request.expect_head)
        if self.locked(request.dataset):
            raise NotAllowed(LOCKED)

    def _charge_for(self, registered: RegisteredDataset, request: Request, cost: PrivacyCost, account: str) -> Charge:
        question = replace(request, request_id="", expect_head=None, schema_hash="")
        return Charge(
            dataset=request.dataset,
            version=registered.version,
            account=account,
            digest=digest(request),
            request=encode(question).decode(),
            losses=cost.losses,
            windows=cost.windows,
            facts=tuple(encode(step.quoted).decode() for step in cost.all_steps),
            request_id=request.request_id,
            code=code_version(),
        )

    def _work(self, registered: RegisteredDataset, cost: PrivacyCost) -> Work:
        cells = sum(prod(step.quoted.shape) for step in cost.all_steps)
        return work_of([step.measure for step in cost.all_steps], registered.rows, cells)

    # --- What may be known ---

    def whose(self, token: str) -> str:
        """The account that a token belongs to."""
        return self._account(token).name

    def datasets(self, token: str) -> tuple[str, ...]:
        """The datasets that the account may ask or see."""
        account = self._account(token)
        return tuple(name for name in sorted(self._datasets) if self._may_see(name, account))

    def schema(self, dataset: str, token: str) -> Dataset:
        """What is public about a dataset, without where its records are: also noisy sizes, and if ranks are stored."""
        self._seeing(dataset, token)
        registered = self._registered(dataset)
        return with_public_facts(without_sources(registered.context.dataset), registered.prepared, registered.rows)

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """What was counted in the dataset's public tables."""
        self._seeing(dataset, token)
        return self._registered(dataset).context.facts

    def quote(self, request: Request, token: str) -> CostQuote:
        """What a request would cost; free, and reads nothing."""
        account, registered = self._authorize(request.dataset, token)
        request, cost = self._cost_request(registered, request)
        free, affordable = self.ledger.preview(self._charge_for(registered, request, cost, account.name))
        pace, work = self._schedule, self._work(registered, cost)
        wait = 0 if pace is None else pace.prediction(work, self.ledger.latency_step(request.dataset, work.time_class))
        find = tuple(step.quoted for step in cost.searches) or None
        parts = tuple(step.quoted for step in cost.steps)
        return CostQuote(
            request.dataset, parts, cost.losses, find, free, affordable, work.time_class, wait, self.ledger.head
        )

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """The budgets that the account's charges count against; everyone's for auditors and curators."""
        account = self._seeing(dataset, token)
        who = account.name if account.role == "analyst" else None
        return self.ledger.balances(dataset, who, self._all_windows(self._registered(dataset).context))

    def history(self, dataset: str, token: str) -> tuple[HistoryEntry, ...]:
        """The charges that the account may see."""
        account = self._seeing(dataset, token)
        return self.ledger.history(dataset, account.name if account.role == "analyst" else None)

    def ledger_rows(self, dataset: str, token: str) -> tuple[LedgerRow, ...]:
        """Every row, so that the chain can be checked; auditors and curators."""
        self._seeing(dataset, token, "auditor", "curator")
        return tuple(LedgerRow(row.sequence, row.kind, row.time, row.body, row.hash) for row in self.ledger.rows())

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """The facts of the privacy statement."""
        account = self._seeing(dataset, token)
        described = self._registered(dataset).context.dataset
        who = account.name if described.policy == "separate" and account.role == "analyst" else None
        counts = self.ledger.charges(dataset), self.ledger.unlocked(dataset)
        bits = 0 if self._schedule is None else self._schedule.residual_bits(*counts)
        balances = self.ledger.balances(dataset, who, self._all_windows(self._registered(dataset).context))
        return PrivacyStatement(
            dataset, described.population, described.policy, tuple(map(_described_unit, described.units.values())),
            balances, tuple(self._assumptions(described)), bits, self.ledger.head, code_version(),
        )  # fmt: skip

    def _assumptions(self, dataset: Dataset) -> Iterator[str]:
        """What the guarantee rests on, in words."""
        yield "the guarantee is the cap on each budget, whatever was spent so far; questions may follow from answers"
        yield "a changed record counts as one removed and one added: twice the loss, unless the statement says less"
        if dataset.policy == "separate":
            yield "each group's guarantee holds as long as the groups do not share answers with each other"
        for unit in dataset.units.values():
            held = [name for name, table in dataset.tables.items() if table.private and name not in unit.keys]
            if held:
                yield f"for unit {unit.name}, the tables {', '.join(held)} are held fixed"
        if self._schedule is None:
            yield "this kernel runs in its user's own process and trusts that user; answers are not delayed"

    def _all_windows(self, ctx: Context) -> dict[str, tuple[str, ...]]:
        """Every declared window of every window unit that has a budget."""
        units = {cap.unit: ctx.unit(cap.unit) for cap in ctx.dataset.budgets}
        return {name: windows_of(ctx, name) for name, unit in units.items() if unit.kind == "window"}

    # --- What the curator does ---

    def register(self, dataset: Dataset) -> None:
        """Opens a dataset: writes its description down, and measures its size privately before anything else."""
        slots = tuple(map(EngineSlot, engine_pool(self._slots, partial(self._open, dataset))))
        first = slots[0].engine
        engines: queue.Queue[EngineSlot] = queue.Queue()
        for slot in slots:
            engines.put(slot)
        self.ledger.register(dataset, first.ctx.facts)
        prepared = bool(getattr(first, "prepared", False))
        bare = RegisteredDataset(first.ctx, self.ledger.describe(dataset.name).version, engines, {}, slots, prepared)
        self._datasets[dataset.name] = replace(bare, rows=self._sized(bare))

    def _sized(self, registered: RegisteredDataset) -> dict[str, int]:
        """The noisy number of (clipped) rows of each private table, charged like any question."""
        parts, tables = size_measurements(registered.context)
        if not parts:
            return {}
        request, cost = self._cost_request(registered, Request(registered.context.dataset.name, tuple(parts)))
        try:
            outcome = self.ledger.charge(self._charge_for(registered, request, cost, KERNEL))
        except BudgetExceeded:
            return self._size_before(request, tables)
        with registered.engine() as slot:
            return _rows(tables, self._now(ChargedRequest(registered, slot, request, cost, outcome)))

    def _size_before(self, request: Request, tables: Sequence[str]) -> dict[str, int]:
        """The size of an earlier version of the data: a new one needs budget that is not left."""
        found = self.ledger.last_answer(request.dataset, KERNEL, digest(request))
        return {} if found is None else _rows(tables, decode(found.encode(), Release, RESPONSE))

    @property
    def registered(self) -> tuple[str, ...]:
        """The names of all datasets."""
        return tuple(sorted(self._datasets))

    def balances(self, dataset: str) -> tuple[Balance, ...]:
        """Everyone's budgets."""
        return self.ledger.balances(dataset, None, self._all_windows(self._registered(dataset).context))

    def locked(self, dataset: str) -> bool:
        """Whether late answers have closed a dataset."""
        return self._misses_left(dataset) <= 0

    def _misses_left(self, dataset: str) -> int:
        """How many more answers may be late before the dataset locks; without a schedule none ever is."""
        return self._slots if self._schedule is None else self._schedule.most_misses - self.ledger.misses(dataset)[1]

    def unlock(self, dataset: str) -> None:
        """Lets a dataset that was locked by late answers answer again."""
        self.ledger.unlock(dataset)

    def reset_latency(self, dataset: str) -> None:
        """Lets every class of plans be as quick again as before its late answers; these stay counted."""
        self.ledger.reset_latency(dataset)

    def corrections(self, dataset: str) -> Mapping[str, int]:
        """How many values had to be corrected in answers so far; for the curator only."""
        totals = Counter[str]()
        for slot in self._registered(dataset).slots:
            totals.update(slot.corrected + Counter(slot.engine.corrections()))
        return totals

    def close(self) -> None:
        """Lets go of the data and the ledger."""
        for registered in self._datasets.values():
            for _ in registered.slots:
                registered.engines.get().engine.close()
        self._datasets.clear()
        self.ledger.close()


class ReceiptedRead:
    """One charge being drawn: the only reads and the only exits, each of them against the receipt."""

    def __init__(
        self, receipt: Receipt, engine: Engine, bits: Bits, secret: int, left: Callable[[], float | None]
    ) -> None:
        self._receipt, self._engine, self._bits, self._secret, self._left = receipt, engine, bits, secret, left
        self._vectors: dict[Measure, Vector] = {}

    def release(self, name: str, step: CostedStep) -> ReleasedMeasurement:
        """Reads one step's exact integers and lets them out through its mechanism."""
        keys: tuple[tuple[Scalar, ...], ...] | None = None
        if isinstance(step.measure, PartitionCounts):
            found, exact = self._read_groups(name, step.measure)
            # Places in a list that depends on the data would tell more than the keys that they stand for.
            keys, values = tuple(found[place] for place in self._draw(name, step.mechanism, exact)), ()
        else:
            values = tuple(self._draw(name, step.mechanism, self._read(name, step.measure)).tolist())
        quoted = step.quoted
        return ReleasedMeasurement(
            values, quoted.steps, quoted.shape, keys, step.mechanism, quoted.sensitivity, quoted.loss, quoted.notes
        )

    def _read(self, name: str, measure: Measure) -> Vector:
        self._receipt.redeem(f"read {name}")
        # A joint cost is that of one vector: what several steps map linearly is read once.
        if isinstance(measure, LinearQuery):
            return measure.applied(self._vector(measure.child))
        return self._vector(measure)

    def _vector(self, measure: Measure) -> Vector:
        if measure not in self._vectors:
            self._vectors[measure] = self._engine.vector(measure, self._left(), self._secret)
        return self._vectors[measure]

    def _read_groups(self, name: str, measure: PartitionCounts) -> tuple[tuple[tuple[Scalar, ...], ...], Vector]:
        self._receipt.redeem(f"read {name}")
        groups = self._engine.groups(measure, self._left(), self._secret)
        return groups.keys, groups.counts

    def _draw(self, name: str, mechanism: Mechanism, exact: Vector) -> Vector:
        self._receipt.redeem(f"draw {name}")
        return mechanism.release(exact, self._bits)


def _rows(tables: Sequence[str], size: Release) -> dict[str, int]:
    """Noisy rows by table; the last part counts units."""
    return {table: max(0, part.values[0]) for table, part in zip(tables, size.parts, strict=True) if table}


def _described_unit(unit: Unit) -> str:
    """A unit in words."""
    tables = ", ".join(unit.keys)
    match unit.kind:
        case "row":
            return f"{unit.name}: one row of {tables}"
        case "window":
            return f"{unit.name}: one person's rows of one {unit.every} in {tables}"
        case "user":
            return f"{unit.name}: all rows of one person in {tables}"
        case _:
            assert_never(unit.kind)


def _bounds(request: Request, find: Sequence[ReleasedMeasurement]) -> tuple[int, ...]:
    """The bounds that the first steps chose: functions of what they released, each of its public grid."""
    return tuple(
        choose_contribution_bound(search, part.values, part.mechanism)
        for search, part in zip(request.searches, find, strict=True)
    )


def open_kernel(target: str | Path, *, ledger: str | Path | None = None, **options: Any) -> LocalKernel:
    """The kernel of a dataset's description in this process; its ledger lies beside the description."""
    path = Path(target)
    return LocalKernel(load(path), ledger if ledger is not None else path.with_suffix(".ledger"), **options)
