"""Test `--gateway-user`: the gateway runs as a user who can open neither data nor ledger."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dither
from conftest import require
from dither.connection import connect
from dither.errors import InvalidParameter
from dither.serve.operations.supervisor import ManagedProcess, primary_group
from serve.servers import Town, serving, town

pytestmark = pytest.mark.xdist_group("servers")
USER = "nobody"
COUNT = "SELECT COUNT(*) FROM people"
OPENS = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            with socket.socket(socket.AF_UNIX) as door:
                door.connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path, "rb").read(1)
        print("OPENED", path)
    except OSError:
        print("closed", path)
"""


def interpreter() -> str:
    """Return a Python that the other user may run: this one, or the machine's of the same version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        try:
            subprocess.run([python, "-c", "import dither.serve.gateway.process"], user=USER, group=primary_group(USER),
                           extra_groups=(), env=seen(), capture_output=True, check=True)  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return ""


def seen() -> dict[str, str]:
    """Return the environment in which another Python of the same version finds the installed packages.

    Only those: a test that imports files adds their folders to `sys.path`, where a file called `random.py` hides the
    standard module.
    """
    paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(dither.__file__).parents[1]))
    return {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.environ["PATH"], "DITHER_DEBUG": "1"}


@pytest.fixture(scope="module")
def there() -> Iterator[Town]:
    require(os.geteuid() == 0, "another user needs root")
    python = interpreter()
    require(python, f"user {USER} can run no Python of this version here")
    folder = Path(tempfile.mkdtemp(prefix="dither-users-"))  # pytest's own folders are closed to others
    folder.chmod(0o755)
    described = town(folder / "data", 100)
    (folder / "data").chmod(0o700)
    words = ("--gateway-user", USER, "--misses", "1000", "--floor", "300")
    try:
        with serving(described, folder / "s", *words, python=python, groups=(0, 4), **seen()) as made:
            made.account("ann")
            yield made
    finally:
        shutil.rmtree(folder)


def status(process: int, name: str) -> list[str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


@pytest.mark.tier("test")
def test_the_gateway_runs_as_that_user_and_answers(there: Town) -> None:
    """Check real, effective, saved and file-system user and group; no other groups of root; no capabilities."""
    import pwd

    entry, children = pwd.getpwnam(USER), there.children()
    assert status(children["gateway"], "Uid") == [str(entry.pw_uid)] * 4
    assert status(children["gateway"], "Gid") == [str(entry.pw_gid)] * 4
    assert status(children["gateway"], "Groups") == []
    assert int(status(children["gateway"], "CapEff")[0], 16) == 0
    assert status(children["kernel"], "Uid") == ["0"] * 4 and status(children["kernel"], "Groups") == ["0", "4"]
    assert len(connect(there.url, token=there.tokens["ann"]).sql(COUNT, epsilon=1)) == 1


@pytest.mark.tier("test")
def test_that_user_can_open_neither_data_nor_ledger(there: Town) -> None:
    """An attacker in the gateway knows every path, but can open only the kernel's socket."""
    kernel, folder = there.children()["kernel"], there.state.parent
    closed = [folder / "data", folder / "data" / "people.parquet", folder / "data" / "town.yml",
              there.state / "private", there.state / "private" / "ledger.sqlite",
              there.state / "private" / "admin.sock", there.state / "private" / "logs" / "private.jsonl",
              Path(f"/proc/{kernel}/environ"), Path(f"/proc/{kernel}/mem"), Path(f"/proc/{kernel}/fd")]  # fmt: skip
    assert all(path.exists() for path in closed)
    words = [sys.executable, "-c", OPENS, *map(str, closed), str(there.state / "kernel.sock")]
    ours = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "closed" not in ours.replace(f"closed {closed[-2]}", "")  # as the kernel's user it all opens
    words[0] = interpreter()
    theirs = subprocess.run(words, user=USER, group=primary_group(USER), extra_groups=(), env=seen(),
                            capture_output=True, text=True, check=True).stdout.splitlines()  # fmt: skip
    assert theirs == [f"closed {path}" for path in closed] + [f"OPENED {there.state / 'kernel.sock'}"]


def test_an_unknown_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="this machine has no user nobody-here"):
        ManagedProcess("gateway", [sys.executable], {}, tmp_path, user="nobody-here").start()
