"""A kernel without ledger, budget or pacing, for tests of what surrounds the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dither.errors import InvalidPlan
from dither.plan.context import Context, PublicTableFacts
from dither.plan.measures.core import Measure
from dither.plan.traversal import fill_limits, fill_values
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import calibrate
from dither.privacy.protocol import (
    Calibrate,
    CostQuote,
    HistoryEntry,
    Measurement,
    NewtonRule,
    QuotedMeasurement,
    Release,
    ReleasedMeasurement,
    Request,
    UnitLoss,
)
from dither.privacy.search_rules import choose_values
from dither.schema import Dataset


@dataclass
class BareKernel:
    """Answers every request with the exact vector plus a draw of the mechanism asked for."""

    context: Context
    vector: Callable[[Measure], Any]
    requests: list[Request] = field(default_factory=list)
    exact: dict[Measure, Any] = field(default_factory=dict)

    def datasets(self, token: str) -> tuple[str, ...]:
        return (self.context.dataset.name,)

    def schema(self, dataset: str, token: str) -> Dataset:
        return self.context.dataset

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        return self.context.facts

    def history(self, dataset: str, token: str) -> tuple[HistoryEntry, ...]:
        return ()

    def _check_cells(self, request: Request) -> None:
        """Refuse searches whose rules read another number of cells than their histograms have, as the kernel does."""
        for search in request.searches:
            if search.rule is None:
                continue
            wanted = search.rule.cells if isinstance(search.rule, NewtonRule) else len(search.rule.points) + 1
            if search.histogram.size(self.context) != wanted:
                raise InvalidPlan(f"the search {search.tag!r} needs {wanted} histogram cells")

    def quote(self, request: Request, token: str) -> CostQuote:
        self._check_cells(request)
        widest = {search.tag: search.grid[-1] for search in request.searches}
        parts = tuple(self._quoted(fill_limits(part, widest), request.unit) for part in request.parts)
        find = tuple(self._quoted(Measurement(s.histogram, s.mechanism), request.unit) for s in request.searches)
        losses = tuple(UnitLoss(request.unit or "", "pure", part.loss) for part in (*find, *parts))
        return CostQuote(request.dataset, parts, losses, find or None, False, True, "class", 1)

    def _quoted(self, part: Any, unit: str | None) -> QuotedMeasurement:
        sensitivity = part.measure.sensitivity(self.context, unit)
        mechanism = part.mechanism
        if isinstance(mechanism, Calibrate):
            mechanism = calibrate(mechanism.kind, mechanism.loss, sensitivity, **dict(mechanism.options))
        steps = part.measure.steps(self.context)
        return QuotedMeasurement(mechanism, sensitivity, mechanism.loss(sensitivity), steps, (), ())

    def answer(self, request: Request, token: str) -> Release:
        self._check_cells(request)
        self.requests.append(request)
        tags: dict[str, int] = {}
        find: tuple[ReleasedMeasurement, ...] = ()
        for search in request.searches:
            step = Measurement(fill_values(search.histogram, tags), search.mechanism)
            find = (*find, self._released(step, request.unit))
            tags |= choose_values(search, find[-1], tags)
        bounds = tuple(tags.values())
        filled = [fill_values(fill_limits(part, tags), tags) for part in request.parts]
        parts = tuple(self._released(part, request.unit) for part in filled)
        losses = tuple(UnitLoss(request.unit or "", "pure", part.loss) for part in (*find, *parts))
        return Release(request.dataset, "1", "d", parts, losses, bounds or None, find or None, False, 1, "now", "test")

    def _released(self, part: Measurement, unit: str | None) -> ReleasedMeasurement:
        quoted = self._quoted(part, unit)
        if part.measure not in self.exact:
            self.exact[part.measure] = self.vector(part.measure)
        exact = np.asarray(self.exact[part.measure], np.int64)
        values = tuple(map(int, quoted.mechanism.release(exact, SystemBits())))
        return ReleasedMeasurement(
            values, quoted.steps, (len(values),), None, quoted.mechanism, quoted.sensitivity, quoted.loss, ()
        )
