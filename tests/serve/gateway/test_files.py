"""Test proofs and reports: every account can read them, and no other files beside them."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dither.errors import NotFound
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.gateway.files import PROOFS, DocumentFolder, list_documents, read_document
from serve.servers import place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of reports, and of files that are no reports."""
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


def test_only_documents_are_listed(folder: Path) -> None:
    assert [path.name for path in list_documents(folder)] == ["mechanism.json", "zoo.html"]
    assert list_documents(None) == [] == list_documents(folder / "nowhere")
    for name in ("link.txt", ".hidden.txt", "key.pem", "folder.md", "../outside.txt", "", "/etc/passwd"):
        with pytest.raises(NotFound):
            read_document(folder, name)


def test_auditors_read_proofs_and_reports(folder: Path, tmp_path: Path) -> None:
    with place(tmp_path, settings=AppSettings(tick_ms=0, reports=folder)) as there:
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


LATER = 10_000_000_000


def later() -> int:
    """Return a clock by which every file was written long ago."""
    return time.time_ns() + LATER


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are hashed."""
    found: list[str] = []
    digest = hashlib.file_digest

    def noted(file: Any, kind: str) -> Any:
        found.append(Path(file.name).name)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    return found


def test_an_unchanged_document_is_hashed_once(folder: Path, hashed: list[str]) -> None:
    """Regression test: every listing read every file, 57 proofs and reports of up to 16 MB."""
    shelf = DocumentFolder(folder, later)
    first = shelf.entries()
    assert shelf.entries() == shelf.entries() == first and hashed == ["mechanism.json", "zoo.html"]
    for each in first:
        text = (folder / each["name"]).read_bytes()
        assert (each["bytes"], each["sha256"]) == (len(text), hashlib.sha256(text).hexdigest())


def test_a_changed_document_is_hashed_again_even_with_equal_size_and_time(folder: Path, hashed: list[str]) -> None:
    shelf, path = DocumentFolder(folder, later), folder / "mechanism.json"
    before, state = shelf.entries(), path.stat()
    while path.stat().st_ctime_ns == state.st_ctime_ns:  # the clock ticks every few milliseconds
        path.write_text("[]")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = shelf.entries()
    assert after[0]["sha256"] == hashlib.sha256(b"[]").hexdigest() != before[0]["sha256"] and after[1] == before[1]
    assert hashed == ["mechanism.json", "zoo.html", "mechanism.json"]
    (folder / "other.json").write_text("()")
    os.replace(folder / "other.json", path)
    assert shelf.entries()[0]["sha256"] == hashlib.sha256(b"()").hexdigest()


def test_the_hash_of_a_document_written_just_now_is_not_reused(folder: Path, hashed: list[str]) -> None:
    """Within the resolution of its clock, a file can change again and look the same."""
    shelf = DocumentFolder(folder)
    assert shelf.entries() == shelf.entries() and len(hashed) == 4


def test_a_removed_document_is_forgotten(folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = DocumentFolder(folder, later)
    shelf.entries()
    (folder / "zoo.html").unlink()
    assert [each["name"] for each in shelf.entries()] == ["mechanism.json"] and len(shelf._hashes) == 1
    gone = folder / "gone.txt"
    monkeypatch.setattr("dither.serve.gateway.files.list_documents", lambda _: [gone, folder / "mechanism.json"])
    assert [each["name"] for each in shelf.entries()] == ["mechanism.json"]
