"""Noisy sums of products of a model's columns, each unit's sums scaled into one ball, in one charge.

The terms are 1 and the columns in standard units. A unit's sums of products are scaled down together, so a unit with
many rows keeps its own regression and has less weight. The radius of the ball, and centres and scales if they are
private, are chosen by private quantiles over units before anything is added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import EstimatedValue, Expr, LiteralValue
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count, SumVector
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk
from dither.post.contribution_bound import centre_candidates
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.span_terms import SearchShares, search_shares
from dither.post.query.spend import Spend
from dither.post.statistics.design import FINE, LARGEST_ZOOM, ONE, ZOOM_STEPS, Design
from dither.post.statistics.source_rows import Settings
from dither.post.statistics.steps import Released, listed_key, with_shares
from dither.privacy.protocol import BoundSearch, Calibrate

# A unit's sums are scaled into a ball of this radius, in steps of the lattice.
RADIUS = 1 << 20
# Candidates for what the radius stands for: sizes from 1 on that grow by the square root of two.
LARGEST_SIZE_LOG2 = 17
SIZE_STEPS = 16
# The share of units whose sums are scaled down, at about which the radius is chosen.
SCALED_UNITS = Fraction(1, 20)
# Rows, if each is a unit of its own, are moved to private limits in about this share.
MOVED_ROWS = Fraction(1, 100)
# Where public sizes are known it is this many rows over the epsilon of a choice; one in LEAST_MOVED at least.
MOVED_NEEDED, LEAST_MOVED, MOST_MOVED = 20, 1_000_000_000, Fraction(1, 50)
# The share of the loss for choosing centres, scales and the radius, all together.
SEARCH_SHARE = Fraction(1, 4)
# A scale is this many times the median of the units' mean distances from the centre.
SCALE_FACTOR = 2
# Sums of products of two different columns are measured this much finer, so that a row's L2 norm is its squared size.
OWN_WEIGHT, PAIR_WEIGHT = 5, 7
DRAWS = 20_000


@dataclass(frozen=True)
class Moments:
    """Noisy sums of products of all pairs of terms, 1 and the columns, in standard units.

    `matrix` has a row for each term. Cell c of the measure is entry `places[c]`, and `noises[c]` the standard deviation
    of its noise, of one kind in all cells. Entries that follow from others are copied: the square of an indicator is
    itself, and two levels of one category never meet.
    """

    matrix: Floats
    places: tuple[tuple[tuple[int, int], ...], ...]
    noises: Floats
    laplace: bool

    @property
    def count(self) -> float:
        """The noisy number of rows, at least 1."""
        return max(1.0, float(self.matrix[0, 0]))

    @cached_property
    def draws(self) -> Floats:
        """Draws of the noise of all cells, of unit variance; the same for the same number of cells."""
        return unit_draws(len(self.places), self.laplace)

    def map_of(self, derivative: Callable[[Floats], Floats]) -> Floats:
        """Return the linear map from the cells' noise to what a linear function of the matrix's noise makes of it."""
        size = len(self.matrix)
        rows = []
        for entries in self.places:
            change = np.zeros((size, size))
            for i, j in entries:
                change[i, j] = change[j, i] = 1.0
            rows.append(derivative(change))
        return np.stack(rows, axis=-1) * self.noises


@lru_cache(maxsize=8)
def unit_draws(cells: int, laplace: bool) -> Floats:
    """Return draws of independent noise of unit variance; a fixed sequence, for intervals only."""
    sequence = np.random.Generator(np.random.PCG64(0))
    shape = (DRAWS, cells)
    return sequence.laplace(0, np.sqrt(0.5), shape) if laplace else sequence.standard_normal(shape)


def half_widths(linear: Floats, draws: Floats, confidence: float) -> Floats:
    """Return half the widths of intervals for errors that are linear in the noise, one for each row of `linear`."""
    return np.asarray(np.quantile(np.abs(draws @ linear.T), confidence, axis=0))


@dataclass(frozen=True)
class MomentPlan:
    """The plan of noisy moments of a design: the measure, and the searches that choose its values.

    `shares` are those of the searches for the centre and for the scale of one number, where public sizes decide them.
    """

    settings: Settings
    design: Design
    shares: SearchShares | None = None

    @property
    def keyed(self) -> bool:
        """True if a unit may have several rows, so that its sums are scaled together; else each row is one unit's."""
        return not has_single_rows(self.settings, self.design.rows)

    @property
    def most_rows(self) -> int | None:
        """The most rows of one unit, by the plan or as given; None if that is to be bounded privately."""
        known = self.design.rows.stability(self.settings.context, self.settings.unit).max_rows
        return known if known is not None else self.settings.bound.max_rows

    @property
    def gaussian(self) -> bool:
        """True if noise is Gaussian, and sums are scaled by their L2 norm."""
        return self.settings.spend.gaussian

    @property
    def moved_rows(self) -> Fraction:
        """The share of rows that are moved to private limits, if each is a unit of its own.

        It is as small as the loss of a choice can tell from no rows at all, since moved rows change the results.
        """
        if self.shares is None:
            return MOVED_ROWS
        known = known_rows(self.design.rows, self.settings.context)
        return moved_share(known, self.settings.spend, self.shares) or MOVED_ROWS

    @property
    def searches_radius(self) -> bool:
        """True if the radius is chosen privately."""
        return self.keyed and (self.most_rows is None or self.design.standard == "private")

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of terms whose products are measured; term 0 is 1."""
        size = len(self.design.columns) + 1
        return [(i, j) for i in range(size) for j in range(i, size) if not self._follows(i, j)]

    def _follows(self, i: int, j: int) -> bool:
        """Return True if a product follows from others: the square of an indicator, or two levels of one category."""
        if i == 0:
            return False
        one, two = self.design.columns[i - 1], self.design.columns[j - 1]
        return one.indicator and two.indicator and one.source == two.source

    def radius(self) -> Expr:
        """Return the lattice steps of one unit of a product: RADIUS over the size that the ball stands for."""
        if self.searches_radius:
            return EstimatedValue(f"radius{self.design.suffix}", 1, RADIUS)
        rows = self.most_rows or 1
        return LiteralValue(Fraction(max(1, int(RADIUS / (rows * self.largest_row())))))

    def per_unit(self, chosen: Mapping[str, int]) -> float:
        """Return the lattice steps of one unit of a product, as the kernel chose them."""
        radius = self.radius()
        if isinstance(radius, LiteralValue):
            return float(Fraction(radius.value))  # type: ignore[arg-type]
        return float(chosen[f"radius{self.design.suffix}"])

    def largest_row(self) -> Fraction:
        """Return the most that the norm of one row's products can be, in standard units."""
        numbers, sources = len(self.design.numbers), {c.source for c in self.design.columns if c.indicator}
        reach = self.design.reach if self.design.standard == "private" else 1
        squares = Fraction(1 + numbers * reach**2 + len(sources))
        total = Fraction(1 + numbers * reach + len(sources))
        return squares if self.gaussian else (total**2 + squares) / 2

    def measure(self) -> Measure:
        """Build the measure of all products."""
        relation, unit = self.design.relation(), self.settings.unit
        values = tuple(self._cell(i, j) for i, j in self.pairs)
        if not self.keyed:
            return SumVector(relation, values)
        return ClippedSums(relation, unit, values, RADIUS, "l2" if self.gaussian else "l1")

    def _weight(self, i: int, j: int) -> int:
        """Return how much finer a product is measured, in units of the step of its cell."""
        if not self.gaussian:
            return OWN_WEIGHT
        return OWN_WEIGHT if i == j else PAIR_WEIGHT

    def _cell(self, i: int, j: int) -> Expr:
        """Return the value that a row adds to a cell, rounded to whole steps."""
        weighted = expr.Arithmetic("*", LiteralValue(Fraction(self._weight(i, j))), term_product(i, j))
        return expr.Rounded("round", expr.Arithmetic("*", self.radius(), weighted), Fraction(OWN_WEIGHT))

    def read(self, values: Floats, noise: ScaledNoise, chosen: Mapping[str, int]) -> Moments:
        """Return the moments that were released, in standard units."""
        per_unit = self.per_unit(chosen)
        scales = np.array([1 / (self._weight(i, j) * per_unit) for i, j in self.pairs])
        places = tuple(self._entries(i, j) for i, j in self.pairs)
        matrix = np.zeros((len(self.design.columns) + 1,) * 2)
        for cell, entries in enumerate(places):
            for i, j in entries:
                matrix[i, j] = matrix[j, i] = values[cell] * scales[cell]
        return Moments(matrix, places, noise.std * scales, noise.kind == "laplace")

    def _entries(self, i: int, j: int) -> tuple[tuple[int, int], ...]:
        """Return the entries of the matrix that a cell has: the sum of an indicator is also that of its square."""
        is_sum_of_indicator = i == 0 and j > 0 and self.design.columns[j - 1].indicator
        return ((i, j), (j, j)) if is_sum_of_indicator else ((i, j),)

    # --- searches ------------------------------------------------------------------------------------------------

    def searches(self) -> list[BoundSearch]:
        """Build the searches for centres, scales and the radius; their losses are still to be set."""
        found: list[BoundSearch] = []
        if self.design.standard == "private":
            for place in self.design.private_numbers:
                found += [self._centre_search(place), self._zoom_search(place)]
        return [*found, self._radius_search()] if self.searches_radius else found

    def _places_of(self, value: Expr, cuts: tuple[Fraction, ...], places: Sequence[int]) -> Measure:
        """Count units by the place of their mean of a value between cuts; a row unit has one value."""
        relation: Relation = Project(self.design.rows, (("value", value),))
        if self.keyed:
            mean = GroupAggregate("value", "avg", expr.ColumnRef("value"))
            relation = GroupBy(relation, (), (mean,), self.settings.unit)
        return Count(relation, (listed_key("place", places, expr.Bucket(expr.ColumnRef("value"), cuts)),))

    def _search(self, tag: str, histogram: Measure, grid: Sequence[int], level: Fraction) -> BoundSearch:
        """Build a search for a quantile over units; its loss is set later."""
        mechanism = Calibrate(self.settings.spend.quantile_kind, self.settings.spend.loss, (("quantiles", (level,)),))
        return BoundSearch(histogram, mechanism, tuple(grid), tag)

    def _centre_search(self, place: int) -> BoundSearch:
        """Build the search for the centre of a column: the median over units of their means."""
        points = centre_candidates(-FINE, FINE)
        cuts = tuple(Fraction(low + high, 2) for low, high in pairwise(points))
        value = expr.Rescale(self.design.columns[place].value, FINE)
        histogram = self._places_of(value, cuts, range(len(points)))
        return self._search(
            f"centre{place}{self.design.suffix}", histogram, [point + FINE + 1 for point in points], Fraction(1, 2)
        )

    def zooms(self, place: int) -> list[int]:
        """Return the candidates for the zoom of a column, in steps of 1 / ZOOM_STEPS."""
        # A row at one end of the declared range may be two half widths from the centre; units reach further than that.
        finer, least = (2, 0) if self.keyed else (4, -4)
        logs = range(least, finer * (LARGEST_ZOOM.bit_length() - 1) + 1)
        zooms = [round(ZOOM_STEPS * 2 ** (log / finer)) for log in logs]
        # A scale is at least a step of the column, or what is mostly one value would lose all others.
        column = self.design.columns[place]
        most = ZOOM_STEPS * (column.high - column.low) / (2 * column.step) if column.step else zooms[-1]
        return [zoom for zoom in zooms if zoom <= max(most, zooms[1])]

    def _zoom_search(self, place: int) -> BoundSearch:
        """Build the search for the scale of a column, from the units' mean distances from its centre."""
        zooms = self.zooms(place)
        factor, level = (SCALE_FACTOR, Fraction(1, 2)) if self.keyed else (1, self.moved_rows)
        ends = [Fraction(FINE * ZOOM_STEPS, factor * zoom) for zoom in reversed(zooms)]
        value = expr.Absolute(self.design.distance(place))
        # The largest distance comes first, so that zooms increase.
        histogram = self._places_of(value, tuple(ends[:-1]), range(len(zooms) - 1, -1, -1))
        return self._search(f"zoom{place}{self.design.suffix}", histogram, zooms, level)

    def _radius_search(self) -> BoundSearch:
        """Build the search for the size that the ball stands for: most units' products have a smaller norm."""
        sizes = [Fraction(round(SIZE_STEPS * 2 ** (log / 2)), SIZE_STEPS) for log in range(2 * LARGEST_SIZE_LOG2 + 1)]
        per_unit = GroupBy(
            Project(self.design.relation(), (("size", self.row_size()),)),
            (),
            (GroupAggregate("size", "sum", expr.ColumnRef("size")),),
            self.settings.unit,
        )
        places = range(len(sizes) - 1, -1, -1)
        key = listed_key("place", places, expr.Bucket(expr.ColumnRef("size"), tuple(sizes[:-1])))
        grid = [int(RADIUS / size) for size in reversed(sizes)]
        return self._search(f"radius{self.design.suffix}", Count(per_unit, (key,)), grid, SCALED_UNITS)

    @property
    def reach_note(self) -> str:
        """Say what it means that values were moved into private ranges."""
        return (
            "the results are about the columns so limited, as if values beyond were at the end, and those about all "
            "values may be far from them"
        )

    def least_scale(self, place: int) -> float:
        """Return the smallest scale that may be chosen for a number, so that the data may have chosen less."""
        return self.design.columns[place].half_width / self.zooms(place)[-1] * ZOOM_STEPS

    def assumed_choices(self, size: int) -> dict[str, int]:
        """Return the values that quotes assume before they are chosen, for units whose products have this size."""
        chosen = {search.tag: search.grid[len(search.grid) // 2] for search in self.searches()}
        chosen |= {tag: LARGEST_ZOOM * ZOOM_STEPS // (1 << 8) for tag in chosen if tag.startswith("zoom")}
        return chosen | {tag: RADIUS // size for tag in chosen if tag.startswith("radius")}

    def row_size(self) -> Expr:
        """Return the norm of a row's products: its squared length in L2; in L1 half of that and its squared L1 norm."""
        columns: list[Expr] = [expr.ColumnRef(f"z{place}") for place in range(len(self.design.columns))]
        squares = add_up([ONE, *(expr.Arithmetic("*", column, column) for column in columns)])
        size = squares
        if not self.gaussian:
            total = add_up([ONE, *(expr.Absolute(column) for column in columns)])
            both = expr.Arithmetic("+", expr.Arithmetic("*", total, total), squares)
            size = expr.Arithmetic("*", LiteralValue(Fraction(1, 2)), both)
        return expr.Rounded("ceil", size, Fraction(1, SIZE_STEPS))


def known_rows(relation: Relation, context: Context) -> float | None:
    """Return the noisy size of the largest table that is read, or None."""
    tables = {node.table for node in walk(relation) if isinstance(node, Scan)}
    return float(max((context.noisy_rows(table) or 0 for table in tables), default=0)) or None


def moved_share(rows: float | None, spend: Spend, shares: SearchShares) -> Fraction | None:
    """Return the smallest share of rows that a search for a scale can tell from no rows; None if it is too large."""
    epsilon = 2 * math.sqrt(spend.amount * shares.length) if spend.gaussian else float(spend.amount * shares.length)
    informative = (rows or 0.0) * epsilon
    if informative * float(MOST_MOVED) < MOVED_NEEDED:
        return None
    return Fraction(1, min(LEAST_MOVED, int(informative / MOVED_NEEDED)))


def range_shares(rows: float | None, spend: Spend, numbers: int) -> SearchShares | None:
    """Return the shares for choosing the private range of each of some numbers; None if too few rows are known.

    All choices together take a quarter of the loss at most.
    """
    epsilon = 2 * math.sqrt(spend.amount) if spend.gaussian else float(spend.amount)
    found = search_shares(rows or 0.0, epsilon, spend.gaussian)
    if found is None:
        return None
    fit = min(Fraction(1), SEARCH_SHARE / (numbers * (found.middle + found.length)))
    fitted = SearchShares(found.middle * fit, found.length * fit)
    return fitted if moved_share(rows, spend, fitted) else None


def has_single_rows(settings: Settings, relation: Relation) -> bool:
    """Return True if no unit has two rows of a relation: rows are units, or unique in their table."""
    single = settings.context.dataset.units[settings.unit].kind == "row"
    return single or relation.stability(settings.context, settings.unit).max_rows == 1


def add_up(values: Sequence[Expr]) -> Expr:
    """Return the expression of a sum."""
    total = values[0]
    for value in values[1:]:
        total = expr.Arithmetic("+", total, value)
    return total


def term_product(i: int, j: int) -> Expr:
    """Return the product of two terms; term 0 is 1, and term p the column z(p-1)."""
    terms = [ONE if place == 0 else expr.ColumnRef(f"z{place - 1}") for place in (i, j)]
    if i == 0:
        return terms[1]
    return expr.Arithmetic("*", terms[0], terms[1])


def searches_with_shares(plan: MomentPlan) -> tuple[tuple[BoundSearch, ...], Fraction]:
    """Return the searches of a plan with their losses, and the share of the loss that they leave."""
    searches = plan.searches()
    if not searches:
        return (), Fraction(1)
    if plan.shares is None:
        return with_shares(searches, plan.settings, SEARCH_SHARE / len(searches)), 1 - SEARCH_SHARE
    # A number has a search for its centre, and then one for its scale.
    own = [plan.shares.middle, plan.shares.length] * (len(searches) // 2)
    found = [with_shares([search], plan.settings, share) for search, share in zip(searches, own, strict=True)]
    return tuple(search for (search,) in found), 1 - sum(own, Fraction(0))


def read_moments(plan: MomentPlan, released: Released) -> Moments:
    """Return the moments that the first step of a statistic released."""
    return plan.read(released.values(), released.noise(), released.chosen)
