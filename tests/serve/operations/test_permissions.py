"""Test that the kernel's folder is closed to other users, and that keys which others can read are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import require
from dither import cli
from dither.errors import InvalidParameter
from dither.serve.kernel.process import KernelProcess, KernelSettings
from dither.serve.operations.permissions import check_secret_file, secure_private_folder
from serve.servers import town


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_owners(tmp_path: Path) -> None:
    assert secure_private_folder(tmp_path / "private") == "" and mode(tmp_path / "private") == 0o700
    assert secure_private_folder(tmp_path / "private") == ""


def test_an_open_folder_is_closed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files in the folder are closed too, such as an old ledger."""
    private = tmp_path / "state" / "private"
    (private / "logs").mkdir(parents=True)
    for path in (private / "old.sqlite", private / "logs" / "public.jsonl"):
        path.write_text("")
        path.chmod(0o644)
    private.chmod(0o755)
    process = KernelProcess(KernelSettings((town(tmp_path / "data"),), tmp_path / "state"))
    process.stop()
    process.kernel.close()
    said = capsys.readouterr().err
    assert said == f"dither: other users could open {private}; from now on only this user can\n"
    assert mode(private) == 0o700 and mode(private / "old.sqlite") == 0o600
    assert mode(private / "logs" / "private.jsonl") == 0o600 == mode(private / "logs" / "public.jsonl")
    (private / "old.sqlite").chmod(0o644)
    assert secure_private_folder(private) == "", "nobody else could open the folder, so there is nothing to say"
    assert mode(private / "old.sqlite") == 0o600


@pytest.mark.parametrize("how", ["a link", "a file"])
def test_a_file_or_link_instead_of_a_folder_is_refused(tmp_path: Path, how: str) -> None:
    place = tmp_path / "private"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.write_text("")
    with pytest.raises(InvalidParameter, match="must be a folder"):
        secure_private_folder(place)


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "only root can give a folder away")
    place = tmp_path / "private"
    place.mkdir()
    os.chown(place, 12345, -1)
    with pytest.raises(InvalidParameter, match="must belong to the user"):
        secure_private_folder(place)


@pytest.mark.parametrize(("bits", "fine"), [(0o600, True), (0o400, True), (0o640, True), (0o644, False), (0o660, False),
                                            (0o604, False), (0o666, False)])  # fmt: skip
def test_a_key_that_others_can_open_is_refused(tmp_path: Path, bits: int, fine: bool) -> None:
    key = tmp_path / "site.key"
    key.write_text("")
    key.chmod(bits)
    if fine:
        assert check_secret_file(key) == key
    else:
        with pytest.raises(InvalidParameter, match="chmod 600"):
            check_secret_file(key)


def test_the_commands_check_their_keys(tmp_path: Path) -> None:
    """Keys are checked before a command listens on any address."""
    made = {name: tmp_path / name for name in ("c.pem", "open.key", "a.pem")}
    for path in made.values():
        path.write_text("")
        path.chmod(0o644)
    tls = ["--certificate", str(made["c.pem"]), "--key", str(made["open.key"]), "--authority", str(made["a.pem"])]
    for words in (
        ["kernel", str(tmp_path / "none.yml"), "--listen", "127.0.0.1:0", *tls],
        ["gateway", "--kernel", "tls://127.0.0.1:1", *tls],
        ["gateway", "--https-certificate", str(made["c.pem"]), "--https-key", str(made["open.key"])],
    ):
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 2 and "other users can open" in result.stderr, (words, result.output)
