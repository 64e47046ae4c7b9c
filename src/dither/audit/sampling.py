"""Running someone's mechanism: many draws at once or one at a time, with or without the time that each took."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.neighbours import fingerprint
from dither.errors import DitherError, InvalidParameter

LONGEST = 64

SIZES = frozenset({"size", "n", "count", "samples", "draws", "n_samples"})

PLAIN = (int, float, complex, np.number, np.bool_, np.ndarray)

Clock = Callable[[], int]


@dataclass(frozen=True)
class OutputSampler:
    """A mechanism that can be asked for draws on an input."""

    mechanism: Callable[..., Any] = field(repr=False)
    vectorised: bool
    timed: bool = False
    clock: Clock = time.perf_counter_ns

    @classmethod
    def of(cls, mechanism: Callable[..., Any], vectorised: bool | None, timed: bool) -> OutputSampler:
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
        before = fingerprint(value)
        outputs = self._many(value, runs) if self.vectorised else self._one_by_one(value, runs)
        if fingerprint(value) != before:
            raise InvalidParameter("the mechanism changes its input: give it a copy to work on")
        return as_outputs(outputs)

    def _one_by_one(self, value: Any, runs: int) -> list[Any]:
        try:
            outputs = [self.mechanism(value) for _ in range(runs)]
        except Exception as error:
            raise failure(error, value) from error
        check_awaited(*outputs)
        return outputs

    def _many(self, value: Any, runs: int) -> Any:
        try:
            outputs = _listed(self.mechanism(value, runs))
        except Exception as error:
            raise failure(error, value) from error
        if outputs is None or len(outputs) != runs:
            gave = "something else" if outputs is None else f"{len(outputs)}"
            raise InvalidParameter(
                f"the mechanism was asked for {runs} outputs, by its second argument, and gave {gave}; "
                "say vectorised=False if it answers once a call, or wrap it as lambda value: f(value, ...)"
            )
        return outputs

    def _timed(self, value: Any) -> tuple[int, Any]:
        started = self.clock()
        output = self.mechanism(value, 1) if self.vectorised else self.mechanism(value)
        elapsed = self.clock() - started
        return elapsed, output[0] if self.vectorised else output


def failure(error: Exception, value: Any) -> Exception:
    """What to tell about an error inside the mechanism."""
    if isinstance(error, DitherError):
        return error
    shown, frame = repr(value), traceback.extract_tb(error.__traceback__)[-1]
    return InvalidParameter(
        f"the mechanism failed on {shown if len(shown) <= 80 else shown[:77] + '...'} "
        f"({frame.filename}, line {frame.lineno}): {type(error).__name__}: {error}; "
        "if analysts see such an error, it is an output: catch it and return its name"
    )


def check_awaited(*outputs: Any) -> None:
    """Refuses what an asynchronous function gives before it has run."""
    if outputs and inspect.isawaitable(outputs[0]):
        for output in filter(inspect.iscoroutine, outputs):
            output.close()
        raise InvalidParameter("the mechanism is asynchronous: wrap it as lambda value: asyncio.run(f(value))")


def _listed(outputs: Any) -> Any:
    """Outputs that can be counted; None if this is no collection of outputs."""
    check_awaited(outputs)
    if isinstance(outputs, str | bytes | dict | set | frozenset) or not hasattr(outputs, "__iter__"):
        return None
    if hasattr(outputs, "__array__"):
        array = np.asanyarray(outputs)
        return array if array.ndim else None
    return list(outputs)


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
    if isinstance(outputs, np.ndarray):
        return _numeric(outputs)
    listed = list(outputs)
    if listed and all(isinstance(item, PLAIN) or _is_long(item) for item in listed) and _alike(listed):
        try:
            array = np.asarray(listed)
        except ValueError:
            return listed
        return _numeric(array) if array.dtype.kind in "biufc" else listed
    return listed


def _alike(items: list[Any]) -> bool:
    """Whether all are yes or no, or none is: else what a yes is read as would depend on what else was drawn."""
    return len({isinstance(item, bool | np.bool_) for item in items}) == 1


def _is_long(item: Any) -> bool:
    """Whether it is a list that is read as a vector or not at all."""
    return isinstance(item, list | tuple) and len(item) > LONGEST


def _numeric(outputs: NDArray[Any]) -> Any:
    """Real numbers: two for a complex one, NaN for what is masked, ticks for times; a list if these are no numbers."""
    if isinstance(outputs, np.ma.MaskedArray):
        outputs = np.ma.filled(outputs.astype(np.float64), np.nan) if outputs.dtype.kind in "biuf" else outputs
    if outputs.dtype.kind in "mM":
        return outputs.astype(np.int64)
    if outputs.dtype.kind == "c":
        return np.stack([outputs.real, outputs.imag], axis=-1)
    return outputs if outputs.dtype.kind in "biuf" else list(outputs)


def _stack_timed(runs: list[tuple[int, Any]]) -> Any:
    """The time as the first entry of every output."""
    times = np.array([elapsed for elapsed, _ in runs], dtype=np.float64)
    outputs = as_outputs([output for _, output in runs])
    if isinstance(outputs, np.ndarray):
        return np.column_stack([times, outputs.reshape(len(times), -1).astype(np.float64)])
    flat = [output if isinstance(output, list | tuple) else (output,) for output in outputs]
    return [(float(elapsed), *output) for elapsed, output in zip(times, flat, strict=True)]
