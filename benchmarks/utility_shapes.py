"""Generated people: how far counts are off at user level, at epsilon 1 unless said, and how often their intervals hold.

    python benchmarks/utility_shapes.py [--sets 10] [--runs 50] [--seed N] [--only NAME] [--epsilon E] [--profile E]

`benchmarks/utility.py` prints these tables beside those of real data. A question is planned by the product's planner;
its search, the rule that chooses the bound, the noise scales and the intervals are the product's own functions. Only
the engine and the entropy are replaced: exact histograms and clipped sums come from numpy, and the noise is numpy's
discrete Laplace, so that thousands of answers take minutes. Nothing here protects anybody. With `--profile`, each
answer may use a profile of that epsilon, drawn for it alone.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dither.loss import Pure, rational
from dither.plan.context import Context, with_public_facts
from dither.plan.traversal import fill_limits
from dither.post.contribution_bound import ContributionBound
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import estimate
from dither.post.estimate.measured import cell_shares, clipped_column, clipped_total
from dither.post.estimate.profile import (
    Profile,
    ProfiledHistogram,
    bucket_of,
    profile_items,
    profile_request,
    search_key,
    use_profile,
)
from dither.post.formulas import NoisyCell
from dither.post.noise import noise_of
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import ContributionSearch, QueryPlan
from dither.post.query.request import answer_measurements, bound_searches, mechanism_of
from dither.post.query.spend import Spend
from dither.post.query.typical_rows import SIZE_ROWS
from dither.privacy.contribution_bound import bound_errors, fit_contributions
from dither.privacy.protocol import BoundRule
from dither.schema.parser import loads

PEOPLE = 20_000
CAP = 5_000
# The mark for the RMSE over hindsight of answers that have a profile.
MOST_WITH_PROFILE = 1.7
SIX_CELLS = np.array([0.8, 0.09, 0.06, 0.03, 0.015, 0.005])
Draw = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class Shape:
    """A distribution of rows per person; `held_out` if no constant of the method was set on it; `cap` is public."""

    draw: Draw
    held_out: bool = False
    heavy: bool = False
    most: float = 2.5
    cap: int | None = None


SHAPES: dict[str, Shape] = {
    "one row": Shape(lambda random: np.ones(PEOPLE), True),
    "Poisson 20": Shape(lambda random: random.poisson(20, PEOPLE)),
    "geometric 20": Shape(lambda random: random.geometric(1 / 20, PEOPLE), True),
    "lognormal (2, 1)": Shape(lambda random: random.lognormal(2, 1, PEOPLE)),
    "lognormal (1.5, 1.7)": Shape(lambda random: random.lognormal(1.5, 1.7, PEOPLE), heavy=True, most=4.0),
    "Pareto 1.5": Shape(lambda random: 3 * (1 + random.pareto(1.5, PEOPLE)), heavy=True),
    "Pareto 1.1": Shape(lambda random: 3 * (1 + random.pareto(1.1, PEOPLE)), heavy=True),
    "Pareto 1.1, declared cap": Shape(
        lambda random: np.minimum(3 * (1 + random.pareto(1.1, PEOPLE)), CAP), heavy=True, cap=CAP
    ),
    "two kinds": Shape(
        lambda random: np.where(random.random(PEOPLE) < 0.02, random.poisson(600, PEOPLE), random.poisson(4, PEOPLE)),
        True,
    ),
    "300 people, Poisson 20": Shape(lambda random: random.poisson(20, 300)),
    "432 people, one row": Shape(lambda random: np.ones(432)),
    "own: negative binomial": Shape(lambda random: random.negative_binomial(0.4, 0.4 / 30.4, PEOPLE), True),
    "own: stretched exponential": Shape(lambda random: 8 * random.weibull(0.5, PEOPLE), True),
    "own: one row or a dozen": Shape(
        lambda random: np.where(random.random(2_000) < 0.7, 1, random.poisson(12, 2_000)), True
    ),
}


def in_one_cell(rows: Any, random: np.random.Generator) -> Any:
    """Everything in one cell."""
    return rows[:, None]


def in_six_cells(rows: Any, random: np.random.Generator) -> Any:
    """Each row in one of six cells of very different size, whoever's it is."""
    return random.multinomial(rows, SIX_CELLS)


def each_in_one_of_sixteen(rows: Any, random: np.random.Generator) -> Any:
    """Each person in one of sixteen cells, as planes belong to carriers; the cells' sizes fall geometrically."""
    shares = 0.75 ** np.arange(16)
    table = np.zeros((len(rows), 16), int)
    table[np.arange(len(rows)), random.choice(16, len(rows), p=shares / shares.sum())] = rows
    return table


LAYOUTS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "one cell": in_one_cell,
    "six cells": in_six_cells,
    "sixteen cells, each person in one": each_in_one_of_sixteen,
}
DESCRIPTION = """
version: 1
name: made
population: made
data_version: "1"
tables:
  visits:
    private: true
    source: {{kind: parquet, path: visits.parquet}}
    columns:
      person: {{type: identifier, kind: integer}}
      cell: {{type: category, values: [{cells}]}}
units:
  person: {{kind: user, keys: {{visits: person}}}}
budgets:
  - {{unit: person, kind: pure, epsilon: 1000}}
"""


@dataclass(frozen=True)
class Planned:
    """A count by cell, planned by the product, at epsilon 1."""

    context: Context
    plan: QueryPlan
    spend: Spend
    profile_epsilon: float = 0.0

    @classmethod
    def of(
        cls, table: Any, cap: int | None, random: np.random.Generator, epsilon: float = 1.0, profile: float = 0.0
    ) -> Planned:
        """Plan a count of rows, by cell if there are several; a public cap cuts the ladder of bounds.

        The kernel has published the noisy sizes that it measures at registration.
        """
        cells, rows = table.shape[1], table.sum(axis=1)
        description = DESCRIPTION.format(cells=", ".join(f"c{index}" for index in range(cells)))
        dataset = loads(description, Path("."))
        scale = 2 / float(dataset.size_epsilon)
        units = int((rows > 0).sum() + discrete_laplace(scale, 1, random)[0])
        clipped = int(np.minimum(rows, SIZE_ROWS).sum() + discrete_laplace(SIZE_ROWS * scale, 1, random)[0])
        context = Context(with_public_facts(dataset, False, {"visits": clipped, "": units}))
        query = "SELECT COUNT(*) AS n FROM visits" + (" GROUP BY cell" if cells > 1 else "")
        question = parse_query(query, context.dataset, "person")
        plan = Planner(context, ContributionBound(auto=True)).plan(question)
        searches = tuple(_cut_at(search, cap) for search in plan.searches if isinstance(search, ContributionSearch))
        return cls(context, replace(plan, searches=searches), Spend(Pure(rational(epsilon))), profile)


def _cut_at(search: ContributionSearch, cap: int | None) -> ContributionSearch:
    if cap is None:
        return search
    top = cap * search.row_size
    edges = tuple(edge for edge in search.edges if edge <= top)
    return replace(search, edges=edges, candidates=(*(bound for bound in search.candidates if bound < top), top))


@dataclass(frozen=True)
class World:
    """A set of people whose rows are counted: people by cells."""

    planned: Planned
    table: Any
    epsilon: float = 1.0

    @cached_property
    def search(self) -> ContributionSearch:
        """The search for the bound."""
        (search,) = self.planned.plan.searches
        assert isinstance(search, ContributionSearch)
        return search

    @cached_property
    def steps(self) -> int:
        """The steps of the bound that one row has."""
        return self.search.row_size

    @cached_property
    def sizes(self) -> Any:
        """The contribution of each person, in steps."""
        sizes = self.table.sum(axis=1) * self.steps
        return sizes[sizes > 0]

    @cached_property
    def truth(self) -> Any:
        """The unbounded counts."""
        return self.table.sum(axis=0)

    @cached_property
    def histogram(self) -> Any:
        """The exact number of people in each bin of the search."""
        return self.people_between(self.search.edges)

    def people_between(self, edges: tuple[int, ...]) -> Any:
        """The exact number of people between edges, in steps."""
        places = np.searchsorted(edges, self.sizes, side="right")
        return np.bincount(places, minlength=len(edges) + 1)

    @cached_property
    def clipped(self) -> dict[int, Any]:
        """The exact clipped counts at each bound, in steps."""
        rows = self.table[self.table.sum(axis=1) > 0] * self.steps
        return {
            bound: np.floor(rows * np.minimum(1.0, bound / self.sizes)[:, None] + 1e-9).sum(axis=0)
            for bound in self.search.candidates
            if bound <= 2 * self.sizes.max()
        }

    def clipped_at(self, bound: int) -> Any:
        """The exact clipped counts at a bound; beyond the largest person they are the truth."""
        return self.clipped.get(bound, self.truth * self.steps)

    @cached_property
    def largest(self) -> int:
        """The cell with the most people."""
        return int(np.argmax((self.table > 0).sum(axis=0)))

    @cached_property
    def best(self) -> float:
        """The error of the largest cell at the best fixed bound in hindsight, with the whole epsilon for the answer."""
        truth, place = self.truth[self.largest], self.largest
        return min(
            float(np.hypot(exact[place] / self.steps - truth, np.sqrt(2) * bound / self.steps / self.epsilon))
            for bound, exact in self.clipped.items()
        )


def discrete_laplace(scale: float, size: int, random: np.random.Generator) -> Any:
    """Discrete Laplace noise by numpy: the difference of two geometric variables."""
    chance = -np.expm1(-1 / scale)
    return random.geometric(chance, size) - random.geometric(chance, size)


@dataclass(frozen=True)
class Answered:
    """One answer: estimates and the ends of intervals for each cell, and the bound that was chosen."""

    value: Any
    low: Any
    high: Any
    bound: int


def answer(world: World, random: np.random.Generator) -> Answered:
    """Answer once, as kernel and session do: search, bound, clipped sums with noise, estimate with its interval."""
    planned, search = world.planned, world.search
    context = planned.context
    profiled = use_profile(planned.plan, drawn_profile(world, random), planned.spend, context)
    plan = profiled.plan
    chosen = profiled.bounds[search.tag] if profiled.bounds else searched(world, random)
    (part,) = answer_measurements(plan, planned.spend, context)
    measure = fill_limits(part.measure, {search.tag: chosen.bound})
    noise = noise_of(
        mechanism_of(replace(part, measure=measure), measure.sensitivity(context, plan.unit)), 1 / _steps(world)
    )
    values = world.clipped_at(chosen.bound) + discrete_laplace(noise.spread, len(world.truth), random)
    share = cell_shares(values, clipped_total(values, np.sqrt(2) * noise.spread, chosen), float(chosen.bound))
    column = clipped_column(values / world.steps, noise, share, chosen, 1 / world.steps, 0.95)
    found = estimate(NoisyCell(0), [column], [], 0.95)
    return Answered(found.value, found.low, found.high, chosen.bound)


def searched(world: World, random: np.random.Generator) -> EstimatedBound:
    """Choose a bound as the kernel does, by a search within the question's own loss."""
    planned, search = world.planned, world.search
    (sought,) = bound_searches(planned.plan, planned.spend, planned.context)
    rule = sought.rule
    assert isinstance(rule, BoundRule)
    mechanism = mechanism_of(sought, search.measure.sensitivity(planned.context, planned.plan.unit))  # type: ignore[arg-type]
    scale = mechanism.std() / np.sqrt(2)
    noisy = world.histogram + discrete_laplace(scale, len(world.histogram), random)
    model = fit_contributions(rule.points, noisy, scale, rule.step, sought.grid[-1], rule.row, rule.sizes)
    bound = sought.grid[int(np.argmin(bound_errors(model, sought.grid, rule)))]
    return EstimatedBound(bound, model, row_size=search.row_size)


def drawn_profile(world: World, random: np.random.Generator) -> Profile | None:
    """Measure a profile, whose only item is the number of people by their rows; None without an epsilon for it."""
    planned = world.planned
    if not planned.profile_epsilon:
        return None
    items = profile_items(planned.context, planned.plan.unit)
    (part,) = profile_request(planned.context, planned.plan.unit, rational(planned.profile_epsilon), items).parts
    (search,) = (item.search for item in items)
    assert isinstance(search, ContributionSearch)
    mechanism = mechanism_of(part, part.measure.sensitivity(planned.context, planned.plan.unit))
    counts = world.people_between(tuple(edge * world.steps // search.row_size for edge in search.edges))
    noisy = counts + discrete_laplace(mechanism.std() / np.sqrt(2), len(counts), random)
    cuts = bucket_of(part.measure).edges
    return Profile({search_key(search): ProfiledHistogram(cuts, tuple(map(int, noisy)), mechanism)}, {})


def _steps(world: World) -> Any:
    return world.steps


@dataclass(frozen=True)
class Measured:
    """The figures of one shape and layout, over several sets of people with several answers each."""

    error: float
    worst_error: float
    width: float
    largest: float
    worst_largest: float
    every: float
    bias: float
    wide: int
    answers: int


def measure(
    shape: Shape,
    layout: Callable[..., Any],
    sets: int,
    runs: int,
    random: np.random.Generator,
    epsilon: float = 1.0,
    profile: float = 0.0,
) -> Measured:
    """Answer `runs` times for each of `sets` fresh sets of people."""
    found = []
    for _ in range(sets):
        table = layout(np.ceil(shape.draw(random)).astype(int), random)
        world = World(Planned.of(table, shape.cap, random, epsilon, profile), table, epsilon)
        found.append(measure_world(world, [answer(world, random) for _ in range(runs)]))
    figures = np.array([one[:-1] for one in found])
    halves = np.concatenate([one[-1] for one in found])
    middle, mean = np.median(figures, axis=0), figures.mean(axis=0)
    return Measured(
        middle[0], figures[:, 0].max(), middle[1], mean[2], figures[:, 2].min(), mean[3], mean[4],
        int(halves.sum()), sets * runs,
    )  # fmt: skip


def measure_world(world: World, answers: list[Answered]) -> tuple[float, float, float, float, float, Any]:
    """RMSE over hindsight, half-width over RMSE, both covers, the bias of the total, and which answers were wide."""
    value, low, high = (np.array([getattr(one, part) for one in answers]) for part in ("value", "low", "high"))
    largest, held = world.largest, (low <= world.truth) & (world.truth <= high)
    error = max(float(np.sqrt(np.mean((value - world.truth)[:, largest] ** 2))), 1e-9)  # a few answers may be exact
    half = (high - low)[:, largest] / 2
    bias = float((value.sum(axis=1).mean() - world.truth.sum()) / world.truth.sum())
    wide = half > 20 * np.median(half)
    return error / world.best, float(np.median(half)) / error, held[:, largest].mean(), held.mean(), bias, wide


def rows(sets: int, runs: int, seed: int, only: str = "", epsilon: float = 1.0, profile: float = 0.0) -> list[str]:
    """A table in Markdown: a row for each shape and layout; figures beyond their mark are in bold."""
    lines = [
        "| shape | layout | RMSE / best fixed bound in hindsight (worst set) | half-width / RMSE | cover, largest cell "
        "(worst set) | cover, all cells | bias of the total | interval 20 x the median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for place, (name, shape) in enumerate(SHAPES.items()):
        for number, (layout_name, layout) in enumerate(LAYOUTS.items()):
            if only and only not in name:
                continue
            one = measure(shape, layout, sets, runs, np.random.default_rng([seed, place, number]), epsilon, profile)
            most = MOST_WITH_PROFILE if profile else shape.most
            lines.append(row(f"{name}{' *' if not shape.held_out else ''}", layout_name, shape, one, most))
            print(lines[-1], flush=True)
    return lines


def row(name: str, layout: str, shape: Shape, one: Measured, most: float) -> str:
    """One row of the table."""
    error = mark(f"{one.error:.2f}", one.error > most)
    width = mark(f"{one.width:.1f}", one.width > (8 if shape.heavy else 4))
    largest, every = mark(f"{one.largest:.3f}", one.largest < 0.93), mark(f"{one.every:.3f}", one.every < 0.93)
    return (
        f"| {name} | {layout} | {error} ({one.worst_error:.2f}) | {width} | {largest} ({one.worst_largest:.2f}) | "
        f"{every} | {one.bias:+.2%} | {one.wide} of {one.answers} |"
    )


def mark(text: str, missed: bool) -> str:
    """Write a figure that misses its mark in bold."""
    return f"**{text}**" if missed else text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--profile", type=float, default=0.0, help="the epsilon of a profile; 0 for none")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6) + 1
    rows(options.sets, options.runs, seed, options.only, options.epsilon, options.profile)
    print(f"seed {seed}")


if __name__ == "__main__":
    main()
