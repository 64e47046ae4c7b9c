"""dither.mechanisms: every mechanism and no more, and a release that takes integers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import CASES
from dither import mechanisms
from dither.errors import InvalidParameter
from dither.privacy.mechanisms import BY_NAME


def test_the_library_holds_every_mechanism() -> None:
    listed = {getattr(mechanisms, name) for name in mechanisms.__all__ if name not in ("Loss", "Vector", "Bits")}
    assert set(BY_NAME.values()) <= listed
    assert {type(case.mechanism) for case in CASES} <= listed


@pytest.mark.parametrize("exact", [[3, 0, 1], np.array([3, 0, 1], np.uint8), np.array([True, False]), []], ids=str)
def test_integers_of_any_width_are_released(exact: Any) -> None:
    noisy = mechanisms.release(mechanisms.Geometric(1, 0, 5), exact)
    assert noisy.dtype == np.int64
    assert noisy.shape == (len(exact),)
    assert ((noisy >= 0) & (noisy <= 5)).all()


@pytest.mark.parametrize("exact", [[0.5, 1.5], [[1, 2]], [[1], [2, 3]], ["1"], [2**63], [2**70], 7, None], ids=str)
@pytest.mark.parametrize("mechanism", [mechanisms.DiscreteLaplace(2), mechanisms.RandomizedResponse(3, "1/2")])
def test_what_is_not_a_list_of_integers_is_refused(mechanism: mechanisms.Mechanism, exact: Any) -> None:
    with pytest.raises(InvalidParameter, match="needs a list or a one-dimensional array of integers"):
        mechanisms.release(mechanism, exact)


def test_a_length_that_a_mechanism_cannot_take_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="candidates"):
        mechanisms.release(mechanisms.NoisyMax(1), [])
