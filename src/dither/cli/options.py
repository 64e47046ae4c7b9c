"""Options that commands share, and the console that they print to."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

CONSOLE = Console(highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
