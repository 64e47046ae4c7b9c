"""The words of the house: one word for one thing, and names and sentences that need no second reading."""

from __future__ import annotations

import re

import pytest

from house import words

GLOSSARY = words.ROOT / "docs" / "glossary.md"


def test_the_source_speaks_the_words_of_the_glossary() -> None:
    assert words.problems() == []


def test_no_two_public_classes_have_one_name() -> None:
    assert {name: homes for name, homes in words.public_classes().items() if len(homes) > 1} == {}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def influence_of(): ...", "'influence'"),
        ("class NoiseLaw: ...", "'law'"),
        ("def f(quicken_by): ...", "'quicken'"),
        ("class A:\n    rungs: int", "'rungs'"),
        ("books = 1", "'books'"),
        ("class House: ...", "old vocabulary"),
        ("def told(): ...", "'told'"),
        ("def found() -> int: ...", "bare participle"),
        ("class A:\n    def _clipped(self) -> int: ...", "bare participle"),
        ('def f():\n    """What is returned."""', "question word"),
        ('class A:\n    """Whether it holds."""', "question word"),
        ('"""How a plan is made."""', "question word"),
        ('def f():\n    """Return the law of the noise."""', "'law'"),
    ],
)
def test_each_breach_is_seen(source: str, problem: str) -> None:
    assert any(problem in text for _, text in words.problems_of(source))


@pytest.mark.parametrize(
    "source",
    [
        "def is_refuted() -> bool: ...",
        "class A:\n    @property\n    def refuted(self) -> bool: ...",
        "def locked() -> bool: ...",
        "def seed() -> int: ...",
        'def f():\n    """Return `law` unchanged."""',
        'def f():\n    """Whatever is given is returned."""',
    ],
)
def test_plain_words_pass(source: str) -> None:
    assert list(words.problems_of(source)) == []


@pytest.mark.parametrize("word", ["stability", "contribution", "max_error", "distribution", "zCDP", "ledger", "Quote"])
def test_the_glossary_has_the_words(word: str) -> None:
    assert re.search(rf"\b{word}\b", GLOSSARY.read_text())
