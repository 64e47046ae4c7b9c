"""Open a session: the one place that chooses a kernel, in this process or behind a gateway."""

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
    """A session: of a description's path with `account=`, or of a gateway's address with `token=`."""
    return Session.from_kernel(*open_kernel(target, account=account, token=token, **options), dataset)


def open_kernel(
    target: str | Path, *, account: str | None = None, token: str | None = None, **options: Any
) -> tuple[Kernel, str]:
    """The kernel of a description or behind a gateway, and the token by which it knows who asks."""
    if not isinstance(target, str | Path):
        raise InvalidParameter(f"wanted the path of a description, or a gateway's address, got {type(target).__name__}")
    if str(target).startswith(("http://", "https://")):
        if token is None:
            raise InvalidParameter("a remote session needs token=; the curator hands it out")
        from dither.serve.transport import http_client

        return http_client.connect(str(target), token, **options), token
    from dither.privacy import kernel

    return kernel.open_kernel(target, **options), account if account is not None else "analyst"
