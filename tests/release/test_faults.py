"""Faults of releases that were found by review: each test fails on the code before its repair."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dither.errors import BudgetExceeded, InvalidParameter, InvalidPlan, NotAllowed, ReleaseStopped, Unsupported
from dither.plan.context import Context
from dither.plan.measures.sums import Count
from dither.privacy import table_release
from dither.privacy.cost import privacy_cost
from dither.privacy.protocol import KeySelection, ReleaseRequest
from dither.privacy.staging import Staging, file_digest, remove_folder
from dither.privacy.table_release import check_table
from dither.release.api import StaticRelease, open_release
from release.world import ADMISSION, DATASET, SPEC, stop_after, write_world

KEYS = "  url: url_id\n  month: DATE_TRUNC('month', at)\n  country: country"
GROUPS = "groups:\n  - {name: red, analysts: [ann]}\n  - {name: blue, analysts: [bob]}\nbudgets:"


def charges(release: StaticRelease) -> int:
    return sum(row.kind == "charge" for row in release.kernel.ledger.rows())


# --- Who is charged ---


def test_separate_budgets_refuse_a_public_table(tmp_path: Path) -> None:
    dataset = DATASET.replace("budgets:", f"policy: separate\n{GROUPS}")
    spec = write_world(tmp_path / "world", SPEC, dataset)
    with open_release(spec, account="ann") as release:
        with pytest.raises(Unsupported, match="policy: shared"):
            release.quote()
        with pytest.raises(Unsupported, match="every group would see it"):
            release.write(tmp_path / "out")
        assert charges(release) == 0 and not (tmp_path / "out").exists()


def test_an_account_outside_the_groups_is_told_so(tmp_path: Path) -> None:
    spec = write_world(tmp_path / "world", SPEC, DATASET.replace("budgets:", GROUPS))
    with open_release(spec) as release, pytest.raises(NotAllowed, match="'curator' may not query"):
        release.quote()
    with open_release(spec, account="ann") as release:
        assert release.quote().affordable


# --- What is admitted ---


@pytest.mark.parametrize(
    ("key", "condition", "threshold", "kept"),
    [
        ("country: country", "country <> 'AT'", 500, {"CH", "other"}),
        ("month: DATE_TRUNC('month', at)", "at >= TIMESTAMP '2019-02-01'", 500, {"2019-02", "2019-03"}),
        ("code: code", "code >= 40", -10, set(range(51))),
    ],
    ids=["category", "month", "integer"],
)
def test_a_condition_on_the_first_key_admits_the_right_items(
    tmp_path: Path, key: str, condition: str, threshold: int, kept: set[object]
) -> None:
    """Laplace(1/10): a count that is 10 off the threshold changes sides with probability below 1e-40."""
    dataset = DATASET.replace("max: 60000000", "max: 50").replace("rho: 10", "rho: 100")
    name = key.split(":")[0]
    text = SPEC.replace(KEYS, f"  {key}\n  {'url: url_id' if name == 'country' else 'country: country'}")
    text += f'admission: {{where: "{condition}", threshold: {threshold}, scale: 1/10}}\n'
    with open_release(write_world(tmp_path / "world", text, dataset)) as release:
        release.write(tmp_path / "out")
    found = duckdb.sql(f"SELECT DISTINCT {name} FROM '{tmp_path}/out/data/*.parquet'").fetchall()
    assert {value for (value,) in found} == kept


def test_the_kernel_refuses_an_admission_over_other_values_and_a_selection(tmp_path: Path) -> None:
    with open_release(write_world(tmp_path / "world", SPEC + ADMISSION)) as release:
        question, kernel = release.question.request.question, release.kernel
        admission, table = question.parts
        assert isinstance(admission.measure, Count)
        values = tuple(release.question.axes[0].values)[1:]
        key = replace(admission.measure.keys[0], values=values)
        narrow = replace(admission, measure=replace(admission.measure, keys=(key,)))
        with pytest.raises(InvalidPlan, match="same values of the first key"):
            kernel.quote_table(ReleaseRequest(replace(question, parts=(narrow, table))), "curator")
        ctx = Context(kernel.schema("shares", "curator"), kernel.facts("shares", "curator"))
        selecting = replace(question, selection=KeySelection((admission,)))
        with pytest.raises(Unsupported, match="selects nothing"):
            check_table(ctx, ReleaseRequest(selecting), privacy_cost(ctx, question))


# --- The private folder ---


def test_the_staging_folder_is_never_somebodys_own(tmp_path: Path) -> None:
    spec, mine = write_world(tmp_path / "world"), tmp_path / "mine"
    (mine / "parts").mkdir(mode=0o700, parents=True)
    mine.chmod(0o700)
    (mine / "parts" / "thesis.txt").write_text("chapter 1")
    with open_release(spec) as release:
        with pytest.raises(InvalidParameter, match="new or empty folder"):
            release.write(tmp_path / "out", mine)
        assert charges(release) == 0 and (mine / "parts" / "thesis.txt").read_text() == "chapter 1"
        empty = tmp_path / "empty"
        empty.mkdir(mode=0o700)
        stop_after(release, tmp_path / "out", 2, empty)
        (empty / "notes.txt").write_text("put here meanwhile")
        assert release.write(tmp_path / "out", empty)
    assert [path.name for path in empty.iterdir()] == ["notes.txt"]


def test_a_published_release_leaves_the_staging_of_another_alone(tmp_path: Path) -> None:
    spec, stage = write_world(tmp_path / "world"), tmp_path / "stage"
    again = spec.with_name("again.yml")
    again.write_text(SPEC + "repeat: 1\n")
    with open_release(again) as second:
        assert second.write(tmp_path / "second", stage) and not stage.exists()
    with open_release(spec) as first:
        stop_after(first, tmp_path / "first", 5, stage)
    before = sorted(path.name for path in (stage / "parts").iterdir())
    with open_release(again) as second:
        assert not second.write(tmp_path / "second", stage)
    assert sorted(path.name for path in (stage / "parts").iterdir()) == before != []
    with open_release(spec) as first:
        assert first.write(tmp_path / "first", stage) and charges(first) == 2


def test_a_release_that_the_budget_refused_does_not_block_a_cheaper_one(tmp_path: Path) -> None:
    """Regression: its staging folder, in which nothing was read, had to be deleted by hand."""
    spec, out = write_world(tmp_path / "world", SPEC.replace("sigma: 1}", "sigma: 1/10}")), tmp_path / "out"
    with open_release(spec) as release, pytest.raises(BudgetExceeded):
        release.write(out)
    spec.write_text(SPEC)
    with open_release(spec) as release:
        assert release.write(out) and charges(release) == 1
    assert not (tmp_path / ".out.staging").exists()


def test_other_columns_are_another_layout(tmp_path: Path) -> None:
    spec, out = write_world(tmp_path / "world"), tmp_path / "out"
    with open_release(spec) as release:
        stop_after(release, out, 2)
    spec.write_text(SPEC + "consistency: {nonnegative: true}\n")
    with open_release(spec) as release, pytest.raises(InvalidParameter, match="the layout has changed"):
        release.write(out)


@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_damaged_cells_are_read_again(tmp_path: Path, damage: str) -> None:
    """3,000 rows of which 6 in 7 are views or clicks; the noise of 180 cells has sigma 43, so 1,000 is 23 sigma."""
    spec, out = write_world(tmp_path / "world"), tmp_path / "out"
    with open_release(spec) as release:
        stop_after(release, out, 2)
        cells = tmp_path / ".out.staging" / "exact" / "cells.parquet"
        cells.write_bytes(cells.read_bytes()[:-9]) if damage == "cut" else cells.unlink()
        assert release.write(out) and charges(release) == 1
    ((total,),) = duckdb.sql(f"SELECT SUM(views) + SUM(clicks) FROM '{out}/data/*.parquet'").fetchall()
    assert total > 1_500


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"7",
        b'[["part", 3]]',
        b'{"part": {"nope": 1}}',
        b'{"part": 3}',
        b'{"part": {"part": [0], "file": "f", "rows": 1, "bytes": 1, "sha256": "0"}}',
        b'{"part": {"part": 0, "file": ["f"], "rows": 1, "bytes": 1, "sha256": "0"}}',
        b'{"admitted": ["x"]}',
        b'{"admitted": [1e400]}',
        b'{"admitted": [1.0]}',
        b'{"admitted": [true]}',
        b'{"admitted": ["3"]}',
        b'{"admitted": [-4]}',
        b'{"admitted": [4, 4]}',
        b'{"admitted": "12"}',
        b"[" * 100_000,
    ],
    ids=lambda line: line[:40].decode(),
)
def test_a_damaged_journal_stops_with_a_sentence(tmp_path: Path, line: bytes) -> None:
    spec, out = write_world(tmp_path / "world"), tmp_path / "out"
    with open_release(spec) as release:
        stop_after(release, out, 2)
        with open(tmp_path / ".out.staging" / "journal.jsonl", "ab") as file:
            file.write(line + b"\n")
        with pytest.raises(ReleaseStopped, match=r"the journal .* is missing or damaged"):
            release.write(out)
        assert charges(release) == 1 and not out.exists()


@pytest.mark.parametrize("name", ["lock", "question.unfinished", "parts"])
def test_a_private_folder_that_cannot_be_written_stops_with_a_sentence(tmp_path: Path, name: str) -> None:
    """A name that is taken stands in for a file system that has become read-only, at each step before the charge."""
    spec, out, stage = write_world(tmp_path / "world"), tmp_path / "out", tmp_path / ".out.staging"
    stage.mkdir(mode=0o700)
    if name == "parts":
        (stage / "question").write_text("another")
        (stage / "parts").write_text("")
    else:
        (stage / name).mkdir()
    with open_release(spec) as release:
        with pytest.raises(ReleaseStopped, match="stopped while writing"):
            release.write(out)
        assert charges(release) == 0 and not out.exists()


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"7", b"[1, 2, 3, 4, 5]"])
def test_a_damaged_list_of_files_stops_with_a_sentence(
    tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the record: the files that it lists, or none, may be published."""
    spec, out = write_world(tmp_path / "world"), tmp_path / "out"
    listed = tmp_path / ".out.staging" / "staged.json"
    with open_release(spec) as release:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(table_release, "publish_recorded", interrupt)
            release.write(out)
        kept = listed.read_bytes()
        listed.unlink() if content is None else listed.write_bytes(content)
        with pytest.raises(ReleaseStopped, match=r"is missing or damaged; nothing was published"):
            release.write(out)
        assert not out.exists()
        listed.write_bytes(kept)
        assert release.write(out) and charges(release) == 1


@pytest.mark.parametrize(
    ("manifest", "staged"),
    [
        ({}, ["a"]),
        ([], ["a"]),
        ({"files": [{"file": "data/a"}]}, ["a"]),
        ({"files": [{"sha256": "0"}]}, ["a"]),
        ({"files": [{"file": "data/a", "sha256": "0"}, {"file": "data/b", "sha256": "ours"}]}, ["a", "a"]),
        (None, ["a"]),
    ],
    ids=["no files", "no object", "no hash", "no name", "one file twice", "no manifest"],
)
def test_a_damaged_manifest_stops_with_a_sentence(tmp_path: Path, manifest: Any, staged: list[str]) -> None:
    staging = Staging(tmp_path / "stage", tmp_path / "out")
    staging.begin("q")
    (staging.parts / "a").write_text("noisy")
    content = json.dumps(manifest).replace("ours", file_digest(staging.parts / "a"))
    if manifest is not None:
        (staging.folder / "manifest.json").write_text(content)
    (staging.folder / "staged.json").write_text(json.dumps(staged))
    with pytest.raises(ReleaseStopped, match=r"is missing or damaged; nothing was published"):
        staging.build_output()
    staging.close()


def interrupt(*anything: Any) -> None:
    raise KeyboardInterrupt


def test_a_link_to_nowhere_is_an_existing_output(tmp_path: Path) -> None:
    spec, out = write_world(tmp_path / "world"), tmp_path / "out"
    out.symlink_to(tmp_path / "nowhere" / "at all")
    with open_release(spec) as release:
        with pytest.raises(InvalidParameter, match="exists already"):
            release.write(out, tmp_path / "stage")
        assert charges(release) == 0


def test_a_worker_that_is_still_busy_leaves_no_draw_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that Spark has abandoned may begin a file while the folder is being deleted."""
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "draw").write_text("noisy")
    delete = os.rmdir

    def busy(*path: Any, **options: Any) -> None:
        with suppress(FileNotFoundError):
            (folder / "late").write_text("noisy")
        delete(*path, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []
