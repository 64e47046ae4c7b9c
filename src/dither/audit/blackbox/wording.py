"""Describe sets of bins of a feature, in words and as Python expressions, so that a person can check an event."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import NDArray

from dither.audit.blackbox.features import MAX_NAMED_CATEGORIES, NUMBER_CODE, UNSEEN, Label
from dither.audit.claims import Floats

MAX_RANGES = 6
# A number is rounder than another if it has this many digits fewer.
ROUNDER = 4

Chosen = NDArray[np.bool_]


def bin_numbers(column: Floats, edges: Floats) -> NDArray[np.intp]:
    """Return 0 for NaN, else 1 + the number of edges at or below the value."""
    return np.where(np.isnan(column), 0, 1 + np.searchsorted(edges, column, side="right"))


def describe_bins(label: Label, chosen: Chosen, edges: Floats, undefined: bool) -> str:
    """Describe the chosen bins of a feature; `undefined` means that some output lacks the feature."""
    missing = [f"{label.name} {label.missing}"] if chosen[0] and undefined else []
    if label.present:
        parts = [f"{label.name} {label.present}"] if chosen[1:].any() else []
        return "any output" if parts and missing else (parts + missing or ["no output"])[0]
    if label.codes:
        return " or ".join(_named_codes(label, chosen, edges) + missing) or "no output"
    ranges = _ranges(chosen, edges)
    if ranges == [(-inf, inf)]:
        return "any output" if missing or not undefined else f"{label.name} is a number"
    shown = [comparison(label.name, *each) for each in ranges[:MAX_RANGES]]
    more = [f"in one of {len(ranges) - MAX_RANGES} more ranges"] if len(ranges) > MAX_RANGES else []
    return " or ".join(missing + shown + more) or "no output"


def bins_as_code(label: Label, chosen: Chosen, edges: Floats, undefined: bool) -> str:
    """Write the condition of the chosen bins as a Python expression of `output`, or "" if there is none."""
    if label.present:
        return f"not ({label.code})" if chosen[0] else label.code
    if label.codes and label.name == "output" and not undefined:
        return _codes_as_code(label, chosen, edges)
    if not label.code or label.codes:
        return ""
    missing = [f"isnan({label.code})"] if chosen[0] and undefined else []
    ranges = _ranges(chosen, edges)
    return (
        " or ".join(missing + [comparison(label.code, *each) for each in ranges]) if len(ranges) <= MAX_RANGES else ""
    )


def comparison(name: str, low: float, high: float) -> str:
    """Write that a value is at least `low` and below `high`.

    >>> comparison("output", 1.0, float("inf"))
    'output >= 1.0'
    """
    if high == np.nextafter(low, inf) or low == inf:
        return f"{name} == {low!r}"
    if low == -inf:
        return f"{name} {_below(high)}" if high < inf else f"{name} == {name}"
    above, least = _at_least(low)
    if high == inf:
        return f"{name} {above} {least!r}"
    return f"{least!r} {'<' if above == '>' else '<='} {name} {_below(high)}"


def _at_least(low: float) -> tuple[str, float]:
    """Return the comparison that is true from `low` on; by the float before it, if that is a rounder number."""
    before = float(np.nextafter(low, -inf))
    return (">", before) if len(repr(before)) + ROUNDER < len(repr(low)) or before == 0 else (">=", low)


def _below(high: float) -> str:
    before = float(np.nextafter(high, -inf))
    return f"<= {before!r}" if len(repr(before)) + ROUNDER < len(repr(high)) or before == 0 else f"< {high!r}"


def _ranges(chosen: Chosen, edges: Floats) -> list[tuple[float, float]]:
    """Return the chosen bins as ranges from an edge to the next, neighbouring ones together."""
    limits = [-inf, *edges.tolist(), inf]
    ranges: list[tuple[float, float]] = []
    for code in range(1, len(limits)):
        if chosen[code] and ranges and ranges[-1][1] == limits[code - 1]:
            ranges[-1] = ranges[-1][0], limits[code]
        elif chosen[code]:
            ranges.append((limits[code - 1], limits[code]))
    return ranges


def _code_test(chosen: Chosen, edges: Floats) -> Callable[[int], bool]:
    return lambda code: bool(chosen[bin_numbers(np.array([float(code)]), edges)[0]])


def _chosen_names(label: Label, chosen: Chosen, edges: Floats) -> tuple[bool, list[str]]:
    """Return False and the names of the chosen codes, or True and the others if categories never seen are chosen."""
    inside = _code_test(chosen, edges)
    others = inside(UNSEEN)
    codes = [code for code in label.codes if code >= 0 or (code == NUMBER_CODE and code in edges)]
    return others, [label.codes[code] for code in codes if inside(code) != others]


def _named_codes(label: Label, chosen: Chosen, edges: Floats) -> list[str]:
    others, names = _chosen_names(label, chosen, edges)
    if not names:
        return ["any output"] if others else []
    if len(names) == 1:
        return [f"{label.name} is {'not ' if others else ''}{names[0]}"]
    more = [f"{len(names) - MAX_NAMED_CATEGORIES} more"] if len(names) > MAX_NAMED_CATEGORIES else []
    return [f"{label.name} {'not ' if others else ''}in ({', '.join(names[:MAX_NAMED_CATEGORIES] + more)})"]


def _codes_as_code(label: Label, chosen: Chosen, edges: Floats) -> str:
    others, names = _chosen_names(label, chosen, edges)
    if not names or len(names) > MAX_NAMED_CATEGORIES or NUMBER_CODE in edges:
        return ""
    return f"output {'not ' if others else ''}in [{', '.join(names)}]"
