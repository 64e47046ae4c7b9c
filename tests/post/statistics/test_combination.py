"""Answers about the same rows improve each other at no cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dither.errors import InvalidParameter
from dither.post.estimate.answer import Answer
from dither.post.session import Session
from post.bare import BareKernel

BY_COUNTRY = "SELECT country, COUNT(*) AS n FROM users GROUP BY country"
BY_BOTH = "SELECT gender, country, COUNT(*) AS n FROM users GROUP BY gender, country"


def as_distinct(*answers: Answer) -> list[Answer]:
    """Give each answer a digest of its own, as a real kernel does."""
    return [
        replace(a, releases=tuple(replace(r, digest=f"d{place}") for r in a.releases))
        for place, a in enumerate(answers)
    ]


def test_combined_answers_agree_and_are_better(session: Session, kernel: BareKernel) -> None:
    one, two = as_distinct(session.sql(BY_COUNTRY, epsilon=1), session.sql(BY_BOTH, epsilon=1))
    before = len(kernel.requests)
    first, second = session.combine(one, two)
    assert len(kernel.requests) == before
    cells = np.asarray(second["n"].value).reshape(3, 6)
    assert np.allclose(cells.sum(axis=0), first["n"].value)
    assert np.all(first["n"].noise < one["n"].noise) and np.all(second["n"].noise < two["n"].noise)
    assert any("at no cost" in note for note in first.notes)
    assert first.measurements == one.measurements


@pytest.mark.tier("deep")
def test_the_error_falls(session: Session) -> None:
    """200 pairs of draws; the fit's variance is 3/4 of the measured one, and a false alarm is below 1e-9."""
    exact = np.asarray(session.sql(BY_COUNTRY, epsilon=900)["n"].value)
    raw, fitted = [], []
    for _ in range(200):
        one, two = as_distinct(session.sql(BY_COUNTRY, epsilon=1), session.sql(BY_BOTH, epsilon=1))
        raw.append(np.square(one["n"].value - exact).sum())
        fitted.append(np.square(session.combine(one, two)[0]["n"].value - exact).sum())
    assert np.mean(fitted) < np.mean(raw)


def test_one_release_counts_once(session: Session) -> None:
    (answer,) = as_distinct(session.sql(BY_COUNTRY, epsilon=1))
    same = session.combine(answer, answer)
    assert np.array_equal(same[0]["n"].value, answer["n"].value)


def test_tables_are_combined_with_answers(session: Session) -> None:
    table = session.table("users", ["country"], margins="all", epsilon=1)
    combined = session.combine(table)
    assert np.asarray(combined[0]["n"].value).sum() == pytest.approx(combined[1]["n"].value)


def test_other_rows_and_other_columns_stay(session: Session) -> None:
    adults = session.sql("SELECT country, COUNT(*) AS n FROM users WHERE age > 30 GROUP BY country", epsilon=1)
    mean = session.sql("SELECT country, AVG(age) AS a FROM users GROUP BY country", epsilon=1)
    one, two, three = as_distinct(session.sql(BY_COUNTRY, epsilon=1), adults, mean)
    for before, after in zip((one, two, three), session.combine(one, two, three), strict=True):
        assert np.array_equal(before.columns[-1].value, after.columns[-1].value)


def test_refusals(session: Session) -> None:
    one = session.sql(BY_COUNTRY, epsilon=1)
    other = replace(one, releases=tuple(replace(release, data_version="2") for release in one.releases))
    with pytest.raises(InvalidParameter, match="different datasets or versions"):
        session.combine(one, other)
    with pytest.raises(InvalidParameter, match="needs answers"):
        session.combine()
    with pytest.raises(InvalidParameter, match="combine takes answers"):
        session.combine(replace(one, draws=None))
