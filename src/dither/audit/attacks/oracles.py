"""Queries whose failure, result shape or row order could reveal whether one person is in the data."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dither.audit.attacks.model import Attack, Columns, ServiceTarget, find_problem

# {t} is a private table, {n} a numeric column, {v} a value that one person may have, {g} a category.
EXPRESSIONS = {
    "division by zero": "SUM(CLAMP(1 / ({n} - {v}), -1, 1))",
    "division of zero by zero": "SUM(CLAMP(({n} - {v}) / ({n} - {v}), 0, 1))",
    "remainder by zero": "SUM(CLAMP({n} % ({n} - {v}), 0, 9))",
    "modulo function": "SUM(CLAMP(MOD({n}, {n} - {v}), 0, 9))",
    "square root of a negative": "SUM(CLAMP(SQRT({n} - {v}), 0, 9))",
    "square root in a CASE": "SUM(CLAMP(SQRT(CASE WHEN {n} = {v} THEN -1 ELSE 1 END), 0, 9))",
    "logarithm of zero": "SUM(CLAMP(LN({n} - {v}), 0, 9))",
    "logarithm of a negative": "SUM(CLAMP(LN(-1 - {n}), 0, 9))",
    "decimal logarithm": "SUM(CLAMP(LOG10({n} - {v}), 0, 9))",
    "overflow of an exponential": "SUM(CLAMP(EXP({n} * 1000), 0, 9))",
    "overflow of a power": "SUM(CLAMP(POWER({n}, 60), 0, 9))",
    "negative power of zero": "SUM(CLAMP(POWER({n} - {v}, -3), 0, 9))",
    "root of a negative": "SUM(CLAMP(POWER({n} - {v}, 0.5), 0, 9))",
    "overflow of a product": "SUM(CLAMP({n} * {n} * {n} * {n} * {n}, 0, 9))",
    "overflow of a sum": "SUM(CLAMP({n} + 9223372036854775807, 0, 9))",
    "absolute value of the least integer": "SUM(CLAMP(ABS(-9223372036854775807 - 1 + {n} - {n}), 0, 9))",
    "cast to a small integer": "SUM(CLAMP(CAST({n} AS TINYINT), 0, 9))",
    "cast to text and back": "SUM(CLAMP(CAST(CAST({n} AS VARCHAR) AS INTEGER), 0, 9))",
    "cast of a CASE of texts": "SUM(CLAMP(CAST(CASE WHEN {n} = {v} THEN 'x' ELSE '1' END AS INTEGER), 0, 9))",
    "cast to a date": "COUNT(CAST(CAST({n} AS VARCHAR) AS DATE))",
    "an invalid date": "COUNT(MAKE_DATE(2019, 2, {n}))",
    "a bad date part": "SUM(CLAMP(EXTRACT(DAY FROM MAKE_DATE({n}, 1, 1)), 0, 9))",
    "a shift too far": "SUM(CLAMP(1 << {n}, 0, 9))",
    "a factorial": "SUM(CLAMP(FACTORIAL({n}), 0, 9))",
    "an error function": "COUNT(CASE WHEN {n} = {v} THEN ERROR('here') END)",
    "a giant text": "MAX(LENGTH(REPEAT('x', {n} * 1000000)))",
    "a growing text": "COUNT(DISTINCT CONCAT('{n}', REPEAT('x', 100000)))",
    "a regular expression that explodes": "COUNT_IF(REGEXP_MATCHES(CAST({n} AS VARCHAR), '(a+)+$'))",
    "a list out of range": "SUM(CLAMP([1, 2, 3][{n}], 0, 9))",
    "a subscript of a text": "COUNT(SUBSTR('abc', {n}, -{n}))",
    "a random number": "SUM(CLAMP({n} * RANDOM(), 0, 9))",
    "the clock": "COUNT_IF(CURRENT_TIMESTAMP > MAKE_DATE({n}, 1, 1))",
    "a sequence": "SUM(CLAMP(NEXTVAL('s') + {n}, 0, 9))",
    "a sleep": "COUNT(CASE WHEN {n} = {v} THEN PG_SLEEP(5) END)",
    "a file": "COUNT(READ_TEXT('/etc/passwd'))",
    "a setting": "COUNT(CURRENT_SETTING('data_directory'))",
    "the exact minimum": "MIN({n})",
    "the exact maximum": "MAX({n})",
    "any value": "ANY_VALUE({n})",
    "all values": "ARRAY_AGG({n})",
    "all values as text": "STRING_AGG(CAST({n} AS VARCHAR), ',')",
    "the value with the largest": "ARG_MAX({n}, {n})",
    "the most frequent": "MODE({n})",
    "a hash of all": "BIT_XOR(HASH({n}))",
    "one row decides": "BOOL_OR({n} = {v})",
    "a product of all": "PRODUCT({n})",
    "a sum without bounds": "SUM(DISTINCT {n})",
    "an infinite constant": "SUM(CLAMP({n} * 1e400, 0, 9))",
    "not a number": "SUM(CLAMP({n} * CAST('NaN' AS DOUBLE), 0, 9))",
    "a bound of the wrong order": "SUM(CLAMP({n}, 9, 0))",
    "a product near the end of the range": "SUM(CLAMP({n} * 10000000000000, 0, 9))",
    "an absolute value near the end": "SUM(CLAMP(ABS(-10000000000000 * {n}), 0, 9))",
    "a quotient by very little": "SUM(CLAMP({n} / 0.000000001, 0, 9))",
    "a quotient by a CASE": "SUM(CLAMP({n} / (CASE WHEN {n} = {v} THEN 0 ELSE 1 END), 0, 9))",
    "a root within a quotient within a logarithm": "SUM(CLAMP(LN(SQRT({n} - {v}) / ({n} - {v})), 0, 9))",
    "a pattern that goes back and forth": "COUNT_IF({g} LIKE '%a%a%a%a%a%a%a%a%b')",
    "a key inside an aggregate": "SUM(CLAMP({n} / NULLIF({n} - {v}, 0), 0, 9))",
    "a quotient of aggregates": "SUM({n}) / (COUNT(*) - COUNT(*))",
    "a root of an aggregate": "SQRT(-COUNT(*))",
    "a logarithm of an aggregate": "LN(COUNT(*) - COUNT(*))",
}
QUERIES = {
    "a group that may be missing": "SELECT {g}, COUNT(*) FROM {t} WHERE {n} = {v} GROUP BY {g}",
    "a group by a quotient": "SELECT 1 / ({n} - {v}), COUNT(*) FROM {t} GROUP BY 1",
    "a group key inside an aggregate": "SELECT {g}, SUM(CLAMP({n} / ({n} - {v}), 0, 1)) FROM {t} GROUP BY {g}",
    "groups by values of the data": "SELECT {n}, COUNT(*) FROM {t} WHERE {n} > {v} GROUP BY {n}",
    "HAVING on one group": "SELECT {g}, COUNT(*) AS c FROM {t} GROUP BY {g} HAVING COUNT(*) > 1000000000",
    "order of rows": "SELECT {g}, COUNT(*) FROM {t} GROUP BY {g}",
    "order in a subquery": "SELECT COUNT(*) FROM (SELECT {n} FROM {t} ORDER BY {n} LIMIT 1) AS s",
    "an offset in a subquery": "SELECT SUM({n}) FROM (SELECT {n} FROM {t} OFFSET 1) AS s",
    "a window": "SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY {n}) AS r FROM {t}) AS s WHERE r = 1",
    "the rows themselves": "SELECT * FROM {t}",
    "one row": "SELECT {n} FROM {t} WHERE {n} = {v}",
    "the rows, limited": "SELECT {n} FROM {t} LIMIT 1",
    "a scalar subquery": "SELECT COUNT(*) FROM {t} WHERE {n} = (SELECT {n} FROM {t} WHERE {n} = {v})",
    "a subquery of two rows": "SELECT (SELECT {n} FROM {t})",
    "EXISTS": "SELECT 1 WHERE EXISTS (SELECT * FROM {t} WHERE {n} = {v})",
    "a recursive query": "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT COUNT(*) FROM r",
    "a product of tables": "SELECT COUNT(*) FROM {t} a, {t} b, {t} c, {t} d",
    "a join on an inequality": "SELECT COUNT(*) FROM {t} a JOIN {t} b ON a.{n} < b.{n}",
    "an outer join": "SELECT COUNT(*) FROM {t} a FULL OUTER JOIN {t} b ON a.{n} = b.{n}",
    "a join on a quotient": "SELECT COUNT(*) FROM {t} a JOIN {t} b ON 1 / (a.{n} - {v}) = b.{n}",
    "the catalogue": "SELECT COUNT(*) FROM information_schema.tables",
    "the engine's catalogue": "SELECT COUNT(*) FROM duckdb_tables()",
    "a file as a table": "SELECT COUNT(*) FROM 'people.parquet'",
    "a file by function": "SELECT COUNT(*) FROM read_csv('/etc/passwd')",
    "a remote file": "SELECT COUNT(*) FROM read_parquet('http://127.0.0.1/x')",
    "a generated table": "SELECT COUNT(*) FROM generate_series(1, 100000000000)",
    "EXPLAIN": "EXPLAIN ANALYZE SELECT COUNT(*) FROM {t}",
    "two statements": "SELECT COUNT(*) FROM {t}; DROP TABLE {t}",
    "a write": "DELETE FROM {t}",
    "a copy": "COPY {t} TO '/tmp/x'",
    "a changed setting": "SET threads = 1",
    "an attachment": "ATTACH '/tmp/x' AS y",
    "an extension": "INSTALL httpfs",
    "a pragma": "PRAGMA database_list",
    "a comment that ends": "SELECT COUNT(*) FROM {t} -- '; DROP TABLE {t}",
    "an injected constant": "SELECT COUNT(*) FROM {t} WHERE {g} = 'x'' OR 1=1; --'",
    "an injected name": 'SELECT COUNT(*) AS "x\\"; DROP TABLE {t}; --" FROM {t}',
    "HTML in a name": 'SELECT COUNT(*) AS "<script>alert(1)</script>" FROM {t}',
    "a line break in a name": 'SELECT COUNT(*) AS "x\\r\\nset-cookie: a=b" FROM {t}',
    "an unknown table": "SELECT COUNT(*) FROM people_of_another_curator",
    "an unknown column": "SELECT SUM(social_security_number) FROM {t}",
    "a filter nobody passes": "SELECT COUNT(*) FROM {t} WHERE {n} < {n}",
    "a filter on one person": "SELECT COUNT(*) FROM {t} WHERE {n} = {v}",
    "union all of oneself": "SELECT COUNT(*) FROM (SELECT * FROM {t} UNION ALL SELECT * FROM {t}) AS s",
    "EXCEPT": "SELECT COUNT(*) FROM (SELECT {n} FROM {t} EXCEPT SELECT {n} FROM {t} WHERE {n} <> {v}) AS s",
    "a sample": "SELECT COUNT(*) FROM {t} TABLESAMPLE 1 ROWS",
    "ROLLUP": "SELECT {g}, COUNT(*) FROM {t} GROUP BY ROLLUP ({g})",
    "no aggregate": "SELECT {g} FROM {t} GROUP BY {g}",
    "DISTINCT rows": "SELECT DISTINCT {n} FROM {t}",
    "nothing": "SELECT",
    "a lone quote": "SELECT '",
    "a nul": "SELECT COUNT(*) FROM {t} WHERE {g} = '\x00'",
    "a lone surrogate": "SELECT COUNT(*) FROM {t} WHERE {g} = '\\ud800'",
}
SHAPES: dict[str, Callable[[], str]] = {
    "deep parentheses": lambda: "SELECT COUNT(*) FROM {t} WHERE " + "(" * 2000 + "{n} = 1" + ")" * 2000,
    "a deep sum": lambda: "SELECT SUM(CLAMP(" + " + ".join(["{n}"] * 5000) + ", 0, 1)) FROM {t}",
    "deep NOT": lambda: "SELECT COUNT(*) FROM {t} WHERE " + "NOT " * 3000 + "{n} = 1",
    "deep subqueries": lambda: "SELECT COUNT(*) FROM " + "(SELECT * FROM " * 300 + "{t}" + ") AS s" * 300,
    "a long list": lambda: "SELECT COUNT(*) FROM {t} WHERE {n} IN (" + ",".join(map(str, range(9000))) + ")",
    "many columns": lambda: "SELECT " + ", ".join(f"COUNT(*) AS c{i}" for i in range(2000)) + " FROM {t}",
    "a deep CASE": lambda: "SELECT SUM(" + "CASE WHEN {n} = 1 THEN 1 ELSE " * 300 + "0" + " END" * 300 + ") FROM {t}",
    "a long constant": lambda: "SELECT COUNT(*) FROM {t} WHERE {g} = '" + "x" * 40_000 + "'",
    "a long number": lambda: "SELECT COUNT(*) FROM {t} WHERE {n} = 1" + "0" * 20_000,
    "an exponent": lambda: "SELECT COUNT(*) FROM {t} WHERE {n} = 1e999999999",
    "many commas": lambda: "SELECT " + "," * 20_000,
    "as deep as allowed": lambda: "SELECT COUNT(*) FROM {t} WHERE " + "NOT (" * 25 + "{n} = {v}" + ")" * 25,
    "the longest list": lambda: "SELECT COUNT(*) FROM {t} WHERE {n} IN (" + ",".join(map(str, range(1000))) + ")",
    "as many columns as allowed": lambda: "SELECT " + ", ".join(f"COUNT(*) AS c{i}" for i in range(256)) + " FROM {t}",
}  # fmt: skip


def fill_template(template: str, columns: Columns, value: int) -> str:
    """Fill the marks of a query template with a target's names and a value."""
    names = {"{t}": columns.table, "{n}": columns.number, "{v}": str(value), "{g}": columns.category or "1"}
    for mark, name in names.items():
        template = template.replace(mark, name)
    return template


def _check_query(template: Callable[[], str], targets: Sequence[ServiceTarget]) -> str:
    """Quote, explain and answer a query on every target; return the first problem of the replies, or ""."""
    value = int(targets[0].secret or targets[0].columns.middle)
    query = fill_template(template(), targets[0].columns, value)
    for path in ("/v1/quote", "/v1/explain", "/v1/answer"):
        # Otherwise quotes of averages use the noisy table size, whose noise differs between the instances.
        more: dict[str, Any] = {"assumed_group_size": 1000} if path == "/v1/quote" else {}
        if evidence := find_problem([target.ask(query, path=path, **more) for target in targets], query):
            return f"{path}: {evidence}"
    return ""


def attacks() -> Iterator[Attack]:
    """Yield the attacks of this module."""
    membership = "whether a person with a chosen value is in the data"
    for name, expression in EXPRESSIONS.items():
        query = f"SELECT {expression} FROM {{t}}"
        yield Attack(name, "error oracles", membership, partial(_check_query, partial(str, query)))
    for name, query in QUERIES.items():
        yield Attack(name, "shape and order", membership, partial(_check_query, partial(str, query)))
    for name, make in SHAPES.items():
        yield Attack(name, "size and nesting", "anything by exhausting the parser", partial(_check_query, make))
