"""Options, names and values that several tests of the mechanisms use."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from mpmath import mpf

from cases import Case
from dither.privacy.mechanisms import BY_NAME

MARGIN = mpf(10) ** -25
OPTIONS: dict[str, dict[str, Any]] = {
    "snapping": {"bound": 100},
    "column_gaussian": {"columns": 2},
    "top_k": {"count": 2},
    "above_threshold": {"threshold": 20, "count": 2},
    "sparse_vector": {"threshold": 20, "count": 2},
    "quantiles": {"quantiles": ("1/4", "1/2", "3/4")},
    "public_threshold": {"threshold": 10},
    "randomized_response": {"categories": 3},
}
PURE = [name for name in BY_NAME if "gaussian" not in name and name not in ("partition_selection", "laplace_threshold")]
words = st.integers(-(2**63), 2**63 - 1)


def every(case: Case) -> str:
    return case.id
