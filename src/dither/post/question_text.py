"""Say in a few words what a recorded request measured, so that a history can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dither.errors import DitherError
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure
from dither.plan.measures.grouped import GroupedMeasure
from dither.plan.measures.linear import LinearQuery
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk
from dither.privacy.codec import decode
from dither.privacy.protocol import ReleaseRequest, Request

MOST_NAMES, LONGEST = 4, 120


def question_text(request: str) -> str:
    """Return what a request measures, of which tables and by which keys; "" if it is of another version.

    A plan does not keep the names of an SQL text, so a mean reads as the sums and the counts that it is made of.
    """
    try:
        measures = [part.measure for part in _question(request).parts]
    except (DitherError, ValueError, TypeError, KeyError):
        return ""
    nodes = [node for measure in measures for node in walk(measure)]
    tables = join_names(dict.fromkeys(node.table for node in nodes if isinstance(node, Scan)))
    projections = {name: value for node in nodes if isinstance(node, Project) for name, value in node.columns}
    what = join_names(dict.fromkeys(what for measure in measures for what in _numbers(measure, projections)))
    keys = join_names(dict.fromkeys(key.name for measure in measures for key in getattr(measure, "keys", ())))
    some = ", some rows" if any(isinstance(node, Filter) for node in nodes) else ""
    text = f"{what} in {tables}" + (f" by {keys}" if keys else "") + some
    # An analyst names the keys, and others read them on their terminals.
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _question(request: str) -> Request:
    """Decode the question of a recorded request, of an answer or of a table."""
    read = json.loads(request)
    if isinstance(read, dict) and read.get("node") == ReleaseRequest.__name__:
        return decode(request.encode(), ReleaseRequest).question
    return decode(request.encode(), Request)


def _numbers(measure: Measure, projections: Mapping[str, Expr]) -> Iterator[str]:
    """Yield the kinds of numbers that a measure has."""
    match measure:
        case LinearQuery(child=child):
            yield from _numbers(child, projections)
        case ColumnCounts():
            yield "a table of counts"
        case ClippedSums(values=values):
            yield from _sums(values, projections)
        case GroupedMeasure():
            yield from _sums(measure.summands(), projections)
        case _:
            yield "numbers"


def _sums(values: Sequence[Expr], projections: Mapping[str, Expr]) -> Iterator[str]:
    """Yield "counts", and sums with the columns that they read."""
    if any(isinstance(value, LiteralValue) for value in values):
        yield "counts"
    if names := _columns(values, projections):
        yield f"sums of {join_names(names)}"


def _columns(values: Sequence[Expr], projections: Mapping[str, Expr]) -> list[str]:
    """Return the columns that expressions read; for those that a projection makes, what it reads in turn."""
    found: dict[str, bool] = {}
    pending = list(values)
    while pending:
        for node in walk(pending.pop(0)):
            if isinstance(node, ColumnRef) and node.name not in found:
                inner = projections.get(node.name, node)
                found[node.name] = inner == node
                pending += [] if inner == node else [inner]
    return [name for name, is_read in found.items() if is_read]


def join_names(names: Any) -> str:
    """Join names, at most a few of them.

    >>> join_names(["a", "b"]), join_names("abcdefg")
    ('a, b', 'a, b, c, d and 3 more')
    """
    every = list(names)
    more = len(every) - MOST_NAMES
    return ", ".join(every[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
