"""Claims and mechanisms as people write them: `epsilon=1, delta=1e-5` and `my_module:f`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from dither.errors import InvalidParameter, NotFound
from dither.loss import ZCDP, Approximate, Loss, Pure, rational

KINDS: Mapping[frozenset[str], Callable[..., Loss]] = {
    frozenset({"epsilon"}): Pure,
    frozenset({"epsilon", "delta"}): Approximate,
    frozenset({"rho"}): ZCDP,
    frozenset({"rho", "delta"}): ZCDP,
}
CALL = re.compile(r"([^()]+:[^():]+)\((.*)\)", re.DOTALL)
SHORT = {"eps": "epsilon", "ε": "epsilon", "δ": "delta", "ρ": "rho"}


def claim(text: str) -> Loss:
    """The claim that a text makes.

    >>> claim("epsilon=1/2, delta=1e-5")
    Approximate(epsilon=Fraction(1, 2), delta=Fraction(1, 100000))
    """
    parts = [part.partition("=") for part in text.replace(";", ",").split(",") if part.strip()]
    given = {SHORT.get(name.strip(), name.strip()): value.strip() for name, _, value in parts}
    kind = KINDS.get(frozenset(given))
    if kind is None or not all(given.values()):
        raise InvalidParameter(f"a claim is 'epsilon=1', 'epsilon=1, delta=1e-5' or 'rho=0.5', got {text!r}")
    return kind(**{name: rational(value, name) for name, value in given.items()})


def finite(number: float) -> float | str:
    """A number for JSON, which has neither infinities nor NaN: these are texts."""
    return number if isfinite(number) else str(number)


def found(place: str) -> Any:
    """What `module:name` or `path/to/file.py:name` stands for; `module:name(1, 2)` is what the function returns."""
    called = CALL.fullmatch(place)
    if called is None:
        return _named(place)
    try:
        given = ast.literal_eval(f"({called[2]},)" if called[2].strip() else "()")
    except (SyntaxError, ValueError):
        raise InvalidParameter(f"arguments are numbers, texts and lists of them, got {called[2]!r}") from None
    return _named(called[1])(*given)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    if not module or not name:
        raise InvalidParameter(f"name it as module:function or file.py:function, got {place!r}")
    where = Path(module)
    if where.suffix == ".py":
        sys.path.insert(0, str(where.resolve().parent))
        module = where.stem
    elif "" not in sys.path:
        sys.path.insert(0, "")
    try:
        thing: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise NotFound(f"no module {module!r}: {error}") from None
    for part in name.split("."):
        if not hasattr(thing, part):
            raise NotFound(f"{module} has no {name!r}")
        thing = getattr(thing, part)
    return thing
