"""The ledger: durable budgets, charges and recorded answers."""

from __future__ import annotations

from dither.privacy.ledger.ledger import Account, Charge, Ledger, OwnCharge, Receipt, RecordedAnswer, RecordedRequest
from dither.privacy.ledger.state import KERNEL

__all__ = ["KERNEL", "Account", "Charge", "Ledger", "OwnCharge", "Receipt", "RecordedAnswer", "RecordedRequest"]
