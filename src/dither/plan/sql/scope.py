"""Part of the former access.expr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dither.plan.sql.builders import Sql
from dither.plan.sql.dialect import Dialect
from dither.schema import Domain


@dataclass(frozen=True)
class Scope:
    """The columns around an expression: their domains, and for SQL their names and the engine's spelling."""

    columns: Mapping[str, Domain]
    names: Mapping[str, Sql] = field(default_factory=dict)
    dialect: Dialect = field(default_factory=Dialect)
