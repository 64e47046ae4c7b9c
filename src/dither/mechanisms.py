"""The mechanisms as a library, for programs that count their own losses: exact noise, and the scale for a loss.

>>> from dither.mechanisms import Pure, Sensitivity, calibrate, release
>>> counts = calibrate("geometric", Pure(1), Sensitivity.of(l0=1, linf=1), lower=0, upper=1000)
>>> counts.loss(Sensitivity.of(l0=1, linf=1))
Pure(epsilon=Fraction(1, 1))
>>> len(release(counts, [120, 7, 0]))
3
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi, Sensitivity
from dither.privacy.accounting import compose, delta_at, epsilon_at, group, self_compose
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.mechanisms import (
    AboveThreshold,
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    GaussianThreshold,
    Geometric,
    LaplaceThreshold,
    Mechanism,
    NoisyMax,
    NoisyMaxQuantiles,
    PartitionSelection,
    PublicThreshold,
    Quantiles,
    RandomizedResponse,
    Snapping,
    SparseVector,
    Staircase,
    TopK,
    Vector,
    calibrate,
)

__all__ = [
    "ZCDP",
    "AboveThreshold",
    "Approximate",
    "Bits",
    "ColumnGaussian",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "GaussianThreshold",
    "Geometric",
    "LaplaceThreshold",
    "Loss",
    "Mechanism",
    "NoisyMax",
    "NoisyMaxQuantiles",
    "PartitionSelection",
    "PublicThreshold",
    "Pure",
    "Quantiles",
    "RandomizedResponse",
    "Renyi",
    "Sensitivity",
    "Snapping",
    "SparseVector",
    "Staircase",
    "SystemBits",
    "TopK",
    "Vector",
    "calibrate",
    "compose",
    "delta_at",
    "epsilon_at",
    "group",
    "release",
    "self_compose",
]

WANTED = "a mechanism needs a list or a one-dimensional array of integers"


def release(mechanism: Mechanism, exact: ArrayLike, bits: Bits | None = None) -> Vector:
    """Return one draw for a list or one-dimensional array of integers, by random bits of the operating system.

    Nothing is charged: the caller must know the sensitivity of `exact`, and must add up what `mechanism.loss` says.
    """
    try:
        values = np.asarray(exact)
    except ValueError:
        raise InvalidParameter(f"{WANTED}, got lists of different lengths") from None
    if values.ndim != 1 or not (values.dtype.kind in "biu" or values.size == 0):
        raise InvalidParameter(f"{WANTED}, got shape {values.shape} of {values.dtype}; round or scale fractions first")
    if values.dtype == np.uint64 and (values > np.iinfo(np.int64).max).any():
        raise InvalidParameter(f"{WANTED} below 2^63; scale them down first")
    mechanism.check_length(values.size)
    return mechanism.release(values.astype(np.int64), bits or SystemBits())
