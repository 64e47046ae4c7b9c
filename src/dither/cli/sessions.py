"""How commands open a session: of a description in this process, or of a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dither.session import Session, connect

Target = Annotated[str, typer.Argument(help="a description's path, or a gateway's address", show_default=False)]
Account = Annotated[str, typer.Option(help="who asks, in this process")]
Token = Annotated[str | None, typer.Option(envvar="DITHER_TOKEN", help="who asks, of a gateway")]
Name = Annotated[str | None, typer.Option("--dataset", help="which dataset, if there are several")]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger", envvar="DITHER_LEDGER", help="the ledger, in this process; beside the description unless given"
    ),
]


def open_session(
    target: Target, account: Account = "analyst", token: Token = None, dataset: Name = None, ledger: LedgerFile = None
) -> Session:
    """A session of a description in this process, or of a gateway."""
    if target.startswith(("http://", "https://")):
        return connect(target, token=token, dataset=dataset)
    return connect(target, account=account, dataset=dataset, ledger=ledger)
