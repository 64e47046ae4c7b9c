"""The four queries through OpenDP's Polars interface: prints, for each, the answers and the CPU seconds that they took.

Run by `benchmarks/queries.py` with the peer's own Python. OpenDP has no joins, so the second query reads rows that were
joined by hand, outside the measured time; groups are public.
"""

import itertools
import json
import resource
import sys
from pathlib import Path

import opendp.prelude as dp
import polars as pl

FOLDER, QUERIES, REPEATS, ROWS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
COUNTRIES = ["US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other"]
ACTIONS = ["view", "click", "share", "like", "comment", "report"]
dp.enable_features("contrib")


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


users = pl.read_parquet(FOLDER / "users.parquet").select("user_id", "country", "age")
actions = pl.read_parquet(FOLDER / "actions.parquet").select("user_id", "action")
joined = actions.join(users, on="user_id").select("user_id", "country", (pl.col("age") // 10).alias("decade"))


# user code
def ask(place):
    frame = [actions, joined, users, actions][place].lazy()
    rows = ROWS if place < 2 else 1
    context = dp.Context.compositor(
        data=frame,
        privacy_unit=dp.unit_of(contributions=1, identifier="user_id"),
        privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=1,
        margins=[dp.polars.Margin(by=["country"], max_length=10_000_000)] if place == 2 else [],
    )
    query = context.query().truncate_per_group(rows)
    if place == 0:
        keys = pl.LazyFrame({"action": ACTIONS})
        return query.group_by("action").agg(dp.len()).with_keys(keys).release().collect()
    if place == 1:
        pairs = list(itertools.product(COUNTRIES, range(1, 11)))
        keys = pl.LazyFrame(pairs, schema={"country": pl.String, "decade": pl.Int32}, orient="row")
        return query.group_by("country", "decade").agg(dp.len()).with_keys(keys).release().collect()
    if place == 2:
        keys = pl.LazyFrame({"country": COUNTRIES})
        mean = [pl.col("age").cast(pl.Int64).fill_null(13).dp.sum((13, 100)).alias("sum"), dp.len()]
        return query.group_by("country").agg(mean).with_keys(keys).release().collect()
    return query.select(dp.len()).release().collect()


# end of user code
def tidy(place, frame):
    if place == 2:
        frame = frame.select("country", (pl.col("sum") / pl.col("len")).alias("a"))
    return [list(row) for row in frame.rows()]


results = []
for place in QUERIES:
    runs, spent, problem = [], 0.0, ""
    for _ in range(REPEATS):
        start = cpu()
        try:
            found = ask(place)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:150]}"
            break
        spent += cpu() - start
        runs.append(tidy(place, found))
    results.append({"query": place, "runs": runs, "cpu": spent / max(1, len(runs)), "problem": problem})
print(json.dumps(results))
