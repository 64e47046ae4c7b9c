"""Descriptions of datasets as the ledger records them, and which of them it accepts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dither.errors import InvalidSchema
from dither.plan.context import Context, PublicTableFacts
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.ledger.keys import KERNEL, key
from dither.privacy.ledger.populations import Population, budget_identity, budget_limit
from dither.schema import BudgetCap, Dataset, Source
from dither.schema.spec import NAME_PATTERN


def without_sources(dataset: Dataset) -> Dataset:
    """Return the dataset's description without the locations of its records."""
    tables = {name: replace(table, source=Source(table.source.kind)) for name, table in dataset.tables.items()}
    return replace(dataset, tables=tables)


def source_fingerprints(dataset: Dataset) -> list[str]:
    """Hash the source of each private table, to detect a second population over the same records."""
    sources = [table.source for table in dataset.tables.values() if table.private]
    identities = [[source.kind, sorted(source.options.items())] for source in sources if source.options]
    return sorted({hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in identities})


@dataclass(frozen=True)
class DatasetVersion:
    """A registered dataset, the facts about its public tables, and the version that its answers carry."""

    dataset: Dataset
    facts: PublicTableFacts
    version: str

    @classmethod
    def of(cls, body: Mapping[str, str]) -> DatasetVersion:
        """Decode the body of a dataset row."""
        dataset = decode(body["schema"].encode(), Dataset, RESPONSE)
        facts = decode(body["facts"].encode(), PublicTableFacts, RESPONSE)
        plain = replace(dataset, budgets=(), groups=(), policy="shared", profile_epsilon=Fraction(0))
        description = encode(plain) + encode(facts)
        return cls(dataset, facts, f"{dataset.data_version}@{hashlib.sha256(description).hexdigest()[:16]}")

    @property
    def context(self) -> Context:
        """The context in which plans over the dataset are interpreted."""
        return Context(self.dataset, self.facts)


@dataclass(frozen=True)
class DescriptionCache:
    """A cache of objects decoded from immutable rows: dataset versions by row number and hash, and populations."""

    schemas: dict[str, DatasetVersion] = field(default_factory=dict)
    populations: dict[tuple[str | None, ...], Population] = field(default_factory=dict)


def check_dataset(dataset: Dataset, others: Iterable[Dataset]) -> None:
    """Reject a description whose budgets could be bypassed or conflict with its population."""
    keys = [budget_identity(cap) for cap in dataset.budgets]
    if not keys or len(set(keys)) != len(keys):
        raise InvalidSchema("a dataset needs at least one budget, and at most one of each kind and order for a unit")
    for cap in dataset.budgets:
        budget_limit(cap)
        if cap.unit not in dataset.units:
            raise InvalidSchema(f"a budget names unit {cap.unit!r}, which is not declared")
    for group in dataset.groups:
        if any(budget_identity(cap) not in keys for cap in (*group.caps, *group.analyst_caps)):
            raise InvalidSchema(f"group {group.name!r} caps a unit, kind or order that the dataset has no budget for")
    groups = [group.name for group in dataset.groups]
    if len(set(groups)) != len(groups) or not all(re.fullmatch(NAME_PATTERN, name) for name in groups):
        raise InvalidSchema(
            "each group needs a name of its own, of letters, digits and underscores, that begins with a letter"
        )
    names = [name for group in dataset.groups for name in group.analysts]
    if len(set(names)) != len(names) or KERNEL in names:
        raise InvalidSchema("an account may belong to only one group of a dataset, and none may be called 'kernel'")
    for other in others:
        _check_compatible(dataset, other)


def group_by_account(dataset: Dataset) -> dict[str, str]:
    """Return the group that pays for each account under separate budgets; under a shared policy, nothing."""
    groups = dataset.groups if dataset.policy == "separate" else ()
    return {account: group.name for group in groups for account in group.analysts}


def unit_columns(dataset: Dataset) -> list[tuple[str, str, str]]:
    """Return for each unit with a budget and each table: a name, a state key, and the unit's key and time columns."""
    units = [dataset.units[name] for name in dict.fromkeys(cap.unit for cap in dataset.budgets)]
    return [
        (
            f"{table} (key of {unit.name})",
            key("columns", dataset.name, unit.name, table),
            json.dumps([table in unit.keys, unit.keys.get(table), unit.times.get(table)]),
        )
        for unit in units
        for table in dataset.tables
    ]


def still_counts(cap: BudgetCap, before: Dataset, after: Dataset) -> bool:
    """Return True if past spending of a budget counts against the same total under the new description."""
    if budget_identity(cap) not in map(budget_identity, after.budgets):
        return False
    old, new = before.units[cap.unit], after.units[cap.unit]
    same_clock = old.kind != "window" or before.timezone == after.timezone
    return (old.kind, old.every) == (new.kind, new.every) and same_clock


def _check_compatible(dataset: Dataset, other: Dataset) -> None:
    """Check that two datasets of a population declare the same policy, budgets (caps may differ) and units."""
    if other.policy != dataset.policy or {*map(budget_identity, other.budgets)} != {
        *map(budget_identity, dataset.budgets)
    }:
        raise InvalidSchema(f"population {dataset.population!r} has other budgets or another policy; declare the same")
    theirs_of = group_by_account(other)
    for account, group in group_by_account(dataset).items():
        if theirs_of.get(account, group) != group:
            raise InvalidSchema(f"account {account!r} belongs to another group in dataset {other.name!r}: declare one")
    for cap in dataset.budgets:
        mine, theirs = dataset.units[cap.unit], other.units[cap.unit]
        if (mine.kind, mine.every) != (theirs.kind, theirs.every):
            raise InvalidSchema(f"unit {cap.unit!r} has another kind or window length in dataset {other.name!r}")
        if mine.kind == "window" and dataset.timezone != other.timezone:
            raise InvalidSchema(f"unit {cap.unit!r} has windows in another time zone in dataset {other.name!r}")
