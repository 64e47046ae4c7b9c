"""Test drafts: types and offers from names, types and forms, never a value; and each draft can be filled in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dither import cli, load
from dither.cli.draft_columns import form_of
from dither.errors import InvalidSchema

CSV = """\
,person,age,income,smoker,born,seen,zip,my note,state
0,17,33,1200.5,yes,1980-02-29,2024-01-01T12:00:00Z,01234,x,NA
1,18,,-3e2,no,1975-01-01,2024-01-02 12:00:00,98765,y,
"""


def dither(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(CSV)
    return tmp_path


def test_types_of_a_csv_come_from_the_form_of_its_fields(people: Path) -> None:
    status, out, _ = dither("init", "people.csv")
    assert status == 0
    for line in (
        "person: {type: integer, min: , max: } # DECIDE",
        "age: {type: integer, min: , max: }",
        "income: {type: decimal, min: , max: , step: }",
        "smoker: {type: boolean}",
        "born: {type: date, min: , max: }",
        "seen: {type: timestamp, min: , max: , precision: second}",
        "zip: {type: category, values: []}",
        "state: {type: } # DECIDE the type: integer, decimal, category, boolean, date, timestamp or identifier",
        "# a column without a name cannot be described: rename it",
        "# 'my note' cannot be described: rename it",
    ):
        assert line in out, line


def test_no_value_and_no_bound_is_in_a_draft(people: Path) -> None:
    _, out, _ = dither("init", "people.csv")
    _, blank, _ = dither("init", str(_with_other_values(people)))
    assert (
        out.replace("people.csv", "others.csv")
        .replace("people:", "others:")
        .replace("[people]", "[others]")
        .replace("name: people", "name: others")
        == blank
    )
    assert not re.search(r"1200|1980|98765|01234", out)


def _with_other_values(folder: Path) -> Path:
    text = CSV.replace("33", "7").replace("1200.5", "9e9").replace("1980-02-29", "0001-01-01").replace("98765", "00000")
    (folder / "others.csv").write_text(text)
    return Path("others.csv")


def test_a_draft_offers_what_a_curator_may_choose(people: Path) -> None:
    _, out, _ = dither("init", "people.csv")
    for offer in (
        "unique: ",
        "nullable: true",
        "private: true # false if",
        "kind: row",
        "max_rows",
        "size_epsilon: 0.01 #",
    ):
        assert offer in out, offer


def test_the_next_command_names_the_file_that_was_written(people: Path) -> None:
    status, said, _ = dither("init", "people.csv", "--out", "dataset.yml")
    assert status == 0 and "dither check dataset.yml" in said
    assert re.findall(r"dither check \S+", Path("dataset.yml").read_text()) == ["dither check dataset.yml"]
    assert re.findall(r"dither check \S+", dither("init", "people.csv")[1]) == ["dither check dataset.yml"]
    assert json.loads(dither("init", "people.csv", "--out", "b.yml", "--json")[1])["next"] == "dither check b.yml"


def test_paths_are_relative_to_the_description(people: Path) -> None:
    Path("sub").mkdir()
    dither("init", "people.csv", "--out", "sub/dataset.yml")
    assert "path: ../people.csv}" in Path("sub/dataset.yml").read_text()


DECISIONS = {
    "person: {type: integer, min: , max: }": "person: {type: identifier, kind: integer}",
    "age: {type: integer, min: , max: }": "age: {type: integer, min: 0, max: 120, nullable: true}",
    "min: , max: , step: }": "min: 0, max: 1000, step: 1}",
    "born: {type: date, min: , max: }": "born: {type: date, min: 1900-01-01, max: 2024-12-31}",
    "min: , max: , precision": "min: 2024-01-01, max: 2024-12-31, precision",
    "zip: {type: category, values: []}": "zip: {type: identifier, kind: text}",
    "state: {type: }": "state: {type: category, values: [a, b]}",
    "people: # DECIDE": "people: person",
    "epsilon: }": "epsilon: 3}",
}


def test_a_draft_is_filled_in_step_by_step(people: Path) -> None:
    """Each refusal names the line of something that the draft marks, until nothing is left."""
    dither("init", "people.csv", "--out", "dataset.yml")
    for empty, decided in DECISIONS.items():
        status, _, error = dither("check", "dataset.yml")
        text = Path("dataset.yml").read_text()
        assert status == 2
        assert "DECIDE" in text.splitlines()[int(re.findall(r"dataset.yml:(\d+)", error)[0]) - 1], error
        Path("dataset.yml").write_text(text.replace(empty, decided, 1))
    status, _, error = dither("check", "dataset.yml")
    assert status == 0, error
    dataset = load("dataset.yml")
    assert dataset.units["user"].keys == {"people": "person"}
    assert dataset.tables["people"].columns["age"].domain.nullable


def test_an_empty_type_lists_the_types(people: Path) -> None:
    dither("init", "people.csv", "--out", "dataset.yml")
    text = Path("dataset.yml").read_text().replace("person: {type: integer, min: , max: }", "person: {type: }")
    Path("dataset.yml").write_text(text)
    status, _, error = dither("check", "dataset.yml")
    assert status == 2
    assert "needs 'type:'" in error and "integer, decimal, category, boolean, date, timestamp, identifier" in error


def test_an_empty_key_lists_the_columns(people: Path) -> None:
    dither("init", "people.csv", "--out", "dataset.yml")
    text = Path("dataset.yml").read_text()
    for empty, decided in DECISIONS.items():
        text = text if "DECIDE" in empty else text.replace(empty, decided, 1)
    Path("dataset.yml").write_text(text)
    _, _, error = dither("check", "dataset.yml")
    assert "needs a column of people; it has: person, age" in error


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet"])
def test_a_file_that_is_not_there_is_called_so(people: Path, name: str) -> None:
    """Regression: the error said that it could not be read as Parquet."""
    status, _, err = dither("init", name)
    assert status == 2 and f"there is no file {name}" in err


def test_tabs_patterns_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("2024 sales.tsv").write_text("a\tb\n1\tx\n")
    Path("visits").mkdir()
    for part in range(2):
        pq.write_table(pa.table({"id": [part], "tags": [["x"]]}), f"visits/{part}.parquet")
    _, out, _ = dither("init", "2024 sales.tsv", "visits/*.parquet")
    assert "  t2024_sales:\n" in out and "path: '2024 sales.tsv', delimiter: \"\\t\"" in out
    assert "  visits:\n" in out and "path: 'visits/*.parquet'" in out
    assert "# tags: values of type list<element: string> cannot be read" in out


@pytest.mark.parametrize(("character", "written"), [(";", '";"'), ("|", '"|"'), ("\t", '"\\t"'), (",", "")])
def test_the_first_line_says_what_separates_fields(
    character: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(character.join(("age", "pay")) + "\n" + character.join(("3", "4")) + "\n")
    _, out, _ = dither("init", "a.csv")
    assert "age: {type: integer" in out and "pay: {type: integer" in out
    assert ("delimiter: " + written in out) if written else "delimiter" not in out


def test_a_tab_separates_fields(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n")
    text = (
        "version: 1\nname: t\ntables:\n  a:\n    private: true\n"
        '    source: {kind: csv, path: a.tsv, delimiter: "\\t"}\n'
        "    columns: {a: {type: identifier, kind: integer}}\n"
        "units: {u: {kind: user, keys: {a: a}}}\nbudgets: [{unit: u, kind: pure, epsilon: 1}]\n"
    )
    (tmp_path / "d.yml").write_text(text)
    assert load(tmp_path / "d.yml").tables["a"].source.options["delimiter"] == "\t"
    for wrong in ('"||"', "'\"'", '"\\n"', "[a]"):
        (tmp_path / "d.yml").write_text(text.replace('"\\t"', wrong))
        with pytest.raises(InvalidSchema, match="must be one character"):
            load(tmp_path / "d.yml")


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        (["1", "-2", "+3", " 4 "], "integer"),
        (["1", "NaN", "0.5"], "decimal"),
        (["1" * 19], "text"),
        (["0", "1"], "integer"),
        (["0.0016707600000103184", "68.94604024"], "decimal"),
        (["T", "f"], "boolean"),
        (["1,000"], "text"),
        (["2024-01-01", "2024-01-01 10:00"], "timestamp"),
        (["2024-01-01 10:00:00.5+02"], "timestamp"),
        (["01/02/2024"], "text"),
        ([], "unknown"),
    ],
)
def test_forms(fields: list[str], form: str) -> None:
    assert form_of(fields) == form


ONE_ROW_EACH = """\
version: 1
name: t
tables:
  a:
    private: true
    source: {kind: csv, path: a.csv}
    columns: {id: {type: identifier, kind: integer}}
units: {person: {kind: user, keys: {a: id}}}
budgets: [{unit: person, kind: pure, epsilon: 1}]
"""


def test_check_points_out_a_key_that_may_repeat_and_the_cost_of_opening(tmp_path: Path) -> None:
    (tmp_path / "d.yml").write_text(ONE_ROW_EACH)
    _, out, _ = dither("check", str(tmp_path / "d.yml"))
    assert "if each person has one row there, declare unique: id" in out
    assert "size_epsilon 0.01: charged once, before the first question" in out
    (tmp_path / "d.yml").write_text(ONE_ROW_EACH.replace("    columns", "    unique: id\n    columns"))
    assert "declare unique" not in dither("check", str(tmp_path / "d.yml"))[1]
    (tmp_path / "d.yml").write_text(ONE_ROW_EACH.replace("kind: user, keys: {a: id}", "kind: row, tables: [a]"))
    assert (
        "unit person protects one row: a person with several rows loses" in dither("check", str(tmp_path / "d.yml"))[1]
    )


def test_check_says_how_a_public_column_becomes_a_key(tmp_path: Path) -> None:
    public = """
  shops:
    private: false
    source: {kind: csv, path: shops.csv}
    unique: id
    columns: {id: {type: identifier, kind: integer}, name: {type: identifier, kind: text}}
units"""
    (tmp_path / "d.yml").write_text(ONE_ROW_EACH.replace("\nunits", public))
    _, out, _ = dither("check", str(tmp_path / "d.yml"))
    assert "column name of the public table shops is an identifier" in out
    assert "declare {type: category, values_from: shops.name, kind: text}" in out
    assert "column id of the public table" not in out


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture
def database(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA web")
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        connection.execute("CREATE DOMAIN amount AS numeric(9, 2)")
        connection.execute(
            "CREATE TABLE web.users (id bigint PRIMARY KEY, age int NOT NULL, pay amount, mood mood, doc jsonb,"
            " at timestamptz NOT NULL)"
        )
        connection.execute("CREATE TABLE actions (user_id bigint NOT NULL, day date, note text)")
        connection.execute("INSERT INTO web.users VALUES (4242, 77, 31337, 'sad', '{}', now())")
    monkeypatch.setenv("SHOP_DSN", postgres_database)
    return postgres_database


def test_postgres_tables_come_from_the_catalogue(database: str) -> None:
    status, out, error = dither("init", "--dsn-env", "SHOP_DSN", "web.users", "actions")
    assert status == 0, error
    for line in (
        "  users:\n",
        "source: {kind: postgres, dsn_env: SHOP_DSN, table: web.users}",
        "    unique: id #",
        "age: {type: integer, min: , max: } #",
        "pay: {type: decimal, min: , max: , step: , nullable: true}",
        "mood: {type: category, values: [], nullable: true}",
        "# doc: values of type jsonb cannot be read",
        "at: {type: timestamp, min: , max: , precision: second} #",
        "day: {type: date, min: , max: , nullable: true}",
        "    # unique: a_column",
    ):
        assert line in out, line
    assert not re.search(r"4242|77|31337|sad", out)


def test_the_address_is_never_written(database: str) -> None:
    status, out, error = dither("init", database, "actions")
    assert status == 0, error
    assert "dsn_env: DITHER_DSN" in out and "postgresql://" not in out and "DITHER_DSN" in error


def test_a_table_that_does_not_exist_is_refused_with_the_others(database: str) -> None:
    status, _, error = dither("init", "--dsn-env", "SHOP_DSN", "acts")
    assert status == 2 and "no table acts; the database has: actions, web.users" in error
    status, _, error = dither("init", "--dsn-env", "SHOP_DSN")
    assert status == 2 and "name at least one table; the database has: actions, web.users" in error


def test_an_address_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, error = dither("init", "postgresql://u@127.0.0.1:1/x", "t")
    assert status == 2 and "cannot connect" in error
    status, _, error = dither("init", "postgresql://u:hunter2@127.0.0.1:1/x", "t")
    assert status == 2 and "--dsn-env" in error and "hunter2" not in error
    monkeypatch.delenv("SHOP_DSN", raising=False)
    assert "SHOP_DSN is not set" in dither("init", "--dsn-env", "SHOP_DSN", "t")[2]
    assert dither("init")[0] == 2
