"""The auditing toolkit: test any library's differential privacy.

Names are imported on first use, so that each audit loads only its own dependencies. No module of this package has the
name of a public function: importing the module would hide the function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither.audit.accountants import AccountingResult as AccountingResult
    from dither.audit.accountants import accounting as accounting
    from dither.audit.attacks.api import service as service
    from dither.audit.blackbox.api import privacy as privacy
    from dither.audit.blackbox.report import Evidence as Evidence
    from dither.audit.blackbox.report import PrivacyResult as PrivacyResult
    from dither.audit.enumeration.api import ExactResult as ExactResult
    from dither.audit.enumeration.api import exact as exact
    from dither.audit.goodness_of_fit import FitResult as FitResult
    from dither.audit.goodness_of_fit import fit as fit
    from dither.audit.input_domains import Choices as Choices
    from dither.audit.input_domains import Examples as Examples
    from dither.audit.input_domains import Numbers as Numbers
    from dither.audit.input_domains import Records as Records
    from dither.audit.random_inputs import RandomResult as RandomResult
    from dither.audit.random_inputs import random_dp as random_dp
    from dither.audit.stability import TransformationResult as TransformationResult
    from dither.audit.stability import Vectors as Vectors
    from dither.audit.stability import transformation as transformation
    from dither.audit.timing_channel import TimingResult as TimingResult
    from dither.audit.timing_channel import timing as timing

HOMES = {
    "privacy": "dither.audit.blackbox.api",
    "PrivacyResult": "dither.audit.blackbox.report",
    "Evidence": "dither.audit.blackbox.report",
    "exact": "dither.audit.enumeration.api",
    "ExactResult": "dither.audit.enumeration.api",
    "Choices": "dither.audit.input_domains",
    "Examples": "dither.audit.input_domains",
    "Numbers": "dither.audit.input_domains",
    "Records": "dither.audit.input_domains",
    "fit": "dither.audit.goodness_of_fit",
    "FitResult": "dither.audit.goodness_of_fit",
    "accounting": "dither.audit.accountants",
    "AccountingResult": "dither.audit.accountants",
    "transformation": "dither.audit.stability",
    "Vectors": "dither.audit.stability",
    "TransformationResult": "dither.audit.stability",
    "random_dp": "dither.audit.random_inputs",
    "RandomResult": "dither.audit.random_inputs",
    "service": "dither.audit.attacks.api",
    "timing": "dither.audit.timing_channel",
    "TimingResult": "dither.audit.timing_channel",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'dither.audit' has no attribute {name!r}; it has: {', '.join(sorted(HOMES))}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(HOMES)
