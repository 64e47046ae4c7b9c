"""Undeclared keys with their counts through OpenDP Polars: keys and thresholded counts at once, for the whole loss.

Run by `benchmarks/keys.py` with the peer's own Python. Each unit is limited to `bound` keys outside OpenDP, at random;
`loss` is {"epsilon": ..., "delta": ...} (Laplace noise) or {"rho": ..., "delta": ...} (Gaussian noise).
"""

import json
import sys

import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib", "honest-but-curious")
PATH, TRIALS = sys.argv[1], json.loads(sys.argv[2])
# An index that pandas wrote beside the columns would make every row a key of its own.
pairs = pl.read_parquet(PATH).select("unit", "key").unique(maintain_order=True)


def bounded(bound):
    shuffled = pairs.sample(fraction=1.0, shuffle=True)
    return shuffled.with_columns(pl.int_range(pl.len()).over("unit").alias("place")).filter(pl.col("place") < bound)


def keys(bound, loss):
    context = dp.Context.compositor(
        data=bounded(bound).lazy().select("unit", "key"),
        privacy_unit=dp.unit_of(
            contributions=[
                dp.polars.Bound(by=["key"], per_group=1),
                dp.polars.Bound(by=["key"], num_groups=bound),
            ],
        ),
        privacy_loss=dp.loss_of(**loss),
        split_evenly_over=1,
    )
    found = context.query().group_by("key").agg(dp.len()).release().collect()
    return found.height


print(json.dumps([keys(bound, loss) for bound, loss in TRIALS]))
