"""`dither profile`: measure once, privately, what units contribute and where their values lie."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

import typer

from dither.cli.options import CONSOLE, AsJson, compose_command, print_json
from dither.cli.sessions import open_session
from dither.connection import measure_profile
from dither.errors import InvalidParameter
from dither.post.estimate.profile import ProfileItem, profile_items, profile_lines
from dither.post.options import read_amount
from dither.post.session import Session
from dither.post.statistics.source_rows import default_unit

app = typer.Typer(add_completion=False)

Epsilon = Annotated[str | None, typer.Option(help="what the profile costs, once for each data_version")]
Columns = Annotated[
    list[str] | None, typer.Option("--column", help="profile only this table.column; may be given several times")
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask before spending")]


def profile(
    session: Session, epsilon: Epsilon = None, column: Columns = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Measure the profile of a dataset, after showing its cost; or print the one that this version of the data has."""
    unit = default_unit(session.dataset)
    if session.profile is None:
        session = _measure(session, unit, epsilon, column or [], yes, as_json)
    elif epsilon is not None and not as_json:
        CONSOLE.print("this version of the data has a profile, which costs nothing; another needs a new data_version")
    lines = profile_lines(session.described, unit)
    if as_json:
        print_json({"unit": unit, "profile": lines})
        return
    for line in lines:
        CONSOLE.print(line)


def _measure(session: Session, unit: str, epsilon: str | None, columns: list[str], yes: bool, as_json: bool) -> Session:
    """Show what a profile would measure and cost, ask, and measure it."""
    if epsilon is None:
        raise InvalidParameter("this version of the data has no profile; give --epsilon, such as 0.1, to measure one")
    loss, items = read_amount("epsilon", epsilon), profile_items(session.described, unit, columns)
    if not as_json:
        for line in _plan_lines(items, loss):
            CONSOLE.print(line)
        CONSOLE.print(f"all of it costs epsilon {epsilon} of unit {unit}, once, and becomes public")
    if not yes:
        typer.confirm("measure it now?", abort=True)
    return measure_profile(session, loss, columns)


def _plan_lines(items: tuple[ProfileItem, ...], loss: Fraction) -> list[str]:
    """Describe what is measured, and for how much."""
    total = sum((item.weight for item in items), Fraction(0))
    return [f"{item.name}: epsilon {float(loss * item.weight / total):.3g}" for item in items]


app.command()(compose_command(profile, session=open_session))
