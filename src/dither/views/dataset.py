"""Datasets as plain data for JSON: tables, columns with their domains, units and budgets."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, assert_never

from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Moment, Number, Reference
from dither.schema.summary import moment_text


def dataset_data(dataset: Dataset) -> dict[str, Any]:
    """Return the public facts that a query needs: tables, columns and their domains, units and budgets."""
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
    """Describe a domain in a few words."""
    return _values_text(domain) + (", or NULL" if domain.nullable else "")


def _values_text(domain: Domain) -> str:
    """Describe the values of a domain other than NULL."""
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
            kind = "date" if domain.precision == "day" else "time"
            return f"{kind} to the {domain.precision}, from {moment_text(domain.lo)} to {moment_text(domain.hi)}"
        case Identifier():
            return "an identifier"
        case _:
            assert_never(domain)


def _number(value: Fraction) -> str:
    """Format a number without unnecessary digits."""
    return f"{float(value):g}" if value.denominator != 1 else str(value)
