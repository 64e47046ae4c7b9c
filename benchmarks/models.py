"""Measure models and synthetic data: coverage of intervals, accuracy beside diffprivlib, marginals beside SmartNoise.

python benchmarks/models.py regression    cover of 10,000 redrawn regressions on a million rows, epsilon 1
python benchmarks/models.py flights       a regression with planes as units beside diffprivlib's with rows as units
python benchmarks/models.py logistic      accuracy at epsilon 1 on 100,000 rows beside diffprivlib, and by person
python benchmarks/models.py synthetic     three-way marginals of randhie beside SmartNoise's MST
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from dither.access.engines import Engine, open_engine
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.traversal import fill_values
from dither.post.session import Session
from dither.post.statistics.design import Scaling, read_columns
from dither.post.statistics.joint import JointTable, fit_tree
from dither.post.statistics.linear import fit_linear, moment_plan, raw_fit
from dither.post.statistics.moments import MomentPlan, Moments, searches_with_shares
from dither.post.statistics.source_rows import read_rows
from dither.post.statistics.steps import additive, expected_noise
from dither.privacy.accounting.conversion import largest_rho
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import calibrate
from dither.privacy.protocol import BoundSearch, Measurement, ReleasedMeasurement
from dither.privacy.search_rules import choose_values

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


@dataclass(frozen=True)
class Workers:
    """Made-up columns, the last of which is regressed on the others, and their declared ranges."""

    columns: dict[str, np.ndarray]
    ranges: dict[str, tuple[int, int]]
    step: str = "1"

    @property
    def described(self) -> list[str]:
        """The columns in the description of a dataset."""
        kind = "integer" if self.step == "1" else "decimal"
        step = "" if self.step == "1" else f", step: {self.step}"
        return [f"{name}: {{type: {kind}, min: {low}, max: {high}{step}}}" for name, (low, high) in self.ranges.items()]

    @property
    def truth(self) -> np.ndarray:
        """The exact coefficients of the last column on the others, the intercept first."""
        *features, target = self.columns.values()
        return np.asarray(np.linalg.lstsq(np.column_stack([np.ones(len(target)), *features]), target, rcond=None)[0])


def workers(rows: int) -> Workers:
    """Return ages, hours, tenures and pay in whole numbers, in ranges that fit; only pay has many steps."""
    random = np.random.default_rng(1)
    age = random.integers(18, 91, rows)
    hours = np.clip(random.normal(40, 9, rows), 0, 100).round()
    tenure = np.clip(random.exponential(6, rows), 0, 50).round()
    pay = np.clip(400 + 9 * age + 11 * hours + 14 * tenure + random.normal(0, 80, rows), 0, 6000).round()
    columns = {"age": age.astype(float), "hours": hours, "tenure": tenure, "pay": pay}
    return Workers(columns, {"age": (18, 90), "hours": (0, 100), "tenure": (0, 50), "pay": (0, 6000)})


def wide_workers(rows: int, times: int) -> Workers:
    """Return the same columns with a step of 0.01, in ranges this many times as long as they are."""
    narrow = workers(rows)
    ranges = {name: (0, times * high) for name, (_, high) in narrow.ranges.items()}
    return Workers(narrow.columns, ranges, "0.01")


def incomes(rows: int, times: int) -> Workers:
    """Return a lognormal income and the part of it that is spent, in ranges this many times as long as they are."""
    random = np.random.default_rng(2)
    income = np.exp(random.normal(10.5, 0.8, rows)).round()
    spent = np.maximum(0, 5000 + 0.3 * income + random.normal(0, 4000, rows)).round()
    most = {name: times * int(values.max()) for name, values in (("income", income), ("spent", spent))}
    return Workers({"income": income, "spent": spent}, {name: (0, high) for name, high in most.items()})


@dataclass
class Redraws:
    """Draws whole requests again, searches and sums, from exact vectors that are read once for each choice."""

    context: Context
    plan: MomentPlan
    engine: Engine
    exact: dict[Measure, np.ndarray] = field(default_factory=dict)

    def read(self, measure: Measure) -> np.ndarray:
        """Return the exact vector of a measure."""
        if measure not in self.exact:
            self.exact[measure] = np.asarray(self.engine.vector(measure), np.int64)
        return self.exact[measure]

    def choose(self, searches: Sequence[BoundSearch]) -> dict[str, int]:
        """Draw the values that searches choose, as a kernel does."""
        chosen: dict[str, int] = {}
        for search in searches:
            measure, wanted = fill_values(search.histogram, chosen), search.mechanism
            sensitivity = measure.sensitivity(self.context, "unit")
            made = calibrate(wanted.kind, wanted.loss, sensitivity, **dict(wanted.options))
            values = tuple(map(int, made.release(self.read(measure), SystemBits())))
            released = ReleasedMeasurement(
                values, measure.steps(self.context), (len(values),), None, made, sensitivity, made.loss(sensitivity), ()
            )
            chosen |= choose_values(search, released, chosen)
        return chosen

    def draw(self, random: np.random.Generator) -> tuple[Moments, Scaling]:
        """Draw noisy moments with their scaling."""
        searches, share = searches_with_shares(self.plan)
        settings, measure = self.plan.settings, self.plan.measure()
        noise = expected_noise(
            self.context, "unit", Measurement(measure, additive(settings, measure, settings.spend.share(share)))
        )
        chosen, step = self.choose(searches), float(measure.steps(self.context)[0])
        exact = self.read(fill_values(measure, chosen))
        noisy = (exact + np.rint(random.laplace(0, noise.std / step / np.sqrt(2), len(exact)))) * step
        return self.plan.read(noisy, noise, chosen), self.plan.design.scaling(chosen)


@section
def regression(options: argparse.Namespace) -> None:
    """Redraw whole regressions; count the intervals that cover the exact coefficients of all values."""
    rows, few = 1_000_000, max(1, options.redraws // 5)
    for label, made, standard, redraws in (
        ("ranges that fit", workers(rows), "declared", options.redraws),
        ("ranges that fit", workers(rows), None, options.redraws),
        ("ranges 10 times as long, 0.01 steps", wide_workers(rows, 10), None, few),
        ("ranges 1,000 times as long, 0.01 steps", wide_workers(rows, 1000), None, few),
        ("incomes, ranges 100 times as long", incomes(rows, 100), None, few),
    ):
        print(f"-- {label}, {standard or 'the default'}: {redraws:,} redraws", flush=True)
        with tempfile.TemporaryDirectory() as name:
            table = pa.table({name: pa.array(values) for name, values in as_described(made).items()})
            session = open_table(Path(name), table, made.described, ROWS, PURE)
            source, names = read_rows(session, "t", {"epsilon": 1}), list(made.columns)
            plan = moment_plan(source, names, read_columns(source, names), standard)
            engine = open_engine(dither.load(Path(name) / "dataset.yml"))
            print_cover(Redraws(session.context, plan, engine), made, redraws)
            engine.close()


def as_described(made: Workers) -> dict[str, np.ndarray]:
    """Return columns of the type that the description says."""
    return {name: values.astype(int) if made.step == "1" else values for name, values in made.columns.items()}


def print_cover(drawn: Redraws, made: Workers, redraws: int) -> None:
    """Print how many intervals cover each coefficient, and naive ones that take noisy sums for exact ones."""
    random, truth, normal = np.random.default_rng(5), made.truth, stats.norm.ppf(0.975)
    aware, naive, widths, choices = [], [], [], Counter()
    for _ in range(redraws):
        moments, scaling = drawn.draw(random)
        fit = fit_linear(moments, np.zeros(len(truth)))
        raw = raw_fit(fit, moments, scaling, 0.95, population=False)
        aware.append((raw.lows <= truth) & (truth <= raw.highs))
        sampling = np.sqrt(np.abs(np.diag(np.linalg.inv(fit.gram))) * fit.residual / moments.count)
        sampling[1:] *= scaling.scales[-1] / scaling.scales[:-1]
        naive.append(np.abs(raw.values[1:] - truth[1:]) <= normal * sampling[1:])
        widths.append((raw.highs - raw.lows) / 2)
        choices[tuple(f"{low:.4g} to {high:.4g}" for low, high in zip(*ends_of(scaling), strict=True))] += 1
    print(f"exact coefficients (intercept, {', '.join(made.columns)}): {np.round(truth, 4).tolist()}")
    print(f"median half widths of 95% intervals: {np.round(np.median(widths, axis=0), 4).tolist()}")
    print(f"intervals that cover the exact coefficients: {np.mean(aware, axis=0).round(4).tolist()}")
    print(f"naive intervals that do (without the intercept): {np.mean(naive, axis=0).round(4).tolist()}")
    print(f"{len(choices)} different ranges; the most frequent: {choices.most_common(1)[0]}", flush=True)


def ends_of(scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the ranges."""
    return scaling.centres - scaling.scales, scaling.centres + scaling.scales


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
