"""A proof is carried through a renaming only if nothing but names, and the words of errors, changed."""

from __future__ import annotations

import ast

import pytest

from house.carry_proofs import Changed, check_renaming

OLD = '''
class Influence:
    """Doc."""
    def f(self, rows):
        if rows < 0:
            raise InvalidParameter("no such rows")
        return least(rows, self.bound)
'''


def renamed(*pairs: tuple[str, str], text: str = OLD) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def compare(new: str) -> dict[str, str]:
    return check_renaming([(ast.parse(OLD), ast.parse(new))])


def test_names_docstrings_and_messages_may_change() -> None:
    new = renamed(("Influence", "Stability"), ("rows", "max_rows"), ("Doc.", "Other."), ("no such", "too few"))
    assert compare(new) == {"Influence": "Stability", "rows": "max_rows"}
    assert compare(OLD) == {}


@pytest.mark.parametrize(
    "change",
    [
        ("self.bound)", "2 * self.bound)"),
        ("rows < 0", "rows <= 0"),
        ("< 0", "< 1"),
        ("raise InvalidParameter", "raise TypeError if rows else InvalidParameter"),
        ("least(rows, self.bound)", "least(self.bound, rows)"),
        ("return least(rows, self.bound)", "return rows"),
        ("def f(self, rows)", "def f(self, rows=1)"),
        ("        return", "        rows = rows\n        return"),
    ],
)
def test_anything_else_makes_a_page_stale(change: tuple[str, str]) -> None:
    with pytest.raises(Changed):
        compare(renamed(change))


def test_names_change_one_to_one() -> None:
    with pytest.raises(Changed, match="several names became one"):
        compare(renamed(("rows", "self")))
    with pytest.raises(Changed, match="one name became several"):
        compare(OLD.replace("rows):", "most):").replace("rows < 0", "other < 0"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(a, b):\n    return a - b\n", "def f(a, b):\n    return b - a\n"),
        ("def f(self):\n    return self.a - self.b\n", "def f(self):\n    return self.b - self.a\n"),
        ("def f(self):\n    return self.a - self.b\n", "def f(self):\n    return self.b - self.b\n"),
        ("def f(a):\n    return least(a, most(a))\n", "def f(a):\n    return most(a, least(a))\n"),
        ("def f(a):\n    return g(low=a, high=1)\n", "def f(a):\n    return g(high=a, low=1)\n"),
    ],
)
def test_names_that_change_places_are_seen(old: str, new: str) -> None:
    with pytest.raises(Changed):
        check_renaming([(ast.parse(old), ast.parse(new))])


def test_a_variable_may_get_other_names_in_other_functions() -> None:
    old = "class A:\n    def f(self, found): return found\n    def g(self, found): return found\n"
    new = "class A:\n    def f(self, row): return row\n    def g(self, key): return key\n"
    check_renaming([(ast.parse(old), ast.parse(new))])
