"""Test that every option of a session is available over HTTP and on the command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dither import cli
from dither.post.options import OPTIONS, QueryOptions, options_of, resolve_options
from dither.post.query.parser import SQL_OPTIONS
from dither.post.session import Session
from dither.serve.gateway import requests
from dither.serve.gateway.openapi import BATCH, QUESTION, SPLIT
from serve.servers import Place, place, town

APPROXIMATE = "{unit: person, kind: zcdp, rho: 100, delta: 1/1000}"
BY_AGE = "SELECT age, COUNT(*) AS n FROM people GROUP BY age"
COUNT = "SELECT COUNT(*) AS n FROM people"


def described(folder: Path) -> Path:
    """Return a town whose budget includes delta, with some ages more common than others."""
    path = town(folder)
    path.write_text(path.read_text().replace("{unit: person, kind: pure, epsilon: 10}", APPROXIMATE))
    return path


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("options")
    with place(folder, described=described(folder / "data")) as made:
        yield made


def arguments(name: str) -> set[str]:
    """Return the arguments of a session's method that are no options."""
    return set(inspect.signature(getattr(Session, name)).parameters) - {"self", "options"}


def test_the_option_table_matches_the_session() -> None:
    assert list(OPTIONS) == list(QueryOptions.__annotations__)


@pytest.mark.parametrize(("method", "place", "fields", "body", "more"), [
    ("sql", "question", requests.QUESTION, QUESTION, {"refine"}),
    ("batch", "batch", requests.BATCH, BATCH, set()),
    ("split", "split", requests.SPLIT, SPLIT, set()),
])  # fmt: skip
def test_http_takes_every_option_of_a_session(method: str, place: Any, fields: Any, body: Any, more: set[str]) -> None:
    wanted = set(options_of(place)) | arguments(method) | {"dataset"} | more
    assert wanted == set(fields) == set(body["properties"])


@pytest.mark.parametrize("place", ["question", "batch", "split"])
def test_a_session_refuses_options_of_other_places(place: Any) -> None:
    for name in OPTIONS:
        if name not in options_of(place):
            with pytest.raises(TypeError, match=f"no option {name} here"):
                resolve_options({name: "1"}, place)


def test_the_command_line_takes_every_option_of_a_session() -> None:
    known = {name: {each.name for each in _command(name).params} for name in ("ask", "quote", "explain")}
    assert set(OPTIONS) | {"queries", "request_id", "refine", "split"} <= known["ask"]
    assert set(OPTIONS) | {"queries"} <= known["quote"]
    assert set(options_of("explain")) | {"query"} <= known["explain"]


def test_sql_text_takes_every_option_that_says_so() -> None:
    assert set(options_of("text")) <= set(SQL_OPTIONS)


def _command(name: str) -> Any:
    return cli.COMMANDS[name].load(name)


def test_keys_are_selected_over_http(there: Place) -> None:
    """With delta: a quote, an answer, the same answer again for free, and a job."""
    body = {"dataset": "town", "query": BY_AGE, "rho": 20, "delta": "1/100000", "request_id": "keys"}
    quoted = there.post("/v1/quote", body).json()
    assert quoted["loss"] == {"kind": "zcdp", "rho": "20", "delta": "1/100000"} and quoted["affordable"]
    charges = there.charges()
    answer = there.post("/v1/answer", body)
    assert answer.status_code == 200, answer.text
    assert any("selected privately" in note for note in answer.json()["notes"])
    assert 0 < len(answer.json()["rows"]) <= 90 and there.charges() == charges + 1
    again = there.post("/v1/answer", body).json()
    assert again["free"] and again["rows"] == answer.json()["rows"] and there.charges() == charges + 1
    job = there.post("/v1/answer", {**body, "request_id": "later"}, prefer="respond-async")
    assert job.status_code == 202 and there.charges() == charges + 1


@pytest.mark.parametrize("delta", [0, -1, 2, "x", True, "1e400"])
def test_an_invalid_delta_is_refused_before_any_charge(there: Place, delta: Any) -> None:
    charges = there.charges()
    body = {"dataset": "town", "query": BY_AGE, "rho": 1, "delta": delta}
    for path in ("/v1/quote", "/v1/answer"):
        reply = there.post(path, body)
        assert reply.status_code == 400, (path, reply.status_code, reply.text)
    assert (
        there.post("/v1/batch", {"dataset": "town", "queries": [BY_AGE], "rho": 1, "delta": "1/9"}).status_code == 400
    )
    assert there.charges() == charges


def test_more_is_spent_on_an_answer_over_http(there: Place) -> None:
    body = {"dataset": "town", "query": COUNT, "rho": "1/100", "request_id": "first"}
    first = there.post("/v1/answer", body).json()
    charges = there.charges()
    quoted = there.post("/v1/quote", {**body, "refine": "1/10"}).json()
    assert "refining costs rho 1/10 on top of this" in quoted["notes"]
    second = there.post("/v1/answer", {**body, "refine": "1/10"}).json()
    assert there.charges() == charges + 1, "the first draw was paid for"
    assert len(second["releases"]) == 2 and any("2 draws are combined" in note for note in second["notes"])
    width = [row["n_high"] - row["n_low"] for row in (first["rows"][0], second["rows"][0])]
    assert width[1] < width[0]
    again = there.post("/v1/answer", {**body, "refine": "1/10"}).json()
    assert again["rows"] == second["rows"] and there.charges() == charges + 1
    assert there.post("/v1/answer", {**body, "refine": 1000}).status_code == 400, "the id stands for another"
    assert there.post("/v1/answer", {**body, "request_id": None, "refine": 1000}).status_code == 402
    assert there.charges() == charges + 1
    fresh = {**body, "request_id": "other", "repeat": 1, "refine": 1000}
    reply = there.post("/v1/answer", fresh)
    assert reply.status_code == 200 and any("not refined" in note for note in reply.json()["notes"])


def test_a_question_is_split_over_http(there: Place) -> None:
    body = {
        "dataset": "town",
        "query": "SELECT COUNT(*) AS n FROM visits",
        "rho": 1,
        "threshold": 2,
        "max_contributions": 5,
    }
    charges = there.charges()
    reply = there.post("/v1/split", body)
    assert reply.status_code == 200 and len(reply.json()["answers"]) == 2 and there.charges() == charges + 1
    for wrong in ({"threshold": 0}, {"threshold": None}, {"max_error": 3}, {"delta": "1/9"}, {"repeat": 1}):
        assert there.post("/v1/split", {**body, **wrong}).status_code == 400, wrong


def test_a_batch_is_quoted_and_solved_over_http(there: Place) -> None:
    queries = [COUNT, "SELECT COUNT(*) AS m FROM people WHERE ill"]
    charges = there.charges()
    quoted = there.post("/v1/quote", {"dataset": "town", "queries": queries, "rho": 1}).json()
    assert [each["column"] for each in quoted["expected"]] == ["n", "m"] and there.charges() == charges
    answers = there.post("/v1/batch", {"dataset": "town", "queries": queries, "max_error": 20}).json()["answers"]
    assert len(answers) == 2 and there.charges() == charges + 1
    assert all(row["high"] - row["low"] <= 42 for row in ends(answers))


def ends(answers: list[Any]) -> list[dict[str, float]]:
    names = [next(column["name"] for column in each["columns"]) for each in answers]
    pairs = zip(answers, names, strict=True)
    return [{"low": each["rows"][0][f"{name}_low"], "high": each["rows"][0][f"{name}_high"]} for each, name in pairs]


def test_group_bounds_and_assumed_group_size_reach_the_session(there: Place) -> None:
    """A bound by groups, and `assumed_group_size` with `max_error`, change the charge or the expected error."""
    by_place = "SELECT place, COUNT(*) AS n FROM visits GROUP BY place"
    body = {
        "dataset": "town",
        "query": by_place,
        "rho": 1,
        "max_contributions": {"max_groups": 2, "max_rows_per_group": 1},
    }
    tight, loose = (
        there.post("/v1/quote", {**body, "max_contributions": bound}).json()["expected"][0]["half_width"]
        for bound in ({"max_groups": 1, "max_rows_per_group": 1}, {"max_groups": 3, "max_rows_per_group": 9})
    )
    assert tight < loose
    reported = there.post("/v1/quote", {**body, "max_contributions": {"max_rows": 2, "report": True}}).json()
    assert "expected" in reported, reported
    losses = [
        there.post(
            "/v1/quote",
            {"dataset": "town", "query": "SELECT AVG(age) FROM people", "max_error": 1, "assumed_group_size": rows},
        )
        for rows in (100, 10_000)
    ]
    small, large = (float_of(reply.json()["loss"]["epsilon"]) for reply in losses)
    assert large < small


def float_of(text: str) -> float:
    top, _, bottom = text.partition("/")
    return int(top) / int(bottom or 1)


def run(*words: str) -> Any:
    result = CliRunner().invoke(cli.app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_line_runs_every_kind_of_query(tmp_path: Path) -> None:
    at = str(described(tmp_path))
    assert run("datasets", at)["datasets"][0]["name"] == "town"
    keys = run("ask", at, BY_AGE, "--rho", "20", "--delta", "1e-5")
    assert any("selected privately" in note for note in keys["notes"])
    both = run("ask", at, COUNT, "SELECT AVG(age) AS a FROM people", "--rho", "1", "--request-id", "r")
    assert len(both["answers"]) == 2
    assert run("ask", at, COUNT, "SELECT AVG(age) AS a FROM people", "--rho", "1", "--request-id", "r")["answers"][0][
        "free"
    ]
    assert not run("ask", at, COUNT, "--rho", "1", "--repeat", "7")["free"]
    assert len(run("ask", at, "SELECT COUNT(*) AS n FROM visits", "--rho", "1", "--split", "2")["answers"]) == 2
    by_place = "SELECT place, COUNT(*) AS n FROM visits GROUP BY place"
    assert run("quote", at, by_place, "--rho", "1", "--max-contributions", "max_groups=1,max_rows_per_group=1")[
        "affordable"
    ]
    run("ask", at, COUNT, "--rho", "1/9", "--repeat", "5")
    assert [run("quote", at, COUNT, "--rho", "1/9", "--repeat", draw)["free"] for draw in "045"] == [False, False, True]
    assert [each["column"] for each in run("quote", at, COUNT, BY_AGE, "--rho", "1")["expected"]] == ["n", "n"]
    assert {row["kind"] for row in run("ledger", "show", at)} == {"dataset", "charge", "answer"}


@pytest.mark.parametrize("words", [
    [COUNT, COUNT, "--split", "2"], [COUNT, COUNT, "--refine", "1"], [COUNT, "--split", "2", "--repeat", "1"],
    [COUNT, "--max-contributions", "max_groups=x,max_rows_per_group=1"], [COUNT, COUNT, "--delta", "1/10"],
    [COUNT, "--split", "2", "--delta", "1/10"],
])  # fmt: skip
def test_incompatible_options_are_refused(tmp_path: Path, words: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["ask", str(described(tmp_path)), *words, "--rho", "1"])
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].startswith("error: "), result.output


def test_text_output_has_the_same_content(tmp_path: Path) -> None:
    """The cost of a batch is printed once, and each note names its answer."""
    at, average = str(described(tmp_path)), "SELECT AVG(age) AS a FROM people"
    result = CliRunner().invoke(cli.app, ["ask", at, COUNT, average, "--rho", "1"])
    assert result.exit_code == 0 and result.stdout.count("cost: rho 1 for all queries together") == 1
    assert "note on answer 2: unit of privacy: person" in result.stdout
    shown = CliRunner().invoke(cli.app, ["datasets", str(described(tmp_path))]).stdout
    assert "city: one of north, south, east" in shown and "people" in shown
