"""An analyst's commands, from ask to history: of a description in this process, or of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from dither.cli.options import CONSOLE, AsJson, composed, print_json
from dither.cli.sessions import Asking, open_asking, open_session
from dither.errors import InvalidParameter
from dither.post.estimate.answer import Answer
from dither.post.options import CONFIDENCE, Options
from dither.post.session import Session
from dither.views import answers as documents
from dither.views import text as show
from dither.views.dataset import dataset_data
from dither.views.ledger import budget_data, history_data

app = typer.Typer(add_completion=False)

Query = Annotated[str, typer.Argument(help="the question in SQL", show_default=False)]
Queries = Annotated[
    list[str], typer.Argument(help="the question in SQL; several are a batch, in one charge", show_default=False)
]
Epsilon = Annotated[str | None, typer.Option(help="what to spend: 0.5 or 1/2")]
Rho = Annotated[str | None, typer.Option(help="what to spend, in zCDP")]
Within = Annotated[str | None, typer.Option(help="solve for the epsilon that brings every column this close")]
Bound = Annotated[
    str | None, typer.Option(help="rows that one unit may add: a number, auto, or groups=3,rows=5 (,how=clip or rows)")
]
JoinRows = Annotated[int | None, typer.Option(min=1, help="rows of one key that a join on another key keeps")]
RequestId = Annotated[str, typer.Option(help="a name of your choice: the same request again is not charged twice")]
Draw = Annotated[int, typer.Option(min=0, help="another number is another draw, and another charge")]
Split = Annotated[
    int | None, typer.Option(min=1, help="ask twice: of units with at most so many rows, and of heavier ones")
]
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
    join_rows: JoinRows = None,
    rows: Rows = None,
) -> Options:
    """How a question is asked."""
    return {
        "epsilon": epsilon, "rho": rho, "within": within, "bound": bound_option(bound), "unit": unit,
        "confidence": confidence, "delta": delta, "join_rows": join_rows, "rows": rows,
    }  # fmt: skip


def bound_option(text: str | None) -> object:
    """A bound as it is written on the command line.

    >>> bound_option("groups=3,rows=5")
    {'groups': 3, 'rows': 5}
    """
    if text is None or "=" not in text:
        return text
    named = (part.partition("=")[::2] for part in text.split(","))
    return {name.strip(): int(value) if value.isdigit() else value for name, value in named}


def ask(
    session: Session, queries: Queries, options: Options, split: Split = None, remeasure: Remeasure = None,
    request_id: RequestId = "", draw: Draw = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Ask a question in SQL; pays what it says, and prints estimates with intervals."""
    answers = _answers(session, queries, options, split, remeasure, request_id, draw)
    if as_json:
        data = [documents.answer_data(answer) for answer in answers]
        print_json(data[0] if len(queries) == 1 and split is None else {"answers": data})
        return
    for answer in answers:
        CONSOLE.print(show.answer_grid(answer))
    together = " for all of them together" if len(answers) > 1 else ""
    CONSOLE.print(f"{show.cost_text(answers[0])}{together} ({answers[0].confidence:.0%} intervals)")
    for number, answer in enumerate(answers, 1):
        for note in answer.notes:
            CONSOLE.print(f"note: {note}" if len(answers) == 1 else f"note on {number}: {note}")


def _answers(
    session: Session, queries: list[str], options: Options, split: int | None, remeasure: str | None, request_id: str,
    draw: int,
) -> list[Answer]:  # fmt: skip
    """What a session says to one question, to one of two kinds of units, or to a batch."""
    if len(queries) > 1 and (split is not None or remeasure is not None):
        raise InvalidParameter("a batch is neither split nor measured again: ask its questions one by one")
    if split is not None and (remeasure is not None or request_id or draw):
        raise InvalidParameter("--split goes with none of --remeasure, --request-id and --draw")
    if split is not None:
        _without(options, "--split", "delta", "within")
        return list(session.split(queries[0], split, **options))
    if len(queries) > 1:
        _without(options, "a batch", "delta")
        return session.batch(queries, request_id=request_id, draw=draw, **options)
    answer = session.sql(queries[0], request_id=request_id, draw=draw, **options)
    if remeasure is None:
        return [answer]
    kind = "epsilon" if options.get("rho") is None else "rho"
    return [session.remeasure(answer, **{kind: remeasure})]


def _without(options: Options, what: str, *names: str) -> None:
    """Refuses options that a kind of question does not take."""
    given: Mapping[str, object] = dict(options)
    if refused := [name for name in names if given.get(name) is not None]:
        raise InvalidParameter(f"{what} does not go with --{refused[0]}")


def quote(session: Session, queries: Queries, options: Options, draw: Draw = 0, as_json: AsJson = False) -> None:
    """Cost and expected error of a question, from public facts alone; free."""
    if len(queries) > 1:
        _without(options, "a batch", "delta")
        price = session.quote_batch(queries, draw=draw, **options)
    else:
        price = session.quote(queries[0], draw=draw, **options)
    if as_json:
        print_json(documents.price_data(price))
        return
    CONSOLE.print(show.price_grid(price))
    state = "free: it was asked before" if price.free else "affordable" if price.affordable else "beyond the budget"
    CONSOLE.print(f"cost: {show.loss_text([price.loss])}; {state}; answers after {price.milliseconds} ms")
    for note in price.notes:
        CONSOLE.print(f"note: {note}")


def explain(
    session: Session, query: Query, bound: Bound = None, unit: UnitName = None, join_rows: JoinRows = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """How a question is understood: measures, bounds, sensitivity; free."""
    found = session.explain(query, bound=bound_option(bound), unit=unit, join_rows=join_rows)
    if as_json:
        print_json(found.__dict__)
    else:
        CONSOLE.print(str(found))


def datasets(kernel: Asking, as_json: AsJson = False) -> None:
    """The datasets that the account may ask, their tables and the domains of columns."""
    found = [dataset_data(dataset) for dataset in kernel.datasets]
    if as_json:
        print_json({"datasets": found})
        return
    for each in found:
        CONSOLE.print(show.dataset_text(each))


def budget(session: Session, as_json: AsJson = False) -> None:
    """What is spent and what is left."""
    if as_json:
        print_json(budget_data(session.budget))
    else:
        CONSOLE.print(show.budget_grid(session.budget))


def history(session: Session, as_json: AsJson = False) -> None:
    """Earlier charges that the account may see."""
    if as_json:
        print_json(history_data(session.history))
    else:
        CONSOLE.print(show.history_grid(session.history))


for question in (ask, quote):
    app.command()(composed(question, session=open_session, options=options_of))
app.command()(composed(explain, session=open_session))
for look in (budget, history):
    app.command()(composed(look, session=open_session))
app.command()(composed(datasets, kernel=open_asking))
