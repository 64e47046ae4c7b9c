"""Requests, an engine that counts what is read, and a watched kernel, for the tests of the kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dither.access.engines import Engine
from dither.loss import Pure
from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.statistics import contributions
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.scan import Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy.kernel import LocalKernel
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement, Request

KINDS = (GroupKey("kind", ColumnRef("kind")),)
GRID = tuple(2**power for power in range(8))


@dataclass
class Spy:
    """An engine that counts what is read, and does something first."""

    inner: Engine
    reads: list[Measure] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    deadlines: list[float | None] = field(default_factory=list)
    secrets: list[int] = field(default_factory=list)
    failure: str | None = None

    @property
    def ctx(self) -> Context:
        return self.inner.ctx

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Any:
        self.reads.append(measure)
        self.deadlines.append(deadline)
        self.secrets.append(secret)
        self.before()
        return self.inner.vector(measure, deadline, secret)

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> Any:
        self.reads.append(measure)
        self.before()
        return self.inner.groups(measure, deadline, secret)

    def corrections(self) -> Any:
        return self.inner.corrections()

    def cancel(self) -> None:
        self.inner.cancel()

    def close(self) -> None:
        self.inner.close()


@dataclass
class Room:
    """A kernel, the engine behind it and the place of its ledger."""

    kernel: LocalKernel
    spies: list[Spy]
    place: Path

    @property
    def spy(self) -> Spy:
        return self.spies[0]

    def rows(self, kind: str) -> list[Any]:
        return [json.loads(row.body) for row in self.kernel.ledger.rows() if row.kind == kind]

    def spent(self, account: str = "ann", level: str = "dataset") -> list[int]:
        return [each.spent[0] for each in self.kernel.budget("shop", account) if each.level == level]


def counting(epsilon: Any = 1, limit: int = 20, **changes: Any) -> Request:
    """Actions by kind, each person bounded."""
    measure = Count(LimitRowsPerUnit(Scan("actions"), "user", limit), KINDS)
    return replace(Request("shop", (Measurement(measure, Calibrate("discrete_laplace", Pure(epsilon))),)), **changes)


def wide(draw: int) -> Request:
    """The count with so much noise that equal draws mean equal bits."""
    return replace(
        counting(repeat=draw), parts=(replace(counting().parts[0], mechanism=DiscreteLaplace(Fraction(10**6))),)
    )


def automatic(epsilon: Any = 1) -> Request:
    find = contributions(Scan("actions"), "user", tuple(Fraction(edge) for edge in GRID))
    chooser = Calibrate("quantiles", Pure(1), (("quantiles", (Fraction(1, 2),)),))
    measure = Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit()), KINDS)
    part = Measurement(measure, Calibrate("discrete_laplace", Pure(epsilon)))
    return Request("shop", (part,), (BoundSearch(find, chooser, GRID),))
