"""Measure the level and the power of comparisons of means in declared ranges that are far too wide.

    python benchmarks/wide_levels.py [--redraws 10000]

Incomes of three groups are declared from 0 to 10,000,000, so that sums are taken within private spans. Each redraw has
new people, new searches and new noise. The plan, the rules that choose spans, the noise and the test are the product's
own; the exact numbers come from NumPy, and for the first redraw they must equal those of the engine.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from levels import open_table, statistic_of
from scipy import stats

import dither
from dither.access.engines import open_engine
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import EstimatedValue
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count
from dither.plan.traversal import fill_limits, fill_values
from dither.post.estimate.measured import chosen_bounds
from dither.post.query.query_plan import with_bounds
from dither.post.statistics.core import MeasuredPart, Measurements, Statistic
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import calibrate
from dither.privacy.protocol import Calibrate, Measurement, ReleasedMeasurement
from dither.privacy.search_rules import choose_values

CENTS, WIDEST, MEAN = 100, 10_000_000, 50_000
DESCRIPTION = f"""
side: {{type: category, values: [a, b, c]}}
value: {{type: decimal, min: 0, max: {WIDEST}, step: 0.01}}
"""
LEAST_REDRAWS = 200


def evaluate(node: Any, cents: np.ndarray) -> Any:
    """Return the values of a plan's expression over the incomes, in floating point."""
    match node:
        case expr.LiteralValue(value=value):
            return float(value)
        case expr.ColumnRef():
            return cents / CENTS
        case EstimatedValue(value=int(steps), step=step):
            return float(steps * step)
        case expr.Arithmetic(op=op, left=left, right=right):
            one, other = evaluate(left, cents), evaluate(right, cents)
            return one - other if op == "-" else one + other if op == "+" else one * other
        case expr.LeastGreatest(which=which, children=children):
            parts = [evaluate(child, cents) for child in children]
            return (np.minimum if which == "least" else np.maximum)(*parts)
        case expr.Clamp(child=child, lo=low, hi=high):
            return np.clip(evaluate(child, cents), float(low), float(high))
        case expr.Absolute(child=child):
            return np.abs(evaluate(child, cents))
        case expr.Rounded(child=child, step=step):
            return np.rint(evaluate(child, cents) / float(step)) * float(step)
        case expr.Bucket(child=child, edges=edges):
            cuts = np.array([float(edge) for edge in edges])
            return np.searchsorted(cuts, evaluate(child, cents) + 1e-6, side="right")
        case _:
            raise TypeError(f"the incomes cannot evaluate {type(node).__name__}")


@dataclass(frozen=True)
class People:
    """Incomes in cents, and the group of each person from 0 to 2."""

    cents: np.ndarray
    groups: np.ndarray

    def exact(self, measure: Measure, context: Context) -> np.ndarray:
        """Return the exact vector of a search or of the sums of the comparison, as an engine reads it."""
        match measure:
            case ClippedSums(values=values, bound=int(most)):
                steps = [float(step) for step in measure.steps(context)]
                rows = [np.rint(evaluate(v, self.cents) / step) for v, step in zip(values, steps, strict=True)]
                rows = [np.clip(own, -most, most) for own in rows]
                return np.array([np.bincount(self.groups, own, 3) for own in rows]).T.ravel().astype(np.int64)
            case Count(keys=(key,)) if isinstance(key.value, expr.Bucket):
                return np.bincount(evaluate(key.value, self.cents), minlength=measure.size(context))
            case Count():
                return np.bincount(self.groups, minlength=3)
            case _:
                raise TypeError(f"no exact vector of {type(measure).__name__}")


@dataclass(frozen=True)
class Redraws:
    """Comparisons of three groups of people with lognormal incomes."""

    rows: int
    sigma: float
    epsilon: str
    random: np.random.Generator

    def people(self, factor: float, sigma: float) -> People:
        """Draw people: the mean of the second group is larger by a factor, and its spread may be another."""
        groups = self.random.integers(0, 3, self.rows)
        spread = np.where(groups == 1, sigma, self.sigma)
        middle = np.log(MEAN) + np.where(groups == 1, np.log(factor), 0.0) - spread**2 / 2
        values = np.exp(middle + spread * self.random.normal(size=self.rows))
        return People(np.minimum(np.rint(CENTS * values), CENTS * WIDEST), groups)

    def plan(self, people: People) -> tuple[Statistic[Any], Context]:
        """Plan the comparison with a session on real files, whose engine must read what NumPy computes."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            table = {"side": np.array(["a", "b", "c"])[people.groups], "value": people.cents / CENTS}
            session = open_table(folder, table, DESCRIPTION)
            statistic = statistic_of(session, "compare", "people", "value", "side", epsilon=self.epsilon)
            engine = open_engine(dither.load(folder / "dataset.yml"))
            for measure in self.answer(statistic, session.context, people)[1]:
                read, own = np.asarray(engine.vector(measure), np.int64), people.exact(measure, session.context)
                assert np.allclose(read, own, rtol=1e-6, atol=3), (measure, read, own)
            engine.close()
            return statistic, session.context

    def answer(self, statistic: Statistic[Any], context: Context, people: People) -> tuple[Any, list[Measure]]:
        """Answer with new noise, as a kernel does; return the result, and the measures at the chosen bounds."""
        request, limits = statistic.request(), dict[str, int]()
        measures, found = list[Measure](), list[ReleasedMeasurement]()
        for search in request.searches:
            measures.append(fill_values(search.histogram, limits))
            found.append(self.release(Measurement(measures[-1], search.mechanism), context, people))
            limits |= choose_values(search, found[-1], limits)
        parts = [fill_values(fill_limits(part, limits), limits) for part in request.parts]
        released = tuple(self.release(part, context, people) for part in parts)
        named = SimpleNamespace(search_results=tuple(found), chosen_bounds=tuple(limits.values()))
        chosen = chosen_bounds(statistic.batch, named)[0]
        own = MeasuredPart(
            with_bounds(statistic.parts[0].plan, context, chosen.limits), released, chosen.bounds, limits
        )
        result = statistic.build(Measurements(statistic.settings, (own,)))
        return result, measures + [part.measure for part in parts]

    def release(self, part: Measurement, context: Context, people: People) -> ReleasedMeasurement:
        """Add the noise of the mechanism that the kernel would calibrate."""
        sensitivity, asked = part.measure.sensitivity(context, "person"), part.mechanism
        assert isinstance(asked, Calibrate)
        mechanism = calibrate(asked.kind, asked.loss, sensitivity, **dict(asked.options))
        values = mechanism.release(people.exact(part.measure, context), SystemBits())
        loss = mechanism.loss(sensitivity)
        steps = part.measure.steps(context)
        return ReleasedMeasurement(
            tuple(map(int, values)), steps, (len(values),), None, mechanism, sensitivity, loss, ()
        )

    def shares(self, redraws: int, factor: float, sigma: float) -> tuple[float, float, float]:
        """Return the shares of redraws that reject, of intervals of means that cover, and rejected without noise."""
        statistic, context = self.plan(self.people(factor, sigma))
        means = MEAN * np.array([1.0, factor, 1.0])
        rejected, covered, clean = 0, 0, 0
        for _ in range(redraws):
            people = self.people(factor, sigma)
            result = self.answer(statistic, context, people)[0]
            rejected += result.p_value <= 0.05
            column = result["mean"]
            covered += int(np.sum((column.interval[0] <= means) & (means <= column.interval[1])))
            groups = [people.cents[people.groups == group] for group in range(3)]
            clean += stats.alexandergovern(*groups).pvalue <= 0.05
        return rejected / redraws, covered / redraws / 3, clean / redraws


def main() -> None:
    """Print a table: a row for each number of people, spread of incomes and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraws", type=int, default=10_000)
    redraws = parser.parse_args().redraws
    few = max(LEAST_REDRAWS, redraws // 10)
    print(f"three groups of incomes, {redraws:,} redraws, and {few:,} where one differs: share rejected at 5%")
    print("| people | spread | epsilon | equal groups | intervals of their means that cover | one mean 3% higher "
          "| the same without noise | equal means, one spread 1.5 times as large |\n|"
          + "---|" * 8)  # fmt: skip
    for rows, sigma, epsilon in product((20_000,), (0.5, 1.0), ("1/2", "2")):
        drawn = Redraws(rows, sigma, epsilon, np.random.default_rng(rows + round(10 * sigma)))
        level, cover, _ = drawn.shares(redraws, 1.0, sigma)
        power, _, clean = drawn.shares(few, 1.03, sigma)
        spread, _, _ = drawn.shares(few, 1.0, 1.5 * sigma)
        cells = [f"{share:.1%}" for share in (level, cover, power, clean, spread)]
        print(f"| {rows:,} | {sigma} | {epsilon} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
