"""What may be asked of a kernel over its socket: the protocol's calls by name, and how each result travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dither.access.context import PublicFacts
from dither.schema import Dataset
from dither.wire import Balance, Entry, Kernel, LedgerRow, Quote, Release, Request, Statement
from dither.wire.codec import RESPONSE, decode


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

    items: tuple[Entry, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of the ledger."""

    items: tuple[LedgerRow, ...]


Call = Callable[[Kernel, str, str, bytes], Any]

CALLS: dict[str, Call] = {
    "datasets": lambda kernel, token, dataset, body: Names(kernel.datasets(token)),
    "schema": lambda kernel, token, dataset, body: kernel.schema(dataset, token),
    "facts": lambda kernel, token, dataset, body: kernel.facts(dataset, token),
    "quote": lambda kernel, token, dataset, body: kernel.quote(decode(body, Request), token),
    "answer": lambda kernel, token, dataset, body: kernel.answer(decode(body, Request), token),
    "budget": lambda kernel, token, dataset, body: Balances(kernel.budget(dataset, token)),
    "history": lambda kernel, token, dataset, body: Entries(kernel.history(dataset, token)),
    "ledger": lambda kernel, token, dataset, body: Rows(kernel.ledger(dataset, token)),
    "statement": lambda kernel, token, dataset, body: kernel.statement(dataset, token),
}

RESULTS: dict[str, type] = {
    "datasets": Names, "schema": Dataset, "facts": PublicFacts, "quote": Quote, "answer": Release,
    "budget": Balances, "history": Entries, "ledger": Rows, "statement": Statement,
}  # fmt: skip


def result(call: str, body: bytes) -> Any:
    """What a call's answer stands for."""
    return decode(body, RESULTS[call], RESPONSE)
