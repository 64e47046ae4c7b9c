"""`python -m dither` is the command line."""

from __future__ import annotations

from dither.cli import app

app(prog_name="dither")
