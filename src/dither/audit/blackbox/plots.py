"""Record the outputs that the report plots, while the test runs."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np

from dither.audit.blackbox.events import Event
from dither.audit.blackbox.explain import FloatLeak
from dither.audit.blackbox.inputs import shorten
from dither.audit.blackbox.report import Plots
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.claims import Floats

BINS = 80
MAX_OUTPUTS = 200_000
MAX_EXAMPLES = 8
MAX_LEAKS = 500


class PlotRecorder:
    """Records one feature and the score of the first outputs of a test, and examples of outputs inside the event.

    In the result, the first input is the one on which the event is likelier. If there is an event of bits, numbers
    inside it on that input, and outside it on the other, are recorded too.
    """

    def __init__(self, candidate: CandidateEvent, bits_event: Event | None = None) -> None:
        self._swapped = candidate.swapped
        self._bits_event = bits_event
        self._leaks: tuple[list[float], list[float]] = ([], [])
        self._event = candidate.event
        self._column = min(candidate.event.score.columns, default=0)
        self._values: tuple[list[Floats], list[Floats]] = ([], [])
        self._scores: tuple[list[Floats], list[Floats]] = ([], [])
        self._recorded = 0
        self._examples: dict[str, None] = {}

    def add(self, a: Any, b: Any) -> None:
        """Record a batch of outputs, up to about `MAX_OUTPUTS` of each input."""
        if self._recorded >= MAX_OUTPUTS:
            return
        space, score = self._event.space, self._event.score
        self._record_leaks(*((b, a) if self._swapped else (a, b)))
        for side, outputs in enumerate((a, b)):
            part = outputs[: MAX_OUTPUTS - self._recorded]
            self._values[side].append(space.encoder.features[self._column].column(space.encoder.read(part)))
            self._scores[side].append(score.evaluate(space.encode(part, score.columns)))
            if side == int(self._swapped) and len(self._examples) < MAX_EXAMPLES:
                places = np.flatnonzero(self._inside(self._scores[side][-1]))[: 8 * MAX_EXAMPLES]
                self._examples |= dict.fromkeys(shorten(part[int(place)]) for place in places)
        self._recorded += len(a)

    @property
    def examples(self) -> tuple[str, ...]:
        """Some distinct outputs inside the event, of the input on which it is likelier."""
        return tuple(self._examples)[:MAX_EXAMPLES]

    @property
    def leak(self) -> FloatLeak | None:
        """An output inside the event of bits and the nearest one of the other input outside it, if there is any."""
        first, second = (np.array(side) for side in self._leaks)
        if not len(first):
            return None
        gaps = np.abs(first[:, None] - second)
        if not gaps.size:
            return FloatLeak(float(first[0]), None)
        places = np.unravel_index(int(np.argmin(gaps)), gaps.shape)
        return FloatLeak(float(first[places[0]]), float(second[places[1]]))

    def _record_leaks(self, first: Any, second: Any) -> None:
        """Record the numbers of some outputs: those of the first input in the event of bits, of the second outside."""
        if self._bits_event is None:
            return
        space, column = self._bits_event.space, min(self._bits_event.score.columns)
        value = space.encoder.features[column].value
        for kept, outputs, inside in zip(self._leaks, (first, second), (True, False), strict=True):
            part = outputs[: MAX_LEAKS * 10]
            if value is not None and len(kept) < MAX_LEAKS and len(part):
                numbers = value(space.encoder.read(part))[self._bits_event.contains(part) == inside]
                kept.extend(numbers[np.isfinite(numbers)][:MAX_LEAKS].tolist())

    def empty_plots(self) -> Plots:
        """Return plots without data, for an audit that tested nothing."""
        return Plots(name=self._event.space.names[self._column])

    def plots(self) -> Plots:
        """Return the data of the plots."""
        order = (1, 0) if self._swapped else (0, 1)
        values = [np.concatenate(self._values[side]) for side in order]
        scores = [np.concatenate(self._scores[side]) for side in order]
        name = self._event.space.names[self._column]
        pooled = np.concatenate(values)
        finite = pooled[np.isfinite(pooled)]
        if len(finite) < 2 or finite.min() == finite.max():
            return Plots(name=name, curve=self._curve(scores))
        low, high = np.quantile(finite, [0.002, 0.998])
        edges = _even_edges(low, high) if low < high else _even_edges(finite.min(), finite.max())
        densities = [np.histogram(side, edges)[0] / max(len(side), 1) for side in values]
        inside = np.histogram(pooled, edges, weights=self._inside(np.concatenate(scores)).astype(np.float64))[0]
        everything = np.maximum(np.histogram(pooled, edges)[0], 1)
        return Plots(
            name, _floats(edges[:-1]), _floats(densities[0]), _floats(densities[1]), _floats(inside / everything),
            self._curve(scores),
        )  # fmt: skip

    def _inside(self, scores: Floats) -> Any:
        return scores >= self._event.threshold if self._event.above else scores <= self._event.threshold

    def _curve(self, scores: list[Floats]) -> tuple[tuple[float, float], ...]:
        """Return, for each epsilon, the largest P_a - e^epsilon P_b over all thresholds of the score."""
        first, second = (np.sort(side if self._event.above else -side) for side in scores)
        cuts = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 400), method="lower"))
        p = 1 - np.searchsorted(first, cuts) / len(first)
        q = 1 - np.searchsorted(second, cuts) / len(second)
        top = float(np.max(np.log(np.maximum(p, 1e-9) / np.maximum(q, 1 / len(second)))))
        grid = np.linspace(0, max(top, 0.1) * 1.1, 60)
        return tuple((float(epsilon), float(max(np.max(p - exp(epsilon) * q), 0.0))) for epsilon in grid)


def _even_edges(low: float, high: float) -> Floats:
    """Return evenly spaced edges from one number to another, without overflow if they are far apart."""
    shares = np.linspace(0, 1, BINS + 1)
    result: Floats = np.unique(low * (1 - shares) + high * shares)
    return result


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
