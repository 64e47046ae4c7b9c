"""The head in a file outside the state folder: a kernel whose ledger was rolled back does not start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dither.cli import app
from dither.errors import LedgerError
from dither.loss import Pure
from dither.privacy.ledger import Ledger
from dither.serve.kernel.anchor import HeadAnchor
from dither.serve.transport.socket_client import SeenHeads
from privacy.ledger_cases import charge_for, dataset, pay


def rolled_back(folder: Path) -> tuple[Path, Path]:
    """Return a ledger that lost its last charge, and the anchor that knows it."""
    place, anchor, early = folder / "l.sqlite", folder / "anchor", folder / "early.sqlite"
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.close()
    shutil.copy(place, early)
    kept = HeadAnchor(str(place), anchor)
    ledger = Ledger(place)
    kept.follow(ledger)
    pay(ledger, charge_for(1, "1/2"))
    kept.stop()
    assert SeenHeads(anchor).last == ledger.head
    ledger.close()
    for file in folder.glob("l.sqlite*"):
        file.unlink()
    shutil.copy(early, place)
    return place, anchor


def test_a_kernel_behind_its_anchor_does_not_start(tmp_path: Path) -> None:
    place, anchor = rolled_back(tmp_path)
    with pytest.raises(LedgerError, match=r"does not continue the head in .*anchor"):
        HeadAnchor(str(place), anchor)
    ledger, lost = Ledger(place), SeenHeads(anchor).last
    assert lost is not None
    ledger.mark_gap(lost, Pure("1/2"))
    HeadAnchor(str(place), anchor)  # a gap that counts the lost charge opens it, and the anchor follows
    assert SeenHeads(anchor).last == ledger.head


def test_the_command_line_notices_a_rollback_too(tmp_path: Path) -> None:
    place, anchor = rolled_back(tmp_path)
    for words in (["anchor", str(place), "--to", str(anchor)], ["verify", str(place), "--anchor", str(anchor)]):
        found = CliRunner().invoke(app, ["ledger", *words])
        assert found.exit_code != 0 and "head" in found.output
    fresh = tmp_path / "fresh"
    assert CliRunner().invoke(app, ["ledger", "anchor", str(place), "--to", str(fresh)]).exit_code == 0
    assert CliRunner().invoke(app, ["ledger", "verify", str(place), "--anchor", str(fresh)]).exit_code == 0
    assert SeenHeads(fresh).last == Ledger(place).head


def test_without_a_file_there_is_no_anchor(tmp_path: Path) -> None:
    kept = HeadAnchor(str(tmp_path / "none.sqlite"), None)
    kept.stop()
    assert list(tmp_path.iterdir()) == []
