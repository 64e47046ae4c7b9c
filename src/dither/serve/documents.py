"""What the gateway answers, as plain data: numbers that must stay exact travel as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, assert_never

import pyarrow as pa

from dither.loss import to_json as loss_data
from dither.post.answers import Answer
from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Moment, Number, Reference
from dither.session import Price
from dither.wire import Balance, Entry, Head, LedgerRow, Statement, UnitLoss

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


def answer_data(answer: Answer) -> dict[str, Any]:
    """Estimates with intervals, and everything that was done to get them."""
    return {
        "columns": [{"name": column.name, "key": column.key} for column in answer.columns],
        "rows": plain(answer.to_dicts()),
        "confidence": answer.confidence,
        "loss": [loss_data(loss) for loss in answer.loss],
        "losses": [losses_data(release.losses) for release in answer.releases],
        "free": all(release.cached for release in answer.releases),
        "bounds": {tag: found.bound for tag, found in answer.bounds.items()},
        "notes": list(answer.notes),
        "noisy": plain(answer.noisy),
        "releases": [
            {"digest": release.digest, "sequence": release.sequence, "time": release.time, "code": release.code}
            for release in answer.releases
        ],
    }


def answer_arrow(answer: Answer) -> bytes:
    """The answer's table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    table = answer.table
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def price_data(price: Price) -> dict[str, Any]:
    """What a question would cost, and how far off its answer would be."""
    return {
        "loss": loss_data(price.loss),
        "losses": losses_data(price.losses),
        "expected": [
            {
                "column": column.name,
                "half_width": plain(column.half_width),
                "std_error": plain(column.std_error),
                "needs_rows": column.needs_rows,
            }
            for column in price.expected
        ],
        "bound": dict(price.bound),
        "affordable": price.affordable,
        "free": price.free,
        "time_class": price.time_class,
        "milliseconds": price.milliseconds,
        "notes": list(price.notes),
    }


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


def history_data(entries: Iterable[Entry]) -> list[dict[str, Any]]:
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


def statement_data(statement: Statement) -> dict[str, Any]:
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


def head_data(head: Head) -> dict[str, Any]:
    """The end of the chain."""
    return {"sequence": head.sequence, "hash": head.hash}


def dataset_data(dataset: Dataset) -> dict[str, Any]:
    """What an analyst needs to ask: tables, columns and their domains, units, budgets."""
    return {
        "name": dataset.name,
        "population": dataset.population,
        "data_version": dataset.data_version,
        "policy": dataset.policy,
        "tables": {
            table.name: {
                "private": table.private,
                "columns": {name: domain_text(column.domain) for name, column in table.columns.items()},
            }
            for table in dataset.tables.values()
        },
        "units": {unit.name: unit.kind for unit in dataset.units.values()},
        "budgets": [{"unit": cap.unit, "kind": cap.kind} for cap in dataset.budgets],
    }


def domain_text(domain: Domain) -> str:
    """A domain in a few words."""
    match domain:
        case Number():
            return f"{_number(domain.lo)} to {_number(domain.hi)} in steps of {_number(domain.step)}"
        case Category():
            shown = ", ".join(map(str, domain.values[:20]))
            return f"one of {shown}" + (f" and {len(domain.values) - 20} more" if len(domain.values) > 20 else "")
        case Reference():
            return f"one of {domain.table}.{domain.column}"
        case Boolean():
            return "true or false"
        case Moment():
            return f"a {domain.precision}"
        case Identifier():
            return "an identifier"
        case _:
            assert_never(domain)


def _number(value: Fraction) -> str:
    return f"{float(value):g}" if value.denominator != 1 else str(value)


def decimal(units: int) -> str:
    """Multiples of 1e-15 as a decimal, exactly.

    >>> decimal(1500000000000000)
    '1.5'
    """
    text = f"{Decimal(units) * UNIT:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
