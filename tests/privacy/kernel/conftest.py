"""Fixtures for the tests of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dither.access.engines import open_engine
from dither.privacy.kernel import LocalKernel
from dither.schema import Dataset, Source
from privacy.kernel_cases import Room, Spy
from privacy.ledger_cases import dataset


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dataset]:
    """Files of 300 people with 20 actions each, and descriptions of them."""
    place = tmp_path_factory.mktemp("world")
    duckdb.sql(
        f"""COPY (SELECT range::bigint AS user_id, (18 + range % 40)::int AS age,
        ['DE', 'FR', 'other'][1 + range % 3] AS country FROM range(300)) TO '{place}/users.parquet'"""
    )
    duckdb.sql(
        f"""COPY (SELECT (range % 300)::bigint AS user_id, ['view', 'click', 'share'][1 + range % 3] AS kind,
        make_timestamp((range * 3600 * 1000000)::bigint) AS at FROM range(6000)) TO '{place}/actions.parquet'"""
    )

    def described(epsilon: Any = 10, **changes: Any) -> Dataset:
        made = dataset(epsilon, **changes)
        tables = {
            name: replace(table, source=Source("parquet", {"path": f"{place}/{name}.parquet"}))
            for name, table in made.tables.items()
        }
        return replace(made, tables=tables)

    return described


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Opens kernels whose engine is watched; a second one at the same place is a restart."""
    rooms: list[Room] = []

    def opening(described: Dataset, place: Path | None = None, **options: Any) -> Room:
        spies: list[Spy] = []

        def watched(each: Dataset) -> Spy:
            spies.append(Spy(open_engine(each)))
            return spies[-1]

        where = place or tmp_path / "ledger.sqlite"
        made = LocalKernel(described, where, engine=watched, **options)
        rooms.append(Room(made, spies, where))
        spies[0].reads.clear()
        return rooms[-1]

    yield opening
    for room in rooms:
        room.kernel.close()
