"""Differentially private mechanisms: each states its cost and names the proof of it."""

from __future__ import annotations

from dither.privacy.mechanisms.additive import (
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    Snapping,
    Staircase,
)
from dither.privacy.mechanisms.base import FLOOR, Mechanism, Vector, saturating_add
from dither.privacy.mechanisms.calibration import BY_NAME, calibrate
from dither.privacy.mechanisms.partitions import (
    GaussianThreshold,
    LaplaceThreshold,
    PartitionSelection,
    PublicThreshold,
)
from dither.privacy.mechanisms.quantiles import NoisyMaxQuantiles, Quantiles
from dither.privacy.mechanisms.response import RandomizedResponse
from dither.privacy.mechanisms.selection import AboveThreshold, ExponentialMechanism, NoisyMax, SparseVector, TopK
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE
