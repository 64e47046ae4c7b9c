"""Notes of `dither check` on valid declarations that a curator may not have intended."""

from __future__ import annotations

from collections.abc import Iterator

from dither.plan.context import Context
from dither.post.contribution_bound import FEW_ROWS
from dither.post.display import rough_number
from dither.post.interpretation import cap_loss, stated_epsilon
from dither.post.query.conflicting_units import conflicting_units, conflicts
from dither.schema import Dataset, Identifier, Reference, Unit

LARGE_EPSILON = 10


def warnings(dataset: Dataset) -> Iterator[str]:
    """Yield a warning for each valid declaration that a curator may not have intended."""
    budgeted = {cap.unit for cap in dataset.budgets}
    for unit in dataset.units.values():
        if unit.name not in budgeted:
            yield f"unit {unit.name} has no budget, so nothing limits its privacy loss"
        for table in dataset.tables.values():
            if unit.name in budgeted and table.private and table.name not in unit.keys:
                yield f"under unit {unit.name}, table {table.name} is not covered: its records are not protected"
        yield from _repeated_key_warnings(unit, dataset)
    yield from _hidden_value_warnings(dataset)
    yield from conflicts(Context(dataset))
    for cap in dataset.budgets:
        _, epsilon = stated_epsilon(cap_loss(cap))
        if epsilon > LARGE_EPSILON:
            yield (
                f"the budget of {cap.unit} comes to epsilon {rough_number(float(epsilon))}, which lets odds change by a"
                f" factor of e^epsilon, above 10^{epsilon * 1000 // 2303}; docs/choosing-a-budget.md recommends totals"
                " of 1 to 10"
            )


def _repeated_key_warnings(unit: Unit, dataset: Dataset) -> Iterator[str]:
    """Yield a warning where a unit is a row, or may have many rows of a table, since its key is not unique."""
    if unit.kind == "row":
        yield (
            f"unit {unit.name} protects one row: a person with several rows loses several times as much; if a column"
            " names the person, use kind: user"
        )
    for name, key in unit.keys.items():
        if unit.kind != "user" or dataset.tables[name].unique == key or conflicting_units(Context(dataset), name):
            continue
        cap = unit.max_rows.get(name)
        if cap is None:
            yield (
                f"table {name} may have any number of rows of one {unit.name}: a query spends a fifth of its loss to"
                f" choose how many count, and estimates what that leaves out; if each {unit.name} has one row there,"
                f" declare unique: {key}, and counts become much more accurate; if it has at most a known number,"
                " declare max_rows"
            )
        elif cap > FEW_ROWS:
            yield (
                f"table {name} has at most {cap:,} rows of one {unit.name} (max_rows): a query spends a fifth of its"
                f" loss to look for a smaller number that counts, and allows for no more than {cap:,}"
            )


def _hidden_value_warnings(dataset: Dataset) -> Iterator[str]:
    """Yield a warning for each column of a public table that nobody could group by or refer to."""
    columns = [column.domain for table in dataset.tables.values() for column in table.columns.values()]
    listed = {(domain.table, domain.column) for domain in columns if isinstance(domain, Reference)}
    for table in (table for table in dataset.tables.values() if not table.private):
        for name, column in table.columns.items():
            if isinstance(column.domain, Identifier) and name != table.unique and (table.name, name) not in listed:
                yield (
                    f"column {name} of the public table {table.name} is an identifier, which no query can group by;"
                    f" to allow it, declare {{type: category, values_from: {table.name}.{name}, kind: "
                    f"{column.domain.kind}}}"
                )
