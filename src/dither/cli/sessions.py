"""How commands open a session: of a description in this process, or of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dither.connection import connect, open_kernel
from dither.post.session import Session
from dither.privacy.protocol import Kernel
from dither.schema import Dataset

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


@dataclass(frozen=True)
class OpenKernel:
    """A kernel and who asks it: before a dataset is chosen."""

    kernel: Kernel
    token: str

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """What is public about each dataset of the account."""
        return tuple(self.kernel.schema(name, self.token) for name in self.kernel.datasets(self.token))


def open_any_kernel(
    target: Target, account: Account = "analyst", token: Token = None, ledger: LedgerFile = None
) -> OpenKernel:
    """A kernel in this process, or one behind a gateway."""
    if target.startswith(("http://", "https://")):
        return OpenKernel(*open_kernel(target, token=token))
    return OpenKernel(*open_kernel(target, account=account, ledger=ledger))
