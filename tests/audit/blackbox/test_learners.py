"""Learners of scores."""

from __future__ import annotations

import numpy as np
import pytest

from dither.audit.blackbox import learners
from dither.audit.blackbox.events import OutcomeSpace, SampleTable


def test_columns_of_one_kind_share_a_table() -> None:
    """Twenty columns of little information: with one shared table, the score follows the sum of the true ratios."""
    # Seeds are fixed. The named bug: a table for each column follows its own noise instead, and tells half as much.
    rng = np.random.default_rng(11)
    a, b = (np.rint((shift + rng.laplace(size=(6000, 20))) * 1024) / 1024 for shift in (0.03, 0.0))
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    base = space.columns_in("base")
    fresh = np.rint(rng.laplace(size=(4000, 20)) * 1024) / 1024
    truth = np.clip(fresh, 0, 0.03).sum(axis=1)
    shared, own = learners.shared_table(sample, base, 2), learners.sum_of_tables(sample, base, 6)
    assert shared is not None
    assert own is not None
    told = [np.corrcoef(score.evaluate(space.encode(fresh)), truth)[0, 1] for score in (shared, own)]
    assert told[0] > 0.9
    assert told[1] < 0.75
    assert learners.shared_table(sample, base[:2], 2) is None


def _slanted(rng: np.random.Generator, runs: int, slant: float) -> np.ndarray:
    """Two columns; the first is likelier to be large if the second is, by `slant`."""
    first, second = rng.uniform(-1, 1, (2, runs * 3))
    kept = rng.random(runs * 3) < 0.5 + slant * first * second / 2
    return np.column_stack([first, second])[kept][:runs]


def test_a_surface_needs_few_outputs_where_tables_need_many() -> None:
    """Neither column is informative alone; a surface learns their joint log-ratio from all outputs at once."""
    # Seeds are fixed. The named bug: a surface of degree 0 (no product of the columns) tells nothing.
    rng = np.random.default_rng(12)
    a, b = _slanted(rng, 4000, 0.3), _slanted(rng, 4000, 0.0)
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    fresh = rng.uniform(-1, 1, (4000, 2))
    told = {}
    for degree in (0, 2):
        score = learners.polynomial_surface(sample, (0, 1), degree)
        assert score is not None
        values = score.evaluate(space.encode(fresh))
        told[degree] = float(np.corrcoef(values, fresh.prod(axis=1))[0, 1]) if np.ptp(values) > 1e-9 else 0.0
    assert told[2] > 0.8
    assert abs(told[0]) < 0.3
    assert learners.polynomial_surface(sample, (0, 1), 1, free=True) is None


def test_a_feature_of_few_values_may_have_a_polynomial_for_each() -> None:
    rng = np.random.default_rng(13)
    place = rng.integers(0, 5, (2, 20_000)).astype(float)
    value = rng.uniform(-1, 1, (2, 20_000))
    kept = rng.random(20_000) < 0.5 + 0.4 * np.where(place[0] == 3, value[0], 0.0)
    a, b = np.column_stack([place[0], value[0]])[kept], np.column_stack([place[1], value[1]])
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    score = learners.polynomial_surface(sample, (0, 1), 1, free=True)
    assert score is not None
    line = np.linspace(-1, 1, 200)
    told = [score.evaluate(space.encode(np.column_stack([np.full(200, float(at)), line]))) for at in range(5)]
    assert np.corrcoef(told[3], line)[0, 1] > 0.95
    assert np.ptp(told[3]) > 3 * max(np.ptp(told[at]) for at in (0, 1, 2, 4))


@pytest.mark.tier("test")
def test_the_last_round_learns_from_more_outputs_than_the_first() -> None:
    """With twenty columns the first rounds read 150,000 outputs, however many were drawn; the last reads 500,000."""
    rng, width, runs = np.random.default_rng(31), 20, 300_000
    a, b = (np.rint(8 * rng.laplace(shift, 1, (runs, width))) / 8 for shift in (0.05, 0.0))
    space = OutcomeSpace.learn(a, b)
    sample, base = SampleTable(space, space.encode(a), space.encode(b)), space.columns_in("base")
    taught = [
        each.keywords
        for each in learners.last_round_learners(space)
        if getattr(each, "func", None) is learners.sum_of_tables
    ]  # type: ignore[attr-defined]
    taught = [words for words in taught if words["columns"] == base and words["bins"] == 3]
    scores = [learners.sum_of_tables(sample, base, 3), *(learners.sum_of_tables(sample, **words) for words in taught)]
    # Every column is of one kind, so what differs between the columns' tables is noise.
    noise = [float(np.std(score.tables[:, [40, 200]], axis=0).mean()) for score in scores]  # type: ignore[union-attr]
    assert len(taught) == 1 and noise[1] < 0.85 * noise[0]
    assert learners.MAX_READ // width == 150_000 and learners.MAX_READ_FINAL // width == 500_000
