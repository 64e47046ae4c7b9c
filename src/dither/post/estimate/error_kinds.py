"""Tell what the error of a column depends on: the noise alone, or how values are spread."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from dither.post.formulas import (
    Average,
    ChosenValue,
    ClampedTo,
    FixedValue,
    Formula,
    FunctionCall,
    KeyValue,
    NoisyCell,
    WindowSum,
    cells_of,
)
from dither.post.query.query_plan import CellRef, QuantileRef

STEP_FUNCTIONS = frozenset({"round", "floor", "ceil"})
# These pass on the errors of their arguments, or smaller ones.
PASSING_FUNCTIONS = STEP_FUNCTIONS | {"add", "sub", "neg", "abs", "least", "greatest", "coalesce", "nullif"}

ErrorKind = Literal["noise", "quantile", "extreme", "spread"]


def error_kind(node: Formula, sources: Sequence[CellRef | QuantileRef]) -> ErrorKind:
    """Return what decides the error of a column: its noise, or how values are spread, as for quantiles and extremes."""
    used = [source for index in cells_of(node) if isinstance(source := sources[index], QuantileRef)]
    if used:
        return "quantile" if all(isinstance(source.level, Fraction) for source in used) else "extreme"
    return "noise" if is_bounded_by_noise(node, sources) else "spread"


def is_bounded_by_noise(node: Formula, sources: Sequence[CellRef | QuantileRef]) -> bool:
    """Return True if the error of a column follows from the noise and the size of its group, whatever the values are.

    The error of a sum over the number of rows grows with the mean, by less than twice over the declared range. That of
    a quantile depends on how many values are near it, that of other ratios, products and roots on their parts.
    """
    match node:
        case NoisyCell(index):
            return not isinstance(sources[index], QuantileRef)
        case Average() | FixedValue() | ChosenValue() | KeyValue():
            return True
        case ClampedTo(inner) | WindowSum(inner):
            return is_bounded_by_noise(inner, sources)
        case FunctionCall("case", arguments):
            chosen = (*arguments[1::2], *arguments[len(arguments) // 2 * 2 :])
            return all(is_bounded_by_noise(part, sources) for part in chosen)
        case FunctionCall(name, arguments) if name in PASSING_FUNCTIONS:
            return all(is_bounded_by_noise(part, sources) for part in arguments)
        case FunctionCall("mul", (one, other)) if not (cells_of(one) and cells_of(other)):
            return is_bounded_by_noise(one, sources) and is_bounded_by_noise(other, sources)
        case FunctionCall("div", (over, under)) if _counts_rows(under, sources):
            return is_bounded_by_noise(over, sources)
        case _:
            return _counts_rows(node, sources)


def _counts_rows(node: Formula, sources: Sequence[CellRef | QuantileRef]) -> bool:
    """Return True if a formula reads nothing but numbers of all rows of a group, whose size quotes assume."""
    used = [sources[index] for index in cells_of(node)]
    return all(isinstance(source, CellRef) and source.counts_rows for source in used)
