"""Runs the ```python and ```console blocks of a page, and compares what they print with what the page shows.

Answers are noisy, so numbers are compared by their presence alone: each stands for any other, and the lines and spaces
of tables do not count. Lines that `make` something are checked against the Makefile instead of being run.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(python|console|text)\n(.*?)^```$", flags=re.M | re.S)
NUMBER = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?")
DRAWN = re.compile(r"[│┃┏┓┗┛┡┩╇┳┻━─┌┐└┘├┤┬┴┼╭╮╰╯╵╷|█▉▊▋▌▍▎▏░▒▓+=-]+")


@dataclass(frozen=True)
class Block:
    """A fenced block and, if a text block follows a python block at once, what it prints."""

    kind: str
    text: str
    line: int
    shown: str | None = None


def blocks(page: str) -> Iterator[Block]:
    """The blocks to run, in order."""
    found = [(match.group(1), match.group(2), match.start(), match.end()) for match in FENCE.finditer(page)]
    for index, (kind, text, start, end) in enumerate(found):
        follows = found[index + 1] if index + 1 < len(found) else None
        printed = follows is not None and follows[0] == "text" and not page[end : follows[2]].strip()
        if kind != "text":
            yield Block(kind, text, page[:start].count("\n") + 1, follows[1] if follows and printed else None)


def shape(text: str) -> list[str]:
    """What a text says when every number is any number, and tables are only their words."""
    return DRAWN.sub(" ", NUMBER.sub("#", text)).split()


def run_page(path: Path, directory: Path) -> list[str]:
    """Run a page's blocks in a directory, python blocks in one namespace; returns what is wrong."""
    wrong: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(directory):
        for block in blocks(path.read_text()):
            problems = run_python(block, names) if block.kind == "python" else run_console(block)
            wrong += [f"{path.name}:{block.line}: {problem}" for problem in problems]
    return wrong


def run_python(block: Block, names: dict[str, Any]) -> Iterator[str]:
    """Run a python block; compare what it prints with the text block that follows."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, "<page>", "exec"), names)
    except Exception as error:
        yield f"raised {type(error).__name__}: {error}"
        return
    if block.shown is not None and shape(out.getvalue()) != shape(block.shown):
        yield f"printed\n{out.getvalue()}and not\n{block.shown}"


def run_console(block: Block) -> Iterator[str]:
    """Run each `$ command`, and compare what it prints with the lines below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command, comments=True)
        match words[0]:
            case "make":
                targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
                yield from (f"no target {word} in the Makefile" for word in words[1:] if word not in targets)
            case "dither" | "python":
                yield from compare(command, words, shown)
            case "git" | "cd" | "pip" | "export":
                pass
            case _:
                yield f"cannot check {command!r}; use dither, python or make"


def compare(command: str, words: list[str], shown: str) -> Iterator[str]:
    """Run one command and compare."""
    program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "dither"]
    done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=False, timeout=300)
    printed = done.stdout + done.stderr
    if shown.strip() and shape(printed) != shape(shown):
        yield f"$ {command} printed\n{printed}and not\n{shown}"
    if done.returncode and not shown.strip():
        yield f"$ {command} ended with {done.returncode}: {printed}"
