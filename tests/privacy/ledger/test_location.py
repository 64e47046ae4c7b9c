"""One dataset, one ledger: it is found through the description, and a second one is noticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dither
from conftest import require
from dither.errors import LedgerError
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.location import file_beside, find_ledger, note_ledger
from dither.privacy.ledger.maintenance import backup
from serve.servers import town

COUNT = "SELECT COUNT(*) FROM people"


def spent(session: dither.Session) -> int:
    return session.budget[0].spent[0]


def test_a_new_ledger_lies_beside_its_description_and_is_found_there(tmp_path: Path) -> None:
    path = town(tmp_path)
    dither.connect(path).sql(COUNT, epsilon="1/2")
    again = dither.connect(path)
    assert spent(again) == 51 * 10**13 and find_ledger([path], tmp_path / "other") == str(tmp_path / "town.ledger")


def test_a_ledger_elsewhere_is_noted_beside_the_description(tmp_path: Path) -> None:
    path, place = town(tmp_path / "data"), tmp_path / "elsewhere.sqlite"
    first = dither.connect(path, ledger=place)
    first.sql(COUNT, epsilon="1/2")
    assert json.loads(file_beside(path).read_text())["place"] == str(place)
    second = dither.connect(path)
    assert spent(second) == 51 * 10**13  # without ledger=, the note is followed
    for session in (first, second):
        session.kernel.close()  # type: ignore[attr-defined]
    moved = place.rename(tmp_path / "moved.sqlite")
    with pytest.raises(LedgerError, match=r"was at .*elsewhere.sqlite; there is none at"):
        dither.connect(path)
    assert spent(dither.connect(path, ledger=moved)) == 51 * 10**13  # the same ledger in another place
    assert spent(dither.connect(path)) == 51 * 10**13


def test_a_second_ledger_is_refused_unless_the_curator_says_so(tmp_path: Path) -> None:
    path = town(tmp_path)
    dither.connect(path).sql(COUNT, epsilon="1/2")
    (tmp_path / "fresh").mkdir()
    for fresh in (tmp_path / "fresh.sqlite", tmp_path / "fresh" / "town.ledger"):
        Ledger(fresh).close()
        with pytest.raises(LedgerError, match="another one, where its budgets would start again"):
            dither.connect(path, ledger=fresh)
    with pytest.raises(LedgerError, match="there is none at"):
        dither.connect(path, ledger=tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    assert spent(dither.connect(path, ledger=tmp_path / "fresh.sqlite", another_ledger=True)) == 0
    assert spent(dither.connect(path)) == 51 * 10**13  # a ledger beside the description stays its ledger


def test_a_copy_is_the_same_ledger(tmp_path: Path) -> None:
    path = town(tmp_path)
    dither.connect(path).sql(COUNT, epsilon="1/2")
    backup(file_beside(path), tmp_path / "copy.sqlite")
    assert find_ledger([path], tmp_path, tmp_path / "copy.sqlite") == str(tmp_path / "copy.sqlite")


@pytest.mark.parametrize("first", ["town.yml", "link.yml"])
def test_a_linked_description_has_the_ledger_of_its_file(tmp_path: Path, first: str) -> None:
    """Regression: a symbolic link beside the description started the budgets again."""
    path = town(tmp_path)
    (tmp_path / "link.yml").symlink_to(path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "far.yml").symlink_to(path)
    dither.connect(tmp_path / first).sql(COUNT, epsilon="1/2")
    for name in ("town.yml", "link.yml"):
        assert spent(dither.connect(tmp_path / name)) == 51 * 10**13
    assert find_ledger([tmp_path / "links" / "far.yml"], tmp_path / "other") == str(
        tmp_path / first.replace("yml", "ledger")
    )
    (tmp_path / "next").mkdir()
    (tmp_path / "link.yml").unlink()
    (tmp_path / "link.yml").symlink_to(town(tmp_path / "next"))  # another file under the same name: the same ledger
    assert find_ledger([tmp_path / "link.yml"], tmp_path / "other") == find_ledger([path], tmp_path / "other")
    Ledger(tmp_path / "next" / "town.ledger").close()
    with pytest.raises(LedgerError, match="another one, where its budgets would start again"):
        find_ledger([tmp_path / "link.yml"], tmp_path / "other")


def test_a_server_keeps_one_ledger_for_its_descriptions(tmp_path: Path) -> None:
    """The state folder's ledger for new descriptions, the one that a description has, or none if they disagree."""
    one, two, state = town(tmp_path / "1"), town(tmp_path / "2"), tmp_path / "ledger.sqlite"
    assert find_ledger([one, two], state) == str(state)
    Ledger(file_beside(one)).close()
    assert find_ledger([one, two], state) == str(file_beside(one))
    Ledger(file_beside(two)).close()
    with pytest.raises(LedgerError, match=r"town.yml has its ledger at .*2/town.ledger"):
        find_ledger([one, two], state)
    file_beside(two).unlink()
    identity = Ledger(file_beside(one)).identity
    assert note_ledger([one, two], str(file_beside(one)), identity) == []
    assert find_ledger([one, two], state) == find_ledger([two], state) == str(file_beside(one))
    Ledger(state).close()  # the folder has a ledger of its own already
    with pytest.raises(LedgerError, match="another one"):
        find_ledger([one], state)


def test_a_note_of_a_database_has_no_password(tmp_path: Path) -> None:
    path = town(tmp_path)
    note_ledger([path], "postgresql://someone:secret@db.example.org:5433/dither", "ab" * 16)
    assert "secret" not in file_beside(path).read_text() and "someone" not in file_beside(path).read_text()
    with pytest.raises(
        LedgerError, match=r"postgresql://db.example.org:5433/dither: give its address in DITHER_LEDGER"
    ):
        dither.connect(path)


def test_a_damaged_note_is_refused(tmp_path: Path) -> None:
    path = town(tmp_path)
    file_beside(path).write_text("{}")
    with pytest.raises(LedgerError, match="neither a ledger nor a note"):
        dither.connect(path)


def test_a_description_in_a_closed_folder_is_reported(tmp_path: Path) -> None:
    path = town(tmp_path)
    file_beside(path).mkdir()
    shutil.rmtree(file_beside(path))
    (tmp_path / "town.ledger.new").mkdir()  # writing the note fails, for root too
    assert note_ledger([path], str(tmp_path / "l.sqlite"), "ab" * 16) == [path]


def other_process(code: str, *words: str) -> str:
    """Run Python code in another process; return what it prints."""
    return subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True).stdout


COUNT_CHARGES = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as ledger:
    print(ledger.execute("SELECT COUNT(*) FROM rows WHERE kind = 'charge'").fetchone()[0])
ledger.close()
"""


def locks_on(place: Path) -> list[str]:
    """Return the locks of this process on a file, as the system lists them."""
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if f":{place.stat().st_ino} " in line]


def test_looking_for_a_ledger_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    """Regression test: opening and closing the file dropped them, and another process could remove the log."""
    require(Path("/proc/locks").exists(), "needs /proc/locks, which lists the locks of processes")
    path = town(tmp_path)
    session = dither.connect(path)
    place = file_beside(path)
    held = locks_on(place)
    assert held
    find_ledger([path], place)
    note_ledger([path], str(place), "x")
    assert locks_on(place) == held
    session.kernel.close()  # type: ignore[attr-defined]


def test_a_visitor_of_the_ledger_does_not_make_charges_disappear(tmp_path: Path) -> None:
    """Regression test: after another process had opened and closed the ledger, charges of this one were lost."""
    path = town(tmp_path)
    session = dither.connect(path)
    place = str(file_beside(path))
    session.quote(COUNT, epsilon="1/2")  # the noisy sizes are charged before the first quote
    before = int(other_process(COUNT_CHARGES, place))
    session.sql(COUNT, epsilon="1/2")
    assert int(other_process(COUNT_CHARGES, place)) == before + 1
    session.kernel.close()  # type: ignore[attr-defined]


def test_a_removed_log_stops_the_ledger(tmp_path: Path) -> None:
    """Whatever removes the log, nothing is answered on a charge that nobody else can see."""
    path = town(tmp_path)
    session = dither.connect(path)
    file_beside(path).with_name("town.ledger-wal").unlink()
    with pytest.raises(LedgerError, match="log was removed or replaced"):
        session.sql(COUNT, epsilon="1/2")
