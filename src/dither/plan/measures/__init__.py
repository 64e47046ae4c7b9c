"""Measures turn a relation into a vector of integers, and state its keys, its sensitivity and its SQL."""

from __future__ import annotations

from dither.plan.measures.clipped import Clipped
from dither.plan.measures.core import (
    MOST_CELLS,
    MOST_PER_UNIT,
    NO_CHANGE,
    SATURATED,
    Axis,
    Key,
    Measure,
    Plan,
    Vector,
    axis_of,
    bounded,
    influence_of,
)
from dither.plan.measures.grouped import collected, held_keys, keyed, number_domains, sums_sensitivity
from dither.plan.measures.linear import Linear, RankCounts, held_integers
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.statistics import contributions, covariance, gradient, histogram
from dither.plan.measures.sums import Count, Sum, Sums, count_units

BY_NAME: dict[str, type] = {
    node.__name__: node for node in (Key, Count, Sum, Sums, RankCounts, Clipped, Linear, PartitionCounts)
}

__all__ = [
    "BY_NAME",
    "MOST_CELLS",
    "MOST_PER_UNIT",
    "NO_CHANGE",
    "SATURATED",
    "Axis",
    "Clipped",
    "Count",
    "Key",
    "Linear",
    "Measure",
    "PartitionCounts",
    "Plan",
    "RankCounts",
    "Sum",
    "Sums",
    "Vector",
    "axis_of",
    "bounded",
    "collected",
    "contributions",
    "count_units",
    "covariance",
    "gradient",
    "held_integers",
    "held_keys",
    "histogram",
    "influence_of",
    "keyed",
    "number_domains",
    "sums_sensitivity",
]
