"""The search: what is believed of rare events, and events that hold what was tried."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dither.audit import learners, search
from dither.audit.events import Sample, Space
from dither.audit.search import CAUTION, Tally, believed
from dither.loss import Pure

RUNS = 200_000
SHARES = np.exp(-np.arange(0.0, 9.6, 0.12))


def chain(rng: np.random.Generator, ratio: np.ndarray) -> tuple[Tally, Tally]:
    """Counts of nested events, whose shares on the second input are `SHARES`."""
    found = []
    for shares in (SHARES * np.exp(ratio), SHARES):
        rings = rng.multinomial(RUNS, np.append(-np.diff(shares), shares[-1]) / shares[0])
        found.append(Tally(np.cumsum(rings[::-1])[::-1], RUNS))
    return found[0], found[1]


def test_luck_is_not_believed() -> None:
    """Two equal inputs: the luckiest rare event often looks like a large epsilon, and is believed to be near 0."""
    # Seeds are fixed. The named bug: to take each event's own counts at their word.
    value = search.worth(Pure(0.1), 2_000_000, 0.05)
    rng = np.random.default_rng(14)
    naive, sober = [], []
    for _ in range(60):
        p, q = chain(rng, np.zeros(len(SHARES)))
        belief, ratio, error = believed(p, q)
        ratio = ratio - CAUTION * error
        naive.append(float(np.max(value(p.hits / RUNS, q.hits / RUNS))))
        mass = (p.hits + q.hits) / RUNS
        sober.append(belief * max(0.0, float(np.max(value(mass / (1 + np.exp(-ratio)), mass / (1 + np.exp(ratio)))))))
    assert np.quantile(naive, 0.75) > 0.2
    assert np.quantile(sober, 0.9) < 0.05


@pytest.mark.parametrize("ratio", [0.2 * np.minimum(-2 * np.log(SHARES), 1), 0.04 * np.expm1(-0.4 * np.log(SHARES))])
def test_what_many_events_say_together_is_believed(ratio: np.ndarray) -> None:
    """A ratio that stays as events grow rarer, and one that grows: both are seen where counts alone are too few."""
    rng = np.random.default_rng(15)
    errors = []
    for _ in range(20):
        belief, found, error = believed(*chain(rng, ratio))
        assert belief > 0.99
        errors.append(found - CAUTION * error - ratio)
    off = np.mean(errors, axis=0)
    # On average cautious everywhere, and not by more than two fifths of the truth where there are hundreds of hits.
    assert off.max() < 0.02
    assert np.all(off[SHARES > 3e-3] > -0.4 * ratio[SHARES > 3e-3] - 0.02)


def test_the_event_holds_as_much_as_what_was_tried() -> None:
    """Scores learned from halves and from the whole differ in scale; thresholds go by how much lies beyond them."""
    rng = np.random.default_rng(16)
    a, b = (np.rint((shift + rng.laplace(size=(20_000, 6))) * 1024) / 1024 for shift in (0.3, 0.0))
    space = Space.learn(a, b)
    sample = Sample(space, space.encode(a), space.encode(b))
    tried = search.tries(sample, [partial(learners.tied, columns=space.group("base"), bins=8)])[-1:]
    for lead in search.leads(space, tried, search.worth(Pure(1), 100_000, 0.05)):
        held = np.mean([lead.event.contains(side).mean() for side in (a, b)])
        assert held == pytest.approx((lead.p + lead.q) / 2, rel=0.1)
