"""The four queries through Qrlew, which rewrites SQL to private SQL; DuckDB then runs what it wrote.

Run by `benchmarks/queries.py` with the peer's own Python: prints, for each query, the answers and the CPU seconds.
Qrlew learns the schema from a database, so the tables are also written to SQLite once, outside the measured time.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path

import duckdb
import pyqrlew
import sqlalchemy

FOLDER, QUERIES, REPEATS, ROWS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
COUNTRIES = ["US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other"]
ACTIONS = ["view", "click", "share", "like", "comment", "report"]
# user code
UNIT = [("users", [], "user_id"), ("actions", [], "user_id")]
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
ASKED = [
    "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "SELECT country, FLOOR(age / 10) AS decade, COUNT(*) AS n FROM actions "
    "JOIN users ON actions.user_id = users.user_id GROUP BY country, decade",
    "SELECT country, AVG(age) AS a FROM users GROUP BY country",
    "SELECT COUNT(DISTINCT user_id) AS n FROM actions",
]
# end of user code


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# user code
def described(con):
    """Qrlew's own description of the tables, with the ranges and values that Dither's schema declares."""
    file = Path(tempfile.mkdtemp()) / "tables.sqlite"
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    frames = {
        name: con.execute(f"SELECT {columns} FROM {name}").df()
        for name, columns in (("users", "user_id, country, age"), ("actions", "user_id, action"))
    }
    for name, frame in frames.items():
        frame.to_sql(name, engine, index=False)
    found = pyqrlew.Dataset.from_database("url_shares", engine)
    found = found.with_range(None, "users", "age", 13, 100)
    found = found.with_range(None, "users", "user_id", 1, 10**7).with_range(None, "actions", "user_id", 1, 10**7)
    found = found.with_constraint(None, "users", "user_id", found.CONSTRAINT_UNIQUE)
    found = found.with_possible_values(None, "users", "country", COUNTRIES)
    return found.with_possible_values(None, "actions", "action", ACTIONS)


# end of user code
con = duckdb.connect()
for table in ("users", "actions"):
    con.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{FOLDER / table}.parquet')")
dataset = described(con)
results = []
for place in QUERIES:
    runs, spent, problem = [], 0.0, ""
    for _ in range(REPEATS):
        start = cpu()
        try:
            # user code
            relation = dataset.relation(ASKED[place])
            private = relation.rewrite_with_differential_privacy(dataset, UNIT, BUDGET, max_multiplicity=ROWS)
            rows = con.execute(private.relation().to_query(pyqrlew.Dialect.PostgreSql)).fetchall()
            # end of user code
        except BaseException as error:  # Rust panics are not Exceptions
            problem = f"{type(error).__name__}: {str(error)[:150]}"
            break
        spent += cpu() - start
        runs.append([[v if isinstance(v, str) or v is None else float(v) for v in row] for row in rows])
    results.append({"query": place, "runs": runs, "cpu": spent / max(1, len(runs)), "problem": problem})
print(json.dumps(results))
