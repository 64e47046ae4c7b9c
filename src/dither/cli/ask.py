"""An analyst's commands, from ask to history: of a description in this process, or of a gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, cast

import typer

from dither.cli.options import CONSOLE, AsJson, composed, print_json
from dither.cli.sessions import OpenKernel, open_any_kernel, open_session
from dither.errors import InvalidParameter
from dither.loss import rational
from dither.post.estimate.answer import Answer
from dither.post.options import DEFAULTS, Form, Option, Place, QueryOptions, options_of
from dither.post.session import Session
from dither.views import answers as answer_views
from dither.views import text as text_views
from dither.views.dataset import dataset_data
from dither.views.ledger import budget_data, history_data

app = typer.Typer(add_completion=False)

Query = Annotated[str, typer.Argument(help="the query in SQL", show_default=False)]
Queries = Annotated[
    list[str], typer.Argument(help="the query in SQL; several are a batch, in one charge", show_default=False)
]
RequestId = Annotated[str, typer.Option(help="a name of your choice: the same request again is not charged twice")]
Split = Annotated[
    int | None, typer.Option(min=1, help="ask twice: of units with at most so many rows, and of units with more")
]
Refine = Annotated[str | None, typer.Option(help="then spend so much more on the same query, and combine both answers")]
TYPES: dict[Form, Any] = {
    "amount": str | None,
    "number": str | None,
    "probability": str | None,
    "positive": int | None,
    "count": int,
    "text": str | None,
    "contributions": str | None,
}
LEAST: dict[Form, int] = {"positive": 1, "count": 0}


def option_parser(place: Place) -> Callable[..., QueryOptions]:
    """Build a function whose parameters are the options that a kind of query takes, for `composed`."""

    def read(**given: Any) -> QueryOptions:
        known = {name: _read_option(name, each, given[name]) for name, each in options_of(place).items()}
        return cast(QueryOptions, known)

    hints = {
        name: Annotated[TYPES[each.form], typer.Option(help=each.help, min=LEAST.get(each.form))]
        for name, each in options_of(place).items()
    }
    read.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=_default(name), annotation=hints[name]) for name in hints]
    )
    read.__annotations__ = hints
    return read


def _default(name: str) -> Any:
    """The default of an option as typer wants it: numbers that are read as texts are texts."""
    value = DEFAULTS[name]
    return str(value) if isinstance(value, float) else value


def _read_option(name: str, option: Option, value: Any) -> Any:
    """The value of an option as a session takes it."""
    match option.form:
        case "contributions":
            return contributions_option(value)
        case "number" | "probability" if value is not None:
            return float(rational(value, name))
        case _:
            return value


def contributions_option(text: str | None) -> object:
    """Read a contribution bound as it is written on the command line.

    >>> contributions_option("max_groups=3,max_rows_per_group=5")
    {'max_groups': 3, 'max_rows_per_group': 5}
    """
    if text is None or "=" not in text:
        return text
    named = (part.partition("=")[::2] for part in text.split(","))
    return {name.strip(): int(value) if value.isdigit() else value for name, value in named}


def ask(
    session: Session, queries: Queries, options: QueryOptions, split: Split = None, refine: Refine = None,
    request_id: RequestId = "", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run a private SQL query and charge the budget; print estimates with intervals."""
    answers = _answers(session, queries, options, split, refine, request_id)
    if as_json:
        data = [answer_views.answer_data(answer) for answer in answers]
        print_json(data[0] if len(queries) == 1 and split is None else {"answers": data})
        return
    for answer in answers:
        CONSOLE.print(text_views.answer_grid(answer))
    together = " for all of them together" if len(answers) > 1 else ""
    CONSOLE.print(f"{text_views.cost_text(answers[0])}{together} ({answers[0].confidence:.0%} intervals)")
    for number, answer in enumerate(answers, 1):
        for note in answer.notes:
            CONSOLE.print(f"note: {note}" if len(answers) == 1 else f"note on {number}: {note}")


def _answers(
    session: Session, queries: list[str], options: QueryOptions, split: int | None, refine: str | None, request_id: str
) -> list[Answer]:
    """Ask one query, one query of two kinds of units, or a batch."""
    if len(queries) > 1 and (split is not None or refine is not None):
        raise InvalidParameter("a batch takes neither --split nor --refine: ask its queries one by one")
    if split is not None and (refine is not None or request_id):
        raise InvalidParameter("--split takes neither --refine nor --request-id")
    if split is not None:
        return list(session.split(queries[0], split, **_only("split", options, "--split")))
    if len(queries) > 1:
        return session.batch(queries, request_id=request_id, **_only("batch", options, "a batch"))
    answer = session.sql(queries[0], request_id=request_id, **options)
    if refine is None:
        return [answer]
    kind = "epsilon" if options.get("rho") is None else "rho"
    return [session.refine(answer, **{kind: refine})]


def _only(place: Place, options: QueryOptions, what: str) -> QueryOptions:
    """Refuse options that a kind of query does not take."""
    given: Mapping[str, Any] = dict(options)
    known = options_of(place)
    if refused := [name for name, value in given.items() if name not in known and value != DEFAULTS[name]]:
        raise InvalidParameter(f"{what} does not take --{refused[0].replace('_', '-')}")
    return cast(QueryOptions, {name: value for name, value in given.items() if name in known})


def quote(session: Session, queries: Queries, options: QueryOptions, as_json: AsJson = False) -> None:
    """Print the cost and the expected error of a query, from public facts alone; free."""
    if len(queries) > 1:
        found = session.quote_batch(queries, **_only("batch", options, "a batch"))
    else:
        found = session.quote(queries[0], **options)
    if as_json:
        print_json(answer_views.quote_data(found))
        return
    CONSOLE.print(text_views.quote_grid(found))
    state = "free: it was asked before" if found.free else "affordable" if found.affordable else "beyond the budget"
    CONSOLE.print(f"cost: {text_views.loss_text([found.loss])}; {state}; answers after {found.milliseconds} ms")
    for note in found.notes:
        CONSOLE.print(f"note: {note}")


def explain(session: Session, query: Query, options: QueryOptions, as_json: AsJson = False) -> None:
    """Explain how a query is understood: its measures, bounds and sensitivities; free."""
    found = session.explain(query, **options)
    if as_json:
        print_json(found.__dict__)
    else:
        CONSOLE.print(str(found))


def datasets(kernel: OpenKernel, as_json: AsJson = False) -> None:
    """The datasets that the account may ask, their tables and the domains of columns."""
    found = [dataset_data(dataset) for dataset in kernel.datasets]
    if as_json:
        print_json({"datasets": found})
        return
    for each in found:
        CONSOLE.print(text_views.dataset_text(each))


def budget(session: Session, as_json: AsJson = False) -> None:
    """What is spent and what is left."""
    if as_json:
        print_json(budget_data(session.budget))
    else:
        CONSOLE.print(text_views.budget_grid(session.budget))


def history(session: Session, as_json: AsJson = False) -> None:
    """Earlier charges that the account may see."""
    if as_json:
        print_json(history_data(session.history))
    else:
        CONSOLE.print(text_views.history_grid(session.history))


for question in (ask, quote):
    app.command()(composed(question, session=open_session, options=option_parser("question")))
app.command()(composed(explain, session=open_session, options=option_parser("explain")))
for look in (budget, history):
    app.command()(composed(look, session=open_session))
app.command()(composed(datasets, kernel=open_any_kernel))
