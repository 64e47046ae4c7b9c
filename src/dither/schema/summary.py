"""Return a description's public facts as plain data, for `dither check`, the servers and privacy statements."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dither.schema.model import (
    Boolean,
    BudgetCap,
    Category,
    Column,
    Dataset,
    Domain,
    Identifier,
    Moment,
    Number,
    Reference,
    Scalar,
    Table,
    Unit,
)
from dither.schema.parser.scalars import EPOCH

SHOWN_VALUES = 8


def public_facts(dataset: Dataset) -> dict[str, Any]:
    """Return everything that analysts learn from the description alone."""
    return {
        "name": dataset.name,
        "description": dataset.description,
        "population": dataset.population,
        "data_version": dataset.data_version,
        "timezone": dataset.timezone,
        "policy": dataset.policy,
        "size_epsilon": number_text(dataset.size_epsilon),
        "profile_epsilon": number_text(dataset.profile_epsilon),
        "tables": {name: _table(table) for name, table in dataset.tables.items()},
        "units": {name: _unit(unit) for name, unit in dataset.units.items()},
        "budgets": [_budget(cap) for cap in dataset.budgets],
        "groups": [
            {
                "name": group.name,
                "analysts": list(group.analysts),
                "budgets": [_budget(cap) for cap in group.caps],
                "analyst_budgets": [_budget(cap) for cap in group.analyst_caps],
            }
            for group in dataset.groups
        ],
    }


def _table(table: Table) -> dict[str, Any]:
    """Return the public facts of a table."""
    return {
        "private": table.private,
        "description": table.description,
        "source": table.source.kind,
        "unique": table.unique,
        "columns": {name: column_text(column) for name, column in table.columns.items()},
    }


def _unit(unit: Unit) -> dict[str, Any]:
    """Return the public facts of a unit of privacy."""
    facts = {"kind": unit.kind, "tables": dict(unit.keys), "times": dict(unit.times), "every": unit.every}
    return facts | {"max_rows": dict(unit.max_rows)}


def _budget(cap: BudgetCap) -> dict[str, Any]:
    """Return the public facts of a budget; leave out parameters that it does not have."""
    numbers = {"epsilon": cap.epsilon, "rho": cap.rho, "order": cap.order, "delta": cap.delta or None}
    return {"unit": cap.unit, "kind": cap.kind} | {
        key: number_text(value) for key, value in numbers.items() if value is not None
    }


def column_text(column: Column) -> str:
    """Describe a column's domain in words, with its default."""
    text = domain_text(column.domain)
    if column.domain.nullable:
        text += "; may be missing"
    if column.default is not None and isinstance(column.domain, Category | Reference):
        text += f"; {column.default!r} stands in for anything else"
    return text


def default_text(column: Column) -> str:
    """Return what a value that cannot be read becomes: the declared default, or the one that is chosen without it."""
    if column.default is None:
        return "NULL"
    is_moment = isinstance(column.domain, Moment) and isinstance(column.default, int)
    value = moment_text(int(column.default)) if is_moment else _plain_text(column.default)
    implicit = {Number: "the least value", Moment: "the earliest", Category: "the first value"}
    why = implicit.get(type(column.domain), "the default of the type")
    return f"{value}, the default" if column.default_is_declared else f"{value} ({why})"


def _plain_text(value: Scalar) -> str:
    """Format a default: numbers as decimals, truth values as in the file, texts in quotes."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | Fraction():
            return number_text(Fraction(value))
        case _:
            return repr(value)


def domain_text(domain: Domain) -> str:
    """Describe a domain in words.

    >>> from fractions import Fraction
    >>> domain_text(Number(Fraction(18), Fraction(65)))
    'integer from 18 to 65'
    """
    match domain:
        case Number(lo=lo, hi=hi, step=step):
            kind = "integer" if step == 1 else f"multiple of {number_text(step)}"
            return f"{kind} from {number_text(lo)} to {number_text(hi)}"
        case Category(values=values):
            more = f", ... ({len(values)} in all)" if len(values) > SHOWN_VALUES else ""
            return f"one of {', '.join(values[:SHOWN_VALUES])}{more}"
        case Reference(table=table, column=column):
            return f"one of the values of {table}.{column}"
        case Boolean():
            return "true or false"
        case Moment(lo=lo, hi=hi, precision=precision):
            kind = "date" if precision == "day" else "time"
            return f"{kind} from {moment_text(lo)} to {moment_text(hi)}, to the {precision}"
        case Identifier(kind=kind):
            return f"{kind} identifier, never released"


def number_text(value: Fraction) -> str:
    """Format a rational as a decimal if it is one, else as p/q.

    >>> number_text(Fraction(9, 5)), number_text(Fraction(1, 3))
    ('1.8', '1/3')
    """
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


def moment_text(micros: int) -> str:
    """Format a moment on the wall clock as ISO text, or as a date alone if it is midnight."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat().removesuffix("T00:00:00")
