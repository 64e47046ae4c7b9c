"""Carry proofs through a renaming: a page is carried if its code differs from an earlier commit's in names alone.

python tests/house/carry_proofs.py REF            list the pages whose code changed, and the names that differ
python tests/house/carry_proofs.py REF --carry    write the digests of the pages in which only names differ

Both syntax trees of what a page covers are walked side by side. Identifiers may differ: a variable or a function by one
other name throughout each function that uses it, and nothing by a name that the old code had for something else. The
words of an error that is raised may differ too. Anything else makes the page stale: somebody has to read the proof
again and run `tests/house/proofs.py --update`.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from house import proofs

IDENTIFIERS = {"id", "attr", "arg", "name", "asname", "module", "kwd_attrs", "rest"}


class Changed(Exception):
    """Something besides a name differs."""


Pair = tuple[str, str, str]  # the field that holds an identifier, its name before, its name now


def pairs(old: object, new: object, field: str = "") -> Iterator[Pair]:
    """Yield every identifier of both trees; raise Changed where anything else differs."""
    if isinstance(old, ast.Raise) and isinstance(new, ast.Raise):
        yield from pairs(raised_class(old), raised_class(new), "exc")
    elif isinstance(old, ast.AST):
        if type(old) is not type(new):
            raise Changed(f"{type(old).__name__} became {type(new).__name__}")
        for name, value in ast.iter_fields(old):
            yield from pairs(value, getattr(new, name), name)
    elif isinstance(old, list) and isinstance(new, list):
        before, after = proofs.without_docstring(old), proofs.without_docstring(new)
        if len(before) != len(after):
            raise Changed(f"{field}: {len(before)} items became {len(after)}")
        for one, other in zip(before, after, strict=True):
            yield from pairs(one, other, field)
    elif field in IDENTIFIERS and isinstance(old, str) and isinstance(new, str):
        yield field, old, new
    elif old != new or type(old) is not type(new):
        raise Changed(f"{field}: {old!r} became {new!r}")


def raised_class(node: ast.Raise) -> ast.AST | None:
    """The class of the error that a statement raises: its words do not matter."""
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


def functions(old: ast.AST, new: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The functions of a tree and their counterparts; the tree itself if it has none."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    both = [(one, two) for one, two in zip(ast.walk(old), ast.walk(new), strict=True) if isinstance(one, kinds)]
    yield from both or [(old, new)]


def check_consistent(old: ast.AST, new: ast.AST) -> None:
    """Raise Changed unless each name of a function became one other name, and no two became one."""
    names = {(before, after) for field, before, after in pairs(old, new) if field in ("id", "arg")}
    for place, what in ((0, "one name became several"), (1, "several names became one")):
        counted = Counter(pair[place] for pair in names)
        if wrong := sorted(pair for pair in names if counted[pair[place]] > 1):
            raise Changed(f"{what}: {wrong}")


def check_renaming(trees: list[tuple[ast.AST, ast.AST]]) -> dict[str, str]:
    """The renames of one page; raises Changed if something else changed."""
    every = {pair for old, new in trees for pair in pairs(old, new)}
    for old, new in trees:
        for one, two in functions(without_docstrings(old), without_docstrings(new)):
            check_consistent(one, two)
    renames = {(before, after) for _, before, after in every if before != after}
    before = {name for _, name, _ in every}
    if taken := sorted(pair for pair in renames if pair[1] in before):
        raise Changed(f"a new name was there already: {taken}")
    return dict(sorted(renames))


def without_docstrings(tree: ast.AST) -> ast.AST:
    """A copy of a tree without the texts that document it, and without the words of errors."""

    class Strip(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            if isinstance(body := getattr(node, "body", None), list):
                node.body = proofs.without_docstring(body) or [ast.Pass()]  # type: ignore[attr-defined]
            return node

        def visit_Raise(self, node: ast.Raise) -> ast.AST:
            return ast.Raise(exc=raised_class(node), cause=None)  # type: ignore[arg-type]

    return Strip().visit(copy.deepcopy(tree))  # type: ignore[no-any-return]


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
        try:
            renames, current = compare(ref, page), page.current
        except (Changed, LookupError, subprocess.CalledProcessError) as problem:
            stale += 1
            print(f"stale    {page.path.name}: {problem}")
            continue
        if not renames and page.digest == current:
            continue
        listed = ", ".join(f"{old}={new}" for old, new in renames.items())
        print(f"{'carried ' if carry else 'names   '} {page.path.name}: {listed}")
        if carry:
            page.path.write_text(re.sub(r"^digest:.*$", f"digest: {page.current}", page.text, count=1, flags=re.M))
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
