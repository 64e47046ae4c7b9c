"""What somebody does who has installed a part of Dither, or names the wrong file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dither import cli
from dither.serve import cli as serving


def dither(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stderr


@pytest.mark.parametrize("words", [("serve", "dataset.yml"), ("gateway",)], ids=str)
def test_servers_without_their_libraries_are_not_started(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named bug: the gateway failed and was started again, for ever."""
    monkeypatch.chdir(tmp_path)
    Path("dataset.yml").touch()
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    monkeypatch.setattr(serving, "Supervisor", pytest.fail)
    status, said = dither(*words)
    assert status == 2 and "pip install 'dither[server]'" in said
    assert not Path("dither-state").exists()


@pytest.mark.parametrize("command", [("verify",), ("migrate",), ("backup", "copy.ledger")], ids=str)
def test_a_description_is_not_taken_for_a_ledger(command: tuple[str, ...]) -> None:
    status, said = dither("ledger", command[0], "examples/dataset.yml", *command[1:])
    assert status == 2 and "ends in .ledger" in said
