"""Notes on wide intervals: why they are wide, and what would help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dither.loss import ZCDP, Approximate, Loss, Pure
from dither.post.estimate.error_kinds import ErrorKind
from dither.post.estimate.intervals import Estimate
from dither.post.estimate.wide import wide_notes
from dither.post.session import Session


def interval(values: list[float], half: float) -> Estimate:
    value = np.array(values)
    return Estimate(value, np.full(value.shape, half / 2), value - half, value + half)


def notes(found: Estimate, noise: Estimate | None = None, loss: tuple[Loss, ...] = (Pure(1),)) -> tuple[str, ...]:
    return wide_notes("n", found, noise or found, loss, "person")


def test_narrow_and_undefined_values_and_texts_need_no_note() -> None:
    assert notes(interval([100.0, -100.0], 25)) == notes(interval([], 1)) == notes(interval([np.nan], 1)) == ()
    words = Estimate(np.array(["a", None], object), np.zeros(2), np.zeros(2), np.ones(2))
    assert notes(words) == ()


def test_the_noise_of_small_groups() -> None:
    """Intervals of 1,000 +- 500 are twice as wide as half the value, so half the noise would do."""
    (note,) = notes(interval([1000.0, 1000.0, 10_000.0], 500))
    assert note.startswith("n: the interval is wider than half the value in 2 of 3 rows, because the noise is large")
    assert "groups about 2 times as large or about epsilon 2 would do for the typical one" in note
    (single,) = notes(interval([1000.0], 500), loss=(ZCDP("1/2"),))
    assert "so few persons; about rho 2 would do" in single


def test_no_loss_is_suggested_that_was_nearly_spent() -> None:
    """Regression: an answer at epsilon 1 said that about epsilon 1 would do."""
    for found in (interval([1000.0], 260), interval([1000.0, 1000.0], 260)):
        (note,) = notes(found)
        assert "would do" not in note


@pytest.mark.parametrize(("kind", "advice"), [("spread", "CLAMP(x, low, high)"), ("extreme", "QUANTILE(x, 0.99)")])
def test_where_the_loss_does_not_decide_the_note_names_what_helps(kind: ErrorKind, advice: str) -> None:
    found = interval([1000.0], 500)
    (note,) = wide_notes("n", found, found, (Pure(1),), "person", kind=kind)
    assert "would do" not in note and advice in note


def test_no_loss_is_suggested_where_clipping_is_a_good_part() -> None:
    (note,) = notes(interval([1000.0], 500), noise=interval([1000.0], 400))
    assert "would do" not in note and "the noise is large" in note


@pytest.mark.parametrize("loss", [(), (Pure(1), Pure(1)), (Approximate(1, "1/1000"),)])
def test_no_loss_is_suggested_where_it_is_not_simple(loss: Any) -> None:
    (note,) = notes(interval([1000.0], 500), loss=loss)
    assert "would do" not in note


def test_no_loss_is_suggested_that_is_out_of_reach() -> None:
    for found in (interval([1.0], 500), interval([0.0], 5), interval([3.0], np.inf)):
        (note,) = notes(found)
        assert "would do" not in note


def test_clipping_that_is_not_known() -> None:
    (note,) = notes(interval([1000.0], 500), noise=interval([1000.0], 100))
    assert "not known how much clipping removed: a few persons" in note and "would do" not in note
    assert note.endswith("make it narrower: noise alone leaves about ± 100")


def test_a_cap_on_rows_is_no_remedy_where_each_unit_has_one_row() -> None:
    found, noise = interval([1000.0], 500), interval([1000.0], 100)
    ((several,), (single,)) = (
        wide_notes("n", found, noise, (Pure(1),), "person", one_row=one) for one in (False, True)
    )
    assert "max_rows" in several and "max_rows" not in single and "the others; CLAMP(x, low, high)" in single


def test_an_answer_explains_itself(session: Session) -> None:
    answer = session.sql("SELECT country, COUNT(*) AS n FROM users GROUP BY country", epsilon="1/20")
    assert any(note.startswith("n: the interval is wider than half the value") for note in answer.notes)
    answer = session.sql("SELECT COUNT(*) AS n FROM users", epsilon=10)
    assert not any("wider" in note for note in answer.notes)


@pytest.mark.parametrize("column", ["CORR(price, seconds)", "STDDEV(price)", "MIN(price)", "MAX(seconds)"])
def test_no_loss_is_named_for_what_depends_on_the_spread_of_values(column: str, session: Session) -> None:
    """Regression: such answers stayed as wide at the loss that would do."""
    answer = session.sql(f"SELECT {column} AS x FROM actions", epsilon="1/50")
    assert not any("would do" in note for note in answer.notes)


def test_a_wide_quantile_of_a_whole_table_names_the_better_way(session: Session) -> None:
    answer = session.sql("SELECT MEDIAN(price) AS p, COUNT(*) AS n FROM actions", epsilon="1/1000")
    wide = {note[0]: note for note in answer.notes if "wider than half" in note}
    assert "session.quantiles" in wide["p"] and "session.quantiles" not in wide["n"]
