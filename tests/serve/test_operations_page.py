"""Test docs/operations.md: its commands, run in order against kernel and gateway, started as the units start them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from dither import cli
from dither.connection import connect
from serve.servers import free_port, town, until
from serve.test_deploy import DEPLOY, ROOT, UNITS, unit_command

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
RUN = ("dither", "curl", "cp", "mv", "rm")
NOT_RUN = ("python3.11", "/opt/dither/bin/pip", "groupadd", "useradd", "install", "ln", "chown", "podman", "systemctl")


def commands(page: str) -> Iterator[str]:
    """Yield the commands of a page in order."""
    for block in re.findall(r"^```sh\n(.*?)^```$", page, flags=re.M | re.S):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()


@dataclass
class Machine:
    """A machine with both services; the paths of the page lie below `folder`."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        program = self.folder / "bin" / "dither"
        for name in ("bin", "state", "seen", "backups", "run"):
            (self.folder / name).mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dither "$@"\n')
        program.chmod(0o755)
        town(self.folder / "data")

    def local(self, command: str) -> str:
        """Return a command of the page with this machine's paths."""
        for before, after in {
            "/var/lib/dither-gateway": "seen", "/var/lib/dither": "state", "/var/backups": "backups",
            "/run/dither": "run", "/etc/dither/dataset.yml": "data/town.yml", "/opt/dither/bin": "bin",
        }.items():  # fmt: skip
            command = command.replace(before, str(self.folder / after))
        return command.replace("8765", str(self.port)).replace("--group dither-gateway", f"--group {os.getegid()}")

    def systemctl(self, action: str, units: list[str]) -> None:
        """Stop or start the services."""
        for unit in units:
            if action == "stop":
                self.processes[unit].terminate()
                self.processes.pop(unit).wait(40)
            else:
                words = shlex.split(self.local(shlex.join(unit_command(unit))))
                self.processes[unit] = subprocess.Popen(words)
        if action != "stop":
            until(lambda: (self.folder / "state" / "private" / "admin.sock").exists())
            until(lambda: self.run(f"dither curator status --socket {self.folder}/state/private/admin.sock"))
            until(lambda: httpx.get(f"http://127.0.0.1:{self.port}/health/live").status_code == 200)

    def run(self, command: str, token: str = "") -> str:
        """Run a command as a shell would, those of Dither in this process; return what it prints."""
        local = self.local(command)
        if not local.startswith("dither "):
            done = subprocess.run(["sh", "-ec", local], capture_output=True, text=True, timeout=60, check=False,
                                  env={**os.environ, "DITHER_TOKEN": token})  # fmt: skip
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            return done.stdout
        expanded = re.sub(r"\$\(cat (\S+?)\)", lambda found: Path(found[1]).read_text(), local)
        result = CliRunner().invoke(cli.app, shlex.split(expanded)[1:], env=self.exported)
        assert result.exit_code == 0, (command, result.output)
        return result.output


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.processes.values():
        process.terminate()
        process.wait(40)


def test_the_commands_of_the_page_work_in_order(machine: Machine) -> None:
    ready = f"http://127.0.0.1:{machine.port}/health/ready"
    tokens: list[str] = []
    ran = 0
    for command in commands((ROOT / "docs" / "operations.md").read_text()):
        word, *rest = command.split()
        assert word in (*RUN, *NOT_RUN, "export"), command
        if word == "export":
            machine.exported |= dict([machine.local(rest[0]).split("=", 1)])
        if word == "systemctl" and rest[-1] in UNITS:
            action = rest[0]
            machine.systemctl("start" if action == "enable" else action, [name for name in rest if name in UNITS])
        if word not in RUN:
            continue
        if " gap " in command:
            assert httpx.get(ready).status_code == 503, "a restored ledger is closed until the gap is marked"
        printed = machine.run(command, tokens[-1] if tokens else "")
        ran += 1
        if command.startswith("dither curator account ") and len(tokens) < 2:
            tokens.append(printed.split("token: ")[1].strip())  # of an analyst, then of an auditor
        if command.startswith("cp "):  # something is spent after the backup
            connect(f"http://127.0.0.1:{machine.port}", token=tokens[0]).sql("SELECT COUNT(*) FROM people", epsilon=1)
    assert ran >= 20 and not httpx.get(ready).is_error


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"deploy/([\w.-]+)", page))
    assert named == {path.name for path in DEPLOY.iterdir()}
