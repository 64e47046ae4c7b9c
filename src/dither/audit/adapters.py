"""Other libraries' mechanisms in the shape that the auditor takes; each library is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from dither.audit.stability import InputSpace, Stated, Vectors
from dither.errors import InvalidParameter

Once = Callable[[Any], Any]


def _library(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidParameter(f"this adapter needs {package}: {error}") from None


def diffprivlib(mechanism: Any) -> Once:
    """A mechanism of diffprivlib, or the name of one with its parameters: `diffprivlib(Laplace(epsilon=1, ...))`."""
    return lambda value: mechanism.randomise(value)


def diffprivlib_exact(make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    """A mechanism of diffprivlib for the exact audit: its generator, the attribute `_rng`, is replaced by the bits."""

    def run(value: Any, bits: Any) -> Any:
        mechanism = make()
        mechanism._rng = bits
        return mechanism.randomise(value)

    return run


def diffprivlib_laplace(epsilon: float = 1.0, sensitivity: float = 1.0) -> Once:
    """diffprivlib's Laplace mechanism."""
    return diffprivlib(
        _library("diffprivlib.mechanisms", "diffprivlib").Laplace(epsilon=epsilon, sensitivity=sensitivity)
    )


def diffprivlib_geometric(epsilon: float = 1.0) -> Callable[[Any, Any], Any]:
    """diffprivlib's Geometric mechanism for the exact audit, unmodified but for its generator."""
    library = _library("diffprivlib.mechanisms", "diffprivlib")
    return diffprivlib_exact(lambda: library.Geometric(epsilon=epsilon))


def opendp(measurement: Any) -> Once:
    """A measurement of OpenDP: it is called."""
    return lambda value: measurement(value)


def opendp_transformation(transformation: Any, space: InputSpace) -> Stated:
    """A transformation of OpenDP between symmetric distance and the absolute distance, and what its own map states.

    One value replaced is a symmetric distance of 2.
    """
    return Stated(lambda data: transformation(data), space, float(transformation.map(2)))


def opendp_deviations(size: int = 1024, low: float = 2.0**50, high: float = 2.0**50 + 1) -> Stated:
    """OpenDP's sum of squared deviations of `size` floats between two bounds."""
    dp = _library("opendp.prelude", "opendp")
    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(bounds=(low, high), nan=False), size), dp.symmetric_distance()
    return opendp_transformation(space >> dp.t.then_sum_of_squared_deviations(), Vectors(size, low, high))


def python_dp(mechanism: Any) -> Once:
    """A numerical mechanism of python-dp (Google's library)."""
    return lambda value: mechanism.add_noise(float(value))


def python_dp_gaussian(epsilon: float = 1.0, delta: float = 1e-5, sensitivity: float = 1.0) -> Once:
    """python-dp's Gaussian mechanism."""
    library = _library("pydp.algorithms.numerical_mechanisms", "python-dp")
    return python_dp(library.GaussianMechanism(epsilon, delta, sensitivity))


def smartnoise(query: str, metadata: Mapping[str, Any], epsilon: float, delta: float = 0.0) -> Once:
    """A query of SmartNoise SQL on a pandas data frame; the output is the rows of the answer."""
    snsql = _library("snsql", "smartnoise-sql")

    def run(data: Any) -> Sequence[Any]:
        privacy = snsql.Privacy(epsilon=epsilon, delta=delta)
        reader = snsql.from_df(data, privacy=privacy, metadata=metadata)
        return [tuple(row) for row in reader.execute(query)[1:]]

    return run


def tumult(session: Callable[[Any], Any], query: Any, budget: Any) -> Once:
    """A query of Tumult Analytics: `session` makes a Session of an input; the output is the rows of the answer."""
    return lambda value: [tuple(row) for row in session(value).evaluate(query, budget).collect()]
