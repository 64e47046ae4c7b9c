"""Report what contribution bounds removed: apart from the noise, and in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dither.post.display import rough_number
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import Estimate, Measured, NoisyColumn
from dither.post.formulas import Formula, NoisyCell, Values, cells_of, evaluate
from dither.post.noise import Floats
from dither.post.query.query_plan import SUM_OF, CellRef, QueryPlan

FEW_ROWS = 4
# Add-backs below this share of all contributions are not worth a note.
NOTICEABLE_SHARE = 0.02
# An answer lists this many bounds on sums; it sums up more of them.
BOUNDS_LISTED = 2
# Where clipping may have removed more than this share, nothing useful is known about how much it was.
KNOWN_SHARE, UNKNOWN_SHARE = 0.9, "it is not known how much clipping removed"
RAISED_NOTE = (
    "counts and sums are raised by what clipping is estimated to remove, so groups may add up to more than there is"
)


@dataclass(frozen=True)
class Clipping:
    """The amount that clipping removed from a column, by group: about `estimate`, which is added back, at most `most`.

    `most` is the largest amount at the confidence of the intervals; for a sum of values of either sign nothing is
    added back, and `most` is an amount in either direction. `noise` is the standard error of the noise alone.
    """

    estimate: Floats
    most: Floats
    noise: Floats

    def take(self, rows: Sequence[int], size: int) -> Clipping:
        """Broadcast to all groups, and take some of them."""
        parts = (self.estimate, self.most, self.noise)
        return Clipping(*(np.broadcast_to(np.asarray(part), (size,))[list(rows)] for part in parts))


def is_clipped(node: Formula, columns: Sequence[NoisyColumn]) -> bool:
    """Return True if a formula reads a column of which a bound may have removed something."""
    used = (columns[index] for index in cells_of(node))
    return any(isinstance(column, Measured) and column.biased for column in used)


def without_clipping(columns: Sequence[NoisyColumn]) -> list[NoisyColumn]:
    """Return columns as if it were known exactly what clipping removed."""
    return [replace(column, less=0.0, more=0.0) if isinstance(column, Measured) else column for column in columns]


def clipping_of(
    node: Formula, columns: Sequence[NoisyColumn], keys: Sequence[Values], found: Estimate, noise_alone: Estimate
) -> Clipping | None:
    """Return what clipping removed from a column of numbers, given its estimate with and without that error."""
    if np.asarray(found.value).dtype.kind != "f":
        return None
    unraised = evaluate(node, [column.values for column in columns], keys)
    with np.errstate(invalid="ignore"):
        raised = np.asarray(found.value - unraised)
        reach, noise_reach = found.high - found.value, noise_alone.high - noise_alone.value
        beyond = np.sqrt(np.maximum(np.square(reach) - np.square(noise_reach), 0.0))
    return Clipping(raised, np.nan_to_num(raised + beyond, nan=np.inf), noise_alone.std_error)


def clipping_notes(plan: QueryPlan, bounds: Mapping[str, EstimatedBound]) -> tuple[str, ...]:
    """Describe the bounds that clipped an answer, what they may have removed, and what is assumed about that."""
    if not bounds:
        return ()
    capped = [bound for bound in bounds.values() if bound.clips_nothing]
    clipping = [bound for bound in bounds.values() if not bound.clips_nothing]
    clipped = (_bounds_note(plan.unit, clipping), _assumption(plan.unit, clipping, bool(plan.keys))) if clipping else ()
    return (
        *(f"each {plan.unit} adds at most {bound.limit}, as the description allows: no clipping" for bound in capped),
        *clipped,
        *heavy_tail_notes(plan.unit, bounds.values()),
        *unseen_notes(plan.unit, bounds.values()),
        *raised_notes(plan, bounds),
    )


def _bounds_note(unit: str, bounds: Sequence[EstimatedBound]) -> str:
    """Say what the bounds are, rows first, and how much they may have removed."""
    first, *others = sorted(bounds, key=lambda bound: not _of_rows(bound))
    how = "as given" if first.given else "chosen privately"
    added = "" if first.signed else ", which the estimates add back"
    about = f"{first.removed_share:.1%} of all contributions, at most {first.removed_share_high:.1%}{added}"
    removed = f"clipping removed about {about}" if first.removed_share_high <= KNOWN_SHARE else UNKNOWN_SHARE
    return f"contribution bound {how}: each {unit} adds at most {first.limit}; {removed}{_other_bounds(others)}"


def _removed_text(most: float) -> str:
    """Say how much further bounds removed at most."""
    return f"of which it removed at most {most:.1%}" if most <= KNOWN_SHARE else f"and {UNKNOWN_SHARE} of it"


def heavy_tail_notes(unit: str, bounds: Iterable[EstimatedBound]) -> tuple[str, ...]:
    """Warn where a few units may hold much of a total, so that the model of the tail decides about the interval."""
    heavy = [bound for bound in bounds if bound.heavy_tailed]
    if not heavy:
        return ()
    remedies = (
        (True, f"a cap on a {unit}'s rows (max_rows in the description)"),
        (False, "a narrower range of the values, declared or by CLAMP"),
    )
    wanted = [remedy for of_rows, remedy in remedies if any(_of_rows(bound) is of_rows for bound in heavy)]
    return (
        f"heavy tail, or too few {unit}s to rule one out: some may hold much of the total, and the interval may "
        f"miss it if some are far beyond the others; {' with '.join(wanted)} settles it",
    )


def _of_rows(bound: EstimatedBound) -> bool:
    """Return True for a bound on rows, False for one on sums of values."""
    return SUM_OF not in bound.limit


def unseen_notes(unit: str, bounds: Iterable[EstimatedBound]) -> tuple[str, ...]:
    """Warn where noise hides one of several things that units contribute: intervals have then been too narrow."""
    unseen = [not bound.model.seen for bound in bounds]
    if all(unseen) or not any(unseen):
        return ()
    return (
        f"epsilon is too small to see how the {unit}s spread for one of the bounds: the interval may be too narrow; "
        "ask with more epsilon, or give max_contributions",
    )


def _other_bounds(others: Sequence[EstimatedBound]) -> str:
    """Add the bounds on further sums, or how many there are."""
    if len(others) > BOUNDS_LISTED:
        most = max(bound.removed_share_high for bound in others)
        return f"; and so for {len(others)} sums of values, {_removed_text(most)}: answer.bounds has them"
    return "".join(f"; and at most {bound.limit}, {_removed_text(bound.removed_share_high)}" for bound in others)


def _assumption(unit: str, bounds: Iterable[EstimatedBound], grouped: bool) -> str:
    """Say in one sentence what intervals believe about units that noise hides, and about groups."""
    known = [bound for bound in bounds if bound.model.seen]
    if not known:
        return f"there are too few {unit}s to see from the noise how they spread, and intervals allow for that"
    hidden = max(bound.model.hidden for bound in known)
    spread = ", and those with most are spread over the groups as the others are" if grouped else ""
    return (
        f"assumed: the number of {unit}s keeps falling beyond {known[0].seen} as it does before{spread}; "
        f"up to about {hidden:,.0f} {unit}s with far more could go unnoticed, and intervals do not cover those"
    )


def raised_notes(plan: QueryPlan, bounds: Mapping[str, EstimatedBound]) -> tuple[str, ...]:
    """Say why the groups of counts and sums may add up to more than there are, and how to avoid it."""
    shown = {output.node.index for output in plan.outputs if isinstance(output.node, NoisyCell)}
    cells = [source for index, source in enumerate(plan.sources) if index in shown]
    tags = {cell.bound_tag for cell in cells if isinstance(cell, CellRef)}
    raised = [bound for tag, bound in bounds.items() if tag in tags and bound.removed_share > NOTICEABLE_SHARE]
    few = any(bound.bound <= FEW_ROWS * bound.row_size for bound in raised)
    remedy = f"; if each {plan.unit} has one row, give max_contributions=1, or have the curator declare unique"
    return (RAISED_NOTE + (remedy if few else ""),) if raised and plan.keys else ()


def two_errors_note(name: str, clipping: Clipping, confidence: float, half_width: Any) -> str:
    """Tell noise and clipping apart for a column: medians over its groups."""
    defined = [~np.isnan(part) for part in (clipping.noise, clipping.estimate, clipping.most, half_width)]
    rows = np.logical_and.reduce(np.broadcast_arrays(*defined))
    with np.errstate(over="ignore"):  # the median of two huge numbers adds them up
        noise, estimate, most, half = (
            float(np.median(np.broadcast_to(part, rows.shape)[rows])) if rows.any() else math.inf
            for part in (clipping.noise, clipping.estimate, clipping.most, half_width)
        )
    if not math.isfinite(most):
        return f"{name}: {UNKNOWN_SHARE}"
    return (
        f"{name}: the standard error is {rough_number(noise)} from noise alone; clipping removed about"
        f" {rough_number(estimate)}, at most {rough_number(most)}; the {confidence:.0%} interval,"
        f" {rough_number(2 * half)} wide, covers both"
    )
