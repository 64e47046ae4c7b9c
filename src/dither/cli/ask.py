"""The analyst's commands (ask, quote, explain, datasets, budget, history), on a description or a gateway."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, cast

import typer

from dither.cli.options import CONSOLE, PROGRESS, AsJson, compose_command, print_json, with_flags
from dither.cli.sessions import OpenKernel, open_any_kernel, open_session
from dither.errors import InvalidParameter
from dither.loss import rational
from dither.post.estimate.answer import Answer
from dither.post.options import DEFAULTS, Form, Place, QueryOptions, options_of
from dither.post.session import Session
from dither.privacy.ledger import KERNEL
from dither.views.answers import answer_data, quote_data
from dither.views.dataset import dataset_data
from dither.views.history import history_data
from dither.views.ledger import budget_data
from dither.views.text import (
    answer_grid,
    budget_grid,
    cost_text,
    dataset_text,
    history_grid,
    quote_grid,
    quoted_cost_text,
    rows_not_shown,
)

app = typer.Typer(add_completion=False)

Query = Annotated[str, typer.Argument(help="the query in SQL", show_default=False)]
Queries = Annotated[
    list[str], typer.Argument(help="the query in SQL; several queries form a batch in one charge", show_default=False)
]
RequestId = Annotated[
    str, typer.Option(help="a name of your choice; repeating a request with the same name never charges twice")
]
Split = Annotated[
    int | None, typer.Option(min=1, help="answer twice: for units with at most this many rows, and for units with more")
]
Refine = Annotated[
    str | None, typer.Option(help="then spend this much more on the same query, and combine both answers")
]
OPTION_TYPES: dict[Form, Any] = {
    "amount": str | None,
    "probability": str | None,
    "positive": int | None,
    "count": int,
    "text": str | None,
    "contributions": str | None,
    "aim": str,
    "flag": bool,
}
LARGEST_LOSS = {"epsilon": 1000, "rho": 1000}
OPTION_MINIMUMS: dict[Form, int] = {"positive": 1, "count": 0}


def option_parser(place: Place) -> Callable[..., QueryOptions]:
    """Make a builder for `compose_command` whose parameters are the options of a kind of query."""

    def read(**given: Any) -> QueryOptions:
        """Return the options of a session that were given on the command line."""
        options = {name: given[name] for name in options_of(place) if given[name] != _default(name)}
        for name in LARGEST_LOSS.keys() & options.keys():
            _check_loss(name, options[name])
        return cast(QueryOptions, options)

    hints = {
        name: Annotated[OPTION_TYPES[each.form], typer.Option(help=each.help, min=OPTION_MINIMUMS.get(each.form))]
        for name, each in options_of(place).items()
    }
    read.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=_default(name), annotation=hints[name]) for name in hints]
    )
    read.__annotations__ = hints
    return read


def _check_loss(name: str, given: str) -> None:
    """Refuse a loss that is larger than any budget: noise has a smallest scale, so the charge would be another one."""
    if rational(given, name) > LARGEST_LOSS[name]:
        raise InvalidParameter(f"--{name} must be at most {LARGEST_LOSS[name]}, got {given[:40]!r}")


def _default(name: str) -> Any:
    """Return an option's default in typer's form: numbers that are parsed from text are strings."""
    value = DEFAULTS[name]
    return str(value) if isinstance(value, float) else value


def ask(
    session: Session, queries: Queries, options: QueryOptions, split: Split = None, refine: Refine = None,
    request_id: RequestId = "", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run a private SQL query and charge the budget; print estimates with intervals."""
    with PROGRESS.status("running the query"):
        answers = _answer_queries(session, queries, options, split, refine, request_id)
    if as_json:
        data = [answer_data(answer) for answer in answers]
        print_json(data[0] if len(queries) == 1 and split is None else {"answers": data})
        return
    for answer in answers:
        if split is not None:
            CONSOLE.print(answer.notes[0])
        CONSOLE.print(answer_grid(answer))
        if more := rows_not_shown(answer):
            CONSOLE.print(more)
    together = " for all queries together" if len(answers) > 1 else ""
    CONSOLE.print(f"{cost_text(answers[0])}{together} ({answers[0].confidence:.0%} intervals)")
    for number, answer in enumerate(answers, 1):
        for note in answer.notes:
            CONSOLE.print(f"note{'' if len(answers) == 1 else f' on answer {number}'}: {with_flags(note)}")


def _answer_queries(
    session: Session, queries: list[str], options: QueryOptions, split: int | None, refine: str | None, request_id: str
) -> list[Answer]:
    """Answer one query, one query split by rows per unit, or a batch."""
    if len(queries) > 1 and (split is not None or refine is not None):
        raise InvalidParameter("--split and --refine take a single query, got several; run the queries one by one")
    if split is not None and (refine is not None or request_id):
        raise InvalidParameter("--split cannot be combined with --refine or --request-id")
    if split is not None:
        return list(session.split(queries[0], split, **_allowed_options("split", options, "--split")))
    if len(queries) > 1:
        return session.batch(queries, request_id=request_id, **_allowed_options("batch", options, "a batch"))
    answer = session.sql(queries[0], request_id=request_id, **options)
    if refine is None:
        return [answer]
    kind = "epsilon" if options.get("rho") is None else "rho"
    return [session.refine(answer, **{kind: refine})]


def _allowed_options(place: Place, options: QueryOptions, what: str) -> QueryOptions:
    """Return the options that a kind of query takes; raise InvalidParameter for the others."""
    if unsupported := [name for name in options if name not in options_of(place)]:
        raise InvalidParameter(f"{what} cannot be combined with --{unsupported[0].replace('_', '-')}")
    return options


def quote(session: Session, queries: Queries, options: QueryOptions, as_json: AsJson = False) -> None:
    """Print the cost and the expected error of a query, from public facts alone; free."""
    with PROGRESS.status("planning the query"):
        if len(queries) > 1:
            quoted = session.quote_batch(queries, **_allowed_options("batch", options, "a batch"))
        else:
            quoted = session.quote(queries[0], **options)
    if as_json:
        print_json(quote_data(quoted))
        return
    CONSOLE.print(quote_grid(quoted))
    CONSOLE.print(quoted_cost_text(quoted))
    for note in quoted.notes:
        CONSOLE.print(f"note: {with_flags(note)}")


def explain(session: Session, query: Query, options: QueryOptions, as_json: AsJson = False) -> None:
    """Explain how a query is answered: its measures, bounds and sensitivities; free."""
    explanation = session.explain(query, **options)
    if as_json:
        print_json(explanation.__dict__)
    else:
        CONSOLE.print(str(explanation))


def datasets(kernel: OpenKernel, as_json: AsJson = False) -> None:
    """List the datasets that the account may query, their tables and the domains of columns."""
    described = [dataset_data(context.dataset, context.facts) for context in kernel.contexts]
    if as_json:
        print_json({"datasets": described})
        return
    for each in described:
        CONSOLE.print(dataset_text(each))


def budget(session: Session, as_json: AsJson = False) -> None:
    """Print the spent and the remaining budget."""
    if as_json:
        print_json(budget_data(session.budget))
    else:
        CONSOLE.print(budget_grid(session.budget))


def history(session: Session, as_json: AsJson = False) -> None:
    """List earlier charges that the account may see."""
    if as_json:
        print_json(history_data(session.history))
    else:
        entries = session.history
        CONSOLE.print(history_grid(entries))
        if any(entry.account == KERNEL for entry in entries):
            CONSOLE.print(f"{KERNEL}: noisy sizes of the private tables, charged before the first question")


for query_command in (ask, quote):
    app.command()(compose_command(query_command, session=open_session, options=option_parser("question")))
app.command()(compose_command(explain, session=open_session, options=option_parser("explain")))
for budget_command in (budget, history):
    app.command()(compose_command(budget_command, session=open_session))
app.command()(compose_command(datasets, kernel=open_any_kernel))
