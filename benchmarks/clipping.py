"""CPU of user-level counts with default bounds, beside the bare query in DuckDB, on bare files and on prepared data.

    python benchmarks/clipping.py [--users 1000000] [--directory DIR]

The data are those of examples/url_shares: about 17 rows a person, some with hundreds, a public cap of 500. Every
question is asked once at epsilon 1 with Dither's defaults: it finds a bound privately and answers, two passes over the
records in one charge. CPU is that of the whole process (planning, charge, both passes, noise, estimates), in seconds
and as a multiple of DuckDB's own query over the same files, which bounds nobody and is the least of three runs.
`--uncapped` leaves the public cap out of the description.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb

import dither
from dither.access.snapshot import prepare
from dither.schema import load

EXAMPLE = Path(__file__).resolve().parents[1] / "src" / "dither" / "examples" / "url_shares"
QUESTIONS = {
    "link x action": "SELECT url_id, action, COUNT(*) AS n FROM actions GROUP BY url_id, action",
    "domain, public join": "SELECT domain, COUNT(*) AS n FROM actions JOIN urls USING (url_id) GROUP BY domain",
    "action": "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "country, private join": "SELECT country, COUNT(*) AS n FROM actions JOIN users USING (user_id) GROUP BY country",
}
CAP = "    max_rows: {actions: 500}"


def make_data(directory: Path, users: int, uncapped: bool) -> Path:
    """Generate the records and write a description with a budget for every question; return its path."""
    command = [sys.executable, EXAMPLE / "generate.py", "--users", str(users), "--out", directory / "data", "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (EXAMPLE / "dataset.yml").read_text().replace("epsilon: 4}", "epsilon: 400}").splitlines()
    description = directory / "dataset.yml"
    description.write_text("\n".join(line for line in lines if not (uncapped and line.startswith(CAP))))
    return description


def cpu_of_raw(directory: Path, question: str) -> float:
    """Return the least CPU seconds of three runs of the bare query."""
    with duckdb.connect() as database:
        for table in ("actions", "urls", "users"):
            database.execute(f"CREATE VIEW {table} AS SELECT * FROM '{directory}/data/{table}.parquet'")
        return min(cpu_of(lambda: database.execute(question).fetchnumpy()) for _ in range(3))


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def ask_all(description: Path, raw: dict[str, float], kind: str, repeat: int) -> None:
    """Ask every question in a new session, and print what each took."""
    session = dither.connect(description)
    session.sql("SELECT COUNT(*) AS n FROM users", epsilon=1)  # what a first answer loads is not the question's
    for name, question in QUESTIONS.items():
        seconds = cpu_of(partial(session.sql, question, epsilon=1, repeat=repeat))
        print(f"| {name} | {kind} | {raw[name]:.3f} | {seconds:.2f} | {seconds / raw[name]:.1f} x |", flush=True)


def main() -> None:
    """Make the data, measure the bare queries, then ask on bare files and on prepared data."""
    parser = argparse.ArgumentParser(description="CPU of clipped counts beside the bare query")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--uncapped", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch)
        description = make_data(directory, options.users, options.uncapped)
        rows = duckdb.sql(f"SELECT COUNT(*) FROM '{directory}/data/actions.parquet'").fetchall()[0][0]
        print(
            f"{rows:,} rows of {options.users:,} people\n\n| question | data | raw | Dither | |\n|---|---|---|---|---|"
        )
        raw = {name: cpu_of_raw(directory, question) for name, question in QUESTIONS.items()}
        ask_all(description, raw, "bare files", 0)
        prepare(load(description))
        ask_all(description, raw, "prepared", 1)


if __name__ == "__main__":
    main()
