"""The loss of calibrated measures to one budget: step by step, or jointly for linear queries over the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dither.errors import InvalidPlan
from dither.loss import ZCDP, Approximate, Loss, Pure, round_up
from dither.plan.context import Context
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure
from dither.plan.measures.linear import LinearQuery
from dither.privacy.accounting.composition import compose, joint_gaussian, joint_laplace
from dither.privacy.accounting.conversion import as_zcdp, delta_of, epsilon_at
from dither.privacy.accounting.filters import filter_of
from dither.privacy.mechanisms import ColumnGaussian, DiscreteGaussian, DiscreteLaplace, Mechanism
from dither.schema import BudgetCap

MAX_WEIGHTS = 1 << 20


@dataclass(frozen=True)
class CalibratedMeasure:
    """A measure and the mechanism that releases it; together they determine the loss to every budget."""

    measure: Measure
    mechanism: Mechanism


def convert_to_pure(total: Loss, conversion_delta: Fraction) -> Loss:
    """Return the epsilon that a zCDP loss implies for a pure budget at this additional delta.

    Proof: selected_keys.md.
    """
    own_delta = delta_of(total)
    if as_zcdp(total) == ZCDP(Fraction(0)):
        return Pure(Fraction(0))
    delta = round_up(own_delta + (1 - own_delta) * conversion_delta)
    return Approximate(round_up(epsilon_at(total, delta)), delta)


def step_loss(ctx: Context, budget: BudgetCap, step: CalibratedMeasure) -> Loss:
    """Return the loss of one step to one budget, in the kind that the budget counts."""
    if isinstance(step.measure, ColumnCounts) and isinstance(step.mechanism, ColumnGaussian):
        return column_loss(ctx, budget.unit, step.measure, step.mechanism)
    sensitivity = step.measure.sensitivity(ctx, budget.unit)
    return step.mechanism.zcdp_loss(sensitivity) if budget.kind == "zcdp" else step.mechanism.loss(sensitivity)


def column_loss(ctx: Context, unit: str, measure: ColumnCounts, mechanism: ColumnGaussian) -> ZCDP:
    """Return the joint loss of all columns of a table: half the largest change of one unit, weighted by 1 / variance.

    Proof: column_counts.md.
    """
    if len(mechanism.variances) != len(measure.columns):
        raise InvalidPlan(f"the table has {len(measure.columns)} columns and {len(mechanism.variances)} variances")
    weights = [1 / variance for variance in mechanism.variances]
    return ZCDP(round_up(measure.weighted_square(ctx, unit, weights) / 2))


def joint_losses(ctx: Context, budget: BudgetCap, steps: Sequence[CalibratedMeasure]) -> list[Loss]:
    """Return the losses of steps; linear queries over the same cells are costed jointly where that is cheaper."""
    families: dict[object, list[CalibratedMeasure]] = {}
    for number, step in enumerate(steps):
        linear = isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian)
        base = step.measure.child if isinstance(step.measure, LinearQuery) else step.measure
        families.setdefault((type(step.mechanism), base) if linear else number, []).append(step)
    return [_cheaper_loss(ctx, budget, family) for family in families.values()]


def _cheaper_loss(ctx: Context, budget: BudgetCap, family: Sequence[CalibratedMeasure]) -> Loss:
    """Return the cheaper of the sum of the steps' losses and their joint loss."""
    separate = compose([step_loss(ctx, budget, step) for step in family])
    joint = _joint_loss(ctx, budget, family) if len(family) > 1 else None
    if joint is None:
        return separate
    cap = filter_of(budget)
    return min(separate, joint, key=cap.femto_cost)


def _joint_loss(ctx: Context, budget: BudgetCap, family: Sequence[CalibratedMeasure]) -> Loss | None:
    """Return the joint loss of linear queries over the same cells, or None if their weights are too many to add up.

    It is the largest column norm of the weights over the noise, times the most that one unit changes the cells.
    """
    base = family[0].measure.child if isinstance(family[0].measure, LinearQuery) else family[0].measure
    size = base.size(ctx)
    if size * size * len(family) > MAX_WEIGHTS:
        return None
    rows = [_query_weights(step.measure, size) for step in family]
    change = base.sensitivity(ctx, budget.unit).l1
    weights = [row for step in rows for row in step]
    noise = [_noise_parameter(step.mechanism) for step, step_rows in zip(family, rows, strict=True) for _ in step_rows]
    if isinstance(family[0].mechanism, DiscreteGaussian):
        return joint_gaussian(weights, noise, change)
    return joint_laplace(weights, noise, change)


def _query_weights(measure: Measure, size: int) -> list[tuple[int, ...]]:
    """Return the weights of a linear query; those of any other measure are the identity matrix."""
    if isinstance(measure, LinearQuery):
        return list(measure.weights)
    return [tuple(int(row == column) for column in range(size)) for row in range(size)]


def _noise_parameter(mechanism: Mechanism) -> Fraction:
    """Return the variance of Gaussian noise, or the scale of Laplace noise."""
    return mechanism.variance if isinstance(mechanism, DiscreteGaussian) else mechanism.scale  # type: ignore[attr-defined]
