"""Moments of units with one row each: numbers lie within spans of their declared ranges, which are chosen privately.

As for SUM and AVG (`query.spans`), a span lies around a private median and is moved where it would leave the declared
range; the longest one is that range. So numbers that fill their range are measured as in declared ranges, for a little
less of the loss. Lengths are chosen so that what is moved to the ends changes sums by a small part of their noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

from dither.loss import rational
from dither.plan import expressions as expr
from dither.plan.expressions.core import EstimatedValue, Expr, LiteralValue
from dither.plan.measures.sums import Count
from dither.plan.relations.project import Project
from dither.post.contribution_bound import centre_candidates
from dither.post.query.span_terms import SearchShares
from dither.post.query.spans import Span, half_lengths
from dither.post.query.spend import Spend
from dither.post.statistics.design import Design, Scaling
from dither.post.statistics.moments import MomentPlan
from dither.post.statistics.steps import additive, expected_noise, listed_key
from dither.privacy.protocol import BoundRule, BoundSearch, Measurement

# All searches together take at most this share of the loss: standard errors are at most a seventh larger for them.
MOST_SEARCHED = Fraction(1, 8)
# The part of it for lengths; the rest is for middles.
LENGTH_PART = Fraction(3, 4)
# What a length needs, in rows times epsilon: at least, and where there are more rows; and its least share of the loss.
FEWEST_UNITS, LENGTH_UNITS, LEAST_LENGTH = 400, 10_000, Fraction(3, 100)
# What is moved to the ends of a span may change a sum by about the standard deviation of its noise over this.
BIAS_PART = 2
# A declared range has at most so many steps on each side of its middle, and a span on each side of its own.
FINEST, SPAN_RESOLUTION = 1 << 28, 1 << 15
# Rescaled values times this many numbers need to stay below 2^62.
LARGEST_STRETCHED = 1 << 59
# The shortest span is this part of the declared range, and has at least this many steps on each side.
SHORTEST, FEWEST_STEPS = 1 << 16, 1 << 8
# Quotes assume spans of this part of the declared range.
TYPICAL_PART = 4


@dataclass(frozen=True)
class SpanDesign(Design):
    """A design whose private numbers lie within spans of their declared ranges; each unit has one row."""

    def fine(self, place: int) -> int:
        """Return the steps on each side of the middle of a declared range, in which spans are chosen."""
        column = self.columns[place]
        steps = (column.high - column.low) / column.step if column.step else Fraction(1)
        return 1 << max(16, min(FINEST, int(LARGEST_STRETCHED / steps)).bit_length() - 1)

    def span(self, place: int) -> Span:
        """Return the span of a number, in fine steps of its declared range."""
        fine = self.fine(place)
        half = EstimatedValue(f"half{place}{self.suffix}", 1, fine)
        anchor = EstimatedValue(f"centre{place}{self.suffix}", -fine, fine)
        return Span(expr.Rescale(self.columns[place].value, fine), None, half, anchor)

    def standard_value(self, place: int) -> Expr:
        """Return a column in standard units: the distance from the middle of its span over half the length."""
        if place not in self.private_numbers:
            return super().standard_value(place)
        span = self.span(place)
        distance = expr.Arithmetic("-", span.value, span.middle)
        stretched = expr.Arithmetic("*", LiteralValue(Fraction(SPAN_RESOLUTION)), distance)
        steps = expr.Rounded("round", expr.Arithmetic("/", stretched, span.half))
        inside = expr.Clamp(steps, Fraction(-SPAN_RESOLUTION), Fraction(SPAN_RESOLUTION))
        return expr.Arithmetic("*", inside, LiteralValue(Fraction(1, SPAN_RESOLUTION)))

    def scaling(self, chosen: Mapping[str, int]) -> Scaling:
        """Return the middles and half lengths in raw units, from the values that the kernel chose."""
        centres, scales = np.zeros(len(self.columns)), np.ones(len(self.columns))
        for place in self.numbers:
            column = self.columns[place]
            middle, half = self._chosen_part(place, chosen) if place in self.private_numbers else (0.0, 1.0)
            centres[place] = column.middle + middle * column.half_width
            scales[place] = half * column.half_width
        return Scaling(centres, scales, 1.0)

    def _chosen_part(self, place: int, chosen: Mapping[str, int]) -> tuple[float, float]:
        """Return the middle of a span and half its length, in half widths of the declared range."""
        fine, half = self.fine(place), chosen[f"half{place}{self.suffix}"]
        middle = -fine + chosen[f"centre{place}{self.suffix}"] - 1
        return min(max(middle, half - fine), fine - half) / fine, half / fine

    def centres(self, place: int) -> tuple[int, ...]:
        """Return the candidates for the median: evenly over the declared range, and more near its point next to 0."""
        fine, column = self.fine(place), self.columns[place]
        zero = min(max(float(-column.middle / column.half_width), -1.0), 1.0)
        at = round(zero * fine)
        return tuple(point + at for point in centre_candidates(-fine - at, fine - at))

    def halves(self, place: int) -> tuple[int, ...]:
        """Return the candidates for half the length of a span: from a step of the column to half the declared width."""
        fine, column = self.fine(place), self.columns[place]
        # A shorter one would lose all other values of a column that is mostly one value.
        least = max(fine // SHORTEST, FEWEST_STEPS, round(2 * fine * column.step / (column.high - column.low)))
        return tuple(half for half in half_lengths(fine) if half >= min(least, fine))


@dataclass(frozen=True)
class SpanMoments(MomentPlan):
    """The plan of noisy moments within spans."""

    @cached_property
    def spans(self) -> SpanDesign:
        """The design, whose numbers have spans."""
        if not isinstance(self.design, SpanDesign):
            raise TypeError(f"moments within spans need a SpanDesign; got {type(self.design).__name__}")
        return self.design

    def searches(self) -> list[BoundSearch]:
        """Build the searches for the middle and the length of each span; their losses are still to be set."""
        found = []
        for place in self.design.private_numbers:
            found += [self._centre_search(place), self._length_search(place)]
        return found

    def _centre_search(self, place: int) -> BoundSearch:
        """Build the search for the median around which a span lies."""
        points, fine = self.spans.centres(place), self.spans.fine(place)
        cuts = tuple(Fraction(low + high, 2) for low, high in pairwise(points))
        histogram = self._places_of(self.spans.span(place).value, cuts, range(len(points)))
        tag = f"centre{place}{self.design.suffix}"
        return self._search(tag, histogram, [point + fine + 1 for point in points], Fraction(1, 2))

    def _length_search(self, place: int) -> BoundSearch:
        """Build the search for half the length of a span: a noisy histogram of what rows need, and the rule."""
        span, bins = self.spans.span(place), self.spans.halves(place)
        needed = Project(self.design.rows, (("value", span.length_needed),))
        cuts = tuple(Fraction(2 * half + 1) for half in bins[:-1]) or (Fraction(2 * bins[-1] + 1),)
        key = listed_key("length", range(len(cuts) + 1), expr.Bucket(expr.ColumnRef("value"), cuts))
        histogram = Count(needed, (key,))
        rule = BoundRule(tuple(half + 1 for half in bins[: len(cuts)]), self.noise_of_step, 1, signed=True)
        mechanism = additive(self.settings, histogram, self.settings.spend.loss)
        return BoundSearch(histogram, mechanism, bins, span.half.tag, rule)

    @cached_property
    def noise_of_step(self) -> Fraction:
        """The noise in a sum of values for each step of half a length, by which lengths are judged."""
        measure, shares = self.measure(), self.shares or SearchShares(Fraction(0), Fraction(0))
        left = 1 - len(self.design.private_numbers) * (shares.middle + shares.length)
        measurement = Measurement(measure, additive(self.settings, measure, self.settings.spend.share(left)))
        noise = expected_noise(self.settings.context, self.settings.unit, measurement)
        finest = max(self._weight(i, j) for i, j in self.pairs) * self.per_unit({})
        return rational(f"{noise.std / finest / BIAS_PART:.6g}")

    @property
    def reach_note(self) -> str:
        """Say what it means that values were moved into spans."""
        return (
            "these are so long that values beyond should change the results by less than the noise does; a few values "
            "far beyond all others may not show in the noise"
        )

    def least_scale(self, place: int) -> float:
        """Return the smallest scale that may be chosen for a number."""
        return self.design.columns[place].half_width * self.spans.halves(place)[0] / self.spans.fine(place)

    def assumed_choices(self, size: int) -> dict[str, int]:
        """Return the values that quotes assume before they are chosen."""
        chosen = {search.tag: search.grid[len(search.grid) // 2] for search in self.searches()}
        halves = {self.spans.span(place).half for place in self.design.private_numbers}
        return chosen | {half.tag: half.hi // TYPICAL_PART for half in halves}


def length_shares(rows: float | None, spend: Spend, numbers: int) -> SearchShares | None:
    """Return the shares of the searches for the span of each of some numbers; None if too few rows are known.

    Searches need an absolute epsilon, not a share of the loss. Gaussian noise falls with the root of its share only.
    """
    informative = (rows or 0.0) * spend.rough_epsilon
    most = LENGTH_PART * MOST_SEARCHED / numbers
    if most * informative < FEWEST_UNITS:
        return None
    wanted = max(LEAST_LENGTH, Fraction(LENGTH_UNITS / informative).limit_denominator(1000))
    return shares_of(min(most, wanted), spend)


def largest_shares(spend: Spend, numbers: int) -> SearchShares:
    """Return the largest shares of searches, for private ranges that are asked for where too few rows are known."""
    return shares_of(LENGTH_PART * MOST_SEARCHED / numbers, spend)


def shares_of(length: Fraction, spend: Spend) -> SearchShares:
    """Return the shares of the loss for a middle and a length, if the latter has this share of epsilon."""
    middle = length * (1 - LENGTH_PART) / LENGTH_PART
    if spend.gaussian:
        return SearchShares((2 * middle) ** 2, (2 * length) ** 2)
    return SearchShares(middle, length)
