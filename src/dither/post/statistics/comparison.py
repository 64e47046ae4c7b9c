"""Compare the means of groups: two-sample tests, tests of several groups, and trends, with noise accounted for.

The error of a group's mean has two parts: sampling, which is about normal, and the noise of the group's count and sum,
whose distribution is known. Both are simulated, so that a test keeps its level however large the noise is. Within a
private span, the test is about the values that were moved into it, since a span moves groups of equal values alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.loss import rational
from dither.plan import expressions as expr
from dither.plan.expressions.core import Expr
from dither.plan.sql.scope import Scope
from dither.post.estimate.answer import Answer
from dither.post.estimate.explain import Expected
from dither.post.noise import Floats, NoiseKind, ScaledNoise
from dither.post.query.aggregated_values import without_null
from dither.post.query.query_plan import at_largest_bounds
from dither.post.query.question import Question
from dither.post.statistics.arguments import read_list
from dither.post.statistics.core import Measurements, Part, Statistic, group_labels
from dither.post.statistics.grid import draw_noise
from dither.post.statistics.power import with_sampling
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import Settings, SourceRows
from dither.schema import Boolean, Category, Domain, Number

SIMULATIONS = 4_999
CLIPPED_NOTE = (
    "values are moved into a private span, the same for all groups: the test compares the means of these values, and "
    "intervals also allow for what lies beyond"
)
# A group whose count is not this many standard deviations above 0 has no usable mean.
SURE_COUNT = 5.0


def population_note(settings: Settings) -> str:
    """Say what a test is about, and what it takes to be independent."""
    note = "the test is about a large population from which the rows were drawn independently"
    if settings.context.dataset.units[settings.unit].kind == "row":
        return note
    return f"{note}; rows of one {settings.unit} are treated as independent too"


@dataclass(frozen=True)
class GroupMeans:
    """Means of groups: noisy sizes, means, variances of values, and simulated errors (one row for each simulation).

    `errors` are those of the means of all values, `errors_within` of values that were moved into a private span.
    """

    labels: tuple[Any, ...]
    sizes: Floats
    means: Floats
    variances: Floats
    errors: Floats
    errors_within: Floats
    usable: np.ndarray

    @property
    def std_errors(self) -> Floats:
        """The standard errors of the means, of sampling and noise together."""
        return np.asarray(self.errors.std(axis=0))


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Means of groups and a test that they are equal.

    `p_value` is the probability of a statistic at least as large, if all groups had one mean. `difference` is the
    second mean minus the first, if there are two groups, and `slope` the trend over scores, each with its interval.
    `defined` is False if some group is too small for the noise; then `p_value` is 1.
    """

    p_value: float = 1.0
    statistic: float = 0.0
    defined: bool = True
    difference: tuple[float, float, float] | None = None
    slope: tuple[float, float, float] | None = None


def present_question(
    rows: SourceRows, wanted: Sequence[str], keys: Sequence[str], columns: Sequence[str] = ()
) -> Question:
    """Ask for aggregates by keys over the rows without a NULL in the keys and columns; the keys have no NULL either."""
    missing = [name for name in (*keys, *columns) if rows.domain(name).nullable]
    where = " AND ".join(f"({rows.column(name)}) IS NOT NULL" for name in missing)
    question = rows.question(wanted, by=keys, where=where)
    scope = Scope(at_largest_bounds(question.relation).domain(rows.context))
    return replace(question, keys=tuple((name, _present_key(value, scope)) for name, value in question.keys))


def _present_key(value: Expr, scope: Scope) -> Expr:
    """Return a key whose domain has no NULL, for rows that were filtered to have none."""
    match value.domain(scope):
        case Boolean(nullable=True):
            return expr.Coalesce((value, expr.LiteralValue(False)))
        case Category(nullable=True, values=(first, *_)):
            return expr.Coalesce((value, expr.LiteralValue(first)))
        case _:
            return without_null(value, scope)


def make_comparison(rows: SourceRows, value: str, by: str, trend: Any) -> Statistic[Comparison]:
    """Make the statistic that compares the means of a value between the groups of a key."""
    text, widest = averaged_value(rows, value)
    wanted = ["COUNT(*) AS n", f"AVG({text}) AS mean", f"VAR_POP({text}) AS variance"]
    planner = replace(rows.settings.planner, spend=rows.settings.spend)
    plan = planner.plan(present_question(rows, wanted, [by], [value]))
    labels = [label[0] for label in group_labels(rows.settings, plan)]
    scores = read_scores(trend, labels)

    def build(measured: Measurements) -> Comparison:
        answer = measured.parts[0].answer(measured.settings, measured.releases)
        laplace = any(part.noise().kind == "laplace" for part in measured.parts)
        groups = group_means(answer, labels, widest, "laplace" if laplace else "gaussian")
        clipped = answer["mean"].clipping is not None
        return compare_groups(measured, groups, f"{value} by {by}", scores, [CLIPPED_NOTE] if clipped else [])

    spread = 0.5 if has_two_values(rows.domain(value)) else None

    def extend(columns: Sequence[Expected]) -> list[Expected]:
        return with_sampling(columns, value, spread, rows.settings.confidence)

    return Statistic(rows.settings, (Part(plan),), build, extend=extend)


def averaged_value(rows: SourceRows, value: str) -> tuple[str, float]:
    """Return the SQL of a number, or of a boolean as 0 and 1, and the width of its range."""
    domain = rows.domain(value)
    match domain:
        case Boolean():
            return f"CASE WHEN {rows.column(value)} THEN 1 ELSE 0 END", 1.0
        case Number():
            return rows.column(value), float(domain.hi - domain.lo)
        case _:
            raise Unsupported(f"{value} is neither a number nor true or false; use session.independence for categories")


def has_two_values(domain: Domain) -> bool:
    """Return True if a value is a boolean, or 0 or 1."""
    return isinstance(domain, Boolean) or (isinstance(domain, Number) and domain.hi - domain.lo == domain.step == 1)


def read_scores(trend: Any, labels: Sequence[Any]) -> Floats | None:
    """Return the scores of the groups for a trend: given ones, or the keys themselves if they are numbers."""
    if trend is None or trend is False:
        return None
    if trend is True:
        if any(isinstance(label, str | bool) or label is None for label in labels):
            raise InvalidParameter("trend=True needs a key that is a number; give a list with a score for each group")
        return np.array([float(label) for label in labels])
    scores = np.array([float(rational(score, "a score")) for score in read_list("trend", trend)])
    if len(scores) != len(labels):
        raise InvalidParameter(f"trend needs a score for each of the {len(labels)} groups, got {len(scores)}")
    return scores


def group_means(answer: Answer, labels: Sequence[Any], widest: float, kind: NoiseKind) -> GroupMeans:
    """Read the means of groups from an answer, and simulate their errors: sampling and noise."""
    size, mean, variance = (answer[name].estimate for name in ("n", "mean", "variance"))
    counts = np.maximum(size.value, 1.0)
    means = np.nan_to_num(np.asarray(mean.value, float))
    variances = np.clip(np.nan_to_num(np.asarray(variance.value, float)), 1e-12, widest**2 / 4 + 1e-12)
    random = np.random.default_rng(20_261_118)
    shape = (SIMULATIONS, len(labels))
    sampling = random.normal(0.0, 1.0, shape) * np.sqrt(variances / counts)
    noise = draw_noise(ScaledNoise(kind, 1000.0), shape, random) / ScaledNoise(kind, 1000.0).std
    errors, within = (
        sampling + noise * np.nan_to_num(std, posinf=widest) for std in (mean.std_error, answer["mean"].noise)
    )
    usable = (size.value > SURE_COUNT * size.std_error + 1) & np.isfinite(mean.std_error)
    return GroupMeans(tuple(labels), np.asarray(size.value, float), means, variances, errors, within, usable)


def compare_groups(
    measured: Measurements, groups: GroupMeans, title: str, scores: Floats | None, more_notes: Sequence[str] = ()
) -> Comparison:
    """Test that all usable groups have one mean, or that there is no trend."""
    level, use = measured.settings.confidence, np.flatnonzero(groups.usable)
    defined = len(use) >= 2
    half = np.quantile(np.abs(groups.errors), level, axis=0)
    columns = [
        key_column("group", [str(label) for label in groups.labels]),
        noisy_column("mean", groups.means, groups.std_errors, groups.means - half, groups.means + half),
    ]
    notes = [population_note(measured.settings), *more_notes]
    if not groups.usable.all():
        small = ", ".join(str(groups.labels[i]) for i in np.flatnonzero(~groups.usable))
        notes.append(f"left out, since the noise hides their size: {small}; spend more, or use larger groups")
    if not defined:
        summary = [f"{title}: fewer than two groups are large enough for the noise, so there is no test"]
        return Comparison(**result_fields(measured, title, columns, summary, notes), defined=False)
    means, errors, within = groups.means[use], groups.errors[:, use], groups.errors_within[:, use]
    weights = 1 / np.maximum(within.var(axis=0), 1e-300)
    if scores is not None:
        slope, found, p_value = trend_test(means, (errors, within), weights, scores[use], level)
        summary = [f"{title}: slope {interval_text(slope)}, {p_text(p_value)}"]
        fields = result_fields(measured, title, columns, summary, notes)
        return Comparison(**fields, p_value=p_value, statistic=found, slope=slope)
    found = float(weighted_spread(means[None, :], weights)[0])
    p_value = tail_share(weighted_spread(within, weights), found)
    difference = None
    summary = [f"{title}: {p_text(p_value)} that the means are equal"]
    if len(use) == 2:
        ends = np.quantile(np.abs(errors[:, 1] - errors[:, 0]), level)
        gap = float(means[1] - means[0])
        difference = (gap, gap - float(ends), gap + float(ends))
        one, two = (groups.labels[i] for i in use)
        summary = [f"{title}: {two} minus {one} {interval_text(difference)}, {p_text(p_value)}"]
    fields = result_fields(measured, title, columns, summary, notes)
    return Comparison(**fields, p_value=p_value, statistic=found, difference=difference)


def weighted_spread(means: Floats, weights: Floats) -> Floats:
    """Return the weighted sum of squared distances of means from their weighted mean, for each row."""
    centre = (means * weights).sum(axis=1, keepdims=True) / weights.sum()
    return np.asarray((weights * (means - centre) ** 2).sum(axis=1))


def trend_test(
    means: Floats, errors: tuple[Floats, Floats], weights: Floats, scores: Floats, level: float
) -> tuple[tuple[float, float, float], float, float]:
    """Return the weighted slope of means over scores with its interval, its statistic and its p-value.

    The interval is by the first of the errors, the test by the second.
    """
    centred = scores - (scores * weights).sum() / weights.sum()
    scale = float((weights * centred**2).sum())
    if scale <= 0:
        return (0.0, -math.inf, math.inf), 0.0, 1.0
    slope = float((weights * centred * means).sum() / scale)
    slopes, within = (np.abs((part * (weights * centred)).sum(axis=1) / scale) for part in errors)
    half = float(np.quantile(slopes, level))
    return (slope, slope - half, slope + half), abs(slope), tail_share(within, abs(slope))


def tail_share(simulated: Floats, found: float) -> float:
    """Return the p-value of a statistic among simulated ones."""
    return float((1 + np.sum(simulated >= found)) / (1 + len(simulated)))


def interval_text(found: tuple[float, float, float]) -> str:
    """Write an estimate with its interval."""
    value, low, high = found
    return f"{value:.4g} [{low:.4g}, {high:.4g}]"


def p_text(p_value: float) -> str:
    """Write a p-value."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
