"""Undeclared keys through Tumult Analytics: `get_groups` with half of the loss, which leaves half for their counts.

Run by `benchmarks/keys.py` with the peer's own Python.
"""

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--driver-memory 2g pyspark-shell")

from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddRowsWithID,
    ApproxDPBudget,
    MaxRowsPerID,
    QueryBuilder,
    Session,
)

PATH, TRIALS = sys.argv[1], json.loads(sys.argv[2])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
frame = spark.read.parquet(PATH).select("unit", "key").distinct().cache()


def keys(bound, epsilon, delta):
    budget = ApproxDPBudget(epsilon, delta)
    session = Session.from_dataframe(
        privacy_budget=budget, source_id="pairs", dataframe=frame, protected_change=AddRowsWithID("unit")
    )
    query = QueryBuilder("pairs").enforce(MaxRowsPerID(bound)).get_groups(["key"])
    return session.evaluate(query, budget).count()


print(json.dumps([keys(bound, loss["epsilon"], loss["delta"]) for bound, loss in TRIALS]))
