"""Test the first mistakes of new users: missing extras and wrong files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dither import cli
from dither.cli import serve as serving
from dither.connection import connect
from dither.errors import InvalidParameter, Unsupported
from dither.post.estimate import answer as answers
from dither.post.planned_queries import options_for


def dither(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stderr


@pytest.mark.parametrize("words", [("serve", "dataset.yml"), ("gateway",)], ids=str)
def test_servers_without_their_libraries_are_not_started(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: a gateway without its libraries failed and was restarted forever."""
    monkeypatch.chdir(tmp_path)
    Path("dataset.yml").touch()
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    monkeypatch.setattr(serving, "Supervisor", pytest.fail)
    status, said = dither(*words)
    assert status == 2 and "pip install 'dither[server]'" in said
    assert not Path("dither-state").exists()


def test_servers_start_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: the servers refused to start without httpx, which only tests import."""
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name == "httpx" else object())
    serving._check_installed("gateway")


@pytest.mark.parametrize("command", [("verify",), ("backup", "copy.ledger")], ids=str)
def test_a_description_is_not_taken_for_a_ledger(command: tuple[str, ...]) -> None:
    status, said = dither("ledger", command[0], "examples/dataset.yml", *command[1:])
    assert status == 2 and "ends in .ledger" in said


@pytest.mark.parametrize("asked", [None, 3, b"SELECT COUNT(*) FROM people", ["SELECT COUNT(*) FROM people", None]])
def test_non_string_queries_are_refused(asked: Any) -> None:
    with pytest.raises(InvalidParameter, match="a query must be a string"):
        options_for(asked if isinstance(asked, list) else [asked], {"epsilon": 1})
    with pytest.raises(InvalidParameter, match="a batch a list"):
        options_for("SELECT COUNT(*) FROM people", {"epsilon": 1})


@pytest.mark.parametrize("target", [None, 3, b"dataset.yml"])
def test_invalid_targets_are_refused(target: Any) -> None:
    with pytest.raises(InvalidParameter, match="a description's path or a gateway's address"):
        connect(target)


def test_data_frames_without_their_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(Unsupported, match=f"pip install {package}"):
            answers.import_optional(package)
