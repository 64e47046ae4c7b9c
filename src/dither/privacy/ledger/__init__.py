"""Durable budgets and charges."""

from __future__ import annotations

from dither.privacy.ledger.ledger import Account, Claim, Ledger, Receipt, Recorded
from dither.privacy.ledger.state import KERNEL

__all__ = ["KERNEL", "Account", "Claim", "Ledger", "Receipt", "Recorded"]
