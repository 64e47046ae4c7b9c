"""Charges as a kernel proposes them, and records of charges, answers and accounts as the ledger returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dither.privacy.protocol import UnitLoss


@dataclass(frozen=True)
class Charge:
    """A charge that a kernel proposes: a query and its privacy loss for each unit, computed from public facts alone.

    `version` is the dataset version that the losses were computed from; the ledger rejects all but its current one.
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
    """The name of an account and its role."""

    name: str
    role: str


@dataclass(frozen=True)
class OwnCharge:
    """The charge by which an account's group, or under a shared policy anyone, paid for an answer.

    It is all that the account sees of the ledger beside its answer: a number among the charges that it may see, and
    time, code version and losses of that charge; the first payer's would show when others asked. `row` stays inside.
    """

    row: int
    sequence: int
    time: str
    code: str
    losses: tuple[UnitLoss, ...]


@dataclass(frozen=True)
class RecordedAnswer:
    """The recorded draw of a query; `paid` is True if this account's group had already paid for it and received it.

    `sequence` is the row of the query's first charge.
    """

    sequence: int
    release: str
    paid: bool
    own: OwnCharge = field(compare=False)


@dataclass(frozen=True)
class RecordedRequest:
    """A request of the kernel's and its draw, as JSON, and the groups that paid for it under separate budgets."""

    request: str
    release: str
    groups: tuple[str, ...]

    def is_paid_by(self, view: str) -> bool:
        """Return True if a viewing group paid for it; the whole dataset, "", did with the first charge."""
        return view in ("", *self.groups)
