"""Nothing is called done that has no code or no test."""

from __future__ import annotations

import pytest

from house import conformance

LINE = "| 1 | three tables, joined per user | {} | `{}` | `{}` |"
CODE, TEST = "dither.schema.model:Dataset", "tests/house/test_conformance.py::test_this_page"


def test_this_page() -> None:
    assert conformance.problems(conformance.PAGE.read_text()) == []


def test_a_true_row_passes() -> None:
    assert conformance.problems(LINE.format("done", CODE, TEST))[:1] == ["2 is missing"]
    assert not any(problem.startswith("1:") for problem in conformance.problems(LINE.format("done", CODE, TEST)))


@pytest.mark.parametrize(
    ("state", "code", "test", "problem"),
    [
        ("done", "dither.schema.nothing", TEST, "there is no dither.schema.nothing"),
        ("done", "dither.schema.model:Nothing", TEST, "there is no dither.schema.model:Nothing"),
        ("done", CODE, "tests/house/test_nothing.py", "there is no test tests/house/test_nothing.py"),
        ("done", CODE, "tests/house/test_conformance.py::test_nothing", "there is no test"),
        ("done", CODE, "tests/conftest.py", "there is no test"),
        ("nearly", CODE, TEST, "the state 'nearly'"),
        ("not yet", "", "", "needs a reason"),
    ],
)
def test_a_false_row_is_seen(state: str, code: str, test: str, problem: str) -> None:
    assert any(problem in found for found in conformance.problems(LINE.format(state, code, test)))


def test_missing_and_repeated_numbers_are_seen() -> None:
    found = conformance.problems(f"{LINE.format('done', CODE, TEST)}\n" * 2)
    assert "1 is there twice" in found and "49 is missing" in found
