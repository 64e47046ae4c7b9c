"""An analyst's commands: ask, quote, explain, budget, history; of a description in this process or of a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from dither.cli import show
from dither.cli.options import CONSOLE, AsJson, composed, print_json
from dither.cli.sessions import open_session
from dither.post.options import CONFIDENCE, Options
from dither.serve import documents
from dither.session import Session

app = typer.Typer(add_completion=False)

Query = Annotated[str, typer.Argument(help="the question in SQL", show_default=False)]
Epsilon = Annotated[str | None, typer.Option(help="what to spend: 0.5 or 1/2")]
Rho = Annotated[str | None, typer.Option(help="what to spend, in zCDP")]
Within = Annotated[str | None, typer.Option(help="solve for the epsilon that brings every column this close")]
Bound = Annotated[str | None, typer.Option(help="rows that one unit may add: a number, or auto")]
UnitName = Annotated[
    str | None, typer.Option("--unit", help="the unit of privacy; that of the first budget unless given")
]
Confidence = Annotated[str, typer.Option(help="of the intervals")]
Delta = Annotated[str | None, typer.Option(help="select keys that are not declared privately, with this delta")]
Remeasure = Annotated[
    str | None, typer.Option(help="then spend so much more on the same question, and combine both answers")
]
Rows = Annotated[float | None, typer.Option(help="a guess at the size of a group, for errors that depend on it")]


def options_of(
    epsilon: Epsilon = None,
    rho: Rho = None,
    within: Within = None,
    bound: Bound = None,
    unit: UnitName = None,
    confidence: Confidence = str(CONFIDENCE),
    delta: Delta = None,
    rows: Rows = None,
) -> Options:
    """How a question is asked."""
    return {
        "epsilon": epsilon, "rho": rho, "within": within, "bound": bound, "unit": unit, "confidence": confidence,
        "delta": delta, "rows": rows,
    }  # fmt: skip


def ask(session: Session, query: Query, options: Options, remeasure: Remeasure = None, as_json: AsJson = False) -> None:
    """Ask a question in SQL; pays what it says, and prints estimates with intervals."""
    answer = session.sql(query, **options)
    if remeasure is not None:
        kind = "epsilon" if options.get("rho") is None else "rho"
        answer = session.remeasure(answer, **{kind: remeasure})
    if as_json:
        print_json(documents.answer_data(answer))
        return
    CONSOLE.print(show.answer_grid(answer))
    CONSOLE.print(f"{show.cost_text(answer)} ({answer.confidence:.0%} intervals)")
    for note in answer.notes:
        CONSOLE.print(f"note: {note}")


def quote(session: Session, query: Query, options: Options, as_json: AsJson = False) -> None:
    """Cost and expected error of a question, from public facts alone; free."""
    price = session.quote(query, **options)
    if as_json:
        print_json(documents.price_data(price))
        return
    CONSOLE.print(show.price_grid(price))
    state = "free: it was asked before" if price.free else "affordable" if price.affordable else "beyond the budget"
    CONSOLE.print(f"cost: {show.loss_text([price.loss])}; {state}; answers after {price.milliseconds} ms")
    for note in price.notes:
        CONSOLE.print(f"note: {note}")


def explain(
    session: Session, query: Query, bound: Bound = None, unit: UnitName = None, as_json: AsJson = False
) -> None:
    """How a question is understood: measures, bounds, sensitivity; free."""
    found = session.explain(query, bound=bound, unit=unit)
    if as_json:
        print_json(found.__dict__)
    else:
        CONSOLE.print(str(found))


def budget(session: Session, as_json: AsJson = False) -> None:
    """What is spent and what is left."""
    if as_json:
        print_json(documents.budget_data(session.budget))
    else:
        CONSOLE.print(show.budget_grid(session.budget))


def history(session: Session, as_json: AsJson = False) -> None:
    """Earlier charges that the account may see."""
    if as_json:
        print_json(documents.history_data(session.history))
    else:
        CONSOLE.print(show.history_grid(session.history))


for question in (ask, quote):
    app.command()(composed(question, session=open_session, options=options_of))
app.command()(composed(explain, session=open_session))
for look in (budget, history):
    app.command()(composed(look, session=open_session))
