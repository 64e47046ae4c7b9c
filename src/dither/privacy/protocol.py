"""The messages between clients and kernels (requests, quotes, releases), and the interface of every kernel."""

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

MAX_PARTS = 256
MAX_BOUNDS = 512
MAX_SEARCHES = 128
MAX_WEIGHTS = 128
MAX_ROUNDS = 8
MAX_SIZES = 8
LARGEST_BOUND = 1 << 62
MAX_PAGE = 2000  # reading a page delays charges, and takes about 3 KB for each charge
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class Calibrate:
    """A mechanism given by its cost: the kernel chooses a scale at which it costs the request's unit at most `loss`.

    `options` are passed to `calibrate`, for example (("quantiles", (Fraction(1, 2),)),) or (("count", 3),).
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
class KnownSize:
    """A noisy size that is public, for a rule to believe beside its histogram.

    Clipped to `clip`, all contributions together come to about `amount`, or to no more than that if it is not the
    `whole`; its noise has the Laplace scale `scale`. The number of units is the size with the least clip.
    """

    clip: int
    amount: int
    scale: int
    whole: bool

    def __post_init__(self) -> None:
        if not 1 <= min(self.clip, self.scale) <= max(self.clip, self.scale, abs(self.amount)) <= LARGEST_BOUND:
            raise InvalidPlan("a known size needs clip and scale from 1 to 2^62, and an amount up to 2^62")


@dataclass(frozen=True)
class BoundRule:
    """The public rule that chooses a contribution bound from a noisy histogram: minimize noise plus clipping error.

    The histogram counts units below `points[0]`, from each point to the next, and above the last. `noise` is the
    standard deviation of a cell's noise at a bound of 1, `cells` the number of cells that share the clipping error, and
    `row` the contribution of one row. Contributions are multiples of `step`. What is removed from a `signed` sum may
    have either sign. `sizes` are what is public about all units together.
    """

    points: tuple[int, ...]
    noise: Fraction
    cells: int
    row: int = 1
    step: int = 1
    signed: bool = False
    sizes: tuple[KnownSize, ...] = ()

    def __post_init__(self) -> None:
        _check_increasing(self.points, "points")
        if (
            not 0 <= self.noise <= LARGEST_BOUND
            or not 1 <= min(self.cells, self.row, self.step) <= max(self.cells, self.row, self.step) <= LARGEST_BOUND
        ):
            raise InvalidPlan("a bound rule needs noise from 0 to 2^62, and cells, row and step from 1 to 2^62")
        if len(self.sizes) > MAX_SIZES:
            raise InvalidPlan(f"a bound rule has at most {MAX_SIZES} known sizes")


@dataclass(frozen=True)
class NewtonRule:
    """The public rule that improves weights by a Newton step on a noisy gradient and its noisy derivatives.

    The vector has the gradient at the weights that the search `start` chose ("": all are 0), then the upper triangle of
    the second derivatives, row by row. Weights are multiples of `step`, and 0 is the middle of the grid. `ridge` times
    the standard deviation of the noise is added to every eigenvalue of the derivatives, which the vector has divided by
    `divisor`.
    """

    size: int
    step: Fraction
    start: str = ""
    ridge: Fraction = Fraction(1)
    divisor: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_WEIGHTS or not min(self.step, self.ridge, self.divisor) > 0:
            raise InvalidPlan(f"a Newton rule needs 1 to {MAX_WEIGHTS} weights, and a positive step, ridge and divisor")
        if max(self.step, self.ridge, self.divisor, 1 / self.step) > LARGEST_BOUND:
            raise InvalidPlan("the step, ridge and divisor of a Newton rule must be at most 2^62")

    @property
    def cells(self) -> int:
        """The number of cells of the vector."""
        return self.size + self.size * (self.size + 1) // 2


@dataclass(frozen=True)
class BoundSearch:
    """A private search for a bound before the parts are answered: `mechanism` chooses an index of `grid`.

    The mechanism reads the vector `histogram`. With a `rule`, it releases that vector with noise and the rule chooses.
    In every part, and in the histograms of later searches, `EstimatedLimit(tag)` becomes the chosen bound and
    `EstimatedValue(tag)` the chosen value; the charge covers the costliest bound of the grid. An index outside the grid
    means the nearest end of the grid. A Newton rule chooses several values between the ends of the grid, with the tags
    `tag.0`, `tag.1`, ...
    """

    histogram: Measure
    mechanism: Mechanism | Calibrate
    grid: tuple[int, ...]
    tag: str = "bound"
    rule: BoundRule | NewtonRule | None = None

    def __post_init__(self) -> None:
        _check_increasing(self.grid, "grid")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the values that are chosen."""
        if isinstance(self.rule, NewtonRule):
            return tuple(f"{self.tag}.{place}" for place in range(self.rule.size))
        return (self.tag,)


def _check_increasing(points: tuple[int, ...], name: str) -> None:
    """Refuse points that are not increasing or out of range; after the charge, nothing computed from them may fail."""
    rising = 1 <= len(points) <= MAX_BOUNDS and list(points) == sorted(set(points))
    if not rising or points[0] < 1 or points[-1] > LARGEST_BOUND:
        raise InvalidPlan(f"{name} must be 1 to {MAX_BOUNDS} increasing integers from 1 to 2^62")


@dataclass(frozen=True)
class KeySelection:
    """A private selection of keys, in rounds, before the parts are answered: what all rounds name is selected.

    Every round reads the units of the keys that no earlier round has named. In every part, `SelectedValues` becomes the
    list of the selected keys; the cells of the answer are those of the selected keys. With a `conversion_delta`, a pure
    budget is charged the epsilon that the zCDP of the whole request implies for so much more delta.
    """

    rounds: tuple[Measurement, ...]
    conversion_delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if not 1 <= len(self.rounds) <= MAX_ROUNDS or not 0 <= self.conversion_delta < 1:
            raise InvalidPlan(f"a selection must have 1 to {MAX_ROUNDS} rounds, and a delta from 0 to below 1")


@dataclass(frozen=True)
class Request:
    """A query: a selection of keys, searches for bounds, then measurements, all in one charge.

    `unit` is the unit that every `Calibrate` refers to (default: the unit of the dataset's first budget). Two requests
    with the same `request_id` from one account are one request. `repeat` distinguishes repetitions of a query: a new
    number draws new noise and is charged again. `schema_hash` is `codec.schema_hash` of the client's schema; the kernel
    refuses the request if its own schema has another hash.
    """

    dataset: str
    parts: tuple[Measurement, ...]
    searches: tuple[BoundSearch, ...] = ()
    request_id: str = ""
    unit: str | None = None
    repeat: int = 0
    schema_hash: str = ""
    selection: KeySelection | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise InvalidPlan(f"a request must have 1 to {MAX_PARTS} parts, got {len(self.parts)}")
        if self.request_id and not REQUEST_ID.fullmatch(self.request_id):
            raise InvalidParameter("request_id must be 1 to 64 characters from A-Z a-z 0-9 _ . : -")
        if not 0 <= self.repeat < 2**31:
            raise InvalidParameter("repeat must be from 0 to 2^31 - 1")
        tags = [tag for each in self.searches for tag in each.tags]
        if not len(set(tags)) == len(tags) or not len(self.searches) <= MAX_SEARCHES:
            raise InvalidPlan(f"a request must have at most {MAX_SEARCHES} searches, each with its own tag")


@dataclass(frozen=True)
class ReleaseRequest:
    """A static table to release: its last part is the table; a first part, if any, admits values of its first key.

    It is charged once, like any request, and is another question than the same request for an answer.
    """

    question: Request


@dataclass(frozen=True)
class LedgerHead:
    """The head of the ledger's hash chain: the number of rows, and the hash of the last one in hexadecimal."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class UnitLoss:
    """The privacy loss of one unit, in the kind of loss that its budget counts."""

    unit: str
    kind: Literal["pure", "zcdp", "renyi"]
    loss: Loss


@dataclass(frozen=True)
class QuotedMeasurement:
    """The public facts of one measurement before it is made; with a bound search, at the largest bound of the grid."""

    mechanism: Mechanism
    sensitivity: Sensitivity
    loss: Loss
    steps: tuple[Fraction, ...]
    shape: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CostQuote:
    """The cost of a request, from public facts only: nothing is read and nothing is charged."""

    dataset: str
    parts: tuple[QuotedMeasurement, ...]
    losses: tuple[UnitLoss, ...]
    searches: tuple[QuotedMeasurement, ...] | None
    free: bool
    affordable: bool
    time_class: str
    milliseconds: int


@dataclass(frozen=True)
class ReleasedMeasurement:
    """The noisy integers of one measurement, in the order of the measure's labels, and how they were made.

    The value of a cell is its integer times its step. `keys` holds the keys that partition selection released, or the
    selected keys whose cells these are; for every other measure the keys are the declared ones, and `keys` is None.
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
    """The recorded answer to a request; `search_results` and `chosen_bounds` hold each bound search and its result.

    `selection_results` holds the keys that each round of a selection named. If none did, there is no search.

    `sequence`, `time`, `code` and `losses` are those of the account's own charge (see `HistoryEntry`).
    """

    dataset: str
    data_version: str
    digest: str
    parts: tuple[ReleasedMeasurement, ...]
    losses: tuple[UnitLoss, ...]
    chosen_bounds: tuple[int, ...] | None
    search_results: tuple[ReleasedMeasurement, ...] | None
    cached: bool
    sequence: int
    time: str
    code: str
    selection_results: tuple[ReleasedMeasurement, ...] | None = None


@dataclass(frozen=True)
class Balance:
    """One budget that the account's charges count against; amounts are multiples of 1e-15 for each of `components`."""

    level: Literal["dataset", "group", "analyst"]
    name: str
    cap: BudgetCap
    window: str
    components: tuple[str, ...]
    limit: tuple[int, ...]
    spent: tuple[int, ...]


@dataclass(frozen=True)
class HistoryEntry:
    """One charge in an account's history; `answered` is false if the charge has no recorded answer.

    `sequence` counts, from 1, the charges of the dataset that the account may see. `request` is the recorded question,
    or "" if that is long.
    """

    sequence: int
    time: str
    account: str
    digest: str
    losses: tuple[UnitLoss, ...]
    answered: bool
    request: str = ""


@dataclass(frozen=True)
class LedgerRow:
    """A row of the ledger as an auditor reads it; `body` is canonical JSON, and the hash covers the secret `salt`."""

    sequence: int
    kind: str
    time: str
    body: str
    hash: str
    salt: str


@dataclass(frozen=True)
class PrivacyStatement:
    """The facts of a dataset's privacy statement; the untrusted layers turn them into prose."""

    dataset: str
    population: str
    policy: Literal["shared", "separate"]
    units: tuple[str, ...]
    balances: tuple[Balance, ...]
    assumptions: tuple[str, ...]
    residual_bits: int
    code: str


@dataclass(frozen=True)
class Page:
    """A page of a list in ascending order: at most `limit` entries, the last ones before number `before` (0: all)."""

    before: int = 0
    limit: int = MAX_PAGE

    def __post_init__(self) -> None:
        if self.before < 0 or not 1 <= self.limit <= MAX_PAGE:
            raise InvalidParameter(f"a page needs before >= 0 and a limit from 1 to {MAX_PAGE}")


LAST_PAGE = Page()


class Kernel(Protocol):
    """The only interface to private data. Behind a socket, a kernel verifies tokens; in-process, a token is a name."""

    def datasets(self, token: str) -> tuple[str, ...]:
        """Return the names of the datasets that the account may query."""

    def schema(self, dataset: str, token: str) -> Dataset:
        """Return a dataset's schema without its sources."""

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """Return the facts counted in the dataset's public tables; a plan needs only these and the schema."""

    def quote(self, request: Request, token: str) -> CostQuote:
        """Quote a request. Charges nothing and reads no data."""

    def answer(self, request: Request, token: str) -> Release:
        """Answer a request: charge, read, release."""

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """Return the budgets that the account's charges count against."""

    def history(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[HistoryEntry, ...]:
        """Return a page of the charges that the account may see: all, or its group's under separate budgets."""

    def ledger_rows(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[LedgerRow, ...]:
        """Return a page of the ledger's rows, for auditors and curators."""

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """Return the facts of the privacy statement."""
