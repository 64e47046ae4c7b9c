"""Test the admin socket: accounts, datasets, the private log, ledger rows, and no access through the gateway."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dither import cli
from dither.errors import DitherError, InvalidParameter, NotFound
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger.maintenance import verify
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server, call_admin, load_registered_paths
from dither.serve.kernel.server import unix_listener
from serve.servers import town


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[LocalKernel, Path]]:
    kernel = LocalKernel(load(town(tmp_path / "a")), tmp_path / "l.sqlite", trusted=False, schedule=Schedule(floor=1))
    path = tmp_path / "admin.sock"
    server = admin_server(AdminService(kernel, tmp_path / "datasets.json"), unix_listener(path, mode=0o600))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield kernel, path
    server.close()
    kernel.close()


def rows(kernel: LocalKernel, kind: str) -> list[Any]:
    return [json.loads(row.body) for row in kernel.ledger.rows() if row.kind == kind]


def test_only_its_owner_can_open_the_socket(desk: tuple[LocalKernel, Path]) -> None:
    assert stat.S_IMODE(desk[1].stat().st_mode) == 0o600


def test_only_its_owner_can_read_the_ledger(desk: tuple[LocalKernel, Path], tmp_path: Path) -> None:
    files = [tmp_path / f"l.sqlite{more}" for more in ("", "-wal", "-shm")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3


def test_an_account_is_made_shown_once_and_revoked(desk: tuple[LocalKernel, Path], tmp_path: Path) -> None:
    kernel, path = desk
    token = call_admin(path, "account", name="ann", role="analyst", days="3")["token"]
    assert kernel.ledger.authenticate(token).name == "ann"
    assert token not in (tmp_path / "l.sqlite").read_bytes().decode(errors="replace")
    listed = call_admin(path, "accounts")
    assert listed[0]["active"] and listed[0]["by"].startswith("uid ") and "token" not in listed[0]
    call_admin(path, "revoke", name="ann")
    with pytest.raises(DitherError, match="not valid"):
        kernel.ledger.authenticate(token)
    assert [row["token"] is None for row in rows(kernel, "account")] == [False, True]


def test_an_account_for_single_sign_on_gets_no_token(desk: tuple[LocalKernel, Path]) -> None:
    kernel, path = desk
    done = CliRunner().invoke(cli.app, ["curator", "account", "ann", "--sso", "--socket", str(path), "--json"])
    assert json.loads(done.stdout) == {"name": "ann", "token": None}
    assert kernel.ledger.account("ann").role == "analyst" and call_admin(path, "accounts")[0]["expires"] is None


@pytest.mark.parametrize("given", [
    {"name": "kernel", "role": "analyst"}, {"name": "a b", "role": "analyst"}, {"name": "x", "role": "king"},
    {"name": "x", "role": "analyst", "days": "0"}, {"name": "x", "role": "analyst", "days": "-3"}, {"role": "analyst"},
])  # fmt: skip
def test_a_wrong_account_is_refused(desk: tuple[LocalKernel, Path], given: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter):
        call_admin(desk[1], "account", **given)


def test_a_dataset_is_registered_and_remembered(desk: tuple[LocalKernel, Path], tmp_path: Path) -> None:
    kernel, path = desk
    second = town(tmp_path / "b")
    second.write_text(
        second.read_text().replace("name: town", "name: village").replace("population: town", "population: v")
    )
    assert call_admin(path, "register", path=str(second)) == {"registered": "village"}
    assert load_registered_paths(tmp_path / "datasets.json") == [str(second)] and "village" in kernel.registered
    assert [each["name"] for each in call_admin(path, "status")["datasets"]] == ["town", "village"]


def test_actions_are_ledger_rows_and_the_ledger_is_valid(desk: tuple[LocalKernel, Path], tmp_path: Path) -> None:
    kernel, path = desk
    kernel.ledger.record_miss("town", "1x1+1")
    assert len(call_admin(path, "misses", dataset="town")["misses"]) == 1
    assert kernel.ledger.latency_step("town", "1x1+1") == 1
    call_admin(path, "unlock", dataset="town")
    assert kernel.ledger.latency_step("town", "1x1+1") == 1
    assert call_admin(path, "reset_latency", dataset="town") == {"reset_latency": "town"}
    assert kernel.ledger.latency_step("town", "1x1+1") == 0
    call_admin(path, "log")
    call_admin(path, "corrections", dataset="town")
    acts = ["unlock", "reset latency", "read the private log", "read corrections"]
    assert [row["act"] for row in rows(kernel, "act")] == acts
    assert verify(tmp_path / "l.sqlite").sound
    assert call_admin(path, "budget", dataset="town")[0]["level"] == "dataset"


def test_a_gap_is_marked(desk: tuple[LocalKernel, Path]) -> None:
    kernel, path = desk
    before = kernel.balances("town")[0].spent[0]
    call_admin(path, "gap", head="99:" + "a" * 64, epsilon="2")
    assert kernel.balances("town")[0].spent[0] == before + 2 * 10**15
    with pytest.raises(InvalidParameter):
        call_admin(path, "gap", head="99:" + "a" * 64)


def test_unknown_names_and_calls_are_refused(desk: tuple[LocalKernel, Path], tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        call_admin(desk[1], "unlock", dataset="nowhere")
    with pytest.raises(DitherError, match="unknown call"):
        call_admin(desk[1], "close")
    with pytest.raises(NotFound, match="no kernel answers"):
        call_admin(tmp_path / "none.sock", "status")


def test_the_command_line_uses_the_admin_socket(desk: tuple[LocalKernel, Path]) -> None:
    runner, at = CliRunner(), ["--socket", str(desk[1])]
    made = runner.invoke(cli.app, ["curator", "account", "bob", "--role", "auditor", *at, "--json"])
    assert made.exit_code == 0 and json.loads(made.stdout)["token"].startswith("dither_")
    assert "bob" in runner.invoke(cli.app, ["curator", "accounts", *at]).stdout
    assert runner.invoke(cli.app, ["curator", "unlock", "nowhere", *at]).exit_code == 2
