"""The scalar language: total functions of one row, each with its domain and its SQL."""

from __future__ import annotations

from dither.plan.expressions.core import Column, Constant, Expr, Part, real, snapped
from dither.plan.expressions.logic import And, Case, Coalesce, Compare, In, IsNull, Not, NullIf, Or, between
from dither.plan.expressions.numeric import (
    Absolute,
    Arithmetic,
    AsNumber,
    Bucket,
    Clamp,
    Extreme,
    Function,
    Power,
    Rescale,
    Rounded,
)
from dither.plan.expressions.text import TextCase, TextMatch
from dither.plan.expressions.time import DateDiff, DatePart, DateTrunc, Instant

BY_NAME: dict[str, type[Expr]] = {
    node.__name__: node
    for node in (
        Column, Constant, Instant, Arithmetic, Absolute, Rounded, Function, Power, Clamp, Rescale, Extreme, Compare,
        And, Or, Not, IsNull, In, Case, Coalesce, NullIf, AsNumber, DatePart, DateTrunc, DateDiff, Bucket, TextCase,
        TextMatch,
    )
}  # fmt: skip
