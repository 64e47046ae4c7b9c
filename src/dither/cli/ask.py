"""An analyst's commands: ask, quote, explain, budget, history; of a description in this process or of a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dither.cli import show
from dither.cli.options import CONSOLE, AsJson
from dither.errors import InvalidParameter
from dither.session import Session, connect

app = typer.Typer(add_completion=False)

Target = Annotated[str, typer.Argument(help="a description's path, or a gateway's address", show_default=False)]
Query = Annotated[str, typer.Argument(help="the question in SQL", show_default=False)]
Account = Annotated[str, typer.Option(help="who asks, in this process")]
Token = Annotated[str | None, typer.Option(envvar="DITHER_TOKEN", help="who asks, of a gateway")]
Name = Annotated[str | None, typer.Option("--dataset", help="which dataset, if there are several")]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger", envvar="DITHER_LEDGER", help="the ledger, in this process; beside the description unless given"
    ),
]
Epsilon = Annotated[str | None, typer.Option(help="what to spend: 0.5 or 1/2")]
Rho = Annotated[str | None, typer.Option(help="what to spend, in zCDP")]
Within = Annotated[str | None, typer.Option(help="solve for the epsilon that brings every column this close")]
Bound = Annotated[str | None, typer.Option(help="rows that one unit may add: a number, or auto")]
UnitName = Annotated[
    str | None, typer.Option("--unit", help="the unit of privacy; that of the first budget unless given")
]
Confidence = Annotated[float, typer.Option(help="of the intervals")]


def open_session(target: str, account: str, token: str | None, dataset: str | None, ledger: Path | None) -> Session:
    """A session of a description in this process, or of a gateway."""
    if target.startswith(("http://", "https://")):
        return connect(target, token=token, dataset=dataset)
    return connect(target, account=account, dataset=dataset, ledger=ledger)


def _bound(text: str | None) -> object:
    return int(text) if text is not None and text.isdigit() else text


def _within(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidParameter("within must be a number such as 50") from None


def _print(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


@app.command()
def ask(
    target: Target,
    query: Query,
    epsilon: Epsilon = None,
    rho: Rho = None,
    within: Within = None,
    bound: Bound = None,
    unit: UnitName = None,
    confidence: Confidence = 0.95,
    account: Account = "analyst",
    token: Token = None,
    dataset: Name = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question in SQL; pays what it says, and prints estimates with intervals."""
    session = open_session(target, account, token, dataset, ledger)
    answer = session.sql(
        query, epsilon=epsilon, rho=rho, within=_within(within), bound=_bound(bound), unit=unit, confidence=confidence
    )
    if as_json:
        _print(show.answer_data(answer))
        return
    CONSOLE.print(show.answer_grid(answer))
    CONSOLE.print(f"{show.cost_text(answer)} ({answer.confidence:.0%} intervals)")
    for note in answer.notes:
        CONSOLE.print(f"note: {note}")


@app.command()
def quote(
    target: Target,
    query: Query,
    epsilon: Epsilon = None,
    rho: Rho = None,
    within: Within = None,
    bound: Bound = None,
    unit: UnitName = None,
    confidence: Confidence = 0.95,
    account: Account = "analyst",
    token: Token = None,
    dataset: Name = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """Cost and expected error of a question, from public facts alone; free."""
    session = open_session(target, account, token, dataset, ledger)
    price = session.quote(
        query, epsilon=epsilon, rho=rho, within=_within(within), bound=_bound(bound), unit=unit, confidence=confidence
    )
    if as_json:
        _print(show.price_data(price))
        return
    CONSOLE.print(show.price_grid(price))
    state = "free: it was asked before" if price.free else "affordable" if price.affordable else "beyond the budget"
    CONSOLE.print(f"cost: {show.loss_text([price.loss])}; {state}; answers after {price.milliseconds} ms")
    for note in price.notes:
        CONSOLE.print(f"note: {note}")


@app.command()
def explain(
    target: Target,
    query: Query,
    bound: Bound = None,
    unit: UnitName = None,
    account: Account = "analyst",
    token: Token = None,
    dataset: Name = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """How a question is understood: measures, bounds, sensitivity; free."""
    found = open_session(target, account, token, dataset, ledger).explain(query, bound=_bound(bound), unit=unit)
    if as_json:
        _print(found.__dict__)
    else:
        CONSOLE.print(str(found))


@app.command()
def budget(
    target: Target,
    account: Account = "analyst",
    token: Token = None,
    dataset: Name = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """What is spent and what is left."""
    balances = open_session(target, account, token, dataset, ledger).budget
    if as_json:
        _print(show.budget_data(balances))
    else:
        CONSOLE.print(show.budget_grid(balances))


@app.command()
def history(
    target: Target,
    account: Account = "analyst",
    token: Token = None,
    dataset: Name = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """Earlier charges that the account may see."""
    entries = open_session(target, account, token, dataset, ledger).history
    if as_json:
        _print(show.history_data(entries))
    else:
        CONSOLE.print(show.history_grid(entries))
