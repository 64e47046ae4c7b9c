"""The static release of the codebook on Spark, beside a plain Spark job that writes the same full key set exactly.

    python benchmarks/release_spark.py                                 # 200,000 people, 1,000 links: 6 million rows
    python benchmarks/release_spark.py --users 50000 --urls 250 --repeats 1
    python benchmarks/release_spark.py --local                         # Spark inside this process, not a cluster

Spark is a standalone cluster with two workers of one core on two loopback addresses, each a process of its own. Both
jobs run in one application, in turns. CPU seconds are of everything: driver, JVMs, Python workers. The first round is
cold: JVMs compile, and Python workers start. The plain job reads the same files, joins people to their actions,
counts by key and column, joins the counts to all keys and writes Parquet with zstd; it cleans no value. The release
cleans values, writes the exact cells to private files, draws the noise of each value, checks and publishes the files.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import pyarrow.parquet as pq
import pyspark
import typer
from pyspark.sql import SparkSession

from dither.examples.url_shares.codebook_data import generate
from dither.release.api import open_release
from dither.release.spec import load_spec

EXAMPLE = Path(__file__).resolve().parents[1] / "src" / "dither" / "examples" / "url_shares"
BRACKETS = (
    "CASE WHEN age IS NULL THEN 'NA' WHEN age < 25 THEN '18-24' WHEN age < 35 THEN '25-34' WHEN age < 45 THEN '35-44'"
    " WHEN age < 55 THEN '45-54' WHEN age < 65 THEN '55-64' ELSE '65+' END"
)
KEYS = {
    "year_month": [f"{2017 + month // 12}-{month % 12 + 1:02d}" for month in range(32)],
    "country": ["US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other"],
    "age_bracket": ["18-24", "25-34", "35-44", "45-54", "55-64", "65+", "NA"],
    "gender": ["male", "female", "other"],
}


def cpu_seconds() -> float:
    """The CPU seconds of this process and of all that it has started, also of those that have ended."""
    this, total = psutil.Process(), 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def write_plainly(session: SparkSession, data: Path, columns: dict[str, str], out: Path) -> None:
    """Write the full key set with the exact counts, as an ordinary Spark program would."""
    for table in ("urls", "users", "actions"):
        session.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(f"plain_{table}")
    counts = ", ".join(f"COUNT(CASE WHEN {where} THEN 1 END) AS {name}" for name, where in columns.items())
    grouped = session.sql(
        f"SELECT url_id AS url, date_format(at, 'yyyy-MM') AS year_month, country, {BRACKETS} AS age_bracket, gender,"
        f" {counts} FROM plain_actions JOIN plain_users USING (user_id) GROUP BY 1, 2, 3, 4, 5"
    )
    keys = session.sql("SELECT url_id AS url FROM plain_urls")
    for name, values in KEYS.items():
        listed = ", ".join(f"('{value}')" for value in values)
        keys = keys.crossJoin(session.sql(f"SELECT /*+ BROADCAST(t) */ * FROM VALUES {listed} AS t({name})"))
    full = keys.join(grouped, ["url", *KEYS], "left").fillna(0, list(columns))
    full.write.option("compression", "zstd").parquet(str(out))


def write_description(folder: Path, repeat: int) -> Path:
    """Write the release without admission, read by Spark, with a budget for many of them."""
    dataset = (EXAMPLE / "codebook_dataset.yml").read_text()
    for table in ("urls", "users", "actions"):
        path = f"codebook_data/{table}.parquet"
        dataset = dataset.replace(f"kind: parquet, path: {path}", f"kind: spark, path: {folder / path}")
    (folder / "codebook_dataset.yml").write_text(dataset.replace("rho: 1/10", "rho: 100"))
    lines = (EXAMPLE / "release.yml").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("admission:")) + f"\nrepeat: {repeat}\n"
    (folder / "release.yml").write_text(text)
    return folder / "release.yml"


@dataclass(frozen=True)
class Spent:
    """The cost of one job: CPU and wall seconds."""

    cpu: float
    wall: float


def timed(job: Callable[[], Any]) -> Spent:
    """Run a job and return what it took."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    job()
    return Spent(cpu_seconds() - cpu, time.perf_counter() - wall)


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers of one core as children of this process, and yield the master's address."""
    home, log = Path(pyspark.__file__).parent, folder / "cluster.log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address, package = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    web = ["--webui-port", "0", "--host"]
    commands = [[f"{package}.master.Master", *web, "127.0.0.1", "--port", port]]
    for number in (1, 2):
        size = ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / f"work{number}")]
        commands.append([f"{package}.worker.Worker", *web, f"127.0.0.{1 + number}", *size, address])
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with log.open("ab") as output:
                started.append(subprocess.Popen([home / "bin" / "spark-class", *command], stdout=output, stderr=output))
            wait_for(log, "Registering worker" if number else "elected leader", max(1, number))
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


def wait_for(log: Path, text: str, times: int, seconds: float = 180) -> None:
    """Wait until a log has a text."""
    until = time.monotonic() + seconds
    while log.read_text(errors="replace").count(text) < times:
        if time.monotonic() > until:
            raise SystemExit(f"the cluster did not start; see {log}")
        time.sleep(0.2)


def start_session(folder: Path, master: str) -> SparkSession:
    """Start the driver of Spark in this process."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g" if master.startswith("spark:") else "2g",
        "spark.executor.memory": "1200m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@dataclass(frozen=True)
class Round:
    """What both jobs took once."""

    plain: Spent
    release: Spent


def run_round(session: SparkSession, folder: Path, number: int) -> Round:
    """Run both jobs, the plain one first; check that they wrote the same number of rows."""
    spec = write_description(folder, number)
    columns = {column.name: str(column.where) for column in load_spec(spec).columns}
    plain = timed(lambda: write_plainly(session, folder / "codebook_data", columns, folder / "plain"))

    def release() -> None:
        with open_release(spec) as static:
            static.write(folder / "release")

    made = timed(release)
    rows = [count_rows(folder / name) for name in ("plain", "release")]
    if rows[0] != rows[1]:
        raise ValueError(f"the plain job wrote {rows[0]} rows, the release {rows[1]}")
    for name in ("plain", "release"):
        shutil.rmtree(folder / name)
    typer.echo(
        f"round {number}: plain {plain.cpu:.1f} CPU s ({plain.wall:.1f} s),"
        f" release {made.cpu:.1f} CPU s ({made.wall:.1f} s)"
    )
    return Round(plain, made)


def count_rows(folder: Path) -> int:
    """The rows of all Parquet files below a folder."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def main(
    users: Annotated[int, typer.Option(min=1, help="number of people")] = 200_000,
    urls: Annotated[int, typer.Option(min=1, help="number of links")] = 1_000,
    repeats: Annotated[int, typer.Option(min=1, help="warm rounds")] = 3,
    local: Annotated[bool, typer.Option("--local", help="Spark in this process, with two threads")] = False,
) -> None:
    """Measure the release beside the plain job."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        actions = generate(folder / "codebook_data", users, urls, 20.0)
        with nullcontext("local[2]") if local else cluster(folder) as master:
            session = start_session(folder, master)
            cold, *warm = [run_round(session, folder, number) for number in range(1, 2 + repeats)]
            session.stop()
    plain, made = median(each.plain.cpu for each in warm), median(each.release.cpu for each in warm)
    lines = [
        "| | CPU s, cold | CPU s, warm (median) | ratio, warm |",
        "|---|---|---|---|",
        f"| plain Spark job, full key set | {cold.plain.cpu:.1f} | {plain:.1f} | 1 |",
        f"| `dither release` | {cold.release.cpu:.1f} | {made:.1f} | {made / plain:.2f} |",
    ]
    where = "in the driver's process" if local else "a standalone cluster of two workers"
    typer.echo(
        f"{date.today()}, Spark {pyspark.__version__}, Python {platform.python_version()}, {where}: {actions:,}"
        f" actions, {urls:,} links, {urls * 6048:,} rows with 14 columns; {repeats} warm rounds\n" + "\n".join(lines)
    )


if __name__ == "__main__":
    typer.run(main)
