"""Test the two probes: a gateway is live while it runs, and ready only if its kernel can charge a query."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from conftest import require
from dither.errors import LedgerError
from dither.privacy.ledger.ledger import Ledger
from dither.privacy.protocol import LedgerHead
from dither.serve.gateway import readiness
from dither.serve.gateway.app import application
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.kernel.admin import call_admin
from dither.serve.transport.socket_client import RemoteKernel
from serve.servers import Place, place, town, until


@pytest.fixture(autouse=True)
def ask_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)


def problem(there: Place) -> str:
    """Return why the service is not ready; it stays live."""
    assert there.http.get("/health/live").json() == {"status": "live"}
    reply = there.http.get("/health/ready")
    assert reply.status_code == 503 and reply.headers["retry-after"]
    return str(reply.json()["error"]["message"])


def test_it_is_ready_without_a_token_and_shows_nothing_else(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        rows = len(list(there.kernel.ledger.rows()))
        reply = there.http.get("/health/ready")
        assert reply.status_code == 200 and reply.json() == {"status": "ready"}
        assert there.kernel.ledger.head.hash not in str(reply.headers) + reply.text
        assert len(list(there.kernel.ledger.rows())) == rows, "a probe adds no row to the ledger"
        assert there.http.get("/health").status_code == 404


def test_a_rolled_back_ledger_is_not_ready(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        there.remote.heads.record(LedgerHead(10**6, "ab" * 32))
        assert "the ledger lacks a head that was seen before" in problem(there)


def test_a_kernel_that_is_gone_is_not_ready(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        there.server.close()
        there.remote.close()
        (tmp_path / "k.sock").unlink()
        assert "cannot be reached" in problem(there)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_ledger_file_that_was_taken_away_is_not_ready(tmp_path: Path, how: str) -> None:
    """The kernel would go on charging a file that nobody can find after its end."""
    with place(tmp_path) as there:
        shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
        (tmp_path / "ledger.sqlite").unlink()
        if how == "replaced":
            (tmp_path / "copy.sqlite").rename(tmp_path / "ledger.sqlite")
        assert "removed or replaced" in problem(there)


@pytest.mark.tier("test")
@pytest.mark.parametrize("state", ["there", "read-only"])
def test_a_ledger_in_postgresql_is_probed_too(postgres_database: str, state: str) -> None:
    import psycopg

    ledger = Ledger(postgres_database)
    ledger.check_writable()
    if state == "read-only":
        name = postgres_database.partition("?")[0].rpartition("/")[2]
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        ledger.close()
        ledger = Ledger(postgres_database)
        with pytest.raises(LedgerError):
            ledger.check_writable()
    ledger.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 8 MB."""
    folder.mkdir()
    require(os.geteuid() == 0, "mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False
    )
    require(mounted.returncode == 0, "this machine allows no mounts")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.tier("test")
@pytest.mark.xdist_group("servers")
def test_a_full_disk_and_a_stopped_kernel_are_not_ready(tmp_path: Path) -> None:
    """A kernel process whose ledger lies on a disk that fills up; then the process stands still, and ends."""
    with small_disk(tmp_path / "disk") as disk:
        command = [sys.executable, "-m", "dither", "kernel", str(town(tmp_path / "data")), "--state", str(disk / "s")]
        process = subprocess.Popen(command)
        remote = RemoteKernel(str(disk / "s" / "kernel.sock"))
        try:
            until(lambda: call_admin(disk / "s" / "private" / "admin.sock", "status"))
            with TestClient(application(remote, AppSettings(tick_ms=0))) as http:
                assert http.get("/health/ready").status_code == 200
                with (disk / "filling").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                    while True:
                        file.write(bytes(4096))
                reply = http.get("/health/ready")
                assert reply.status_code == 503 and "full" in reply.json()["error"]["message"]
                (disk / "filling").unlink()
                assert http.get("/health/ready").status_code == 200
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)  # returns once it stands still
                began = time.monotonic()
                reply = http.get("/health/ready")
                assert reply.status_code == 503 and "does not answer" in reply.json()["error"]["message"]
                assert time.monotonic() - began < readiness.PROBE_SECONDS + 2
                process.send_signal(signal.SIGCONT)
                until(lambda: http.get("/health/ready").status_code == 200, 20)
        finally:
            remote.close()
            process.kill()
            process.wait()
