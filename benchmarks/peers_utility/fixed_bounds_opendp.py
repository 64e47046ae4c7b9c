"""The questions of `benchmarks/utility.py` through OpenDP: prints the answers at each fixed bound that is tried.

Run by `benchmarks/utility.py` with the peer's own Python: folder, questions as JSON, runs at each bound. OpenDP has no
search for bounds: each plane keeps a fixed number of rows, values are clipped to fixed ends, and the keys are given.
"""

import json
import sys
from pathlib import Path

import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib", "honest-but-curious")
FOLDER, QUESTIONS, RUNS = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
FLIGHTS = pl.scan_parquet(FOLDER / "flights.parquet").select("tailnum", "carrier", "origin", "month", "dep_delay")


def ask(question, rows, low, high):
    """One answer by key; `rows` of each plane are kept."""
    key, frame = question["key"], FLIGHTS
    if question["kind"] == "mean":
        frame = frame.filter(pl.col("dep_delay").is_not_null()).with_columns(pl.col("dep_delay").cast(pl.Int64))
    columns = ["tailnum", *([key] if key else []), *(["dep_delay"] if question["kind"] == "mean" else [])]
    context = dp.Context.compositor(
        data=frame.select(columns),
        privacy_unit=dp.unit_of(contributions=1, identifier=pl.col("tailnum")),
        privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=1,
        margins=[dp.polars.Margin(by=[key] if key else [], invariant="keys", max_length=400_000)],
    )
    wanted = [dp.len().alias("n")]
    if question["kind"] == "mean":
        wanted.append(pl.col("dep_delay").fill_null(0).dp.sum((low, high)).alias("s"))
    query = context.query().truncate_per_group(rows)
    if key:
        keys = FLIGHTS.select(key).unique().sort(key)
        query = query.group_by(key).agg(wanted).with_keys(keys.collect().lazy())
    else:
        query = query.select(wanted)
    found = query.release().collect().to_dicts()
    name = (lambda row: str(row[key])) if key else (lambda row: "")
    if question["kind"] == "mean":
        return {name(row): row["s"] / max(row["n"], 1) for row in found}
    return {name(row): row["n"] for row in found}


answers = []
for question in QUESTIONS:
    tried = []
    for rows, low, high in question["bounds"]:
        tried.append({"bound": [rows, low, high], "runs": [ask(question, rows, low, high) for _ in range(RUNS)]})
    answers.append(tried)
print(json.dumps(answers))
