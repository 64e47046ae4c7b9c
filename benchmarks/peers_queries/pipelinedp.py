"""The four queries through PipelineDP's local backend: prints, for each, the answers and their CPU seconds.

Run by `benchmarks/queries.py` with the peer's own Python. PipelineDP has no joins, so the second query reads rows that
were joined by hand, outside the measured time; groups are public.
"""

import itertools
import json
import operator
import resource
import sys
from pathlib import Path

import duckdb
import pipeline_dp

FOLDER, QUERIES, REPEATS, ROWS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
COUNTRIES = ["US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other"]
ACTIONS = ["view", "click", "share", "like", "comment", "report"]
TABLES = {
    0: ("SELECT user_id, action, 1 FROM actions", ACTIONS),
    1: (
        "SELECT user_id, country || '|' || CAST(FLOOR(age / 10) AS INT), 1 FROM actions JOIN users USING (user_id)",
        [f"{country}|{decade}" for country, decade in itertools.product(COUNTRIES, range(1, 11))],
    ),
    2: ("SELECT user_id, country, age FROM users", COUNTRIES),
    3: ("SELECT user_id, 'all', 1 FROM actions", ["all"]),
}


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# user code
def ask(rows, groups, place):
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-6)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    metric = [pipeline_dp.Metrics.COUNT, pipeline_dp.Metrics.COUNT, pipeline_dp.Metrics.MEAN]
    metric += [pipeline_dp.Metrics.PRIVACY_ID_COUNT]
    bounds = {"max_partitions_contributed": 1, "max_contributions_per_partition": 1 if place > 1 else ROWS}
    if place == 0:
        bounds = {"max_partitions_contributed": len(ACTIONS), "max_contributions_per_partition": max(1, ROWS // 3)}
    params = pipeline_dp.AggregateParams(metrics=[metric[place]], min_value=13, max_value=100, **bounds)
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=operator.itemgetter(0),
        partition_extractor=operator.itemgetter(1),
        value_extractor=operator.itemgetter(2),
    )
    answer = engine.aggregate(rows, params, extractors, public_partitions=groups)
    accountant.compute_budgets()
    return [[key, float(value[0])] for key, value in answer]


# end of user code
con = duckdb.connect()
for table in ("users", "actions"):
    con.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{FOLDER / table}.parquet')")
results = []
for place in QUERIES:
    query, groups = TABLES[place]
    rows = con.execute(query).fetchall()
    runs, spent = [], 0.0
    for _ in range(REPEATS):
        start = cpu()
        found = ask(rows, groups, place)
        spent += cpu() - start
        runs.append([[*key.split("|"), value] if place == 1 else [key, value] for key, value in found])
    if place == 3:
        runs = [[row[1:] for row in found] for found in runs]
    results.append({"query": place, "runs": runs, "cpu": spent / REPEATS})
print(json.dumps(results))
