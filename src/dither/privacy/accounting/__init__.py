"""Composition, conversion and filters of privacy losses, in exact rationals."""

from __future__ import annotations

from dither.privacy.accounting.composition import (
    compose,
    compose_parallel,
    group,
    group_in_distinct_cells,
    joint_gaussian,
    joint_laplace,
    sampled_loss,
    self_compose,
    subsampled_gaussian,
)
from dither.privacy.accounting.conversion import (
    as_renyi,
    as_zcdp,
    delta_at,
    epsilon_at,
    largest_rho,
    pure_as_renyi,
    pure_as_rho,
)
from dither.privacy.accounting.filters import PureFilter, RenyiFilter, ZCDPFilter, filter_of
