"""Points of quantiles with fewer rows beyond them than the noise hides: the result says that they may lie anywhere.

False alarms: the thousandth of the rows that lies beyond a level at epsilon 1/2, and the half at epsilon 20, are far from
what noise hides; only the noisy number of rows enters, which errs so much with a chance far below 1e-9.
"""

from __future__ import annotations

from dither.post.session import Session


def hidden(session: Session, level: float, epsilon: str) -> list[str]:
    notes = session.quantiles("users", "salary", [level], epsilon=epsilon).notes
    return [note for note in notes if note.startswith("noise may hide")]


def test_a_level_with_fewer_rows_beyond_it_than_noise_hides_has_a_note(session: Session) -> None:
    """The named bug: 5,262 [192, 5,827] for 11, without a word."""
    (note,) = hidden(session, 0.999, "1/2")
    assert "0.999" in note and "its interval" in note


def test_a_median_of_many_rows_has_none(session: Session) -> None:
    assert not hidden(session, 0.5, "20")
