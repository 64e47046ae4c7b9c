"""`dither demo`: runs the demonstration that travels with the package."""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dither.cli.options import AsJson

HERE = Path(__file__).resolve().parents[1] / "examples" / "url_shares"

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Option(help="where data and ledger go; a fresh place unless given")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask five questions of a small private dataset: a count, a histogram, a mean, a join, one too many."""
    where = directory or Path(tempfile.mkdtemp(prefix="dither-demo-"))
    asked = runpy.run_path(str(HERE / "demo.py"))["demonstrate"](where, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(asked, indent=2, default=str))
