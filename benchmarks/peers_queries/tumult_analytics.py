"""The four queries through Tumult Analytics on local Spark: prints, for each, the answers and their CPU seconds.

Run by `benchmarks/queries.py` with the peer's own Python. CPU is that of the driver and of the Java process that it
starts; one answer before the measured ones warms both.
"""

import itertools
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import tmlt.analytics as ta
from pyspark.sql import SparkSession

FOLDER, QUERIES, REPEATS, ROWS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
COUNTRIES = ["US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other"]
ACTIONS = ["view", "click", "share", "like", "comment", "report"]
os.environ["PYSPARK_PYTHON"] = sys.executable


def cpu():
    """CPU seconds of this process and of everything below it, as the system's table of processes says."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    below, spent = {os.getpid()}, usage.ru_utime + usage.ru_stime
    stats = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = entry.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        stats[int(name.split()[0])] = (int(fields[1]), sum(map(int, fields[11:15])))
    for _ in range(8):
        below |= {number for number, (parent, _) in stats.items() if parent in below}
    ticks = os.sysconf("SC_CLK_TCK")
    return spent + sum(stats[number][1] for number in below - {os.getpid()} if number in stats) / ticks


spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", "4")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", tempfile.mkdtemp())
    .config("spark.driver.memory", "3g")
    .config("spark.driver.extraJavaOptions", "-Dio.netty.tryReflectionSetAccessible=true")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
users = spark.read.parquet(str(FOLDER / "users.parquet")).select("user_id", "country", "age")
actions = spark.read.parquet(str(FOLDER / "actions.parquet")).select("user_id", "action")


# user code
def ask(place):
    session = (
        ta.Session.Builder()
        .with_privacy_budget(ta.PureDPBudget(1))
        .with_id_space("people")
        .with_private_dataframe("users", users, ta.AddRowsWithID("user_id", "people"))
        .with_private_dataframe("actions", actions, ta.AddRowsWithID("user_id", "people"))
        .build()
    )
    one, many = ta.MaxRowsPerID(1), ta.MaxRowsPerID(ROWS)
    if place == 0:
        keys = ta.KeySet.from_dict({"action": ACTIONS})
        query = ta.QueryBuilder("actions").enforce(many).groupby(keys).count("n")
    elif place == 1:
        keys = ta.KeySet.from_tuples(list(itertools.product(COUNTRIES, range(1, 11))), columns=["country", "decade"])
        query = (
            ta.QueryBuilder("actions")
            .join_private("users", join_columns=["user_id"])
            .map(lambda row: {"decade": row["age"] // 10}, {"decade": "INTEGER"}, augment=True)
            .enforce(many)
            .groupby(keys)
            .count("n")
        )
    elif place == 2:
        keys = ta.KeySet.from_dict({"country": COUNTRIES})
        query = ta.QueryBuilder("users").enforce(one).groupby(keys).average("age", low=13, high=100, name="a")
    else:
        query = ta.QueryBuilder("actions").select(["user_id"]).enforce(one).count("n")
    return session.evaluate(query, ta.PureDPBudget(1)).collect()


# end of user code
results = []
for place in QUERIES:
    runs, problem, spent = [], "", 0.0
    for number in range(REPEATS + 1):
        start = cpu()
        try:
            found = ask(place)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:150]}"
            break
        if number:
            spent += cpu() - start
            runs.append([list(row) for row in found])
    results.append({"query": place, "runs": runs, "cpu": spent / max(1, len(runs)), "problem": problem})
spark.stop()
print(json.dumps(results))
