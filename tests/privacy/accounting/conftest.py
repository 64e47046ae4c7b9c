"""Precision for the tests of the accounting rules."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import pytest


@pytest.fixture(scope="module")
def precision() -> Iterator[None]:
    """Compute with 160 bits while a file of tests runs."""
    with mpmath.workprec(160):
        yield
