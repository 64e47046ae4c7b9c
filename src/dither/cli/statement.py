"""`dither statement`: print the privacy guarantee of a dataset, in words and tables that may be published."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

import typer
from rich.table import Table as Grid

from dither.cli.options import CONSOLE, AsJson, compose_command, print_json, text_table
from dither.cli.sessions import open_session
from dither.post.display import amount_text, loss_text
from dither.post.estimate.profile import profile_lines
from dither.post.interpretation import cap_loss, privacy_curve, stated_epsilon
from dither.post.session import Session
from dither.post.statistics.source_rows import default_unit
from dither.privacy.protocol import PrivacyStatement
from dither.schema import BudgetCap
from dither.views import ledger as ledger_views
from dither.views.meaning import group_data, meaning_tables, power_data
from dither.views.statement import is_converted, stated_text, statement_html, statement_markdown, statement_yaml

Form = Literal["text", "markdown", "html", "yaml"]
WRITERS = {"markdown": statement_markdown, "html": statement_html, "yaml": statement_yaml}
DELTAS = (Fraction(1, 10**3), Fraction(1, 10**6), Fraction(1, 10**9))
GROUP_SIZES = (1, 2, 5, 10, 50)
NOT_PROMISED = (
    "facts about groups are not hidden: a fact about most people can be learned, and used to guess about anyone",
    "the answers may still be useful to somebody who already knows nearly everything about a person",
    "the description itself is public, and was written without looking at the records",
)

app = typer.Typer(add_completion=False)


def guarantee_data(cap: BudgetCap) -> dict[str, Any]:
    """Return the meaning of one budget: tests for one unit, groups of units, and epsilon for several deltas."""
    loss = cap_loss(cap)
    deltas = sorted({*DELTAS, stated_epsilon(loss)[0]}, reverse=True)
    return {
        "unit": cap.unit,
        "cap": loss_text([loss]),
        "stated": stated_text(loss),
        "tests": power_data(loss),
        "groups": group_data(loss, GROUP_SIZES),
        "curve": [
            {"delta": amount_text(delta), "epsilon": f"{float(epsilon):.4g}"}
            for delta, epsilon in privacy_curve(loss, [delta for delta in deltas if delta > cap.delta])
        ],
    }


def statement_data(statement: PrivacyStatement) -> dict[str, Any]:
    """Return the facts of a statement and their meaning as plain data."""
    caps = {balance.cap: None for balance in statement.balances}
    meanings = {"guarantees": [guarantee_data(cap) for cap in caps], "not_promised": list(NOT_PROMISED)}
    return ledger_views.statement_data(statement) | meanings


def statement_parts(data: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield the lines and tables of the statement."""
    yield f"{data['dataset']}: the limit on what all answers together may reveal, for any queries"
    yield from (f"unit {unit}" for unit in data["units"])
    for guarantee in data["guarantees"]:
        stated = f"; that is {guarantee['stated']}" if is_converted(guarantee) else ""
        yield f"\nfor unit {guarantee['unit']}: {guarantee['cap']}{stated}"
        yield from map(text_table, meaning_tables(guarantee))
        yield "epsilon for delta: " + "; ".join(f"{row['epsilon']} for {row['delta']}" for row in guarantee["curve"])
    if data["profile"]:
        yield "\nMeasured once with noise, charged, and public (the profile):"
        yield from (f"- {text}" for text in data["profile"])
    yield "\nAssumptions:"
    yield from (f"- {text}" for text in data["assumptions"])
    yield "Limits of the guarantee:"
    yield from (f"- {text}" for text in data["not_promised"])


def statement(
    session: Session,
    form: Annotated[Form, typer.Option("--format", help="text, markdown, html or yaml")] = "text",
    as_json: AsJson = False,
) -> None:
    """Print the privacy guarantee of a dataset, its meaning in numbers, its assumptions and its limits."""
    measured = profile_lines(session.context, default_unit(session.dataset))
    data = statement_data(session.statement) | {"profile": measured}
    if as_json:
        print_json(data)
    elif form != "text":
        typer.echo(WRITERS[form](data), nl=False)
    else:
        for part in statement_parts(data):
            CONSOLE.print(part)


app.command()(compose_command(statement, session=open_session))
