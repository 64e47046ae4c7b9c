"""Formats: ledgers of an older or newer format are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dither.errors import LedgerError
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import backup, verify
from dither.privacy.ledger.store import FORMAT, open_store

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_a_ledger_of_an_older_format_is_refused_by_name(tmp_path: Path) -> None:
    place = tmp_path / "old.sqlite"
    shutil.copy(FIXTURES / "ledger_format2.sqlite", place)
    before = place.read_bytes()
    for act in (Ledger, verify, lambda old: backup(old, tmp_path / "copy.sqlite")):
        with pytest.raises(LedgerError, match=f"format 2, .* reads format {FORMAT}: start a new ledger"):
            act(place)
    assert place.read_bytes() == before and not (tmp_path / "copy.sqlite").exists()


def test_a_newer_format_is_refused(place: str) -> None:
    Ledger(place).close()
    open_store(place)._execute("UPDATE meta SET value = '99'")  # type: ignore[attr-defined]
    for act in (Ledger, verify):
        with pytest.raises(LedgerError, match="newer Dither"):
            act(place)
