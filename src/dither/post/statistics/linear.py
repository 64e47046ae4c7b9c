"""Linear and ridge regression from noisy sums of products, with errors that include the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.plan.traversal import fill_values
from dither.post.display import loss_text
from dither.post.estimate.answer import AnswerColumn
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.noise import Floats
from dither.post.statistics.contrasts import ContrastIntervals, contrast_intervals
from dither.post.statistics.core import Statistic
from dither.post.statistics.design import (
    Design,
    ModelColumn,
    Scaling,
    Standard,
    frame_column,
    read_columns,
    read_frame,
    rows_without_null,
)
from dither.post.statistics.moments import (
    MomentPlan,
    Moments,
    half_widths,
    has_single_rows,
    known_rows,
    read_moments,
    searches_with_shares,
)
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.span_moments import SpanDesign, SpanMoments, largest_shares, length_shares
from dither.post.statistics.steps import Released, Step, SteppedStatistic, expected_noise
from dither.privacy.protocol import Measurement

# Quotes assume this many rows of a unit with any number of rows, and this size of a row.
TYPICAL_ROWS, TYPICAL_ROW = 16, 3
# Quotes assume numbers with a standard deviation of this share of half their declared width.
TYPICAL_SPREAD = 0.2
# The variances that they assume in private units: of units' means, and of rows of which few are moved to the ends.
TYPICAL_PRIVATE, TYPICAL_PRIVATE_ROWS = 1 / 3, 0.1
# How many scales a value may be away from a private centre, for units with a key and for rows.
UNIT_REACH, ROW_REACH = 8, 1
# Ends of ranges that are nearer than this, in half widths of the declared one, are the same but for rounding.
SMALLEST_GAP = 1e-9
# An interval of R² of this width or more says nothing.
WIDEST_SHARE = 0.9
INTERCEPT = "(intercept)"
Targets = Sequence[float] | None


@dataclass(frozen=True)
class LinearFit:
    """A least-squares fit in standard units: the noisy matrix with penalties, weights, and the ridge that was added.

    `share` is R² with its interval, all nan if noise hides it.
    """

    gram: Floats
    weights: Floats
    ridge: float
    residual: float
    share: tuple[float, float, float]


def fit_linear(moments: Moments, penalties: Floats, confidence: float = 0.95) -> LinearFit:
    """Fit the last term to the others by least squares; penalties are added to the squares of terms.

    If noise hides a coefficient, as much is added to all squares as makes the weights fit for predictions.
    """
    gram, target = moments.matrix[:-1, :-1] + np.diag(penalties), moments.matrix[:-1, -1]
    hidden = contrast_intervals(moments, gram, np.eye(len(gram)), confidence).hidden.any()
    added = ridge_for(gram, moments) if hidden else np.zeros(len(gram))
    weights = np.linalg.pinv(gram + np.diag(added)) @ target
    residual = residual_squares(moments, weights, confidence)
    share = explained_share(moments, weights, confidence, bool(hidden))
    return LinearFit(gram, np.asarray(weights, np.float64), float(added.max()), residual, share)


def ridge_for(gram: Floats, moments: Moments) -> Floats:
    """Return what is added to the sums of squares so that all eigenvalues are at least about as large as the noise."""
    sizes = np.sqrt(np.maximum(np.diag(gram), moments.noises.max()))
    scaled = gram / np.outer(sizes, sizes)
    noise = moments.noises.max() / sizes.min() ** 2 * np.sqrt(len(gram))
    return np.asarray(max(0.0, noise - float(np.linalg.eigvalsh(scaled)[0])) * sizes**2)


def residual_squares(moments: Moments, weights: Floats, confidence: float) -> float:
    """Return the most that the sum of squared residuals may be, by the noise of its measurement."""
    extended = np.append(-weights, 1.0)
    noise = moments.map_of(lambda change: np.array([extended @ change @ extended]))
    half = half_widths(noise, moments.draws, confidence)[0]
    return max(0.0, float(extended @ moments.matrix @ extended + half))


def explained_share(moments: Moments, weights: Floats, confidence: float, hidden: bool) -> tuple[float, float, float]:
    """Return R² with its interval: one minus residual squares over squares around the mean, both noisy.

    If noise hides a coefficient, residuals of the best weights may be as small as nothing, so the upper end is 1.
    """
    extended, mean = np.append(-weights, 1.0), moments.matrix[0, -1] / moments.count
    centred = np.zeros(len(extended))
    centred[0], centred[-1] = -mean, 1.0
    both = [extended, centred]
    noise = moments.map_of(lambda change: np.array([side @ change @ side for side in both]))
    squares = np.array([side @ moments.matrix @ side for side in both])
    left, total = (squares + moments.draws @ noise.T).T
    if np.quantile(total, (1 - confidence) / 2) <= 0:
        return np.nan, np.nan, np.nan
    ends = np.clip(np.quantile(1 - left / total, [(1 - confidence) / 2, (1 + confidence) / 2]), 0.0, 1.0)
    low, high = float(ends[0]), 1.0 if hidden else float(ends[1])
    value = float(np.clip(1 - squares[0] / squares[1], low, high))
    return (value, low, high) if high - low < WIDEST_SHARE else (np.nan, np.nan, np.nan)


@dataclass(frozen=True, repr=False)
class LinearModel(Result):
    """A fitted linear model: `coef_` and `intercept_` in raw units, with standard errors, intervals and `predict`.

    `std_errors_` has the standard errors of the intercept and the coefficients, `feature_names_in_` the columns.
    `r2_` is the share of variance that the model explains in the data that were read, with `r2_interval_`; nan if noise
    hides it. A coefficient that noise hides has an infinite standard error and interval.
    """

    features: tuple[ModelColumn, ...] = ()
    target: str = ""
    coef_: Floats = field(default_factory=lambda: np.zeros(0))
    intercept_: float = 0.0
    std_errors_: Floats = field(default_factory=lambda: np.zeros(0))
    r2_: float = math.nan
    r2_interval_: tuple[float, float] = (math.nan, math.nan)
    moments: Moments | None = None
    scaling: Scaling | None = None

    @property
    def feature_names_in_(self) -> list[str]:
        """The names of the coefficients."""
        return [column.name for column in self.features]

    def predict(self, frame: Any) -> Floats:
        """Return the predictions for a frame (pandas, polars, Arrow or a mapping) with the columns of the model."""
        return np.asarray(read_frame(self.features, frame) @ self.coef_ + self.intercept_)

    def score(self, frame: Any, target: Targets = None) -> float:
        """Return the share of the target's variance in a frame that the model explains; by default its own column."""
        truth = np.array(frame_column(frame, self.target) if target is None else target, float)
        return float(1 - ((truth - self.predict(frame)) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def make_regression(
    rows: SourceRows,
    target: str,
    features: Sequence[str],
    alpha: float,
    standard: Standard | None,
    population: bool,
) -> Statistic[LinearModel]:
    """Make the statistic of a linear regression."""
    if not features:
        raise InvalidParameter("a regression needs at least one column in features=")
    columns, (outcome, *more) = read_columns(rows, features), read_columns(rows, [target])
    if more or (outcome.indicator and outcome.level is not True):
        raise Unsupported(f"the target {target} must be a number or a boolean; for a category, use classify")
    plan = moment_plan(rows, [*features, target], (*columns, outcome), standard)
    if population and (plan.most_rows != 1 or (plan.keyed and plan.design.standard == "private")):
        raise Unsupported(
            "population=True needs units with one row each and declared bounds: rows of one unit are not independent"
        )

    def finish(released: Released) -> LinearModel:
        return build_model(plan, released, alpha, population)

    return moment_statistic(plan, finish, lambda all_parts: expected_errors(plan, all_parts[0][0], alpha))


def moment_plan(
    rows: SourceRows, names: Sequence[str], columns: tuple[ModelColumn, ...], standard: Standard | None
) -> MomentPlan:
    """Plan noisy moments of columns.

    By default, bounds are private if one unit may have any number of rows; and for numbers of many steps if each unit
    has one row, and enough rows are known to choose spans at little cost.
    """
    settings, relation = rows.settings, rows_without_null(rows, names)
    bounded = relation.stability(settings.context, settings.unit).max_rows is not None
    chosen: Standard = standard or ("declared" if bounded else "private")
    if not has_single_rows(settings, relation):
        return MomentPlan(settings, Design(relation, columns, chosen, UNIT_REACH))
    private = SpanDesign(relation, columns, "private", ROW_REACH, wide_only=standard is None)
    numbers = len(private.private_numbers)
    if numbers and standard != "declared":
        shares = length_shares(known_rows(relation, settings.context), settings.spend, numbers)
        if shares is not None or standard == "private":
            return SpanMoments(settings, private, shares or largest_shares(settings.spend, numbers))
    return MomentPlan(settings, Design(relation, columns, "declared", ROW_REACH))


def moment_statistic(plan: MomentPlan, finish: Any, expect: Any) -> SteppedStatistic[Any]:
    """Make a statistic of one step, the moments, after the searches that it needs."""
    searches, whole = searches_with_shares(plan)
    step = Step(plan.measure(), whole)
    notes = (*plan_notes(plan), *spread_notes(plan))
    return SteppedStatistic(plan.settings, (), not_built, expect, notes, searches, (step,), finish)


def not_built(measured: object) -> Any:
    """Refuse to build a statistic that is finished from its steps."""
    raise TypeError("a stepped statistic is finished, not built")


def plan_notes(plan: MomentPlan) -> tuple[str, ...]:
    """Return notes on the unit, the rows left out, and how columns are standardised."""
    notes = [f"unit of privacy: {plan.settings.unit}", "rows with NULL in any column are left out"]
    if plan.design.wide_only and plan.design.private_numbers:
        names = ", ".join(plan.design.columns[place].name for place in plan.design.private_numbers)
        notes.append(
            f"ranges of {names} are chosen privately, since the declared ones have many values; values beyond are "
            "moved to their ends (standardize='declared' keeps the declared ranges)"
        )
    elif plan.design.standard == "private":
        notes.append("centres and scales of numbers are chosen privately; values beyond their reach are moved to it")
    if plan.keyed and plan.most_rows != 1:
        notes.append(
            f"the sums of each {plan.settings.unit} are scaled down together to a bound"
            + (" chosen privately" if plan.searches_radius else "")
            + ": those with many rows have less weight, and the intervals do not cover that"
        )
    return tuple(notes)


def penalties_of(plan: MomentPlan, scaling: Scaling, alpha: float) -> Floats:
    """Return the penalty of each weight but the target's: `alpha`, in units of half the declared width; 0 for 1."""
    widths = np.array([column.half_width if not column.indicator else 1.0 for column in plan.design.columns])
    return np.concatenate([[0.0], alpha * (widths / scaling.scales)[:-1] ** 2])


def raw_map(scaling: Scaling) -> tuple[Floats, Floats]:
    """Return T and t so that raw intercept and coefficients are T @ weights + t; the last column is the target."""
    centres, scales = scaling.centres[:-1], scaling.scales[:-1]
    matrix = np.diag(np.concatenate([[1.0], 1 / scales])) * scaling.scales[-1]
    matrix[0, 1:] = -centres / scales * scaling.scales[-1]
    shift = np.zeros(len(matrix))
    shift[0] = scaling.centres[-1]
    return matrix, shift


def raw_fit(
    fit: LinearFit, moments: Moments, scaling: Scaling, confidence: float, population: bool
) -> ContrastIntervals:
    """Return coefficients in raw units, the intercept first, with the errors of noise, and of sampling if wanted.

    Intervals allow for what a ridge shrinks: where there is one, noise hides coefficients, and they say so.
    """
    matrix, shift = raw_map(scaling)
    freedom = max(1.0, moments.count - len(fit.weights))
    found = contrast_intervals(moments, fit.gram, matrix, confidence, fit.residual / freedom if population else 0.0)
    values = matrix @ fit.weights + shift
    # What a hidden coefficient is part of, as the intercept is of columns around their centres, is hidden too.
    hidden = contrast_intervals(moments, fit.gram, np.eye(len(matrix)), confidence).hidden
    unknown = (np.abs(matrix) > 0) @ hidden | found.hidden
    errors = np.where(unknown, np.inf, found.std_errors)
    lows = np.where(unknown, -np.inf, np.minimum(found.lows + shift, values))
    highs = np.where(unknown, np.inf, np.maximum(found.highs + shift, values))
    return ContrastIntervals(values, errors, lows, highs)


def build_model(plan: MomentPlan, released: Released, alpha: float, population: bool) -> LinearModel:
    """Build the fitted model from what was released."""
    moments, scaling = read_moments(plan, released), plan.design.scaling(released.chosen)
    fit = fit_linear(moments, penalties_of(plan, scaling, alpha), plan.settings.confidence)
    raw = raw_fit(fit, moments, scaling, plan.settings.confidence, population)
    features, outcome = plan.design.columns[:-1], plan.design.columns[-1]
    names, limits = [INTERCEPT, *(column.name for column in features)], private_limits(plan, scaling)
    columns = [
        key_column("term", names),
        *limit_column(limits, names),
        noisy_column("coefficient", raw.values, raw.std_errors, raw.lows, raw.highs),
    ]
    whole = f"{outcome.name} (limited to {limits[outcome.name]})" if outcome.name in limits else outcome.name
    which = "1 column" if len(features) == 1 else f"{len(features)} columns"
    summary = (
        f"linear regression of {whole} on {which}, about {moments.count:,.0f} weighted rows; {share_text(fit.share)}",
        *hidden_lines(names, raw, plan),
    )
    notes = [*plan_notes(plan), interval_note(population), *ridge_notes(fit, alpha), *reach_notes(plan, scaling)]
    fields = result_fields(released.measurements, f"regress {outcome.name}", columns, summary, notes)
    return LinearModel(
        **fields, features=features, target=outcome.name, coef_=raw.values[1:], intercept_=float(raw.values[0]),
        std_errors_=raw.std_errors, r2_=fit.share[0], r2_interval_=fit.share[1:], moments=moments, scaling=scaling,
    )  # fmt: skip


def interval_note(population: bool) -> str:
    """Say what the intervals are about."""
    if population:
        return "intervals include noise and sampling error: they are about the population that the rows come from"
    return "intervals are about the coefficients in these data: they include the noise, not sampling error"


def share_text(share: tuple[float, float, float]) -> str:
    """Write R² with its interval, or say that noise hides it."""
    value, low, high = share
    if np.isnan(value):
        return "R² is hidden by noise"
    return f"R² at least {low:.3f}" if high >= 1 else f"R² {value:.3f} [{low:.3f}, {high:.3f}]"


def hidden_lines(names: Sequence[str], raw: ContrastIntervals, plan: MomentPlan) -> list[str]:
    """Say which coefficients the data are too few for, and what would help."""
    hidden = [name for name, is_hidden in zip(names, raw.hidden, strict=True) if is_hidden]
    if not hidden:
        return []
    which = "all coefficients" if len(hidden) == len(names) else ", ".join(hidden)
    loss, ways = loss_text([plan.settings.spend.loss]), private_remedy(plan.design)
    return [
        f"too few data for {loss}: noise hides {which}; {ways}spend more, use fewer columns, or narrow their bounds"
    ]


def private_remedy(design: Design) -> str:
    """Name private ranges as what helps first, where numbers have their declared ranges."""
    return 'ask with standardize="private", ' if design.standard == "declared" and design.numbers else ""


def ridge_notes(fit: LinearFit, alpha: float) -> list[str]:
    """Return notes on the penalty, and on the ridge that noise makes necessary."""
    notes = [f"ridge penalty {alpha:g}, in units of half the declared widths"] if alpha else []
    if fit.ridge > 0:
        notes.append("a ridge was added for predictions, and shrinks coefficients; intervals are those without it")
    return notes


def private_limits(plan: MomentPlan, scaling: Scaling) -> dict[str, str]:
    """Return the private range that each number was moved into, where it is narrower than the declared one."""
    limits = {}
    for place in plan.design.private_numbers:
        column, far = plan.design.columns[place], scaling.scales[place] * scaling.reach
        declared = np.array([float(column.low), float(column.high)])
        ends = np.clip(scaling.centres[place] + far * np.array([-1.0, 1.0]), *declared)
        is_moved = np.abs(ends - declared) > SMALLEST_GAP * column.half_width
        if is_moved.any():
            low, high = np.where(is_moved, ends, declared)
            limits[column.name] = f"{low:.4g} to {high:.4g}"
    return limits


def limit_column(limits: Mapping[str, str], names: Sequence[str]) -> list[AnswerColumn]:
    """Return the column of the private range of each coefficient, if there is one."""
    found = [limits.get(name, "") for name in names]
    return [key_column("limited to", found)] if any(found) else []


def reach_notes(plan: MomentPlan, scaling: Scaling) -> list[str]:
    """Say to which range the values of each number were moved, if it was chosen privately."""
    limits = private_limits(plan, scaling)
    if not limits:
        return []
    ranges = "; ".join(f"{name} {limit}" for name, limit in limits.items())
    places = plan.design.private_numbers
    least = [plan.design.columns[p].name for p in places if scaling.scales[p] <= plan.least_scale(p) * (1 + 1e-9)]
    unit = plan.settings.unit
    advice = "if others matter, bound it by CLAMP to a range that holds them, with standardize='declared'"
    return [
        f"values were moved into private ranges: {ranges}; {plan.reach_note}",
        *(
            f"most {unit}s have nearly one value of {name}, so its range is the smallest there is; {advice}"
            for name in least
            if name in limits
        ),
    ]


# --- quotes ----------------------------------------------------------------------------------------------------------


def expected_errors(plan: MomentPlan, measurement: Measurement, alpha: float) -> list[Expected]:
    """Return the expected errors of coefficients, as if columns were independent and spread as usual."""
    settings, rows, moments = plan.settings, table_rows(plan), typical_reading(plan, measurement)
    scaling = plan.design.scaling(plan.assumed_choices(TYPICAL_ROWS * TYPICAL_ROW))
    fit = fit_linear(moments, penalties_of(plan, scaling, alpha), settings.confidence)
    raw = raw_fit(fit, moments, scaling, settings.confidence, False)
    names = [INTERCEPT, *(column.name for column in plan.design.columns[:-1])]
    errors = zip(names, raw.std_errors, (raw.highs - raw.lows) / 2, strict=True)
    found = [expected_from(plan, name, float(error), float(half), rows) for name, error, half in errors]
    return [*found, unknown_error("R²", "it depends on how much of the target the columns explain")]


def expected_from(plan: MomentPlan, name: str, error: float, half: float, rows: float) -> Expected:
    """Return an expected error that depends on how columns are spread, with what is assumed of them."""
    given = "for independent columns" + (", at the bounds assumed" if plan.searches() else "")
    return Expected(name, error, half, True, rows, False, given=given)


def spread_notes(plan: MomentPlan) -> list[str]:
    """Return the note of a quote on how it takes columns to be spread."""
    tenth = "numbers with standard deviations of a tenth of their declared ranges, and "
    assumed = tenth if len(plan.design.private_numbers) < len(plan.design.numbers) else ""
    return [f"errors for independent columns assume {assumed}that no column follows from others; if some do, errors "
            "are larger, or noise hides those coefficients"]  # fmt: skip


def typical_reading(plan: MomentPlan, measurement: Measurement) -> Moments:
    """Return moments of typical columns, with the noise that they will have at typical choices."""
    chosen = plan.assumed_choices(TYPICAL_ROWS * TYPICAL_ROW)
    filled = replace(measurement, measure=fill_values(measurement.measure, chosen))
    noise = expected_noise(plan.settings.context, plan.settings.unit, filled)
    moments = plan.read(np.zeros(len(plan.pairs)), noise, chosen)
    return replace(moments, matrix=table_rows(plan) * typical_moments(plan.design))


def table_rows(plan: MomentPlan) -> float:
    """Return the noisy size of the largest table that is read, or a thousand if none is known."""
    return known_rows(plan.design.rows, plan.settings.context) or 1000.0


def typical_moments(design: Design) -> Floats:
    """Return the mean products of independent columns; numbers spread over a part of their declared ranges."""
    private, wide = set(design.private_numbers), TYPICAL_PRIVATE_ROWS if design.wide_only else TYPICAL_PRIVATE
    spreads = [wide if place in private else TYPICAL_SPREAD**2 for place in range(len(design.columns))]
    levels = {c.source: 1 + sum(o.source == c.source for o in design.columns) for c in design.columns if c.indicator}
    means = np.array([1.0, *(1 / levels[c.source] if c.indicator else 0.0 for c in design.columns)])
    own = zip(design.columns, spreads, strict=True)
    squares = np.array([1.0, *(1 / levels[c.source] if c.indicator else spread for c, spread in own)])
    matrix = np.outer(means, means)
    np.fill_diagonal(matrix, squares)
    return matrix
