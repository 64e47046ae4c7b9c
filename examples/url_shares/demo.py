"""Five questions to a private dataset: a count, a histogram, a mean, a join, and one that the budget refuses.

    dither demo          or          python examples/url_shares/demo.py

Makes the data (of nobody: they are drawn at random), opens a session as an analyst, and prints each answer with its
error and its cost. The ledger lies beside the data; a second run finds the answers of the first and pays nothing.
"""

from __future__ import annotations

import runpy
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import dither

HERE = Path(__file__).resolve().parent
PEOPLE, LINKS = 20_000, 1_000


@dataclass(frozen=True)
class Question:
    """A question in words and in SQL, and what may be spent on it."""

    words: str
    sql: str
    epsilon: str


QUESTIONS = (
    Question("How many people are there?", "SELECT COUNT(*) AS people FROM users", "0.1"),
    Question(
        "What do they do? (each person counts for a bounded number of rows, chosen privately)",
        "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
        "2",
    ),
    Question("How old are they, by country?", "SELECT country, AVG(age) AS age FROM users GROUP BY country", "1"),
    Question(
        "Which countries share most? (actions joined with the people who did them)",
        "SELECT country, COUNT(*) AS shares FROM actions JOIN users ON actions.user_id = users.user_id "
        "WHERE action = 'share' GROUP BY country ORDER BY shares DESC LIMIT 5",
        "2",
    ),
    Question("And what is the age of everyone, very precisely?", "SELECT AVG(age) AS age FROM users", "50"),
)


def prepare(directory: Path) -> Path:
    """The description and the data, made unless they are there."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "dataset.yml", directory / "dataset.yml")
    if not (directory / "data" / "actions.parquet").exists():
        generate = runpy.run_path(str(HERE / "generate.py"))["generate"]
        rows = generate(directory / "data", PEOPLE, LINKS, 20.0, 0)
        print(f"made {PEOPLE:,} people and {rows:,} actions of theirs")
    return directory / "dataset.yml"


def ask(session: Any, number: int, question: Question, console: Console) -> None:
    """Ask, and print the answer or the refusal."""
    console.print(f"\n[bold]Question {number}[/bold]  {question.words}\n  {question.sql}")
    try:
        answer = session.sql(question.sql, epsilon=question.epsilon)
    except dither.BudgetExceeded as refusal:
        console.print(f"  [bold]refused[/bold], and nothing was read: {refusal}")
        return
    console.print(grid(answer))
    console.print(f"  cost: epsilon {question.epsilon}")
    for note in answer.notes:
        console.print(f"  note: {note}")


def grid(answer: Any) -> Table:
    """An answer as a table of estimates and half-widths of their intervals."""
    table = Table(*(column.name for column in answer.columns))
    for row in range(len(answer)):
        cells = []
        for place, column in enumerate(answer.columns):
            if column.key:
                cells.append(str(answer.keys.column(place)[row].as_py()))
            else:
                found = column.estimate
                cells.append(f"{found.value[row]:,.1f} ± {(found.high[row] - found.low[row]) / 2:,.1f}")
        table.add_row(*cells)
    return table


def demonstrate(directory: Path) -> None:
    """The whole demonstration, with its files in `directory`."""
    console = Console(highlight=False, soft_wrap=True)
    description = prepare(directory)
    with dither.connect(description, account="demo", ledger=directory / "ledger.sqlite") as session:
        for number, question in enumerate(QUESTIONS, start=1):
            ask(session, number, question, console)
        console.print(f"\nbudget: {session.budget}")
    console.print(
        "\nWhat next:\n"
        f"  dither ask {description} \"SELECT gender, COUNT(*) FROM users GROUP BY gender\" --epsilon 0.5\n"
        f"  dither check {description}     what the description makes public\n"
        "  make serve                     the same behind two servers and a web page\n"
        "  README.md, docs/datasets.md    your own data"
    )


def main(
    directory: Annotated[Path | None, typer.Option(help="where data and ledger go; a fresh place unless given")] = None,
) -> None:
    """Ask five questions of a small private dataset."""
    demonstrate(directory or Path(tempfile.mkdtemp(prefix="dither-demo-")))


if __name__ == "__main__":
    typer.run(main)
