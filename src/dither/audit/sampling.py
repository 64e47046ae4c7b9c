"""Running someone's mechanism: many draws at once or one at a time, with or without the time that each took."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dither.errors import InvalidParameter

SIZES = frozenset({"size", "n", "count", "samples", "draws", "n_samples"})

Clock = Callable[[], int]


@dataclass(frozen=True)
class Source:
    """A mechanism that can be asked for draws on an input."""

    mechanism: Callable[..., Any] = field(repr=False)
    vectorised: bool
    timed: bool = False
    clock: Clock = time.perf_counter_ns

    @classmethod
    def of(cls, mechanism: Callable[..., Any], vectorised: bool | None, timed: bool) -> Source:
        """The source for a callable `f(input, size)` or `f(input)`; which one is read off its signature if not said."""
        if not callable(mechanism):
            raise InvalidParameter(f"a mechanism must be callable as f(input, size) or f(input), got {type(mechanism)}")
        many = takes_size(mechanism) if vectorised is None else vectorised
        return cls(mechanism, many, timed)

    def draw_pair(self, a: Any, b: Any, runs: tuple[int, int], rng: np.random.Generator) -> tuple[Any, Any]:
        """Draws on both inputs; timed runs are interleaved in random order, so that drift hits both alike."""
        if not self.timed:
            return self.draw(a, runs[0]), self.draw(b, runs[1])
        order = rng.permutation(np.repeat([0, 1], runs))
        drawn: tuple[list[Any], list[Any]] = ([], [])
        for side in order:
            drawn[side].append(self._timed((a, b)[side]))
        return _stack_timed(drawn[0]), _stack_timed(drawn[1])

    def draw(self, value: Any, runs: int) -> Any:
        """Draws on one input."""
        if not self.vectorised:
            return as_outputs([self.mechanism(value) for _ in range(runs)])
        outputs = self.mechanism(value, runs)
        if len(outputs) != runs:
            raise InvalidParameter(
                f"the mechanism was asked for {runs} outputs and gave {len(outputs)}; "
                "say vectorised=False if it answers once a call"
            )
        return as_outputs(outputs)

    def _timed(self, value: Any) -> tuple[int, Any]:
        started = self.clock()
        output = self.mechanism(value, 1)[0] if self.vectorised else self.mechanism(value)
        return self.clock() - started, output


def takes_size(mechanism: Callable[..., Any]) -> bool:
    """Whether the callable wants a number of draws as its second argument."""
    try:
        parameters = list(inspect.signature(mechanism).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 and (positional[1].name in SIZES or positional[1].default is inspect.Parameter.empty)


def as_outputs(outputs: Any) -> Any:
    """A numeric array where the outputs are numbers or equally long vectors of numbers; else a list."""
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf":
        return outputs
    listed = list(outputs)
    if listed and all(isinstance(item, int | float | np.number | np.bool_ | np.ndarray) for item in listed[:50]):
        try:
            array = np.asarray(listed)
        except ValueError:
            return listed
        return array if array.dtype.kind in "biuf" else listed
    return listed


def _stack_timed(runs: list[tuple[int, Any]]) -> Any:
    """The time as the first entry of every output."""
    times = np.array([elapsed for elapsed, _ in runs], dtype=np.float64)
    outputs = as_outputs([output for _, output in runs])
    if isinstance(outputs, np.ndarray):
        return np.column_stack([times, outputs.reshape(len(times), -1).astype(np.float64)])
    flat = [output if isinstance(output, list | tuple) else (output,) for output in outputs]
    return [(float(elapsed), *output) for elapsed, output in zip(times, flat, strict=True)]
