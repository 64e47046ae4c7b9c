"""Test the command line: drafts without values from the data, one-line errors, and exit codes."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dither import cli
from dither.cli import describe
from dither.cli.options import compose_command
from dither.errors import BudgetExceeded, EngineFailure, InvalidQuery
from post.small_world import build

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/url_shares/dataset.yml"


def dither(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_check_prints_what_becomes_public() -> None:
    status, out, _ = dither("check", str(EXAMPLE))
    assert status == 0
    for words in ("integer from 13 to 100", "one of view, click, share", "budget of user: pure, epsilon 4"):
        assert words in out


def test_check_as_json() -> None:
    status, out, _ = dither("check", str(EXAMPLE), "--json")
    public = json.loads(out)
    assert status == 0 and public["tables"]["users"]["columns"]["age"] == "integer from 13 to 100"
    assert public["warnings"]


def test_init_leaves_every_bound_open_and_never_shows_a_value(tmp_path: Path) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table({"id": [987_654_321], "salary": [123_456.5], "illness": ["plague"]}), data)
    status, out, _ = dither("init", str(data))
    assert status == 0 and "no bound and no list of values was read" in out
    assert not any(value in out for value in ("987654321", "123456", "plague"))
    assert "salary: {type: decimal, min: , max: , step: }" in out


def test_init_of_a_csv_shows_no_field_of_a_record(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_text("name,salary\nStanton,91000\n")
    status, out, _ = dither("init", str(data))
    assert (
        status == 0 and "salary: {type: integer, min: , max: }" in out and "Stanton" not in out and "91000" not in out
    )


def test_a_draft_does_not_pass_until_the_curator_decides(tmp_path: Path) -> None:
    data, out = tmp_path / "people.parquet", tmp_path / "people.yml"
    pq.write_table(pa.table({"id": [1], "age": [30]}), data)
    assert dither("init", str(data), "--out", str(out))[0] == 0
    status, _, error = dither("check", str(out))
    assert status == 2 and "needs 'min:'" in error
    assert dither("init", str(data), "--out", str(out))[0] == 2  # never overwrites


def test_init_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("not parquet")
    status, _, error = dither("init", str(tmp_path / "x.parquet"))
    assert status == 2 and error.count("\n") == 1 and error.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "status"), [(InvalidQuery("no"), 2), (BudgetExceeded("no"), 3), (EngineFailure(), 1)]
)
def test_exit_codes(error: Exception, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(describe, "load", fails)
    assert dither("check", "x.yml")[0] == status


def test_an_internal_error_shows_its_kind_and_nothing_of_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise ValueError("could not convert 'Mrs. Stanton'")

    monkeypatch.setattr(describe, "load", fails)
    monkeypatch.delenv("DITHER_DEBUG", raising=False)
    status, out, error = dither("check", "x.yml")
    assert (
        status == 1
        and error == "error: internal error (ValueError); set DITHER_DEBUG=1 for the traceback\n"
        and out == ""
    )


def test_a_file_that_cannot_be_written_or_found_is_named(tmp_path: Path) -> None:
    """Regression: an internal error, and for `init` a CSV file 'that cannot be read in UTF-8'."""
    nowhere = tmp_path / "nowhere"
    status, _, error = dither("meaning", "--epsilon", "1", "--svg", str(nowhere / "x.svg"))
    assert (status, error) == (1, f"error: {nowhere}/x.svg: No such file or directory\n")
    for name in ("x.csv", "x.parquet"):
        status, _, error = dither("init", str(nowhere / name))
        assert status == 2 and f"there is no file {nowhere / name}" in error


@pytest.mark.parametrize(("option", "given"), [("--epsilon", "1e9"), ("--rho", "1001")])
def test_a_loss_beyond_every_budget_is_refused(option: str, given: str, tmp_path: Path) -> None:
    """Regression: it was said to cost 1000, whatever was asked for."""
    status, _, said = dither("quote", str(build(tmp_path)), "SELECT COUNT(*) FROM users", option, given)
    assert status == 2 and f"error: {option} must be at most 1000, got '{given}'" in said


def test_a_service_of_no_description_does_not_start(tmp_path: Path) -> None:
    """Regression: `dither serve` started its kernel again and again."""
    state = tmp_path / "state"
    status, _, error = dither("serve", str(tmp_path / "nope.yml"), "--state", str(state), "--port", "0")
    assert status == 2 and "nope.yml" in error and not state.exists()


def test_a_profile_of_no_epsilon_is_refused_before_it_asks(tmp_path: Path) -> None:
    description = build(tmp_path)
    for epsilon in ("0", "-1", "nan"):
        status, out, error = dither("profile", str(description), "--epsilon", epsilon)
        assert status == 2 and "epsilon must be" in error and "measure it now" not in out


def test_a_missing_extra_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.setattr(cli, "import_module", missing)
    monkeypatch.setattr(cli, "_exists", lambda name: True)
    status, _, error = dither("serve")
    assert status == 2 and "pip install 'dither[server]'" in error


def test_help_and_check_import_no_engine() -> None:
    code = (
        "import sys, runpy; sys.argv = ['dither', 'check', sys.argv[1]]\n"
        "from dither.cli import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "loaded = [name for name in ('duckdb', 'scipy', 'pyspark', 'starlette', 'pyarrow') if name in sys.modules]\n"
        "print(loaded, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, EXAMPLE], capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("dither che", "check"), ("dither curator acc", "account accounts"), ("dither ask --eps", "--epsilon"),
     ("dither ledger ver", "verify")],
)  # fmt: skip
def test_completion_completes(typed: str, wanted: str) -> None:
    """Completion also works inside commands whose module is imported on use."""
    number = str(len(typed.split()) - 1)
    environment = {**os.environ, "_DITHER_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": number}
    result = subprocess.run(
        [sys.executable, "-m", "dither"], capture_output=True, text=True, check=False, env=environment
    )
    assert result.stdout.split() == wanted.split()


def test_commands_are_composed_with_builders_of_their_parameters() -> None:
    """Arguments come first, then the command's own options, then the session's; each reaches its builder."""
    seen: list[object] = []

    def opened(place: str, who: str = "me") -> tuple[str, str]:
        return place, who

    def command(session: tuple[str, str], text: str, loud: bool = False) -> None:
        seen.append((session, text, loud))

    made = compose_command(command, session=opened)
    assert list(inspect.signature(made).parameters) == ["place", "text", "loud", "who"]
    made(place="here", text="x", loud=True, who="you")
    assert seen == [(("here", "you"), "x", True)]
