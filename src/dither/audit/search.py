"""Finding promising events: learn scores on one part of the search sample, choose thresholds on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit import events
from dither.audit.bounds import predicted_epsilon, predicted_score
from dither.audit.claims import Floats, ceiling, strength
from dither.audit.events import ColumnScore, Event, Sample, Score
from dither.loss import Loss, Pure

Worth = Callable[[Any, Any], Any]

# Standard errors taken off each probability when the best of many, or of a few, is sought.
MANY, FEW = 1.2, 1.2
# Each score gives its best event, and a rarer one that may do better once there are more runs.
RARER, FEWEST = 0.3, 8


@dataclass(frozen=True)
class Lead:
    """An event that looks good: `swapped` if it is likelier on the second input; a `rare` one is a long shot."""

    event: Event
    swapped: bool
    worth: float
    p: float
    q: float
    rare: bool = False


def worth(claim: Loss, runs: int, alpha: float) -> Worth:
    """What an event of probabilities (p, q) will be worth after `runs` more runs: an epsilon, or standard errors."""
    if isinstance(claim, Pure):
        return lambda p, q: predicted_epsilon(p, q, runs, alpha)
    limit = ceiling(claim, strength(claim))
    return lambda p, q: predicted_score(p, q, runs, limit)


def leads(sample: Sample, value: Worth, learner: events.Learner) -> list[Lead]:
    """The best event of each score, best first; half-lines are judged on everything, learned scores on what is left."""
    half = (11 * len(sample.a)) // 20
    training = Sample(sample.space, sample.a[:half], sample.b[:half])
    rest = Sample(sample.space, sample.a[half:], sample.b[half:])
    found = [_best(sample, score, value) for score in events.columns_in_order(sample)]
    # Where a score was fitted, its far tail is not to be trusted: long shots are half-lines only.
    found += [common(_best(rest, score, value)) for score in learner(training)]
    return sorted((lead for group in found for lead in group), key=lambda lead: (lead.rare, -lead.worth))


def distinct(found: list[Lead], most: int) -> list[Lead]:
    """The best lead and others that differ from it in kind or in size."""
    chosen: list[Lead] = []
    for lead in common(found):
        if len(chosen) < most and np.isfinite(lead.worth) and all(_differs(lead, other) for other in chosen):
            chosen.append(lead)
    return _with_plain(chosen or found[:1], found)


def common(found: list[Lead]) -> list[Lead]:
    """The leads that are not long shots."""
    return [lead for lead in found if not lead.rare]


def shortlist(found: list[Lead], most: int) -> list[Lead]:
    """The best common leads, and the best long shots among those that promise more."""
    chosen = distinct(found, most)
    rare = sorted((lead for lead in found if lead.rare and lead.worth > chosen[0].worth), key=lambda lead: -lead.worth)
    return (
        chosen
        + [lead for place, lead in enumerate(rare) if all(_differs(lead, other) for other in rare[:place])][:most]
    )


def finalists(found: list[Lead], most: int) -> list[Lead]:
    """The best lead, the best long shot if it promises more, and others."""
    rare = [lead for lead in found if lead.rare and np.isfinite(lead.worth) and lead.worth > found[0].worth]
    return [*distinct(found, most - len(rare[:1])), *rare[:1]]


def _with_plain(chosen: list[Lead], found: list[Lead]) -> list[Lead]:
    """Puts an event that a person can check by hand among those chosen, if one is nearly as good."""
    plain = next((lead for lead in found if isinstance(lead.event.score, ColumnScore)), None)
    if plain is None or any(isinstance(lead.event.score, ColumnScore) for lead in chosen):
        return chosen
    return [*chosen[:-1], plain] if len(chosen) > 1 and plain.worth > 0.8 * chosen[0].worth else chosen


def _differs(one: Lead, other: Lead) -> bool:
    """Whether two events are of another kind, read something else, or differ in size."""
    kinds = [(type(lead.event.score), lead.event.score.columns, lead.swapped) for lead in (one, other)]
    if (one.p, one.q) == (other.p, other.q):
        return False
    return kinds[0] != kinds[1] or not 0.6 < (one.p + 1e-9) / (other.p + 1e-9) < 1.7


def _best(sample: Sample, score: Score, value: Worth) -> list[Lead]:
    """The best threshold of a score in each direction."""
    thresholds, (above_a, above_b), (below_a, below_b) = _tallies(score, sample)
    runs_a, runs_b = len(sample.a), len(sample.b)
    found = []
    for above, p, q in ((True, (above_a, runs_a), (above_b, runs_b)), (False, (below_b, runs_b), (below_a, runs_a))):
        values = np.asarray(value(_cautious(*p, -MANY), _cautious(*q, MANY)))
        best = int(np.argmax(values))
        hopes = np.asarray(value(p[0] / p[1], q[0] / q[1]))
        hopes = np.where((p[0] <= RARER * p[0][best]) & (p[0] >= FEWEST), hopes, -np.inf)
        rarer = int(np.argmax(hopes))
        for place, valued, rare in ((best, values[best], False), (rarer, hopes[rarer], True)):
            event = Event(sample.space, score, float(thresholds[place]), above)
            found.append(Lead(event, not above, float(valued), p[0][place] / p[1], q[0][place] / q[1], rare))
    return found


def again(found: list[Lead], hits: NDArray[Any], runs: int, value: Worth) -> list[Lead]:
    """The same events, valued by fresh counts (a row for each event: on the first input, on the second), best first."""
    p, q = np.where([lead.swapped for lead in found], hits.T[::-1], hits.T)
    caution = np.array([0.0 if lead.rare else FEW for lead in found])
    values = value(_cautious(p, runs, -caution), _cautious(q, runs, caution))
    moved = [
        replace(lead, worth=float(values[place]), p=float(p[place] / runs), q=float(q[place] / runs))
        for place, lead in enumerate(found)
    ]
    return sorted(moved, key=lambda lead: (lead.rare, -lead.worth))


def _cautious(hits: NDArray[Any], runs: int, side: Any) -> Floats:
    """A probability moved some standard errors to the unfavourable side, against the winner's curse."""
    share = hits / runs
    spread = np.sqrt((hits + np.greater(side, 0)) * (1 - share))
    result: Floats = np.clip((hits + side * spread + np.maximum(side, 0.0) ** 2 / 2) / runs, 0.0, 1.0)
    return result


def _tallies(score: Score, sample: Sample) -> tuple[Floats, list[NDArray[Any]], list[NDArray[Any]]]:
    """Candidate thresholds, and for each input how many outputs lie at or above, and at or below, each."""
    if isinstance(score, ColumnScore):
        return _column_tallies(score, sample)
    scores = [np.sort(score.of(side)) for side in (sample.a, sample.b)]
    thresholds = _thresholds(np.concatenate(scores))
    above = [len(values) - np.searchsorted(values, thresholds, side="left") for values in scores]
    return thresholds, above, [np.searchsorted(values, thresholds, side="right") for values in scores]


def _column_tallies(score: ColumnScore, sample: Sample) -> tuple[Floats, list[NDArray[Any]], list[NDArray[Any]]]:
    thresholds, place = np.unique(score.table, return_inverse=True)
    hits = [np.bincount(side.codes[:, score.column], minlength=256) for side in (sample.a, sample.b)]
    tallies = [np.bincount(place, side, minlength=len(thresholds)) for side in hits]
    return thresholds, [np.cumsum(side[::-1])[::-1] for side in tallies], [np.cumsum(side) for side in tallies]


def _thresholds(pooled: Floats) -> Floats:
    """Values of the score that are dense in both tails."""
    values = np.sort(pooled)
    tails = np.geomspace(4 / len(values), 0.05, 60)
    shares = np.concatenate([[0.0], tails, np.linspace(0.05, 0.95, 120), 1 - tails, [1.0]])
    return np.unique(values[(shares * (len(values) - 1)).astype(int)])
