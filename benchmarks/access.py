"""User-level counts at 10M and 100M rows: the raw query, the ad hoc path, a prepared snapshot, and Spark on a cluster.

    python benchmarks/access.py                      # 10M and 100M rows, then Spark at 10M; about 12 GB of disk
    python benchmarks/access.py --rows 10000000 --no-spark
    python benchmarks/access.py --rows 10000000 --no-spark --shuffled

Each step runs in a process of its own; CPU seconds are of the query alone (all threads), the least of several runs;
memory is the peak of the process. The raw query is DuckDB's own GROUP BY of the same file by the same two keys: it
cleans nothing, orders nothing and bounds nobody. Files list one person after the other, as the example's generator
writes them, which suits a bound by person; --shuffled puts their rows in a random order. Data and snapshots are kept
and used again.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import duckdb
import numpy as np
import psutil
import typer

from dither.access.engines.duckdb import DuckDBEngine
from dither.access.snapshot import open_engine, prepare
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.schema import Dataset, Source, load

EXAMPLE = Path(__file__).resolve().parents[1] / "src" / "dither" / "examples" / "url_shares"
BOUND = 20
KEYS = (m.GroupKey("action", x.ColumnRef("action")), m.GroupKey("url_id", x.ColumnRef("url_id")))
FIRST, LAST = 1_552_000_000_000_000, 1_552_000_000_000_000 + 315_360_000_000  # 1% of the year
FEW = x.And((x.Compare(">=", x.ColumnRef("at"), x.Instant(FIRST)), x.Compare("<", x.ColumnRef("at"), x.Instant(LAST))))
MEASURES = {
    "all": m.Count(r.LimitRowsPerUnit(r.Scan("actions"), "user", BOUND), KEYS),
    "few": m.Count(r.LimitRowsPerUnit(r.Filter(r.Scan("actions"), FEW), "user", BOUND), KEYS),
}
RAW = {
    "all": "SELECT action, url_id, COUNT(*) FROM read_parquet(?) GROUP BY 1, 2",
    "few": "SELECT action, url_id, COUNT(*) FROM read_parquet(?)"
    f' WHERE "at" >= make_timestamp({FIRST}::BIGINT) AND "at" < make_timestamp({LAST}::BIGINT) GROUP BY 1, 2',
}
REPEATS, MOST_SECONDS = 3, 100


# ---------------------------------------------------------------- one step, in a process of its own


def step(name: str, which: str, directory: Path) -> dict[str, Any]:
    """Runs one step and says what it took."""
    data = described(directory)
    match name:
        case "prepare":
            return _timed(lambda: prepare(data), 1)
        case "raw":
            connection = duckdb.connect(config={"memory_limit": "4GB"})
            path = data.tables["actions"].source.options["path"]
            return _timed(lambda: _cells(connection.execute(RAW[which], [path]).fetchnumpy()), REPEATS)
        case "ad hoc":
            engine = DuckDBEngine(data)
        case _:
            engine = open_engine(data)
    engine.vector(m.Count(r.Scan("users")))  # whatever a first answer loads is not the query's
    return _timed(lambda: engine.vector(MEASURES[which]), REPEATS)


def _cells(found: dict[str, Any]) -> Any:
    return found["count_star()"].astype(np.int64)


def _timed(query: Any, repeats: int) -> dict[str, Any]:
    """The cheapest of several runs, as many as fit into some minutes, and a fingerprint of the integers."""
    best, answer, started = (float("inf"), float("inf")), None, time.perf_counter()
    for done in range(repeats):
        if done and time.perf_counter() - started > MOST_SECONDS:
            break
        wall, cpu = time.perf_counter(), time.process_time()
        answer = query()
        best = min(best, (time.process_time() - cpu, time.perf_counter() - wall))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"cpu": best[0], "wall": best[1], "peak_mb": peak}
    if isinstance(answer, np.ndarray):
        found |= {"total": int(answer.sum()), "digest": hashlib.sha256(answer.tobytes()).hexdigest()[:12]}
    return found


def run(name: str, which: str, directory: Path) -> dict[str, Any]:
    """One step in a fresh process."""
    _say(f"{name}, {which}")
    command = [sys.executable, __file__, "--step", name, "--which", which, "--data", str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"  {name:10} {which:4} {found['cpu']:8.2f} CPU s {found['wall']:8.2f} s {found['peak_mb']:7.0f} MB", flush=True
    )
    return found


# ---------------------------------------------------------------- data


def described(directory: Path) -> Dataset:
    """The description beside the data."""
    return load(directory / "dataset.yml")


def made(directory: Path, rows: int, shuffled: bool) -> int:
    """Makes the data unless they are there; returns the number of actions."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLE / "dataset.yml", directory)
    file = directory / "data" / "actions.parquet"
    if not file.exists():
        _say(f"making {rows:,} actions")
        command = [sys.executable, EXAMPLE / "generate.py", "--users", str(rows // 20), "--out", directory / "data"]
        subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        if shuffled:
            _shuffle(file)
    return int(duckdb.sql(f"SELECT COUNT(*) FROM '{file}'").fetchall()[0][0])


def _shuffle(file: Path) -> None:
    """Puts the rows of a file in an order that has nothing to do with people."""
    other = file.with_suffix(".shuffled")
    with duckdb.connect(config={"memory_limit": "3GB"}) as connection:
        rows = f"SELECT * FROM '{file}' ORDER BY hash(user_id, url_id, \"at\", action)"
        connection.execute(f"COPY ({rows}) TO '{other}' (FORMAT parquet, COMPRESSION zstd)")
    other.replace(file)


def _say(what: str) -> None:
    """Progress, with the clock."""
    print(f"  {time.strftime('%H:%M:%S')} {what}", flush=True)


# ---------------------------------------------------------------- Spark


@contextmanager
def cluster(scratch: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """A master and two workers, each a process of its own."""
    import pyspark

    home, port = Path(pyspark.__file__).parent, 17_077
    address = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(scratch / "local")}
    scratch.mkdir(parents=True, exist_ok=True)
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "2g"]
    commands = [["org.apache.spark.deploy.master.Master", *where, "--port", str(port)]]
    commands += [[*worker, "--work-dir", str(scratch / f"work{number}"), address] for number in (1, 2)]
    with (scratch / "cluster.log").open("wb") as log:
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number, command in enumerate(commands):
                line = [home / "bin" / "spark-class", *command]
                started.append(subprocess.Popen(line, stdout=log, stderr=log, env=environment))
                _await(scratch / "cluster.log", "Registering worker" if number else "elected leader", max(1, number))
            yield address, [psutil.Process(process.pid) for process in started]
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(timeout=60)


def _await(log: Path, what: str, times: int) -> None:
    """Waits until a log says something so many times."""
    for _ in range(600):
        if log.read_text(errors="replace").count(what) >= times:
            return
        time.sleep(0.2)
    raise SystemExit(f"the cluster did not start; see {log}")


def spark(directory: Path, wanted: dict[str, Any]) -> bool:
    """The same plan on a standalone cluster with two workers; whether it gives the same integers."""
    from pyspark.sql import SparkSession

    from dither.access.engines.spark import SparkEngine

    data = described(directory)
    _say("spark, all: starting a master and two workers")
    with cluster(directory / "spark") as (address, processes):
        settings = {
            "spark.executor.memory": "1500m",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
        }
        session = SparkSession.builder.master(address).appName("benchmark").config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        sources = {
            name: replace(t, source=Source("spark", {"path": t.source.options["path"], "master": address}))
            for name, t in data.tables.items()
        }
        engine = SparkEngine(replace(data, tables=sources), "8", session)
        _say("spark, all: asking")
        wall, cpu = time.perf_counter(), _cpu(processes)
        vector = engine.vector(MEASURES["all"])
        took = time.perf_counter() - wall, _cpu(processes) - cpu
        workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        session.stop()
    same = hashlib.sha256(vector.tobytes()).hexdigest()[:12] == wanted["digest"]
    print(f"  spark      all  {took[1]:8.2f} CPU s {took[0]:8.2f} s, {workers} executors, same integers: {same}")
    return same


def _cpu(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes and of everything below them, and of this one's Java."""
    tree = [p for top in [*processes, psutil.Process()] for p in [top, *top.children(recursive=True)]]
    times = [p.cpu_times() for p in set(tree)]
    return sum(t.user + t.system for t in times)


# ---------------------------------------------------------------- all


def compare(directory: Path, rows: int, shuffled: bool) -> dict[str, dict[str, Any]]:
    """All steps at one size."""
    actions = made(directory, rows, shuffled)
    print(f"\n{actions:,} actions of {rows // 20:,} people", flush=True)
    found = {f"{name} {which}": run(name, which, directory) for name in ("raw", "ad hoc") for which in RAW}
    found["prepare all"] = run("prepare", "all", directory)
    return found | {f"prepared {which}": run("prepared", which, directory) for which in RAW}


def judged(found: dict[str, dict[str, Any]]) -> dict[str, tuple[bool, str]]:
    """What must hold at one size."""
    raw, few = found["raw all"], found["raw few"]
    fast, slow = found["prepared all"]["cpu"] / raw["cpu"], found["ad hoc all"]["cpu"] / raw["cpu"]
    lost = {name: 1 - found[f"{name} few"]["total"] / few["total"] for name in ("ad hoc", "prepared")}
    peak = max(found["ad hoc all"]["peak_mb"], found["prepared all"]["peak_mb"])
    same = all(found[f"ad hoc {which}"]["digest"] == found[f"prepared {which}"]["digest"] for which in RAW)
    return {
        "prepared <= 1.3 x raw CPU": (fast <= 1.3, f"{fast:.2f} x"),
        "ad hoc <= 20 x raw CPU": (slow <= 20, f"{slow:.1f} x"),
        "under 4 GB": (peak < 4096, f"{peak:.0f} MB"),
        "bias under a 1% filter, prepared <= ad hoc": (
            lost["prepared"] <= lost["ad hoc"],
            f"{lost['prepared']:.3%} and {lost['ad hoc']:.3%} of the rows lost",
        ),
        "the same integers on both paths": (same, found["prepared all"]["digest"]),
    }


def growth(small: dict[str, dict[str, Any]], large: dict[str, dict[str, Any]]) -> Iterator[Any]:
    """CPU of each step at the large size against the small one, by the rows that there are."""
    factor = large["raw all"]["total"] / small["raw all"]["total"]
    for name in ("ad hoc all", "prepared all", "prepare all"):
        ratio = large[name]["cpu"] / small[name]["cpu"] / factor
        yield f"growth of '{name}' <= linear x 1.2", (ratio <= 1.2, f"linear x {ratio:.2f}")


def main(
    rows: Annotated[list[int], typer.Option(help="sizes, in actions")] = [10_000_000, 100_000_000],  # noqa: B006
    data: Annotated[Path, typer.Option(help="where the data go; kept")] = Path("/tmp/dither-benchmark"),
    with_spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="also on a Spark cluster, at the first size")
    ] = True,
    shuffled: Annotated[bool, typer.Option("--shuffled", help="rows in a random order, not person by person")] = False,
    step_name: Annotated[str, typer.Option("--step", hidden=True)] = "",
    which: Annotated[str, typer.Option(hidden=True)] = "all",
) -> None:
    """Compare, and fail where a bound is missed."""
    if step_name:
        print(json.dumps(step(step_name, which, data)))
        return
    places = {size: data / (f"{size}-shuffled" if shuffled else str(size)) for size in rows}
    found = {size: compare(places[size], size, shuffled) for size in rows}
    verdicts = {f"{size:,}: {what}": verdict for size in rows for what, verdict in judged(found[size]).items()}
    if len(rows) == 2:
        verdicts |= dict(growth(found[rows[0]], found[rows[1]]))
    if with_spark:
        same = spark(places[rows[0]], found[rows[0]]["ad hoc all"])
        verdicts[f"{rows[0]:,}: Spark on a cluster gives the same integers"] = (same, "")
    print()
    for what, (holds, figure) in verdicts.items():
        print(f"{'ok    ' if holds else 'MISSED'} {what}: {figure}")
    raise SystemExit(0 if all(holds for holds, _ in verdicts.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
