"""Open the session or the kernel that a command uses: in this process from a description, or through a gateway."""

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
Account = Annotated[str, typer.Option(help="the account's name, with a description")]
Token = Annotated[str | None, typer.Option(envvar="DITHER_TOKEN", help="the account's token, with a gateway")]
Name = Annotated[str | None, typer.Option("--dataset", help="the dataset, if there are several")]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", envvar="DITHER_LEDGER", help="the ledger, with a description; by default beside it"),
]


def open_session(
    target: Target, account: Account = "analyst", token: Token = None, dataset: Name = None, ledger: LedgerFile = None
) -> Session:
    """Open a session in this process from a description, or through a gateway."""
    if target.startswith(("http://", "https://")):
        return connect(target, token=token, dataset=dataset)
    return connect(target, account=account, dataset=dataset, ledger=ledger)


@dataclass(frozen=True)
class OpenKernel:
    """A kernel and the token to use with it, before a dataset is chosen."""

    kernel: Kernel
    token: str

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The public schema of each dataset of the account."""
        return tuple(self.kernel.schema(name, self.token) for name in self.kernel.datasets(self.token))


def open_any_kernel(
    target: Target, account: Account = "analyst", token: Token = None, ledger: LedgerFile = None
) -> OpenKernel:
    """Open a kernel in this process from a description, or one behind a gateway."""
    if target.startswith(("http://", "https://")):
        return OpenKernel(*open_kernel(target, token=token))
    return OpenKernel(*open_kernel(target, account=account, ledger=ledger))
