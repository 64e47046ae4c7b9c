"""Logistic regression by noisy gradients: a few Newton steps in one charge, each unit's sums scaled into one ball.

Three searches improve the weights from zero, each by a noisy gradient and its noisy derivatives at the weights before.
The rest of the loss measures both at the last weights; that step is taken here, and its errors are those of the noise.
This is for noise that is small: `two_steps` and `descent` have the plans for more of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dither.plan import expressions as expr
from dither.plan.expressions.core import EstimatedValue, Expr, LiteralValue
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import SumVector
from dither.plan.relations.core import Relation
from dither.plan.relations.project import Project
from dither.plan.traversal import fill_values
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.noise import Floats
from dither.post.statistics.design import (
    ONE,
    ModelColumn,
    Scaling,
    frame_column,
    read_frame,
)
from dither.post.statistics.linear import (
    INTERCEPT,
    TYPICAL_ROW,
    TYPICAL_ROWS,
    expected_from,
    limit_column,
    not_built,
    private_limits,
    reach_notes,
    spread_notes,
    table_rows,
    typical_moments,
)
from dither.post.statistics.moments import RADIUS, SIZE_STEPS, MomentPlan, add_up, half_widths, term_product, unit_draws
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.steps import Released, Step, SteppedStatistic, additive, expected_noise, with_shares
from dither.privacy.protocol import BoundSearch, Measurement, NewtonRule
from dither.schema import Scalar

# Newton steps before the last one, and the share of the loss for each.
MANY_STEPS, SMALL_SHARE = 3, Fraction(1, 10)
# The share for choosing centres, scales and radius.
SEARCH_SHARE = Fraction(1, 10)
# Noise is small if the second derivatives of columns that are even over their ranges are this many times as large.
SMALL_NOISE, EVEN_CURVATURE = 10, 1 / 48
# Weights in standard units are within this limit, and multiples of this step.
WEIGHT_LIMIT, WEIGHT_STEPS = 16, 1 << 10
# Probabilities are multiples of this step.
CHANCE_STEP = Fraction(1, 1 << 12)
# The curvature of probabilities that quotes assume, those of classes that are not too uneven.
TYPICAL_CURVATURE = 0.2
# Second derivatives are measured this much coarser than the gradient.
CURVATURE_WEIGHT = 2


def ridge_of(size: int) -> int:
    """Return what is added to eigenvalues of the second derivatives, in standard deviations of a cell's noise.

    The eigenvalues of symmetric noise are about this large, so directions that noise hides are not followed.
    """
    return math.ceil(math.sqrt(2 * size))


@dataclass(frozen=True)
class GradientMoments(MomentPlan):
    """Moments whose rows have the size of a gradient and its derivatives, for the choice of the radius."""

    def largest_row(self) -> Fraction:
        """Return the most that the L1 norm of a row's gradient and derivatives can be; the L2 norm is smaller."""
        numbers, sources = len(self.design.numbers), {c.source for c in self.design.columns if c.indicator}
        reach = self.design.reach if self.design.standard == "private" else 1
        total = Fraction(1 + numbers * reach + len(sources))
        squares = Fraction(1 + numbers * reach**2 + len(sources))
        return total + (total**2 + squares) / (8 * CURVATURE_WEIGHT)

    def row_size(self) -> Expr:
        """Return the norm of a row's gradient and derivatives at zero weights; in L2 an upper bound."""
        columns: list[Expr] = [expr.ColumnRef(f"z{place}") for place in range(len(self.design.columns))]
        squares = add_up([ONE, *(expr.Arithmetic("*", column, column) for column in columns)])
        if self.gaussian:
            size = expr.Arithmetic("+", _times(Fraction(1, 4), ONE), _times(Fraction(3, 8), squares))
        else:
            total = add_up([ONE, *(expr.Absolute(column) for column in columns)])
            second = expr.Arithmetic("+", expr.Arithmetic("*", total, total), squares)
            size = expr.Arithmetic(
                "+", _times(Fraction(1, 2), total), _times(Fraction(1, 8 * CURVATURE_WEIGHT), second)
            )
        return expr.Rounded("ceil", size, Fraction(1, SIZE_STEPS))


def _times(factor: Fraction, value: Expr) -> Expr:
    return expr.Arithmetic("*", LiteralValue(factor), value)


@dataclass(frozen=True)
class LogisticPlan:
    """The plan of a logistic regression: moments of the features for the searches, and the target as 0 or 1."""

    moments: MomentPlan
    outcome: Expr

    @property
    def size(self) -> int:
        """The number of weights, with the intercept."""
        return len(self.moments.design.columns) + 1

    @property
    def coefficient_names(self) -> list[str]:
        """The names of the coefficients, the intercept first."""
        return [INTERCEPT, *(column.name for column in self.moments.design.columns)]

    @property
    def rounds(self) -> int:
        """The number of Newton steps before the last one."""
        return MANY_STEPS

    @cached_property
    def noise_is_small(self) -> bool:
        """True if a small share of the loss measures second derivatives well, by public facts."""
        plan, settings = self.moments, self.moments.settings
        chosen = plan.assumed_choices(TYPICAL_ROWS * TYPICAL_ROW)
        measure = fill_values(self.measure(0), chosen)
        noise = additive(settings, measure, settings.spend.share(SMALL_SHARE))
        spread = expected_noise(settings.context, settings.unit, Measurement(measure, noise)).std
        smallest = SMALL_NOISE * CURVATURE_WEIGHT * spread / plan.per_unit(chosen)
        return smallest < EVEN_CURVATURE * table_rows(plan)

    @property
    def searched(self) -> Fraction:
        """The share of the loss for choosing centres, scales and radius."""
        return SEARCH_SHARE if self.moments.searches() else Fraction(0)

    @property
    def share(self) -> Fraction:
        """The share of the loss for each Newton step before the last one."""
        return SMALL_SHARE

    @property
    def coarser(self) -> int:
        """The factor by which second derivatives are coarser than the gradient, of which errors matter more."""
        return CURVATURE_WEIGHT

    @property
    def intercept(self) -> Expr:
        """The constant that the intercept's weight is for."""
        return ONE

    def gradient_cells(self) -> list[Expr]:
        """Return what a row adds to the gradient, one cell for each weight."""
        terms = [self.intercept, *(expr.ColumnRef(f"z{place}") for place in range(self.size - 1))]
        return [self._cell(expr.ColumnRef("r"), term, 1) for term in terms]

    def weight(self, round_: int, place: int) -> EstimatedValue:
        """Return a weight that the search of a round chooses."""
        limit = WEIGHT_LIMIT * WEIGHT_STEPS
        return EstimatedValue(f"weights{round_}.{place}", -limit, limit, Fraction(1, WEIGHT_STEPS))

    def chance(self, round_: int) -> Expr:
        """Return the predicted probability at the weights of a round; a half before the first."""
        if round_ == 0:
            return LiteralValue(Fraction(1, 2))
        terms = [self.intercept, *(expr.ColumnRef(f"z{place}") for place in range(self.size - 1))]
        score = add_up([expr.Arithmetic("*", self.weight(round_, p), term) for p, term in enumerate(terms)])
        return expr.Function("logistic", score, CHANCE_STEP)

    def relation(self, round_: int) -> Relation:
        """Return the rows with standard columns, residual r and curvature h at the weights of a round."""
        names = [f"z{place}" for place in range(self.size - 1)]
        own = [(name, self.moments.design.standard_value(place)) for place, name in enumerate(names)]
        columns = [(name, expr.ColumnRef(name)) for name in names]
        rows: Relation = Project(self.moments.design.rows, (*own, ("y", self.outcome)))
        rows = Project(rows, (*columns, ("y", expr.ColumnRef("y")), ("p", self.chance(round_))))
        chance = expr.ColumnRef("p")
        spread = expr.Arithmetic("*", chance, expr.Arithmetic("-", ONE, chance))
        residual = expr.Arithmetic("-", chance, expr.ColumnRef("y"))
        curvature = expr.Clamp(expr.Rounded("round", spread, CHANCE_STEP), Fraction(0), Fraction(1, 4))
        return Project(rows, (*columns, ("r", residual), ("h", curvature)))

    def derivative_cells(self) -> list[Expr]:
        """Return what a row adds to the second derivatives: the upper triangle, row by row."""
        pairs = zip(*np.triu_indices(self.size), strict=True)
        return [self._cell(expr.ColumnRef("h"), term_product(int(i), int(j)), self.coarser) for i, j in pairs]

    def measure(self, round_: int) -> Measure:
        """Build the measure of the gradient and its derivatives at the weights of a round."""
        return self.sums(round_, [*self.gradient_cells(), *self.derivative_cells()])

    def sums(self, round_: int, values: Sequence[Expr]) -> Measure:
        """Build the measure of sums over rows at the weights of a round; those of a unit are scaled into a ball."""
        plan = self.moments
        if not plan.keyed:
            return SumVector(self.relation(round_), tuple(values))
        norm = "l2" if plan.gaussian else "l1"
        return ClippedSums(self.relation(round_), plan.settings.unit, tuple(values), RADIUS, norm)  # type: ignore[arg-type]

    def _cell(self, factor: Expr, product: Expr, coarser: int) -> Expr:
        """Return what a row adds to a cell, in whole steps."""
        value = expr.Arithmetic("*", expr.Arithmetic("*", factor, product), LiteralValue(Fraction(1, coarser)))
        return expr.Rounded("round", expr.Arithmetic("*", self.moments.radius(), value), Fraction(1))

    def newton_search(self, round_: int) -> BoundSearch:
        """Build the search for the weights of a round, from those of the round before."""
        rule = NewtonRule(
            self.size,
            Fraction(1, WEIGHT_STEPS),
            f"weights{round_ - 1}" if round_ > 1 else "",
            self.ridge,
            Fraction(self.coarser),
        )
        measure, settings = self.measure(round_ - 1), self.moments.settings
        noise = additive(settings, measure, settings.spend.share(self.share))
        return BoundSearch(measure, noise, (1, 2 * WEIGHT_LIMIT * WEIGHT_STEPS + 1), f"weights{round_}", rule)

    @property
    def ridge(self) -> Fraction:
        """The standard deviations of a cell's noise that a search adds to eigenvalues."""
        return Fraction(ridge_of(self.size))

    @property
    def error_note(self) -> str:
        """A note on what the intervals include."""
        return ERROR_NOTE

    def prediction_scaling(self, scaling: Scaling, released: Released) -> Scaling:
        """Return the scaling of rows that are predicted: values are moved into the range of those that were fitted."""
        return scaling

    def start(self, released: Released) -> Floats:
        """Return the weights that the last search chose."""
        middle = WEIGHT_LIMIT * WEIGHT_STEPS + 1
        tags = [f"weights{self.rounds}.{place}" for place in range(self.size)]
        return np.array([(released.chosen[tag] - middle) / WEIGHT_STEPS for tag in tags])

    def fit(self, released: Released, penalties: Floats) -> LogisticFit:
        """Take the last Newton step from the weights that were chosen."""
        return last_step(released.values(), released.noise().std, self.start(released), penalties)

    def statistic(self, finish: Any, notes: Sequence[str]) -> SteppedStatistic[Any]:
        """Make the statistic: private centres and scales, Newton steps, and the last sums."""
        chosen = self.moments.searches()
        if chosen:
            chosen = list(with_shares(chosen, self.moments.settings, self.searched / len(chosen)))
        steps = [self.newton_search(round_) for round_ in range(1, self.rounds + 1)]
        last = Step(self.measure(self.rounds), 1 - self.searched - self.rounds * self.share)
        notes = (*notes, *spread_notes(self.moments))
        return SteppedStatistic(
            self.moments.settings, (), not_built, self.expected_errors, notes, (*chosen, *steps), (last,), finish
        )

    def expected_errors(self, parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        """Return the expected errors of coefficients, of the last gradient's noise at a typical curvature."""
        plan, settings, measurement = self.moments, self.moments.settings, parts[0][0]
        chosen = {**plan.assumed_choices(TYPICAL_ROWS * TYPICAL_ROW)}
        zero = WEIGHT_LIMIT * WEIGHT_STEPS + 1
        weights = {f"weights{round_}.{p}": zero for round_ in range(1, self.rounds + 1) for p in range(self.size)}
        filled = replace(measurement, measure=fill_values(measurement.measure, {**chosen, **weights}))
        noise = expected_noise(settings.context, settings.unit, filled)
        rows, scaling = table_rows(plan), plan.design.scaling(chosen)
        inverse = np.linalg.inv(TYPICAL_CURVATURE * rows * typical_moments(plan.design))
        matrix = np.diag(np.concatenate([[1.0], 1 / scaling.scales]))
        matrix[0, 1:] = -scaling.centres / scaling.scales
        linear = matrix @ inverse * noise.std / plan.per_unit(chosen)
        draws = unit_draws(self.size, noise.kind == "laplace")
        half, errors = half_widths(linear, draws, settings.confidence), np.sqrt((linear**2).sum(axis=1))
        found = zip(self.coefficient_names, errors, half, strict=True)
        accuracy = unknown_error("accuracy", "it depends on how well the columns tell the classes apart; use score")
        return [*(expected_from(plan, name, float(e), float(h), rows) for name, e, h in found), accuracy]


@dataclass(frozen=True)
class LogisticFit:
    """Weights in standard units after the last step, and the map from the cells' unit noise to their errors."""

    weights: Floats
    noise_map: Floats


def last_step(values: Floats, noise: float, start: Floats, penalties: Floats) -> LogisticFit:
    """Take the last Newton step from noisy sums, all in units of one cell; the error is linear in the noise."""
    size = len(start)
    gradient, rows = values[:size] + penalties * start, np.triu_indices(size)
    curvature = np.zeros((size, size))
    curvature[rows] = CURVATURE_WEIGHT * values[size:]
    eigenvalues, axes = np.linalg.eigh(curvature, UPLO="U")
    ridge = ridge_of(size) * CURVATURE_WEIGHT * noise
    regular = axes @ np.diag(np.maximum(eigenvalues, 0) + ridge) @ axes.T
    inverse = np.linalg.inv(regular + np.diag(penalties))
    step = inverse @ gradient
    by_curvature = np.zeros((size, len(values) - size))
    for cell, (i, j) in enumerate(zip(*rows, strict=True)):
        change = np.zeros(size)
        change[i] += step[j]
        change[j] += step[i] if i != j else 0.0
        by_curvature[:, cell] = inverse @ change * CURVATURE_WEIGHT
    return LogisticFit(start - step, noise * np.hstack([-inverse, by_curvature]))


@dataclass(frozen=True, repr=False)
class LogisticModel(Result):
    """A fitted logistic regression: `coef_` and `intercept_` in raw units, `predict`, `predict_proba` and `score`.

    `classes_` has the two classes; `coef_` is about the second. `std_errors_` are those of noise, the intercept first.
    """

    features: tuple[ModelColumn, ...] = ()
    target: str = ""
    classes_: tuple[Scalar, ...] = ()
    coef_: Floats = field(default_factory=lambda: np.zeros(0))
    intercept_: float = 0.0
    std_errors_: Floats = field(default_factory=lambda: np.zeros(0))
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    scaling: Scaling | None = None

    @property
    def feature_names_in_(self) -> list[str]:
        """The names of the coefficients."""
        return [column.name for column in self.features]

    def decision_function(self, frame: Any) -> Floats:
        """Return the log-odds of the second class for each row of a frame; values beyond the reach are moved to it."""
        raw = read_frame(self.features, frame)
        standard = raw if self.scaling is None else self.scaling.standard(raw)
        return np.asarray(standard @ self.weights[1:] + self.weights[0])

    def predict_proba(self, frame: Any) -> Floats:
        """Return the probabilities of both classes for each row of a frame."""
        chance = 1 / (1 + np.exp(-np.clip(self.decision_function(frame), -500, 500)))
        return np.column_stack([1 - chance, chance])

    def predict(self, frame: Any) -> list[Any]:
        """Return the likelier class for each row of a frame."""
        return [self.classes_[int(score > 0)] for score in self.decision_function(frame)]

    def score(self, frame: Any, target: Sequence[Any] | None = None) -> float:
        """Return the share of rows of a frame whose class is predicted; by default the target is its own column."""
        truth = frame_column(frame, self.target) if target is None else list(target)
        return float(np.mean([one == two for one, two in zip(self.predict(frame), truth, strict=True)]))


def build_logistic(
    plan: LogisticPlan,
    released: Released,
    target: str,
    classes: tuple[Scalar, ...],
    alpha: float,
    notes: Sequence[str],
) -> LogisticModel:
    """Build the fitted model: take the last step, and return to raw units."""
    moments, design = plan.moments, plan.moments.design
    noise, scaling = released.noise(), design.scaling(released.chosen)
    penalties = np.concatenate([[0.0], np.full(plan.size - 1, alpha * moments.per_unit(released.chosen))])
    fit = plan.fit(released, penalties)
    matrix = np.diag(np.concatenate([[1.0], 1 / scaling.scales]))
    matrix[0, 1:] = -scaling.centres / scaling.scales
    raw, linear = matrix @ fit.weights, matrix @ fit.noise_map
    draws = unit_draws(linear.shape[1], noise.kind == "laplace")
    half, errors = half_widths(linear, draws, moments.settings.confidence), np.sqrt((linear**2).sum(axis=1))
    columns = [
        key_column("term", plan.coefficient_names),
        *limit_column(private_limits(moments, scaling), plan.coefficient_names),
        noisy_column("coefficient", raw, errors, raw - half, raw + half),
    ]
    summary = (f"logistic regression of {target} = {classes[1]} on {len(design.columns)} columns",)
    all_notes = [*notes, plan.error_note, *reach_notes(moments, scaling)]
    fields = result_fields(released.measurements, f"classify {target}", columns, summary, all_notes)
    return LogisticModel(
        **fields, features=design.columns, target=target, classes_=classes, coef_=raw[1:], intercept_=float(raw[0]),
        std_errors_=errors, weights=fit.weights, scaling=plan.prediction_scaling(scaling, released),
    )  # fmt: skip


ERROR_NOTE = (
    "coefficients are those after a few Newton steps from zero; intervals include the noise of the last, not sampling "
    "error, and not what is left to the optimum"
)
