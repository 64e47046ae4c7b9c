"""When a sample of whole units makes a charge cheaper: all that a request reads of a unit hangs on one coin."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dither.loss import Approximate, Loss, Pure
from dither.plan.context import Context
from dither.plan.domains import with_null
from dither.plan.measures.core import Measure
from dither.plan.relations.bounding import Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk
from dither.privacy.accounting.composition import subsampled


def amplified(ctx: Context, unit: str, measures: Sequence[Measure], loss: Loss) -> Loss:
    """The loss of a request that reads these measures; less where they see a unit only as part of one sample.

    Proof: amplification.md.
    """
    rate = sampling_rate(ctx, unit, measures)
    return subsampled(loss, rate) if rate is not None and isinstance(loss, Pure | Approximate) else loss


def sampling_rate(ctx: Context, unit: str, measures: Sequence[Measure]) -> Fraction | None:
    """The rate of the one sample of whole units that a request makes, if nothing of a unit reaches it past that.

    Proof: amplification.md.
    """
    coins = {(node.unit, node.rate, node.tag) for node in walk(tuple(measures)) if isinstance(node, Sample)}
    if len(coins) != 1 or not _one_name(ctx, unit) or any(_past(ctx, unit, measure) for measure in measures):
        return None
    return next(rate for _, rate, _ in coins)


def _past(ctx: Context, unit: str, node: Any) -> bool:
    """Whether rows of a unit reach a node other than through a sample of that unit."""
    match node:
        case Sample() if node.unit == unit:
            return False
        case Scan():
            return node.stability(ctx, unit).max_rows != 0
        case Relation() | Measure():
            return any(_past(ctx, unit, part) for part in vars(node).values())
        case _:
            return False


def _one_name(ctx: Context, unit: str) -> bool:
    """Whether a unit is spelled the same in every table, so that one coin decides for all of its rows."""
    keys = ctx.unit(unit).keys.items()
    return len({with_null(ctx.columns(table)[key], False) for table, key in keys if key is not None}) == 1
