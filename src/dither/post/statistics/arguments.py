"""The arguments of statistics, checked by their declared types before anything is planned.

`statistic` (in `core.py`) passes every call through `read_arguments`; an argument whose type is not listed here is
checked by the statistic itself.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import Any

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import rational
from dither.post.options import excerpt, is_storable, read_flag, read_whole

LONGEST_TEXT = 100_000
LARGEST_LIST = 10_000


def read_arguments(make: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of a call, each checked by the type that its parameter declares."""
    signature = inspect.signature(make)
    bound = signature.bind(*args, **given)
    for name, parameter in signature.parameters.items():
        value, read = bound.arguments.get(name), READERS.get(str(parameter.annotation))
        if read is not None and name in bound.arguments and not _is_default(value, parameter.default):
            bound.arguments[name] = read(name, value)
    return bound


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def read_sql(name: str, value: Any) -> str:
    """Return a name or an SQL text that is not empty."""
    text = value if isinstance(value, str) else ""
    if not text.strip() or len(text) > LONGEST_TEXT or not is_storable(text):
        raise InvalidParameter(f"{name} must be the name of a column or an SQL text, got {excerpt(value)}")
    return text


def read_names(name: str, given: Any) -> tuple[str, ...]:
    """Return a list of column names or expressions; a single text is one name."""
    wanted = f"{name} must be a column, or a list of different columns"
    if not isinstance(given, str | list | tuple):
        raise InvalidParameter(f"{wanted}, got {excerpt(given)}")
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(each, str) and each.strip() for each in names) or len(set(names)) < len(names):
        raise InvalidParameter(f"{wanted}, got {given!r:.60}")
    return tuple(read_sql(name, each) for each in names)


def read_list(name: str, given: Any) -> list[Any]:
    """Return a list of values, such as levels or edges; a single number or text is a list of one."""
    values = given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(values, int | float | str | Fraction) and not isinstance(values, bool):
        return [values]
    if not isinstance(values, Sequence) or isinstance(values, bytes) or not 1 <= len(values) <= LARGEST_LIST:
        raise InvalidParameter(f"{name} must be a list of 1 to {LARGEST_LIST:,} values, got {excerpt(given)}")
    return list(values)


def _read_margins(name: str, given: Any) -> Any:
    if given is None or (isinstance(given, str) and given == "all"):
        return given
    if not isinstance(given, list | tuple) or any(isinstance(each, str) for each in given):
        raise InvalidParameter(f"{name} must be 'all' or a list of lists of keys, got {excerpt(given)}")
    return [read_names(name, each) for each in given]


def _read_penalty(name: str, value: Any) -> float:
    number = float(rational(value, name))
    if not 0 <= number < math.inf:
        raise InvalidParameter(f"{name} must be a number from 0 on, got {excerpt(value)}")
    return number


def _read_scalar(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, str | int | float | Fraction | date):
        raise InvalidParameter(f"{name} must be a value of the target, got {excerpt(value)}")
    return value


def _one_of(*words: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise InvalidParameter(f"{name} must be {' or '.join(map(repr, words))}, got {excerpt(value)}")
        return value

    return read


def _read_bins(name: str, value: Any) -> Any:
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(column, str) for column in value)):
        raise InvalidParameter(f"{name} must have the bins of each column, such as {{'age': 8}}, got {excerpt(value)}")
    return value


def _optional(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


# The declared type of a parameter, and how its values are read.
READERS: dict[str, Callable[[str, Any], Any]] = {
    "str": read_sql,
    "bool": read_flag,
    "int": lambda name, value: read_whole(name, value, 0),
    "int | None": _optional(lambda name, value: read_whole(name, value, 1)),
    "float": _read_penalty,
    "str | Sequence[str]": read_names,
    "Sequence[str]": read_names,
    "Sequence[str] | None": _optional(read_names),
    "Sequence[Sequence[str]] | Literal['all'] | None": _read_margins,
    "Scalar": _read_scalar,
    "Counted": _one_of("units", "rows"),
    "Standard | None": _optional(_one_of("declared", "private")),
    "Mapping[str, int | Sequence[float]] | None": _read_bins,
}
