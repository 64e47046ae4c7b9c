"""Answers, quotes and budgets as text and tables for the terminal; `dither.views.answers` has them as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from math import floor, inf, log10
from typing import Any, assert_never

import numpy as np
from rich.table import Table as Grid

from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.post.estimate.answer import Answer
from dither.post.session import Quote
from dither.privacy.protocol import Balance, HistoryEntry
from dither.views.ledger import decimal_text

BAR_WIDTH = 20


def dataset_text(dataset: Mapping[str, Any]) -> str:
    """Return a dataset's tables and the domains of their columns."""
    lines = [f"{dataset['name']} (version {dataset['data_version']}), units: {', '.join(dataset['units'])}"]
    for name, table in dataset["tables"].items():
        lines.append(f"  {name}" + ("" if table["private"] else " (public)"))
        lines += [f"    {column}: {domain}" for column, domain in table["columns"].items()]
    return "\n".join(lines)


def answer_grid(answer: Answer) -> Grid:
    """Return a table of estimates, each with half the width of its interval."""
    grid = Grid(*(column.name for column in answer.columns))
    for row in range(len(answer)):
        cells = []
        for position, column in enumerate(answer.columns):
            if column.key:
                key = answer.keys.column(position)[row].as_py()
                cells.append("NULL" if key is None else str(key))
            else:
                cells.append(estimate_text(column.estimate, row))
        grid.add_row(*cells)
    return grid


def estimate_text(estimate: Any, row: int) -> str:
    """Format one estimate with the digits that its error leaves meaningful."""
    value, low, high = estimate.value[row], estimate.low[row], estimate.high[row]
    if isinstance(value, str):
        return f"{value} ({low} to {high})"
    half = (float(high) - float(low)) / 2
    digits = min(6, max(0, 1 - floor(log10(half)))) if 0 < half < inf and not _is_whole(estimate) else 0
    return f"{float(value):,.{digits}f} ± {half:,.{digits}f}"


def _is_whole(estimate: Any) -> bool:
    """Return True if a column has whole numbers only, as plain counts have."""
    parts = (np.asarray(part) for part in (estimate.value, estimate.low, estimate.high))
    return all(part.dtype.kind in "fiu" and bool(np.all(part == np.floor(part))) for part in parts)


def cost_text(answer: Answer) -> str:
    """Return the cost of an answer; a repeated query costs nothing."""
    if all(release.cached for release in answer.releases):
        return f"cost: nothing, because this query was answered before for {loss_text(answer.loss)}"
    return f"cost: {loss_text(answer.loss)}"


def quoted_cost_text(quote: Quote) -> str:
    """Return the cost of a query that is quoted, whether the budget allows it, and when the answer comes."""
    if quote.free:
        return f"cost: nothing more, because this was answered before for {loss_text([quote.loss])}"
    state = "affordable" if quote.affordable else "exceeds the budget"
    when = f"; answer after {quote.milliseconds} ms" if quote.milliseconds else ""
    return f"cost: {loss_text([quote.loss])}; {state}{when}"


def loss_text(losses: Iterable[Loss]) -> str:
    """Format losses, adding up those of one kind, such as "epsilon 2"."""
    totals: dict[str, Fraction] = {}
    for loss in losses:
        for name, value in _loss_parameters(loss).items():
            totals[name] = totals.get(name, Fraction(0)) + value
    return ", ".join(f"{name} {number_text(value)}" for name, value in totals.items() if value) or "nothing"


def _loss_parameters(loss: Loss) -> dict[str, Fraction]:
    """Return the parameters of a loss by name."""
    match loss:
        case Pure(epsilon=epsilon):
            return {"epsilon": epsilon}
        case Approximate(epsilon=epsilon, delta=delta):
            return {"epsilon": epsilon, "delta": delta}
        case ZCDP(rho=rho, delta=delta):
            return {"rho": rho, "delta": delta}
        case Renyi(curve=curve, delta=delta):
            return {f"epsilon at order {order}": epsilon for order, epsilon in curve} | {"delta": delta}
        case _:
            assert_never(loss)


def number_text(value: Fraction) -> str:
    """Format a rational as a decimal if it is one, else as p/q.

    >>> number_text(Fraction(9, 5)), number_text(Fraction(1, 3))
    ('1.8', '1/3')
    """
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


def quote_grid(quote: Quote) -> Grid:
    """Return a table of the expected error of each column."""
    grid = Grid("column", "expected ±")
    for column in quote.expected:
        grid.add_row(
            column.name,
            f"{column.half_width:,.3g}"
            + (f" in a group of {column.rows:,.0f} rows" if column.rows is not None else ""),
        )
    return grid


def budget_grid(balances: Iterable[Balance]) -> Grid:
    """Return a table of budgets with a bar for the spent part."""
    grid = Grid("budget", "unit", "in", "spent", "limit", "")
    for balance in balances:
        for component, limit, spent in zip(balance.components, balance.limit, balance.spent, strict=True):
            if limit:
                name = " ".join(filter(None, (balance.level, balance.name, balance.window)))
                grid.add_row(
                    name, balance.cap.unit, component, decimal_text(spent), decimal_text(limit), spent_bar(spent, limit)
                )
    return grid


def history_grid(entries: Iterable[HistoryEntry]) -> Grid:
    """Return a table with one charge per line."""
    grid = Grid("#", "time", "account", "query", "loss", "answered")
    for entry in entries:
        losses = "; ".join(f"{part.unit}: {loss_text([part.loss])}" for part in entry.losses)
        row = (str(entry.sequence), entry.time, entry.account, entry.digest[:12], losses)
        grid.add_row(*row, "yes" if entry.answered else "no")
    return grid


def spent_bar(spent: int, limit: int) -> str:
    """Draw the spent part of a budget as a bar."""
    full = min(BAR_WIDTH, -(-spent * BAR_WIDTH // limit))
    return "█" * full + "░" * (BAR_WIDTH - full)
