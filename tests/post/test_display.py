"""Everything that a session hands out reads as plain words in a notebook, as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dither
from dither.post.display import Budgets, ReadableBalance, loss_text
from dither.post.session import Session
from dither.privacy.protocol import Balance
from dither.schema import BudgetCap
from post.small_world import build

QUERY = "SELECT country, COUNT(*) AS n FROM users GROUP BY country"
# What a raw dataclass or tuple shows: a class with its fields, a Fraction, integers of 1e-15.
RAW = re.compile(r"\w+\((\w+=|Fraction|\()|Fraction\(|\d{13,}|array\(| object at 0x")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session over the real kernel, with a charge in its history."""
    folder = tmp_path_factory.mktemp("display")
    build(folder)
    session = dither.connect(folder / "dataset.yml", account="alice-secret")
    session.sql(QUERY, epsilon="1/2")
    yield session


def handed_out(session: Session) -> dict[str, Any]:
    answer = session.sql(QUERY, epsilon="1/2")
    return {
        "session": session,
        "dataset": session.dataset,
        "tables": session.tables,
        "one table": session.tables["users"],
        "budgets": session.budget,
        "one budget": session.budget[0],
        "history": session.history,
        "one charge": session.history[0],
        "statement": session.statement,
        "quote": session.quote(QUERY, epsilon=1),
        "expected error": session.quote(QUERY, epsilon=1)["n"],
        "explanation": session.explain(QUERY),
        "answer": answer,
        "column": answer["n"],
    }


def test_everything_reads_as_plain_words(own: Session) -> None:
    for name, thing in handed_out(own).items():
        assert not RAW.search(repr(thing)), (name, repr(thing))
        assert "alice-secret" not in repr(thing) or name in ("history", "one charge"), name
        markup = thing._repr_html_() if name != "dataset" else ""  # a notebook then shows the text
        assert not RAW.search(markup), (name, markup)
        assert markup.count("<table") == markup.count("</table>"), name


def test_what_they_say(own: Session) -> None:
    said = {name: repr(thing) for name, thing in handed_out(own).items()}
    assert "users" in said["session"] and "urls (public)" in said["session"] and "session.sql(" in said["session"]
    assert "age: integer from 18 to 65" in said["one table"] and "age" in said["tables"]
    assert "spent epsilon 0.51 of" in said["one budget"] and "0.51" in said["budgets"]
    assert "epsilon 0.5" in said["history"] and "answered" in said["history"]
    assert "epsilon 1" in said["quote"] and "n" in said["quote"] and "affordable" in said["quote"]
    assert (
        "DE" in said["answer"] and "cost: epsilon 0.5" in said["answer"] and "unit of privacy: user" in said["answer"]
    )
    assert "one user" in said["statement"] or "user" in said["statement"]


def test_html_is_escaped(own: Session) -> None:
    evil = "<script>alert(1)</script>"
    balance = replace(own.budget[0], name=evil)
    assert evil not in Budgets([balance])._repr_html_() and evil not in balance._repr_html_()
    session = replace(own, name=evil)
    assert evil not in session._repr_html_()
    quote = own.quote(f'SELECT COUNT(*) AS "{evil}" FROM users', epsilon=1)
    assert evil not in quote._repr_html_() and evil not in quote[evil]._repr_html_()
    answer = own.sql(f'SELECT COUNT(*) AS "{evil}" FROM users', epsilon="1/100")
    assert evil not in answer[evil]._repr_html_()


def test_they_are_still_what_they_were(own: Session) -> None:
    assert isinstance(own.budget, tuple) and isinstance(own.budget[0], Balance)
    assert own.budget == own.budget and isinstance(own.history, tuple)
    assert isinstance(own.tables, dict) and own.tables["users"]["age"].lo == 18


def test_several_budgets_and_components() -> None:
    cap = BudgetCap("user", "zcdp", rho=dither.rational("1/2"))
    balance = Balance("group", "research", cap, "2024-01", ("rho", "delta"), (5 * 10**14, 10**6), (10**14, 0))
    assert repr(ReadableBalance.of(balance)) == (
        "budget of unit user (group research 2024-01): spent rho 0.1 of 0.5, delta 0 of 1e-9"
    )
    assert "rho 0.1 of 0.5" in repr(Budgets([balance, balance])).splitlines()[1]


def test_a_quote_that_exceeds_the_budget_says_what_is_left(own: Session) -> None:
    quote = own.quote(QUERY, epsilon=1000)
    assert not quote.affordable
    assert any(
        re.fullmatch(r"the budget of unit user \(dataset\) has epsilon 9\d\d\.[\d]+ left", note) for note in quote.notes
    )
    assert not any("left" in note for note in own.quote(QUERY, epsilon=1).notes)


def test_losses_are_added_up() -> None:
    assert loss_text([dither.Pure(1), dither.Pure("1/2")]) == "epsilon 1.5"


def test_plots_are_labelled_by_keys_alone(session: Session) -> None:
    answer = session.sql("SELECT gender, COUNT(*) AS n, AVG(age) AS a FROM users GROUP BY gender", epsilon=1)
    labels = [label.get_text() for label in answer.plot().get_yticklabels()]
    assert labels == ["f", "m", "x"]
    alone = session.sql("SELECT COUNT(*) AS n FROM users", epsilon=1)
    assert [label.get_text() for label in alone.plot().get_yticklabels()] == ["n"]


def test_a_missing_key_is_called_null(session: Session) -> None:
    answer = session.sql("SELECT NULLIF(country, 'AT') AS c, COUNT(*) AS n FROM users GROUP BY c", epsilon=1)
    assert "NULL | " in str(answer) and "None" not in str(answer) and "<td>NULL</td>" in answer._repr_html_()
    assert "NULL" in [label.get_text() for label in answer.plot().get_yticklabels()]


def test_a_loaded_description_reads_as_plain_words(tmp_path: Path) -> None:
    build(tmp_path)
    said = repr(dither.load(tmp_path / "dataset.yml"))
    assert not RAW.search(said) and "tables users, actions, urls" in said
