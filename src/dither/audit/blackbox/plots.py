"""Keeps what the report draws, while the judgement runs."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np

from dither.audit.blackbox.report import Plots, briefly
from dither.audit.blackbox.search import Lead
from dither.audit.claims import Floats

BINS = 80
MOST_KEPT = 200_000
MOST_EXAMPLES = 8


class Tracer:
    """Collects the first outputs of a judgement: one feature of them, their scores and whether the event holds them."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._event = lead.event
        self._column = min(lead.event.score.columns, default=0)
        self._values: tuple[list[Floats], list[Floats]] = ([], [])
        self._scores: tuple[list[Floats], list[Floats]] = ([], [])
        self._kept = 0
        self._examples: dict[str, None] = {}

    def add(self, a: Any, b: Any) -> None:
        """Keeps these outputs, until there are enough."""
        if self._kept >= MOST_KEPT:
            return
        space, score = self._event.space, self._event.score
        for side, outputs in enumerate((a, b)):
            part = outputs[: MOST_KEPT - self._kept]
            self._values[side].append(space.encoder.features[self._column].column(space.encoder.read(part)))
            self._scores[side].append(score.of(space.encode(part, score.columns)))
            if side == int(self._lead.swapped) and len(self._examples) < MOST_EXAMPLES:
                places = np.flatnonzero(self._inside(self._scores[side][-1]))[: 8 * MOST_EXAMPLES]
                self._examples |= dict.fromkeys(briefly(part[int(place)]) for place in places)
        self._kept += len(a)

    @property
    def examples(self) -> tuple[str, ...]:
        """Some different outputs that lie in the event, of the input on which it is likelier."""
        return tuple(self._examples)[:MOST_EXAMPLES]

    def empty(self) -> Plots:
        """No picture: nothing was judged."""
        return Plots(name=self._event.space.names[self._column])

    def plots(self) -> Plots:
        """The pictures' data."""
        values = [np.concatenate(side) for side in self._values]
        scores = [np.concatenate(side) for side in self._scores]
        name = self._event.space.names[self._column]
        pooled = np.concatenate(values)
        finite = pooled[np.isfinite(pooled)]
        if len(finite) < 2 or finite.min() == finite.max():
            return Plots(name=name, curve=self._curve(scores))
        low, high = np.quantile(finite, [0.002, 0.998])
        edges = _spaced(low, high) if low < high else _spaced(finite.min(), finite.max())
        tallies = [np.histogram(side, edges)[0] / max(len(side), 1) for side in values]
        inside = np.histogram(pooled, edges, weights=self._inside(np.concatenate(scores)).astype(np.float64))[0]
        everything = np.maximum(np.histogram(pooled, edges)[0], 1)
        return Plots(
            name, _floats(edges[:-1]), _floats(tallies[0]), _floats(tallies[1]), _floats(inside / everything),
            self._curve(scores),
        )  # fmt: skip

    def _inside(self, scores: Floats) -> Any:
        return scores >= self._event.threshold if self._event.above else scores <= self._event.threshold

    def _curve(self, scores: list[Floats]) -> tuple[tuple[float, float], ...]:
        """For each epsilon, the largest P_a - e^epsilon P_b over all thresholds of the score."""
        first, second = (np.sort(side if self._event.above else -side) for side in scores)
        if self._lead.swapped:
            first, second = second, first
        cuts = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 400), method="lower"))
        p = 1 - np.searchsorted(first, cuts) / len(first)
        q = 1 - np.searchsorted(second, cuts) / len(second)
        top = float(np.max(np.log(np.maximum(p, 1e-9) / np.maximum(q, 1 / len(second)))))
        grid = np.linspace(0, max(top, 0.1) * 1.1, 60)
        return tuple((float(epsilon), float(max(np.max(p - exp(epsilon) * q), 0.0))) for epsilon in grid)


def _spaced(low: float, high: float) -> Floats:
    """Edges from one number to another, however far they are apart."""
    shares = np.linspace(0, 1, BINS + 1)
    result: Floats = np.unique(low * (1 - shares) + high * shares)
    return result


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
