"""Learners of scores."""

from __future__ import annotations

import numpy as np

from dither.audit import events
from dither.audit.events import Sample, Space


def test_columns_of_one_kind_share_a_table() -> None:
    """Twenty columns that each tell little: with one table for all, the score follows the sum of the true ratios."""
    # Seeds are fixed. The named bug: a table for each column follows its own noise instead, and tells half as much.
    rng = np.random.default_rng(11)
    a, b = (np.rint((shift + rng.laplace(size=(6000, 20))) * 1024) / 1024 for shift in (0.03, 0.0))
    space = Space.learn(a, b)
    sample = Sample(space, space.encode(a), space.encode(b))
    base = space.group("base")
    fresh = np.rint(rng.laplace(size=(4000, 20)) * 1024) / 1024
    truth = np.clip(fresh, 0, 0.03).sum(axis=1)
    encoded = space.encode(fresh)
    shared, own = (score.of(encoded) for score in (*events.tied(sample, base, 2), *events.logistic(sample, base, 6)))
    assert np.corrcoef(shared, truth)[0, 1] > 0.9
    assert np.corrcoef(own, truth)[0, 1] < 0.75
    assert events.tied(sample, base[:2], 2) == []
