"""The SQL parser: refused queries, with the reason and what to write instead."""

from __future__ import annotations

import json
import os

import pytest

from dither.errors import DitherError, InvalidQuery, Unsupported
from dither.post.query.parser import MAX_CHARACTERS, MAX_DEPTH, parse_query, parse_statement, sql_options
from dither.post.session import Session
from post.small_world import CORPUS, statements

SNAPSHOT = CORPUS / "refused.json"
REFUSED = statements("refused.sql")


def refusal(session: Session, query: str) -> str:
    """The code and message of a refusal, or 'accepted'."""
    try:
        session.quote(query, epsilon=1)
    except DitherError as error:
        return f"{error.code}: {error}"
    return "accepted"


def test_refused_queries_are_as_recorded(blind: Session) -> None:
    """With DITHER_SNAPSHOT=1 the record is written anew; read the difference before committing it."""
    found = {query: refusal(blind, query) for query in REFUSED}
    if os.environ.get("DITHER_SNAPSHOT") == "1":
        SNAPSHOT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(SNAPSHOT.read_text())
    assert len(found) >= 200
    print(f"{len(found)} refused queries, {len(set(found.values()))} different reasons")


def test_the_parser_library_writes_no_warning_of_its_own(
    blind: Session, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for query in REFUSED[-8:]:
        refusal(blind, query)
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_every_refusal_says_something() -> None:
    recorded = json.loads(SNAPSHOT.read_text())
    assert "accepted" not in recorded.values()
    for reason in recorded.values():
        assert len(reason) > 30
        assert "Traceback" not in reason and "<class" not in reason


@pytest.mark.parametrize("query", ["SELECT COUNT(*) FROM users WHERE age IN ('" + "x" * MAX_CHARACTERS + "')"])
def test_long_texts_are_refused_unread(query: str) -> None:
    with pytest.raises(InvalidQuery, match="characters"):
        parse_statement(query)


@pytest.mark.parametrize("depth", [100, 3000])
def test_deep_texts_are_refused(blind: Session, depth: int) -> None:
    query = f"SELECT COUNT(*) FROM users WHERE {'NOT (' * depth}vip{')' * depth}"
    with pytest.raises(InvalidQuery, match="nested deeper"):
        parse_query(query, blind.dataset, "user")
    assert MAX_DEPTH < 100


def test_bigquery_options() -> None:
    plain, options = sql_options(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=0.5, max_groups_contributed=3, privacy_unit_column=user_id) "
        "COUNT(*) FROM t"
    )
    assert plain == "SELECT COUNT(*) FROM t"
    assert options == {"epsilon": "0.5", "max_groups": "3", "privacy_unit_column": "user_id"}


def test_privacy_options_in_the_text(blind: Session) -> None:
    price = blind.quote("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=0.5) COUNT(*) FROM users")
    assert str(price.loss) == "Pure(epsilon=Fraction(1, 2))"


def test_several_ways_to_write_a_query_mean_one_plan(blind: Session) -> None:
    same = [
        "SELECT AVG(age) FROM users WHERE country = 'DE'",
        "select avg(Age) from USERS where Country = 'DE'",
        "SELECT avg(u.\"age\") FROM users AS u WHERE u.country = 'DE'",
        "WITH t AS (SELECT * FROM users) SELECT AVG(age) FROM users WHERE country = 'DE'",
    ]
    plans = {
        (*parse_query(query, blind.dataset, "user").aggregates, str(parse_query(query, blind.dataset, "user").relation))
        for query in same
    }
    assert len(plans) == 1


def test_a_column_outside_group_by_is_named(blind: Session) -> None:
    with pytest.raises(InvalidQuery, match="age is neither aggregated nor in GROUP BY"):
        parse_query("SELECT age, country, COUNT(*) FROM users GROUP BY country", blind.dataset, "user")


def test_joining_on_another_key_needs_limits(blind: Session) -> None:
    query = "SELECT COUNT(*) FROM users a JOIN users b ON a.age = b.age"
    with pytest.raises(Unsupported, match="max_rows_per_key"):
        blind.quote(query, epsilon=1)
    assert blind.quote(query, epsilon=1, max_contributions=1, max_rows_per_key=5).affordable
