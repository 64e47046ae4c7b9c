"""Parse SQL into a question: a relation, aggregates to measure, and formulas that compute the columns from them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from dither.errors import InvalidQuery, NotFound, Unsupported
from dither.post.options import options_of
from dither.post.query import supported_syntax
from dither.post.query.literals import move_to_wall_clock
from dither.post.query.question import Question
from dither.post.query.reader import QueryReader
from dither.post.query.tables import JoinBuilder
from dither.schema import Dataset, Unit

MAX_CHARACTERS = 50_000
MAX_DEPTH = 60
PRIVACY_OPTIONS = re.compile(r"\bSELECT\s+WITH\s+DIFFERENTIAL_PRIVACY\s*(?:OPTIONS\s*\(([^()]*)\))?", re.IGNORECASE)
FIRST_WORD = re.compile(r"[\s(]*([A-Za-z]+)")
# The names that OPTIONS(...) takes, with Dither's name for each; some are BigQuery's.
SQL_OPTIONS = {name: name for name in (*options_of("text"), "max_groups", "max_rows_per_group")} | {
    "max_groups_contributed": "max_groups",
    "privacy_unit": "unit",
    "privacy_unit_column": "privacy_unit_column",
}


def sql_options(text: str) -> tuple[str, dict[str, str]]:
    """Split SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(...) into the plain query and its options, by Dither's names."""
    found = PRIVACY_OPTIONS.search(text)
    if found is None:
        return text, {}
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in (found.group(1) or "").split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name.lower() not in SQL_OPTIONS or not value:
            raise InvalidQuery(
                f"OPTIONS(...) takes name = value, got {part[:40]!r}; the names are: {', '.join(sorted(SQL_OPTIONS))}"
            )
        options[SQL_OPTIONS[name.lower()]] = value.strip("'\"")
    return text[: found.start()] + "SELECT" + text[found.end() :], options


def parse_statement(text: str) -> exp.Expr:
    """Parse one SELECT statement; refuse texts that are too long or nested too deep."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidQuery(f"the query has {len(text)} characters; the most is {MAX_CHARACTERS}")
    verb = FIRST_WORD.match(text)
    if verb is not None and verb.group(1).upper() not in {"SELECT", "WITH"}:
        raise Unsupported(f"{verb.group(1).upper()[:20]} is not supported; a query begins with SELECT or WITH")
    try:
        _require_single_statement(text)
        statements = [part for part in sqlglot.parse(text, dialect="duckdb") if part is not None]
    except (SqlglotError, RecursionError) as problem:
        raise InvalidQuery(f"the query cannot be parsed: {_parse_error_text(problem)}") from None
    if not statements:
        raise InvalidQuery("the query is empty; write one such as SELECT COUNT(*) FROM table")
    _check_depth(statements[0])
    return statements[0]


def _require_single_statement(text: str) -> None:
    """Refuse several statements before they are parsed: the parser writes a warning about some that it cannot read."""
    kinds = [token.token_type for token in sqlglot.tokenize(text, dialect="duckdb")]
    after = kinds[kinds.index(TokenType.SEMICOLON) :] if TokenType.SEMICOLON in kinds else []
    if any(kind != TokenType.SEMICOLON for kind in after):
        raise InvalidQuery("a query is one statement, and this text has several; run them as a batch")


def _parse_error_text(problem: Exception) -> str:
    """Shorten a parser's error to one line without terminal colours and Python classes."""
    if isinstance(problem, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    line = re.sub(r"\x1b\[[0-9;]*m", "", str(problem)).splitlines()[0]
    return re.sub(r"<[^<>]*>", "something else", re.sub(r" for <class [^>]*>", "", line))[:200]


def _check_depth(query: exp.Expr) -> None:
    """Refuse queries that are nested too deep; a level of SQL has about two levels of parsed nodes."""
    level, depth = [query], 0
    while level:
        level, depth = [child for node in level for child in node.iter_expressions()], depth + 1
        if depth > MAX_DEPTH * 2:
            raise InvalidQuery(f"the query is nested deeper than {MAX_DEPTH} levels; split it into subqueries")


def parse_query(
    text: str,
    dataset: Dataset,
    unit: str,
    *,
    row_limit: int | None = None,
    join_limit: int | None = None,
) -> Question:
    """Parse a SQL query over a dataset, under a unit of privacy.

    `row_limit` (max_contributions) and `join_limit` (max_rows_per_key) allow joins on other keys than the unit's.
    """
    plain, options = sql_options(text)
    if unit not in dataset.units:
        raise NotFound(f"no unit {unit!r}; there are: {', '.join(sorted(dataset.units))}")
    declared = dataset.units[unit]
    _check_unit_column(options, declared)
    joiner = JoinBuilder(declared, row_limit, join_limit)
    parsed = parse_statement(plain)
    supported_syntax.refuse_large_query(parsed)
    move_to_wall_clock(parsed, dataset.timezone)
    question = QueryReader(dataset, declared, joiner).translate_question(parsed, text)
    supported_syntax.refuse_unread_parts(parsed)
    supported_syntax.refuse_large_plan((question.relation, question.keys, question.aggregates))
    return question


def _check_unit_column(options: Mapping[str, str], unit: Unit) -> None:
    """Refuse a `privacy_unit_column`, BigQuery's option, that is not a key of the unit."""
    column = options.get("privacy_unit_column")
    if column is not None and column not in unit.keys.values():
        raise InvalidQuery(f"privacy_unit_column must be the declared key of the unit {unit.name!r}, not {column!r}")
