"""Contingency tables over declared keys: several margins in one charge, which agree on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.post.estimate.answer import Answer
from dither.post.estimate.explain import Expected
from dither.post.estimate.quantiles import interval_factor
from dither.post.formulas import NoisyCell
from dither.post.noise import ScaledNoise
from dither.post.query.query_plan import CellRef, QueryPlan
from dither.post.statistics.consistency import (
    AgreedTable,
    agree,
    subsets,
    with_whole_numbers,
    without_negatives,
)
from dither.post.statistics.core import Measurements, Part, Statistic, expected_noise
from dither.post.statistics.fitted import FittedTable, margin_of
from dither.post.statistics.result import Result
from dither.post.statistics.source_rows import SourceRows
from dither.privacy.protocol import Measurement

AGREE_NOTE = "all margins agree: they are sums of one table, fitted to everything measured by least squares"


@dataclass(frozen=True)
class TableRequest:
    """The keys and margins of a contingency table, the aggregate in its cells, and how it is made consistent."""

    keys: tuple[str, ...]
    margins: tuple[tuple[str, ...], ...]
    value: str
    consistent: bool
    nonnegative: bool
    whole: bool

    @property
    def fitted(self) -> bool:
        """True if the margins are to agree."""
        return self.consistent or self.nonnegative or self.whole


@dataclass(frozen=True, repr=False)
class ContingencyTable(Result):
    """A contingency table: `margins` has the answer of each margin by its keys, `raw` those as measured.

    The table itself is its largest margin. With `consistent`, the margins agree; `raw` keeps what was measured.
    """

    margins: Mapping[tuple[str, ...], Answer] = field(default_factory=dict)
    raw: Mapping[tuple[str, ...], Answer] = field(default_factory=dict)
    agreed: AgreedTable | None = None

    def margin(self, *keys: str) -> Answer:
        """Return the answer of a margin that was asked for."""
        for known, answer in self.margins.items():
            if set(known) == set(keys):
                return answer
        listed = ", ".join(str(list(known)) for known in self.margins)
        raise KeyError(f"no margin over {list(keys)}; there are: {listed}")

    def __str__(self) -> str:
        others = [f"margin {', '.join(keys) or 'total'}\n{answer!s}" for keys, answer in list(self.margins.items())[1:]]
        return "\n\n".join([super().__str__(), *others])


def make_table(rows: SourceRows, wanted: TableRequest) -> Statistic[ContingencyTable]:
    """Make the statistic of a contingency table, one part for each margin."""
    plans = [rows.plan([f"{wanted.value} AS n"], by=margin) for margin in wanted.margins]
    for plan in plans:
        check_linear(plan, wanted.value)
    if wanted.nonnegative and any(isinstance(s, CellRef) and s.signed for p in plans for s in p.sources):
        raise InvalidParameter("these sums may be negative, so nonnegative= does not fit; leave it out")

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return [
            expected_noise(rows.settings, f"a cell by {', '.join(margin)}" if margin else "the total", plan, own)
            for margin, plan, own in zip(wanted.margins, plans, parts, strict=True)
        ]

    return Statistic(rows.settings, tuple(map(Part, plans)), lambda measured: build_table(measured, wanted), expect)


def read_table_request(
    keys: Sequence[str],
    margins: Sequence[Sequence[str]] | Literal["all"] | None,
    value: str,
    *,
    consistent: bool,
    nonnegative: bool,
    whole: bool,
) -> TableRequest:
    """Check the keys and the margins of a table; by default, the only margin is the table itself."""
    names = tuple(keys)
    if margins is None:
        wanted: list[tuple[str, ...]] = [names]
    elif margins == "all":
        wanted = subsets(names)[::-1]
    else:
        wanted = [tuple(each) for each in margins]
    if (
        not wanted
        or any(set(margin) - set(names) for margin in wanted)
        or len(set(map(frozenset, wanted))) < len(wanted)
    ):
        raise InvalidParameter(
            f"margins must be 'all' or different lists of some of the keys {list(names)}, such as {[[], [names[0]]]}"
        )
    ordered = [tuple(key for key in names if key in margin) for margin in wanted]
    ordered.sort(key=len, reverse=True)
    return TableRequest(names, tuple(ordered), value, consistent, nonnegative, whole)


def check_linear(plan: QueryPlan, value: str) -> None:
    """Refuse an aggregate that is not a count or a sum, since margins are sums of their cells."""
    node = plan.outputs[-1].node
    if not isinstance(node, NoisyCell) or not isinstance(plan.sources[node.index], CellRef):
        raise Unsupported(
            f"the cells of a table are counts or sums, such as COUNT(*) or SUM(x), and {value} is neither"
        )


def build_table(measured: Measurements, wanted: TableRequest) -> ContingencyTable:
    """Build the table from what was measured, fitted if its margins are to agree."""
    raw = {
        margin: part.answer(measured.settings, measured.releases)
        for margin, part in zip(wanted.margins, measured.parts, strict=True)
    }
    laplace = any(part.noise().kind == "laplace" for part in measured.parts)
    fitted = fit_margins(raw, wanted, laplace, measured.settings.confidence) if wanted.fitted else None
    shown = {m: with_fitted(raw[m], fitted, m, whole=wanted.whole) if fitted else raw[m] for m in wanted.margins}
    first = shown[wanted.margins[0]]
    notes = (
        *dict.fromkeys(note for answer in raw.values() for note in answer.notes),
        *((AGREE_NOTE,) if fitted else ()),
    )
    return ContingencyTable(
        query=first.query, columns=first.columns, keys=first.keys, confidence=first.confidence, loss=first.loss,
        releases=measured.releases, bounds=first.bounds, notes=notes, margins=shown, raw=raw,
        agreed=fitted.table if fitted else None,
    )  # fmt: skip


def fit_margins(
    raw: Mapping[tuple[str, ...], Answer], wanted: TableRequest, laplace: bool, confidence: float
) -> FittedTable:
    """Fit one table to all margins, and make it non-negative and whole if that is wanted."""
    sizes: dict[str, int] = {}
    for margin, answer in raw.items():
        for position, key in enumerate(margin):
            sizes[key] = len(answer.keys.column(position).unique())
    sizes = {key: sizes[key] for key in wanted.keys if key in sizes}
    margins = [margin_of(answer.columns[-1], margin, sizes, confidence) for margin, answer in raw.items()]
    table = agree(sizes, margins)
    if wanted.nonnegative:
        table = without_negatives(table, margins)
    table = with_whole_numbers(table) if wanted.whole else table
    least = 0.0 if wanted.nonnegative else -np.inf
    return FittedTable(table, margins, normal_factor(laplace, confidence), confidence, least)


def normal_factor(laplace: bool, confidence: float) -> float:
    """Return how many standard deviations cover sums of noise: for Laplace noise, enough for a single one."""
    noise = ScaledNoise("laplace" if laplace else "gaussian", 1000.0)
    return float(interval_factor(np.array([1.0]), noise, confidence)[0])


def with_fitted(answer: Answer, fitted: FittedTable, keys: tuple[str, ...], *, whole: bool) -> Answer:
    """Return an answer with the fitted values of its margin, and their intervals."""
    column = fitted.column(answer.columns[-1], keys)
    if whole:
        found = column.estimate
        column = replace(column, estimate=replace(found, low=np.ceil(found.low), high=np.floor(found.high)))
    return replace(answer, columns=(*answer.columns[:-1], column), draws=None)
