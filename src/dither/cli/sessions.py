"""Open the session or the kernel that a command uses: in this process from a description, or through a gateway."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dither.cli.options import PROGRESS
from dither.connection import connect, measuring_text, open_kernel
from dither.errors import InvalidParameter
from dither.plan.context import Context
from dither.post.session import Session
from dither.privacy.protocol import Kernel
from dither.serve.operations.permissions import check_secret_file

Target = Annotated[str, typer.Argument(help="a description's path, or a gateway's address", show_default=False)]
Account = Annotated[str, typer.Option(help="the account's name, with a description")]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="DITHER_TOKEN_FILE", help="file of the account's token, with a gateway; or set DITHER_TOKEN"),
]
Name = Annotated[str | None, typer.Option("--dataset", help="the dataset, if there are several")]
LedgerPlace = Annotated[
    str | None,
    typer.Option(
        "--ledger", envvar="DITHER_LEDGER", help="the ledger, with a description; by default the one that it has"
    ),
]
AnotherLedger = Annotated[
    bool, typer.Option("--another-ledger", help="allow another ledger than the one that the description has")
]


def _read_token(file: Path | None) -> str:
    """Return the token from a file that only its owner can read, or from the environment; arguments are public."""
    token = check_secret_file(file).read_text().strip() if file is not None else os.environ.get("DITHER_TOKEN", "")
    if not token:
        raise InvalidParameter("a gateway needs a token from its curator: set DITHER_TOKEN, or give --token-file")
    return token


def open_session(
    target: Target,
    account: Account = "analyst",
    token_file: TokenFile = None,
    dataset: Name = None,
    ledger: LedgerPlace = None,
    another_ledger: AnotherLedger = False,
) -> Session:
    """Open a session in this process from a description, or through a gateway."""
    if target.startswith(("http://", "https://")):
        return connect(target, token=_read_token(token_file), dataset=dataset)
    here: dict[str, Any] = {"ledger": ledger, "another_ledger": another_ledger, "size_later": _print_measuring}
    return connect(target, account=account, dataset=dataset, **here)


def _print_measuring(dataset: str) -> AbstractContextManager[object]:
    """Print on a terminal that records are read for noisy sizes; the command shows that it runs."""
    if PROGRESS.is_terminal:
        PROGRESS.print(measuring_text(dataset))
    return nullcontext()


@dataclass(frozen=True)
class OpenKernel:
    """A kernel and the token to use with it, before a dataset is chosen."""

    kernel: Kernel
    token: str

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The public schema and facts of each dataset of the account."""
        kernel, token = self.kernel, self.token
        return tuple(Context(kernel.schema(name, token), kernel.facts(name, token)) for name in kernel.datasets(token))


def open_any_kernel(
    target: Target,
    account: Account = "analyst",
    token_file: TokenFile = None,
    ledger: LedgerPlace = None,
    another_ledger: AnotherLedger = False,
) -> OpenKernel:
    """Open a kernel in this process from a description, or one behind a gateway."""
    if target.startswith(("http://", "https://")):
        return OpenKernel(*open_kernel(target, token=_read_token(token_file)))
    return OpenKernel(*open_kernel(target, account=account, ledger=ledger, another_ledger=another_ledger))
