"""What crosses between processes: the nouns, the kernel protocol, and the JSON that carries them."""

from __future__ import annotations

from dither.wire.model import (
    AutoBound,
    Balance,
    Calibrate,
    Entry,
    Head,
    Kernel,
    LedgerRow,
    Part,
    Quote,
    QuotedPart,
    Release,
    ReleasedPart,
    Request,
    Statement,
    Tradeoff,
    UnitLoss,
)

__all__ = [
    "AutoBound",
    "Balance",
    "Calibrate",
    "Entry",
    "Head",
    "Kernel",
    "LedgerRow",
    "Part",
    "Quote",
    "QuotedPart",
    "Release",
    "ReleasedPart",
    "Request",
    "Statement",
    "Tradeoff",
    "UnitLoss",
]
