"""The scope of an expression: the columns that it can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dither.plan.sql.builders import Sql
from dither.plan.sql.dialect import Dialect
from dither.schema import Domain


@dataclass(frozen=True)
class Scope:
    """The columns that an expression can read: their domains and, for SQL, their names and the engine's dialect."""

    columns: Mapping[str, Domain]
    names: Mapping[str, Sql] = field(default_factory=dict)
    dialect: Dialect = field(default_factory=Dialect)
