"""Synthetic data: noisy tables of all pairs of columns, a joint distribution fitted to them, and rows drawn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from dither.errors import InvalidParameter, Unsupported
from dither.post.noise import Floats
from dither.post.options import read_whole
from dither.post.statistics.core import SourceRows, Statistic
from dither.post.statistics.joint import ITERATIONS, MAX_CELLS, JointTable, PairTree, fit_joint, total_count
from dither.post.statistics.marginals import Attribute, MarginalPlan, plan_marginals, read_attributes, table_of
from dither.post.statistics.result import Result, key_column, result_fields
from dither.post.statistics.steps import Released

MAX_COLUMNS = 22
MAX_ROWS = 10_000_000
# A pair whose distance from its noisy table exceeds the noise by more than this share of rows is said to be off.
LARGE_MISFIT, LARGE_NOISE = 0.02, 0.1


@dataclass(frozen=True, repr=False)
class SyntheticData(Result):
    """Synthetic rows in `rows`, an Arrow table; the table of the result says how well each pair of columns is known.

    `noise` is the expected distance (total variation) of a pair's noisy table from the true one, `misfit` the distance
    of the synthetic pair from the noisy table beyond what noise explains. `joint` is the fitted distribution.
    """

    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    attributes: tuple[Attribute, ...] = ()
    joint: JointTable | PairTree | None = None

    def sample(self, count: int, seed: int = 0) -> pa.Table:
        """Draw another number of rows from the fitted distribution; free, since only noisy counts are read."""
        count = read_whole("count", count, 1)
        if count > MAX_ROWS:
            raise InvalidParameter(f"count must be at most {MAX_ROWS:,}, got {count}")
        return draw_rows(self.joint, self.attributes, count, seed) if self.joint is not None else self.rows


def make_synthesis(
    source: SourceRows, columns: Sequence[str], bins: Mapping[str, Any] | None, seed: int
) -> Statistic[SyntheticData]:
    """Make the statistic of synthetic data."""
    names = list(columns)
    if not 2 <= len(names) <= MAX_COLUMNS or len(set(names)) < len(names):
        raise InvalidParameter(f"synthetic data need 2 to {MAX_COLUMNS} different columns, got {len(names)}")
    attributes = read_attributes(source, names, bins or {})
    pairs = list(combinations(range(len(names)), 2))
    if max(attributes[i].size * attributes[j].size for i, j in pairs) > MAX_CELLS // 16:
        raise Unsupported("a pair of columns has too many values; cut numbers into fewer bins with bins=")
    relation = source.question(["COUNT(*)"]).relation
    plan = plan_marginals(source, relation, [(attributes[i].key, attributes[j].key) for i, j in pairs])

    def finish(released: Released) -> SyntheticData:
        return build_synthesis(plan, released, attributes, pairs, seed)

    return plan.statistic(finish)


def build_synthesis(
    plan: MarginalPlan, released: Released, attributes: Sequence[Attribute], pairs: Sequence[tuple[int, int]], seed: int
) -> SyntheticData:
    """Fit the joint distribution, draw as many rows as were counted, and report on every pair."""
    sizes = [attribute.size for attribute in attributes]
    tables = {pair: table_of(released, part).reshape(sizes[pair[0]], sizes[pair[1]]) for part, pair in enumerate(pairs)}
    variance = released.noise().variance
    iterations = ITERATIONS if released.releases else 1  # a rehearsal needs no good fit
    joint, count = fit_joint(sizes, tables, variance, iterations), total_count(tables)
    report = [pair_report(joint, pair, table, count, variance) for pair, table in tables.items()]
    names = [f"{attributes[i].name}, {attributes[j].name}" for i, j in pairs]
    columns = [
        key_column("columns", names),
        key_column("noise", [round(noise, 4) for noise, _ in report]),
        key_column("misfit", [round(misfit, 4) for _, misfit in report]),
        key_column("verdict", [verdict(*each) for each in report]),
    ]
    rows = draw_rows(joint, attributes, min(round(count), MAX_ROWS), seed)
    kind = (
        "one table of all columns" if isinstance(joint, JointTable) else "a tree of pairs: more combinations than fit"
    )
    good = sum(verdict(*each) == "good" for each in report)
    summary = (
        f"{rows.num_rows:,} synthetic rows of {len(attributes)} columns, from {kind} ({prod(sizes):,} combinations)",
        f"{good} of {len(report)} pairs are answered well",
    )
    notes = [
        *plan.notes,
        "pairs are as measured; three columns or more together follow from pairs, which is an assumption",
        f"counts of a few times {np.sqrt(variance):,.0f} rows or less are mostly noise",
        "numbers are spread evenly over their bins; rows are no one's, and a copy of one is chance",
    ]
    fields = result_fields(released.measurements, "synthesize", columns, summary, notes)
    return SyntheticData(**fields, rows=rows, attributes=tuple(attributes), joint=joint)


def pair_report(
    joint: JointTable | PairTree, pair: tuple[int, int], table: Floats, count: float, variance: float
) -> tuple[float, float]:
    """Return the expected distance of a noisy pair from the true one, and how far the fit is from it beyond that."""
    noise = float(np.sqrt(2 * variance / np.pi)) * table.size / (2 * count)
    distance = float(np.abs(joint.pair(*pair) - table / count).sum()) / 2
    return min(noise, 1.0), max(0.0, distance - noise)


def verdict(noise: float, misfit: float) -> str:
    """Say in a word how well a pair is known."""
    if misfit > LARGE_MISFIT:
        return "off"
    return "rough" if noise > LARGE_NOISE else "good"


def draw_rows(joint: JointTable | PairTree, attributes: Sequence[Attribute], count: int, seed: int) -> pa.Table:
    """Draw synthetic rows; the seed makes them repeatable and protects nobody."""
    random = np.random.Generator(np.random.PCG64(seed))
    places = joint.draw(max(1, count), random).astype(int)
    columns = {a.name: pa.array(a.draw(places[:, number], random)) for number, a in enumerate(attributes)}
    return pa.table(columns)
