"""`dither demo`: run the demonstration that comes with the package."""

from __future__ import annotations

import json
import runpy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dither.cli.options import AsJson

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "url_shares"

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option(help="folder for data and ledger; by default a new temporary one")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run five example queries on a small private dataset; the last one exceeds the budget."""
    with _folder(directory, kept=not as_json) as folder:
        answers = runpy.run_path(str(EXAMPLE / "demo.py"))["demonstrate"](folder, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(answers, indent=2, default=str))


@contextmanager
def _folder(given: Path | None, kept: bool) -> Iterator[Path]:
    """Open the folder for data and ledger; a temporary one is removed unless what is printed names it."""
    if given is not None or kept:
        yield given or Path(tempfile.mkdtemp(prefix="dither-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="dither-demo-") as scratch:
        yield Path(scratch)
