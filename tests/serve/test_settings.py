"""Test server settings: file, environment and flags, in rising precedence; secrets never as arguments."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from dither import cli
from dither.cli import serve as cli_serve
from dither.cli import serve as serve_cli
from dither.serve.gateway import process as gateway_process
from dither.serve.gateway.rate_limits import Rate
from dither.serve.kernel import process as kernel_process
from dither.serve.operations.supervisor import SWITCH_INTERVAL, ManagedProcess, Supervisor, tune_interpreter

Run = Callable[..., Any]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the settings that a command would start with, without starting it."""
    made: list[Any] = []
    monkeypatch.setattr(kernel_process, "run_kernel", made.append)
    monkeypatch.setattr(gateway_process, "run_gateway", lambda settings, announce: made.append(settings))
    monkeypatch.setattr(Supervisor, "run", lambda self: made.append(list(self._children)))
    monkeypatch.setattr(cli_serve, "load", lambda path: None)  # there is no town.yml

    def run(*words: str, **environment: str) -> Any:
        made.clear()
        monkeypatch.setattr(sys, "argv", ["dither", *words])
        result = CliRunner().invoke(cli.app, list(words), env=environment)
        assert result.exit_code == 0, result.output
        return made[0]

    return run


def written(folder: Path, **settings: Any) -> str:
    path = folder / "server.yml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def test_flags_win_over_the_environment_and_that_over_the_file(started: Run, tmp_path: Path) -> None:
    file = written(tmp_path, slots=3, floor=700, misses=9)
    words = ("kernel", "town.yml", "--config", file)
    assert started(*words).schedule.floor == 700
    settings = started(*words, DITHER_FLOOR="800", DITHER_SLOTS="5")
    assert (settings.schedule.floor, settings.slots, settings.schedule.max_misses) == (800, 5, 9)
    settings = started(*words, "--floor", "900", DITHER_FLOOR="800")
    assert (settings.schedule.floor, settings.slots) == (900, 3)
    assert started("kernel", "town.yml").schedule.floor == 500


def test_the_gateway_has_its_own_file_and_environment(started: Run, tmp_path: Path) -> None:
    file = written(tmp_path, kernel="/run/k.sock", port=1234, rate=7)
    settings = started("gateway", DITHER_CONFIG=file, DITHER_BURST="11")
    assert (settings.kernel, settings.port) == ("/run/k.sock", 1234)
    assert settings.limits.account_rate == Rate(7, 11)


def test_serve_passes_its_settings_on(started: Run, tmp_path: Path) -> None:
    """Each process gets its own settings, and the gateway none of the kernel's."""
    file = written(tmp_path, floor=650, port=4321, state=str(tmp_path / "state"))
    kernel, gateway = started("serve", "town.yml", "--config", file, "--slots", "4", DITHER_RATE="9")
    assert isinstance(kernel, ManagedProcess) and kernel.command[kernel.command.index("--floor") + 1] == "650"
    assert kernel.command[kernel.command.index("--slots") + 1] == "4"
    assert gateway.command[gateway.command.index("--port") + 1] == "4321"
    assert float(gateway.command[gateway.command.index("--rate") + 1]) == 9
    assert not any("town.yml" in word or "floor" in word for word in gateway.command)
    kernel, gateway = started("serve", "town.yml", DITHER_CONFIG=file, DITHER_SOCKET="/elsewhere")
    assert kernel.command[kernel.command.index("--floor") + 1] == "650"
    assert not {"DITHER_CONFIG", "DITHER_SOCKET"} & {*kernel.environment, *gateway.environment}, "those are of serve"


@pytest.mark.parametrize("text", ["flor: 3", "- floor", "floor: [", "42", "as_json: true"])
def test_a_file_with_other_settings_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.yml"
    path.write_text(text)
    result = CliRunner().invoke(cli.app, ["kernel", "town.yml", "--config", str(path)])
    assert result.exit_code == 2 and "server.yml" in result.stderr, result.output
    assert CliRunner().invoke(cli.app, ["kernel", "town.yml", "--config", "/no/such/file"]).exit_code == 2


def test_a_database_address_comes_from_the_environment_or_a_file_only(
    started: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a machine can read a process's arguments."""
    address = "postgresql://ann:secret@db/ledger"
    monkeypatch.chdir(tmp_path)
    assert started("kernel", "town.yml", DITHER_LEDGER=address).ledger == address
    assert started("kernel", "town.yml", "--config", written(tmp_path, ledger=address)).ledger == address
    refused = [["kernel", "town.yml", "--ledger", address], ["serve", "town.yml", f"--ledger={address}"]]
    refused += [["serve", "town.yml", "--ledger", "postgresql://db/ledger"]]
    for words in refused:
        monkeypatch.setattr(sys, "argv", ["dither", *words])
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 2 and "environment" in result.stderr and "secret" not in result.stderr
        assert not Path("dither-state").exists(), "a refused command leaves nothing behind"
    kernel, gateway = started("serve", "town.yml", "--state", str(tmp_path / "s"), DITHER_LEDGER=address)
    assert address not in str(kernel.command) and address not in str(gateway.command)
    assert kernel.environment["DITHER_LEDGER"] == address and address not in str(gateway.environment)


def test_every_setting_has_an_environment_variable() -> None:
    """Every option of every server except --json can come from the environment, and none is a secret."""
    group: Any = typer.main.get_command(serve_cli.app)
    for name in ("kernel", "gateway", "serve"):
        options = [each for each in group.commands[name].params if each.param_type_name == "option"]
        assert {each.name for each in options if not each.envvar} == {"as_json"}, name
        assert not any(word in str(each.name) for each in options for word in ("token", "password", "secret"))


def test_a_started_server_switches_threads_quickly() -> None:
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    try:
        tune_interpreter()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        assert gc.get_freeze_count() > frozen
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
