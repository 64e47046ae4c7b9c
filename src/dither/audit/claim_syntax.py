"""Claims and mechanisms as people write them: `epsilon=1, delta=1e-5` and `my_module:f`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from pathlib import Path
from typing import Any

from dither.errors import DitherError, InvalidParameter, NotFound
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi, rational


def _renyi(order: Fraction, epsilon: Fraction, delta: Fraction = Fraction(0)) -> Loss:
    return Renyi(((order, epsilon),), delta)


KINDS: Mapping[frozenset[str], Callable[..., Loss]] = {
    frozenset({"epsilon"}): Pure,
    frozenset({"epsilon", "delta"}): Approximate,
    frozenset({"rho"}): ZCDP,
    frozenset({"rho", "delta"}): ZCDP,
    frozenset({"order", "epsilon"}): _renyi,
    frozenset({"order", "epsilon", "delta"}): _renyi,
}
CALL = re.compile(r"([^()]+:[^():]+)\((.*)\)", re.DOTALL)
SHORT = {"eps": "epsilon", "ε": "epsilon", "δ": "delta", "ρ": "rho"}


def parse_claim(text: str) -> Loss:
    """The claim that a text makes.

    >>> claim("epsilon=1/2, delta=1e-5")
    Approximate(epsilon=Fraction(1, 2), delta=Fraction(1, 100000))
    """
    parts = [part.partition("=") for part in text.replace(";", ",").split(",") if part.strip()]
    given = {SHORT.get(name.strip(), name.strip()): value.strip() for name, _, value in parts}
    kind = KINDS.get(frozenset(given))
    if kind is None or not all(given.values()) or len(given) < len(parts):
        raise InvalidParameter(
            f"a claim is 'epsilon=1', 'epsilon=1, delta=1e-5', 'rho=0.5' or 'order=8, epsilon=1', got {text!r}"
        )
    return kind(**{name: rational(value, name) for name, value in given.items()})


def claim_text(claim: Loss) -> str:
    """A claim as people write it.

    >>> words(Approximate(1, "1e-5"))
    'epsilon=1, delta=1e-05'
    """
    if isinstance(claim, Renyi):
        curve = "; ".join(f"order={_short(order)}, epsilon={_short(epsilon)}" for order, epsilon in claim.curve)
        return f"{curve}, delta={_short(claim.delta)}" if claim.delta else curve
    named = [(each.name, getattr(claim, each.name)) for each in fields(claim)]
    return ", ".join(f"{name}={_short(value)}" for name, value in named if value or name != "delta")


def _short(value: Fraction) -> str:
    return f"{float(value):.10g}"


def finite(number: float) -> float | str:
    """A number for JSON, which has neither infinities nor NaN: these are texts."""
    return number if isfinite(number) else str(number)


def import_object(place: str) -> Any:
    """What `module:name` or `path/to/file.py:name` stands for; `module:name(1, 2)` is what the function returns."""
    called = CALL.fullmatch(place)
    if called is None:
        return _named(place)
    given, options = _arguments(called[2])
    make = _named(called[1])
    try:
        return make(*given, **options)
    except DitherError:
        raise
    except Exception as error:
        raise InvalidParameter(f"{place} cannot be made: {type(error).__name__}: {error}") from error


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Numbers, texts and lists of them, by place or by name."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
            raise ValueError
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return [ast.literal_eval(each) for each in call.args], named
    except (SyntaxError, ValueError):
        raise InvalidParameter(f"arguments are numbers, texts and lists of them, got {text!r}") from None


def _named(place: str) -> Any:
    module, _, name = place.rpartition(":")
    if not module or not name:
        raise InvalidParameter(f"name it as module:function or file.py:function, got {place!r}")
    thing = _imported(module)
    for part in name.split("."):
        if not hasattr(thing, part):
            raise NotFound(f"{module} has no {name!r}")
        thing = getattr(thing, part)
    return thing


def _imported(module: str) -> Any:
    """A module by its name, or a file by its path whatever it is called."""
    try:
        if Path(module).suffix == ".py":
            return _from_file(Path(module).resolve())
        if "" not in sys.path:
            sys.path.insert(0, "")
        return import_module(module)
    except ModuleNotFoundError as error:
        raise NotFound(f"no module {module!r}: {error}") from None
    except DitherError:
        raise
    except Exception as error:
        raise InvalidParameter(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise NotFound(f"no file {path.name!r} in {path.parent}")
    held = sys.modules.get(path.stem)
    if held is not None and getattr(held, "__file__", None) == str(path):
        return held
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NotFound(f"{path.name!r} is no Python file")
    made = module_from_spec(spec)
    if held is None:
        sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made
