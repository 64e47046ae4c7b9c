"""Test that no command takes a secret as an argument, which every user of the machine could read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dither import cli

ADDRESS = "postgresql://ann:hidden@127.0.0.1:1/ledger"


def commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command, or the commands of a group, with their words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(f"{words} {name}", each)


def test_no_option_is_a_secret() -> None:
    found = [each for name, entry in cli.COMMANDS.items() for each in commands(name, entry.load(name))]
    assert len(found) > 30
    for words, command in found:
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert not flags & {"--token", "--password", "--secret", "--code"}, (words, flags)


@pytest.mark.parametrize("address", [ADDRESS, "postgres://db/ledger?user=ann&password=hidden"])
@pytest.mark.parametrize("words", [
    ("ledger", "verify", "ADDRESS"), ("ledger", "backup", "ADDRESS", "copy"), ("ledger", "restore", "copy", "ADDRESS"),
    ("ledger", "gap", "ADDRESS", "--head", "1:" + "a" * 64, "--everything"),
    ("budget", "town.yml", "--ledger", "ADDRESS"), ("budget", "town.yml", "--ledger=ADDRESS"),
    ("ask", "town.yml", "SELECT 1", "--ledger", "ADDRESS"), ("kernel", "town.yml", "--ledger", "ADDRESS"),
    ("serve", "town.yml", "--ledger", "ADDRESS"),
], ids=" ".join)  # fmt: skip
def test_a_password_in_an_address_is_refused(
    words: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = [word.replace("ADDRESS", address) for word in words]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["dither", *given])
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == 2 and "other users can read" in result.output + result.stderr, result.output
    assert "hidden" not in result.output + result.stderr
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_an_address_without_a_password_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver takes the password from PGPASSWORD or a file of the user."""
    words = ["ledger", "verify", "postgresql://ann@127.0.0.1:1/ledger"]
    monkeypatch.setattr("sys.argv", ["dither", *words])
    result = CliRunner().invoke(cli.app, words, env={"PGPASSWORD": "hidden"})
    assert result.exit_code != 0 and "could not be used" in result.stderr and "hidden" not in result.stderr


def test_a_token_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("dither_abc\n")
    words = ["budget", "http://127.0.0.1:1", "--token-file", str(file)]
    file.chmod(0o644)
    assert "other users can open" in CliRunner().invoke(cli.app, words).stderr
    file.chmod(0o600)
    for given, environment in ((words, {}), (words[:2], {"DITHER_TOKEN": "dither_abc"})):
        result = CliRunner().invoke(cli.app, given, env=environment)
        assert "cannot be reached" in result.stderr, result.output
    result = CliRunner().invoke(cli.app, words[:2], env={"DITHER_TOKEN": ""})
    assert "DITHER_TOKEN" in result.stderr
