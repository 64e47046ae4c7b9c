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

from dither.access.engines import Engine, beside, open_engine, several
from dither.errors import BudgetExceeded, EngineFailure, InvalidPlan, NotAllowed, NotFound
from dither.plan.context import Context, PublicFacts, with_facts
from dither.plan.measures.core import Measure
from dither.plan.measures.linear import Linear
from dither.plan.measures.partitions import PartitionCounts
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.codec import RESPONSE, decode, description, digest, encode
from dither.privacy.contribution_bound import rung
from dither.privacy.cost import Appraisal, Step, answered, appraise, windows_of, work_of
from dither.privacy.ledger import KERNEL, Account, Claim, Ledger, Receipt, Recorded
from dither.privacy.ledger.state import public
from dither.privacy.mechanisms import Mechanism, Vector
from dither.privacy.pacing import LOCKED, Clock, Gate, Schedule, SystemClock, Work, departure
from dither.privacy.private_log import PrivateLog
from dither.privacy.protocol import Balance, Entry, LedgerRow, Quote, Release, ReleasedPart, Request, Statement
from dither.privacy.registration import size_parts
from dither.schema import Dataset, Scalar, Unit, load


@cache
def code_version() -> str:
    """The version that a release was made by."""
    try:
        return version("dither")
    except PackageNotFoundError:
        return "unknown"


@dataclass
class Slot:
    """A place for one engine; one that failed is replaced by the next request that gets the place."""

    engine: Engine
    failed: bool = False
    corrected: Counter[str] = field(default_factory=Counter)  # by engines that had this place before


@dataclass(frozen=True)
class House:
    """A registered dataset: its context, its engines (each serves one request at a time) and its noisy sizes."""

    context: Context
    version: str
    engines: queue.Queue[Slot]
    rows: Mapping[str, int]
    slots: tuple[Slot, ...]
    prepared: bool = False

    gate: Gate = field(default_factory=Gate)

    @contextmanager
    def engine(self) -> Iterator[Slot]:
        """An engine that is free; kept until the answer leaves, so that waiting depends on the schedule alone."""
        taken = self.engines.get()
        try:
            yield taken
        finally:
            taken.engine.ctx.memo.clear()  # what was worked out for this request's plan
            self.engines.put(taken)


@dataclass(frozen=True)
class _Task:
    """A charged request, and the engine that will answer it."""

    house: House
    slot: Slot
    request: Request
    appraisal: Appraisal
    outcome: Receipt | Recorded


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
        self._houses: dict[str, House] = {}
        self.books = Ledger(ledger, self._clock)
        self.log = PrivateLog()
        for dataset in (datasets,) if isinstance(datasets, Dataset) else datasets:
            self.register(dataset)

    # --- The door ---

    def answer(self, request: Request, token: str) -> Release:
        """Charges, reads, releases; on schedule."""
        account, house = self._asking(request.dataset, token)
        request, appraisal = self._appraised(house, request)
        self._check_open(request, house)
        outcome = self._charge(self._claim(house, request, appraisal, account.name))
        if isinstance(outcome, Recorded) and outcome.paid:
            return self._recorded(outcome, cached=True)
        with house.gate.passing(lambda: self._misses_left(request.dataset)), house.engine() as slot:
            return self._paced(_Task(house, slot, request, appraisal, outcome))

    def _charge(self, claim: Claim) -> Receipt | Recorded:
        """The durable charge; a refusal reads nothing and is noted apart."""
        try:
            return self.books.charge(claim)
        except BudgetExceeded:
            self.books.refuse(claim.account, claim.dataset, BudgetExceeded.code)
            raise

    def _paced(self, task: _Task) -> Release:
        """What the task gives, or the one constant error, at an instant that public facts decide.

        Until then nothing changes that anyone can see: neither the ledger nor the number of misses.
        """
        if self._schedule is None:
            return self._now(task)
        name, work = task.request.dataset, self._work(task.house, task.appraisal)
        start = self._clock.milliseconds()
        instants = self._schedule.instants(start, work, self.books.slowed(name, work.time_class))
        try:
            drawn: Release | EngineFailure = self._guarded(task, lambda: self._drawn(task, instants[-1]))
        except EngineFailure as problem:
            drawn = problem
            task.slot.failed &= self._clock.milliseconds() < instants[-1]  # being cut off breaks no engine
        leaving = departure(instants, self._clock.milliseconds())
        self._clock.wait_until(leaving.instant)
        if leaving.missed or isinstance(drawn, EngineFailure):
            self.books.miss(name, work.time_class)
            self.log.note(event="miss", dataset=name, time_class=work.time_class)
        if isinstance(drawn, EngineFailure):
            raise drawn
        release = drawn
        return self._guarded(task, lambda: self._kept(task, release))

    def _now(self, task: _Task) -> Release:
        """What the task gives, without a schedule."""
        return self._guarded(task, lambda: self._kept(task, self._drawn(task, None)))

    def _guarded(self, task: _Task, work: Callable[[], Release]) -> Release:
        """After the charge every failure looks the same; the curator's log has the detail."""
        try:
            return work()
        except Exception as problem:
            detail = getattr(task.slot.engine, "failure", None) or str(problem)
            task.slot.failed |= isinstance(problem, EngineFailure)
            name = task.request.dataset
            self.log.note(event="failure", dataset=name, error=type(problem).__name__, detail=detail[:2000])
            raise EngineFailure from None

    def _drawn(self, task: _Task, deadline: int | None) -> Release:
        """Reads and draws each step."""
        outcome, request, appraisal = task.outcome, task.request, task.appraisal
        if isinstance(outcome, Recorded):
            return self._recorded(outcome, cached=False)
        left, secret = partial(self._left, deadline), self._bits.integer(128)
        drawing = _Drawing(outcome, self._working(task), self._bits, secret, left)
        find = tuple(drawing.release(f"find {number}", step) for number, step in enumerate(appraisal.find))
        bound = _bounds(request, find)
        steps = answered(replace(task.house.context), request, bound) if find else appraisal.steps
        parts = tuple(drawing.release(f"part {number}", step) for number, step in enumerate(steps))
        return Release(
            dataset=request.dataset,
            data_version=task.house.context.dataset.data_version,
            digest=digest(request),
            parts=parts,
            losses=appraisal.losses,
            bound=bound or None,
            find=find or None,
            cached=False,
            sequence=outcome.sequence,
            head=self.books.head,
            time=outcome.time,
            code=code_version(),
        )

    def _kept(self, task: _Task, drawn: Release) -> Release:
        """The answer, once it stands in the ledger: this draw, or that of whoever was faster with the same question."""
        if isinstance(task.outcome, Recorded):
            return drawn
        release = encode(replace(drawn, head=self.books.head)).decode()
        recorded = self.books.record(task.outcome, release)
        mine = Recorded(task.outcome.sequence, recorded, paid=False, own=task.outcome.own)
        return self._recorded(mine, cached=False)

    def _working(self, task: _Task) -> Engine:
        """The task's engine, replaced if it has failed: the public tables must be those that were registered."""
        if task.slot.failed:
            before, opened = task.slot.engine, partial(self._open, task.house.context.dataset)
            working = next((slot.engine for slot in task.house.slots if not slot.failed), None)
            task.slot.engine = opened() if working is None else beside(working, opened)
            task.slot.corrected.update(before.corrections())
            with suppress(Exception):
                before.close()
            if task.slot.engine.ctx.facts != task.house.context.facts:
                raise EngineFailure
            task.slot.failed = False
        return task.slot.engine

    def _left(self, deadline: int | None) -> float | None:
        """Seconds until the engine is cut off."""
        return None if deadline is None else max(0.001, (deadline - self._clock.milliseconds()) / 1000)

    def _recorded(self, outcome: Recorded, cached: bool) -> Release:
        release = decode(outcome.release.encode(), Release, RESPONSE)
        sequence, time = outcome.own if outcome.own[1] else (release.sequence, release.time)
        return replace(release, cached=cached, head=self.books.head, sequence=sequence, time=time)

    # --- Before the charge ---

    def _asking(self, dataset: str, token: str) -> tuple[Account, House]:
        account = self._account(token)
        if account.role != "analyst" or not self._may_see(dataset, account):
            raise NotAllowed("this account may not ask this dataset")
        return account, self._house(dataset)

    def _account(self, token: str) -> Account:
        if not self._trusted:
            name = self._sign_in(token)  # who somebody is by a token that is not the ledger's
            return self.books.authenticate(token) if name is None else self.books.account(name)
        if not token or token == KERNEL:
            raise NotAllowed("an account needs a name, and not the kernel's own")
        return Account(token, "analyst")

    def _may_see(self, dataset: str, account: Account) -> bool:
        return dataset in self._houses and (account.role != "analyst" or self.books.may_ask(dataset, account.name))

    def _house(self, dataset: str) -> House:
        if dataset not in self._houses:
            raise NotFound(f"there is no dataset {dataset[:60]!r}")
        return self._houses[dataset]

    def _seeing(self, dataset: str, token: str, *roles: str) -> Account:
        """An account that may look: in this process, everyone may."""
        account = self._account(token)
        if not self._may_see(dataset, account) or (roles and account.role not in roles and not self._trusted):
            raise NotAllowed("this account may not see this")
        return account

    def _appraised(self, house: House, request: Request) -> tuple[Request, Appraisal]:
        """The request as its JSON says it, and what it costs: nothing but a plan gets further.

        The context is a copy, so that what is worked out for this plan is forgotten with it.
        """
        plain = decode(encode(request), Request)
        if plain.described and plain.described != description(house.context):
            raise InvalidPlan("the dataset's description is not what it was when this session began; connect again")
        return plain, appraise(replace(house.context), plain)

    def _check_open(self, request: Request, house: House) -> None:
        if request.expect_head is not None:
            self.books.check_head(request.expect_head)
        if self.locked(request.dataset):
            raise NotAllowed(LOCKED)

    def _claim(self, house: House, request: Request, appraisal: Appraisal, account: str) -> Claim:
        question = replace(request, request_id="", expect_head=None, described="")
        return Claim(
            dataset=request.dataset,
            version=house.version,
            account=account,
            digest=digest(request),
            request=encode(question).decode(),
            losses=appraisal.losses,
            windows=appraisal.windows,
            facts=tuple(encode(step.quoted).decode() for step in appraisal.all_steps),
            request_id=request.request_id,
            code=code_version(),
        )

    def _work(self, house: House, appraisal: Appraisal) -> Work:
        cells = sum(prod(step.quoted.shape) for step in appraisal.all_steps)
        return work_of([step.measure for step in appraisal.all_steps], house.rows, cells)

    # --- What may be known ---

    def whose(self, token: str) -> str:
        """The account that a token belongs to."""
        return self._account(token).name

    def datasets(self, token: str) -> tuple[str, ...]:
        """The datasets that the account may ask or see."""
        account = self._account(token)
        return tuple(name for name in sorted(self._houses) if self._may_see(name, account))

    def schema(self, dataset: str, token: str) -> Dataset:
        """What is public about a dataset, without where its records are: also noisy sizes, and if ranks are stored."""
        self._seeing(dataset, token)
        house = self._house(dataset)
        return with_facts(public(house.context.dataset), house.prepared, house.rows)

    def facts(self, dataset: str, token: str) -> PublicFacts:
        """What was counted in the dataset's public tables."""
        self._seeing(dataset, token)
        return self._house(dataset).context.facts

    def quote(self, request: Request, token: str) -> Quote:
        """What a request would cost; free, and reads nothing."""
        account, house = self._asking(request.dataset, token)
        request, appraisal = self._appraised(house, request)
        free, affordable = self.books.preview(self._claim(house, request, appraisal, account.name))
        pace, work = self._schedule, self._work(house, appraisal)
        wait = 0 if pace is None else pace.prediction(work, self.books.slowed(request.dataset, work.time_class))
        find = tuple(step.quoted for step in appraisal.find) or None
        parts = tuple(step.quoted for step in appraisal.steps)
        return Quote(
            request.dataset, parts, appraisal.losses, find, free, affordable, work.time_class, wait, self.books.head
        )

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """The budgets that the account's charges count against; everyone's for auditors and curators."""
        account = self._seeing(dataset, token)
        who = account.name if account.role == "analyst" else None
        return self.books.balances(dataset, who, self._all_windows(self._house(dataset).context))

    def history(self, dataset: str, token: str) -> tuple[Entry, ...]:
        """The charges that the account may see."""
        account = self._seeing(dataset, token)
        return self.books.history(dataset, account.name if account.role == "analyst" else None)

    def ledger(self, dataset: str, token: str) -> tuple[LedgerRow, ...]:
        """Every row, so that the chain can be checked; auditors and curators."""
        self._seeing(dataset, token, "auditor", "curator")
        return tuple(LedgerRow(row.sequence, row.kind, row.time, row.body, row.hash) for row in self.books.rows())

    def statement(self, dataset: str, token: str) -> Statement:
        """The facts of the privacy statement."""
        account = self._seeing(dataset, token)
        described = self._house(dataset).context.dataset
        who = account.name if described.policy == "separate" and account.role == "analyst" else None
        counts = self.books.charges(dataset), self.books.unlocked(dataset)
        bits = 0 if self._schedule is None else self._schedule.residual_bits(*counts)
        balances = self.books.balances(dataset, who, self._all_windows(self._house(dataset).context))
        return Statement(
            dataset, described.population, described.policy, tuple(map(_described_unit, described.units.values())),
            balances, tuple(self._assumptions(described)), bits, self.books.head, code_version(),
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
        slots = tuple(map(Slot, several(self._slots, partial(self._open, dataset))))
        first = slots[0].engine
        engines: queue.Queue[Slot] = queue.Queue()
        for slot in slots:
            engines.put(slot)
        self.books.register(dataset, first.ctx.facts)
        prepared = bool(getattr(first, "prepared", False))
        bare = House(first.ctx, self.books.describe(dataset.name).version, engines, {}, slots, prepared)
        self._houses[dataset.name] = replace(bare, rows=self._sized(bare))

    def _sized(self, house: House) -> dict[str, int]:
        """The noisy number of (clipped) rows of each private table, charged like any question."""
        parts, tables = size_parts(house.context)
        if not parts:
            return {}
        request, appraisal = self._appraised(house, Request(house.context.dataset.name, tuple(parts)))
        try:
            outcome = self.books.charge(self._claim(house, request, appraisal, KERNEL))
        except BudgetExceeded:
            return self._size_before(request, tables)
        with house.engine() as slot:
            return _rows(tables, self._now(_Task(house, slot, request, appraisal, outcome)))

    def _size_before(self, request: Request, tables: Sequence[str]) -> dict[str, int]:
        """The size of an earlier version of the data: a new one needs budget that is not left."""
        found = self.books.last_answer(request.dataset, KERNEL, digest(request))
        return {} if found is None else _rows(tables, decode(found.encode(), Release, RESPONSE))

    @property
    def registered(self) -> tuple[str, ...]:
        """The names of all datasets."""
        return tuple(sorted(self._houses))

    def balances(self, dataset: str) -> tuple[Balance, ...]:
        """Everyone's budgets."""
        return self.books.balances(dataset, None, self._all_windows(self._house(dataset).context))

    def locked(self, dataset: str) -> bool:
        """Whether late answers have closed a dataset."""
        return self._misses_left(dataset) <= 0

    def _misses_left(self, dataset: str) -> int:
        """How many more answers may be late before the dataset locks; without a schedule none ever is."""
        return self._slots if self._schedule is None else self._schedule.most_misses - self.books.misses(dataset)[1]

    def unlock(self, dataset: str) -> None:
        """Lets a dataset that was locked by late answers answer again."""
        self.books.unlock(dataset)

    def quicken(self, dataset: str) -> None:
        """Lets every class of plans be as quick again as before its late answers; these stay counted."""
        self.books.quicken(dataset)

    def corrections(self, dataset: str) -> Mapping[str, int]:
        """How many values had to be corrected in answers so far; for the curator only."""
        totals = Counter[str]()
        for slot in self._house(dataset).slots:
            totals.update(slot.corrected + Counter(slot.engine.corrections()))
        return totals

    def close(self) -> None:
        """Lets go of the data and the ledger."""
        for house in self._houses.values():
            for _ in house.slots:
                house.engines.get().engine.close()
        self._houses.clear()
        self.books.close()


class _Drawing:
    """One charge being drawn: the only reads and the only exits, each of them against the receipt."""

    def __init__(
        self, receipt: Receipt, engine: Engine, bits: Bits, secret: int, left: Callable[[], float | None]
    ) -> None:
        self._receipt, self._engine, self._bits, self._secret, self._left = receipt, engine, bits, secret, left
        self._vectors: dict[Measure, Vector] = {}

    def release(self, name: str, step: Step) -> ReleasedPart:
        """Reads one step's exact integers and lets them out through its mechanism."""
        keys: tuple[tuple[Scalar, ...], ...] | None = None
        if isinstance(step.measure, PartitionCounts):
            found, exact = self._read_groups(name, step.measure)
            # Places in a list that depends on the data would tell more than the keys that they stand for.
            keys, values = tuple(found[place] for place in self._draw(name, step.mechanism, exact)), ()
        else:
            values = tuple(self._draw(name, step.mechanism, self._read(name, step.measure)).tolist())
        quoted = step.quoted
        return ReleasedPart(
            values, quoted.steps, quoted.shape, keys, step.mechanism, quoted.sensitivity, quoted.loss, quoted.notes
        )

    def _read(self, name: str, measure: Measure) -> Vector:
        self._receipt.redeem(f"read {name}")
        # A joint cost is that of one vector: what several steps map linearly is read once.
        if isinstance(measure, Linear):
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


def _bounds(request: Request, find: Sequence[ReleasedPart]) -> tuple[int, ...]:
    """The bounds that the first steps chose: functions of what they released, each of its public grid."""
    return tuple(rung(search, part.values, part.mechanism) for search, part in zip(request.searches, find, strict=True))


def open_kernel(target: str | Path, *, ledger: str | Path | None = None, **options: Any) -> LocalKernel:
    """The kernel of a dataset's description in this process; its ledger lies beside the description."""
    path = Path(target)
    return LocalKernel(load(path), ledger if ledger is not None else path.with_suffix(".ledger"), **options)
