"""What may be asked of a kernel over its socket: the protocol's calls by name, and how each result travels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dither.errors import InvalidPlan
from dither.plan.context import PublicTableFacts
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.protocol import (
    Balance,
    CostQuote,
    HistoryEntry,
    Kernel,
    LedgerRow,
    PrivacyStatement,
    Release,
    Request,
)
from dither.schema import Dataset
from dither.serve.transport.vectors import FORM, large, pack, unpack


@dataclass(frozen=True)
class Names:
    """The names of datasets."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Balances:
    """The budgets that an account's charges count against."""

    items: tuple[Balance, ...]


@dataclass(frozen=True)
class Entries:
    """Charges that an account may see."""

    items: tuple[HistoryEntry, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of the ledger."""

    items: tuple[LedgerRow, ...]


def asked(body: bytes, dataset: str) -> Request:
    """The request that a body holds, if it is for the dataset in whose line it waited."""
    request = decode(body, Request)
    if request.dataset != dataset:
        raise InvalidPlan("the request names another dataset than its message")
    return request


Call = Callable[[Kernel, str, str, bytes], Any]

CALLS: dict[str, Call] = {
    "datasets": lambda kernel, token, dataset, body: Names(kernel.datasets(token)),
    "schema": lambda kernel, token, dataset, body: kernel.schema(dataset, token),
    "facts": lambda kernel, token, dataset, body: kernel.facts(dataset, token),
    "quote": lambda kernel, token, dataset, body: kernel.quote(asked(body, dataset), token),
    "answer": lambda kernel, token, dataset, body: kernel.answer(asked(body, dataset), token),
    "budget": lambda kernel, token, dataset, body: Balances(kernel.budget(dataset, token)),
    "history": lambda kernel, token, dataset, body: Entries(kernel.history(dataset, token)),
    "ledger": lambda kernel, token, dataset, body: Rows(kernel.ledger_rows(dataset, token)),
    "statement": lambda kernel, token, dataset, body: kernel.statement(dataset, token),
}

RESULTS: dict[str, type] = {
    "datasets": Names, "schema": Dataset, "facts": PublicTableFacts, "quote": CostQuote, "answer": Release,
    "budget": Balances, "history": Entries, "ledger": Rows, "statement": PrivacyStatement,
}  # fmt: skip


def written(value: Any, packed: bool) -> tuple[bytes, str]:
    """A call's answer as bytes, and their form: JSON, or for large vectors of whoever takes them so, columns."""
    if packed and isinstance(value, Release) and large(value):
        return pack(value), FORM
    return encode(value), ""


def decode_result(call: str, body: bytes, form: str = "") -> Any:
    """What a call's answer stands for."""
    return unpack(body) if form == FORM and call == "answer" else decode(body, RESULTS[call], RESPONSE)


class RpcKernel(ABC):
    """The kernel protocol for a kernel somewhere else, given a way to make one call."""

    @abstractmethod
    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """One call and its result, or the error that came back."""

    def datasets(self, token: str) -> tuple[str, ...]:
        """The datasets that the account may ask."""
        names: tuple[str, ...] = self.call("datasets", token).items
        return names

    def schema(self, dataset: str, token: str) -> Dataset:
        """What is public about a dataset."""
        found: Dataset = self.call("schema", token, dataset)
        return found

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """What was counted in the dataset's public tables."""
        found: PublicTableFacts = self.call("facts", token, dataset)
        return found

    def quote(self, request: Request, token: str) -> CostQuote:
        """What a request would cost."""
        found: CostQuote = self.call("quote", token, request.dataset, encode(request))
        return found

    def answer(self, request: Request, token: str) -> Release:
        """Charges, reads, releases."""
        found: Release = self.call("answer", token, request.dataset, encode(request))
        return found

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """The budgets that the account's charges count against."""
        found: tuple[Balance, ...] = self.call("budget", token, dataset).items
        return found

    def history(self, dataset: str, token: str) -> tuple[HistoryEntry, ...]:
        """The charges that the account may see."""
        found: tuple[HistoryEntry, ...] = self.call("history", token, dataset).items
        return found

    def ledger_rows(self, dataset: str, token: str) -> tuple[LedgerRow, ...]:
        """Every row that concerns the dataset."""
        found: tuple[LedgerRow, ...] = self.call("ledger", token, dataset).items
        return found

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """The facts of the privacy statement."""
        found: PrivacyStatement = self.call("statement", token, dataset)
        return found
