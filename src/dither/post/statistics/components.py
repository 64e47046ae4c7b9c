"""Principal components from noisy sums of products, with errors that include the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dither.errors import InvalidParameter
from dither.post.display import loss_text
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.noise import Floats
from dither.post.statistics.core import Statistic
from dither.post.statistics.design import ModelColumn, Scaling, Standard, read_columns, read_frame
from dither.post.statistics.linear import (
    expected_from,
    moment_plan,
    moment_statistic,
    plan_notes,
    private_remedy,
    reach_notes,
    table_rows,
    typical_reading,
)
from dither.post.statistics.moments import MomentPlan, Moments, half_widths, read_moments
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.steps import Released
from dither.privacy.protocol import Measurement

# Variances of less than this share of a column's own squared unit are taken to be this share.
LEAST_SHARE = 1e-9
# A component whose direction may be off by this much, of a length of 1, has none that could be told from noise.
HIDDEN_TURN = 0.5


@dataclass(frozen=True)
class Spectrum:
    """Variances along principal axes, the axes in rows, and the maps from cell noise to the errors of both.

    `variance_map` is that of all variances. `own` has the variances of the columns in standard units, with their map.
    """

    variances: Floats
    axes: Floats
    variance_map: Floats
    axis_map: Floats
    means: Floats
    deviations: Floats
    own: Floats
    own_map: Floats


def find_axes(moments: Moments, scaling: Scaling, count: int, correlation: bool) -> Spectrum:
    """Return the principal axes of the columns in raw units, or in units of their standard deviations."""
    rows, size = moments.count, len(moments.matrix) - 1
    means = moments.matrix[0, 1:] / rows
    second = moments.matrix[1:, 1:] / rows
    units = np.outer(scaling.scales, scaling.scales)
    covariance = (second - np.outer(means, means)) * units
    least = np.maximum(np.diag(covariance), LEAST_SHARE * scaling.scales**2)
    deviations = np.sqrt(least) if correlation else np.ones(size)
    shown = covariance / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(shown)
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(size)] < 0, -1.0, 1.0)
    gaps = values[:, None] - values[None, :]
    inverse_gaps = np.where(np.abs(gaps) > 0, 1 / np.where(gaps == 0, 1.0, gaps), 0.0)

    def derivative(change: Floats) -> Floats:
        rows_change = change[0, 0]
        means_change = (change[0, 1:] - means * rows_change) / rows
        outer = np.outer(means_change, means)
        moved = ((change[1:, 1:] - second * rows_change) / rows - outer - outer.T) * units
        moved = moved / np.outer(deviations, deviations)
        if correlation:
            relative = np.diag(moved) / 2
            moved = moved - shown * (relative[:, None] + relative[None, :])
        turned = vectors.T @ moved @ vectors
        turns = vectors @ (turned * inverse_gaps.T)
        return np.concatenate([np.diag(turned), turns[:, :count].T.ravel()])

    def own_derivative(change: Floats) -> Floats:
        rows_change = change[0, 0]
        means_change = (change[0, 1:] - means * rows_change) / rows
        return np.asarray((np.diag(change)[1:] - np.diag(second) * rows_change) / rows - 2 * means * means_change)

    linear = moments.map_of(derivative)
    raw_means = scaling.centres + scaling.scales * means
    return Spectrum(
        np.maximum(values, 0.0), vectors.T[:count], linear[:size], linear[size:], raw_means, deviations,
        np.diag(second) - means**2, moments.map_of(own_derivative),
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class PrincipalComponents(Result):
    """Principal components: `components_` in rows, `explained_variance_` and its shares, `mean_`, and `transform`.

    `component_errors_` has the standard errors of the components by noise; large where two variances are close. What
    noise hides is nan: all of it where a column's own variance may be 0, or the components whose direction is unknown.
    """

    features: tuple[ModelColumn, ...] = ()
    components_: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    component_errors_: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    explained_variance_: Floats = field(default_factory=lambda: np.zeros(0))
    explained_variance_ratio_: Floats = field(default_factory=lambda: np.zeros(0))
    mean_: Floats = field(default_factory=lambda: np.zeros(0))
    scale_: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def feature_names_in_(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.features]

    def transform(self, frame: Any) -> Floats:
        """Return the coordinates of a frame's rows along the components."""
        return np.asarray((read_frame(self.features, frame) - self.mean_) / self.scale_ @ self.components_.T)


def make_components(
    rows: SourceRows, columns: Sequence[str], count: int | None, correlation: bool, standard: Standard | None
) -> Statistic[PrincipalComponents]:
    """Make the statistic of principal components."""
    features = read_columns(rows, columns, all_levels=True)
    wanted = len(features) if count is None else count
    if len(features) < 2 or isinstance(wanted, bool) or not 1 <= wanted <= len(features):
        raise InvalidParameter("components need at least two columns, and count= from 1 to their number")
    plan = moment_plan(rows, columns, features, standard)

    def finish(released: Released) -> PrincipalComponents:
        return build_components(plan, released, wanted, correlation)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_variances(plan, parts[0][0], correlation)

    return moment_statistic(plan, finish, expect)


def expected_variances(plan: MomentPlan, measurement: Measurement, correlation: bool) -> list[Expected]:
    """Return the expected error of a variance, for independent columns and components with parts of all of them."""
    turned = "it depends on how far apart the variances are: close ones have no direction of their own"
    axes = unknown_error("a component", turned)
    if not correlation:
        reason = "variances in raw units depend on how the columns are spread"
        return [unknown_error("variance of a component", reason), axes]
    moments, rows = typical_reading(plan, measurement), table_rows(plan)
    size = len(moments.matrix) - 1
    squares = np.diag(moments.matrix)[1:] / rows - (moments.matrix[0, 1:] / rows) ** 2
    # A component with equal parts of all columns adds up their covariances, in units of their variances.
    even = 1 / np.sqrt(size * squares * rows)
    linear = moments.map_of(lambda change: np.array([even @ (change[1:, 1:] - np.diag(np.diag(change)[1:])) @ even]))
    error = float(np.sqrt((linear**2).sum()))
    half = float(half_widths(linear, moments.draws, plan.settings.confidence)[0])
    return [expected_from(plan, "variance of a component", error, half, rows), axes]


def build_components(plan: MomentPlan, released: Released, count: int, correlation: bool) -> PrincipalComponents:
    """Build the components from what was released; what noise hides is nan, which is shown as unknown."""
    moments, scaling = read_moments(plan, released), plan.design.scaling(released.chosen)
    found = find_axes(moments, scaling, count, correlation)
    half = half_widths(found.variance_map[:count], moments.draws, plan.settings.confidence)
    shares = found.variances / max(float(found.variances.sum()), 1e-300)
    errors = np.sqrt((found.variance_map[:count] ** 2).sum(axis=1))
    values = found.variances[:count]
    turns = np.sqrt((found.axis_map**2).sum(axis=1)).reshape(count, -1)
    names = [column.name for column in plan.design.columns]
    own_half = half_widths(found.own_map, moments.draws, plan.settings.confidence)
    lost = [name for name, is_lost in zip(names, found.own <= own_half, strict=True) if is_lost and correlation]
    if lost:
        values, errors, half, shares = (np.full(len(part), np.nan) for part in (values, errors, half, shares))
    turned = bool(lost) | too_close(found, moments, plan.settings.confidence)[:count]
    turned |= ~(np.sqrt((turns**2).sum(axis=1)) < HIDDEN_TURN)
    axes = np.where(turned[:, None], np.nan, found.axes)
    columns = [
        key_column("component", [f"PC{number + 1}" for number in range(count)]),
        noisy_column("variance", values, errors, np.maximum(values - half, 0), values + half),
        key_column("share", [round(float(share), 4) for share in shares[:count]]),
        *(key_column(name, np.round(axes[:, place], 4).tolist()) for place, name in enumerate(names)),
    ]
    unit = "standard deviations" if correlation else "raw units"
    summary = (
        f"principal components of {len(names)} columns in {unit}, about {moments.count:,.0f} weighted rows",
        *hidden_lines(lost, turned, plan),
    )
    notes = [*plan_notes(plan), *reach_notes(plan, scaling), "intervals include the noise, not sampling error"]
    notes += ["variance and share are unknown: noise hides them"] if lost else []
    fields = result_fields(released.measurements, "components", columns, summary, notes)
    return PrincipalComponents(
        **fields, features=plan.design.columns, components_=axes,
        component_errors_=np.where(turned[:, None], np.inf, turns),
        explained_variance_=values, explained_variance_ratio_=shares[:count], mean_=found.means,
        scale_=found.deviations,
    )  # fmt: skip


def too_close(found: Spectrum, moments: Moments, confidence: float) -> np.ndarray:
    """Return the components whose variance may equal the one before or after: noise then decides their order."""
    gaps = found.variances[:-1] - found.variances[1:]
    close = gaps <= half_widths(found.variance_map[:-1] - found.variance_map[1:], moments.draws, confidence)
    return np.asarray(np.append(close, False) | np.append(False, close))


def hidden_lines(lost: Sequence[str], turned: np.ndarray, plan: MomentPlan) -> list[str]:
    """Say which variances or directions noise hides."""
    if lost:
        loss, ways = loss_text([plan.settings.spend.loss]), private_remedy(plan.design)
        return [
            f"too few data for {loss}: noise hides whether values of {', '.join(lost)} differ at all, so variances and "
            f"the components are unknown; {ways}spend more, or narrow the declared bounds"
        ]
    places = [f"PC{number + 1}" for number in np.flatnonzero(turned)]
    if not places:
        return []
    return [
        f"noise hides the direction of {', '.join(places)}: other variances are as large, or too close to tell apart"
    ]
