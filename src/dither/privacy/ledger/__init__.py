"""The ledger: durable budgets, charges and recorded answers."""

from __future__ import annotations

from dither.privacy.ledger.charges import Account, Charge, OwnCharge, RecordedAnswer, RecordedRequest
from dither.privacy.ledger.keys import KERNEL
from dither.privacy.ledger.ledger import Ledger, Receipt

__all__ = ["KERNEL", "Account", "Charge", "Ledger", "OwnCharge", "Receipt", "RecordedAnswer", "RecordedRequest"]
