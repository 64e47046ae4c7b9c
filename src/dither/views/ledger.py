"""Part of the former serve.documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dither.loss import to_json as loss_data
from dither.privacy.protocol import Balance, HistoryEntry, LedgerHead, LedgerRow, PrivacyStatement, UnitLoss

UNIT = Decimal(10) ** -15


def plain(value: Any) -> Any:
    """A value that JSON can hold: numbers that are not finite become null, everything unknown its text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return str(value)


def budget_data(balances: Iterable[Balance]) -> list[dict[str, Any]]:
    """Budgets; amounts as exact decimal text."""
    return [
        {
            "level": balance.level,
            "name": balance.name,
            "unit": balance.cap.unit,
            "kind": balance.cap.kind,
            "window": balance.window,
            "limit": dict(zip(balance.components, map(decimal, balance.limit), strict=True)),
            "spent": dict(zip(balance.components, map(decimal, balance.spent), strict=True)),
        }
        for balance in balances
    ]


def history_data(entries: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    """Charges that an account may see."""
    return [
        {
            "sequence": entry.sequence,
            "time": entry.time,
            "account": entry.account,
            "digest": entry.digest,
            "losses": losses_data(entry.losses),
            "answered": entry.answered,
        }
        for entry in entries
    ]


def losses_data(losses: Iterable[UnitLoss]) -> dict[str, Any]:
    """What every budget was charged: those of other units too."""
    return {f"{part.unit} ({part.kind})": loss_data(part.loss) for part in losses}


def ledger_data(rows: Iterable[LedgerRow]) -> list[dict[str, Any]]:
    """Rows of the ledger, as an auditor checks them."""
    return [dict(vars(row)) for row in rows]


def statement_data(statement: PrivacyStatement) -> dict[str, Any]:
    """The facts of a privacy statement."""
    return {
        "dataset": statement.dataset,
        "population": statement.population,
        "policy": statement.policy,
        "units": list(statement.units),
        "balances": budget_data(statement.balances),
        "assumptions": list(statement.assumptions),
        "residual_bits_of_time": statement.residual_bits,
        "head": head_data(statement.head),
        "code": statement.code,
    }


def head_data(head: LedgerHead) -> dict[str, Any]:
    """The end of the chain."""
    return {"sequence": head.sequence, "hash": head.hash}


def decimal(units: int) -> str:
    """Multiples of 1e-15 as a decimal, exactly.

    >>> decimal(1500000000000000)
    '1.5'
    """
    text = f"{Decimal(units) * UNIT:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
