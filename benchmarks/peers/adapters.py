"""The adapters for SmartNoise SQL and Tumult Analytics, against the libraries themselves.

Run with `peer.beside(...)`: prints, as JSON, a few answers and what an audit says of a true and of a false claim.
"""

import json
import sys
import time

import pandas

from dither.audit import adapters, privacy
from dither.loss import Approximate, Pure, rational

ROWS = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5])


def smartnoise():
    column = {"type": "int", "lower": 0, "upper": 10}
    metadata = {"": {"t": {"t": {"row_privacy": True, "censor_dims": False, "rows": 6, "x": column}}}}
    count = adapters.smartnoise("SELECT COUNT(*) AS n FROM t.t", metadata, 1.0, 1e-5)
    return lambda rows: count(pandas.DataFrame({"x": rows}))[0][0]


def tumult():
    from pyspark.sql import SparkSession
    from tmlt.analytics import AddOneRow, PureDPBudget, QueryBuilder, Session

    options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"}
    spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def session(rows):
        data = spark.createDataFrame(pandas.DataFrame({"x": rows}))
        return Session.from_dataframe(PureDPBudget(1), "t", data, protected_change=AddOneRow())

    count = adapters.tumult(session, QueryBuilder("t").count(), PureDPBudget(1))
    return lambda rows: count(rows)[0][0]


def main(name, answers, samples):
    count = {"smartnoise": smartnoise, "tumult": tumult}[name]()
    started = time.process_time()
    found = {"answers": [int(count(ROWS[0])) for _ in range(int(answers))]}
    if int(samples):
        delta = rational("1e-5")
        for word, epsilon in (("true", "1"), ("false", "1/20")):
            claim = Approximate(rational(epsilon), delta) if name == "smartnoise" else Pure(rational(epsilon))
            result = privacy(count, claim, [ROWS], samples=int(samples), alpha=1e-4, seed=1)
            found[word] = {"refuted": result.refuted, "epsilon_lower": float(result.epsilon_lower)}
    print(json.dumps({**found, "cpu": time.process_time() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:])
