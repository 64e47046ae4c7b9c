"""The auditing toolkit: tests of anyone's differential privacy.

Names are imported when they are first used, so that each part costs only what it needs. No module is named as a
function that it holds: importing the module would hide the function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither.audit.accountants import AccountingResult as AccountingResult
    from dither.audit.accountants import accounting as accounting
    from dither.audit.attacks.service import service as service
    from dither.audit.blackbox import privacy as privacy
    from dither.audit.exactly import ExactResult as ExactResult
    from dither.audit.exactly import exact as exact
    from dither.audit.fitting import FitResult as FitResult
    from dither.audit.fitting import fit as fit
    from dither.audit.randomly import RandomResult as RandomResult
    from dither.audit.randomly import random_dp as random_dp
    from dither.audit.report import Evidence as Evidence
    from dither.audit.report import PrivacyResult as PrivacyResult
    from dither.audit.times import TimingResult as TimingResult
    from dither.audit.times import timing as timing
    from dither.audit.transformations import TransformationResult as TransformationResult
    from dither.audit.transformations import transformation as transformation

HOMES = {
    "privacy": "dither.audit.blackbox",
    "PrivacyResult": "dither.audit.report",
    "Evidence": "dither.audit.report",
    "exact": "dither.audit.exactly",
    "ExactResult": "dither.audit.exactly",
    "fit": "dither.audit.fitting",
    "FitResult": "dither.audit.fitting",
    "accounting": "dither.audit.accountants",
    "AccountingResult": "dither.audit.accountants",
    "transformation": "dither.audit.transformations",
    "TransformationResult": "dither.audit.transformations",
    "random_dp": "dither.audit.randomly",
    "RandomResult": "dither.audit.randomly",
    "service": "dither.audit.attacks",
    "timing": "dither.audit.times",
    "TimingResult": "dither.audit.times",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'dither.audit' has no attribute {name!r}; it has: {', '.join(sorted(HOMES))}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(HOMES)
