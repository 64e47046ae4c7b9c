"""The words of the house: docs/glossary.md says which to use, this finds those that it replaced.

python tests/house/words.py [FOLDER]    list what src/dither/FOLDER says in other words
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dither"

# Parts of names, and words of docstrings, that have a better word: see docs/glossary.md.
REPLACED = {
    "influence": "stability",
    "influences": "stability",
    "concentrated": "zCDP, zcdp_loss",
    "law": "distribution",
    "laws": "distributions",
    "appraise": "privacy_cost",
    "appraised": "privacy_cost",
    "appraisal": "PrivacyCost",
    "rung": "a candidate bound",
    "rungs": "candidate bounds",
    "books": "ledger",
    "quicken": "reset_latency",
    "quickens": "reset_latency",
    "remeasure": "refine",
    "remeasured": "refine",
    "spelling": "dialect",
    "spelt": "written",
    "told": "an imperative verb, or a noun",
    "settled": "resolved",
    "elsewhere": "say where",
    "lie": "flip_probability",
}
# In docstrings these are ordinary English.
ENGLISH = {"lie", "spelling", "elsewhere", "settled"}
# Classes of the old vocabulary, by their whole names.
CLASSES = {
    "House", "Described", "Book", "Chain", "Ticket", "Price", "Pool", "Turns", "Shelf", "Law", "Spelling", "Found",
    "Drawn", "Whole", "Influence", "Appraisal", "Claim",
}  # fmt: skip
# Arguments that users of peers know under another name.
ARGUMENTS = {"within": "max_error", "join_rows": "max_rows_per_key", "draw": "repeat"}
OPENINGS = ("What", "How", "Whether", "Where", "Who", "Which", "Whose", "Why")
# A function is named by a verb or a noun; a participle that returns no boolean says neither.
IRREGULAR = {
    "begun", "built", "chosen", "done", "drawn", "found", "given", "gone", "heard", "held", "hidden", "kept", "known",
    "laid", "learnt", "left", "lost", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "shrunk",
    "stood", "taken", "thought", "thrown", "understood", "won", "written",
}  # fmt: skip
REGULAR = re.compile(r"^_?[a-z]{2,}ed$")
NOT_PARTICIPLES = {"_seed", "seed", "feed", "speed", "need", "_need", "exceed", "embed", "bed", "shed"}


def name_parts(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def replaced_in_name(name: str) -> Iterator[str]:
    """Words of a name that have a better one."""
    for part in name_parts(name):
        if part in REPLACED:
            yield f"the name {name!r}: for {part!r} say {REPLACED[part]}"


def is_participle(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A function whose name is a bare participle, although it is no property and returns no boolean."""
    name = node.name.removeprefix("_")
    if name in NOT_PARTICIPLES or not (name in IRREGULAR or REGULAR.match(name)):
        return False
    decorated = {ast.unparse(each) for each in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns else ""
    return not decorated & {"property", "cached_property"} and returns not in ("bool", "bool | None")


def problems_of(source: str) -> Iterator[tuple[int, str]]:
    """Lines of a module and what is wrong with their words."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from ((node.lineno, each) for each in replaced_in_name(node.name))
                if is_participle(node):
                    yield node.lineno, f"the function {node.name!r} is a bare participle: name it by a verb or a noun"
                yield from docstring_problems(node)
            case ast.ClassDef():
                yield from ((node.lineno, each) for each in replaced_in_name(node.name))
                if node.name in CLASSES:
                    yield node.lineno, f"the class {node.name!r} is of the old vocabulary"
                yield from docstring_problems(node)
            case ast.Module():
                yield from docstring_problems(node)
            case ast.arg(arg=name):
                yield from ((node.lineno, each) for each in replaced_in_name(name))
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                yield from ((node.lineno, each) for each in replaced_in_name(name))


def docstring_problems(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings that open with a question word, or use a word that was replaced."""
    text = (
        ast.get_docstring(node, clean=False) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
    )
    if not text:
        return
    line = getattr(node, "lineno", 1)
    if text.lstrip().split(" ")[0].rstrip(",:") in OPENINGS:
        yield line, f"the docstring opens with a question word: {text.strip()[:60]!r}"
    words = set(re.findall(r"[a-z]+", re.sub(r"`[^`]*`", "", text).lower()))
    for word in sorted(words & (set(REPLACED) - ENGLISH)):
        yield line, f"the docstring says {word!r}: say {REPLACED[word]}"


def public_classes() -> dict[str, list[str]]:
    """Public classes by name, with the modules that define one."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(SOURCE).as_posix())
    return found


def problems(folder: str = "") -> list[str]:
    """Everything that the source says in other words than the house."""
    found = []
    for path in sorted((SOURCE / folder).rglob("*.py") if (SOURCE / folder).is_dir() else [SOURCE / folder]):
        name = path.relative_to(SOURCE).as_posix()
        found += [f"{name}:{line}: {problem}" for line, problem in sorted(set(problems_of(path.read_text())))]
    return found


if __name__ == "__main__":
    listed = problems(*sys.argv[1:])
    print("\n".join(listed))
    print(f"{len(listed)} problems")
    raise SystemExit(1 if listed else 0)
