"""Proofs and reports: anyone with an account reads them, and nothing else that lies beside them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dither.errors import NotFound
from dither.serve.gateway import Settings
from dither.serve.papers import PROOFS, paper, papers
from serve.house import place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Reports, and what is none."""
    made = tmp_path / "reports"
    made.mkdir()
    (made / "zoo.html").write_text("<p>fine</p>")
    (made / "mechanism.json").write_text("{}")
    (made / ".hidden.txt").write_text("x")
    (made / "key.pem").write_text("x")
    (tmp_path / "outside.txt").write_text("secret")
    (made / "link.txt").symlink_to(tmp_path / "outside.txt")
    (made / "folder.md").mkdir()
    return made


def test_only_papers_are_found(folder: Path) -> None:
    assert [path.name for path in papers(folder)] == ["mechanism.json", "zoo.html"]
    assert papers(None) == [] == papers(folder / "nowhere")
    for name in ("link.txt", ".hidden.txt", "key.pem", "folder.md", "../outside.txt", "", "/etc/passwd"):
        with pytest.raises(NotFound):
            paper(folder, name)


def test_auditors_read_proofs_and_reports(folder: Path, tmp_path: Path) -> None:
    with place(tmp_path, settings=Settings(tick=0, reports=folder)) as there:
        proofs = there.get("/v1/proofs", "aud").json()["items"]
        assert {each["name"] for each in proofs} == {path.name for path in PROOFS.glob("*.md")} and len(proofs) > 50
        text = there.get("/v1/proofs/kernel.md", "aud")
        assert text.text == (PROOFS / "kernel.md").read_text() and text.headers["content-type"].startswith(
            "text/markdown"
        )
        named = {each["name"]: each["sha256"] for each in proofs}
        assert named["kernel.md"] == hashlib.sha256(text.content).hexdigest()
        assert [each["name"] for each in there.get("/v1/reports", "aud").json()["items"]] == [
            "mechanism.json",
            "zoo.html",
        ]
        page = there.get("/v1/reports/zoo.html", "ann")
        assert page.text == "<p>fine</p>" and page.headers["content-disposition"] == "attachment"
        assert there.get("/v1/reports/outside.txt", "aud").status_code == 404
        assert there.get("/v1/reports/..%2foutside.txt", "aud").status_code == 404
        for path in ("/v1/proofs", "/v1/proofs/kernel.md", "/v1/reports", "/v1/reports/zoo.html"):
            assert there.get(path, "guess").status_code == 401


def test_without_a_folder_there_are_no_reports(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        assert there.get("/v1/reports", "aud").json() == {"items": []}
        assert there.get("/v1/reports/x.md", "aud").status_code == 404
