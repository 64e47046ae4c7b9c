"""Run a mechanism: many draws at once or one at a time, with or without the time of each call."""

from __future__ import annotations

import inspect
import io
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
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

# Inputs of timed calls are copied for so many calls at a time, and for fewer if they are large.
MOST_PREPARED_CALLS = 500
MOST_PREPARED_BYTES = 1 << 26
# Data of these packages is copied for each timed call.
PLAIN_MODULES = {
    "builtins", "collections", "copyreg", "datetime", "decimal", "fractions", "numpy", "pandas", "pyarrow", "uuid",
    "zoneinfo",
}  # fmt: skip


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
        order = rng.permutation(np.repeat([0, 1], runs)).tolist()
        function = (lambda value: self.mechanism(value, 1)) if self.vectorised else self.mechanism
        timed_runs: tuple[list[Any], list[Any]] = ([], [])
        for side, (elapsed, output) in zip(order, time_calls(function, (a, b), order, self.clock), strict=True):
            timed_runs[side].append((elapsed, output[0] if self.vectorised else output))
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


def time_calls(
    function: Callable[[Any], Any], inputs: tuple[Any, Any], sides: list[int], clock: Clock
) -> Iterator[tuple[int, Any]]:
    """Call the function on the given sides of a pair; yield the time and the output of each call.

    The loop around the clock is the same code on the same kind of object for both inputs: whatever else depended on the
    side, a branch or an address, would be timed with the function. So calls are prepared and evaluated in batches.
    """
    sources = [_copier(value) for value in inputs]
    size = max(1, min(MOST_PREPARED_CALLS, MOST_PREPARED_BYTES // max(each.size for each in sources)))
    for start in range(0, len(sides), size):
        prepared = [sources[side].copy() for side in sides[start : start + size]]
        calls: list[tuple[int, int, Any]] = []
        for value in prepared:
            started = clock()
            output = function(value)
            calls.append((started, clock(), output))
        yield from [(stopped - started, output) for started, stopped, output in calls]


@dataclass(frozen=True)
class _Copier:
    """Makes copies of an input for timed calls, and says how large one is."""

    copy: Callable[[], Any]
    size: int


class _PlainData(pickle.Unpickler):
    """Reads pickles of plain data alone: whatever has an identity of its own must not be copied."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the standard library, numpy, pandas or pyarrow."""
        if module.partition(".")[0] not in PLAIN_MODULES or (module, name) == ("builtins", "object"):
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
        return super().find_class(module, name)


def _copier(value: Any) -> _Copier:
    """Return a maker of copies that share no memory with the input, or of the input itself if it is not plain data."""
    try:
        stored = pickle.dumps(value, protocol=5)
        _PlainData(io.BytesIO(stored)).load()
    except Exception:  # whatever an object raises when it is pickled, it is used as it is
        return _Copier(lambda: value, 1)
    return _Copier(lambda: pickle.loads(stored), max(len(stored), 1))  # noqa: S301 (its own pickle, read above)


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


def callable_name(function: Callable[..., Any]) -> str:
    """Return the name of a callable as `module:name`; of an object, the name of its class.

    >>> callable_name(callable_name)
    'dither.audit.sampling:callable_name'
    """
    named = function.func if isinstance(function, partial) else function
    named = named if hasattr(named, "__qualname__") else type(named)
    return f"{named.__module__}:{named.__qualname__}"


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
