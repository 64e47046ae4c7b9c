"""Errors as they come back from another process."""

from __future__ import annotations

from dither import errors
from dither.errors import DitherError

BY_CODE = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DitherError)
}


def raise_remote(code: str, message: str) -> DitherError:
    """The error that a code stands for."""
    problem = BY_CODE.get(code, DitherError)
    return problem() if problem is errors.EngineFailure else problem(message)
