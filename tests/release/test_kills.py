"""kill -9 at any point, also around the record and the rename: one charge, one manifest, every part published once."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dither.release.api import open_release
from release.world import ADMISSION, SPEC, write_world

KILLER = Path(__file__).parent / "killer.py"


def killer(*jobs: tuple[Path, Path, list[int | str]]) -> list[list[dict[str, Any]]]:
    """Make releases, each killed at some points, by one process; return what was found after each kill."""
    text = json.dumps([[str(spec), str(out), kills] for spec, out, kills in jobs])
    result = subprocess.run([sys.executable, str(KILLER), text], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found: list[list[dict[str, Any]]] = json.loads(result.stdout)
    return found


def check(found: list[dict[str, Any]], spec: Path, out: Path) -> None:
    """What every sequence of kills must leave."""
    assert found[-1]["status"] == 0
    complete = sorted([*(path.name for path in out.iterdir())])
    seen: dict[str, str] = {}
    for step in found:
        assert step["out"] in (None, complete)  # absent until it is complete
        assert step["mode"] in (None, "0o700")
        if step["parts"]:
            assert seen.items() <= step["parts"].items(), "a journaled draw was replaced"
            seen = step["parts"]
    manifest = json.loads((out / "manifest.json").read_text())
    digests = [entry["sha256"] for entry in manifest["files"]]
    assert {int(part): digest for part, digest in seen.items()}.items() <= dict(enumerate(digests)).items()
    assert all(hashlib.sha256((out / e["file"]).read_bytes()).hexdigest() == e["sha256"] for e in manifest["files"])
    assert not (out.parent / f".{out.name}.staging").exists()
    with open_release(spec) as release:
        kinds = [row.kind for row in release.kernel.ledger.rows()]
        answers = [json.loads(row.body) for row in release.kernel.ledger.rows() if row.kind == "answer"]
    assert kinds.count("charge") == 1
    recorded = json.loads(answers[0]["release"])["manifest"]
    assert recorded == hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()


def kill_all(folder: Path, sequences: list[list[int | str]]) -> Counter[str]:
    """Make one release for each sequence of kills, check what they leave, and count where they hit."""
    points: Counter[str] = Counter()
    specs = [write_world(folder / f"world{number}", SPEC + ADMISSION) for number in range(len(sequences))]
    outs = [folder / f"out{number}" for number in range(len(sequences))]
    for found, kills, spec, out in zip(
        killer(*zip(specs, outs, sequences, strict=True)), sequences, specs, outs, strict=True
    ):
        assert [step["status"] for step in found[:-1]] == [9] * (len(found) - 1)
        assert len(found) > 1 or not isinstance(kills[0], str), "no process was killed"
        check(found, spec, out)
        points.update(step["point"] for step in found[:-1])
    return points


@pytest.mark.tier("test")
def test_killed_around_the_record_and_the_rename_and_at_random_points() -> None:
    """Eleven kills: before and after the charge, the record and the rename, and at random points between."""
    random = Random(3)
    early: list[int | str] = ["before charge", "after charge", "before note", "after __call__"]
    sequences = [
        [*early, *(random.randint(10, 60) for _ in range(3)), "before record"],
        ["after record", "after publish"],
        ["after copyfile", "before remove"],
    ]
    with TemporaryDirectory() as folder:
        kill_all(Path(folder), sequences)


WINDOWS: list[int | str] = [
    "before record", "after record", "before copyfile", "after link", "after write_text", "before publish",
    "after publish", "before remove",
]  # fmt: skip


@pytest.mark.tier("deep")
def test_a_hundred_kills(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Four kills at random points, then two in the steps from the record to the end, in each of twenty releases."""
    random = Random(11)
    sequences: list[list[int | str]] = []
    for _ in range(20):
        late = sorted(random.sample(range(len(WINDOWS)), 2))
        sequences.append([*(random.randint(1, 70) for _ in range(4)), *(WINDOWS[place] for place in late)])
    with TemporaryDirectory() as folder:
        points = kill_all(Path(folder), sequences)
    record_testsuite_property("kills", json.dumps(points))
    assert points.total() >= 100
    assert all(points[place] for place in WINDOWS if isinstance(place, str))
