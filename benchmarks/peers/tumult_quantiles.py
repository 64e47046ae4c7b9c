"""Quantiles of incomes from 0 to 1,000,000 by Tumult Analytics, each with an equal share of epsilon 1, as JSON.

Run by `benchmarks/levels.py` with the peer's own Python: a Parquet file, lists of levels as JSON, the number of draws.
"""

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from tmlt.analytics import AddOneRow, PureDPBudget, QueryBuilder, Session

PATH, SETS, DRAWS = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
frame = spark.read.parquet(PATH).select("income").cache()
session = Session.from_dataframe(PureDPBudget(float("inf")), "people", frame, protected_change=AddOneRow())


def draw(level, share):
    query = QueryBuilder("people").quantile("income", quantile=level, low=0, high=1_000_000, name="q")
    return float(session.evaluate(query, PureDPBudget(share)).collect()[0]["q"])


print(json.dumps([[[draw(level, 1 / len(levels)) for level in levels] for _ in range(DRAWS)] for levels in SETS]))
