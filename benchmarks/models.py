"""Measure models and synthetic data: coverage of intervals, accuracy beside diffprivlib, marginals beside SmartNoise.

python benchmarks/models.py regression    10,000 redraws of the noise of a regression on a million rows, epsilon 1
python benchmarks/models.py flights       a regression with planes as units beside diffprivlib's with rows as units
python benchmarks/models.py logistic      accuracy at epsilon 1 on 100,000 rows beside diffprivlib, and by person
python benchmarks/models.py synthetic     three-way marginals of randhie beside SmartNoise's MST
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import peer
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from scipy import stats

import dither
from dither.access.engines import open_engine
from dither.post.session import Session
from dither.post.statistics.design import read_columns
from dither.post.statistics.joint import JointTable, fit_tree
from dither.post.statistics.linear import fit_linear, moment_plan, raw_fit
from dither.post.statistics.source_rows import read_rows
from dither.post.statistics.steps import additive, expected_noise
from dither.privacy.accounting.conversion import largest_rho
from dither.privacy.protocol import Measurement

PEERS = Path(__file__).parent / "peers"
SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {}
HEAD = "version: 1\nname: bench\npopulation: bench\ndata_version: '1'\n"


def section(function: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Register a section under the name of its function."""
    SECTIONS[function.__name__] = function
    return function


def open_table(folder: Path, table: pa.Table, columns: Sequence[str], unit: str, budget: str) -> Session:
    """Write a table and its description, and open a session on it."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "t.parquet")
    listed = "\n".join(f"      {line}" for line in columns)
    budgets = f"  - {{unit: unit, kind: {budget}}}\n"
    source = f"  t:\n    private: true\n    source: {{kind: parquet, path: t.parquet}}\n    columns:\n{listed}\n"
    text = f"{HEAD}units:\n  unit: {unit}\nbudgets:\n{budgets}tables:\n{source}"
    (folder / "dataset.yml").write_text(text)
    return dither.connect(folder / "dataset.yml", account="benchmark")


ROWS = "{kind: row, tables: [t]}"
PURE = "pure, epsilon: 1000"


@section
def regression(options: argparse.Namespace) -> None:
    """Redraw the noise of one regression; count the intervals that cover the exact coefficients."""
    random, rows = np.random.default_rng(1), 1_000_000
    age = random.integers(18, 91, rows)
    hours = np.clip(random.normal(40, 9, rows), 0, 100).round()
    tenure = np.clip(random.exponential(6, rows), 0, 50).round()
    pay = np.clip(400 + 9 * age + 11 * hours + 14 * tenure + random.normal(0, 80, rows), 0, 6000).round()
    columns = ["age: {type: integer, min: 18, max: 90}", "hours: {type: integer, min: 0, max: 100}"]
    columns += ["tenure: {type: integer, min: 0, max: 50}", "pay: {type: integer, min: 0, max: 6000}"]
    table = pa.table({"age": age, "hours": hours.astype(int), "tenure": tenure.astype(int), "pay": pay.astype(int)})
    with tempfile.TemporaryDirectory() as name:
        session = open_table(Path(name), table, columns, ROWS, PURE)
        source, names = read_rows(session, "t", {"epsilon": 1}), ["age", "hours", "tenure", "pay"]
        plan = moment_plan(source, names, read_columns(source, names), "declared")
        measure = plan.measure()
        noise = expected_noise(
            session.context,
            "unit",
            Measurement(measure, additive(source.settings, measure, source.settings.spend.loss)),
        )
        engine = open_engine(dither.load(Path(name) / "dataset.yml"))
        exact = np.asarray(engine.vector(measure), float)
        engine.close()
    step = float(measure.steps(session.context)[0])
    matrix = np.column_stack([np.ones(rows), age, hours, tenure])
    truth, scaling = np.linalg.lstsq(matrix, pay, rcond=None)[0], plan.design.scaling({})
    aware, naive, widths = [], [], []
    normal = stats.norm.ppf(0.975)
    for _ in range(options.redraws):
        noisy = (exact + np.rint(random.laplace(0, noise.std / step / np.sqrt(2), len(exact)))) * step
        moments = plan.read(noisy, noise, {})
        fit = fit_linear(moments, np.zeros(4))
        raw = raw_fit(fit, moments, scaling, 0.95, population=False)
        aware.append((raw.lows <= truth) & (truth <= raw.highs))
        sampling = np.sqrt(np.diag(np.linalg.inv(fit.gram)) * fit.residual / moments.count)
        sampling[1:] *= scaling.scales[-1] / scaling.scales[:-1]
        naive.append(np.abs(raw.values[1:] - truth[1:]) <= normal * sampling[1:])
        widths.append((raw.highs - raw.lows) / 2)
    print(f"exact coefficients (intercept, age, hours, tenure): {np.round(truth, 3).tolist()}")
    print(f"half widths of 95% intervals: {np.round(np.mean(widths, axis=0), 3).tolist()}")
    print(f"coverage over {options.redraws:,} redraws, noise-aware: {np.mean(aware, axis=0).tolist()}")
    print(f"coverage of naive intervals (age, hours, tenure): {np.mean(naive, axis=0).tolist()}")


def real_data(folder: Path) -> None:
    """Write the real data sets into a folder."""
    print("rows:", peer.run("real-data", PEERS / "real_data.py", [str(folder)]).result)


@section
def flights(options: argparse.Namespace) -> None:
    """Regress arrival delays with planes as units, and beside it diffprivlib's with single flights as units."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real_data(folder)
        table = pq.read_table(folder / "flights.parquet")
        numbers = {"dep_delay": (-60, 1320), "distance": (0, 5000), "air_time": (0, 720), "arr_delay": (-120, 1320)}
        data = np.column_stack([np.array(table.column(column), float) for column in numbers])
        columns = ["tailnum: {type: identifier, kind: text}"]
        columns += [f"{column}: {{type: integer, min: {low}, max: {high}}}" for column, (low, high) in numbers.items()]
        shown = table.select(["tailnum"]).append_column("dep_delay", pa.array(data[:, 0].astype(int)))
        for place, column in list(enumerate(numbers))[1:]:
            shown = shown.append_column(column, pa.array(data[:, place].astype(int)))
        session = open_table(folder / "planes", shown, columns, "{kind: user, keys: {t: tailnum}}", PURE)
        design = np.column_stack([np.ones(len(data)), data[:, :-1]])
        truth = np.linalg.lstsq(design, data[:, -1], rcond=None)[0]
        features = list(numbers)[:-1]
        ours = []
        for repeat in range(options.repeats):
            model = session.regress("t", "arr_delay", features, epsilon=1, repeat=repeat)
            ours.append([model.intercept_, *model.coef_])
        bounds = np.array(list(numbers.values()), float).T
        np.savez(folder / "linear.npz", x=data[:, :-1], y=data[:, -1], bounds=bounds)
        arguments = ["linear", str(folder / "linear.npz"), str(options.repeats)]
        theirs = peer.run("diffprivlib", PEERS / "diffprivlib_models.py", arguments).result

        def explained(coefficients: Sequence[float]) -> float:
            left = data[:, -1] - design @ np.array(coefficients)
            return float(1 - left.var() / data[:, -1].var() - (left.mean() ** 2) / data[:, -1].var())

        print(
            f"terms: intercept, {', '.join(features)}; exact {np.round(truth, 4).tolist()}, R2 {explained(truth):.4f}"
        )
        print(f"stated standard errors by noise of the last run: {np.round(model.std_errors_, 4).tolist()}")
        for who, found in (("dither, planes as units", ours), ("diffprivlib, rows as units", theirs)):
            error = np.sqrt(((np.array(found) - truth) ** 2).mean(axis=0))
            scores = [explained(each) for each in found]
            print(
                f"{who}: rmse {np.round(error, 4).tolist()}; R2 median {np.median(scores):.4f}, least {min(scores):.4f}"
            )


def newton(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fit a logistic regression without privacy."""
    weights = np.zeros(matrix.shape[1])
    for _ in range(25):
        chance = 1 / (1 + np.exp(-matrix @ weights))
        curvature = (matrix * (chance * (1 - chance))[:, None]).T @ matrix + 1e-6 * np.eye(len(weights))
        weights -= np.linalg.solve(curvature, matrix.T @ (chance - target))
    return weights


@section
def logistic(options: argparse.Namespace) -> None:
    """Accuracy on held-out rows at epsilon 1: without privacy, by Dither, by diffprivlib, and by Dither for persons."""
    random, rows, size = np.random.default_rng(2), 100_000, 10
    mixing = np.eye(size) + 0.3 * random.normal(size=(size, size))
    data = np.clip(random.normal(size=(2 * rows, size)) @ mixing, -6, 6).round(2)
    weights = random.normal(0, 0.6, size)
    target = random.random(2 * rows) < 1 / (1 + np.exp(-(data @ weights - 0.4)))
    names = [f"x{place}" for place in range(size)]
    whole = {name: data[:rows, place] for place, name in enumerate(names)}
    test = {name: data[rows:, place].tolist() for place, name in enumerate(names)} | {"y": target[rows:].tolist()}
    matrix = np.column_stack([np.ones(2 * rows), data])
    fitted = newton(matrix[:rows], target[:rows])
    plain = float(np.mean((matrix[rows:] @ fitted > 0) == target[rows:]))
    columns = [f"{name}: {{type: decimal, min: -6, max: 6, step: 0.01}}" for name in names]
    columns += ["y: {type: boolean}", "person: {type: identifier, kind: integer}"]
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for persons, label in ((rows, "dither, single rows"), (2_000, "dither, 2,000 persons of 50 rows on average")):
            table = pa.table({**whole, "y": target[:rows], "person": random.integers(0, persons, rows)})
            unit = ROWS if persons == rows else "{kind: user, keys: {t: person}}"
            session = open_table(Path(folder) / str(persons), table, columns, unit, PURE)
            for repeat in range(options.repeats):
                start = time.time()
                model = session.classify("t", "y", names, epsilon=1, repeat=repeat)
                scores.setdefault(label, []).append(model.score(test))
                seconds = time.time() - start
            print(f"{label}: {seconds:.1f} s for the last")
        np.savez(Path(folder) / "l.npz", x=data[:rows], y=target[:rows], x_test=data[rows:], y_test=target[rows:])
        arguments = ["logistic", str(Path(folder) / "l.npz"), str(options.repeats)]
        result = peer.run("diffprivlib", PEERS / "diffprivlib_models.py", arguments).result
        scores["diffprivlib, single rows"] = result
    print(f"without privacy: accuracy {plain:.4f}")
    for who, found in scores.items():
        print(f"{who}: accuracy mean {np.mean(found):.4f}, least {min(found):.4f} of {len(found)} runs")


BINS = {"mdvis": [1, 2, 3, 4, 6, 9, 14], "lncoins": 1.0, "lpi": 1.0, "fmde": 1.0, "physlm": 0.5, "disea": 10.0}
SIZES = {"mdvis": 8, "lncoins": 5, "idp": 2, "lpi": 8, "fmde": 9, "physlm": 2, "disea": 6, "hlthg": 2, "hlthf": 2}
SIZES |= {"hlthp": 2}


def coded(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the columns of randhie as whole numbers: bins of a public width, or the values 0 and 1."""
    found = {}
    for name in SIZES:
        values, bins = np.array(table.column(name), float), BINS.get(name, 1.0)
        places = np.searchsorted(bins, values, side="right") if isinstance(bins, list) else values // bins
        found[name] = np.clip(places, 0, SIZES[name] - 1).astype(int)
    return found


def marginal(data: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the shares of all combinations of some columns."""
    shape = [SIZES[name] for name in names]
    places = np.ravel_multi_index([np.asarray(data[name], int) for name in names], shape)
    return np.bincount(places, minlength=int(np.prod(shape))) / len(places)


@section
def synthetic(options: argparse.Namespace) -> None:
    """Mean total variation distance of all three-way marginals of randhie, at epsilon 1 and delta 1e-9."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real_data(folder)
        data = coded(pq.read_table(folder / "randhie.parquet"))
        rho = largest_rho(Fraction(1), Fraction(1, 10**9))
        columns = [f"{column}: {{type: integer, min: 0, max: {size - 1}}}" for column, size in SIZES.items()]
        triples = list(combinations(SIZES, 3))
        truth = [marginal(data, names) for names in triples]

        def distance(made: dict[str, np.ndarray]) -> float:
            gaps = [np.abs(marginal(made, n) - t).sum() / 2 for n, t in zip(triples, truth, strict=True)]
            return float(np.mean(gaps))

        for label, budget, spend in (
            ("dither, zCDP (epsilon 1, delta 1e-9)", "zcdp, rho: 1000", {"rho": rho}),
            ("dither, pure epsilon 1", PURE, {"epsilon": 1}),
        ):
            session = open_table(folder / budget[:4], pa.table(data), columns, ROWS, budget)
            found = []
            for repeat in range(options.repeats):
                made = session.synthesize("t", list(SIZES), repeat=repeat, **spend)
                found.append(distance({column: np.array(made.rows.column(column)) for column in SIZES}))
            print(f"{label}: mean distance {np.mean(found):.4f}, largest {max(found):.4f} of {len(found)} runs")
        sizes = list(SIZES.values())
        full = np.bincount(np.ravel_multi_index(list(data.values()), sizes), minlength=int(np.prod(sizes)))
        exact = JointTable(full.reshape(sizes) / full.sum())
        pairs = {pair: exact.pair(*pair) * full.sum() for pair in combinations(range(len(sizes)), 2)}
        drawn = fit_tree(sizes, pairs).draw(int(full.sum()), np.random.default_rng(0)).astype(int)
        tree = distance({column: drawn[:, place] for place, column in enumerate(SIZES)})
        print(f"the best tree of pairs without any noise, which no MST can beat by much: {tree:.4f}")
        pyarrow.csv.write_csv(pa.table(data), folder / "in.csv")
        theirs = []
        for _ in range(min(options.repeats, 2)):
            arguments = [str(folder / "in.csv"), str(folder / "out.csv"), "1"]
            told = peer.run("smartnoise-synth", PEERS / "smartnoise_mst.py", arguments).result
            out = pyarrow.csv.read_csv(folder / "out.csv")
            theirs.append(distance({column: np.array(out.column(column)) for column in SIZES}))
        print(f"SmartNoise MST ({json.dumps(told)}): mean distance {np.mean(theirs):.4f} of {len(theirs)} runs")


def main() -> None:
    """Run the sections that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS])
    parser.add_argument("--redraws", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.sections or SECTIONS:
        print(f"\n== {name}", flush=True)
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
