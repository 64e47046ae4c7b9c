"""Answers that were once wrong without a word, and questions that were once paid for and then lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from dither.access.engines import open_engine
from dither.errors import DitherError, InvalidParameter, InvalidQuery, Unsupported
from dither.loss import Approximate
from dither.plan.context import Context, with_public_facts
from dither.post.query import parser as sql
from dither.post.query import supported_syntax as grammar
from dither.post.session import Session
from dither.schema import load
from post.bare import BareKernel

DESCRIPTION = """
version: 1
name: gaps
population: gaps
data_version: "1"
tables:
  users:
    private: true
    source: {kind: parquet, path: users.parquet}
    unique: uid
    columns:
      uid: {type: identifier, kind: integer}
      age: {type: integer, min: 0, max: 100, nullable: true}
      city: {type: category, values: [a, b, "B", z], nullable: true}
      vip: {type: boolean, nullable: true}
      born: {type: date, min: 2019-01-01, max: 2020-12-31, nullable: true}
  acts:
    private: true
    source: {kind: parquet, path: acts.parquet}
    columns:
      uid: {type: identifier, kind: integer}
      kind: {type: category, values: [x, y], nullable: true}
      at: {type: timestamp, min: 2020-01-01, max: 2020-12-31, precision: second}
units:
  user: {kind: user, keys: {users: uid, acts: uid}}
  month: {kind: window, keys: {acts: uid}, times: {acts: at}, every: month}
budgets:
  - {unit: user, kind: pure, epsilon: 1000}
"""
USERS = """SELECT range::BIGINT + 1 AS uid, CASE WHEN range % 7 <> 0 THEN (range * 13) % 101 END::INT AS age,
  ['a', 'b', 'B', 'z', NULL][1 + range % 5] AS city, CASE WHEN range % 3 <> 0 THEN range % 2 = 0 END AS vip,
  CASE WHEN range % 11 <> 0 THEN DATE '2019-01-01' + ((range * 17) % 730)::INT END AS born FROM range(300)"""
ACTS = """SELECT (range % 50) + 1 AS uid, ['x', 'y', NULL][1 + range % 3] AS kind,
  TIMESTAMP '2020-01-01' + INTERVAL ((range * 4001) % 525000) MINUTE AS at FROM range(600)"""
EXACT = 10**7


@dataclass(frozen=True)
class World:
    """The same tables with and without privacy."""

    session: Session
    kernel: BareKernel
    plain: duckdb.DuckDBPyConnection

    def rows(self, query: str, **options: object) -> list[tuple[object, ...]]:
        """The answer with noise that does not show, one tuple a row."""
        answer = self.session.sql(query, epsilon=EXACT, max_contributions=100, **options)  # type: ignore[arg-type]
        columns = [column.name for column in answer.columns]
        return [tuple(_plain(row[name]) for name in columns) for row in answer.to_dicts()]


def _plain(value: object) -> object:
    """Numbers without their last digits; what is undefined as NULL."""
    if isinstance(value, float):
        return None if value != value else round(value, 3)
    return value


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("gaps")
    plain = duckdb.connect()
    for name, query in (("users", USERS), ("acts", ACTS)):
        plain.execute(f"COPY ({query}) TO '{folder / name}.parquet'")
        plain.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder / name}.parquet')")
    Path(folder / "dataset.yml").write_text(DESCRIPTION)
    engine = open_engine(load(folder / "dataset.yml"))
    kernel = BareKernel(engine.ctx, engine.vector)
    yield World(Session.from_kernel(kernel, "analyst"), kernel, plain)
    engine.close()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*) FROM users WHERE city NOT LIKE 'b%'",
        "SELECT COUNT(*) FROM users WHERE city NOT LIKE '%z'",
        "SELECT city, COUNT(*) AS n FROM users GROUP BY city HAVING city <> 'a' ORDER BY city",
        "SELECT city, COUNT(*) AS n FROM users GROUP BY city ORDER BY city DESC LIMIT 3",
        "SELECT city, COUNT(*) AS n FROM users GROUP BY city ORDER BY city NULLS FIRST LIMIT 2",
        "SELECT age, COUNT(*) AS n FROM users GROUP BY age HAVING n > 0.5 ORDER BY age LIMIT 12",
        "SELECT age, COUNT(*) AS n FROM users GROUP BY age HAVING n > 0.5 ORDER BY age DESC LIMIT 12",
        "SELECT age, COUNT(*) AS n FROM users GROUP BY age HAVING age > 95 AND n > 0.5 ORDER BY -age",
        "SELECT age, COUNT(*) AS n FROM users GROUP BY age HAVING NOT age > 3 AND n > 0.5 ORDER BY age + 1",
        "SELECT COUNT(*) FROM acts WHERE acts.at < '2020-02-01'",
        "SELECT COUNT(*) FROM acts WHERE '2020-02-01 12:00:00' <= acts.at AND acts.at <> '2020-02-03'",
        "SELECT COUNT(*) FROM users WHERE born BETWEEN '2019-03-01' AND '2019-12-31'",
        "SELECT COUNT(*) FROM users WHERE born IN ('2019-01-18', '2019-02-04')",
        "SELECT COUNT(*) FILTER (WHERE born > '2020-01-01') FROM users",
        "SELECT SUM(CASE WHEN acts.at >= '2020-06-01' THEN 1 ELSE 0 END) FROM acts",
        "SELECT COUNT(*) FROM (SELECT uid FROM acts WHERE acts.at < '2020-02-01' GROUP BY uid) q",
        "SELECT COUNT(*) FROM users JOIN acts ON users.uid = acts.uid WHERE acts.at > '2020-10-01' AND city = 'a'",
        "SELECT vip, COUNT(*) AS n FROM users GROUP BY vip HAVING vip",
        "SELECT vip, COUNT(*) AS n FROM users GROUP BY vip HAVING NOT vip OR vip IS NULL ORDER BY vip NULLS FIRST",
        "SELECT city, COUNT(*) > 59 AS many FROM users GROUP BY city ORDER BY city",
        "SELECT city, COUNT(*) AS n FROM users GROUP BY city HAVING city IN ('a', 'z') ORDER BY city",
        "SELECT COALESCE(city, 'q') AS place, COUNT(*) AS n FROM users GROUP BY city ORDER BY place",
        "SELECT EXTRACT(year FROM born) + 1 AS y, COUNT(*) AS n FROM users GROUP BY EXTRACT(year FROM born) ORDER BY 1",
        "SELECT CASE WHEN city = 'a' THEN 'first' ELSE city END AS place, COUNT(*) AS n FROM users "
        "GROUP BY city ORDER BY place",
    ],
)
def test_answers_are_those_of_sql(query: str, world: World) -> None:
    wanted = [tuple(_plain(value) for value in row) for row in world.plain.execute(query).fetchall()]
    assert world.rows(query) == wanted


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT COUNT(*) FROM users WHERE age BETWEEN SYMMETRIC 9 AND 1", "SYMMETRIC"),
        ("SELECT SUM(age::DECIMAL(6, 0)) FROM users", "ROUND"),
        ("SELECT COUNT(uid, age) FROM users", "COUNT takes one expression"),
        ("SELECT MAX(age, 2) FROM users", "GREATEST"),
        ("SELECT city, COUNT(*) FROM users GROUP BY city LIMIT 10%", "not a share"),
        ("SELECT AVG(u.age) FROM users AS u(age, uid, city, vip, born)", "inside the subquery"),
        ("WITH t(n, age) AS (SELECT age, uid FROM users) SELECT AVG(age) FROM t", "inside the subquery"),
        ("(SELECT city, COUNT(*) FROM users GROUP BY city) LIMIT 1", "limit is not read"),
        ("SELECT COUNT(*) FROM users u JOIN (acts a JOIN users v ON a.uid = v.uid) ON u.uid = a.uid", "not"),
    ],
)
def test_nothing_of_a_query_is_dropped(query: str, reason: str, world: World) -> None:
    with pytest.raises(Unsupported, match=reason):
        world.rows(query)


def test_every_part_that_is_read_exists() -> None:
    for kind, parts in grammar.READ_PARTS.items():
        assert set(parts.split()) <= set(kind.arg_types), kind


def test_a_part_that_nobody_reads_is_noticed() -> None:
    """Whatever a later parser may add to a node that we read is refused until somebody reads it."""
    query = sql.parse_statement(
        "WITH t AS (SELECT DISTINCT age, city FROM users AS u JOIN acts USING (uid)) "
        "SELECT CASE city WHEN 'a' THEN 1 END AS x, ROUND(AVG(age), 2) + COUNT(*) FILTER (WHERE NOT age IN (1, 2)) "
        "FROM (SELECT age, city FROM t UNION ALL SELECT age, city FROM t) AS q "
        "WHERE age BETWEEN 1 AND 9 OR city LIKE 'a%' "
        "GROUP BY city HAVING COUNT(DISTINCT age) > -1 ORDER BY x DESC LIMIT 2 OFFSET 1"
    )
    grammar.refuse_unread_parts(query)
    for node in query.walk():
        node.set("something_new", True)
        with pytest.raises(Unsupported, match="something new is not read"):
            grammar.refuse_unread_parts(query)
        node.set("something_new", None)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT CASE WHEN COUNT(*) > 5 THEN 'many' ELSE 'few' END AS x FROM users",
        "SELECT IF(COUNT(*) > 5, 1, 'b') AS x FROM users",
        "SELECT city, COUNT(*) FROM users GROUP BY city HAVING COUNT(*) > 'x'",
        "SELECT city, COUNT(*) FROM users GROUP BY city HAVING city",
        "SELECT city, COUNT(*) FROM users GROUP BY city HAVING COUNT(*)",
        "SELECT born, COUNT(*) FROM users GROUP BY born HAVING born > 5",
        "SELECT LEAST(city, COUNT(*)) FROM users GROUP BY city",
        "SELECT -city AS x, COUNT(*) FROM users GROUP BY city",
        "SELECT LOG(2, COUNT(*)) FROM users",
        "SELECT CEIL(COUNT(*), 2) FROM users",
        "SELECT COUNT(*) + city AS x FROM users GROUP BY city",
    ],
)
def test_what_cannot_be_put_together_is_refused_before_the_charge(query: str, world: World) -> None:
    world.kernel.requests.clear()
    with pytest.raises(DitherError):
        world.rows(query)
    assert not world.kernel.requests


@pytest.mark.parametrize("confidence", [0.5, 0.998, 0.999, 0.9999])
@pytest.mark.parametrize("column", ["VARIANCE(age)", "COUNT(*) * AVG(age)", "STDDEV(age)"])
def test_any_confidence_has_an_interval(column: str, confidence: float, world: World) -> None:
    (row,) = world.session.sql(
        f"SELECT {column} AS x FROM users", epsilon=1, max_contributions=1, confidence=confidence
    ).to_dicts()
    assert row["x_low"] <= row["x"] <= row["x_high"]


def test_intervals_grow_with_the_confidence(world: World) -> None:
    quoted = [
        world.session.quote(
            "SELECT COUNT(*) * COUNT(age) AS x FROM users",
            epsilon=1,
            max_contributions=1,
            confidence=level,
            assumed_group_size=300,
        )
        for level in (0.95, 0.999, 0.9999)
    ]
    widths = [price.expected[0].half_width for price in quoted]
    assert widths[0] < widths[1] < widths[2]


def test_a_certain_interval_is_refused(world: World) -> None:
    with pytest.raises(InvalidParameter, match=r"between 0 and 0\.9999"):
        world.session.batch(["SELECT COUNT(*) FROM users"], epsilon=1, max_contributions=1, confidence=0.99999)


@pytest.mark.parametrize("option", ["max_groups=x", "max_rows_per_group=x, max_groups=1"])
def test_options_that_are_no_numbers(option: str, world: World) -> None:
    query = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({option}) kind, COUNT(*) FROM acts GROUP BY kind"
    with pytest.raises(InvalidParameter, match="whole number"):
        world.session.sql(query, epsilon=1)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(DISTINCT uid) FROM acts",
        "SELECT COUNT(*) FROM (SELECT uid, COUNT(*) AS n FROM acts GROUP BY uid) q",
        "SELECT COUNT(*) FROM (SELECT DISTINCT uid, kind FROM acts) q",
        "SELECT COUNT(*) FROM acts a JOIN acts b ON a.uid = b.uid",
        "SELECT COUNT(*) FROM (SELECT uid FROM acts UNION SELECT uid FROM acts) q",
    ],
)
def test_a_person_is_not_a_person_in_a_month(query: str, world: World) -> None:
    """Under a window unit the key names people: answered as SQL would, or refused, never by counting windows."""
    try:
        found = world.rows(query, unit="month")
    except Unsupported as refusal:
        assert len(str(refusal)) > 30
        return
    assert found == [tuple(_plain(value) for value in row) for row in world.plain.execute(query).fetchall()]


WIDE = """
version: 1
name: wide
population: wide
data_version: "1"
tables:
  acts:
    private: true
    source: {kind: parquet, path: acts.parquet}
    columns:
      uid: {type: identifier, kind: integer}
      amount: {type: integer, min: 0, max: 100000000}
units:
  user: {kind: user, keys: {acts: uid}}
budgets:
  - {unit: user, kind: pure, epsilon: 1000}
"""


def test_rounding_is_said_and_allowed_for(tmp_path: Path) -> None:
    """Small values of a wide range were once rounded to nothing, in an interval that did not hold the truth."""
    where = tmp_path / "acts.parquet"
    duckdb.sql(f"COPY (SELECT range % 500 AS uid, 5 + (range * 7) % 20 AS amount FROM range(5000)) TO '{where}'")
    (tmp_path / "dataset.yml").write_text(WIDE)
    dataset = load(tmp_path / "dataset.yml")
    engine = open_engine(dataset)
    kernel = BareKernel(Context(with_public_facts(dataset, False, {"acts": 5_000})), engine.vector)
    session = Session.from_kernel(kernel, "analyst")
    answer = session.sql("SELECT SUM(amount) AS x FROM acts", epsilon=EXACT, max_contributions=100)
    (row,) = answer.to_dicts()
    assert abs(row["x"] - 72_500) > 10_000
    assert row["x_low"] <= 72_500 <= row["x_high"]
    assert any("rounded to multiples of" in note for note in answer.notes)
    assert any("at most as much as 100 rows can" in note for note in answer.notes)
    exact = session.sql("SELECT SUM(CLAMP(amount, 0, 100)) AS x FROM acts", epsilon=EXACT, max_contributions=100)
    assert exact.value() == pytest.approx(72_500, abs=1)
    assert not any("rounded" in note for note in exact.notes)
    engine.close()


def test_values_of_any_size_are_not_added_up(world: World) -> None:
    with pytest.raises(Unsupported, match="CLAMP"):
        world.rows("SELECT AVG(n) FROM (SELECT kind, uid, COUNT(*) AS n FROM acts GROUP BY kind, uid) q", unit="month")


@pytest.mark.parametrize("value", ["COUNT(*)", "COUNT(DISTINCT kind)"])
@pytest.mark.parametrize("bound", [100, None])
def test_per_person_counts_with_any_bound(value: str, bound: int | None, world: World) -> None:
    query = f"SELECT AVG(n) AS x FROM (SELECT uid, {value} AS n FROM acts GROUP BY uid) q"
    (row,) = world.session.sql(query, epsilon=EXACT, max_contributions=bound).to_dicts()
    ((wanted,),) = world.plain.execute(query).fetchall()
    assert row["x"] == pytest.approx(wanted, abs=0.01)


def doubled(levels: int) -> str:
    """A query whose plan is twice as large with every name."""
    names = ["t0 AS (SELECT age FROM users)"]
    names += [f"t{n} AS (SELECT * FROM t{n - 1} UNION ALL SELECT * FROM t{n - 1})" for n in range(1, levels + 1)]
    return f"WITH {', '.join(names)} SELECT COUNT(*) FROM t{levels}"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (doubled(12), "written out"),
        (doubled(60), "written out"),
        (doubled(600), "WITH names at most"),
        ("SELECT " + ", ".join(f"SUM(age + {n})" for n in range(1500)) + " FROM users", "at most 256 columns"),
    ],
    ids=["doubled 12", "doubled 60", "doubled 600", "columns"],
)
def test_small_texts_with_large_plans_are_refused(query: str, reason: str, world: World) -> None:
    """1.4 kB once kept a gateway busy for minutes: no walk over the plan may be exponential in the text."""
    with pytest.raises(Unsupported, match=reason):
        world.session.explain(query)


def test_names_may_be_used_twice(world: World) -> None:
    assert world.rows(doubled(3)) == [(2400.0,)]


@pytest.mark.parametrize("each", ["COUNT(*)", "COUNT(DISTINCT kind)"])
@pytest.mark.parametrize(
    "wanted", ["MEDIAN(n)", "QUANTILE(n, 0.9)", "MIN(n)", "MAX(n)", "AVG(n)", "SUM(n)", "VARIANCE(n)", "COUNT(*)"]
)
def test_numbers_of_each_person_need_no_bound(wanted: str, each: str, world: World) -> None:
    """Once a bound is found, values reach fewer bins; and neither noise nor interval is that of the largest bound."""
    query = f"SELECT {wanted} AS found FROM (SELECT uid, {each} AS n FROM acts GROUP BY uid)"
    (truth,) = world.plain.execute(query.replace("QUANTILE(n, 0.9)", "QUANTILE_DISC(n, 0.9)")).fetchone() or (None,)
    (row,) = world.session.sql(query, epsilon=10**5).to_dicts()
    assert row["found"] == pytest.approx(truth, abs=0.5)
    assert row["found_low"] - 0.5 <= truth <= row["found_high"] + 0.5
    quoted = world.session.quote(query, epsilon=1)["found"]
    assert not quoted.needs_rows or quoted.half_width < 200


def _written(options: str) -> str:
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({options}) city, COUNT(*) AS n FROM users GROUP BY city"


def test_options_in_the_text_are_honoured_or_refused(world: World) -> None:
    (answer,) = world.session.batch([_written("epsilon = 2, max_contributions = 1, confidence = 0.5")])
    assert sum(float(loss.epsilon) for loss in answer.loss) == 2  # type: ignore[union-attr]
    assert answer.confidence == 0.5
    one, two = world.session.split(_written("epsilon = 2, confidence = 0.5"), 3)
    assert one.confidence == two.confidence == 0.5
    price = world.session.quote(_written("epsilon = 2, delta = 1e-6, confidence = 0.5"))
    assert price.loss == Approximate(2, "1/1000000")
    world.session.explain(_written("max_error = 3"))
    with pytest.raises(InvalidQuery, match="noise"):
        world.session.sql(_written("epsilon = 2, noise = gaussian"))
    with pytest.raises(InvalidParameter, match="delta"):
        world.session.batch([_written("epsilon = 2, delta = 1e-6")])
    with pytest.raises(InvalidParameter, match="as arguments"):
        world.session.batch([_written("epsilon = 2"), _written("epsilon = 2")], epsilon=1)


def test_a_text_that_is_no_date_is_refused(world: World) -> None:
    with pytest.raises(InvalidQuery, match="is not a date"):
        world.rows("SELECT COUNT(*) FROM acts WHERE at < 'tomorrow'")


def test_a_row_for_each_person_is_one_row(world: World) -> None:
    """It once cost as many as the person has rows in the table below."""
    query = "SELECT COUNT(*) AS n, MEDIAN(k) AS m FROM (SELECT uid, COUNT(*) AS k FROM acts GROUP BY uid) q"
    said = str(world.session.explain(query))
    assert said.count("L1 1, L2^2 1") == 2
