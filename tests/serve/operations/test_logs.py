"""Test that the public and the private log stay separate."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dither.serve.operations.logs import Logs, open_logs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    opened = open_logs(tmp_path / "logs", max_bytes=2_000, backups=2)
    yield opened
    opened.close()


def test_private_events_reach_the_private_file_only(
    logs: Logs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("dither.private").warning("corrected", extra={"event": {"rows": 17}})
    logs.public.info("answered", extra={"event": {"class": "small"}})
    public = (tmp_path / "logs/public.jsonl").read_text()
    private = (tmp_path / "logs/private.jsonl").read_text()
    assert json.loads(private)["rows"] == 17 and "corrected" not in public
    assert json.loads(public)["class"] == "small"
    assert capfd.readouterr() == ("", "")


def test_exceptions_are_private(logs: Logs, tmp_path: Path) -> None:
    try:
        raise ValueError("Mrs. Stanton")
    except ValueError:
        logs.private.exception("failed")
        logs.public.error("failed", exc_info=True)
    assert "Stanton" in (tmp_path / "logs/private.jsonl").read_text()
    assert "Stanton" not in (tmp_path / "logs/public.jsonl").read_text()


def test_one_event_is_one_line(logs: Logs, tmp_path: Path) -> None:
    logs.public.info("a\nb", extra={"event": {"name": "x\u2028\ny"}})
    assert len((tmp_path / "logs/public.jsonl").read_text().splitlines()) == 1


def test_files_rotate_and_stay_the_owners(logs: Logs, tmp_path: Path) -> None:
    for number in range(200):
        logs.private.info("event %d", number)
    files = sorted((tmp_path / "logs").glob("private.jsonl*"))
    assert [file.name for file in files] == ["private.jsonl", "private.jsonl.1", "private.jsonl.2"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert all(file.stat().st_size <= 2_000 for file in files)
