"""Parse claims and mechanisms as people write them: `epsilon=1, delta=1e-5` and `my_module:f`."""

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


def _renyi_claim(order: Fraction, epsilon: Fraction, delta: Fraction = Fraction(0)) -> Loss:
    return Renyi(((order, epsilon),), delta)


CLAIM_KINDS: Mapping[frozenset[str], Callable[..., Loss]] = {
    frozenset({"epsilon"}): Pure,
    frozenset({"epsilon", "delta"}): Approximate,
    frozenset({"rho"}): ZCDP,
    frozenset({"rho", "delta"}): ZCDP,
    frozenset({"order", "epsilon"}): _renyi_claim,
    frozenset({"order", "epsilon", "delta"}): _renyi_claim,
}
CALL_PATTERN = re.compile(r"([^()]+:[^():]+)\((.*)\)", re.DOTALL)
ABBREVIATIONS = {"eps": "epsilon", "ε": "epsilon", "δ": "delta", "ρ": "rho"}


def parse_claim(text: str) -> Loss:
    """Parse a claim written as text.

    >>> parse_claim("epsilon=1/2, delta=1e-5")
    Approximate(epsilon=Fraction(1, 2), delta=Fraction(1, 100000))
    """
    parts = [part.partition("=") for part in text.replace(";", ",").split(",") if part.strip()]
    parameters = {ABBREVIATIONS.get(name.strip(), name.strip()): value.strip() for name, _, value in parts}
    kind = CLAIM_KINDS.get(frozenset(parameters))
    if kind is None or not all(parameters.values()) or len(parameters) < len(parts):
        raise InvalidParameter(
            "a claim must look like 'epsilon=1', 'epsilon=1, delta=1e-5', 'rho=0.5' or 'order=8, epsilon=1', "
            f"got {text!r}"
        )
    return kind(**{name: rational(value, name) for name, value in parameters.items()})


def as_claim(claim: Loss | str) -> Loss:
    """Return a claim that may be written as text.

    >>> as_claim("rho=1/2") == as_claim(ZCDP("1/2"))
    True
    """
    if isinstance(claim, str):
        return parse_claim(claim)
    if not isinstance(claim, Pure | Approximate | ZCDP | Renyi):
        raise InvalidParameter(f"a claim must be text such as 'epsilon=1' or a loss such as Pure(1), got {claim!r}")
    return claim


def claim_text(claim: Loss) -> str:
    """Write a claim as text.

    >>> claim_text(Approximate(1, "1e-5"))
    'epsilon=1, delta=1e-05'
    """
    if isinstance(claim, Renyi):
        curve = "; ".join(
            f"order={_short_number(order)}, epsilon={_short_number(epsilon)}" for order, epsilon in claim.curve
        )
        return f"{curve}, delta={_short_number(claim.delta)}" if claim.delta else curve
    parameters = [(field.name, getattr(claim, field.name)) for field in fields(claim)]
    return ", ".join(f"{name}={_short_number(value)}" for name, value in parameters if value or name != "delta")


def _short_number(value: Fraction) -> str:
    return f"{float(value):.10g}"


def json_number(number: float) -> float | str:
    """Return a number for JSON; infinities and NaN, which JSON lacks, become strings."""
    return number if isfinite(number) else str(number)


def import_object(location: str) -> Any:
    """Import the object at `module:name` or `path/to/file.py:name`; `module:name(1, 2)` calls it with arguments."""
    call = CALL_PATTERN.fullmatch(location)
    if call is None:
        return _resolve(location)
    positional, keywords = _parse_arguments(call[2])
    function = _resolve(call[1])
    try:
        return function(*positional, **keywords)
    except DitherError:
        raise
    except Exception as error:
        raise InvalidParameter(f"the call {location} failed: {type(error).__name__}: {error}") from error


def _parse_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Parse literal arguments, positional and by keyword."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return [ast.literal_eval(argument) for argument in call.args], keywords
    except (SyntaxError, ValueError):
        raise InvalidParameter(f"arguments must be numbers, strings or lists of them, got {text!r}") from None


def _resolve(location: str) -> Any:
    """Import the module of `module:name` and return the attribute, which may be dotted."""
    module, _, name = location.rpartition(":")
    if not module or not name:
        raise InvalidParameter(f"write module:function or file.py:function, got {location!r}")
    resolved = _import_module(module)
    for part in name.split("."):
        if not hasattr(resolved, part):
            raise NotFound(f"{module} has no {name!r}")
        resolved = getattr(resolved, part)
    return resolved


def _import_module(module: str) -> Any:
    """Import a module by its name, or a file by its path."""
    try:
        if Path(module).suffix == ".py":
            return _import_file(Path(module).resolve())
        if "" not in sys.path:
            sys.path.insert(0, "")
        return import_module(module)
    except ModuleNotFoundError as error:
        raise NotFound(f"no module {module!r}: {error}") from None
    except DitherError:
        raise
    except Exception as error:
        raise InvalidParameter(f"importing {module} failed: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> Any:
    """Import a file as a module named by its stem, once; a loaded module of the same name stays registered."""
    if not path.is_file():
        raise NotFound(f"no file {path.name!r} in {path.parent}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NotFound(f"{path.name!r} is not a Python file")
    module = module_from_spec(spec)
    if loaded is None:
        sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
