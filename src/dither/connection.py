"""Open sessions; only this module chooses between a kernel in this process and one behind a gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dither.errors import InvalidParameter
from dither.post.options import read_text
from dither.post.session import Session
from dither.privacy.protocol import Kernel

LONGEST_TOKEN = 8192


def connect(
    target: str | Path,
    *,
    account: str | None = None,
    token: str | None = None,
    dataset: str | None = None,
    **options: Any,
) -> Session:
    """Open a session, from the path of a dataset description and `account=`, or a gateway's address and `token=`."""
    return Session.from_kernel(*open_kernel(target, account=account, token=token, **options), dataset)


def open_kernel(
    target: str | Path, *, account: str | None = None, token: str | None = None, **options: Any
) -> tuple[Kernel, str]:
    """Return a kernel in this process or behind a gateway, and the account name or token to use with it."""
    if not isinstance(target, str | Path):
        raise InvalidParameter(
            f"target must be a description's path or a gateway's address, got {type(target).__name__}"
        )
    for name, value in {"account": account, "token": token}.items():
        if value is not None:
            read_text(name, value, LONGEST_TOKEN)
    if not isinstance(options.get("ledger"), str | Path | None):
        raise InvalidParameter(f"ledger must be a path, got {type(options['ledger']).__name__}")
    if str(target).startswith(("http://", "https://")):
        if token is None:
            raise InvalidParameter("a gateway needs token=...; the curator issues tokens")
        from dither.serve.transport import http_client

        return http_client.connect(str(target), token, **options), token
    from dither.privacy import kernel

    opened = kernel.open_kernel(target, **options)
    for event in opened.log.events:
        if event["event"] == "finding":  # for whoever opens the data in this process: its curator
            print(f"WARNING: {event['finding']}", file=sys.stderr)
    return opened, account if account is not None else "analyst"
