"""The questions of `benchmarks/utility.py` through Tumult Analytics: prints the answers at each bound that is tried.

Run by `benchmarks/utility.py` with the peer's own Python: folder, questions as JSON, runs at each bound. It has no
search for bounds: each plane keeps a fixed number of rows, values are clamped to fixed ends, and the keys are given.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as spark_functions
from tmlt.analytics import AddRowsWithID, KeySet, MaxRowsPerID, PureDPBudget, QueryBuilder, Session

FOLDER, QUESTIONS, RUNS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
FLIGHTS = spark.read.parquet(str(FOLDER / "flights.parquet")).select(
    "tailnum", "carrier", "origin", "month", "dep_delay"
)
DELAYS = FLIGHTS.where("dep_delay is not null").withColumn("dep_delay", spark_functions.col("dep_delay").cast("long"))
FRAMES = {"count": FLIGHTS.drop("dep_delay").cache(), "mean": DELAYS.cache()}
KEYS = {
    name: sorted(row[0] for row in FLIGHTS.select(name).distinct().collect()) for name in ("carrier", "origin", "month")
}
SESSIONS = {
    kind: Session.from_dataframe(
        PureDPBudget(float("inf")), "flights", frame, protected_change=AddRowsWithID("tailnum")
    )
    for kind, frame in FRAMES.items()
}


def ask(question, rows, low, high):
    """One answer by key; `rows` of each plane are kept."""
    key, kind = question["key"], question["kind"]
    query = QueryBuilder("flights").enforce(MaxRowsPerID(rows))
    if key:
        query = query.groupby(KeySet.from_dict({key: KEYS[key]}))
    query = query.average("dep_delay", low, high, name="n") if kind == "mean" else query.count(name="n")
    found = SESSIONS[kind].evaluate(query, PureDPBudget(1)).collect()
    return {str(row[key]) if key else "": row["n"] for row in found}


answers = []
for question in QUESTIONS:
    tried = []
    for rows, low, high in question["bounds"]:
        tried.append({"bound": [rows, low, high], "runs": [ask(question, rows, low, high) for _ in range(RUNS)]})
    answers.append(tried)
print(json.dumps(answers))
