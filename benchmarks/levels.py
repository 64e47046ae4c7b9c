"""Measure the statistics of a session: levels and power of tests, hierarchies that agree, errors of quantiles.

    python benchmarks/levels.py levels        noise-aware and naive tests on 10,000 null redraws, and their power
    python benchmarks/levels.py hierarchies   tables that agree: errors of totals and cells, measured and fitted
    python benchmarks/levels.py quantiles     root mean squared errors beside OpenDP and Tumult, on skewed incomes
    python benchmarks/levels.py medians       the same for the median by the laws of Dither and OpenDP, on many tables

Each section plans with a session on made-up data and reads the exact numbers once; then it draws noise with the
kernel's own mechanisms and builds results with the session's own code.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import peer
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

import dither
from dither.access.engines import open_engine
from dither.post.session import Session
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.core import MeasuredPart, Measurements, Statistic
from dither.post.statistics.grid import level_counts, make_grid
from dither.post.statistics.independence import chi_squared_test, noisy_chi_squared
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import Mechanism, calibrate
from dither.privacy.mechanisms.quantiles import rank_errors
from dither.privacy.protocol import Calibrate, Measurement, ReleasedMeasurement

SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {}
HEAD = """
version: 1
name: bench
population: bench
data_version: "1"
units:
  person: {kind: user, keys: {people: id}}
budgets:
  - {unit: person, kind: pure, epsilon: 1000}
tables:
  people:
    private: true
    source: {kind: parquet, path: people.parquet}
    unique: id
    columns:
      id: {type: identifier, kind: integer}
"""


def section(function: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Register a section under the name of its function."""
    SECTIONS[function.__name__] = function
    return function


def open_table(folder: Path, columns: dict[str, np.ndarray], domains: str) -> Session:
    """Write a table and its description, and open a session on it."""
    folder.mkdir(parents=True, exist_ok=True)
    size = len(next(iter(columns.values())))
    pq.write_table(pa.table({"id": np.arange(size), **columns}), folder / "people.parquet")
    lines = "\n".join(f"      {line}" for line in domains.strip().splitlines())
    (folder / "dataset.yml").write_text(HEAD.rstrip() + "\n" + lines + "\n")
    return dither.connect(folder / "dataset.yml", account="benchmark")


def statistic_of(session: Session, name: str, *arguments: Any, **options: Any) -> Statistic[Any]:
    """Return the statistic that a method of a session would ask."""
    made: Statistic[Any] = getattr(type(session), name).__func__(session, *arguments, **options)
    return made


def exact_vector(session: Session, folder: Path, measurement: Measurement) -> np.ndarray:
    """Read the exact numbers of a measurement, as the kernel does."""
    engine = open_engine(dither.load(folder / "dataset.yml"))
    try:
        return np.asarray(engine.vector(measurement.measure), np.int64)
    finally:
        engine.close()


def mechanism_of(session: Session, measurement: Measurement) -> Mechanism:
    """Return the mechanism of a measurement, calibrated as the kernel does."""
    asked = measurement.mechanism
    assert isinstance(asked, Calibrate)
    sensitivity = measurement.measure.sensitivity(session.context, "person")
    return calibrate(asked.kind, asked.loss, sensitivity, **dict(asked.options))


def build(statistic: Statistic[Any], mechanism: Mechanism, measurement: Measurement, values: np.ndarray) -> Any:
    """Build the result of a statistic with one part from noisy integers."""
    context = statistic.settings.context
    sensitivity = measurement.measure.sensitivity(context, "person")
    released = ReleasedMeasurement(
        tuple(map(int, values)), measurement.measure.steps(context), (len(values),), None, mechanism, sensitivity,
        mechanism.loss(sensitivity), (),
    )  # fmt: skip
    part = MeasuredPart(statistic.parts[0].plan, (released,), {}, {})
    return statistic.build(Measurements(statistic.settings, (part,)))


# --- levels and power of tests -------------------------------------------------------------------------------------

VALUES = 21


@section
def levels(options: argparse.Namespace) -> None:
    """Null redraws of the chi-squared test and of the comparison of means, and their power against an alternative."""
    with tempfile.TemporaryDirectory() as folder:
        chi_squared_levels(Path(folder), options.redraws)
        comparison_levels(Path(folder), options.redraws)


def chi_squared_levels(folder: Path, redraws: int) -> None:
    """Print the level of both chi-squared tests under independence, and the power under dependence."""
    random = np.random.default_rng(1)
    domains = "one: {type: category, values: [a, b, c]}\ntwo: {type: category, values: [x, y]}"
    columns = {"one": np.array(["a"] * 10), "two": np.array(["x"] * 10)}
    session = open_table(folder / "chi", columns, domains)
    print(f"independence of 3 x 2 categories, {redraws:,} redraws: share rejected at 5%")
    print("| rows | epsilon | null, noise-aware | null, naive | dependent, noise-aware | dependent, without noise |")
    print("|---|---|---|---|---|---|")
    null = np.outer([0.5, 0.3, 0.2], [0.6, 0.4]).ravel()
    other = null + np.array([0.04, -0.04, -0.03, 0.03, -0.01, 0.01])
    for rows, epsilon in ((500, "1/5"), (500, "1"), (5000, "1/20"), (5000, "1/5")):
        statistic = statistic_of(session, "independence", "people", "one", "two", epsilon=epsilon)
        ((measurement,),) = statistic.measurements()
        mechanism = mechanism_of(session, measurement)
        noise = level_counts(fake_part(statistic, mechanism, measurement))[1]
        shares = []
        for cells in (null, other):
            tables = random.multinomial(rows, cells, redraws)
            noisy = tables + draw_many(mechanism, tables.shape)
            p = [chi_squared_test(t.reshape(3, 2).astype(float), noise, 999, i).p_value for i, t in enumerate(noisy)]
            naive = stats.chi2.sf(noisy_chi_squared(noisy.reshape(-1, 3, 2).astype(float), 0.0), df=2)
            clean = stats.chi2.sf(noisy_chi_squared(tables.reshape(-1, 3, 2).astype(float), 0.0), df=2)
            shares.append([float(np.mean(np.asarray(each) <= 0.05)) for each in (p, naive, clean)])
        (level, naive_level, _), (power, _, clean_power) = shares
        print(f"| {rows} | {epsilon} | {level:.1%} | {naive_level:.1%} | {power:.1%} | {clean_power:.1%} |", flush=True)


def fake_part(statistic: Statistic[Any], mechanism: Mechanism, measurement: Measurement) -> MeasuredPart:
    """Return a part with zeros, to ask for its noise."""
    context = statistic.settings.context
    sensitivity, size = measurement.measure.sensitivity(context, "person"), measurement.measure.size(context)
    steps = measurement.measure.steps(context)
    released = ReleasedMeasurement(
        (0,) * size, steps, (size,), None, mechanism, sensitivity, mechanism.loss(sensitivity), ()
    )
    return MeasuredPart(statistic.parts[0].plan, (released,), {}, {})


def draw_many(mechanism: Mechanism, shape: tuple[int, ...]) -> np.ndarray:
    """Draw noise from the kernel's own sampler."""
    size = int(np.prod(shape))
    return mechanism.release(np.zeros(size, np.int64), SystemBits()).reshape(shape)


def comparison_levels(folder: Path, redraws: int) -> None:
    """Print the level of the comparison of two means, and its power; rows have values from 0 to 20."""
    random = np.random.default_rng(2)
    domains = "side: {type: category, values: [a, b]}\nvalue: {type: integer, min: 0, max: 20}"
    table = {"side": np.array(["a", "b"]), "value": np.array([0, 0])}
    session = open_table(folder / "compare" / "plan", table, domains)
    print(f"\ncomparison of two means, {redraws:,} redraws: share rejected at 5%, and of intervals that cover")
    print("| rows a group | epsilon | null, noise-aware | null, naive (Welch) | shift of 1, noise-aware | shift of 1, "
          "without noise | intervals that cover |\n|---|---|---|---|---|---|---|")  # fmt: skip
    base = stats.binom.pmf(np.arange(VALUES), 20, 0.4)
    moved = np.concatenate([[0.0], base[:-1]])
    moved /= moved.sum()
    for rows, epsilon in ((200, "1/2"), (200, "2"), (2000, "1/10"), (2000, "1/2")):
        statistic = statistic_of(session, "compare", "people", "value", "side", epsilon=epsilon)
        ((measurement,),) = statistic.measurements()
        mechanism = mechanism_of(session, measurement)
        per_value = value_vectors(folder / "compare", measurement, domains)
        results = []
        for second, count in ((base, redraws), (moved, max(200, redraws // 20))):
            counts = [random.multinomial(rows, shares / shares.sum(), count) for shares in (base, second)]
            exact = sum(np.einsum("rv,vk->rk", own, per_value[side]) for side, own in enumerate(counts))
            noisy = exact + draw_many(mechanism, exact.shape)
            built = [build(statistic, mechanism, measurement, values) for values in noisy]
            clean = np.array([welch(counts[0][i], counts[1][i]) for i in range(count)])
            gap = float(second @ np.arange(VALUES) - base @ np.arange(VALUES))
            cover = np.mean([r.difference is not None and r.difference[1] <= gap <= r.difference[2] for r in built])
            naive = np.array([naive_welch(r, rows, counts[0][i], counts[1][i]) for i, r in enumerate(built)])
            aware = np.mean([r.p_value <= 0.05 for r in built])
            results.append((aware, np.mean(naive <= 0.05), np.mean(clean <= 0.05), cover))
        (level, naive_level, _, cover), (power, _, clean_power, _) = results
        cells = [f"{share:.1%}" for share in (level, naive_level, power, clean_power, cover)]
        print(f"| {rows} | {epsilon} | {' | '.join(cells)} |", flush=True)


def value_vectors(folder: Path, measurement: Measurement, domains: str) -> np.ndarray:
    """Return what one row of each group and value adds to the measure: sums are additive over rows."""
    found = np.zeros((2, VALUES, 0), np.int64)
    vectors = []
    for side in ("a", "b"):
        own = []
        for value in range(VALUES):
            place = folder / f"{side}{value}"
            session = open_table(place, {"side": np.array([side]), "value": np.array([value])}, domains)
            own.append(exact_vector(session, place, measurement))
        vectors.append(np.array(own))
    found = np.array(vectors)
    return found


def welch(one: np.ndarray, two: np.ndarray) -> float:
    """Return the p-value of Welch's test on exact counts of values."""
    points = np.arange(VALUES)
    means = [float(c @ points / c.sum()) for c in (one, two)]
    variances = [float(c @ (points - m) ** 2 / c.sum() / c.sum()) for c, m in zip((one, two), means, strict=True)]
    return float(2 * stats.norm.sf(abs(means[1] - means[0]) / np.sqrt(sum(variances))))


def naive_welch(result: Any, rows: int, one: np.ndarray, two: np.ndarray) -> float:
    """Return the p-value of Welch's test on the noisy means, as if they had no noise."""
    if not result.defined:
        return 1.0
    points = np.arange(VALUES)
    spread = sum(float(c @ (points - c @ points / rows) ** 2 / rows / rows) for c in (one, two))
    means = np.asarray(result["mean"].estimate.value, float)
    return float(2 * stats.norm.sf(abs(means[1] - means[0]) / np.sqrt(spread)))


# --- hierarchies ---------------------------------------------------------------------------------------------------


@section
def hierarchies(options: argparse.Namespace) -> None:
    """A hierarchy of total, region, region and town, and so on: measured and fitted errors at epsilon 1."""
    random = np.random.default_rng(3)
    sizes = {"region": 8, "town": 10, "age": 12}
    shares = random.dirichlet(np.full(960, 0.3)).reshape(8, 10, 12)
    levels = [(), ("region",), ("region", "town"), ("region", "town", "age")]
    print(f"\nhierarchy of 8 x 10 x 12 cells, 20,000 rows, epsilon 1 for all levels, {options.draws} draws")
    cells = random.multinomial(20_000, shares.ravel()).reshape(8, 10, 12).astype(float)
    errors: dict[tuple[str, ...], list[list[float]]] = {level: [[], []] for level in levels}
    worst = 0.0
    mechanism = calibrate("discrete_laplace", dither.Pure(Fraction(1, 4)), dither.Sensitivity.of(l0=1, linf=1))
    for _ in range(options.draws):
        margins = []
        for level in levels:
            exact = cells.sum(axis=tuple(i for i, k in enumerate(sizes) if k not in level))
            noisy = exact + draw_many(mechanism, (max(1, exact.size),)).reshape(exact.shape)
            margins.append(Margin(level, np.asarray(noisy, float), mechanism.std() ** 2))
        fitted = agree(sizes, margins)
        for margin in margins:
            exact = cells.sum(axis=tuple(i for i, k in enumerate(sizes) if k not in margin.keys))
            errors[margin.keys][0].append(float(np.mean((margin.values - exact) ** 2)))
            errors[margin.keys][1].append(float(np.mean((fitted.margin(margin.keys) - exact) ** 2)))
        worst = max(worst, float(np.abs(fitted.margin(("region",)).sum() - fitted.cells.sum())))
    print("| level | rms error, measured | rms error, fitted |\n|---|---|---|")
    for level, (raw, fit) in errors.items():
        print(f"| {', '.join(level) or 'total'} | {np.mean(raw) ** 0.5:.2f} | {np.mean(fit) ** 0.5:.2f} |")
    print(f"largest disagreement of sums: {worst:.1e}")


# --- quantiles -----------------------------------------------------------------------------------------------------

POINTS = "Dither, no intervals"
QUANTILE_SETS = {"median": (0.5,), "quartiles": (0.25, 0.5, 0.75), "deciles": tuple(k / 10 for k in range(1, 10))}


@section
def quantiles(options: argparse.Namespace) -> None:
    """Errors of quantiles of 100,000 lognormal incomes from 0 to 1,000,000 at epsilon 1, beside OpenDP and Tumult."""
    systems = {
        "Dither": options.draws,
        POINTS: options.draws,
        "OpenDP, same grid": options.opendp_draws,
        "Tumult": options.tumult_draws,
    }
    print("\nquantiles of 100,000 skewed incomes, epsilon 1 in all: relative rms error, least and most, and draws")
    errors: dict[tuple[str, str], list[np.ndarray]] = {(title, who): [] for title in QUANTILE_SETS for who in systems}
    cover: dict[str, list[np.ndarray]] = {title: [] for title in QUANTILE_SETS}
    draws = {who: -(-wanted // options.tables) for who, wanted in systems.items()}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.tables):
            random, folder = np.random.default_rng(seed), Path(name) / str(seed)
            incomes = np.minimum(1_000_000, np.round(random.lognormal(10.5, 0.9, 100_000))).astype(np.int64)
            session = open_table(folder, {"income": incomes}, "income: {type: integer, min: 0, max: 1000000}")
            grid = make_grid(session.dataset.tables["people"].columns["income"].domain, 1 << 20).middles()
            theirs = tumult_quantiles(folder, incomes, draws["Tumult"])
            for title, wanted in QUANTILE_SETS.items():
                exact = np.quantile(incomes, wanted, method="inverted_cdf")
                ours, covered = dither_quantiles(session, folder, wanted, exact, draws["Dither"])
                cover[title].append(covered)
                points, _ = dither_quantiles(session, folder, wanted, exact, draws[POINTS], intervals=False)
                found = {"Dither": ours, POINTS: points, "Tumult": theirs[title]}
                found["OpenDP, same grid"] = opendp_quantiles(incomes, wanted, grid, draws["OpenDP, same grid"])
                for who, values in found.items():
                    errors[title, who].append((values - exact) / exact)
    print(f"| quantiles | {' | '.join(systems)} | Dither's intervals that cover |\n|---|{'---|' * len(systems)}---|")
    for title in QUANTILE_SETS:
        cells = [error_cell(np.concatenate(errors[title, who])) for who in systems]
        print(f"| {title} | {' | '.join(cells)} | {np.mean(np.concatenate(cover[title])):.1%} |", flush=True)


@section
def medians(options: argparse.Namespace) -> None:
    """Errors of the median by the law of each mechanism: permute-and-flip with its scores, on incomes as above."""
    shares = {"Dither": 0.9, POINTS: 1.0, "OpenDP": 1.0}
    print("\nmedian of 100,000 skewed incomes, epsilon 1 in all: relative rms error on each table, by redraws")
    squares: dict[str, list[float]] = {who: [] for who in shares}
    for seed in range(options.tables):
        random = np.random.default_rng(seed)
        incomes = np.minimum(1_000_000, np.round(random.lognormal(10.5, 0.9, 100_000))).astype(np.int64)
        exact = float(np.quantile(incomes, 0.5, method="inverted_cdf"))
        counts = np.bincount(incomes, minlength=1_000_001)
        less, more = np.cumsum(counts) - counts, len(incomes) - np.cumsum(counts)
        ours = rank_errors(counts, 1, 1) / 4
        for who, share in shares.items():
            errors = np.abs(less - more) / 2 if who == "OpenDP" else ours
            drawn = permute_and_flip(errors, 1 / share, options.redraws // 25, random)
            squares[who].append(float(np.mean(((drawn - exact) / exact) ** 2)))
    print("| | all tables | least | most |\n|---|---|---|---|")
    for who, own in squares.items():
        cells = [float(np.sqrt(each)) for each in (np.mean(own), min(own), max(own))]
        print(f"| {who} | {' | '.join(f'{cell:.5%}' for cell in cells)} |", flush=True)


def permute_and_flip(errors: np.ndarray, scale: float, draws: int, random: np.random.Generator) -> np.ndarray:
    """Draw places by noisy maxima with exponential noise; those of far larger errors are never chosen."""
    near = np.flatnonzero(errors < errors.min() + 60 * scale)
    noise = random.exponential(scale, (draws, len(near)))
    return near[np.argmax(noise - errors[near], axis=1)]


def error_cell(errors: np.ndarray) -> str:
    """Return the root mean squared error with a range of two standard errors, by draw, and the number of draws."""
    squares = np.mean(np.square(errors), axis=1)
    middle, spread = float(np.mean(squares)), 2 * float(np.std(squares)) / np.sqrt(len(squares))
    return (
        f"{middle**0.5:.4%} ({max(0.0, middle - spread) ** 0.5:.4%} to {(middle + spread) ** 0.5:.4%}, {len(squares)})"
    )


def tumult_quantiles(folder: Path, incomes: np.ndarray, draws: int) -> dict[str, np.ndarray]:
    """Return quantiles drawn by Tumult Analytics, each with an equal share of epsilon 1, by the title of their set."""
    pq.write_table(pa.table({"income": incomes}), folder / "incomes.parquet")
    script = Path(__file__).parent / "peers" / "tumult_quantiles.py"
    arguments = [str(folder / "incomes.parquet"), json.dumps(list(QUANTILE_SETS.values())), str(draws)]
    found = peer.run("tumult", script, arguments).result
    return {title: np.array(own) for title, own in zip(QUANTILE_SETS, found, strict=True)}


def dither_quantiles(
    session: Session, folder: Path, wanted: Sequence[float], exact: np.ndarray, draws: int, intervals: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return drawn quantiles, and for each whether its interval contains the exact one."""
    statistic = statistic_of(session, "quantiles", "people", "income", wanted, epsilon=1, intervals=intervals)
    parts = [own[0] for own in statistic.measurements()]
    vectors = [exact_vector(session, folder, part) for part in parts]
    mechanisms = [mechanism_of(session, part) for part in parts]
    found, covered = [], []
    for _ in range(draws):
        measured = []
        for part, plan, vector, mechanism in zip(parts, statistic.parts, vectors, mechanisms, strict=True):
            sensitivity = part.measure.sensitivity(session.context, "person")
            values = tuple(map(int, mechanism.release(vector, SystemBits())))
            released = ReleasedMeasurement(
                values, part.measure.steps(session.context), (len(values),), None, mechanism, sensitivity,
                mechanism.loss(sensitivity), (),
            )  # fmt: skip
            measured.append(MeasuredPart(plan.plan, (released,), {}, {}))
        result = statistic.build(Measurements(statistic.settings, tuple(measured)))
        estimate = result.columns[-1].estimate
        found.append(np.asarray(estimate.value, float))
        covered.append(not intervals or (estimate.low <= exact) & (exact <= estimate.high))
    return np.array(found), np.array(covered)


def opendp_quantiles(incomes: np.ndarray, wanted: Sequence[float], candidates: np.ndarray, draws: int) -> np.ndarray:
    """Return quantiles drawn by OpenDP, each with an equal share of epsilon 1."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    data, points = incomes.astype(float).tolist(), candidates.astype(float).tolist()

    def make(level: float, scale: float) -> Any:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates=points, alpha=level, scale=scale)

    # The loss is proportional to 1 / scale.
    measurements = [make(level, 1.000001 * make(level, 1.0).map(1) * len(wanted)) for level in wanted]
    if sum(measurement.map(1) for measurement in measurements) > 1:
        raise ValueError("the quantiles cost more than epsilon 1")
    return np.array([[measurement(data) for measurement in measurements] for _ in range(draws)])


def main() -> None:
    """Run the sections that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="sections to run; all by default")
    parser.add_argument("--redraws", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--opendp-draws", type=int, default=40)
    parser.add_argument("--tumult-draws", type=int, default=8)
    options = parser.parse_args()
    for name in options.sections or SECTIONS:
        begun = time.process_time()
        SECTIONS[name](options)
        print(f"({name}: {time.process_time() - begun:.0f} CPU s)", flush=True)


if __name__ == "__main__":
    main()
