"""Test what a history says was asked."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from rich.console import Console

import dither
from dither.plan.expressions import Arithmetic, ColumnRef, LiteralValue
from dither.plan.measures import Count, GroupKey, SumVector
from dither.plan.relations import Project, Scan
from dither.post.question_text import question_text
from dither.privacy.codec import encode
from dither.privacy.protocol import Calibrate, HistoryEntry, Measurement, Request
from dither.views.text import history_grid

DESCRIPTION = """
version: 1
name: shop
population: shop
tables:
  people:
    private: true
    source: {kind: csv, path: people.csv}
    unique: id
    columns:
      id: {type: identifier, kind: integer}
      sex: {type: category, values: [F, M]}
      age: {type: integer, min: 0, max: 100}
units:
  person: {kind: user, keys: {people: id}}
budgets:
  - {unit: person, kind: pure, epsilon: 9}
"""


def test_a_history_says_what_was_asked(tmp_path: Path) -> None:
    (tmp_path / "shop.yml").write_text(DESCRIPTION)
    (tmp_path / "people.csv").write_text("id,sex,age\n1,F,20\n2,M,40\n3,F,60\n")
    session = dither.connect(tmp_path / "shop.yml", account="ann")
    session.sql("SELECT sex, AVG(age * 2) AS doubled, COUNT(*) AS n FROM people GROUP BY sex", epsilon=1)
    session.sql("SELECT COUNT(*) AS n FROM people WHERE age > 30", epsilon=1)
    session.histogram("people", "age", bins=5, epsilon=1)
    sizes, first, second, third = (question_text(entry.request) for entry in session.history)
    shown = repr(session.history[1])
    assert first in shown and "counts" in first and "sums of age" in first and first.endswith("in people by sex")
    assert (sizes, second) == ("counts in people", "counts in people, some rows") and "counts in people by" in third


@pytest.mark.parametrize("request_text", ["", "{}", "[1]", "null", '{"node": "Request"}', '{"node": "ReleaseRequest"}'])
def test_a_request_that_cannot_be_read_has_no_text(request_text: str) -> None:
    assert question_text(request_text) == ""


def test_columns_that_are_made_of_columns_again_and_again_are_named_at_once() -> None:
    """Without a memory of what was read, 30 doublings would be followed two to the power of 30 times."""
    rows: Project | Scan = Scan("people")
    for number in range(30):
        before = ColumnRef(f"c{number - 1}" if number else "age")
        rows = Project(rows, ((f"c{number}", Arithmetic("+", before, before)),))
    measure = SumVector(rows, (ColumnRef("c29"), LiteralValue(1)))
    part = Measurement(measure, Calibrate("discrete_laplace", dither.loss.Pure(Fraction(1))))
    assert question_text(encode(Request("shop", (part,))).decode()) == "counts, sums of age in people"


@pytest.mark.parametrize("name", ["[/x]", "[red]a", "\x1b[2J", "a\nb", "\u202eexe.a"])
def test_names_that_an_analyst_chose_neither_break_a_history_nor_steer_a_terminal(name: str) -> None:
    measure = Count(Scan("people"), (GroupKey(name, ColumnRef("sex")),))
    part = Measurement(measure, Calibrate("discrete_laplace", dither.loss.Pure(Fraction(1))))
    request = encode(Request("shop", (part,))).decode()
    console = Console(width=200, force_terminal=False)
    with console.capture() as shown:
        console.print(history_grid([HistoryEntry(1, "now", "ann", "d", (), True, request)]))
    assert question_text(request).isprintable()
    assert question_text(request) in shown.get()
