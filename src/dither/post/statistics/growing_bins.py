"""Bins of a number for synthetic data: narrow near zero, so that a range may be declared far too wide, to be safe.

Equal bins of the declared range are the start, and those at zero are split. Bins at either end of the range in which
noise hides all rows are left out again, and values are drawn within the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dither.post.noise import Floats
from dither.post.statistics.joint import JointTable, Pairs, PairTree
from dither.post.statistics.marginals import Attribute

# A bin at zero is split into parts, each this fraction of the one before, so many times; more coarsely on two sides.
ONE_SIDE, TWO_SIDES = (2, 12), (3, 8)
# Bins at an end are left out while none, nor all of them together, has more rows than so many standard deviations.
SEEN = 4.0
# Values follow from bins more than from data if one bin, or two neighbours, have a larger share of rows than this, and
# are not narrow beside the spread of all values.
MOST_ROWS, NEARLY_ALL, NARROW = 0.6, 0.85, 0.1
# Bins of at most so many values show them well enough.
FEW_VALUES = 4
# Within a bin whose far end is so many times as far from zero as its near end, values may become rarer outwards.
WIDE_RATIO, LEAST_DECAY, MOST_DECAY, USUAL_DECAY = 2.0, 0.1, 50.0, 2.0


def with_growing_bins(attribute: Attribute) -> Attribute:
    """Return an attribute with more bins near zero; declared values stay as they are."""
    return replace(attribute, edges=split_near_zero(attribute.edges, attribute.step)) if attribute.edges else attribute


def split_near_zero(edges: Sequence[Fraction], step: Fraction) -> tuple[Fraction, ...]:
    """Return edges with more of them between zero and the nearest ones, and a bin for zero alone.

    >>> [str(edge) for edge in split_near_zero([Fraction(0), Fraction(8), Fraction(16)], Fraction(1))]
    ['0', '1', '2', '4', '8', '16']
    """
    low, high, zero = edges[0], edges[-1], Fraction(0)
    factor, most = TWO_SIDES if low < 0 < high - step else ONE_SIDE
    above = [edge for edge in edges if edge > max(low, zero)][:1]
    below = [-edge for edge in edges if edge < min(high, zero)][-1:]
    found = {sign * place for sign, far in ((1, above), (-1, below)) for place in _parts(far, factor, most, step)}
    found |= {zero, step} if low <= 0 < high else set()
    return tuple(sorted({*edges, *(edge for edge in found if low < edge < high)}))


def _parts(far: Sequence[Fraction], factor: int, most: int, step: Fraction) -> list[Fraction]:
    """Return the edges between zero and a far end: multiples of the step, each a fraction of the one before."""
    return [end / factor**number // step * step for end in far for number in range(1, most + 1)]


def trim_bins(
    pairs: Pairs, attributes: Sequence[Attribute], trimmed: Sequence[int], std: float
) -> tuple[dict[tuple[int, int], Floats], list[Attribute]]:
    """Leave out bins at the ends of some attributes, where noise hides all rows; two are kept."""
    kept, found = [slice(0, attribute.size) for attribute in attributes], list(attributes)
    for column in trimmed:
        counts, error = column_counts(pairs, column, std)
        first = _unseen(counts, error)
        last = len(counts) - _unseen(counts[::-1], error)
        if last - first < 2:  # a fit needs two bins
            first = int(np.argmax(counts[:-1] + counts[1:]))
            last = first + 2
        kept[column] = slice(first, last)
        found[column] = replace(attributes[column], edges=attributes[column].edges[first : last + 1])
    return {(i, j): table[kept[i], kept[j]] for (i, j), table in pairs.items()}, found


def column_counts(pairs: Pairs, column: int, std: float) -> tuple[Floats, float]:
    """Return the noisy counts of a column, from the sums of its pairs, and the standard deviation of their noise."""
    own = [
        table.sum(axis=1) if i == column else table.sum(axis=0) for (i, j), table in pairs.items() if column in (i, j)
    ]
    weights = np.array([len(counts) / table.size for counts, table in zip(own, _tables_of(pairs, column), strict=True)])
    return np.asarray(weights @ np.array(own) / weights.sum()), std / float(weights.sum()) ** 0.5


def _tables_of(pairs: Pairs, column: int) -> list[Floats]:
    return [table for pair, table in pairs.items() if column in pair]


def _unseen(counts: Floats, error: float) -> int:
    """Return how many of the first counts are hidden by noise, each and several together."""
    together = np.cumsum(counts) / np.sqrt(np.arange(1, len(counts) + 1))
    seen = np.flatnonzero(np.maximum(counts, together) > SEEN * error)
    if not len(seen):
        return len(counts)
    # Where several are seen together, the first of those that stand out most is kept.
    up_to = counts[: seen[0] + 1][::-1]
    return int(seen[0] - np.argmax(np.cumsum(up_to) / np.sqrt(np.arange(1, len(up_to) + 1))))


def column_shares(joint: JointTable | PairTree, columns: int) -> list[Floats]:
    """Return the fitted shares of each column's places."""
    first = joint.pair(0, 1)
    return [first.sum(axis=1), *(joint.pair(0, column).sum(axis=0) for column in range(1, columns))]


def trim_note(before: Attribute, after: Attribute) -> list[str]:
    """Say which bins were left out."""
    if before.edges == after.edges:
        return []
    low, high = (float(edge) for edge in (after.edges[0], after.edges[-1]))
    return [
        f"synthetic values of {after.name} lie from {low:g} to {high:g}: beyond, rows are too few to tell from noise"
    ]


def coarse_note(attribute: Attribute, shares: Floats) -> list[str]:
    """Warn if most values of a number lie in one bin, or nearly all in two: what is inside a bin is made up."""
    if not attribute.edges:
        return []
    edges = np.array([float(edge) for edge in attribute.edges])
    middles = (edges[:-1] + edges[1:]) / 2
    spread = float(np.sqrt(max(0.0, shares @ middles**2 - (shares @ middles) ** 2)))
    for bins, most, words in ((1, MOST_ROWS, "one bin"), (2, NEARLY_ALL, "two bins")):
        if bins > attribute.size:
            break
        together = np.convolve(shares, np.ones(bins), "valid")
        place = int(np.argmax(together))
        low, high = edges[place], edges[place + bins]
        wide = high - low > max(FEW_VALUES * bins * float(attribute.step), NARROW * spread)
        if together[place] > most and wide:
            return [
                f"warning: {together[place]:.0%} of the rows have {attribute.name} in {words}, from {low:g} to {high:g}"
                ": verdicts are about bins, and values inside a bin are made up; give narrower bins there, such as"
                f" bins={{'{attribute.name}': [...]}} with edges from session.quantiles"
            ]
    return []


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
