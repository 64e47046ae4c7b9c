"""Five questions to a private dataset: a count, a histogram, a mean, a join, and one that the budget refuses.

    dither demo          or          python examples/url_shares/demo.py

Makes the data (of nobody: they are drawn at random), opens a session as an analyst, and prints each answer with its
error and its cost. The ledger lies beside the description; a second run finds the first answers and pays nothing.
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

import dither
from dither.views import answers as documents
from dither.views import text as show

HERE = Path(__file__).resolve().parent
PEOPLE, LINKS = 20_000, 1_000


@dataclass(frozen=True)
class DemoQuestion:
    """A question in words and in SQL, and what may be spent on it."""

    words: str
    sql: str
    epsilon: str


QUESTIONS = (
    DemoQuestion("How many people are there?", "SELECT COUNT(*) AS people FROM users", "0.1"),
    DemoQuestion(
        "What do they do? (each person counts for a bounded number of rows, chosen privately)",
        "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
        "1",
    ),
    DemoQuestion("How old are they, by country?", "SELECT country, AVG(age) AS age FROM users GROUP BY country", "0.5"),
    DemoQuestion(
        "Which countries share most? (actions joined with the people who did them)",
        "SELECT country, COUNT(*) AS shares FROM actions JOIN users ON actions.user_id = users.user_id "
        "WHERE action = 'share' GROUP BY country ORDER BY shares DESC LIMIT 5",
        "1",
    ),
    DemoQuestion("And what is the age of everyone, very precisely?", "SELECT AVG(age) AS age FROM users", "2"),
)


NEXT = """
What next:
  dither ask {description} "SELECT gender, COUNT(*) AS n FROM users GROUP BY gender" --epsilon 0.5
  dither check {description}      what the description makes public
  make serve                      the same behind two servers and a web page
  docs/datasets.md                your own data"""


def prepare(directory: Path, console: Console) -> Path:
    """The description and the data, made unless they are there."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "dataset.yml", directory / "dataset.yml")
    if not (directory / "data" / "actions.parquet").exists():
        generate = runpy.run_path(str(HERE / "generate.py"))["generate"]
        rows = generate(directory / "data", PEOPLE, LINKS, 20.0, 0, quiet=console.quiet)
        console.print(f"made up {PEOPLE:,} people and {rows:,} actions of theirs, in {directory}")
    return directory / "dataset.yml"


def ask(session: dither.Session, number: int, question: DemoQuestion, console: Console) -> dict[str, Any]:
    """Ask, and print the answer or the refusal."""
    console.print(f"\nQuestion {number}. {question.words}\n  {question.sql}")
    try:
        answer = session.sql(question.sql, epsilon=question.epsilon)
    except dither.BudgetExceeded as refusal:
        console.print(f"  refused: {refusal}")
        return {"query": question.sql, "refused": str(refusal)}
    console.print(show.answer_grid(answer))
    console.print(f"  {show.cost_text(answer)}")
    for note in answer.notes:
        console.print(f"  note: {note}")
    return {"query": question.sql, **documents.answer_data(answer)}


def demonstrate(directory: Path, *, quiet: bool = False) -> list[dict[str, Any]]:
    """The whole demonstration, with its files in `directory`; returns the answers."""
    console = Console(highlight=False, soft_wrap=True, quiet=quiet)
    description = prepare(directory, console)
    session = dither.connect(description, account="demo")
    asked = [ask(session, number, question, console) for number, question in enumerate(QUESTIONS, start=1)]
    console.print("\nWhat is spent and what is left:", show.budget_grid(session.budget), sep="\n")
    console.print(NEXT.format(description=description))
    return asked


def main(
    directory: Annotated[Path | None, typer.Option(help="where data and ledger go; a fresh place unless given")] = None,
) -> None:
    """Ask five questions of a small private dataset."""
    demonstrate(directory or Path(tempfile.mkdtemp(prefix="dither-demo-")))


if __name__ == "__main__":
    typer.run(main)
