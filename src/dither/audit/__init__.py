"""The auditing toolkit: tests of anyone's differential privacy.

Names are imported when they are first used, so that each part costs only what it needs. No module is named as a
function that it holds: importing the module would hide the function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither.audit.blackbox import privacy as privacy
    from dither.audit.report import Evidence as Evidence
    from dither.audit.report import PrivacyResult as PrivacyResult
    from dither.audit.times import TimingResult as TimingResult
    from dither.audit.times import timing as timing

HOMES = {
    "privacy": "dither.audit.blackbox",
    "PrivacyResult": "dither.audit.report",
    "Evidence": "dither.audit.report",
    "timing": "dither.audit.times",
    "TimingResult": "dither.audit.times",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'dither.audit' has no attribute {name!r}; it has: {', '.join(sorted(HOMES))}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(HOMES)
