"""Carry proofs through a renaming: a page is carried if its code differs from an earlier commit's in names alone.

python tests/house/carry_proofs.py REF            list the pages whose code changed, and the names that differ
python tests/house/carry_proofs.py REF --carry    write the digests of the pages in which only names differ

Both syntax trees of what a page covers are walked side by side. Identifiers may differ, each by one other name in the
whole page, and no two may become one. The words of an error that is raised may differ too. Anything else makes the
page stale: somebody has to read the proof again and run `tests/house/proofs.py --update`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from house import proofs

IDENTIFIERS = {"id", "attr", "arg", "name", "asname", "module", "kwd_attrs", "rest"}


class Changed(Exception):
    """Something besides a name differs."""


def differing_names(old: object, new: object, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield the identifiers that differ; raise Changed where anything else does."""
    if isinstance(old, ast.Raise) and isinstance(new, ast.Raise):
        yield from differing_names(raised_class(old), raised_class(new), "exc")
    elif isinstance(old, ast.AST):
        if type(old) is not type(new):
            raise Changed(f"{type(old).__name__} became {type(new).__name__}")
        for name, value in ast.iter_fields(old):
            yield from differing_names(value, getattr(new, name), name)
    elif isinstance(old, list) and isinstance(new, list):
        before, after = proofs.without_docstring(old), proofs.without_docstring(new)
        if len(before) != len(after):
            raise Changed(f"{field}: {len(before)} items became {len(after)}")
        for one, other in zip(before, after, strict=True):
            yield from differing_names(one, other, field)
    elif old != new or type(old) is not type(new):
        if field not in IDENTIFIERS or not isinstance(old, str) or not isinstance(new, str):
            raise Changed(f"{field}: {old!r} became {new!r}")
        yield old, new


def raised_class(node: ast.Raise) -> ast.AST | None:
    """The class of the error that a statement raises: its words do not matter."""
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


def identifiers(node: ast.AST) -> set[str]:
    """Every identifier in a tree."""
    return {
        value
        for inner in ast.walk(node)
        for name, value in ast.iter_fields(inner)
        if name in IDENTIFIERS and isinstance(value, str)
    }


def check_renaming(trees: list[tuple[ast.AST, ast.AST]]) -> dict[str, str]:
    """The renames of one page; raises Changed unless they are one-to-one over all that the page covers."""
    renames: dict[str, set[str]] = {}
    for old, new in trees:
        for before, after in differing_names(old, new):
            renames.setdefault(before, set()).add(after)
    if split := {before: after for before, after in renames.items() if len(after) > 1}:
        raise Changed(f"one name became several: {split}")
    table = {before: next(iter(after)) for before, after in renames.items()}
    if len(set(table.values())) < len(table):
        raise Changed(f"several names became one: {table}")
    kept = {name for old, _ in trees for name in identifiers(old)} - set(table)
    if taken := set(table.values()) & kept:
        raise Changed(f"a new name was there already: {sorted(taken)}")
    return table


def at_ref(ref: str, path: str) -> str:
    """The text of a file in a commit."""
    return subprocess.run(
        ["git", "show", f"{ref}:{path}"], cwd=proofs.ROOT, capture_output=True, text=True, check=True
    ).stdout


def tree_at(ref: str, target: str) -> ast.AST:
    """What `module:name` was in a commit."""
    module, name = target.split(":", 1)
    base = "src/" + module.replace(".", "/")
    try:
        text = at_ref(ref, f"{base}.py")
    except subprocess.CalledProcessError:
        text = at_ref(ref, f"{base}/__init__.py")
    return proofs.find_in(ast.parse(text), module, name)


def compare(ref: str, page: proofs.Page) -> dict[str, str]:
    """The renames between what a page covered in a commit and what it covers now."""
    old = proofs.parse_page(page.path, at_ref(ref, page.path.relative_to(proofs.ROOT).as_posix()))
    if len(old.covers) != len(page.covers):
        raise Changed("it covers other things than before")
    pairs = [
        (tree_at(ref, one), proofs.find(*two.split(":", 1))) for one, two in zip(old.covers, page.covers, strict=True)
    ]
    return check_renaming(pairs)


def main() -> int:
    """List the pages, or carry them."""
    ref, carry = sys.argv[1], "--carry" in sys.argv[2:]
    stale = 0
    for page in proofs.pages():
        if page.digest == page.current:
            continue
        try:
            renames = compare(ref, page)
        except (Changed, LookupError, subprocess.CalledProcessError) as problem:
            stale += 1
            print(f"stale    {page.path.name}: {problem}")
            continue
        listed = ", ".join(f"{old}={new}" for old, new in renames.items())
        print(f"{'carried ' if carry else 'names   '} {page.path.name}: {listed}")
        if carry:
            page.path.write_text(re.sub(r"^digest:.*$", f"digest: {page.current}", page.text, count=1, flags=re.M))
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
