"""The small world, its engine, and sessions over a kernel without a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dither.access.engines import Engine, open_engine
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.post.session import Session
from dither.schema import load
from post.bare import BareKernel
from post.small_world import build, facts, raw


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("world")
    build(where)
    return where


@pytest.fixture(scope="session")
def engine(folder: Path) -> Iterator[Engine]:
    opened = open_engine(load(folder / "dataset.yml"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def tables(folder: Path) -> duckdb.DuckDBPyConnection:
    return raw(folder)


@pytest.fixture
def truth(tables: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor for each test: one that is left in the middle of a result does not stop the next test."""
    return tables.cursor()


@pytest.fixture(scope="session")
def kernel(engine: Engine) -> BareKernel:
    return BareKernel(engine.ctx, engine.vector)


@pytest.fixture(scope="session")
def session(kernel: BareKernel) -> Session:
    return Session.from_kernel(kernel, "analyst")


def _no_engine(measure: Measure) -> Any:
    raise AssertionError(f"{type(measure).__name__} was read, and nothing may be")


@pytest.fixture(scope="session")
def blind(folder: Path) -> Session:
    """A session whose kernel has no engine at all."""
    context = Context(load(folder / "dataset.yml"), facts())
    return Session.from_kernel(BareKernel(context, _no_engine), "analyst")
