"""Errors of the connection between processes, and errors that another process sent."""

from __future__ import annotations

from dither import errors
from dither.errors import Busy, DitherError

BY_CODE = {
    error_class.code: error_class
    for error_class in vars(errors).values()
    if isinstance(error_class, type) and issubclass(error_class, DitherError)
}


class KernelUnreachable(Busy):
    """No connection to the kernel could be opened; nothing was charged."""


def remote_error(code: str, message: str) -> DitherError:
    """Return the error for a code and message that another process sent."""
    error_class = BY_CODE.get(code, DitherError)
    return error_class() if error_class is errors.EngineFailure else error_class(message)
