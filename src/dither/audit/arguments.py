"""Arguments that all audits share, checked before anything runs."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from dither.errors import InvalidParameter

LARGEST_COUNT = 10**12


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse a number of runs that is no whole number, or too small."""
    try:
        count = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        raise InvalidParameter(f"{name} must be a whole number such as 1_000_000, got {value!r:.60}") from None
    if not least <= count <= LARGEST_COUNT:
        raise InvalidParameter(f"an audit needs at least {least} {name}, got {value!r:.60}")


def check_alpha(alpha: Any) -> None:
    """Refuse a probability of a false refutation that is out of range."""
    if isinstance(alpha, bool | str) or not hasattr(alpha, "__float__") or not 0 < float(alpha) < 0.5:
        raise InvalidParameter(f"alpha must be between 0 and 0.5, got {alpha!r:.60}")


def seeded_generator(seed: Any) -> np.random.Generator:
    """Return a generator of numbers; the same seed gives the same numbers."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidParameter(f"seed must be a whole number from 0 on, or None, got {seed!r:.60}") from None
