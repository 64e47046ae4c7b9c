"""Durability: full disks, size limits, read-only and damaged files, and processes killed at any line."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dither.errors import LedgerError
from dither.privacy.ledger import Ledger, Receipt
from dither.privacy.ledger.maintenance import verify
from privacy.ledger_cases import ONE, charge_for, dataset, recorded, total_spent


@pytest.mark.tier("test")
def test_a_full_disk_charges_nothing_and_loses_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.register(dataset(1000))
    ledger._store._connection.execute("PRAGMA max_page_count = 30")  # type: ignore[attr-defined]
    done = 0
    with pytest.raises(LedgerError, match="full"):
        for number in range(1000):
            ledger.charge(charge_for(number, "1/10"))
            done += 1
    assert 0 < done < 1000
    assert total_spent(ledger) == [(done * ONE // 10, 0)]
    ledger._store._connection.execute("PRAGMA max_page_count = 100000")  # type: ignore[attr-defined]
    ledger.charge(charge_for("more room", "1/10"))
    assert total_spent(ledger) == [((done + 1) * ONE // 10, 0)]
    ledger.close()
    assert verify(tmp_path / "l.sqlite").sound


LIMITED = """
import resource, sys
from privacy.ledger_cases import charge_for, dataset, total_spent
from dither.errors import LedgerError
from dither.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1]); ledger.register(dataset(1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
done = 0
try:
    for number in range(100_000):
        ledger.charge(charge_for(number, "1/1000")); done += 1
except LedgerError:
    print(done)
"""


@pytest.mark.tier("test")
def test_a_file_size_limit_is_a_clear_error_and_nothing_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ran = run_child(LIMITED, str(place))
    done = int(ran.stdout)
    assert done > 10
    ledger = Ledger(place)
    assert len([row for row in ledger.rows() if row.kind == "charge"]) >= done
    assert verify(place).sound
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def run_child(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_a_read_only_file_refuses_to_charge(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    Ledger(place).register(dataset(1))
    ledger = Ledger(place)
    ledger._store._connection.execute("PRAGMA query_only = 1")  # type: ignore[attr-defined]
    with pytest.raises(LedgerError, match="readonly"):
        ledger.charge(charge_for(1))
    assert ledger.rows()[-1].kind == "dataset"


@pytest.mark.parametrize("damage", [b"not a database at all, only text" * 64, b"SQLite format 3\0" + b"\0" * 4000])
def test_a_broken_file_is_a_clear_error(tmp_path: Path, damage: bytes) -> None:
    place = tmp_path / "l.sqlite"
    place.write_bytes(damage)
    with pytest.raises(LedgerError):
        Ledger(place).register(dataset(1))
    with pytest.raises(LedgerError):
        verify(place)


@pytest.mark.tier("test")
def test_a_file_damaged_in_use_gives_ledger_errors_only(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = Ledger(place)
    ledger.register(dataset(100))
    for number in range(50):
        ledger.charge(charge_for(number))
    ledger.close()
    whole = bytearray(place.read_bytes())
    whole[4096:8192] = bytes(random.Random(1).randbytes(4096))
    place.write_bytes(whole)
    with pytest.raises(LedgerError):
        broken = Ledger(place)
        for number in range(60):
            broken.charge(charge_for(f"new {number}"))
        if not verify(place).sound:
            raise LedgerError("found by the verifier")


def test_missing_ledgers_are_not_made_by_readers(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        verify(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


LEDGER_SOURCES = os.path.join("dither", "privacy", "ledger", "")


class Killer:
    """A trace function that kills its own process with SIGKILL after a number of executed lines of the ledger."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if LEDGER_SOURCES in frame.f_code.co_filename:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def charge_until_killed(place: str, seed: int, released: int) -> None:
    """Charge and answer queries until killed; write the name of each recorded answer to the file `released`."""
    ledger = Ledger(place)
    ledger.describe("shop")
    sys.settrace(Killer(random.Random(seed).randrange(1, 4000)))
    for number in range(100):
        receipt = ledger.charge(charge_for(f"{seed}/{number}", "1/1000", request_id=f"{seed}.{number}"))
        if isinstance(receipt, Receipt):
            ledger.record(receipt, f"draw {seed}/{number}")
            os.write(released, f"{seed}/{number}\n".encode())


def test_kill_9_at_any_step_never_releases_more_than_was_spent(place: str, tmp_path: Path, tier: Any) -> None:
    """Each child kills itself at a random line of a charge or an answer; a file lists the answers it released."""
    rounds = tier.pick(quick=5, test=50, deep=500)
    Ledger(place).register(dataset(4000))
    released = os.open(tmp_path / "released", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for seed in range(rounds):
        child = os.fork()
        if child == 0:
            try:
                charge_until_killed(place, seed, released)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        if seed % 25 == 24:
            Ledger(place).close()  # moves the snapshot, from which the next children start
    ledger = Ledger(place)
    names = (tmp_path / "released").read_text().split()
    charges = [json.loads(row.body)["request"] for row in ledger.rows() if row.kind == "charge"]
    assert {f"question {name}" for name in names} <= set(charges)
    assert total_spent(ledger)[0][0] == len(charges) * ONE // 1000 >= len(names) * ONE // 1000
    assert len(set(names)) == len(names) >= rounds // 4
    assert len(charges) > len(names), "some child must have died between its charge and its answer"
    assert verify(place).sound
    for name in names:
        again = ledger.charge(charge_for(name, "1/1000", request_id=name.replace("/", ".")))
        assert again == recorded(getattr(again, "sequence", 0), f"draw {name}", paid=True)
    kind = "PostgreSQL" if place.startswith("postgres") else "SQLite"
    print(f"kill -9: {rounds} kills on {kind}, {len(charges)} charges, {len(names)} releases, none uncharged")


def test_every_commit_is_synced_and_the_log_is_written_ahead(tmp_path: Path) -> None:
    """No kill shows a missing sync, only a power cut does: ask the connection itself, also after a fork."""
    ledger = Ledger(tmp_path / "l.sqlite")
    ask = ledger._store._live_connection().execute
    assert ask("PRAGMA synchronous").fetchone() == (2,) and ask("PRAGMA journal_mode").fetchone() == ("wal",)
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(ledger._store._live_connection().execute("PRAGMA synchronous").fetchone()[0]))
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.tier("test")
def test_every_commit_to_postgresql_is_synced(postgres_database: str) -> None:
    ask = Ledger(postgres_database)._store._live_connection().execute
    assert ask("SHOW synchronous_commit").fetchone() == ("on",) and ask("SHOW fsync").fetchone() == ("on",)
