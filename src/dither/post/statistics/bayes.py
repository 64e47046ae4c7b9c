"""Naive Bayes from noisy tables of the target and each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dither.errors import InvalidParameter
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.estimate.quantiles import interval_factor
from dither.post.noise import Floats
from dither.post.statistics.clusters import interval
from dither.post.statistics.core import Statistic
from dither.post.statistics.design import frame_column, rows_without_null
from dither.post.statistics.marginals import Attribute, MarginalPlan, plain, plan_marginals, read_attributes, table_of
from dither.post.statistics.number_bins import choose_bins, with_range_searches
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.steps import Released
from dither.privacy.protocol import Measurement
from dither.schema import Scalar

MAX_COLUMNS = 128


@dataclass(frozen=True, repr=False)
class NaiveBayes(Result):
    """A naive Bayes classifier: `classes_`, `class_log_prior_`, `feature_log_prob_` by column, and `predict`."""

    attributes: tuple[Attribute, ...] = ()
    target: str = ""
    classes_: tuple[Scalar, ...] = ()
    class_log_prior_: Floats = field(default_factory=lambda: np.zeros(0))
    feature_log_prob_: tuple[Floats, ...] = ()

    def predict_log_proba(self, frame: Any) -> Floats:
        """Return the logarithms of the classes' probabilities for each row; values without a place say nothing."""
        scores = np.tile(self.class_log_prior_, (len(frame_column(frame, self.attributes[0].name)), 1))
        for attribute, logs in zip(self.attributes, self.feature_log_prob_, strict=True):
            places = attribute.place_of(frame)
            scores = scores + np.where((places >= 0)[:, None], logs.T[places], 0.0)
        top = scores.max(axis=1, keepdims=True)
        return np.asarray(scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))

    def predict_proba(self, frame: Any) -> Floats:
        """Return the classes' probabilities for each row of a frame."""
        return np.asarray(np.exp(self.predict_log_proba(frame)))

    def predict(self, frame: Any) -> list[Any]:
        """Return the likeliest class for each row of a frame."""
        return [self.classes_[place] for place in self.predict_log_proba(frame).argmax(axis=1)]

    def score(self, frame: Any, target: Sequence[Any] | None = None) -> float:
        """Return the share of rows of a frame whose class is predicted; by default the target is its own column."""
        truth = frame_column(frame, self.target) if target is None else list(target)
        return float(np.mean([one == two for one, two in zip(self.predict(frame), truth, strict=True)]))


def make_bayes(
    rows: SourceRows, target: str, features: Sequence[str], bins: Mapping[str, Any] | None
) -> Statistic[NaiveBayes]:
    """Make the statistic of a naive Bayes classifier."""
    if not 1 <= len(features) <= MAX_COLUMNS or target in features:
        raise InvalidParameter(f"naive Bayes needs 1 to {MAX_COLUMNS} columns in features=, without the target")
    outcome, *attributes = read_attributes(rows, [target, *features], bins or {})
    if outcome.edges:
        raise InvalidParameter(f"the target {target} has too many values to be a class; classify a category")
    relation = rows_without_null(rows, [target])
    private = choose_bins(rows, relation, attributes, bins or {})
    plan = plan_marginals(rows, relation, [(outcome.key, attribute.key) for attribute in private.attributes])
    plan = with_range_searches(plan, private)

    def finish(released: Released) -> NaiveBayes:
        return build_bayes(plan, released, outcome, private.raw(released.chosen))

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_classes(plan, parts[0][0], [attribute.size for attribute in private.attributes], outcome)

    return plan.statistic(finish, expect)


def expected_classes(
    plan: MarginalPlan, measurement: Measurement, sizes: Sequence[int], outcome: Attribute
) -> list[Expected]:
    """Return the expected errors of the sizes of classes and of a cell; those of predictions depend on the records."""
    noise, level = plan.expected_noise(measurement), plan.settings.confidence
    one, many = (float(interval_factor(np.array([count]), noise, level)[0]) for count in (1.0, float(sum(sizes))))
    reason = f"it depends on how well the columns tell the classes of {outcome.name} apart; measure it with score"
    return [
        plan.error("rows of a class", noise.std / np.sqrt(sum(1 / size for size in sizes)), many),
        plan.error("rows of a class with one value of a column", noise.std, one),
        unknown_error("accuracy", reason),
    ]


def build_bayes(
    plan: MarginalPlan, released: Released, outcome: Attribute, attributes: Sequence[Attribute]
) -> NaiveBayes:
    """Build the classifier: probabilities of places given the class, smoothed by the noise."""
    noise = released.noise().std
    tables = [table_of(released, part).reshape(outcome.size, a.size) for part, a in enumerate(attributes)]
    weights = np.array([1 / table.shape[1] for table in tables])
    totals = np.tensordot(weights / weights.sum(), np.array([table.sum(axis=1) for table in tables]), axes=1)
    error = noise / np.sqrt(weights.sum())
    logs = tuple(smooth(table, noise) for table in tables)
    counts = np.maximum(totals, max(error, 1.0))
    classes = tuple(plain(value) for value in outcome.values)
    cells = np.full(outcome.size, sum(table.shape[1] for table in tables))
    factor = interval_factor(cells, released.noise(), plan.settings.confidence)
    errors = np.full(outcome.size, error)
    columns = [
        key_column(outcome.name, [str(value) for value in classes]),
        noisy_column("rows", totals, errors, *interval(totals, errors, factor)),
    ]
    summary = (f"naive Bayes of {outcome.name} with {len(classes)} classes on {len(attributes)} columns",)
    notes = [
        *plan.notes,
        "probabilities of rare values are smoothed by the noise: they count as half a standard deviation",
    ]
    fields = result_fields(released.measurements, f"naive Bayes of {outcome.name}", columns, summary, notes)
    return NaiveBayes(
        **fields, attributes=tuple(attributes), target=outcome.name, classes_=classes,
        class_log_prior_=np.log(counts / counts.sum()), feature_log_prob_=logs,
    )  # fmt: skip


def smooth(table: Floats, noise: float) -> Floats:
    """Return the log-probabilities of places given each class; every place has half a standard deviation of noise."""
    counts = np.maximum(table, 0.0) + max(noise / 2, 0.5)
    return np.asarray(np.log(counts / counts.sum(axis=1, keepdims=True)))
