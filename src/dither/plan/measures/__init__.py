"""Measures turn a relation into a vector of integers, and state its keys, its sensitivity and its SQL."""

from __future__ import annotations

from dither.plan.measures.clipped import Clipped
from dither.plan.measures.core import Key, Measure
from dither.plan.measures.grouped import sums_sensitivity
from dither.plan.measures.linear import Linear, RankCounts
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.statistics import contributions, covariance
from dither.plan.measures.sums import Count, Sum, Sums, count_units

BY_NAME: dict[str, type] = {
    node.__name__: node for node in (Key, Count, Sum, Sums, RankCounts, Clipped, Linear, PartitionCounts)
}
