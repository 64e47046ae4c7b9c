"""Explain wide intervals: what makes them wide, and what would make them narrower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dither.loss import ZCDP, Loss, Pure
from dither.post.estimate.intervals import Estimate
from dither.post.noise import Floats

# An interval is wide if it is wider than this share of the estimate.
WIDE = 0.5
# A loss of more than this many times the loss that was spent is not worth suggesting.
LARGEST_FACTOR = 50.0

QUANTILE_ADVICE = "; session.quantiles chooses the points themselves, and sums fewer noisy counts for their intervals"


def wide_notes(
    name: str,
    found: Estimate,
    noise_alone: Estimate,
    losses: Sequence[Loss],
    unit: str,
    *,
    one_row: bool = False,
    quantile: bool = False,
) -> tuple[str, ...]:
    """Return a note if a column has wide intervals; `noise_alone` has those that leave clipping out.

    With `one_row` for each unit, a cap on rows is no remedy. A `quantile` of a whole table has a better way, which the
    note names.
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
        reason = _large_noise(f"so few {unit}s" if len(value) == 1 else "", factor, losses)
    other = QUANTILE_ADVICE if quantile and len(value) == 1 else ""
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
    near = np.isfinite(factor) and factor <= LARGEST_FACTOR
    coarser = f"groups about {factor:.2g} times as large" if near else "coarser groups"
    enough = _loss_that_would_do(factor, losses)
    ways = [*([] if few else [coarser]), *([f"about {enough}"] if enough else [])]
    remedy = f"; {' or '.join(ways)} would do for the typical one" if ways and near else ""
    return f"the noise is large for {few or 'groups this small'}" + (remedy or ("" if few else "; coarser groups help"))


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
