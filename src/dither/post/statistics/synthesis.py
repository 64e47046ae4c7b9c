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
from dither.post.estimate.answer import AnswerColumn, import_optional
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.noise import Floats
from dither.post.options import read_whole
from dither.post.statistics.core import Statistic
from dither.post.statistics.joint import ITERATIONS, MAX_CELLS, JointTable, PairTree, fit_joint, total_count
from dither.post.statistics.marginals import Attribute, MarginalPlan, plan_marginals, read_attributes, table_of
from dither.post.statistics.number_bins import choose_bins, grow_bins, trim_bins, trim_note, with_range_searches
from dither.post.statistics.result import Result, key_column, result_fields
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.steps import Released
from dither.post.statistics.synthesis_report import SynthesisErrors, coarse_note, estimate_errors, noise_distance
from dither.privacy.protocol import Measurement

MAX_COLUMNS = 22
MAX_ROWS = 10_000_000
# Within a bin whose far end is so many times as far from zero as its near end, values may become rarer outwards.
WIDE_RATIO, LEAST_DECAY, MOST_DECAY, USUAL_DECAY = 2.0, 0.1, 50.0, 2.0


@dataclass(frozen=True, repr=False)
class SyntheticData(Result):
    """Synthetic rows in `rows`, an Arrow table; the table of the result says how well each column and pair is known.

    `rows_to_pandas()` has the rows as a DataFrame; without pandas, `rows.to_pylist()` lists them.

    `noise` is the expected distance (total variation: the share of rows in the wrong cell) of a noisy table from the
    true one, `error` the estimated distance of the synthetic table from the true one, and `at_most` its upper end at
    95%. `joint` is the fitted distribution.
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

    def rows_to_pandas(self) -> Any:
        """Return the synthetic rows as a pandas DataFrame (needs pandas); `to_pandas` returns the report."""
        import_optional("pandas")
        return self.rows.to_pandas()


def make_synthesis(
    source: SourceRows, columns: Sequence[str], bins: Mapping[str, Any] | None, seed: int
) -> Statistic[SyntheticData]:
    """Make the statistic of synthetic data."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if not 2 <= len(names) <= MAX_COLUMNS or len(set(names)) < len(names):
        repeated = "" if len(set(names)) == len(names) else f", of which {len(names) - len(set(names))} are repeated"
        raise InvalidParameter(
            f"synthetic data need a list of 2 to {MAX_COLUMNS} different columns, such as ['age', 'country'], got"
            f" {len(names)}{repeated}"
        )
    relation, given = source.question(["COUNT(*)"]).relation, bins or {}
    chosen = grow_bins(choose_bins(source, relation, read_attributes(source, names, given), given), given)
    attributes = chosen.attributes
    pairs = list(combinations(range(len(names)), 2))
    if max(attributes[i].size * attributes[j].size for i, j in pairs) > MAX_CELLS // 16:
        raise Unsupported(
            f"a pair of columns has more than {MAX_CELLS // 16:,} combinations of values; leave out the column with the"
            " most values, or cut numbers into fewer bins, such as bins={'age': 8}"
        )
    plan = plan_marginals(source, relation, [(attributes[i].key, attributes[j].key) for i, j in pairs])
    plan = with_range_searches(plan, chosen)

    def finish(released: Released) -> SyntheticData:
        return build_synthesis(plan, released, chosen.raw(released.chosen), chosen.growing, seed)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_distances(plan, parts[0][0], [attribute.size for attribute in attributes])

    return plan.statistic(finish, expect)


def expected_distances(plan: MarginalPlan, measurement: Measurement, sizes: Sequence[int]) -> list[Expected]:
    """Return how far noise is expected to move columns and pairs, as mean shares of rows in the wrong cell."""
    variance, tables = plan.expected_noise(measurement).variance, len(sizes) - 1
    pairs = [noise_distance(one * two, variance / plan.size**2) for one, two in combinations(sizes, 2)]
    # A column is the mean of the margins of its pairs, each of which adds up the cells of the other column.
    columns = [
        noise_distance(size, variance * (sum(sizes) - size) / tables**2 / plan.size**2) for size in sizes
    ]  # fmt: skip
    name = "share of rows in the wrong cell by noise (mean over {})"
    reason = "a fit to pairs leaves out what three columns have in common beyond them, which is not measured"
    return [
        plan.error(name.format("columns"), float(np.mean(columns)), 1.0, True),
        plan.error(name.format("pairs"), float(np.mean(pairs)), 1.0, True),
        unknown_error("share of rows in the wrong cell of three columns", reason),
    ]


def build_synthesis(
    plan: MarginalPlan, released: Released, declared: Sequence[Attribute], growing: Sequence[int], seed: int
) -> SyntheticData:
    """Fit the joint distribution, draw as many rows as were counted, and report on every column and pair."""
    noise, measured = released.noise(), pair_tables(released, [attribute.size for attribute in declared])
    tables, attributes = trim_bins(measured, declared, growing, noise.std)
    sizes = [attribute.size for attribute in attributes]
    iterations = ITERATIONS if released.releases else 1  # a rehearsal needs no good fit
    joint, count = fit_joint(sizes, tables, noise.variance, iterations), total_count(measured)
    errors = estimate_errors(joint, sizes, tables, noise, bool(released.releases))
    rows = draw_rows(joint, attributes, min(round(count), MAX_ROWS), seed)
    kind = (
        "one table of all columns" if isinstance(joint, JointTable) else "a tree of pairs: more combinations than fit"
    )
    summary = (
        f"{rows.num_rows:,} synthetic rows of {len(attributes)} columns, from {kind} ({prod(sizes):,} combinations)",
        *error_lines(errors),
        *(
            line
            for each, shares in zip(attributes, column_shares(joint, len(sizes)), strict=True)
            for line in coarse_note(each, shares)
        ),
    )
    notes = [
        *plan.notes,
        "three columns or more together follow from pairs, which is an assumption: their errors are not measured",
        "errors are about the rows that count: what a bound leaves out is not in them",
        f"a combination of values that fewer than about {4 * noise.std:,.0f} rows have is mostly noise",
        *(note for before, after in zip(declared, attributes, strict=True) for note in trim_note(before, after)),
        "values within a bin are made up: evenly spread, or rarer outwards if bins are; a synthetic row that equals"
        " somebody's record does so by chance",
    ]
    columns = error_columns(errors, attributes)
    fields = result_fields(released.measurements, "synthesize", columns, summary, notes)
    return SyntheticData(**fields, rows=rows, attributes=tuple(attributes), joint=joint)


def pair_tables(released: Released, sizes: Sequence[int]) -> dict[tuple[int, int], Floats]:
    """Return the released table of each pair of columns."""
    pairs = combinations(range(len(sizes)), 2)
    return {(i, j): table_of(released, part).reshape(sizes[i], sizes[j]) for part, (i, j) in enumerate(pairs)}


def error_lines(errors: SynthesisErrors) -> list[str]:
    """Say in words how far the synthetic data are from the data."""
    found = list(errors.margins.values())
    good, bad = (sum(each.verdict == word for each in found) for word in ("good", "bad"))
    lines = [
        f"{good} of {len(found)} columns and pairs are good, {bad} are bad; estimated share of rows in the wrong cell: "
        f"{errors.mean(1):.3f} for a column, {errors.mean(2):.3f} for a pair"
    ]
    if errors.triples is not None:
        lines[0] += f", at least {max(errors.triples, errors.mean(2)):.3f} for three columns"
    return lines


def error_columns(errors: SynthesisErrors, attributes: Sequence[Attribute]) -> list[AnswerColumn]:
    """Return the table of errors: one row for each column and each pair."""
    names = [", ".join(attributes[place].name for place in columns) for columns in errors.margins]
    found = list(errors.margins.values())
    return [
        key_column("columns", names),
        key_column("noise", [round(each.noise, 4) for each in found]),
        key_column("error", [round(each.error, 4) for each in found]),
        key_column("at_most", [round(each.at_most, 4) for each in found]),
        key_column("verdict", [each.verdict for each in found]),
    ]


def draw_rows(joint: JointTable | PairTree, attributes: Sequence[Attribute], count: int, seed: int) -> pa.Table:
    """Draw synthetic rows; the seed makes them repeatable and protects nobody."""
    random = np.random.Generator(np.random.PCG64(seed))
    places = joint.draw(max(1, count), random).astype(int)
    shares = column_shares(joint, len(attributes))
    columns = {
        each.name: pa.array(draw_values(each, shares[number], places[:, number], random))
        for number, each in enumerate(attributes)
    }
    return pa.table(columns)


def column_shares(joint: JointTable | PairTree, columns: int) -> list[Floats]:
    """Return the fitted shares of each column's places."""
    first = joint.pair(0, 1)
    return [first.sum(axis=1), *(joint.pair(0, column).sum(axis=0) for column in range(1, columns))]


def draw_values(attribute: Attribute, shares: Floats, places: Floats, random: np.random.Generator) -> list[object]:
    """Draw values at places: declared ones, or within bins, evenly or rarer outwards where counts say so."""
    if not attribute.edges:
        return attribute.draw(places, random)
    lows, highs = (np.array([float(edge) for edge in side]) for side in (attribute.edges[:-1], attribute.edges[1:]))
    drawn, step = random.random(len(places)), float(attribute.step)
    values = lows[places] + (highs - lows)[places] * drawn
    for place, decay in enumerate(outward_decays(lows, highs, shares)):
        if decay > 0:
            low, high = lows[place], highs[place]
            near, far = min(abs(low), abs(high)), max(abs(low), abs(high))
            here = places == place
            away = near * (1 - drawn[here] * (1 - (near / far) ** decay)) ** (-1 / decay)
            values[here] = away if low >= 0 else -away
    steps = np.floor(values / step + 1e-9)
    steps = np.clip(steps, np.round(lows / step)[places], np.maximum(np.round(highs / step) - 1, lows / step)[places])
    return attribute.values_at(steps)


def outward_decays(lows: Floats, highs: Floats, shares: Floats) -> list[float]:
    """Return how fast values become rarer outwards in each bin, as a power of the distance from zero; 0 if they do not.

    The power joins the shares of rows beyond the two ends of a bin; the outermost bin has that of its inner neighbour.
    """
    found = [0.0] * len(lows)
    density = shares / np.maximum(highs - lows, 1e-300)  # a bin of a single value has no width
    for sign in (1, -1):
        near, far = (lows, highs) if sign > 0 else (-highs, -lows)
        outward = [int(place) for place in np.argsort(near) if near[place] > 0]
        decay = USUAL_DECAY
        for number, place in enumerate(outward):
            beyond, inner = float(shares[outward[number + 1 :]].sum()), place - sign
            ratio = far[place] / near[place]
            if beyond > 0:
                decay = float(np.log((beyond + shares[place]) / beyond) / np.log(ratio))
            falling = 0 <= inner < len(lows) and density[place] < density[inner]
            if ratio >= WIDE_RATIO and falling:
                found[place] = min(MOST_DECAY, max(LEAST_DECAY, decay))
    return found
