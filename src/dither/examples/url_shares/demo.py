"""Five queries on a private dataset: a count, a histogram, a mean, a join, and one that exceeds the budget.

    dither demo          or          python examples/url_shares/demo.py

Generates random data, opens a session as an analyst, and prints each answer with its error and its cost. The ledger is
beside the description; a second run finds the earlier answers and costs nothing.
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
from dither.views.answers import answer_data
from dither.views.text import answer_grid, budget_grid, cost_text

EXAMPLE = Path(__file__).resolve().parent
PEOPLE, LINKS = 20_000, 1_000


@dataclass(frozen=True)
class DemoQuestion:
    """A question in words and in SQL, and the epsilon to spend on it."""

    text: str
    sql: str
    epsilon: str


QUESTIONS = (
    DemoQuestion("How many people are there?", "SELECT COUNT(*) AS people FROM users", "0.1"),
    DemoQuestion(
        "What do they do? (max_contributions, the number of rows that count per person, is chosen privately)",
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
    DemoQuestion(
        "What is the average age, very precisely? (epsilon 2 exceeds what is left of the budget)",
        "SELECT AVG(age) AS age FROM users",
        "2",
    ),
)


NEXT = """
Next steps:
  dither ask {description} "SELECT gender, COUNT(*) AS n FROM users GROUP BY gender" --epsilon 0.5
  dither check {description}      print the facts that the description makes public
  make serve                      run the same dataset behind a kernel, a gateway and a web page
  docs/datasets.md                describe your own data"""


def prepare(directory: Path, console: Console) -> Path:
    """Write the description, and generate the data unless they exist."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLE / "dataset.yml", directory / "dataset.yml")
    if not (directory / "data" / "actions.parquet").exists():
        generate = runpy.run_path(str(EXAMPLE / "generate.py"))["generate"]
        rows = generate(directory / "data", PEOPLE, LINKS, 20.0, 0, quiet=console.quiet)
        console.print(f"generated {PEOPLE:,} people and {rows:,} actions in {directory}")
    return directory / "dataset.yml"


def ask(session: dither.Session, number: int, question: DemoQuestion, console: Console) -> dict[str, Any]:
    """Run a query, and print the answer or the refusal."""
    console.print(f"\nQuestion {number}. {question.text}\n  {question.sql}")
    try:
        answer = session.sql(question.sql, epsilon=question.epsilon)
    except dither.BudgetExceeded as refusal:
        console.print(f"  refused: {refusal}")
        return {"query": question.sql, "refused": str(refusal)}
    console.print(answer_grid(answer))
    console.print(f"  {cost_text(answer)}")
    for note in answer.notes:
        console.print(f"  note: {note}")
    return {"query": question.sql, **answer_data(answer)}


def demonstrate(directory: Path, *, quiet: bool = False) -> list[dict[str, Any]]:
    """Run the demonstration, with its files in `directory`; return the answers."""
    console = Console(highlight=False, soft_wrap=True, quiet=quiet)
    description = prepare(directory, console)
    session = dither.connect(description, account="demo")
    answers = [ask(session, number, question, console) for number, question in enumerate(QUESTIONS, start=1)]
    console.print("\nThe budget:", budget_grid(session.budget), sep="\n")
    console.print(NEXT.format(description=description))
    return answers


def main(
    directory: Annotated[
        Path | None, typer.Option(help="folder for data and ledger; by default a new temporary one")
    ] = None,
) -> None:
    """Run five example queries on a small private dataset."""
    demonstrate(directory or Path(tempfile.mkdtemp(prefix="dither-demo-")))


if __name__ == "__main__":
    typer.run(main)
