"""Scalar expressions: total functions of one row, each with its domain and its SQL."""

from __future__ import annotations

from dither.plan.expressions.core import (
    ColumnRef,
    DatePartName,
    EstimatedValue,
    Expr,
    LiteralValue,
    snap_to_lattice,
    to_double,
)
from dither.plan.expressions.logic import And, Case, Coalesce, Compare, In, IsNull, Not, NullIf, Or, between
from dither.plan.expressions.numeric import (
    Absolute,
    Arithmetic,
    AsNumber,
    Bucket,
    Clamp,
    Function,
    LeastGreatest,
    Power,
    Rescale,
    Rounded,
)
from dither.plan.expressions.text import CategoryMap, TextCase, TextMatch, TextSlice
from dither.plan.expressions.time import DateDiff, DatePart, DateTrunc, Instant, MovedMoment

# The only expressions that a request can name. These wire names stay the same when a class is renamed.
BY_NAME: dict[str, type] = {
    "column": ColumnRef,
    "literal_value": LiteralValue,
    "estimated_value": EstimatedValue,
    "instant": Instant,
    "arithmetic": Arithmetic,
    "absolute": Absolute,
    "rounded": Rounded,
    "function": Function,
    "power": Power,
    "clamp": Clamp,
    "rescale": Rescale,
    "least_greatest": LeastGreatest,
    "compare": Compare,
    "and": And,
    "or": Or,
    "not": Not,
    "is_null": IsNull,
    "in": In,
    "case": Case,
    "coalesce": Coalesce,
    "null_if": NullIf,
    "as_number": AsNumber,
    "date_part": DatePart,
    "date_trunc": DateTrunc,
    "date_diff": DateDiff,
    "moved_moment": MovedMoment,
    "bucket": Bucket,
    "text_case": TextCase,
    "text_match": TextMatch,
    "text_slice": TextSlice,
}
