"""Run a mechanism: many draws at once or one at a time, with or without the time of each call."""

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

# Outputs that are lists may have this many entries, unless all are vectors of numbers of one length.
MAX_SEQUENCE_LENGTH = 64

# A second parameter with one of these names is the number of draws, even if it has a default.
SIZE_NAMES = frozenset({"size", "n", "count", "samples", "draws", "n_samples"})

NUMERIC_TYPES = (int, float, complex, np.number, np.bool_, np.ndarray)

Clock = Callable[[], int]


@dataclass(frozen=True)
class OutputSampler:
    """Draws outputs of a mechanism on given inputs."""

    mechanism: Callable[..., Any] = field(repr=False)
    vectorised: bool
    timed: bool = False
    clock: Clock = time.perf_counter_ns

    @classmethod
    def from_callable(cls, mechanism: Callable[..., Any], vectorised: bool | None, timed: bool) -> OutputSampler:
        """Wrap `f(input, size)` if `vectorised`, else `f(input)`; None chooses by the signature."""
        if not callable(mechanism):
            raise InvalidParameter(f"a mechanism must be callable as f(input, size) or f(input), got {type(mechanism)}")
        return cls(mechanism, takes_size(mechanism) if vectorised is None else vectorised, timed)

    def draw_pair(self, a: Any, b: Any, runs: tuple[int, int], rng: np.random.Generator) -> tuple[Any, Any]:
        """Draw on both inputs; timed runs are interleaved in random order, so that drift affects both alike."""
        if not self.timed:
            return self.draw(a, runs[0]), self.draw(b, runs[1])
        order = rng.permutation(np.repeat([0, 1], runs))
        timed_runs: tuple[list[Any], list[Any]] = ([], [])
        for side in order:
            timed_runs[side].append(self._draw_timed((a, b)[side]))
        return _stack_timed(timed_runs[0]), _stack_timed(timed_runs[1])

    def draw(self, value: Any, runs: int) -> Any:
        """Draw `runs` outputs on one input; refuse a mechanism that changes its input."""
        before = fingerprint(value)
        outputs = self._draw_many(value, runs) if self.vectorised else self._draw_one_by_one(value, runs)
        if fingerprint(value) != before:
            raise InvalidParameter("the mechanism changes its input; make it work on a copy")
        return as_outputs(outputs)

    def _draw_one_by_one(self, value: Any, runs: int) -> list[Any]:
        try:
            outputs = [self.mechanism(value) for _ in range(runs)]
        except Exception as error:
            raise mechanism_failure(error, value) from error
        reject_awaitable(*outputs)
        return outputs

    def _draw_many(self, value: Any, runs: int) -> Any:
        try:
            outputs = _as_collection(self.mechanism(value, runs))
        except Exception as error:
            raise mechanism_failure(error, value) from error
        if outputs is None or len(outputs) != runs:
            returned = "no list or array" if outputs is None else f"{len(outputs)}"
            raise InvalidParameter(
                f"the mechanism was asked for {runs} outputs by its second argument and returned {returned}; "
                "pass vectorised=False if it returns one output per call, or wrap it as lambda value: f(value, ...)"
            )
        return outputs

    def _draw_timed(self, value: Any) -> tuple[int, Any]:
        started = self.clock()
        output = self.mechanism(value, 1) if self.vectorised else self.mechanism(value)
        elapsed = self.clock() - started
        return elapsed, output[0] if self.vectorised else output


def mechanism_failure(error: Exception, value: Any) -> Exception:
    """Return the exception to raise for an error inside the mechanism: it names the input and the failing line."""
    if isinstance(error, DitherError):
        return error
    text, frame = repr(value), traceback.extract_tb(error.__traceback__)[-1]
    return InvalidParameter(
        f"the mechanism failed on {text if len(text) <= 80 else text[:77] + '...'} "
        f"({frame.filename}, line {frame.lineno}): {type(error).__name__}: {error}; "
        "if analysts see such an error, it is an output: catch it and return its name"
    )


def reject_awaitable(*outputs: Any) -> None:
    """Refuse the coroutines or other awaitables that an asynchronous mechanism returns."""
    if outputs and inspect.isawaitable(outputs[0]):
        for output in filter(inspect.iscoroutine, outputs):
            output.close()
        raise InvalidParameter("the mechanism is asynchronous: wrap it as lambda value: asyncio.run(f(value))")


def _as_collection(outputs: Any) -> Any:
    """Return the outputs as an array or a list, or None if they are not a collection of outputs."""
    reject_awaitable(outputs)
    if isinstance(outputs, str | bytes | dict | set | frozenset) or not hasattr(outputs, "__iter__"):
        return None
    if hasattr(outputs, "__array__"):
        array = np.asanyarray(outputs)
        return array if array.ndim else None
    return list(outputs)


def takes_size(mechanism: Callable[..., Any]) -> bool:
    """Return True if the second parameter of the callable is a number of draws."""
    try:
        parameters = list(inspect.signature(mechanism).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 and (
        positional[1].name in SIZE_NAMES or positional[1].default is inspect.Parameter.empty
    )


def as_outputs(outputs: Any) -> Any:
    """Return a numeric array if the outputs are numbers or equally long vectors of numbers, else a list."""
    if isinstance(outputs, np.ndarray):
        return _as_numeric(outputs)
    items = list(outputs)
    numeric = all(isinstance(item, NUMERIC_TYPES) or _is_long_sequence(item) for item in items)
    if not items or not numeric or not _all_or_no_booleans(items):
        return items
    try:
        array = np.asarray(items)
    except ValueError:
        return items
    return _as_numeric(array) if array.dtype.kind in "biufc" else items


def _all_or_no_booleans(items: list[Any]) -> bool:
    """Return True if all items are booleans or none is.

    In a mixed list, the number that stands for True would depend on the other outputs drawn.
    """
    return len({isinstance(item, bool | np.bool_) for item in items}) == 1


def _is_long_sequence(item: Any) -> bool:
    """Return True if the item is a list too long for any reading but a vector of numbers."""
    return isinstance(item, list | tuple) and len(item) > MAX_SEQUENCE_LENGTH


def _as_numeric(outputs: NDArray[Any]) -> Any:
    """Convert an array to real numbers, or to a list if it is not numeric.

    A complex number becomes two, a masked entry NaN, a time its number of ticks.
    """
    if isinstance(outputs, np.ma.MaskedArray):
        outputs = np.ma.filled(outputs.astype(np.float64), np.nan) if outputs.dtype.kind in "biuf" else outputs
    if outputs.dtype.kind in "mM":
        return outputs.astype(np.int64)
    if outputs.dtype.kind == "c":
        return np.stack([outputs.real, outputs.imag], axis=-1)
    return outputs if outputs.dtype.kind in "biuf" else list(outputs)


def _stack_timed(runs: list[tuple[int, Any]]) -> Any:
    """Put the time of each run in front of its output."""
    times = np.array([elapsed for elapsed, _ in runs], dtype=np.float64)
    outputs = as_outputs([output for _, output in runs])
    if isinstance(outputs, np.ndarray):
        return np.column_stack([times, outputs.reshape(len(times), -1).astype(np.float64)])
    flat = [output if isinstance(output, list | tuple) else (output,) for output in outputs]
    return [(float(elapsed), *output) for elapsed, output in zip(times, flat, strict=True)]
