"""What crosses between processes: requests, quotes, releases, and the protocol that every kernel speaks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol

from dither.errors import InvalidParameter, InvalidPlan
from dither.loss import Loss, Sensitivity
from dither.schema import BudgetCap, Dataset, Scalar

if TYPE_CHECKING:
    from dither.plan.context import PublicTableFacts
    from dither.plan.measures.core import Measure
    from dither.privacy.mechanisms import Mechanism

MOST_PARTS = 256
MOST_BOUNDS = 256
MOST_SEARCHES = 128
LARGEST = 1 << 62
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class Calibrate:
    """Stands for a mechanism: the kernel takes the scale at which `kind` costs at most `loss` to the request's unit.

    `options` are those of `calibrate`: (("quantiles", (Fraction(1, 2),)),), (("k", 3),).
    """

    kind: str
    loss: Loss
    options: tuple[tuple[str, int | Fraction | tuple[Fraction, ...]], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """One vector to measure, and the mechanism that protects it."""

    measure: Measure
    mechanism: Mechanism | Calibrate


@dataclass(frozen=True)
class BoundRule:
    """Reads a bound off noisy counts of units by contribution: where noise and clipping are smallest together.

    The counts are of units below `points[0]`, from each point to the next, and above the last; `noise` is the standard
    deviation that a bound of 1 brings to a cell, `cells` how many cells share what clipping removes, and `row` the mass
    of one row.
    """

    points: tuple[int, ...]
    noise: Fraction
    cells: int
    row: int = 1

    def __post_init__(self) -> None:
        _check_ladder(self.points, "points")
        if not 0 <= self.noise <= LARGEST or not 1 <= min(self.cells, self.row) <= max(self.cells, self.row) <= LARGEST:
            raise InvalidPlan("a rule needs noise from 0, and cells and rows from 1, to 2^62")


@dataclass(frozen=True)
class BoundSearch:
    """Find a bound first: from the vector `find`, `mechanism` chooses an index of `grid`; then the parts answer.

    With a `rule`, the mechanism releases the vector with noise and the rule chooses. In every part, a limit `Auto(tag)`
    takes the bound that was found; the parts use `Calibrate`, so that their loss is known before the bound is. An index
    outside the grid stands for its nearest end.
    """

    histogram: Measure
    mechanism: Mechanism | Calibrate
    grid: tuple[int, ...]
    tag: str = "bound"
    rule: BoundRule | None = None

    def __post_init__(self) -> None:
        _check_ladder(self.grid, "grid")


def _check_ladder(points: tuple[int, ...], name: str) -> None:
    """What is computed with these after the charge must not fail, whatever was released."""
    rising = 1 <= len(points) <= MOST_BOUNDS and list(points) == sorted(set(points))
    if not rising or points[0] < 1 or points[-1] > LARGEST:
        raise InvalidPlan(f"{name} must hold 1 to {MOST_BOUNDS} increasing bounds, from 1 to 2^62")


@dataclass(frozen=True)
class Request:
    """A question: vectors to measure together, in one charge, after the bounds that it first finds in that charge.

    `unit` is the unit that every `Calibrate` refers to (default: the dataset's first budget's). Two requests with the
    same `request_id` from one account are one request. `draw` tells repetitions apart: another number is another draw.
    `described` is `codec.description` of what the asker names cells by; if it is no longer the kernel's, the request is
    refused.
    """

    dataset: str
    parts: tuple[Measurement, ...]
    searches: tuple[BoundSearch, ...] = ()
    request_id: str = ""
    unit: str | None = None
    repeat: int = 0
    expect_head: LedgerHead | None = None
    schema_hash: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise InvalidPlan(f"a request has 1 to {MOST_PARTS} parts, got {len(self.parts)}")
        if self.request_id and not REQUEST_ID.fullmatch(self.request_id):
            raise InvalidParameter("request_id must be 1 to 64 of A-Z a-z 0-9 _ . : -")
        if not 0 <= self.repeat < 2**31:
            raise InvalidParameter("draw must be between 0 and 2^31")
        if not len({each.tag for each in self.searches}) == len(self.searches) <= MOST_SEARCHES:
            raise InvalidPlan(f"a request finds at most {MOST_SEARCHES} bounds first, each of another tag")


@dataclass(frozen=True)
class LedgerHead:
    """The end of the ledger's chain: how many rows, and the last one's hash in hexadecimal."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class UnitLoss:
    """What one unit of that name loses, as budgets of a kind count it."""

    unit: str
    kind: Literal["pure", "zcdp", "renyi"]
    loss: Loss


@dataclass(frozen=True)
class QuotedMeasurement:
    """A part as it would be released; with an automatic bound, at the largest bound of the grid."""

    mechanism: Mechanism
    sensitivity: Sensitivity
    loss: Loss
    steps: tuple[Fraction, ...]
    shape: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CostQuote:
    """What a request would cost, from public facts only: nothing was read and nothing spent."""

    dataset: str
    parts: tuple[QuotedMeasurement, ...]
    losses: tuple[UnitLoss, ...]
    searches: tuple[QuotedMeasurement, ...] | None
    free: bool
    affordable: bool
    time_class: str
    milliseconds: int
    head: LedgerHead


@dataclass(frozen=True)
class ReleasedMeasurement:
    """Noisy integers in the order of the measure's labels, and what was done to make them.

    A cell's quantity is its integer times its value's step. `keys` holds the keys that partition selection let through;
    for every other measure they are the declared ones, and `keys` is None.
    """

    values: tuple[int, ...]
    steps: tuple[Fraction, ...]
    shape: tuple[int, ...]
    keys: tuple[tuple[Scalar, ...], ...] | None
    mechanism: Mechanism
    sensitivity: Sensitivity
    loss: Loss
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """The recorded answer to a request; `find` and `bound` hold each first step and what it chose."""

    dataset: str
    data_version: str
    digest: str
    parts: tuple[ReleasedMeasurement, ...]
    losses: tuple[UnitLoss, ...]
    chosen_bounds: tuple[int, ...] | None
    search_results: tuple[ReleasedMeasurement, ...] | None
    cached: bool
    sequence: int
    head: LedgerHead
    time: str
    code: str


@dataclass(frozen=True)
class Balance:
    """One budget that the account's charges count against, in multiples of 1e-15 of each of its `components`."""

    level: Literal["dataset", "group", "analyst"]
    name: str
    cap: BudgetCap
    window: str
    components: tuple[str, ...]
    limit: tuple[int, ...]
    spent: tuple[int, ...]


@dataclass(frozen=True)
class HistoryEntry:
    """One charge in an account's history; `answered` is false where the charge stands without an answer."""

    sequence: int
    time: str
    account: str
    digest: str
    losses: tuple[UnitLoss, ...]
    answered: bool


@dataclass(frozen=True)
class LedgerRow:
    """A row of the ledger as an auditor reads it; `body` is canonical JSON."""

    sequence: int
    kind: str
    time: str
    body: str
    hash: str


@dataclass(frozen=True)
class PrivacyStatement:
    """The facts of a dataset's privacy statement; `dither.post` and the servers put them into prose."""

    dataset: str
    population: str
    policy: Literal["shared", "separate"]
    units: tuple[str, ...]
    balances: tuple[Balance, ...]
    assumptions: tuple[str, ...]
    residual_bits: int
    head: LedgerHead
    code: str


class Kernel(Protocol):
    """The one door. A kernel behind a socket checks the token; one in-process takes an account's name and trusts it."""

    def datasets(self, token: str) -> tuple[str, ...]:
        """The datasets that the account may ask."""

    def schema(self, dataset: str, token: str) -> Dataset:
        """What is public about a dataset, without where its records are."""

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """What was counted in the dataset's public tables; with the schema, all that a plan is read in."""

    def quote(self, request: Request, token: str) -> CostQuote:
        """What a request would cost; free, and reads nothing."""

    def answer(self, request: Request, token: str) -> Release:
        """Charges, reads, releases."""

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """The budgets that the account's charges count against."""

    def history(self, dataset: str, token: str) -> tuple[HistoryEntry, ...]:
        """The charges that the account may see: everyone's under a shared budget, its group's under separate ones."""

    def ledger_rows(self, dataset: str, token: str) -> tuple[LedgerRow, ...]:
        """Every row that concerns the dataset; auditors and curators."""

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """The facts of the privacy statement."""
