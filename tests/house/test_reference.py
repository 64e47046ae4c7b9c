"""The public interface is what the reference pages say, and everything public says what it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from house import reference

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.name)
def test_the_reference_is_current(path: Path) -> None:
    assert path.read_text() == reference.page(reference.PAGES[path]()), reference.UPDATE


def test_every_command_and_option_is_explained_and_speaks_json() -> None:
    for words, command in reference.commands():
        assert command.help, f"dither {words} has no help"
        for parameter in command.params:
            assert parameter.param_type_name != "option" or parameter.help, (
                f"dither {words} {parameter.opts} has no help"
            )
        options = {name for parameter in command.params for name in parameter.opts}
        assert "--json" in options, f"dither {words} has no --json"


def undocumented(source: str) -> list[str]:
    """The public functions and classes of a module that have no docstring, and '' if it has none itself."""
    module = ast.parse(source)
    nodes = [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    missing = [node.name for node in nodes if not node.name.startswith("_") and not ast.get_docstring(node)]
    return missing if ast.get_docstring(module) or not module.body else ["", *missing]


def test_everything_public_has_a_docstring() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in sorted(SOURCE.rglob("*.py"))
        if (names := undocumented(path.read_text()))
    }
    assert found == {}


def test_a_missing_docstring_is_seen() -> None:
    assert undocumented("def f(): pass\nclass A: pass\ndef _g(): pass\n") == ["", "f", "A"]


def test_public_classes_explain_their_methods() -> None:
    silent = [line for line in reference.api_lines() if line.startswith("- ") and line.rstrip().endswith(":")]
    assert silent == []
