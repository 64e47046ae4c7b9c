"""Registered datasets and their engines, and the accounts that may query or see them."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from dither.access.engines import Engine
from dither.errors import NotAllowed, NotFound
from dither.plan.context import Context
from dither.privacy.ledger import KERNEL, Account, Ledger, RecordedRequest
from dither.privacy.pacing import Gate, Schedule


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


class KernelDatasets:
    """The datasets of a kernel, and which account may query or see each of them; `LocalKernel` opens them."""

    ledger: Ledger
    _datasets: dict[str, RegisteredDataset]
    _schedule: Schedule | None
    _trusted: bool
    _slots: int
    _sign_in: Callable[[str], str | None]

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
