"""Every accounting rule has a proof, and none computes with floating-point numbers."""

from __future__ import annotations

import ast
from pathlib import Path

from dither.privacy import accounting


def test_every_public_rule_has_a_proof() -> None:
    pages = Path(accounting.__file__).parents[2] / "proofs"
    covered = " ".join(page.read_text() for page in pages.glob("*.md")).replace(",", " ").split()
    rules = [
        f"{module}:{node.name}"
        for module, file in rule_files().items()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
    ]
    assert len(rules) > 25
    assert [rule for rule in rules if rule not in covered] == []


def rule_files() -> dict[str, Path]:
    """The modules that hold rules of composition, conversion and interpretation."""
    folder = Path(accounting.__file__).parent
    files = {f"dither.privacy.accounting.{file.stem}": file for file in sorted(folder.glob("*.py"))}
    return files | {"dither.post.interpretation": folder.parents[1] / "post" / "interpretation.py"}


def test_no_float_and_no_libm_in_the_claims() -> None:
    files = sorted(Path(accounting.__file__).parent.glob("*.py"))
    assert {"composition.py", "conversion.py", "filters.py", "rounding.py", "units.py"} <= {file.name for file in files}
    for file in files:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), node.lineno
            assert not (isinstance(node, ast.Name) and node.id == "float"), node.lineno
            if isinstance(node, ast.ImportFrom) and node.module == "math":
                assert [name.name for name in node.names] == ["comb"]
            assert not isinstance(node, ast.Import), node.lineno
