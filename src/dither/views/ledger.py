"""Budgets, losses, ledger rows and privacy statements as plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dither.loss import to_json as loss_data
from dither.privacy.protocol import Balance, LedgerRow, PrivacyStatement, UnitLoss

LEDGER_UNIT = Decimal(10) ** -15


def json_value(value: Any) -> Any:
    """Convert a value to JSON types: non-finite numbers become null, and unknown types their string."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case _:
            return str(value)


def budget_data(balances: Iterable[Balance]) -> list[dict[str, Any]]:
    """Return budgets, with amounts as exact decimal strings."""
    return [
        {
            "level": balance.level,
            "name": balance.name,
            "unit": balance.cap.unit,
            "kind": balance.cap.kind,
            "window": balance.window,
            "limit": dict(zip(balance.components, map(decimal_text, balance.limit), strict=True)),
            "spent": dict(zip(balance.components, map(decimal_text, balance.spent), strict=True)),
        }
        for balance in balances
    ]


def losses_data(losses: Iterable[UnitLoss]) -> dict[str, Any]:
    """Return the loss charged to the budget of each unit."""
    return {f"{part.unit} ({part.kind})": loss_data(part.loss) for part in losses}


def ledger_data(rows: Iterable[LedgerRow]) -> list[dict[str, Any]]:
    """Return rows of the ledger with all fields that an auditor checks."""
    return [dict(vars(row)) for row in rows]


def statement_data(statement: PrivacyStatement) -> dict[str, Any]:
    """Return the facts of a privacy statement."""
    return {
        "dataset": statement.dataset,
        "population": statement.population,
        "policy": statement.policy,
        "units": list(statement.units),
        "balances": budget_data(statement.balances),
        "assumptions": list(statement.assumptions),
        "residual_bits_of_time": statement.residual_bits,
        "code": statement.code,
    }


def decimal_text(units: int) -> str:
    """Format multiples of 1e-15 as an exact decimal.

    >>> decimal_text(1500000000000000)
    '1.5'
    """
    text = f"{Decimal(units) * LEDGER_UNIT:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
