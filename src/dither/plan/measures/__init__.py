"""Measures: each turns a relation into a vector of integers, and states its keys, its sensitivity and its SQL."""

from __future__ import annotations

from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.columns import ColumnCounts, CountColumn
from dither.plan.measures.core import GroupKey, Measure, SelectedValues
from dither.plan.measures.grouped import sums_sensitivity
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import KeyShares, PartitionCounts
from dither.plan.measures.statistics import contributions
from dither.plan.measures.sums import Count, Sum, SumVector, count_units

# The only measures that a request can name. These wire names stay the same when a class is renamed.
BY_NAME: dict[str, type] = {
    "group_key": GroupKey,
    "selected_values": SelectedValues,
    "count": Count,
    "sum": Sum,
    "sum_vector": SumVector,
    "clipped_sums": ClippedSums,
    "linear_query": LinearQuery,
    "partition_counts": PartitionCounts,
    "column_counts": ColumnCounts,
    "count_column": CountColumn,
    "key_shares": KeyShares,
}
