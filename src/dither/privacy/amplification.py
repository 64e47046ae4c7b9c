"""Privacy amplification by sampling: a request that reads each unit only with some probability costs less."""

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
from dither.privacy.accounting.composition import sampled_loss


def amplify(ctx: Context, unit: str, measures: Sequence[Measure], loss: Loss) -> Loss:
    """Return the loss of a request: lower than `loss` if all its measures read units through the same sample only.

    Proof: amplification.md.
    """
    rate = sampling_rate(ctx, unit, measures)
    return sampled_loss(loss, rate) if rate is not None and isinstance(loss, Pure | Approximate) else loss


def sampling_rate(ctx: Context, unit: str, measures: Sequence[Measure]) -> Fraction | None:
    """Return the rate of the one sample of whole units that a request takes, or None if any of its reads bypass it.

    Proof: amplification.md.
    """
    coins = {(node.unit, node.rate, node.tag) for node in walk(tuple(measures)) if isinstance(node, Sample)}
    if (
        len(coins) != 1
        or not _has_one_key_domain(ctx, unit)
        or any(_bypasses_sample(ctx, unit, measure) for measure in measures)
    ):
        return None
    return next(rate for _, rate, _ in coins)


def _bypasses_sample(ctx: Context, unit: str, node: Any) -> bool:
    """Return whether rows of a unit reach a node other than through a sample of that unit."""
    match node:
        case Sample() if node.unit == unit:
            return False
        case Scan():
            return node.stability(ctx, unit).max_rows != 0
        case Relation() | Measure():
            return any(_bypasses_sample(ctx, unit, part) for part in vars(node).values())
        case _:
            return False


def _has_one_key_domain(ctx: Context, unit: str) -> bool:
    """Return whether the unit's key has the same domain in every table, so that one coin decides for all its rows."""
    keys = ctx.unit(unit).keys.items()
    return len({with_null(ctx.columns(table)[key], False) for table, key in keys if key is not None}) == 1
