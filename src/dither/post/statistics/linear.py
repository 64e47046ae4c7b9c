"""Linear and ridge regression from noisy sums of products, with errors that include the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.plan.relations.scan import Scan
from dither.plan.traversal import fill_values, walk
from dither.post.estimate.explain import Expected
from dither.post.noise import Floats
from dither.post.statistics.core import SourceRows, Statistic
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
from dither.post.statistics.moments import RADIUS, MomentPlan, Moments, half_widths, read_moments
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.steps import Released, Step, SteppedStatistic, expected_noise, with_shares
from dither.privacy.protocol import Measurement

# The share of the loss for choosing centres, scales and the radius, all together.
SEARCH_SHARE = Fraction(1, 4)
# Quotes assume this many rows of a unit with any number of rows, and this size of a row.
TYPICAL_ROWS, TYPICAL_ROW = 16, 3
# How many scales a value may be away from a private centre, for units with a key and for rows.
UNIT_REACH, ROW_REACH = 8, 1
# Noise of this share of an eigenvalue or more is said to dominate.
LARGE_NOISE = 0.3
INTERCEPT = "(intercept)"
Targets = Sequence[float] | None


@dataclass(frozen=True)
class LinearFit:
    """A least-squares fit in standard units: weights, the map from cell noise to them, and sums of squares."""

    weights: Floats
    noise_map: Floats
    inverse: Floats
    residual: float
    total: float
    ridge: float
    noise_share: float


def fit_linear(moments: Moments, penalties: Floats) -> LinearFit:
    """Fit the last term to the others by least squares; penalties are added to the squares of terms.

    If noise makes the sums of squares nearly singular, as much is added to all of them as keeps them regular.
    """
    gram, target = moments.matrix[:-1, :-1] + np.diag(penalties), moments.matrix[:-1, -1]
    gram, ridge, share = regular(gram, moments)
    inverse: Floats = np.linalg.inv(gram).astype(np.float64)
    weights = inverse @ target

    def derivative(change: Floats) -> Floats:
        return np.asarray(inverse @ (change[:-1, -1] - change[:-1, :-1] @ weights))

    own = moments.matrix[-1, -1]
    mean = moments.matrix[0, -1] / moments.count
    residual = own - 2 * weights @ target + weights @ moments.matrix[:-1, :-1] @ weights
    total = own - moments.count * mean**2
    return LinearFit(
        weights, moments.map_of(derivative), inverse, max(0.0, float(residual)), max(0.0, float(total)), ridge, share
    )


def regular(gram: Floats, moments: Moments) -> tuple[Floats, float, float]:
    """Return a noisy matrix of sums of squares that can be inverted, what was added, and the share of noise in it."""
    sizes = np.sqrt(np.maximum(np.diag(gram), moments.noises.max()))
    scaled = gram / np.outer(sizes, sizes)
    noise = moments.noises.max() / sizes.min() ** 2 * np.sqrt(len(gram))
    least = float(np.linalg.eigvalsh(scaled)[0])
    added = max(0.0, noise - least)
    return gram + np.diag(added * sizes**2), added, float(noise / max(least + added, 1e-300))


@dataclass(frozen=True, repr=False)
class LinearModel(Result):
    """A fitted linear model: `coef_` and `intercept_` in raw units, with standard errors, intervals and `predict`.

    `std_errors_` has the standard errors of the intercept and the coefficients, `feature_names_in_` the columns.
    `r2_` is the share of variance that the model explains in the data that were read, estimated from noisy sums.
    """

    features: tuple[ModelColumn, ...] = ()
    target: str = ""
    coef_: Floats = field(default_factory=lambda: np.zeros(0))
    intercept_: float = 0.0
    std_errors_: Floats = field(default_factory=lambda: np.zeros(0))
    r2_: float = 0.0
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
    """Plan noisy moments of columns; by default with private bounds if one unit may have any number of rows."""
    if standard not in (None, "declared", "private"):
        raise InvalidParameter(f"standardize= must be 'declared' or 'private', got {standard!r:.40}")
    settings, relation = rows.settings, rows_without_null(rows, names)
    bounded = relation.stability(settings.context, settings.unit).max_rows is not None
    chosen: Standard = standard or ("declared" if bounded else "private")
    keyed = settings.context.dataset.units[settings.unit].kind != "row"
    return MomentPlan(settings, Design(relation, columns, chosen, UNIT_REACH if keyed else ROW_REACH))


def moment_statistic(plan: MomentPlan, finish: Any, expect: Any) -> SteppedStatistic[Any]:
    """Make a statistic of one step, the moments, after the searches that it needs."""
    searches, whole = plan.searches(), Fraction(1)
    if searches:
        whole -= SEARCH_SHARE
        searches = list(with_shares(searches, plan.settings, SEARCH_SHARE / len(searches)))
    step = Step(plan.measure(), whole)
    return SteppedStatistic(
        plan.settings, (), not_built, expect, plan_notes(plan), tuple(searches), (step,), finish
    )  # fmt: skip


def not_built(measured: object) -> Any:
    """Refuse to build a statistic that is finished from its steps."""
    raise TypeError("a stepped statistic is finished, not built")


def plan_notes(plan: MomentPlan) -> tuple[str, ...]:
    """Return notes on the unit, the rows left out, and how columns are standardised."""
    notes = [f"unit of privacy: {plan.settings.unit}", "rows with NULL in any column are left out"]
    if plan.design.standard == "private":
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


@dataclass(frozen=True)
class RawFit:
    """Coefficients in raw units, the intercept first, with standard errors and half widths of intervals."""

    values: Floats
    std_errors: Floats
    half_widths: Floats


def raw_fit(fit: LinearFit, moments: Moments, scaling: Scaling, confidence: float, population: bool) -> RawFit:
    """Return coefficients in raw units with the errors of noise, and of sampling if wanted."""
    matrix, shift = raw_map(scaling)
    linear, draws = matrix @ fit.noise_map, moments.draws
    variances = (linear**2).sum(axis=1)
    if population:
        freedom = max(1.0, moments.count - len(fit.weights))
        sampling = matrix @ np.linalg.cholesky(fit.inverse * (fit.residual / freedom) + 1e-300 * np.eye(len(matrix)))
        variances = variances + (sampling**2).sum(axis=1)
        extra = np.random.Generator(np.random.PCG64(1)).standard_normal((len(draws), len(matrix)))
        linear, draws = np.hstack([linear, sampling]), np.hstack([draws, extra])
    return RawFit(matrix @ fit.weights + shift, np.sqrt(variances), half_widths(linear, draws, confidence))


def build_model(plan: MomentPlan, released: Released, alpha: float, population: bool) -> LinearModel:
    """Build the fitted model from what was released."""
    moments, scaling = read_moments(plan, released), plan.design.scaling(released.chosen)
    fit = fit_linear(moments, penalties_of(plan, scaling, alpha))
    raw = raw_fit(fit, moments, scaling, plan.settings.confidence, population)
    features, outcome = plan.design.columns[:-1], plan.design.columns[-1]
    names = [INTERCEPT, *(column.name for column in features)]
    columns = [
        key_column("term", names),
        noisy_column(
            "coefficient", raw.values, raw.std_errors, raw.values - raw.half_widths, raw.values + raw.half_widths
        ),
    ]
    explained = 1 - fit.residual / fit.total if fit.total > fit.residual else 0.0
    summary = (
        f"linear regression of {outcome.name} on {len(features)} columns, about {moments.count:,.0f} weighted rows; "
        f"R² about {explained:.3f}",
    )
    notes = [*plan_notes(plan), interval_note(population), *fit_notes(fit, alpha), *reach_notes(plan, scaling)]
    fields = result_fields(released.measurements, f"regress {outcome.name}", columns, summary, notes)
    return LinearModel(
        **fields, features=features, target=outcome.name, coef_=raw.values[1:], intercept_=float(raw.values[0]),
        std_errors_=raw.std_errors, r2_=explained, moments=moments, scaling=scaling,
    )  # fmt: skip


def interval_note(population: bool) -> str:
    """Say what the intervals are about."""
    if population:
        return "intervals include noise and sampling error: they are about the population that the rows come from"
    return "intervals are about the coefficients in these data: they include the noise, not sampling error"


def fit_notes(fit: LinearFit, alpha: float) -> list[str]:
    """Return notes on the penalty and on too much noise."""
    notes = [f"ridge penalty {alpha:g}, in units of half the declared widths"] if alpha else []
    if fit.ridge > 0:
        notes.append(
            "noise hides how columns differ: a ridge was added, which shrinks coefficients; intervals do not cover it"
        )
    elif fit.noise_share > LARGE_NOISE:
        notes.append("noise is large beside the spread of some column; the intervals are rough: spend more")
    return notes


def reach_notes(plan: MomentPlan, scaling: Scaling) -> list[str]:
    """Say to which range the values of each number were moved, if it was chosen privately."""
    if plan.design.standard == "declared":
        return []
    ranges = []
    for place in plan.design.numbers:
        column, far = plan.design.columns[place], scaling.scales[place] * scaling.reach
        low, high = max(float(column.low), scaling.centres[place] - far), scaling.centres[place] + far
        ranges.append(f"{column.name} {low:.4g} to {min(float(column.high), high):.4g}")
    return [f"values were moved into private ranges: {'; '.join(ranges)}"] if ranges else []


# --- quotes ----------------------------------------------------------------------------------------------------------


def expected_errors(plan: MomentPlan, measurement: Measurement, alpha: float) -> list[Expected]:
    """Return the expected errors of coefficients, as if columns were independent and even over their ranges."""
    context, settings = plan.settings.context, plan.settings
    size = TYPICAL_ROWS * TYPICAL_ROW
    chosen = assumed_choices(plan, size)
    filled = replace(measurement, measure=fill_values(measurement.measure, chosen))
    noise = expected_noise(context, settings.unit, filled)
    rows = table_rows(plan)
    moments = plan.read(np.zeros(len(plan.pairs)), noise, chosen)
    moments = replace(moments, matrix=rows * even_moments(plan.design))
    scaling = plan.design.scaling(chosen)
    raw = raw_fit(fit_linear(moments, penalties_of(plan, scaling, alpha)), moments, scaling, settings.confidence, False)
    known = not plan.searches()
    names = [INTERCEPT, *(column.name for column in plan.design.columns[:-1])]
    errors = zip(names, raw.std_errors, raw.half_widths, strict=True)
    return [Expected(name, float(error), float(half), True, rows, known) for name, error, half in errors]


def assumed_choices(plan: MomentPlan, size: int) -> Mapping[str, int]:
    """Return the values that quotes assume before they are chosen."""
    chosen = {search.tag: search.grid[len(search.grid) // 2] for search in plan.searches()}
    chosen |= {tag: plan.design.zoom(0).hi // (1 << 8) for tag in chosen if tag.startswith("zoom")}
    return chosen | ({"radius": RADIUS // size} if "radius" in chosen else {})


def table_rows(plan: MomentPlan) -> float:
    """Return the noisy size of the largest table that is read, or a thousand if none is known."""
    tables = {node.table for node in walk(plan.design.rows) if isinstance(node, Scan)}
    return float(max((plan.settings.context.noisy_rows(table) or 0 for table in tables), default=0) or 1000)


def even_moments(design: Design) -> Floats:
    """Return the mean products of independent columns that are even over their ranges."""
    levels = {c.source: 1 + sum(o.source == c.source for o in design.columns) for c in design.columns if c.indicator}
    means = np.array([1.0, *(1 / levels[c.source] if c.indicator else 0.0 for c in design.columns)])
    squares = np.array([1.0, *(1 / levels[c.source] if c.indicator else 1 / 3 for c in design.columns)])
    matrix = np.outer(means, means)
    np.fill_diagonal(matrix, squares)
    return matrix
