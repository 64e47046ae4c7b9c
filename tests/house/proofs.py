"""Proof pages and the code that they cover: a page whose code has changed since it was read is stale.

python tests/house/proofs.py            list the pages and their state
python tests/house/proofs.py --update   write the current digests, after reading each proof again
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PAGES = SOURCE / "dither" / "proofs"
PROVED_BASES = {"Mechanism", "Relation", "Measure"}
PROVED_NAME = re.compile(r"[Pp]roof:? [`'\"]?([a-z0-9_]+\.md)")


@dataclass(frozen=True)
class Page:
    """A proof page: what it covers, and the digest that it was read against."""

    path: Path
    covers: tuple[str, ...]
    digest: str
    text: str

    @property
    def current(self) -> str:
        """The digest of the covered code as it stands."""
        return combined_digest(self.covers)


def canonical(node: object) -> str:
    """A syntax tree as text, without docstrings, positions or empty fields, so the same in every Python version."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        return f"{type(node).__name__}({', '.join(f'{name}={canonical(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(canonical(item) for item in without_docstring(node))}]"
    return repr(node)


def without_docstring(body: list[ast.AST]) -> list[ast.AST]:
    """The list without a leading text that stands alone."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case _:
            return body


def module_path(module: str) -> Path:
    """The file of a module, by name alone."""
    base = SOURCE.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def find(module: str, name: str) -> ast.AST:
    """The class or function `name` (dots reach methods) or constant of a module."""
    return find_in(_parse(module_path(module).read_text()), module, name)


@lru_cache(maxsize=4)
def _parse(text: str) -> ast.Module:
    """Parse a module; pages cover several names of one, one after the other."""
    return ast.parse(text)


def find_in(node: ast.AST, module: str, name: str) -> ast.AST:
    """The class or function `name` of a module's syntax tree."""
    for part in name.split("."):
        node = next((child for child in ast.iter_child_nodes(node) if part in defined_names(child)), None)  # type: ignore[assignment]
        if node is None:
            raise LookupError(f"{module} does not define {name}")
    return node


def defined_names(node: ast.AST) -> set[str]:
    """The names that a statement binds."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


def digest(module: str, name: str) -> str:
    """The digest of one class or function."""
    return hashlib.sha256(canonical(find(module, name)).encode()).hexdigest()


def combined_digest(covers: tuple[str, ...]) -> str:
    """The digest of all that a page covers; of one name, just its digest."""
    parts = [digest(*target.split(":", 1)) for target in covers]
    return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


def read_page(path: Path) -> Page:
    """The front lines of a page; `covers:` may list several names, over several lines."""
    return parse_page(path, path.read_text())


def parse_page(path: Path, text: str) -> Page:
    """The front lines of a page's text."""
    covers: list[str] = []
    found = ""
    for line in text.splitlines():
        if line.startswith("## "):
            break
        if line.startswith("covers:"):
            covers += [name for name in re.split(r"[,\s]+", line.removeprefix("covers:").strip()) if name]
        if line.startswith("digest:"):
            found = line.removeprefix("digest:").strip()
    return Page(path, tuple(covers), found, text)


def pages() -> list[Page]:
    """Every proof page, in order of name."""
    return [read_page(path) for path in sorted(PAGES.glob("**/*.md"))]


def named_proofs() -> Iterator[tuple[str, str]]:
    """Every (module:name, page) that the source names: a `proof = "x.md"`, or `Proof: x.md` in a docstring."""
    for path in sorted((SOURCE / "dither").rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                for page in proofs_of(node):
                    yield f"{module}:{node.name}", page


def proofs_of(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The pages that one class or function names."""
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="proof")], value=ast.Constant(value=str(page))):
                yield page
            case ast.AnnAssign(target=ast.Name(id="proof"), value=ast.Constant(value=str(page))):
                yield page
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="proved" | "proof"), args=[ast.Constant(value=str(page))]):
                yield page
    yield from PROVED_NAME.findall(ast.get_docstring(node) or "")


def unproved() -> Iterator[str]:
    """Classes of a kind that must name a proof and does not (abstract ones apart)."""
    for path in sorted((SOURCE / "dither").rglob("*.py")):
        if "audit" in path.relative_to(SOURCE).parts:
            continue  # the zoo holds broken mechanisms on purpose
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and must_be_proved(node) and not any(proofs_of(node)):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name} names no proof"


def must_be_proved(node: ast.ClassDef) -> bool:
    """Whether a class is a concrete mechanism, operator or measure."""
    return bool(base_names(node) & PROVED_BASES) and "ABC" not in base_names(node)


def base_names(node: ast.ClassDef) -> set[str]:
    """The last names of a class's bases."""
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}


def problems() -> list[str]:
    """Everything that is wrong with the pages, as lines to print."""
    found = list(unproved())
    have = {page.path.relative_to(PAGES).as_posix(): page for page in pages()}
    for target, name in named_proofs():
        if name not in have:
            found.append(f"{target} names the proof {name}, which does not exist in {PAGES.relative_to(ROOT)}")
        elif target not in have[name].covers:
            found.append(f"{name} does not list 'covers: {target}', although {target} names it")
    for name, page in have.items():
        found += [f"{name}: {problem}" for problem in page_problems(page)]
    return found


def page_problems(page: Page) -> Iterator[str]:
    """What is wrong with one page."""
    if not page.covers:
        yield "no 'covers: module:Name' line"
        return
    try:
        current = page.current
    except (LookupError, OSError, ValueError) as error:
        yield f"covers something that does not exist: {error}"
        return
    if page.digest != current:
        yield "the code has changed since this proof was read; read it again, then tests/house/proofs.py --update"
    headings = re.findall(r"^## (\w+)", page.text, flags=re.M)
    if headings[:3] != ["Claim", "Assumes", "Proof"]:
        yield f"wants the sections Claim, Assumes, Proof, and has {', '.join(headings) or 'none'}"


def update() -> Iterator[Path]:
    """Write current digests into the pages; yields those that changed."""
    for page in pages():
        try:
            line = f"digest: {page.current}"
        except (LookupError, OSError, ValueError):
            continue  # listed among the problems
        if page.digest == page.current:
            continue
        text = re.sub(r"^digest:.*$", line, page.text, count=1, flags=re.M)
        if not page.digest and "digest:" not in page.text:
            text = re.sub(r"^(covers:.*)$", rf"\1\n{line}", page.text, count=1, flags=re.M)
        page.path.write_text(text)
        yield page.path


def main() -> int:
    """List, or update with --update."""
    if "--update" in sys.argv[1:]:
        for path in update():
            print(f"updated {path.relative_to(ROOT)}")
    found = problems()
    for problem in found:
        print(problem)
    print(f"{len(pages())} proof pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
