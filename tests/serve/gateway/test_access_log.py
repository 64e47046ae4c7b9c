"""Test the gateway's log of requests: enough to see who is served how, and nothing of what was asked."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from dither.errors import EngineFailure
from dither.post.session import Session
from dither.serve.operations.logs import open_access_log
from serve.servers import place

COUNT = "SELECT COUNT(*) AS hush FROM people WHERE salary > 91000"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    logger = open_access_log(tmp_path / "access.jsonl")
    yield tmp_path / "access.jsonl"
    handler = logger.handlers[0]
    logger.removeHandler(handler)
    handler.close()
    logger.addHandler(logging.NullHandler())


def test_the_access_log_has_neither_queries_nor_tokens(tmp_path: Path, path: Path) -> None:
    with place(tmp_path) as there:
        there.ask(COUNT, request_id="hush-id")
        there.ask("SELECT hush FROM hush")
        there.get("/v1/budget?dataset=town&token=hush")
        there.get("/v1/jobs/hush")
        there.get("/v1/datasets", "hush")
        there.get("/hush/../hush?hush")
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert "hush" not in text and "91000" not in text and there.tokens["ann"] not in text and "dataset=" not in text
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/answer", 200), ("POST", "/v1/answer", 404), ("GET", "/v1/budget", 200),
        ("GET", "/v1/jobs/{job}", 404), ("GET", "/v1/datasets", 401), ("GET", "none", 404),
    ]  # fmt: skip
    assert set(lines[0]) == {"at", "level", "message", "client", "method", "route", "status", "ms"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failure_after_the_charge_looks_like_an_answer(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a failure may depend on a record, so that no log for operators may show it."""
    with place(tmp_path) as there:
        monkeypatch.setattr(Session, "sql", Mock(side_effect=EngineFailure()))
        assert there.ask(COUNT).status_code == 500
    assert json.loads(path.read_text())["status"] == 200
