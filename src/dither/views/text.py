"""Answers, quotes and budgets as text and tables for the terminal; `dither.views.answers` has them as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Column as GridColumn
from rich.table import Table as Grid
from rich.text import Text

from dither.post.display import left_text, loss_text, spent_text
from dither.post.estimate.answer import Answer
from dither.post.estimate.quote import Quote
from dither.post.question_text import question_text
from dither.privacy.protocol import Balance, HistoryEntry

BAR_WIDTH = 20
# A terminal shows at most this many rows of an answer.
MOST_ROWS = 1000


def dataset_text(dataset: Mapping[str, Any]) -> str:
    """Return a dataset's tables and the domains of their columns."""
    lines = [f"{dataset['name']} (version {dataset['data_version']}), units: {', '.join(dataset['units'])}"]
    for name, table in dataset["tables"].items():
        lines.append(f"  {name}" + ("" if table["private"] else " (public)"))
        lines += [f"    {column}: {domain}" for column, domain in table["columns"].items()]
    return "\n".join(lines)


def answer_grid(answer: Answer) -> Grid:
    """Return a table of estimates, each with its interval."""
    grid = Grid(*(column.title for column in answer.columns))
    for row in range(min(len(answer), MOST_ROWS)):
        grid.add_row(*(Text(cell) for cell in answer.cells(row)))
    return grid


def rows_not_shown(answer: Answer) -> str:
    """Say how many rows of an answer a table leaves out, or return "" if it has all of them."""
    more = len(answer) - MOST_ROWS
    return f"... and {more:,} more rows; --json prints all of them" if more > 0 else ""


def cost_text(answer: Answer) -> str:
    """Return the cost of an answer; a repeated query costs nothing."""
    if all(release.cached for release in answer.releases):
        return f"cost: nothing, because this query was answered before for {loss_text(answer.loss)}"
    return f"cost: {loss_text(answer.loss)}"


def quoted_cost_text(quote: Quote) -> str:
    """Return the cost of a query that is quoted, whether the budget allows it, and when the answer comes."""
    return quote.cost + (f"; answer after {quote.milliseconds} ms" if quote.milliseconds and not quote.free else "")


def quote_grid(quote: Quote) -> Grid:
    """Return a table of the expected error of each column."""
    grid = Grid("column", "expected ±")
    for column in quote.expected:
        grid.add_row(column.name, column.width)
    return grid


def budget_grid(balances: Iterable[Balance]) -> Grid:
    """Return a table of budgets with a bar for the spent part."""
    grid = Grid("budget", "unit", "in", "spent", "limit", "")
    for balance in balances:
        for component, limit, spent in zip(balance.components, balance.limit, balance.spent, strict=True):
            if limit:
                name = " ".join(filter(None, (balance.level, balance.name, balance.window)))
                grid.add_row(
                    name, balance.cap.unit, component, spent_text(spent), left_text(limit), spent_bar(spent, limit)
                )
    return grid


def history_grid(entries: Iterable[HistoryEntry]) -> Grid:
    """Return a table with one charge per line."""
    # The time is never cut short.
    grid = Grid("#", GridColumn("time", no_wrap=True), "account", "question", "loss", "answered")
    for entry in entries:
        losses = "; ".join(f"{part.unit}: {loss_text([part.loss])}" for part in entry.losses)
        question = question_text(entry.request) or entry.digest[:12]
        row = (str(entry.sequence), entry.time, entry.account, question, losses)
        grid.add_row(*map(Text, row), "yes" if entry.answered else "no")  # brackets in a question are no markup
    return grid


def spent_bar(spent: int, limit: int) -> str:
    """Draw the spent part of a budget as a bar."""
    full = min(BAR_WIDTH, -(-spent * BAR_WIDTH // limit))
    return "█" * full + "░" * (BAR_WIDTH - full)
