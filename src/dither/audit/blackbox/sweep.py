"""A sweep: a few runs of many pairs all over a domain, to find the pairs that the search should look at too.

A mechanism may be right at the ends of its domain and wrong inside, for instance where a count crosses the threshold
below which it is suppressed. Pairs are ranked by a cheap score, the better ones get more runs, and the most suspicious
ones join the pairs of the search. The judgement sees none of these runs, so that the sweep cannot cause a false alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, isclose, isnan, log10, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.blackbox import events, features
from dither.audit.blackbox.events import OutcomeSpace
from dither.audit.blackbox.inputs import shorten
from dither.audit.claims import delta
from dither.audit.neighbours import Pair, fingerprint

if TYPE_CHECKING:
    from dither.audit.blackbox.plan import AuditPlan

# The sweep's share of a million samples; it grows as the samples get fewer, up to the largest share.
SWEEP_SHARE, LARGEST_SHARE = 0.08, 0.2
# The first round has this share of the sweep's samples; in the second, one pair in NARROWING, or FEWEST, get the rest.
FIRST_ROUND, NARROWING, FEWEST = 0.6, 8, 8
# Runs of an input without which a sweep is of no use, and the most inputs.
FEWEST_RUNS, MOST_INPUTS = 60, 400
# The number of most suspicious pairs that join the search.
KEPT = 3
# A log-ratio counts as suspicious by what is left of it after this many standard errors.
CAUTION = 2.0
# The text names at most this many stretches of numbers, and shortens other inputs.
MOST_NAMED, MOST_LETTERS = 6, 60


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: its pairs, the runs of each input in its first round, and all of its samples.

    `covered` names these pairs and those that are always searched.

    `rarest_leak` is about the smallest probability at which outputs that only one input can have make a pair join the
    search. `skipped` pairs of the domain got no runs, since there were too few samples.
    """

    pairs: tuple[Pair, ...]
    runs: int
    samples: int
    rarest_leak: float
    covered: str = ""
    skipped: int = 0

    @property
    def kept(self) -> int:
        """The number of pairs that joined the search."""
        return min(KEPT, len(self.pairs))

    def __str__(self) -> str:
        left = f" ({self.skipped} more were left out for want of samples)" if self.skipped else ""
        return (
            f"the {self.kept} most suspicious of {len(self.pairs)} others in a sweep{left}, together {self.covered}; "
            f"the sweep, of {self.runs:,} runs of each input, notices gross violations alone, such as an output that "
            f"only one input can have if its probability is at least {self.rarest_leak:.2g}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the sweep as plain JSON values."""
        return {
            "pairs": [[shorten(value) for value in pair] for pair in self.pairs],
            "skipped": self.skipped, "runs": self.runs, "samples": self.samples, "rarest_leak": self.rarest_leak,
            "covered": self.covered,
        }  # fmt: skip


def sweep_domain(plan: AuditPlan, candidates: Sequence[Pair], brief: bool = False) -> AuditPlan:
    """Return the plan with the most suspicious of some candidates added to its pairs; `candidates` are in order.

    If there are too few samples for all of them, the later ones are left out. A brief sweep makes no more runs than
    it needs.
    """
    share = min(LARGEST_SHARE, max(0.03, SWEEP_SHARE + 0.05 * log10(1_000_000 / plan.samples)))
    first = int(FIRST_ROUND * share * plan.samples)
    known = {_key(pair) for pair in plan.pairs}
    new = [pair for pair in _share_inputs(candidates) if _key(pair) not in known]
    pairs = _affordable(new, min(MOST_INPUTS, first // FEWEST_RUNS), plan.sampler.timed)
    if not pairs:
        return plan
    inputs = _count_inputs(pairs, plan.sampler.timed)
    budget = FEWEST_RUNS * inputs if brief else first
    batches = _draw(plan, pairs, budget, 0)
    spent = _spent(batches)
    scores = [suspicion(plan, *batch) for batch in batches]
    order = sorted(range(len(pairs)), key=lambda place: -scores[place])[: max(FEWEST, ceil(len(pairs) / NARROWING))]
    more = _draw(plan, [pairs[place] for place in order], int(budget * (1 - FIRST_ROUND) / FIRST_ROUND), len(pairs))
    joined = [
        tuple(events.concatenate_outputs(*both) for both in zip(batches[place], batch, strict=True))
        for place, batch in zip(order, more, strict=True)
    ]
    again = [suspicion(plan, *batch) for batch in joined]
    best = sorted(range(len(order)), key=lambda place: -again[place])[:KEPT]
    runs = len(batches[0][0])
    floor = again[best[-1]] if len(pairs) > KEPT else 0.0
    covered, skipped = describe_pairs([*pairs, *plan.pairs]), len(new) - len(pairs)
    done = Sweep(tuple(pairs), runs, spent + _spent(more), _rarest_leak(floor, runs), covered, skipped)
    return replace(plan, pairs=(*plan.pairs, *(pairs[order[place]] for place in best)), sweep=done)


def suspicion(plan: AuditPlan, a: Any, b: Any) -> float:
    """Return the largest log-ratio of an event, less some standard errors; events are ranges of a feature's values."""
    encoder = features.learn_encoder(events.concatenate_outputs(a, b), plan.sampler.timed, plan.bits)
    matrices = [encoder.read(side) for side in (a, b)]
    space = OutcomeSpace.from_matrices(encoder, *matrices)
    first, second = (_event_counts(space.encode_matrix(side).codes) for side in matrices)
    allowed = delta(plan.claim)
    return max(_score(first, second, allowed * len(a)), _score(second, first, allowed * len(b)))


def _event_counts(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the hits of each bin of each column, of the bins up to each, and of the bins from each."""
    counts = np.stack([np.bincount(column, minlength=256) for column in codes.T]).astype(np.float64)
    below = np.cumsum(counts, axis=1)
    return np.concatenate([counts, below, below[:, -1:] - below])


def _score(hits: NDArray[np.float64], others: NDArray[np.float64], allowed: float) -> float:
    """Return the largest cautious log-ratio of hits, less those that delta allows, to the hits on the other input."""
    left, right = np.maximum(hits - allowed, 0.0) + 0.5, others + 0.5
    return float(np.max(np.log(left / right) - CAUTION * np.sqrt(1 / left + 1 / right)))


def _rarest_leak(floor: float, runs: int) -> float:
    """Return the probability of outputs of one input alone whose score is above the floor nine times in ten."""
    hits = next((k for k in range(1, runs) if _score(np.array([float(k)]), np.zeros(1), 0.0) > floor), runs)
    return min(1.0, (hits + 1.3 * sqrt(hits) + 1) / runs)


def _draw(plan: AuditPlan, pairs: list[Pair], budget: int, done: int) -> list[tuple[Any, Any]]:
    plan.progress("sweep", done, len(pairs))
    return plan.draw_pairs(pairs, budget)


def _spent(batches: list[tuple[Any, Any]]) -> int:
    return sum(len(side) for side in {id(side): side for batch in batches for side in batch}.values())


def _key(pair: Pair) -> frozenset[str]:
    return frozenset(map(fingerprint, pair))


def _share_inputs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the distinct pairs, in which equal inputs are the same object, so that each is run once."""
    inputs: dict[str, Any] = {}
    shared = {
        _key((a, b)): (inputs.setdefault(fingerprint(a), a), inputs.setdefault(fingerprint(b), b)) for a, b in pairs
    }
    return [pair for key, pair in shared.items() if len(key) == 2]


def _affordable(pairs: list[Pair], most: int, timed: bool) -> list[Pair]:
    """Return the first pairs, as many as have at most this many inputs."""
    seen: set[int] = set()
    for place, pair in enumerate(pairs):
        seen |= {2 * place, 2 * place + 1} if timed else set(map(id, pair))
        if len(seen) > most:
            return pairs[:place]
    return pairs


def _count_inputs(pairs: list[Pair], timed: bool) -> int:
    return 2 * len(pairs) if timed else len({id(value) for pair in pairs for value in pair})


def describe_pairs(pairs: Sequence[Pair]) -> str:
    """Name the first pairs; of numbers, the stretches covered step by step by pairs as far apart as the first one.

    >>> describe_pairs([(0, 1), (1, 2), (7, 8)])
    'each step from 0 to 2 and from 7 to 8'
    """
    numbers = [pair for pair in pairs if all(isinstance(each, Real) and not isnan(each) for each in pair)]
    if not numbers or numbers[0] != pairs[0]:
        named = [" and ".join(map(_brief, pair)) for pair in pairs[:2]]
        return f"such as {'; '.join(named)}"
    step = abs(numbers[0][1] - numbers[0][0])
    ordered = sorted((min(pair), max(pair)) for pair in numbers if isclose(abs(pair[1] - pair[0]), step))
    breaks = [
        0,
        *(place + 1 for place, (one, other) in enumerate(pairwise(ordered)) if one[1] < other[0]),
        len(ordered),
    ]
    stretches = sorted(
        ((ordered[start][0], ordered[end - 1][1]) for start, end in pairwise(breaks)), key=_longest_first
    )
    named = [f"from {low} to {high}" for low, high in stretches[:MOST_NAMED]]
    named += [f"{len(stretches) - MOST_NAMED} more stretches"] if len(stretches) > MOST_NAMED else []
    return f"each step {', '.join(named[:-1])}{' and ' if len(named) > 1 else ''}{named[-1]}"


def _longest_first(stretch: tuple[Any, Any]) -> tuple[Any, Any]:
    return stretch[0] - stretch[1], stretch[0]


def _brief(value: Any) -> str:
    """Return a text of one line, of at most 60 characters."""
    text = " ".join(shorten(value).split())
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."
