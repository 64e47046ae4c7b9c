"""The cost of earlier charges to a budget that a later description adds, computed from their recorded plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dither.errors import DitherError, LedgerError, NotAllowed
from dither.loss import to_json
from dither.plan.context import Context
from dither.privacy.ledger.descriptions import DatasetVersion
from dither.privacy.ledger.store import Row
from dither.privacy.protocol import UnitLoss
from dither.schema import BudgetCap, Dataset, Unit

PrivacyCostFunction = Callable[[Context, str], tuple[tuple[UnitLoss, ...], Mapping[str, tuple[str, ...]]]]


def earlier_losses(
    rows: Iterable[Row], dataset: Dataset, added: Sequence[BudgetCap], privacy_cost: PrivacyCostFunction | None
) -> list[list[Any]]:
    """Return for each charge of the dataset: its row, its losses and its windows for the added budgets."""
    if privacy_cost is None:
        raise LedgerError("adding a budget after charges needs the function that computes their cost")
    current, losses = Context(dataset), []
    for row in rows:
        body = json.loads(row.body) if row.kind in ("dataset", "charge") else {}
        if row.kind == "dataset" and (version := DatasetVersion.of(body)).dataset.name == dataset.name:
            current = context_with(version, dataset, added)
        if row.kind == "charge" and body["dataset"] == dataset.name:
            losses.append([row.sequence, *losses_of_added(current, body["request"], added, privacy_cost)])
    return losses


def context_with(version: DatasetVersion, dataset: Dataset, added: Sequence[BudgetCap]) -> Context:
    """Return the context of an earlier version of a dataset, with the added budgets and their units as of then."""
    units = {**version.dataset.units, **{cap.unit: unit_at(version.dataset, dataset, cap.unit) for cap in added}}
    old_budgets = tuple(cap for cap in version.dataset.budgets if cap not in added)
    return Context(replace(version.dataset, units=units, budgets=(*old_budgets, *added)), version.facts)


def unit_at(earlier: Dataset, dataset: Dataset, name: str) -> Unit:
    """Return the unit of an added budget for an earlier description: its tables, and the caps on rows, of then.

    Refuse a unit that had other keys or windows then: recorded plans would bound the rows of something else.
    """
    unit, known = dataset.units[name], earlier.units.get(name)
    keys = {table: column for table, column in unit.keys.items() if table in earlier.tables}
    times = {table: column for table, column in unit.times.items() if table in earlier.tables}
    result = replace(unit, keys=keys, times=times, max_rows={} if known is None else known.max_rows)
    if known not in (None, result) or (unit.kind == "window" and earlier.timezone != dataset.timezone):
        raise NotAllowed(
            f"the budget for {name} cannot be added, because the unit had other keys or windows when earlier answers"
            " were given; declare it as it was, or under another name and in the same time zone"
        )
    return result


def losses_of_added(
    context: Context, request: str, added: Sequence[BudgetCap], privacy_cost: PrivacyCostFunction
) -> tuple[list[list[Any]], dict[str, list[str]]]:
    """Return the JSON losses and windows of a recorded request for the added budgets."""
    wanted = {(cap.unit, cap.kind) for cap in added}
    try:
        losses, windows = privacy_cost(context, request)
    except DitherError as problem:
        names = ", ".join(f"{unit} ({kind})" for unit, kind in sorted(wanted))
        raise NotAllowed(
            f"the budget for {names} cannot be added, because an earlier answer has no bounded loss for it: {problem}"
        ) from None
    stated = [[each.unit, each.kind, to_json(each.loss)] for each in losses if (each.unit, each.kind) in wanted]
    units = {cap.unit for cap in added}
    return stated, {unit: list(names) for unit, names in windows.items() if unit in units}
