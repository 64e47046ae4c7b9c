"""Releases on a real cluster of two workers: copied tasks, killed executors, killed drivers; one draw of each part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from release.engines import write_spark_world
from release.test_engines import SMALL_PARTS, exact_cells
from release.test_release import ROWS, read
from release.world import exact_counts, write_world

pytestmark = pytest.mark.tier("deep")

TESTS = Path(__file__).parents[1]
MOST_SECONDS = 300
PARTS = 20
COPIES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
}
NOBODY = 65534


class Run:
    """A release on the cluster, in a folder that others may enter."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.spec, self.out, self.staging = folder / "world" / "release.yml", folder / "out", folder / ".out.staging"
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.drivers: list[subprocess.Popen[str]] = []
        write_spark_world(folder / "world", SMALL_PARTS, master=url)

    def start(self, *held: str, **settings: str) -> subprocess.Popen[str]:
        """Start a driver, in a process group of its own."""
        arguments = [self.url, str(self.spec), str(self.out), str(self.marks), json.dumps(held), json.dumps(settings)]
        command = [sys.executable, "-m", "release.spark_driver", *arguments]
        log = (self.folder / "driver.log").open("a")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        driver = subprocess.Popen(
            command, cwd=TESTS, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        self.drivers.append(driver)
        return driver

    def kill(self, driver: subprocess.Popen[str]) -> None:
        """Kill a driver and its JVM."""
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def wait_for(self, condition: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
        """Wait until something has happened; fail if the driver ends before."""
        until = time.monotonic() + MOST_SECONDS
        while not condition():
            assert driver.poll() is None and time.monotonic() < until, (self.folder / "driver.log").read_text()[-4000:]
            time.sleep(0.05)

    def mark(self, step: str, number: int = 0) -> dict[str, Any]:
        """What an attempt has left."""
        found: dict[str, Any] = json.loads((self.marks / f"{step}.{number}").read_text())
        return found

    def wait_for_mark(self, step: str, driver: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait until the first attempt of a step has written its file."""
        self.wait_for((self.marks / f"{step}.0").exists, driver)
        return self.mark(step)

    def journal(self) -> dict[int, str]:
        """The hashes of the parts in the journal."""
        journal = self.staging / "journal.jsonl"
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        parts = [json.loads(line).get("part") for line in lines]
        return {part["part"]: part["sha256"] for part in parts if part}

    def is_private(self) -> bool:
        """Whether the output is absent and nobody else may look into the private folder."""
        other: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        seen = subprocess.run(["/bin/ls", self.folder, self.staging], capture_output=True, text=True, **other)
        refused = not other or ("marks" in seen.stdout and "Permission denied" in seen.stderr)
        return refused and self.staging.stat().st_mode & 0o777 == 0o700 and not self.out.exists()

    def finish(self, driver: subprocess.Popen[str]) -> list[str]:
        """Wait for the end, check the output, and return the hashes of its files."""
        printed, _ = driver.communicate(timeout=MOST_SECONDS)
        assert driver.returncode == 0, (self.folder / "driver.log").read_text()[-4000:]
        assert printed.splitlines()[-1] == "1"  # charged once
        checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=self.out, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
        assert not self.staging.exists()
        rows, truth = read(self.out), exact_counts(self.spec.parent)
        assert len(rows) == ROWS and len({row[:3] for row in rows}) == ROWS
        assert all(abs(row[3] - truth.get(row[:3], (0, 0))[0]) <= 36 for row in rows)  # 12 sigma: below 1e-30
        hashes = [entry["sha256"] for entry in json.loads((self.out / "manifest.json").read_text())["files"]]
        assert len(hashes) == len(set(hashes)) == PARTS == len(list((self.out / "data").iterdir()))
        return hashes


@pytest.fixture
def run(spark_cluster: Any) -> Iterator[Run]:
    """A release on the cluster, not yet begun."""
    with tempfile.TemporaryDirectory(prefix="dither-release-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        begun = Run(Path(place), spark_cluster.url)
        yield begun
        for driver in begun.drivers:
            begun.kill(driver)


def cells_in(folder: Path) -> pa.Table:
    """The exact cells in a folder, sorted."""
    return pa.concat_tables([pq.read_table(path) for path in folder.glob("*.parquet")]).sort_by("cell")


def test_a_copied_task_publishes_one_of_its_draws(run: Run) -> None:
    """Spark copies the held attempts to the other worker: both have written a file, and one of the two counts."""
    driver = run.start("cells", "part 3", **COPIES)
    run.wait_for_mark("part 3", driver)
    assert run.is_private()
    published = run.finish(driver)
    for step in ("cells", "part 3"):
        attempts = [run.mark(step, number) for number in range(2)]
        assert len({attempt["file"] for attempt in attempts}) == 2
    first, second = (run.mark("part 3", number) for number in range(2))
    assert first["place"] != second["place"]  # on two workers: the first attempt was abandoned while it ran
    assert published[3] == second["sha256"] and first["sha256"] not in published


def test_killed_executors_and_a_killed_driver_leave_one_draw_of_each_part(run: Run, tmp_path: Path) -> None:
    driver = run.start("cells", "part 2", "part 9")
    for step in ("cells", "part 2"):
        os.kill(run.wait_for_mark(step, driver)["executor"], signal.SIGKILL)
    run.wait_for(lambda: len(run.journal()) >= 8, driver)
    assert run.is_private()
    wanted, _ = exact_cells(write_world(tmp_path / "world", SMALL_PARTS), tmp_path / "exact")
    assert cells_in(run.staging / "exact").equals(wanted)  # an executor was lost while they were computed
    abandoned = run.wait_for_mark("part 9", driver)["sha256"]
    run.kill(driver)
    kept = run.journal()
    assert 8 <= len(kept) < PARTS and run.is_private()
    published = run.finish(run.start())
    assert {part: published[part] for part in kept} == kept
    assert abandoned not in published and run.mark("part 2")["sha256"] not in published


def test_a_driver_that_is_killed_while_it_reads_reads_again(run: Run) -> None:
    driver = run.start("cells")
    abandoned = run.wait_for_mark("cells", driver)
    run.kill(driver)
    assert run.is_private() and not (run.staging / "exact").exists()
    run.finish(run.start())
    assert run.mark("cells", 1)["file"] != abandoned["file"]


def test_a_release_through_spark_connect(spark_connect: str, tmp_path: Path) -> None:
    spec, out = write_spark_world(tmp_path / "world", SMALL_PARTS, remote=spark_connect), tmp_path / "out"
    command = [sys.executable, "-m", "dither", "release", str(spec), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["new"]
    rows, truth = read(out), exact_counts(spec.parent)
    assert len(rows) == ROWS and len(list((out / "data").iterdir())) == PARTS
    assert all(abs(row[3] - truth.get(row[:3], (0, 0))[0]) <= 36 for row in rows)  # 12 sigma: below 1e-30
