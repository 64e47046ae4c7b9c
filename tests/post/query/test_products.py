"""Deviations and correlations of people with many rows, where the declared range is far wider than the values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dither.post.query import terms
from dither.post.session import Session
from post.written_world import opened_engines, session_of

PEOPLE, ROWS = 1_000, 15
DESCRIPTION = """
version: 1
name: shop
tables:
  purchases:
    private: true
    source: {kind: parquet, path: purchases.parquet}
    columns:
      person: {type: identifier, kind: integer}
      price: {type: decimal, min: 0, max: 100000, step: 0.01}
      delay: {type: integer, min: -1000, max: 100000}
units:
  person: {kind: user, keys: {purchases: person}}
budgets:
  - {unit: person, kind: pure, epsilon: 1000}
"""


def purchases() -> dict[str, np.ndarray]:
    """Return prices near 35 and delays near 7 that depend on them, 15 of each person."""
    random = np.random.default_rng(6)
    price = np.maximum(np.round(random.gamma(4, 9, PEOPLE * ROWS), 2), 0)
    delay = np.round(price - 28 + random.normal(0, 10, PEOPLE * ROWS)).astype(int)
    return {"person": np.repeat(np.arange(PEOPLE), ROWS), "price": price, "delay": delay}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with opened_engines(tmp_path_factory) as opened:
        yield session_of(opened(DESCRIPTION, {"purchases": purchases()}), PEOPLE, purchases=PEOPLE * ROWS)


QUESTIONS = {
    "STDDEV(price)": lambda data: data["price"].std(ddof=1),
    "STDDEV(delay)": lambda data: data["delay"].std(ddof=1),
    "CORR(price, delay)": lambda data: np.corrcoef(data["price"], data["delay"])[0, 1],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_products_are_not_rounded_away(shop: Session, question: str) -> None:
    """Of five answers, a right interval leaves out more than two with a probability below 2e-3, each within a fifth.

    Rounded to 2^18 steps of the squared range, whatever lay within 30 of the centre counted as 0.
    """
    truth = float(QUESTIONS[question](purchases()))
    answers = [shop.sql(f"SELECT {question} AS a FROM purchases", epsilon=20, repeat=draw)["a"] for draw in range(5)]
    held = [low <= truth <= high for low, high in (answer.interval for answer in answers)]
    assert sum(held) >= 3
    assert all(abs(answer.value / truth - 1) < 0.2 for answer in answers)


def test_coarse_products_would_lose_them(shop: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: products have as few steps as values."""
    monkeypatch.setattr(terms, "FINEST_PRODUCT_STEPS", terms.CLIPPED_FINEST_STEPS)
    with pytest.raises(AssertionError):
        test_products_are_not_rounded_away(shop, "STDDEV(price)")
