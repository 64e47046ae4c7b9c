"""Run as a program: the driver of a release on a Spark cluster, some of whose attempts hold until they are killed.

python -m release.spark_driver URL SPEC OUT MARKS '["cells", "part 3"]' '{"spark.speculation": "true"}'

The first attempt of each named step writes its file, leaves a mark in the folder MARKS, and then waits to be killed.
The last line that is printed is the number of charges.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from conftest import SparkCluster
from dither.access.cell_tasks import WriteCells
from dither.access.engines import spark as spark_engine
from dither.access.exact_cells import RowRange, TableKeys
from dither.plan.measures.core import Vector
from dither.privacy.staging import file_digest
from dither.release.api import open_release

MOST_SECONDS = 240


@dataclass(frozen=True)
class Marks:
    """Notes the attempts of steps; those that are named hold when they are first tried."""

    folder: Path
    held: frozenset[str]

    def note(self, step: str, file: Path) -> None:
        """Leave a mark of an attempt that has written its file; hold the first one of a named step."""
        executor = psutil.Process().parent().parent()  # above the daemon that starts Python workers
        facts = {"executor": executor.pid, "place": os.getcwd(), "file": file.name, "sha256": file_digest(file)}
        number = next(n for n in count() if self._leave(f"{step}.{n}", json.dumps(facts)))
        until = time.monotonic() + MOST_SECONDS
        while number == 0 and step in self.held:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody killed the first attempt of {step}")
            time.sleep(0.05)

    def _leave(self, name: str, text: str) -> bool:
        """Leave a mark whole, unless there is one of this name."""
        whole = self.folder / f"unfinished.{os.getpid()}"
        whole.write_text(text)
        try:
            os.link(whole, self.folder / name)
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True


@dataclass(frozen=True)
class HeldWriter:
    """Writes parts, and notes each attempt."""

    write: Any
    marks: Marks

    def __call__(self, part: RowRange, keys: TableKeys, noisy: Vector, path: Path) -> None:
        self.write(part, keys, noisy, path)
        self.marks.note(f"part {part.number}", path)


@dataclass(frozen=True)
class HeldCells(WriteCells):
    """Writes the exact cells, and notes each attempt."""

    marks: Marks | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for report in super().__call__(batches):
            if self.marks is not None:
                self.marks.note("cells", self.folder / report.column("file")[0].as_py())
            yield report


def main(url: str, spec: str, out: str, folder: str, held: str, settings: str) -> int:
    """Make the release, and return the number of charges."""
    marks, place = Marks(Path(folder), frozenset(json.loads(held))), Path(out)
    spark_engine.WriteCells = lambda attempts: HeldCells(attempts, marks)  # type: ignore[misc, assignment]
    path = os.pathsep.join(sys.path)
    session = SparkCluster(url, place.parent / "scratch").session(
        **{"spark.executorEnv.PYTHONPATH": path, "spark.sql.adaptive.enabled": "false", **json.loads(settings)}
    )
    with open_release(spec) as release:
        layout = release.layout()
        layout = replace(layout, write=HeldWriter(layout.write, marks))
        staging = place.parent / f".{place.name}.staging"
        release.kernel.release_table(release.question.request, release.account, staging, place, layout)
        charges = sum(row.kind == "charge" for row in release.kernel.ledger.rows())
    session.stop()
    return charges


if __name__ == "__main__":
    print(main(*sys.argv[1:]), flush=True)
