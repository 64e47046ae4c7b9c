"""Mechanisms: what they add, what they cost, which proof says so."""

from __future__ import annotations

from dither.privacy.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Geometric, Snapping, Staircase
from dither.privacy.mechanisms.base import FLOOR, Mechanism, Vector, saturating_add
from dither.privacy.mechanisms.calibration import calibrate
from dither.privacy.mechanisms.partitions import (
    GaussianThreshold,
    LaplaceThreshold,
    PartitionSelection,
    PublicThreshold,
)
from dither.privacy.mechanisms.quantiles import Quantiles
from dither.privacy.mechanisms.response import RandomizedResponse
from dither.privacy.mechanisms.selection import AboveThreshold, ExponentialMechanism, NoisyMax, SparseVector, TopK
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE

# The only classes that the wire can name.
BY_NAME: dict[str, type[Mechanism]] = {
    "discrete_laplace": DiscreteLaplace,
    "discrete_gaussian": DiscreteGaussian,
    "geometric": Geometric,
    "staircase": Staircase,
    "snapping": Snapping,
    "noisy_max": NoisyMax,
    "exponential": ExponentialMechanism,
    "top_k": TopK,
    "above_threshold": AboveThreshold,
    "sparse_vector": SparseVector,
    "quantiles": Quantiles,
    "partition_selection": PartitionSelection,
    "laplace_threshold": LaplaceThreshold,
    "gaussian_threshold": GaussianThreshold,
    "public_threshold": PublicThreshold,
    "randomized_response": RandomizedResponse,
}

__all__ = [
    "BY_NAME",
    "FLOOR",
    "LARGEST_SCALE",
    "SMALLEST_SCALE",
    "AboveThreshold",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "GaussianThreshold",
    "Geometric",
    "LaplaceThreshold",
    "Mechanism",
    "NoisyMax",
    "PartitionSelection",
    "PublicThreshold",
    "Quantiles",
    "RandomizedResponse",
    "Snapping",
    "SparseVector",
    "Staircase",
    "TopK",
    "Vector",
    "calibrate",
    "saturating_add",
]
