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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

from dither.access.engines import Engine, another_engine, engine_pool, open_engine
from dither.errors import BudgetExceeded, EngineFailure, InvalidParameter, InvalidPlan, NotAllowed, Unsupported
from dither.plan.measures.core import MAX_CELLS
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.codec import RESPONSE, decode, digest, encode, profile_digest, schema_hash, table_digest
from dither.privacy.cost import PrivacyCost, calibration_unit, privacy_cost, recompute_losses, steps_at_bounds
from dither.privacy.kernel_datasets import EngineSlot, RegisteredDataset, code_version
from dither.privacy.kernel_views import KernelViews
from dither.privacy.ledger import KERNEL, Charge, Ledger, Receipt, RecordedAnswer
from dither.privacy.ledger.location import file_beside, find_ledger, note_ledger
from dither.privacy.pacing import LOCKED, Clock, Schedule, SystemClock, Work, departure
from dither.privacy.plan_facts import work_of
from dither.privacy.private_log import PrivateLog
from dither.privacy.protocol import CostQuote, Release, ReleaseRequest, Request
from dither.privacy.receipted_read import ReceiptedRead, search_bounds, select_keys
from dither.privacy.registration import profile_id, size_measurements
from dither.privacy.sql_size import scan_sizes
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
from dither.schema import Dataset, load


@dataclass(frozen=True)
class ChargedRequest:
    """A charged request, the engine slot that answers it, and the receipt (or the answer already recorded)."""

    registered: RegisteredDataset
    slot: EngineSlot
    request: Request
    cost: PrivacyCost
    outcome: Receipt | RecordedAnswer
    group: str = ""  # the viewing group of the account, which sees the misses of its own answers


class LocalKernel(KernelViews):
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
        rounds, keys = select_keys(reader, cost)
        search_parts, chosen = search_bounds(reader, request, cost) if keys or not rounds else ((), {})
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
            layout.check_space(table_keys(table, None), stage.folder)
            with registered.engine() as slot:
                slot.engine.check_workers(stage.parts)
            self.measure_size(registered.context.dataset.name)
            with registered.engine() as slot:
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

    # --- Quotes: they charge nothing and read no records ---

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

    # --- Opening datasets, for the curator ---

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
        """True if this kernel runs in its curator's own process: it trusts its user and keeps no schedule."""
        return self._trusted and self._schedule is None

    def measure_size(self, dataset: str) -> None:
        """Measure the size of a dataset now if that was put off; other threads wait until it is done."""
        if self._size_later is None or self._find_dataset(dataset).rows is not None:
            return
        with self._sizing:
            registered = self._find_dataset(dataset)
            if registered.rows is None:
                with self._size_later(dataset):
                    rows = self._measure_size(registered)
                if self._datasets[dataset] is registered:  # not registered anew meanwhile
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

    def close(self) -> None:
        """Close the engines and the ledger."""
        for registered in self._datasets.values():
            for _ in registered.slots:
                registered.engines.get().engine.close()
        self._datasets.clear()
        self.ledger.close()


def _rows_by_table(tables: Sequence[str], size: Release) -> dict[str, int]:
    """Return the noisy rows of each table, and under "" the noisy number of units."""
    return {table: max(0, part.values[0]) for table, part in zip(tables, size.parts, strict=True)}


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
