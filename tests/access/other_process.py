"""Run as a program: answers on a Spark of another process, and what random plans show there, as one line of JSON.

A process holds one Spark session, and the tests' own is a local one.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from access.test_spark import on_spark
from conftest import SparkCluster
from dither.access.engines import open_engine
from dither.access.engines.spark import SparkEngine
from plan import agreement
from plan.benches import SparkBench


def vectors(engine: Any) -> list[list[int]]:
    return [engine.vector(measure, secret=3).tolist() for measure in agreement.MEASURES]


def on_cluster(path: Path, url: str, count: int) -> dict[str, Any]:
    """On a standalone cluster, which may have several workers."""
    session = SparkCluster(url, path).session()
    found = vectors(SparkEngine(on_spark(path), "4", session.newSession()))
    tally = agreement.random_plans(SparkBench(session.newSession()), count, seed=9, alone=12)
    tasks = session.sparkContext.parallelize(range(8), 8).map(_worker).collect()
    session.stop()
    return {"vectors": found, "plans": tally.plans, "neighbours": tally.neighbours, "workers": sorted(set(tasks))}


def _worker(_: int) -> str:
    """Where a task runs: each worker has a directory of its own."""
    time.sleep(0.3)
    return os.getcwd()


def through_connect(path: Path, url: str, count: int) -> dict[str, Any]:
    """Through Spark Connect, opened as a dataset's description would."""
    engine: Any = open_engine(on_spark(path, remote=url))
    found = vectors(engine)
    engine.close()
    tally = agreement.random_plans(SparkBench(engine._session), count, seed=10, alone=12)
    kind = type(engine._session).__module__
    engine._session.stop()
    return {"vectors": found, "plans": tally.plans, "neighbours": tally.neighbours, "session": kind}


if __name__ == "__main__":
    where, directory, address, wanted = sys.argv[1:]
    run = {"cluster": on_cluster, "connect": through_connect}[where]
    try:
        print(json.dumps(run(Path(directory), address, int(wanted))), flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of the client would wait for a server that waits for them
