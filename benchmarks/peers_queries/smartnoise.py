"""The four queries through SmartNoise SQL: prints, for each, the answer and the CPU seconds that it took.

Run by `benchmarks/queries.py` with the peer's own Python. Joins are disabled there, so the second query reads a view
that is joined by hand; everything else is as its documentation says.
"""

import json
import resource
import sys
from pathlib import Path

import duckdb
import pandas
import snsql

FOLDER, QUERIES, REPEATS, ROWS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# user code
def column(kind, **facts):
    return {"type": kind, **facts}


def metadata(name, rows, columns, bound):
    table = {
        "row_privacy": False,
        "max_ids": bound,
        "sample_max_ids": True,
        "censor_dims": True,
        "rows": rows,
        **columns,
    }
    return {"": {"db": {name: table}}}


USER = {"user_id": column("int", private_id=True)}
PERSON = {
    "country": column("string"),
    "age": column("int", lower=13, upper=100),
    "decade": column("int", lower=1, upper=10),
}
DEED = {"action": column("string"), "decade": column("int", lower=1, upper=10), "country": column("string")}


def frame(name):
    con = duckdb.connect()
    where = {table: f"read_parquet('{FOLDER / table}.parquet')" for table in ("users", "actions")}
    if name == "users":
        return con.execute(f"SELECT user_id, country, age FROM {where['users']}").df()
    if name == "actions":
        return con.execute(f"SELECT user_id, action FROM {where['actions']}").df()
    return con.execute(
        f"SELECT user_id, country, CAST(FLOOR(age / 10) AS INT) AS decade FROM {where['actions']} AS actions "
        f"JOIN {where['users']} AS users USING (user_id)"
    ).df()


ASKED = [
    ("actions", "SELECT action, COUNT(*) AS n FROM db.actions GROUP BY action", {"action": DEED["action"]}),
    (
        "joined",
        "SELECT country, decade, COUNT(*) AS n FROM db.joined GROUP BY country, decade",
        {"country": DEED["country"], "decade": DEED["decade"]},
    ),
    (
        "users",
        "SELECT country, AVG(age) AS a FROM db.users GROUP BY country",
        {k: PERSON[k] for k in ("country", "age")},
    ),
    ("actions", "SELECT COUNT(DISTINCT user_id) AS n FROM db.actions", {"action": DEED["action"]}),
]

# end of user code
results = []
for place in QUERIES:
    name, query, columns = ASKED[place]
    data = frame(name)
    bound = 1 if name == "users" else ROWS
    described = metadata(name, len(data), {**USER, **columns}, bound)
    runs, spent = [], 0.0
    for _ in range(REPEATS):
        start = cpu()
        # user code
        reader = snsql.from_df(data, privacy=snsql.Privacy(epsilon=1.0, delta=1e-6), metadata=described)
        rows = reader.execute(query)
        # end of user code
        spent += cpu() - start
        runs.append(
            [[None if pandas.isna(v) else (v if isinstance(v, str) else float(v)) for v in row] for row in rows[1:]]
        )
    results.append({"query": place, "runs": runs, "cpu": spent / REPEATS})
print(json.dumps(results))
