"""Points of quantiles with fewer rows beyond them than the noise hides: the result says that they may lie anywhere.

False alarms: the thousandth of the rows beyond a level at epsilon 1/2, and the half at epsilon 20, are far from what
noise hides; only the noisy number of rows enters, which errs so much with a chance far below 1e-9.
"""

from __future__ import annotations

import numpy as np
import pytest

from dither.post.noise import ScaledNoise
from dither.post.session import Session
from dither.post.statistics.grid import same_totals


def hidden(session: Session, level: float, epsilon: str) -> list[str]:
    notes = session.quantiles("users", "salary", [level], epsilon=epsilon).notes
    return [note for note in notes if note.startswith("noise may hide")]


def test_a_level_with_fewer_rows_beyond_it_than_noise_hides_has_a_note(session: Session) -> None:
    """The named bug: 5,262 [192, 5,827] for 11, without a word."""
    (note,) = hidden(session, 0.999, "1/2")
    assert "0.999" in note and "its interval" in note


def test_a_median_of_many_rows_has_none(session: Session) -> None:
    assert not hidden(session, 0.5, "20")


def test_levels_with_bounds_of_their_own_leave_no_rows_where_there_are_none() -> None:
    """The named bug: 5,262 [192, 5,827] for 11, since the fit spread the difference of the totals over empty leaves."""
    noise = ScaledNoise("laplace", 20.0)
    fine = np.concatenate([np.full(64, 700.0), np.zeros(960)])
    levels = [
        (share * fine.reshape(cells, -1).sum(axis=1), noise) for cells, share in ((16, 1.0), (128, 0.7), (1024, 0.65))
    ]
    scaled = same_totals(levels)
    assert [round(counts.sum()) for counts, _ in scaled] == [44_800] * 3
    assert all(counts[counts.size // 16 :].sum() == 0 for counts, _ in scaled)
    assert [other.std / noise.std for _, other in scaled] == pytest.approx([1.0, 1 / 0.7, 1 / 0.65])


def test_a_level_whose_total_noise_hides_is_not_scaled() -> None:
    noise = ScaledNoise("laplace", 20.0)
    levels = [(np.full(16, 100.0), noise), (np.zeros(1024), noise)]
    assert same_totals(levels) == levels
