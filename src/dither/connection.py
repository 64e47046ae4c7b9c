"""Open sessions; only this module chooses between a kernel in this process and one behind a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dither.errors import InvalidParameter
from dither.post.session import Session
from dither.privacy.protocol import Kernel


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
    if str(target).startswith(("http://", "https://")):
        if token is None:
            raise InvalidParameter("a gateway needs token=...; the curator issues tokens")
        from dither.serve.transport import http_client

        return http_client.connect(str(target), token, **options), token
    from dither.privacy import kernel

    return kernel.open_kernel(target, **options), account if account is not None else "analyst"
