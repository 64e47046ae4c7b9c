"""Datasets as plain data for JSON: tables, columns with their domains, units and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, assert_never

from dither.plan.context import PublicTableFacts
from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Moment, Number, Reference
from dither.schema.summary import moment_text

SHOWN_VALUES = 20


def dataset_data(dataset: Dataset, facts: PublicTableFacts) -> dict[str, Any]:
    """Return the public facts that a query needs: tables, columns and their domains, units and budgets."""
    return {
        "name": dataset.name,
        "population": dataset.population,
        "data_version": dataset.data_version,
        "policy": dataset.policy,
        "tables": {
            table.name: {
                "private": table.private,
                "columns": {name: domain_text(column.domain, facts) for name, column in table.columns.items()},
            }
            for table in dataset.tables.values()
        },
        "units": {unit.name: unit.kind for unit in dataset.units.values()},
        "budgets": [{"unit": cap.unit, "kind": cap.kind} for cap in dataset.budgets],
    }


def domain_text(domain: Domain, facts: PublicTableFacts) -> str:
    """Describe a domain in a few words."""
    return _values_text(domain, facts) + (", or NULL" if domain.nullable else "")


def _values_text(domain: Domain, facts: PublicTableFacts) -> str:
    """Describe the values of a domain other than NULL."""
    match domain:
        case Number():
            return f"{_number(domain.lo)} to {_number(domain.hi)} in steps of {_number(domain.step)}"
        case Category():
            return f"one of {_list_text(domain.values)}"
        case Reference():
            name = f"{domain.table}.{domain.column}"
            return f"one of {name}" + (f": {_list_text(facts.values[name])}" if name in facts.values else "")
        case Boolean():
            return "true or false"
        case Moment():
            kind = "date" if domain.precision == "day" else "time"
            return f"{kind} to the {domain.precision}, from {moment_text(domain.lo)} to {moment_text(domain.hi)}"
        case Identifier():
            return "an identifier"
        case _:
            assert_never(domain)


def _list_text(values: Sequence[object]) -> str:
    """List the first values, and say how many more there are."""
    more = len(values) - SHOWN_VALUES
    return ", ".join(map(str, values[:SHOWN_VALUES])) + (f" and {more} more" if more > 0 else "")


def _number(value: Fraction) -> str:
    """Format a number without unnecessary digits."""
    return f"{float(value):g}" if value.denominator != 1 else str(value)
