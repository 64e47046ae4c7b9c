"""Make logistic regressions: by Newton steps where noise is small, else by two steps or, for units, by gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from dither.errors import InvalidParameter, Unsupported
from dither.loss import Pure, Rational, rational
from dither.plan import expressions as expr
from dither.plan.expressions.core import Expr, LiteralValue
from dither.plan.relations.bounding import Sample
from dither.post.query.spend import Spend
from dither.post.statistics.core import Statistic
from dither.post.statistics.descent import DescentMoments, DescentPlan
from dither.post.statistics.design import Design, ModelColumn, Standard, levels_of, read_columns, rows_without_null
from dither.post.statistics.linear import ROW_REACH, moment_plan, plan_notes
from dither.post.statistics.logistic import (
    SEARCH_SHARE,
    GradientMoments,
    LogisticModel,
    LogisticPlan,
    build_logistic,
)
from dither.post.statistics.moments import MomentPlan, has_single_rows, known_rows
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.steps import Released
from dither.post.statistics.two_steps import MOVED_ROWS, TwoStepMoments, TwoStepPlan
from dither.privacy.accounting.composition import sampled_loss
from dither.schema import Boolean, Category, Number, Reference, Scalar

# Sampling is for small losses; at larger ones than this it saves next to nothing.
MOST_SAMPLED = 100
# Private ranges are chosen well if they move this many rows, times the epsilon of one choice.
ENOUGH_MOVED = 5


def make_logistic(
    rows: SourceRows,
    target: str,
    features: Sequence[str],
    positive: Scalar,
    alpha: float,
    standard: Standard | None,
    sample: Rational | None,
) -> Statistic[LogisticModel]:
    """Make the statistic of a logistic regression."""
    if not features:
        raise InvalidParameter("a classification needs at least one column in features=")
    outcome, classes = read_classes(rows, target, positive)
    if sample is not None:
        rows = replace(rows, settings=replace(rows.settings, spend=sampled_spend(rows, sample)))
    columns = read_columns(rows, features)
    planned = feature_plan(rows, [*features, target], columns, standard or likely_standard(rows, features, target))
    plan = LogisticPlan(GradientMoments(planned.settings, planned.design), outcome)
    if not plan.noise_is_small:
        plan = noisy_plan(planned, outcome)
    if sample is not None:
        plan = with_sample(plan, rational(sample, "sample"))
    notes = [*plan_notes(plan.moments), *sample_notes(sample)]

    def finish(released: Released) -> LogisticModel:
        return build_logistic(plan, released, target, classes, alpha, notes)

    return plan.statistic(finish, notes)


def likely_standard(rows: SourceRows, features: Sequence[str], target: str) -> Standard | None:
    """Return "private" ranges for single rows, if there are enough rows to choose them well."""
    relation = rows_without_null(rows, [*features, target])
    if not has_single_rows(rows.settings, relation):
        return None
    plan = feature_plan(rows, [*features, target], read_columns(rows, features), "private")
    spend = Spend(rows.settings.spend.share(SEARCH_SHARE / max(1, len(plan.searches()))))
    epsilon = math.sqrt(2 * float(spend.amount)) if spend.gaussian else float(spend.amount)
    known = known_rows(relation, rows.context)
    enough = known is None or float(MOVED_ROWS) * known * epsilon >= ENOUGH_MOVED
    return "private" if enough else "declared"


def feature_plan(
    rows: SourceRows, names: Sequence[str], columns: tuple[ModelColumn, ...], standard: Standard | None
) -> MomentPlan:
    """Plan the moments of features; those of single rows are in declared ranges, or in private ones that zoom in."""
    relation = rows_without_null(rows, names)
    if standard is None or not has_single_rows(rows.settings, relation):
        return moment_plan(rows, names, columns, standard)
    return MomentPlan(rows.settings, Design(relation, columns, standard, ROW_REACH))


def noisy_plan(planned: MomentPlan, outcome: Expr) -> LogisticPlan:
    """Return the plan for noise that is not small: two steps for rows, a descent for units with a key."""
    if planned.keyed:
        return DescentPlan(DescentMoments(planned.settings, planned.design), outcome)
    return TwoStepPlan(TwoStepMoments(planned.settings, planned.design), outcome)


def read_classes(rows: SourceRows, target: str, positive: Scalar) -> tuple[Expr, tuple[Scalar, ...]]:
    """Return the target as 0 or 1, and the two classes: every other value, and `positive`."""
    value, domain = rows.expression(target), rows.domain(target)
    match domain:
        case Boolean():
            classes: tuple[Scalar, ...] = (False, True)
            is_second: Expr = value
        case Number(lo=low, hi=high, step=step) if high - low == step:
            classes = (int(low) if low == int(low) else low, int(high) if high == int(high) else high)
            is_second = expr.Compare("=", value, LiteralValue(high))
        case Category() | Reference():
            levels = levels_of(rows.context, target, domain)
            if positive is None and len(levels) != 2:
                raise InvalidParameter(f"{target} has {len(levels)} values; name one class with positive=")
            second = levels[1] if positive is None else positive
            if second not in levels:
                raise InvalidParameter(f"positive= must be a declared value of {target}, got {positive!r:.40}")
            others = [level for level in levels if level != second]
            classes = (others[0] if len(others) == 1 else f"not {second}", second)
            is_second = expr.Compare("=", value, LiteralValue(second))
        case _:
            raise Unsupported(f"the target {target} must be a boolean, a category, or a number with two values")
    return expr.Coalesce((expr.AsNumber(is_second), LiteralValue(Fraction(0)))), classes


def sampled_spend(rows: SourceRows, sample: Rational) -> Spend:
    """Return the loss on a sample of units that costs the loss asked for, since sampling amplifies privacy."""
    rate, loss = rational(sample, "sample"), rows.settings.spend.loss
    unit = rows.context.dataset.units[rows.settings.unit]
    if not 0 < rate <= 1 or not isinstance(loss, Pure) or unit.kind == "row":
        raise InvalidParameter("sample= must be above 0 and at most 1, with epsilon=, and needs a unit with a key")
    wanted = loss.epsilon
    if wanted > MOST_SAMPLED:
        raise InvalidParameter(f"sample= helps little above epsilon {MOST_SAMPLED}; leave it out")
    inner = rational(f"{math.log1p(math.expm1(float(wanted)) / float(rate)):.9g}")
    while sampled_loss(Pure(inner), rate).epsilon > wanted:
        inner *= Fraction(999_999, 1_000_000)
    return Spend(Pure(inner))


def with_sample(plan: LogisticPlan, rate: Fraction) -> LogisticPlan:
    """Read each unit with this probability only, in all steps the same ones."""
    design = plan.moments.design
    sampled = Sample(design.rows, rate, plan.moments.settings.unit, "classify")
    return replace(plan, moments=replace(plan.moments, design=replace(design, rows=sampled)))


def sample_notes(sample: Rational | None) -> list[str]:
    """Say that a sample was read."""
    if sample is None:
        return []
    return [f"each unit is read with probability {sample}; noise is smaller on the sample, for the same loss"]
