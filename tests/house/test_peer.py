"""The environments of peers: built once, kept apart, and honest about what cannot be had."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("peer", ROOT / "benchmarks" / "peer.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "peer", module)
    spec.loader.exec_module(module)
    monkeypatch.setenv("DITHER_PEERS", str(tmp_path))
    return module


def test_a_peer_that_pypi_lacks_stands_by_its_published_figure(peer: Any) -> None:
    with pytest.raises(peer.Unavailable, match="not on PyPI"):
        peer.environment("statdp")


@pytest.mark.tier("test")
def test_a_peer_that_does_not_import_says_so(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer.PEERS, "broken", peer.Peer(("pip",), "import nothing_of_the_kind", python=sys.executable))
    with pytest.raises(peer.Unavailable, match="nothing_of_the_kind"):
        peer.environment("broken")


@pytest.mark.tier("test")
def test_an_environment_is_built_once_and_runs_scripts(
    peer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(peer.PEERS, "plain", peer.Peer(("pip",), "import pip", python=sys.executable))
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nprint('noise')\nprint(json.dumps({'prefix': sys.prefix, 'got': sys.argv[1:]}))\n"
    )
    first = peer.run("plain", script, ["--rows", "3"])
    stamp = next(tmp_path.glob("plain-*/ready")).stat().st_mtime_ns
    second = peer.run("plain", script)
    assert first.result["got"] == ["--rows", "3"] and str(tmp_path) in first.result["prefix"]
    assert second.cpu_seconds > 0 and next(tmp_path.glob("plain-*/ready")).stat().st_mtime_ns == stamp
