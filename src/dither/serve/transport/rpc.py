"""The calls of the kernel protocol by name, and the encoding of their requests and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dither.errors import InvalidPlan
from dither.plan.context import PublicTableFacts
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.protocol import (
    LAST_PAGE,
    Balance,
    CostQuote,
    HistoryEntry,
    Kernel,
    LedgerRow,
    Page,
    PrivacyStatement,
    Release,
    Request,
)
from dither.schema import Dataset
from dither.serve.transport.vectors import FORM, is_large, pack, unpack


@dataclass(frozen=True)
class Names:
    """The names of datasets."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Balances:
    """The budgets that apply to an account."""

    items: tuple[Balance, ...]


@dataclass(frozen=True)
class Entries:
    """The charges that an account may see."""

    items: tuple[HistoryEntry, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of the ledger."""

    items: tuple[LedgerRow, ...]


def decode_request(body: bytes, dataset: str) -> Request:
    """Decode a request; raise InvalidPlan if it is for another dataset than its message."""
    request = decode(body, Request)
    if request.dataset != dataset:
        raise InvalidPlan("the request and its message must name the same dataset")
    return request


def decode_page(body: bytes) -> Page:
    """Decode the page that a call asks for; without a body, the last one."""
    return decode(body, Page) if body else LAST_PAGE


Call = Callable[[Kernel, str, str, bytes], Any]

CALLS: dict[str, Call] = {
    "datasets": lambda kernel, token, dataset, body: Names(kernel.datasets(token)),
    "schema": lambda kernel, token, dataset, body: kernel.schema(dataset, token),
    "facts": lambda kernel, token, dataset, body: kernel.facts(dataset, token),
    "quote": lambda kernel, token, dataset, body: kernel.quote(decode_request(body, dataset), token),
    "answer": lambda kernel, token, dataset, body: kernel.answer(decode_request(body, dataset), token),
    "budget": lambda kernel, token, dataset, body: Balances(kernel.budget(dataset, token)),
    "history": lambda kernel, token, dataset, body: Entries(kernel.history(dataset, token, decode_page(body))),
    "ledger": lambda kernel, token, dataset, body: Rows(kernel.ledger_rows(dataset, token, decode_page(body))),
    "statement": lambda kernel, token, dataset, body: kernel.statement(dataset, token),
}

RESULTS: dict[str, type] = {
    "datasets": Names, "schema": Dataset, "facts": PublicTableFacts, "quote": CostQuote, "answer": Release,
    "budget": Balances, "history": Entries, "ledger": Rows, "statement": PrivacyStatement,
}  # fmt: skip


def encode_result(value: Any, accepts_packed: bool) -> tuple[bytes, str]:
    """Encode a result, and name its form: JSON (""), or FORM for large vectors if the caller accepts it."""
    if accepts_packed and isinstance(value, Release) and is_large(value):
        return pack(value), FORM
    return encode(value), ""


def decode_result(call: str, body: bytes, form: str = "") -> Any:
    """Decode the result of a call."""
    return unpack(body) if form == FORM and call == "answer" else decode(body, RESULTS[call], RESPONSE)


class RpcKernel(ABC):
    """The kernel protocol for a remote kernel; a subclass defines how to make one call."""

    @abstractmethod
    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """Make one call and return its result; raise the error that came back."""

    def datasets(self, token: str) -> tuple[str, ...]:
        """Return the names of the datasets that the account may query."""
        names: tuple[str, ...] = self.call("datasets", token).items
        return names

    def schema(self, dataset: str, token: str) -> Dataset:
        """Return a dataset's public schema."""
        result: Dataset = self.call("schema", token, dataset)
        return result

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """Return the public facts about the dataset's public tables."""
        result: PublicTableFacts = self.call("facts", token, dataset)
        return result

    def quote(self, request: Request, token: str) -> CostQuote:
        """Return the cost of a request, without charging it."""
        result: CostQuote = self.call("quote", token, request.dataset, encode(request))
        return result

    def answer(self, request: Request, token: str) -> Release:
        """Charge a request, read the data, and return the release."""
        result: Release = self.call("answer", token, request.dataset, encode(request))
        return result

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """Return the budgets that apply to the account."""
        result: tuple[Balance, ...] = self.call("budget", token, dataset).items
        return result

    def history(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[HistoryEntry, ...]:
        """Return a page of the charges that the account may see."""
        result: tuple[HistoryEntry, ...] = self.call("history", token, dataset, encode(page)).items
        return result

    def ledger_rows(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[LedgerRow, ...]:
        """Return a page of the ledger's rows."""
        result: tuple[LedgerRow, ...] = self.call("ledger", token, dataset, encode(page)).items
        return result

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """Return the facts of the privacy statement."""
        result: PrivacyStatement = self.call("statement", token, dataset)
        return result
