"""Test that one state folder has one server, that a killed one blocks nobody, and what a server prints at its start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dither.serve.operations.state_lock import lock_folder
from serve.servers import Town, town, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]


def dither(*words: object) -> list[str]:
    """Return a command of Dither."""
    return [sys.executable, "-m", "dither", *map(str, words)]


def attempt(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command that should be refused soon."""
    return subprocess.run(dither(*words), capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def printing(described: Path, state: Path, *words: str) -> Iterator[tuple[Town, Path]]:
    """Run `dither serve` with everything that it prints in a file."""
    printed = state.with_suffix(".txt")
    command = dither("serve", described, "--state", state, "--port", 0, *words)
    (state / "gateway" / "address").unlink(missing_ok=True)
    with printed.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            made = Town(state, process, "")
            made.url = until(lambda: (state / "gateway" / "address").read_text())
            until(lambda: made.desk("status")["datasets"] and httpx.get(f"{made.url}/openapi.json"))
            yield made, printed
        finally:
            process.terminate()
            process.wait(40)


def test_a_state_folder_has_one_server_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    """A second server would take over the socket of the first, and two gateways overwrite each other's ledger head."""
    described, state = town(tmp_path / "data"), tmp_path / "s"
    with printing(described, state) as (made, printed):
        token, children = made.account("ann"), made.children()
        for words in (
            ("serve", described, "--state", state, "--port", 0),
            ("kernel", described, "--state", state),
            ("gateway", "--kernel", state / "kernel.sock", "--state", state / "gateway", "--port", 0),
        ):
            refused = attempt(*words)
            assert refused.returncode == 2 and "already uses" in refused.stderr, (words, refused.stderr)
            assert "Traceback" not in refused.stderr and str(state) in refused.stderr
        assert made.children() == children
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{made.url}/v1/datasets", headers=headers).status_code == 200
        text = printed.read_text()
        assert f"gateway: {made.url}\n" in text and not re.search(r":0\b", text) and len(text.splitlines()) == 3, text
        made.process.send_signal(signal.SIGKILL)
        made.process.wait()
        with printing(described, state, "--json") as (again, printed):
            assert again.desk("accounts")[0]["name"] == "ann"
            lines = printed.read_text().splitlines()
            assert f'{{"gateway": "{again.url}"}}' in lines and len(lines) == 3, lines
            for number in (again.process.pid, *again.children().values()):
                os.kill(number, signal.SIGKILL)
    for folder in (state, state / "private", state / "gateway"):
        until(
            lambda folder=folder: lock_folder(folder, "server").close() is None, 20
        )  # once the killed ones have ended
