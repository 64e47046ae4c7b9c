"""Every claim of privacy has a page, and every page was read against the code as it stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from house import proofs

CLASS = 'class A:\n    """Doc."""\n    proof = "a.md"\n    def f(self):\n        """Doc."""\n        return 1\n'


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package of its own with one proved class."""
    package = tmp_path / "src" / "dither"
    (package / "proofs").mkdir(parents=True)
    (package / "m.py").write_text(CLASS)
    (package / "proofs" / "a.md").write_text(
        "covers: dither.m:A\ndigest: pending\n\n## Claim\n\n## Assumes\n\n## Proof\n"
    )
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    monkeypatch.setattr(proofs, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(proofs, "PAGES", package / "proofs")
    list(proofs.update())
    return package


def test_the_pages_of_this_project() -> None:
    assert proofs.problems() == []


def test_a_current_page_has_no_problems(house: Path) -> None:
    assert proofs.problems() == []


def test_docstrings_and_layout_do_not_count(house: Path) -> None:
    (house / "m.py").write_text(CLASS.replace('"""Doc."""', '"""Other words."""').replace("return 1", "return (1)"))
    assert proofs.problems() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("m.py", "return 1", "return 2", "the code has changed"),
        ("m.py", '"a.md"', '"b.md"', "does not exist"),
        ("m.py", "class A:", "class B:", "covers something that does not exist"),
        ("m.py", "class A:", "class B(Mechanism):\n    pass\n\n\nclass A:", "B names no proof"),
        ("proofs/a.md", "covers: dither.m:A\n", "", "no 'covers"),
        ("proofs/a.md", "## Assumes\n", "", "wants the sections"),
    ],
)
def test_each_fault_is_seen(house: Path, file: str, old: str, new: str, problem: str) -> None:
    path = house / file
    path.write_text(path.read_text().replace(old, new))
    assert any(problem in found for found in proofs.problems())


def test_functions_name_their_proof_in_the_docstring(house: Path) -> None:
    (house / "rules.py").write_text('def add():\n    """Add losses. Proof: adding.md."""\n')
    assert any("rules:add names the proof adding.md" in found for found in proofs.problems())


def test_the_digest_is_the_same_in_every_python() -> None:
    tree = ast.parse("class A:\n    x: int = 1\n").body[0]
    assert "type_params" not in proofs.canonical(tree)
