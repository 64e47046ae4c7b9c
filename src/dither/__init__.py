"""Dither: query sensitive data under differential privacy.

>>> import dither
>>> dither.rational("1/10")
Fraction(1, 10)
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

if sys.platform == "win32":
    raise ImportError("Dither does not run on Windows; use Linux, or WSL 2 on Windows")

__version__ = "0.1.0"

# The public names and their modules; each is imported on first use, so that `import dither` stays fast.
_MODULES = {
    "connect": "dither.connection",
    "Session": "dither.post.session",
    "open_release": "dither.release.api",
    "Answer": "dither.post.estimate.answer",
    "load": "dither.schema",
    "Dataset": "dither.schema",
    "rational": "dither.loss",
    "Pure": "dither.loss",
    "Approximate": "dither.loss",
    "ZCDP": "dither.loss",
    "Renyi": "dither.loss",
    "Sensitivity": "dither.loss",
    "DitherError": "dither.errors",
    "InvalidParameter": "dither.errors",
    "InvalidSchema": "dither.errors",
    "InvalidQuery": "dither.errors",
    "Unsupported": "dither.errors",
    "InvalidPlan": "dither.errors",
    "Unbounded": "dither.errors",
    "BudgetExceeded": "dither.errors",
    "NotAllowed": "dither.errors",
    "InvalidToken": "dither.errors",
    "NotFound": "dither.errors",
    "Busy": "dither.errors",
    "LedgerError": "dither.errors",
    "EngineFailure": "dither.errors",
    "ReleaseStopped": "dither.errors",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'dither' has no attribute {name!r}; it has: {', '.join(sorted(_MODULES))}")


def __dir__() -> list[str]:
    return sorted(__all__)
