"""Fixtures for the tests of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dither.privacy.ledger import Ledger
from privacy.ledger_cases import dataset


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.tier("test"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a new ledger; the same tests run on SQLite and PostgreSQL."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_database"))
    return str(tmp_path / "ledger.sqlite")


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    built = Ledger(place)
    built.register(dataset(1))
    yield built
    built.close()
