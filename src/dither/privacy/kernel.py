"""The kernel: the only way to private data. It checks, charges, reads, adds noise and releases on schedule.

`LocalKernel.answer` takes these steps in this order:

privacy_cost            compute the request's cost from public facts; refuse a request of unbounded sensitivity
ledger.charge           write the charge durably before any data is read; a charge is never refunded
ReceiptedRead._read     read the exact values (or _read_groups); nothing else reads, and it redeems the receipt
ReceiptedRead._draw     add the noise; nothing else lets data out, and it redeems the receipt
ledger.record           write the answer to the ledger at its scheduled release time, before it is returned
"""

from __future__ import annotations

import os
import queue
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, assert_never

import numpy as np

from dither.access.engines import Engine, another_engine, engine_pool, open_engine
from dither.access.result_vector import GroupCounts, Key, KeyHolders
from dither.errors import (
    BudgetExceeded,
    EngineFailure,
    InvalidParameter,
    InvalidPlan,
    NotAllowed,
    NotFound,
    Unsupported,
)
from dither.plan.context import Context, PublicTableFacts, with_public_facts
from dither.plan.measures.core import MAX_CELLS, MAX_SELECTED, Measure, SelectedValues
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts, fill_keys, fitting_keys, key_columns, selected_cells
from dither.plan.traversal import fill_values, walk
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.codec import RESPONSE, decode, digest, encode, profile_digest, schema_hash, table_digest
from dither.privacy.cost import (
    CostedStep,
    PrivacyCost,
    calibration_unit,
    privacy_cost,
    recompute_losses,
    scan_sizes,
    steps_at_bounds,
    windows_of,
    work_of,
)
from dither.privacy.ledger import KERNEL, Account, Charge, Ledger, Receipt, RecordedAnswer, RecordedRequest
from dither.privacy.ledger.location import file_beside, find_ledger, note_ledger
from dither.privacy.ledger.state import without_sources
from dither.privacy.mechanisms import Mechanism, Vector
from dither.privacy.pacing import LOCKED, Clock, Gate, Schedule, SystemClock, Work, departure
from dither.privacy.private_log import PrivateLog
from dither.privacy.protocol import (
    LAST_PAGE,
    Balance,
    CostQuote,
    HistoryEntry,
    LedgerRow,
    Page,
    PrivacyStatement,
    Release,
    ReleasedMeasurement,
    ReleaseRequest,
    Request,
)
from dither.privacy.registration import profile_id, size_measurements
from dither.privacy.search_rules import choose_values
from dither.privacy.staging import Staging
from dither.privacy.table_release import (
    TableLayout,
    TableWork,
    check_table,
    is_output_of,
    release_table,
    table_identity,
    table_keys,
)
from dither.schema import Dataset, Unit, load

NO_CELLS = np.zeros(0, dtype=np.int64)


@cache
def code_version() -> str:
    """Return the installed version of Dither, which every charge and release records."""
    try:
        return version("dither")
    except PackageNotFoundError:
        return "unknown"


@dataclass
class EngineSlot:
    """A slot in the engine pool. The next request that checks out the slot replaces an engine that has failed."""

    engine: Engine
    failed: bool = False
    corrected: Counter[str] = field(default_factory=Counter)  # corrections that earlier engines of this slot made


@dataclass(frozen=True)
class RegisteredDataset:
    """A registered dataset: its context, its engines (each serves one request at a time) and its noisy row counts.

    `rows` is None until a measurement that was put off has been made.
    """

    context: Context
    version: str
    engines: queue.Queue[EngineSlot]
    rows: Mapping[str, int] | None
    slots: tuple[EngineSlot, ...]
    prepared: bool = False
    profile: RecordedRequest | None = None
    gates: dict[str, Gate] = field(default_factory=dict)  # one for each viewing group

    def gate(self, group: str) -> Gate:
        """Return the gate of a viewing group."""
        return self.gates.setdefault(group, Gate())

    @contextmanager
    def engine(self) -> Iterator[EngineSlot]:
        """Check out an idle engine until the answer is released, so that queueing delay does not depend on data."""
        slot = self.engines.get()
        try:
            yield slot
        finally:
            slot.engine.ctx.memo.clear()  # drop everything computed for this request's plan
            self.engines.put(slot)


@dataclass(frozen=True)
class ChargedRequest:
    """A charged request, the engine slot that answers it, and the receipt (or the answer already recorded)."""

    registered: RegisteredDataset
    slot: EngineSlot
    request: Request
    cost: PrivacyCost
    outcome: Receipt | RecordedAnswer
    group: str = ""  # the viewing group of the account, which sees the misses of its own answers


class LocalKernel:
    """The kernel in this process. If `trusted`, a token is an account name; otherwise it is verified.

    Sizes are measured at registration. A kernel in its curator's own process may have `size_later`: sizes are then
    measured before the first charge of a question, while the context that it returns (a display of progress) is open.
    """

    def __init__(
        self,
        datasets: Dataset | Sequence[Dataset],
        ledger: str | Path,
        *,
        trusted: bool = True,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
        slots: int = 1,
        measure_size: bool = True,
        size_later: Callable[[str], AbstractContextManager[object]] | None = None,
        engine: Callable[[Dataset], Engine] = open_engine,
        sign_in: Callable[[str], str | None] = lambda token: None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._schedule, self._trusted, self._slots, self._open = schedule, trusted, slots, engine
        self._bits: Bits = SystemBits()
        self._sign_in, self._measures_size = sign_in, measure_size
        if size_later is not None and not self._is_curators:
            raise NotAllowed("a kernel that serves others measures sizes before it accepts questions")
        self._size_later, self._sizing = size_later, Lock()
        self._datasets: dict[str, RegisteredDataset] = {}
        self.ledger = Ledger(ledger, self._clock)
        self.log = PrivateLog()
        for dataset in (datasets,) if isinstance(datasets, Dataset) else datasets:
            self.register(dataset)

    # --- Answering: charge, read, add noise, record ---

    def answer(self, request: Request, token: str) -> Release:
        """Answer a request: charge its cost, read the data, add noise, and return the release at its scheduled time."""
        account, registered = self._authorize_query(request.dataset, token)
        request, cost = self._cost_request(registered, request)
        group = self.ledger.viewing_group(request.dataset, account.name)
        if self._misses_left(request.dataset, group) <= 0:
            raise NotAllowed(LOCKED)
        charge = self._build_charge(registered, request, cost, account.name)
        self.measure_size(request.dataset)
        if self.ledger.preview(charge)[0]:  # nothing more to pay: an answer that was received waits for no gate
            outcome = self._charge(charge)
            if isinstance(outcome, RecordedAnswer) and outcome.paid:
                return self._decode_recorded(outcome, cached=True)
        # The gate comes before the charge, so that a locked dataset charges nothing.
        with registered.gate(group).enter(lambda: self._misses_left(request.dataset, group)):
            outcome = self._charge(charge)
            if isinstance(outcome, Receipt) and outcome.again and self._schedule is not None:
                self.ledger.record_retry(request.dataset, group)  # before it reads, so that a kill does not hide it
            with registered.engine() as slot:
                return self._answer_on_schedule(ChargedRequest(registered, slot, request, cost, outcome, group))

    def _charge(self, charge: Charge) -> Receipt | RecordedAnswer:
        """Write the charge durably. If a budget is exceeded, note the refusal outside the chain and read nothing."""
        try:
            return self.ledger.charge(charge)
        except BudgetExceeded:
            self.ledger.record_refusal(charge.account, charge.dataset, BudgetExceeded.code)
            raise

    def _answer_on_schedule(self, task: ChargedRequest) -> Release:
        """Return the release, or raise the constant EngineFailure, at a time computed from public facts.

        Nothing observable changes before that time: neither the ledger nor the count of misses.
        """
        if self._schedule is None:
            return self._answer_now(task)
        name, work = task.request.dataset, self._estimate_work(task.registered, task.cost)
        start = self._clock.milliseconds()
        instants = self._schedule.instants(start, work, self.ledger.latency_step(name, work.time_class, task.group))
        try:
            result: Release | EngineFailure = self._hide_failures(task, lambda: self._make_release(task, instants[-1]))
        except EngineFailure as problem:
            result = problem
            task.slot.failed &= self._clock.milliseconds() < instants[-1]  # cut off at the deadline: not broken
        leaving = departure(instants, self._clock.milliseconds())
        self._clock.wait_until(leaving.instant)
        if leaving.missed or isinstance(result, EngineFailure):
            self.ledger.record_miss(name, work.time_class, task.group)
            self.log.note(event="miss", dataset=name, time_class=work.time_class)
        if isinstance(result, EngineFailure):
            raise result
        release = result
        return self._hide_failures(task, lambda: self._record(task, release))

    def _answer_now(self, task: ChargedRequest) -> Release:
        """Compute and record the release without a schedule."""
        return self._hide_failures(task, lambda: self._record(task, self._make_release(task, None)))

    def _hide_failures(self, task: ChargedRequest, work: Callable[[], Release]) -> Release:
        """Run `work`; replace any failure by the constant EngineFailure and write the detail to the curator's log."""
        try:
            return work()
        except Exception as problem:
            detail = getattr(task.slot.engine, "failure", None) or str(problem)
            task.slot.failed |= isinstance(problem, EngineFailure)
            name = task.request.dataset
            self.log.note(event="failure", dataset=name, error=type(problem).__name__, detail=detail[:2000])
            raise EngineFailure from None

    def _make_release(self, task: ChargedRequest, deadline: int | None) -> Release:
        """Read the data and add noise for each step: select keys, search bounds, and answer the parts with both."""
        outcome, request, cost = task.outcome, task.request, task.cost
        if isinstance(outcome, RecordedAnswer):
            return self._decode_recorded(outcome, cached=False)
        seconds_left, secret = partial(self._seconds_left, deadline), self._bits.integer(128)
        reader = ReceiptedRead(outcome, self._working_engine(task), self._bits, secret, seconds_left)
        rounds, keys = _select_keys(reader, cost)
        search_parts, chosen = _search_bounds(reader, request, cost) if keys or not rounds else ((), {})
        steps = steps_at_bounds(replace(task.registered.context), request, chosen) if search_parts else cost.steps
        selected = keys if rounds else None
        parts = tuple(reader.release(f"part {number}", step, selected) for number, step in enumerate(steps))
        return Release(
            dataset=request.dataset,
            data_version=task.registered.context.dataset.data_version,
            digest=digest(request),
            parts=parts,
            losses=cost.losses,
            chosen_bounds=tuple(chosen.values()) or None,
            search_results=search_parts or None,
            cached=False,
            sequence=outcome.own.sequence,
            time=outcome.own.time,
            code=code_version(),
            selection_results=rounds or None,
        )

    def _record(self, task: ChargedRequest, result: Release) -> Release:
        """Record the release in the ledger and return it, or the one that a concurrent equal request recorded first."""
        recorded = self.ledger.record(task.outcome, encode(result).decode())
        own_answer = RecordedAnswer(task.outcome.sequence, recorded, paid=False, own=task.outcome.own)
        return self._decode_recorded(own_answer, cached=False)

    def _working_engine(self, task: ChargedRequest) -> Engine:
        """Return the slot's engine, replaced if it has failed; the new one must see the registered public tables."""
        if task.slot.failed:
            failed_engine, reopen = task.slot.engine, partial(self._open, task.registered.context.dataset)
            healthy = next((slot.engine for slot in task.registered.slots if not slot.failed), None)
            task.slot.engine = reopen() if healthy is None else another_engine(healthy, reopen)
            task.slot.corrected.update(failed_engine.corrections())
            with suppress(Exception):
                failed_engine.close()
            if task.slot.engine.ctx.facts != task.registered.context.facts:
                raise EngineFailure
            task.slot.failed = False
        return task.slot.engine

    def _seconds_left(self, deadline: int | None) -> float | None:
        """Return the seconds until the engine is cut off, or None without a deadline."""
        return None if deadline is None else max(0.001, (deadline - self._clock.milliseconds()) / 1000)

    def _decode_recorded(self, outcome: RecordedAnswer, cached: bool) -> Release:
        """Decode a recorded release; of the ledger it shows the account's own charge, not that of the first payer."""
        release, own = decode(outcome.release.encode(), Release, RESPONSE), outcome.own
        return replace(release, cached=cached, sequence=own.sequence, time=own.time, code=own.code, losses=own.losses)

    # --- Static tables: the same steps, part by part ---

    def quote_table(self, request: ReleaseRequest, token: str) -> CostQuote:
        """Quote a static table. Charges nothing and reads no data."""
        account, registered = self._authorize_query(request.question.dataset, token)
        question, cost = self._cost_table(registered, request)
        free, affordable = self.ledger.preview(self._build_table_charge(registered, question, cost, account.name))
        parts = tuple(step.quoted for step in cost.steps)
        return CostQuote(question.question.dataset, parts, cost.losses, None, free, affordable, "", 0)

    def release_table(self, request: ReleaseRequest, token: str, staging: Path, out: Path, layout: TableLayout) -> bool:
        """Release a static table into the folder `out`; a release that was interrupted goes on.

        Return False if the finished release is there already. Only a kernel in its curator's own process does this: it
        keeps no schedule.
        """
        if not self._is_curators:
            raise NotAllowed("static tables are released by the curator, by a kernel in their own process")
        account, registered = self._authorize_query(request.question.dataset, token)
        request, cost = self._cost_table(registered, request)
        admission, table = check_table(registered.context, request, cost)
        charge = self._build_table_charge(registered, request, cost, account.name)
        with closing(Staging(staging, out)) as stage:
            identity = table_identity(charge.digest, registered.version, layout)
            if self._finish_published(charge, stage, identity):
                return False
            stage.begin(identity)
            self.measure_size(registered.context.dataset.name)
            layout.check_space(table_keys(table, None), stage.folder)
            with registered.engine() as slot:
                slot.engine.check_workers(stage.parts)
                outcome = self._charge(charge)
                work = TableWork(admission, table, slot.engine, self._bits, self._bits.integer(128), stage, layout)
                self._hide_engine_errors(slot, lambda: release_table(work, outcome, charge.digest, self.ledger.record))
        return True

    def _hide_engine_errors(self, slot: EngineSlot, work: Callable[[], None]) -> None:
        """Run `work`; write the detail of a failed engine to the curator's log."""
        try:
            work()
        except EngineFailure:
            self.log.note(
                event="failure", error="EngineFailure", detail=str(getattr(slot.engine, "failure", ""))[:2000]
            )
            raise

    def _finish_published(self, charge: Charge, stage: Staging, identity: str) -> bool:
        """Return whether the output is this very release, published; then remove what it left behind in staging."""
        if not os.path.lexists(stage.out):
            return False
        paid = self.ledger.preview(charge)[0]
        outcome = self.ledger.charge(charge) if paid else None
        if not isinstance(outcome, RecordedAnswer) or not is_output_of(stage.out, outcome.release):
            raise InvalidParameter(f"the output {stage.out} exists already; give another folder, or move it away")
        self.ledger.record(outcome, outcome.release)
        if stage.belongs_to(identity):
            stage.remove()
        return True

    def _cost_table(self, registered: RegisteredDataset, request: ReleaseRequest) -> tuple[ReleaseRequest, PrivacyCost]:
        """Return the request, decoded from its own JSON and with its unit named, and its cost."""
        question, cost = self._cost_request(registered, request.question, most_cells=None)
        check_table(registered.context, ReleaseRequest(question), cost)
        return ReleaseRequest(question), cost

    def _build_table_charge(
        self, registered: RegisteredDataset, request: ReleaseRequest, cost: PrivacyCost, account: str
    ) -> Charge:
        """Build the charge of a table; its digest and text differ from those of the same request for an answer."""
        plain = self._build_charge(registered, request.question, cost, account)
        question = ReleaseRequest(replace(request.question, request_id="", schema_hash=""))
        return replace(plain, digest=table_digest(question), request=encode(question).decode(), request_id="")

    # --- Before the charge ---

    def _authorize_query(self, dataset: str, token: str) -> tuple[Account, RegisteredDataset]:
        """Return the analyst's account and the dataset; refuse an account that may not query it."""
        account = self._authenticate(token)
        if account.role != "analyst" or not self._may_see(dataset, account):
            raise NotAllowed("this account may not query this dataset; ask its curator for access")
        return account, self._find_dataset(dataset)

    def _authenticate(self, token: str) -> Account:
        """Return the account of a token; to a trusted kernel the token is the account's name."""
        if not self._trusted:
            name = self._sign_in(token)  # an account name, if the token is not one of the ledger's
            return self.ledger.authenticate(token) if name is None else self.ledger.account(name)
        if not token or token == KERNEL:
            raise NotAllowed(f"an account needs a name other than {KERNEL!r}")
        return Account(token, "analyst")

    def _may_see(self, dataset: str, account: Account) -> bool:
        """Return whether the dataset is registered and the account may see it; auditors and curators see all."""
        return dataset in self._datasets and (account.role != "analyst" or self.ledger.may_query(dataset, account.name))

    def _find_dataset(self, dataset: str) -> RegisteredDataset:
        """Return a registered dataset by name."""
        if dataset not in self._datasets:
            raise NotFound(f"no dataset is called {dataset[:60]!r}")
        return self._datasets[dataset]

    def _authorize_view(self, dataset: str, token: str, *roles: str) -> Account:
        """Return the account if it may see the dataset and has one of `roles`; a trusted kernel ignores roles."""
        account = self._authenticate(token)
        if not self._may_see(dataset, account) or (roles and account.role not in roles and not self._trusted):
            raise NotAllowed("this account may not see this; ask the dataset's curator for access")
        return account

    def _cost_request(
        self, registered: RegisteredDataset, request: Request, most_cells: int | None = MAX_CELLS
    ) -> tuple[Request, PrivacyCost]:
        """Return the request, decoded from its own JSON and with its unit named, and its cost.

        What the protocol cannot express is refused. The first budget, whose unit is the default, may change: so the
        digest and the ledger have the unit's name. The context is copied, so that results cached for this plan are
        dropped with the copy.
        """
        decoded = decode(encode(request), Request)
        if decoded.schema_hash and decoded.schema_hash != schema_hash(registered.context):
            raise InvalidPlan("the dataset's schema has changed since this session began; connect again")
        named = replace(decoded, unit=calibration_unit(registered.context, decoded))
        cost = privacy_cost(replace(registered.context), named)
        if most_cells is not None and max(prod(step.quoted.shape) for step in cost.all_steps) > most_cells:
            raise Unsupported(f"an answer may have at most {most_cells} cells; release a static table instead")
        return named, cost

    def _build_charge(self, registered: RegisteredDataset, request: Request, cost: PrivacyCost, account: str) -> Charge:
        """Build the charge of a request; the recorded text leaves out fields that do not change the query."""
        question = replace(request, request_id="", schema_hash="")
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

    def _estimate_work(self, registered: RegisteredDataset, cost: PrivacyCost) -> Work:
        """Estimate the work of all steps from public facts: the plans, noisy row counts and the number of cells."""
        return work_of([step.measure for step in cost.all_steps], registered.rows or {}, cost.cells)

    # --- Free calls: they charge nothing and read no records ---

    def account_name(self, token: str) -> str:
        """Return the name of the account that a token belongs to."""
        return self._authenticate(token).name

    def account_role(self, token: str) -> str:
        """Return the role of the account that a token belongs to."""
        return self._authenticate(token).role

    def datasets(self, token: str) -> tuple[str, ...]:
        """Return the names of the datasets that the account may query or see."""
        account = self._authenticate(token)
        return tuple(name for name in sorted(self._datasets) if self._may_see(name, account))

    def schema(self, dataset: str, token: str) -> Dataset:
        """Return a dataset's schema without sources, with noisy row counts, the profile, and whether ranks are stored.

        Under separate budgets a profile is shown to the groups that paid for it.
        """
        account = self._authorize_view(dataset, token)
        registered = self._find_dataset(dataset)
        public, profile = without_sources(registered.context.dataset), registered.profile
        view = self.ledger.viewing_group(dataset, account.name if account.role == "analyst" else None)
        published = (profile.request, profile.release) if profile is not None and profile.is_paid_by(view) else None
        return with_public_facts(public, registered.prepared, registered.rows or {}, published)

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """Return the facts counted in the dataset's public tables."""
        self._authorize_view(dataset, token)
        return self._find_dataset(dataset).context.facts

    def quote(self, request: Request, token: str) -> CostQuote:
        """Quote a request: its cost and its waiting time. Charges nothing and reads no data."""
        account, registered = self._authorize_query(request.dataset, token)
        request, cost = self._cost_request(registered, request)
        free, affordable = self.ledger.preview(self._build_charge(registered, request, cost, account.name))
        pace, work = self._schedule, self._estimate_work(registered, cost)
        group = self.ledger.viewing_group(request.dataset, account.name)
        step = self.ledger.latency_step(request.dataset, work.time_class, group)
        wait = 0 if pace is None else pace.prediction(work, step)
        search_facts = tuple(step.quoted for step in cost.searches) or None
        parts = tuple(step.quoted for step in cost.steps)
        return CostQuote(request.dataset, parts, cost.losses, search_facts, free, affordable, work.time_class, wait)

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """Return the budgets that the account's charges count against; for auditors and curators, all budgets."""
        account = self._authorize_view(dataset, token)
        analyst = account.name if account.role == "analyst" else None
        return self.ledger.balances(dataset, analyst, self._all_windows(self._find_dataset(dataset).context))

    def history(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[HistoryEntry, ...]:
        """Return a page of the charges that the account may see."""
        account = self._authorize_view(dataset, token)
        return self.ledger.history(dataset, account.name if account.role == "analyst" else None, page)

    def ledger_rows(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[LedgerRow, ...]:
        """Return a page of the ledger's rows, so that an auditor or a curator can check the hash chain."""
        self._authorize_view(dataset, token, "auditor", "curator")
        return tuple(LedgerRow(*row) for row in self.ledger.page(page))

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """Return the facts of the dataset's privacy statement."""
        account = self._authorize_view(dataset, token)
        description = self._find_dataset(dataset).context.dataset
        analyst = account.name if description.policy == "separate" and account.role == "analyst" else None
        group = self.ledger.viewing_group(dataset, analyst)
        counts = self.ledger.attempts(dataset, analyst), self.ledger.unlock_count(dataset, group)
        bits = 0 if self._schedule is None else self._schedule.residual_bits(*counts)
        balances = self.ledger.balances(dataset, analyst, self._all_windows(self._find_dataset(dataset).context))
        return PrivacyStatement(
            dataset, description.population, description.policy, tuple(map(_describe_unit, description.units.values())),
            balances, tuple(self._assumptions(description)), bits, code_version(),
        )  # fmt: skip

    def _assumptions(self, dataset: Dataset) -> Iterator[str]:
        """Yield the assumptions behind the guarantee, each a sentence."""
        yield "the guarantee is the cap on each budget, whatever was spent so far; questions may follow from answers"
        yield "a changed record counts as one removed and one added: twice the loss, unless the statement says less"
        if dataset.policy == "separate":
            yield "each group's guarantee holds as long as the groups do not share answers with each other"
        for unit in dataset.units.values():
            fixed_tables = [name for name, table in dataset.tables.items() if table.private and name not in unit.keys]
            if fixed_tables:
                yield f"for unit {unit.name}, the tables {', '.join(fixed_tables)} are held fixed"
        if self._schedule is None:
            yield "this kernel runs in its user's own process and trusts that user; answers are not delayed"

    def _all_windows(self, ctx: Context) -> dict[str, tuple[str, ...]]:
        """Return every declared window of each window unit that has a budget."""
        units = {cap.unit: ctx.unit(cap.unit) for cap in ctx.dataset.budgets}
        return {name: windows_of(ctx, name) for name, unit in units.items() if unit.kind == "window"}

    # --- For the curator ---

    def register(self, dataset: Dataset) -> None:
        """Open a dataset: record its schema in the ledger, then measure its size, unless that is put off."""
        slots = tuple(map(EngineSlot, engine_pool(self._slots, partial(self._open, dataset))))
        first = slots[0].engine
        engines: queue.Queue[EngineSlot] = queue.Queue()
        for slot in slots:
            engines.put(slot)
        self.ledger.register(dataset, first.ctx.facts, privacy_cost=recompute_losses)
        for finding in getattr(first, "findings", list[str])() if self._measures_size else ():
            self.log.note(event="finding", dataset=dataset.name, finding=finding)
        prepared = bool(getattr(first, "prepared", False))
        context = replace(first.ctx, scan_nodes=scan_sizes(first.ctx))
        unsized = RegisteredDataset(context, self.ledger.describe(dataset.name).version, engines, None, slots, prepared)
        profile = self.ledger.recorded_request(dataset.name, profile_id(dataset))
        rows = self._measure_size(unsized) if self._size_later is None else None
        self._datasets[dataset.name] = replace(unsized, rows=rows, profile=profile)

    @property
    def _is_curators(self) -> bool:
        """Tell whether this kernel runs in its curator's own process: it trusts its user and keeps no schedule."""
        return self._trusted and self._schedule is None

    def measure_size(self, dataset: str) -> None:
        """Measure the size of a dataset now if that was put off; other threads wait until it is done."""
        with self._sizing:
            registered = self._find_dataset(dataset)
            if registered.rows is None and self._size_later is not None:
                with self._size_later(dataset):
                    rows = self._measure_size(registered)
                self._datasets[dataset] = replace(registered, rows=rows)

    def measure_profile(self, request: Request) -> None:
        """Answer a request of the curator's, charged like any query, and publish the release with the schema.

        Each version of the data has one profile: asking again returns the recorded one, another request is refused.
        """
        self.measure_size(request.dataset)
        registered = self._find_dataset(request.dataset)
        identity = profile_id(registered.context.dataset)
        request, cost = self._cost_request(registered, replace(request, request_id=identity))
        charge = replace(self._build_charge(registered, request, cost, KERNEL), digest=profile_digest(request))
        outcome = self._charge(charge)
        with registered.engine() as slot:
            self._answer_now(ChargedRequest(registered, slot, request, cost, outcome))
        profile = self.ledger.recorded_request(request.dataset, identity)
        self._datasets[request.dataset] = replace(registered, profile=profile)

    def _measure_size(self, registered: RegisteredDataset) -> dict[str, int]:
        """Return the noisy number of (clipped) rows of each private table, charged like any query."""
        parts, tables = size_measurements(registered.context)
        if not parts or not self._measures_size:
            return {}
        request, cost = self._cost_request(registered, Request(registered.context.dataset.name, tuple(parts)))
        try:
            outcome = self.ledger.charge(self._build_charge(registered, request, cost, KERNEL))
        except BudgetExceeded:
            return self._previous_size(request, tables)
        with registered.engine() as slot:
            return _rows_by_table(tables, self._answer_now(ChargedRequest(registered, slot, request, cost, outcome)))

    def _previous_size(self, request: Request, tables: Sequence[str]) -> dict[str, int]:
        """Return the size measured for an earlier version of the data, since no budget is left to measure it again."""
        earlier = self.ledger.last_answer(request.dataset, digest(request))
        return {} if earlier is None else _rows_by_table(tables, decode(earlier.encode(), Release, RESPONSE))

    @property
    def registered(self) -> tuple[str, ...]:
        """The names of all registered datasets."""
        return tuple(sorted(self._datasets))

    def balances(self, dataset: str) -> tuple[Balance, ...]:
        """Return all budgets of a dataset."""
        return self.ledger.balances(dataset, None, self._all_windows(self._find_dataset(dataset).context))

    def locked(self, dataset: str) -> bool:
        """Return whether late answers have locked a dataset; under separate budgets, for one of its groups."""
        return bool(self._locked_groups(dataset))

    def _locked_groups(self, dataset: str) -> list[str]:
        """Return the viewing groups for which late answers have locked a dataset."""
        description = self._find_dataset(dataset).context.dataset
        groups = [group.name for group in description.groups] if description.policy == "separate" else []
        return [group for group in groups or [""] if self._misses_left(dataset, group) <= 0]

    def _misses_left(self, dataset: str, group: str) -> int:
        """Return how many more answers may be late before the dataset locks; without a schedule it never does."""
        if self._schedule is None:
            return self._slots
        return self._schedule.max_misses - self.ledger.misses(dataset, group)[1]

    def unlock(self, dataset: str) -> None:
        """Unlock a dataset for those groups for which late answers have locked it; the others notice nothing."""
        for group in self._locked_groups(dataset):
            self.ledger.unlock(dataset, group)

    def reset_latency(self, dataset: str) -> None:
        """Reset latency predictions to those before any late answer; the count of misses is unchanged."""
        self.ledger.reset_latency(dataset)

    def corrections(self, dataset: str) -> Mapping[str, int]:
        """Return how many values were corrected into their domains in answers so far; for the curator only."""
        totals = Counter[str]()
        for slot in self._find_dataset(dataset).slots:
            totals.update(slot.corrected + Counter(slot.engine.corrections()))
        return totals

    def close(self) -> None:
        """Close the engines and the ledger."""
        for registered in self._datasets.values():
            for _ in registered.slots:
                registered.engines.get().engine.close()
        self._datasets.clear()
        self.ledger.close()


class ReceiptedRead:
    """Reads data and adds noise for one charge; every read and every draw redeems the receipt of that charge."""

    def __init__(
        self, receipt: Receipt, engine: Engine, bits: Bits, secret: int, seconds_left: Callable[[], float | None]
    ) -> None:
        self._receipt, self._engine, self._bits, self._secret, self._seconds_left = (
            receipt,
            engine,
            bits,
            secret,
            seconds_left,
        )
        self._vectors: dict[Measure, Vector] = {}
        self._groups: dict[PartitionCounts, GroupCounts | KeyHolders] = {}

    def release(self, name: str, step: CostedStep, keys: tuple[Key, ...] | None = None) -> ReleasedMeasurement:
        """Read the exact integers of one step and release them through its mechanism; only the cells of given keys."""
        if isinstance(step.measure, PartitionCounts):
            return self.select(name, step)
        if keys is None:
            return released_measurement(step, self._draw(name, step.mechanism, self._read(name, step.measure)), None)
        if not keys:
            return released_measurement(step, NO_CELLS, keys)
        exact = selected_cells(self._read(name, fill_keys(step.measure, key_columns(keys))), keys)
        return released_measurement(step, self._draw(name, step.mechanism, exact), keys)

    def select(self, name: str, step: CostedStep, closed: Collection[Key] = ()) -> ReleasedMeasurement:
        """Read the counts of undeclared keys, without closed keys, and release those that the mechanism names."""
        keys, exact = self._read_groups(name, step.measure, closed)
        # Release keys, not indices: the list depends on the data, so indices would reveal more than the keys do.
        named = tuple(keys[place] for place in self._draw(name, step.mechanism, exact))
        return released_measurement(step, NO_CELLS, named)

    def _read(self, name: str, measure: Measure) -> Vector:
        """Redeem the receipt for reading this step, then return its exact vector."""
        self._receipt.redeem(f"read {name}")
        # The joint cost of linear queries assumes that all of them use one vector: read it once.
        if isinstance(measure, LinearQuery):
            return measure.apply(self._vector(measure.child))
        return self._vector(measure)

    def _vector(self, measure: Measure) -> Vector:
        """Return the exact vector of a measure; read it at most once for each charge."""
        if measure not in self._vectors:
            self._vectors[measure] = self._engine.vector(measure, self._seconds_left(), self._secret)
        return self._vectors[measure]

    def _read_groups(self, name: str, measure: Any, closed: Collection[Key]) -> tuple[tuple[Key, ...], Vector]:
        """Redeem the receipt for reading this step; return the keys in the data and exact counts, 0 for closed keys."""
        self._receipt.redeem(f"read {name}")
        if measure not in self._groups:
            self._groups[measure] = self._engine.groups(measure, self._seconds_left(), self._secret)
        return self._groups[measure].keys, self._groups[measure].without(closed)

    def _draw(self, name: str, mechanism: Mechanism, exact: Vector) -> Vector:
        """Redeem the receipt for drawing this step, then release the exact vector through the mechanism."""
        self._receipt.redeem(f"draw {name}")
        return mechanism.release(exact, self._bits)


def released_measurement(step: CostedStep, values: Vector, keys: tuple[Key, ...] | None) -> ReleasedMeasurement:
    """Return a release: of all cells of a step, of no cells but keys, or of the cells of selected keys."""
    quoted, selected = step.quoted, sum(isinstance(node, SelectedValues) for node in walk(step.measure))
    shape = quoted.shape if not selected or keys is None else (len(keys), *quoted.shape[selected:])
    facts = (step.mechanism, quoted.sensitivity, quoted.loss, quoted.notes)
    return ReleasedMeasurement(tuple(values.tolist()), quoted.steps, shape, keys, *facts)


def _rows_by_table(tables: Sequence[str], size: Release) -> dict[str, int]:
    """Return the noisy rows of each table, and under "" the noisy number of units."""
    return {table: max(0, part.values[0]) for table, part in zip(tables, size.parts, strict=True)}


def _describe_unit(unit: Unit) -> str:
    """Describe a privacy unit in words."""
    tables = ", ".join(unit.keys)
    match unit.kind:
        case "row":
            return f"{unit.name}: one row of {tables}"
        case "window":
            return f"{unit.name}: the rows of one key and one {unit.every} in {tables}"
        case "user":
            return f"{unit.name}: all rows of one {unit.name} in {tables}"
        case _:
            assert_never(unit.kind)


def _select_keys(reader: ReceiptedRead, cost: PrivacyCost) -> tuple[tuple[ReleasedMeasurement, ...], tuple[Key, ...]]:
    """Take the rounds in turn, each over the keys that no earlier one named; return as many keys as the parts take."""
    released: list[ReleasedMeasurement] = []
    keys: dict[Key, None] = {}
    for number, step in enumerate(cost.rounds):
        part = reader.select(f"select {number}", step, keys)
        released.append(part)
        keys |= dict.fromkeys(part.keys or ())
    cells = max(prod(step.quoted.shape) for step in cost.steps) // MAX_SELECTED
    return tuple(released), fitting_keys(keys, max(1, cells))


def _search_bounds(
    reader: ReceiptedRead, request: Request, cost: PrivacyCost
) -> tuple[tuple[ReleasedMeasurement, ...], dict[str, int]]:
    """Take the searches in turn; choose each bound or value from its release, always a point of its public grid."""
    released: list[ReleasedMeasurement] = []
    chosen: dict[str, int] = {}
    for number, (search, step) in enumerate(zip(request.searches, cost.searches, strict=True)):
        part = reader.release(f"find {number}", replace(step, measure=fill_values(step.measure, chosen)))
        released.append(part)
        chosen |= choose_values(search, part, chosen)
    return tuple(released), chosen


def open_kernel(
    target: str | Path,
    *,
    ledger: str | Path | None = None,
    another_ledger: bool = False,
    memory: str | None = None,
    **options: Any,
) -> LocalKernel:
    """Open a kernel in this process from a schema file, on the ledger that the file has; a new one is put beside it."""
    path = Path(target)
    dataset = load(path)
    if memory is not None and all(table.source.kind != "spark" for table in dataset.tables.values()):
        options["engine"] = partial(open_engine, memory=memory)
    place = find_ledger([path], file_beside(path), ledger, another=another_ledger)
    kernel = LocalKernel(dataset, place, **options)
    note_ledger([path], place, kernel.ledger.identity)
    return kernel
