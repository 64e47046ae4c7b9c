"""Adapt other libraries' mechanisms to the auditor; each library is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from dither.audit.stability import ClaimedFunction, InputSpace, Vectors
from dither.errors import InvalidParameter

SingleRun = Callable[[Any], Any]


def _import_library(name: str, package: str) -> Any:
    """Import a module, or raise an error that names the package to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidParameter(f"this adapter needs {package}: {error}") from None


def diffprivlib(mechanism: Any) -> SingleRun:
    """Adapt a mechanism of diffprivlib, such as `diffprivlib(Laplace(epsilon=1, sensitivity=1))`."""
    return lambda value: mechanism.randomise(value)


def diffprivlib_exact(make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    """Adapt a mechanism of diffprivlib to the exact audit, which replaces its generator, the attribute `_rng`."""

    def run(value: Any, bits: Any) -> Any:
        mechanism = make()
        mechanism._rng = bits
        return mechanism.randomise(value)

    return run


def diffprivlib_laplace(epsilon: float = 1.0, sensitivity: float = 1.0) -> SingleRun:
    """Return diffprivlib's Laplace mechanism."""
    return diffprivlib(
        _import_library("diffprivlib.mechanisms", "diffprivlib").Laplace(epsilon=epsilon, sensitivity=sensitivity)
    )


def diffprivlib_geometric(epsilon: float = 1.0) -> Callable[[Any, Any], Any]:
    """Return diffprivlib's Geometric mechanism for the exact audit, unmodified except for its generator."""
    library = _import_library("diffprivlib.mechanisms", "diffprivlib")
    return diffprivlib_exact(lambda: library.Geometric(epsilon=epsilon))


def opendp(measurement: Any) -> SingleRun:
    """Adapt a measurement of OpenDP by calling it."""
    return lambda value: measurement(value)


def opendp_transformation(transformation: Any, space: InputSpace) -> ClaimedFunction:
    """Adapt a transformation of OpenDP from symmetric to absolute distance, with the stability that its map states.

    The map is evaluated at 2, the symmetric distance of replacing one value.
    """
    return ClaimedFunction(lambda data: transformation(data), space, float(transformation.map(2)))


def opendp_deviations(size: int = 1024, low: float = 2.0**50, high: float = 2.0**50 + 1) -> ClaimedFunction:
    """Return OpenDP's sum of squared deviations of `size` floats between two bounds."""
    dp = _import_library("opendp.prelude", "opendp")
    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(bounds=(low, high), nan=False), size), dp.symmetric_distance()
    return opendp_transformation(space >> dp.t.then_sum_of_squared_deviations(), Vectors(size, low, high))


def python_dp(mechanism: Any) -> SingleRun:
    """Adapt a numerical mechanism of python-dp (PyDP, which wraps Google's library)."""
    return lambda value: mechanism.add_noise(float(value))


def python_dp_gaussian(epsilon: float = 1.0, delta: float = 1e-5, sensitivity: float = 1.0) -> SingleRun:
    """Return python-dp's Gaussian mechanism."""
    library = _import_library("pydp.algorithms.numerical_mechanisms", "python-dp")
    return python_dp(library.GaussianMechanism(epsilon, delta, sensitivity))


def smartnoise(query: str, metadata: Mapping[str, Any], epsilon: float, delta: float = 0.0) -> SingleRun:
    """Adapt a query of SmartNoise SQL on a pandas data frame; the output is the list of the answer's rows."""
    snsql = _import_library("snsql", "smartnoise-sql")

    def run(data: Any) -> Sequence[Any]:
        privacy = snsql.Privacy(epsilon=epsilon, delta=delta)
        reader = snsql.from_df(data, privacy=privacy, metadata=metadata)
        return [tuple(row) for row in reader.execute(query)[1:]]

    return run


def tumult(session: Callable[[Any], Any], query: Any, budget: Any) -> SingleRun:
    """Adapt a query of Tumult Analytics; `session` builds a Session from an input, the output is the answer's rows."""
    return lambda value: [tuple(row) for row in session(value).evaluate(query, budget).collect()]
