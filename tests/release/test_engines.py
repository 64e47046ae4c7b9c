"""Releases on PostgreSQL and Spark: the same exact cells as on DuckDB, the same files, one draw of each part."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.engines import spark as spark_engine
from dither.access.exact_cells import SCHEMA, RowRange, TableKeys
from dither.errors import EngineFailure, InvalidParameter
from dither.privacy.kernel import LocalKernel
from dither.release.api import open_release
from release.engines import DSN, write_postgres_world, write_spark_world
from release.test_release import ROWS, charges, read
from release.world import ADMISSION, DATASET, SPEC, exact_counts, stop_after, write_world

pytestmark = pytest.mark.tier("test")

OF_USERS = DATASET.replace("{unit: action, kind: zcdp, rho: 10,", "{unit: user, kind: zcdp, rho: 100,")
BY_USER = SPEC.replace("unit: action", "unit: user")
SMALL_PARTS = SPEC.replace("rows_per_part: 40", "rows_per_part: 9")
# Two columns that may count the same row make another statement than disjoint ones.
OVERLAPPING = SPEC.replace("  clicks: {where: \"action = 'click'\", sigma: 1}", "  all: {sigma: 1}")
CASES = {
    "actions": (SPEC, DATASET),
    "overlapping columns": (OVERLAPPING, DATASET),
    "rows of a user": (BY_USER + "max_rows: 4\n", OF_USERS),
    "rows of a user in each cell": (BY_USER + "max_rows_per_key: {rows: 1, keys: 3}\n", OF_USERS),
    "rows of a user for each action": (
        BY_USER + "max_rows_per_value: {column: action, rows: 2, values: 2}\n",
        OF_USERS,
    ),
    "broken records": (SPEC, DATASET.replace("max: 2019-03-31", "max: 2019-02-10").replace("60000000", "50")),
}


def exact_cells(spec: Path, folder: Path) -> tuple[pa.Table, dict[str, int]]:
    """The snapshot before noise that an engine writes, sorted, and the corrections in it."""
    with open_release(spec) as release, engine_of(release.kernel) as engine:
        engine.write_cells(release.question.measure, folder)
        tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
        assert all(table.equals(table.sort_by("cell")) for table in tables)
        return pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by("cell"), dict(engine.corrections())


class engine_of:
    """The engine of a kernel's only dataset, checked out."""

    def __init__(self, kernel: LocalKernel) -> None:
        (registered,) = kernel._datasets.values()
        self._slot = registered.engine()

    def __enter__(self) -> Any:
        return self._slot.__enter__().engine

    def __exit__(self, *error: Any) -> None:
        self._slot.__exit__(*error)


Writer = Callable[[Path, str, str], Path]


@pytest.fixture
def on_postgres(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Writes the world for PostgreSQL."""
    monkeypatch.setenv(DSN, postgres_database)
    return lambda folder, spec, dataset: write_postgres_world(folder, postgres_database, spec, dataset)


@pytest.fixture
def on_spark(spark: Any) -> Writer:
    """Writes the world for the Spark of this process."""
    return write_spark_world


def cells_are_equal(case: str, write: Writer, folder: Path) -> None:
    """Compare the exact cells of an engine with those of DuckDB."""
    here = exact_cells(write_world(folder / "here", *CASES[case]), folder / "here" / "exact")
    there = exact_cells(write(folder / "there", *CASES[case]), folder / "there" / "exact")
    assert here[0].num_rows > 20
    assert there[0].equals(here[0])
    assert there[1] == here[1]
    assert (case == "broken records") == (here[1]["values"] > 0)
    assert sorted(path.name for path in (folder / "there").glob("exact*")) == ["exact"]


@pytest.mark.parametrize("case", CASES)
def test_the_exact_cells_on_postgres_are_those_of_duckdb(case: str, on_postgres: Writer, tmp_path: Path) -> None:
    cells_are_equal(case, on_postgres, tmp_path)


BRIEF = ("broken records", "rows of a user in each cell")


@pytest.mark.parametrize("case", BRIEF)
def test_the_exact_cells_on_spark_are_those_of_duckdb(case: str, on_spark: Writer, tmp_path: Path) -> None:
    cells_are_equal(case, on_spark, tmp_path)


@pytest.mark.tier("deep")
@pytest.mark.parametrize("case", [case for case in CASES if case not in BRIEF])
def test_other_exact_cells_on_spark_are_those_of_duckdb(case: str, on_spark: Writer, tmp_path: Path) -> None:
    cells_are_equal(case, on_spark, tmp_path)


def admits(write: Writer, folder: Path) -> None:
    """Make a release that admits items."""
    with open_release(write(folder / "world", SPEC + ADMISSION, DATASET)) as release:
        release.write(folder / "out")
        assert charges(release) == 1
    kept = {row[0] for row in read(folder / "out")}
    assert 0 < len(kept) < 20 and json.loads((folder / "out" / "manifest.json").read_text())["rows"] == 9 * len(kept)


def test_items_are_admitted_on_postgres(on_postgres: Writer, tmp_path: Path) -> None:
    admits(on_postgres, tmp_path)


@pytest.mark.tier("deep")
def test_items_are_admitted_on_spark(on_spark: Writer, tmp_path: Path) -> None:
    admits(on_spark, tmp_path)


# --- The workers of a cluster ---


def test_workers_of_another_version_are_refused_before_the_charge(
    on_spark: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "installed_version", lambda: "0.0.1")
    with open_release(on_spark(tmp_path / "world", SPEC, DATASET)) as release:
        with pytest.raises(InvalidParameter, match=r"a worker has version .* the driver 0\.0\.1; its workers need"):
            release.write(tmp_path / "out")
        assert charges(release) == 0


def test_errors_of_workers_keep_their_kind_and_show_no_value(on_spark: Writer, tmp_path: Path) -> None:
    # Functions inside a function travel to the workers by value: these do not have the modules of tests.
    full = errno.ENOSPC

    def fill_disk(part: RowRange, exact: Any) -> str:
        raise OSError(full, "no space left on device")

    def fail(part: RowRange, exact: Any) -> str:
        raise ValueError(f"secret {exact.sum()}")

    with open_release(on_spark(tmp_path / "world", SPEC, DATASET)) as release, engine_of(release.kernel) as engine:
        (tmp_path / "exact").mkdir()
        keys, parts = TableKeys(2, 3, 1), [RowRange(0, 0, 6)]
        with pytest.raises(OSError, match="space") as stopped:
            list(engine.each_part(tmp_path / "exact", keys, parts, fill_disk))
        assert stopped.value.errno == errno.ENOSPC
        with pytest.raises(EngineFailure) as failed:
            list(engine.each_part(tmp_path / "exact", keys, parts, fail))
        assert str(failed.value) == str(EngineFailure()) and "secret 0" in engine.failure


def goes_on(write: Writer, folder: Path) -> None:
    """Interrupt a release, go on, and check what is published.

    Sigma 3 and 1 on 180 cells: one is 12 sigma off with probability below 1e-30.
    """
    spec, out, staging = write(folder / "world", SMALL_PARTS, DATASET), folder / "out", folder / ".out.staging"
    with open_release(spec) as release:
        stop_after(release, out, 9)
        assert staging.stat().st_mode & 0o777 == 0o700 and not out.exists()
    lines = [json.loads(line) for line in (staging / "journal.jsonl").read_text().splitlines()]
    drawn = {line["part"]["part"]: line["part"]["sha256"] for line in lines if "part" in line}
    assert len(drawn) == 9
    with open_release(spec) as release:
        assert release.write(out)
        assert not release.write(out)
        assert charges(release) == 1
    published = [entry["sha256"] for entry in json.loads((out / "manifest.json").read_text())["files"]]
    assert len(published) == len(set(published)) == 20
    assert {part: published[part] for part in drawn} == drawn
    rows, truth = read(out), exact_counts(spec.parent)
    errors = [[value - exact for value, exact in zip(row[3:], truth.get(row[:3], (0, 0)), strict=True)] for row in rows]
    assert len(rows) == ROWS and len(set(map(tuple, errors))) > 10  # noise was added
    assert max(abs(first) for first, _ in errors) <= 36 and max(abs(second) for _, second in errors) <= 12
    assert sorted(path.name for path in folder.iterdir()) == ["out", "world"]  # staging is gone


def test_an_interrupted_release_on_postgres_goes_on_with_its_draws(on_postgres: Writer, tmp_path: Path) -> None:
    goes_on(on_postgres, tmp_path)


def test_an_interrupted_release_on_spark_goes_on_with_its_draws(on_spark: Writer, tmp_path: Path) -> None:
    goes_on(on_spark, tmp_path)
