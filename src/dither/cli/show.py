"""Answers, prices and budgets as tables for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from math import floor, inf, log10
from typing import Any, assert_never

from rich.table import Table as Grid

from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.loss import to_json as loss_to_json
from dither.post.answers import Answer
from dither.session import Price
from dither.wire import Balance, Entry

UNIT = Decimal(10) ** -15
BAR = 20


def answer_grid(answer: Answer) -> Grid:
    """Estimates, each with half the width of its interval."""
    grid = Grid(*(column.name for column in answer.columns))
    for row in range(len(answer)):
        cells = []
        for place, column in enumerate(answer.columns):
            if column.key:
                cells.append(str(answer.keys.column(place)[row].as_py()))
            else:
                cells.append(estimate_text(column.estimate, row))
        grid.add_row(*cells)
    return grid


def estimate_text(estimate: Any, row: int) -> str:
    """One estimate, rounded to what its error leaves meaningful."""
    value, low, high = estimate.value[row], estimate.low[row], estimate.high[row]
    if isinstance(value, str):
        return f"{value} ({low} to {high})"
    half = (float(high) - float(low)) / 2
    digits = min(6, max(0, 1 - floor(log10(half)))) if 0 < half < inf else 0
    return f"{float(value):,.{digits}f} ± {half:,.{digits}f}"


def answer_data(answer: Answer) -> dict[str, Any]:
    """An answer with everything that was done to get it."""
    return {
        "rows": answer.to_dicts(),
        "confidence": answer.confidence,
        "loss": [loss_to_json(loss) for loss in answer.loss],
        "bounds": {tag: found.bound for tag, found in answer.bounds.items()},
        "notes": list(answer.notes),
        "noisy": answer.noisy,
    }


def cost_text(answer: Answer) -> str:
    """What an answer cost; nothing if it had been given before."""
    if all(release.cached for release in answer.releases):
        return f"cost: nothing, since it was asked before (for {loss_text(answer.loss)})"
    return f"cost: {loss_text(answer.loss)}"


def loss_text(losses: Iterable[Loss]) -> str:
    """Losses in words, those of a kind added up: epsilon 2."""
    totals: dict[str, Fraction] = {}
    for loss in losses:
        for name, value in _numbers(loss).items():
            totals[name] = totals.get(name, Fraction(0)) + value
    return ", ".join(f"{name} {number_text(value)}" for name, value in totals.items() if value) or "nothing"


def _numbers(loss: Loss) -> dict[str, Fraction]:
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
    """A rational as people write it: a decimal where it is one, else p/q.

    >>> number_text(Fraction(9, 5)), number_text(Fraction(1, 3))
    ('1.8', '1/3')
    """
    decimal_places = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal_places:f}" if Fraction(decimal_places) == value else str(value)


def price_grid(price: Price) -> Grid:
    """The expected error of each column."""
    grid = Grid("column", "expected ±")
    for column in price.expected:
        grid.add_row(
            column.name, "depends on the size of the group" if column.needs_rows else f"{column.half_width:,.3g}"
        )
    return grid


def price_data(price: Price) -> dict[str, Any]:
    """A price as plain data."""
    return {
        "loss": loss_to_json(price.loss),
        "expected": [
            {"column": column.name, "half_width": column.half_width, "needs_rows": column.needs_rows}
            for column in price.expected
        ],
        "bound": dict(price.bound),
        "affordable": price.affordable,
        "free": price.free,
        "milliseconds": price.milliseconds,
        "notes": list(price.notes),
    }


def budget_grid(balances: Iterable[Balance]) -> Grid:
    """Budgets with a bar for what is spent."""
    grid = Grid("budget", "unit", "of", "spent", "limit", "")
    for balance in balances:
        for component, limit, spent in zip(balance.components, balance.limit, balance.spent, strict=True):
            if limit:
                name = " ".join(filter(None, (balance.level, balance.name, balance.window)))
                grid.add_row(name, balance.cap.unit, component, decimal(spent), decimal(limit), bar(spent, limit))
    return grid


def budget_data(balances: Iterable[Balance]) -> list[dict[str, Any]]:
    """Budgets as plain data; numbers as exact decimal text."""
    return [
        {
            "level": balance.level,
            "name": balance.name,
            "unit": balance.cap.unit,
            "kind": balance.cap.kind,
            "window": balance.window,
            "limit": dict(zip(balance.components, map(decimal, balance.limit), strict=True)),
            "spent": dict(zip(balance.components, map(decimal, balance.spent), strict=True)),
        }
        for balance in balances
    ]


def history_data(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Charges as plain data."""
    return [
        {
            "sequence": entry.sequence,
            "time": entry.time,
            "account": entry.account,
            "digest": entry.digest,
            "losses": {part.unit: loss_to_json(part.loss) for part in entry.losses},
            "answered": entry.answered,
        }
        for entry in entries
    ]


def history_grid(entries: Iterable[Entry]) -> Grid:
    """Charges, one a line."""
    grid = Grid("#", "time", "account", "question", "loss", "answered")
    for entry in entries:
        losses = "; ".join(f"{part.unit}: {loss_text([part.loss])}" for part in entry.losses)
        row = (str(entry.sequence), entry.time, entry.account, entry.digest[:12], losses)
        grid.add_row(*row, "yes" if entry.answered else "no")
    return grid


def decimal(units: int) -> str:
    """Multiples of 1e-15 as a decimal, exactly."""
    text = f"{Decimal(units) * UNIT:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def bar(spent: int, limit: int) -> str:
    """What is spent, drawn."""
    full = min(BAR, -(-spent * BAR // limit))
    return "█" * full + "░" * (BAR - full)
