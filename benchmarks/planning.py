"""Measure the CPU time of planning on the demonstration: from the text of a query to its cost.

    python benchmarks/planning.py [--rounds 200] [--profile]

A quote parses, plans, type-checks and costs a query and builds its SQL; nothing is read or charged. The first round
fills caches and is left out.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from statistics import median

import dither
from dither.examples.url_shares import generate
from dither.post.session import Session

DEMO = Path(generate.__file__).with_name("dataset.yml")
QUERIES = {
    "count by one key": "SELECT country, COUNT(*) AS n FROM users GROUP BY country",
    "count by one key, bound to be chosen": "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "average by one key": "SELECT country, AVG(age) AS a FROM users GROUP BY country",
}


def open_demo(folder: Path) -> Session:
    """Write a small demonstration, and open it."""
    description = folder / "dataset.yml"
    description.write_text(DEMO.read_text())
    generate.generate(folder / "data", 500, 100, 5.0, 1, quiet=True)
    return dither.connect(description, account="benchmark")


def cpu_milliseconds(session: Session, query: str, rounds: int) -> list[float]:
    """Return the CPU time of each quote."""
    times = []
    for _ in range(rounds + 1):
        start = time.process_time()
        session.quote(query, epsilon=1)
        times.append(1000 * (time.process_time() - start))
    return times[1:]


def main() -> None:
    """Print the median and the least CPU time of each query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        session = open_demo(Path(folder))
        for name, query in QUERIES.items():
            times = cpu_milliseconds(session, query, arguments.rounds)
            print(f"{name}: median {median(times):.2f} ms, least {min(times):.2f} ms")
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(cpu_milliseconds, session, QUERIES["count by one key"], arguments.rounds)
            pstats.Stats(profile).sort_stats("cumtime").print_stats(70)


if __name__ == "__main__":
    main()
