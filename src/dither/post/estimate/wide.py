"""Explain wide intervals: what makes them wide, and what would make them narrower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dither.loss import ZCDP, Loss, Pure
from dither.post.estimate.error_kinds import ErrorKind
from dither.post.estimate.intervals import Estimate
from dither.post.noise import Floats

# An interval is wide if it is wider than this share of the estimate.
WIDE = 0.5
# A loss is suggested from this many times the loss that was spent up to so many times.
LEAST_FACTOR, LARGEST_FACTOR = 1.3, 50.0
# And only if the noise alone makes up this part of the interval, or clipping would keep it wide.
NOISE_PART = 0.9

QUANTILE_ADVICE = "; session.quantiles chooses the points themselves, and sums fewer noisy counts for their intervals"

# What helps where the error depends on how values are spread, so that no loss can be named.
SPREAD_ADVICE = "; a narrower range of the values, by CLAMP(x, low, high) or declared, helps most, and more loss"
EXTREME_ADVICE = "; a quantile near the end, such as QUANTILE(x, 0.01) or QUANTILE(x, 0.99), is known better"


def wide_notes(
    name: str,
    found: Estimate,
    noise_alone: Estimate,
    losses: Sequence[Loss],
    unit: str,
    *,
    one_row: bool = False,
    kind: ErrorKind = "noise",
) -> tuple[str, ...]:
    """Return a note if a column has wide intervals; `noise_alone` has those that leave clipping out.

    With `one_row` for each unit, a cap on rows is no remedy. A loss that would do is named where the error is of the
    `kind` that noise decides, and falls as the loss grows; for others, what helps instead.
    """
    if np.asarray(found.value).dtype.kind not in "fiu":
        return ()
    value, width = np.abs(np.asarray(found.value, float)), _width(found)
    wide = width > WIDE * value
    if not np.any(wide):
        return ()
    noise_width = _width(noise_alone)[wide]
    with np.errstate(invalid="ignore", divide="ignore"):
        noise_share = np.median(np.nan_to_num(noise_width / width[wide], nan=1.0))
        factor = float(np.median(width[wide] / (WIDE * value[wide])))
    if noise_share < 0.5:
        reason = _unknown_clipping(unit, float(np.median(noise_width)) / 2, one_row)
    else:
        few, by_loss = f"so few {unit}s" if len(value) == 1 else "", kind == "noise" and noise_share >= NOISE_PART
        reason = _large_noise(few, factor, losses if by_loss else ()) + _other_advice(kind)
    other = QUANTILE_ADVICE if kind == "quantile" and len(value) == 1 else ""
    where = f" in {int(wide.sum())} of {len(value)} rows" if len(value) > 1 else ""
    return (f"{name}: the interval is wider than half the value{where}, because {reason}{other}",)


def _unknown_clipping(unit: str, noise: float, one_row: bool) -> str:
    """Explain an interval that clipping makes wide; `noise` is half the width that noise alone would leave."""
    cap = "" if one_row else f"a cap on a {unit}'s rows (max_rows in the description), "
    reason = (
        f"it is not known how much clipping removed: a few {unit}s may contribute far more than the others; {cap}"
        "CLAMP(x, low, high) in the query, or max_contributions= for an answer about clipped data make it narrower"
    )
    return reason + (f": noise alone leaves about ± {noise:,.3g}" if np.isfinite(noise) else "")


def _large_noise(few: str, factor: float, losses: Sequence[Loss]) -> str:
    """Explain an interval that noise makes wide by a factor; `few` names the units if there are no groups."""
    near = len(losses) > 0 and np.isfinite(factor) and LEAST_FACTOR <= factor <= LARGEST_FACTOR
    enough = _loss_that_would_do(factor, losses) if near else ""
    ways = [*([] if few else [f"groups about {factor:.2g} times as large"]), *([f"about {enough}"] if enough else [])]
    remedy = f"; {' or '.join(ways)} would do for the typical one" if ways and near else ""
    return f"the noise is large for {few or 'groups this small'}" + (remedy or ("" if few else "; coarser groups help"))


def _other_advice(kind: ErrorKind) -> str:
    """Name what helps where the error does not follow from the noise alone."""
    return {"spread": SPREAD_ADVICE, "extreme": EXTREME_ADVICE}.get(kind, "")


def _width(found: Estimate) -> Floats:
    """Return the widths of intervals; one whose ends are both infinite is infinitely wide."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(found.high - found.low, nan=np.inf, posinf=np.inf))


def _loss_that_would_do(factor: float, losses: Sequence[Loss]) -> str:
    """Return the loss at which noise would be smaller by a factor, in words; empty if it is none to suggest."""
    match losses:
        case [Pure(epsilon)] if factor <= LARGEST_FACTOR:
            return f"epsilon {float(epsilon) * factor:.2g}"
        case [ZCDP(rho)] if factor <= LARGEST_FACTOR:
            return f"rho {float(rho) * factor**2:.2g}"
        case _:
            return ""
