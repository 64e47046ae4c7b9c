"""Makes releases in forked processes that kill themselves with SIGKILL at given points, until one completes.

python killer.py '[["SPEC", "OUT", [7, "after record"]]]'    prints, as JSON, what was found after each kill

A point is the number of a call, or a name such as "after record": its first call.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dither.privacy.ledger import Ledger
from dither.privacy.staging import Staging
from dither.privacy.table_release import TableDraw
from dither.release.api import open_release

# A process may die before and after each call of these.
POINTS: list[tuple[Any, str]] = [
    (os, "fsync"), (os, "rename"), (os, "link"), (shutil, "rmtree"), (shutil, "copyfile"), (Ledger, "charge"),
    (Ledger, "record"), (Staging, "note"), (Staging, "begin"), (Staging, "publish"), (Staging, "remove"),
    (TableDraw, "__call__"), (Path, "unlink"), (Path, "write_text"), (Path, "write_bytes"), (Path, "chmod"),
]  # fmt: skip


def watch(hit: Callable[[str], None]) -> None:
    """Call `hit` before and after every point."""
    for owner, name in POINTS:

        def wrapped(*given: Any, original: Any = getattr(owner, name), place: str = name, **options: Any) -> Any:
            hit(f"before {place}")
            result = original(*given, **options)
            hit(f"after {place}")
            return result

        setattr(owner, name, wrapped)


def run(spec: str, out: str, kill_at: int | str | None, report: int) -> None:
    """Make the release; die at a point, whose name goes to the pipe `report`."""
    passed: list[str] = []

    def hit(place: str) -> None:
        passed.append(place)
        if kill_at in (len(passed), place):
            os.write(report, place.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    with open_release(spec) as release:
        watch(hit)
        release.write(out)


def state(out: Path) -> dict[str, Any]:
    """What a kill left behind, as others and as the next start see it."""
    staging = out.parent / f".{out.name}.staging"
    journal = staging / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    parts = [json.loads(line).get("part") for line in lines]
    return {
        "out": sorted(os.listdir(out)) if out.exists() else None,
        "mode": oct(staging.stat().st_mode & 0o777) if staging.exists() else None,
        "snapshot": (staging / "exact").exists(),
        "parts": {part["part"]: part["sha256"] for part in parts if part},
        "recorded_manifest": (staging / "manifest.json").exists(),
    }


def attempt(spec: str, out: Path, kill_at: int | str | None) -> dict[str, Any]:
    """Fork, make the release in the child, and return its exit status and the point where it died."""
    listen, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(spec, str(out), kill_at, report)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    os.close(report)
    with os.fdopen(listen) as said:
        point = said.read()
    return {"status": os.waitpid(child, 0)[1], "point": point}


def main() -> None:
    results = []
    for spec, out, kills in json.loads(sys.argv[1]):
        found = []
        for kill_at in [*kills, None]:
            ended = attempt(spec, Path(out), kill_at)
            found.append({"killed": kill_at, **ended, **state(Path(out))})
            if ended["status"] == 0:
                break
        results.append(found)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
