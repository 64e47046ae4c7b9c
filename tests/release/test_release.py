"""Static releases end to end: what is written, what it costs, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dither.connection import measure_profile
from dither.errors import Busy, DitherError, InvalidParameter, InvalidSchema, ReleaseStopped, Unbounded
from dither.loss import ZCDP
from dither.plan.measures.core import MAX_CELLS
from dither.post.session import Session
from dither.privacy import staging as staging_module
from dither.privacy.kernel import open_kernel
from dither.privacy.mechanisms import ColumnGaussian
from dither.privacy.staging import Staging
from dither.release.api import StaticRelease, open_release
from dither.release.spec import load_spec
from release.world import ADMISSION, DATASET, SPEC, URLS, exact_counts, stop_after, write_world

ROWS = URLS * 3 * 3


def charges(release: StaticRelease) -> int:
    return sum(row.kind == "charge" for row in release.kernel.ledger.rows())


def read(out: Path, form: str = "parquet") -> list[tuple[Any, ...]]:
    return duckdb.sql(f"SELECT * FROM read_{form}('{out}/data/*.{form}')").fetchall()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world")


# --- Contents ---


def test_every_key_has_its_noisy_counts_in_the_declared_order(spec: Path, tmp_path: Path) -> None:
    """Sigma 3 and 1 on 180 cells: one is 12 sigma off with probability below 1e-30."""
    with open_release(spec) as release:
        assert release.write(tmp_path / "out")
        assert charges(release) == 1
    rows = read(tmp_path / "out")
    truth = exact_counts(spec.parent)
    months, countries = ("2019-01", "2019-02", "2019-03"), ("AT", "CH", "other")
    keys = [(url, month, country) for url in range(1, URLS + 1) for month in months for country in countries]
    assert [row[:3] for row in rows] == keys
    errors = np.array([np.subtract(row[3:], truth.get(row[:3], (0, 0))) for row in rows])
    assert abs(errors[:, 0]).max() <= 36 and abs(errors[:, 1]).max() <= 12
    assert len({tuple(error) for error in errors}) > 10  # noise was added


@pytest.mark.tier("test")
def test_the_folder_is_complete_and_verifies(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_release(spec) as release:
        release.write(out)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    documents = {"README.md", "SHA256SUMS", "codebook.json", "codebook.md", "manifest.json", "privacy_statement.md"}
    charts = {"charts/errors.svg", "charts/totals.svg"}
    assert files == documents | charts | {f"data/part-{part:05d}.parquet" for part in range(5)}
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=out, capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stdout.count("OK") == len(files) - 1
    book = json.loads((out / "codebook.json").read_text())
    assert [column["variance"] for column in book["columns"]] == ["9", "1"]
    assert book["losses"] == [{"unit": "action", "kind": "zcdp", "loss": str(ZCDP("1/2"))}]
    assert "action: one row of actions" in (out / "privacy_statement.md").read_text()
    assert sorted(os.listdir(tmp_path)) == ["out", "world"]  # staging is gone
    (out / "data" / "part-00002.parquet").write_bytes(b"")
    broken = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, capture_output=True, text=True)
    assert broken.returncode == 1 and "part-00002" in broken.stdout


@pytest.mark.tier("test")
def test_csv_and_nonnegative_copies_beside_the_raw_values(tmp_path: Path) -> None:
    text = SPEC.replace("rows_per_part: 40", "rows_per_part: 100, format: csv") + "consistency: {nonnegative: true}\n"
    with open_release(write_world(tmp_path / "world", text)) as release:
        release.write(tmp_path / "out")
    rows = read(tmp_path / "out", "csv")
    assert len(rows) == ROWS and len(rows[0]) == 7
    assert min(row[4] for row in rows) < 0
    assert all(row[5:] == (max(0, row[3]), max(0, row[4])) for row in rows)


@pytest.mark.parametrize(("rows_per_part", "form"), [(40, "parquet"), (1, "parquet"), (40, "csv")])
def test_keys_may_be_null(rows_per_part: int, form: str, tmp_path: Path) -> None:
    """Regression test: Parquet refused a dictionary with NULL in it, after the charge, at every attempt."""
    dataset = DATASET.replace("values: [AT, CH, other], default: other", "values: [AT, CH], nullable: true")
    keys = "  month: DATE_TRUNC('month', at)\n  country: country\n"
    text = SPEC.replace("  url: url_id\n", "").replace(
        "rows_per_part: 40", f"rows_per_part: {rows_per_part}, format: {form}"
    )
    assert keys in text
    with open_release(write_world(tmp_path / "world", text, dataset)) as release:
        release.write(tmp_path / "out")
    rows = read(tmp_path / "out", form)
    assert len(rows) == 9 and {row[1] for row in rows} == {"AT", "CH", None}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_first_key_may_be_null(form: str, tmp_path: Path) -> None:
    text = SPEC.replace("where: url_id IS NOT NULL\n", "").replace(
        "rows_per_part: 40", f"rows_per_part: 9, format: {form}"
    )
    with open_release(write_world(tmp_path / "world", text)) as release:
        release.write(tmp_path / "out")
    found = {row[0] for row in read(tmp_path / "out", form)}
    assert found == {None, *range(1, URLS + 1)}


def test_items_are_admitted_by_a_noisy_threshold_in_the_same_charge(tmp_path: Path) -> None:
    """Laplace(1/2): a count 20 off the threshold changes sides with probability below 1e-17."""
    spec = write_world(tmp_path / "world", SPEC + ADMISSION)
    with open_release(spec) as release:
        (loss,) = release.cost.losses
        assert isinstance(loss.loss, ZCDP) and loss.loss.rho > Fraction(1, 2)
        release.write(tmp_path / "out")
        assert charges(release) == 1
    kept = {row[0] for row in read(tmp_path / "out")}
    shares = duckdb.sql(
        f"SELECT url_id, COUNT(*) FILTER (WHERE action = 'share') FROM '{spec.parent}/actions.parquet' GROUP BY 1"
    ).fetchall()
    counted = dict.fromkeys(range(1, URLS + 1), 0) | dict(shares)
    assert {url for url, count in counted.items() if count > 50} <= kept
    assert not kept & {url for url, count in counted.items() if count < 10}
    assert 0 < len(kept) < URLS and len(read(tmp_path / "out")) == 9 * len(kept)
    truth = exact_counts(spec.parent)
    assert all(abs(row[3] - truth.get(row[:3], (0, 0))[0]) <= 36 for row in read(tmp_path / "out"))


@pytest.mark.tier("test")
def test_a_bounded_user_is_a_unit_too(tmp_path: Path) -> None:
    dataset = DATASET.replace("{unit: action, kind: zcdp, rho: 10,", "{unit: user, kind: zcdp, rho: 100,")
    spec = write_world(tmp_path / "world", SPEC.replace("unit: action", "unit: user") + "max_rows: 4\n", dataset)
    with open_release(spec) as release:
        assert release.cost.losses[0].loss == ZCDP(8)  # 4^2 / (2 1^2)


@pytest.mark.tier("test")
def test_rows_beyond_the_limits_are_told_with_what_the_profile_knows(tmp_path: Path) -> None:
    """Each of 90 users has 33 or 34 actions, so that a limit of 4 drops 88%; the profile's noise is far below that."""
    dataset = DATASET.replace("{unit: action, kind: zcdp, rho: 10,", "{unit: user, kind: zcdp, rho: 1000,")
    spec = write_world(tmp_path / "world", SPEC.replace("unit: action", "unit: user") + "max_rows: 4\n", dataset)
    with open_release(spec) as release:
        told = release.quote().text
        assert "was not measured" in told and "at most 4 rows of one user (max_rows)" in told
    with closing(open_kernel(spec.parent / "dataset.yml")) as kernel:
        measure_profile(Session.from_kernel(kernel, "curator"), Fraction(20))
    with open_release(spec) as release:
        told = release.quote().text
        found = re.search(r"about (\d+)% of the rows of actions lie beyond 4 rows of one user", told)
        assert found is not None and 80 <= int(found[1]) <= 95, told
        assert "the 95% error is that of the noise alone" in told
        release.write(tmp_path / "out")
    for name in ("codebook.md", "README.md", "codebook.json"):
        assert "limits" in (tmp_path / "out" / name).read_text()
    assert found[0] in (tmp_path / "out" / "codebook.md").read_text()


def test_the_example_of_the_documentation_is_a_release(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "releases.md").read_text()
    example, *_ = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.M | re.S)
    dataset = DATASET.replace("{unit: action, kind: zcdp, rho: 10,", "{unit: user, kind: zcdp, rho: 1,")
    with open_release(write_world(tmp_path / "world", example, dataset)) as release:
        assert release.quote().affordable and "at most 20 rows of one user (max_rows)" in release.quote().text


def test_every_unknown_and_missing_entry_is_named(tmp_path: Path) -> None:
    text = SPEC.replace("version: 1", "versoin: 1").replace("keys:", "kees:").replace("sigma: 3", "sigmma: 3")
    with pytest.raises(InvalidSchema) as caught:
        load_spec(write_world(tmp_path / "world", text))
    assert sum("has no entry" in message for message in caught.value.args) == 2
    assert sum("the release needs" in message for message in caught.value.args) == 2


def test_a_release_without_limits_names_its_own_words(tmp_path: Path) -> None:
    dataset = DATASET.replace("{unit: action, kind: zcdp, rho: 10,", "{unit: user, kind: zcdp, rho: 100,")
    spec = write_world(tmp_path / "world", SPEC.replace("unit: action", "unit: user"), dataset)
    words = "with max_rows, max_rows_per_key or max_rows_per_value"
    with pytest.raises(Unbounded, match=words), open_release(spec) as release:
        release.quote()


@pytest.mark.tier("test")
def test_a_release_may_admit_nothing(tmp_path: Path) -> None:
    spec = write_world(tmp_path / "world", SPEC + ADMISSION.replace("threshold: 30", "threshold: 100000"))
    with open_release(spec) as release:
        assert release.write(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == 0
    assert list((tmp_path / "out" / "data").iterdir()) == []


# --- Cost and noise ---


@pytest.mark.tier("test")
def test_a_quote_reads_no_record_and_charges_nothing(spec: Path) -> None:
    with open_release(spec) as release:
        quote, plan = release.quote(), release.plan()
        assert charges(release) == 0
    assert quote.cost.losses[0].loss == ZCDP("1/2") and quote.affordable
    assert "180 rows, 360 values" in plan and "5 files" in plan
    for table in ("users", "actions"):
        shutil.copy(spec.parent / f"{table}.parquet", spec.parent / f"kept_{table}.parquet")
        duckdb.sql(f"COPY (FROM '{spec.parent}/kept_{table}.parquet' LIMIT 0) TO '{spec.parent}/{table}.parquet'")
    with open_release(spec) as release:
        assert release.quote().text == quote.text


@pytest.mark.tier("test")
@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("noise", "wanted"),
    [
        ("privacy: {rho: 1/50}", [Fraction(5), Fraction(5)]),
        ("privacy: {column_rho: 1/2}", [Fraction(3), Fraction(1)]),
    ],
)
def test_noise_is_solved_from_a_total(tmp_path: Path, noise: str, wanted: list[Fraction]) -> None:
    text = SPEC.replace("sigma: 3, ", "").replace(", sigma: 1", "") + noise + "\n"
    with open_release(write_world(tmp_path / "world", text)) as release:
        found = [Fraction(sigma) for sigma in (column.sigma for column in release.quote().columns)]
        assert found == pytest.approx([float(each) for each in wanted], rel=1e-4)
        (loss,) = release.cost.losses
        assert (isinstance(loss.loss, ZCDP) and "rho: 1/50" not in noise) or loss.loss.rho <= Fraction(1, 50)


@pytest.mark.tier("test")
def test_noise_is_solved_from_wanted_errors(tmp_path: Path) -> None:
    text = SPEC.replace("sigma: 3", "error: 10")
    with open_release(write_world(tmp_path / "world", text)) as release:
        assert release.quote().columns[0].error_95 == pytest.approx(10, rel=1e-5)


@pytest.mark.tier("test")
def test_the_table_may_have_more_cells_than_an_answer(tmp_path: Path) -> None:
    text = SPEC.replace("  url: url_id", "  url: url_id\n  code: code")
    with open_release(write_world(tmp_path / "world", text)) as release:
        assert release.question.rows * 2 > MAX_CELLS
        assert release.cost.losses[0].loss == ZCDP("1/2")
        with pytest.raises(DitherError, match="static table"):
            release.kernel.answer(release.question.request.question, "curator")


# --- Refusals ---


@pytest.mark.tier("test")
def test_the_same_release_again_is_found_and_costs_nothing(spec: Path, tmp_path: Path) -> None:
    with open_release(spec) as release:
        assert release.write(tmp_path / "out") and not release.write(tmp_path / "out")
        with pytest.raises(ReleaseStopped, match="already made and recorded"):
            release.write(tmp_path / "other")
        assert charges(release) == 1 and not (tmp_path / "other").exists()
    assert sorted(os.listdir(tmp_path)) == ["out", "world"]


@pytest.mark.tier("test")
def test_an_answer_and_a_table_are_two_questions(spec: Path, tmp_path: Path) -> None:
    with open_release(spec) as release:
        release.kernel.answer(release.question.request.question, "curator")
        assert release.write(tmp_path / "out")
        assert charges(release) == 2


@pytest.mark.tier("test")
@pytest.mark.parametrize("case", ["existing", "no parent", "staging inside", "staging open", "another spec"])
def test_places_are_checked_before_the_charge(case: str, spec: Path, tmp_path: Path) -> None:
    out, private = tmp_path / "out", tmp_path / "staging"
    if case == "existing":
        out.mkdir()
    if case == "staging open":
        private.mkdir(mode=0o755)
    if case == "another spec":
        stage = Staging(private, out)
        stage.begin("another question")
        (private / "exact").mkdir(mode=0o700)  # it has read records; before that, another release may take the folder
        stage.close()
    if case == "no parent":
        out = tmp_path / "no" / "out"
    if case == "staging inside":
        private = out / "staging"
    words = {"existing": "exists already", "no parent": "does not exist", "staging inside": "outside", "staging open":
             "0700", "another spec": "another question"}[case]  # fmt: skip
    with open_release(spec) as release:
        with pytest.raises(InvalidParameter, match=words):
            release.write(out, private)
        assert charges(release) == 0


@pytest.mark.tier("test")
def test_two_drivers_at_once_make_one_release(spec: Path, tmp_path: Path) -> None:
    with open_release(spec) as first, open_release(spec) as second:
        stage = Staging(tmp_path / ".out.staging", tmp_path / "out")
        with pytest.raises(Busy, match="another process"):
            first.write(tmp_path / "out")
        stage.close()

        def overtake(stage: str, done: int, total: int) -> None:
            """While the first draws, the second makes the release with another staging folder."""
            if stage == "drawing" and done == 2:
                assert second.write(tmp_path / "second")

        with pytest.raises(ReleaseStopped, match="already made"):
            first.write(tmp_path / "out", progress=overtake)
        assert charges(second) == 1
    assert not (tmp_path / "out").exists() and len(read(tmp_path / "second")) == ROWS


@pytest.mark.tier("test")
def test_a_full_disk_stops_and_the_release_goes_on(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real file system of 300 KB would need rights; the error is the one that it raises."""
    written: list[dict[str, object]] = []
    original = Staging.note

    def full(self: Staging, line: dict[str, object]) -> None:
        written.append(line)
        if len(written) == 4:  # the cells, two parts, and the third
            raise OSError(28, "No space left on device")
        original(self, line)

    with open_release(spec) as release:
        monkeypatch.setattr(Staging, "note", full)
        with pytest.raises(ReleaseStopped, match="no space left on device"):
            release.write(tmp_path / "out")
        assert not (tmp_path / "out").exists()
        monkeypatch.setattr(Staging, "note", original)
        assert release.write(tmp_path / "out")
        assert charges(release) == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    drawn = [line["part"]["sha256"] for line in written[1:3]]  # type: ignore[index]
    assert [entry["sha256"] for entry in manifest["files"]][:2] == drawn


@pytest.mark.tier("test")
@pytest.mark.parametrize("line", [b'{"part": {"part": 2, "fi', b"x"])
def test_a_torn_line_and_a_lost_snapshot(spec: Path, tmp_path: Path, line: bytes) -> None:
    stage = tmp_path / ".out.staging"
    with open_release(spec) as release:
        stop_after(release, tmp_path / "out", 2)
        with open(stage / "journal.jsonl", "ab") as file:
            file.write(line)
        (stage / "parts" / "abandoned.parquet").write_bytes(b"an abandoned draw")
        before = journal_digests(stage)
        if line == b"x":  # the exact cells are gone: everything is drawn anew
            shutil.rmtree(stage / "exact")
        assert release.write(tmp_path / "out") and charges(release) == 1
    published = [entry["sha256"] for entry in json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]]
    assert (before == published[:2]) == (line != b"x")
    assert len(read(tmp_path / "out")) == ROWS


def journal_digests(stage: Path) -> list[str]:
    lines = (stage / "journal.jsonl").read_bytes().split(b"\n")[:-1]
    parts = [json.loads(line).get("part") for line in lines]
    return [part["sha256"] for part in parts if part]


@pytest.mark.tier("test")
def test_a_damaged_part_is_not_published(spec: Path, tmp_path: Path) -> None:
    with open_release(spec) as release:
        stop_after(release, tmp_path / "out", 5)
        victim = next((tmp_path / ".out.staging" / "parts").iterdir())
        victim.write_bytes(victim.read_bytes()[:-1] + b"x")
        with pytest.raises(ReleaseStopped, match="damaged"):
            release.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.tier("test")
def test_a_published_part_drawn_twice_would_be_seen(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: a journal that forgets its parts draws them again, and the test above must notice."""
    monkeypatch.setattr(staging_module.Staging, "journal", lambda self: (None, {}))
    with open_release(spec) as release:
        stop_after(release, tmp_path / "out", 2)
        before = journal_digests(tmp_path / ".out.staging")
        release.write(tmp_path / "out")
    published = [entry["sha256"] for entry in json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]]
    assert published[:2] != before


@pytest.mark.tier("test")
def test_parts_do_not_depend_on_records(spec: Path, tmp_path: Path) -> None:
    with open_release(spec) as release:
        release.write(tmp_path / "one")
    other = write_world(tmp_path / "other")
    duckdb.sql(f"COPY (FROM '{spec.parent}/actions.parquet' LIMIT 1) TO '{other.parent}/actions.parquet'")
    with open_release(other) as release:
        release.write(tmp_path / "two")
    shapes = [
        [(e["file"], e["rows"]) for e in json.loads((tmp_path / name / "manifest.json").read_text())["files"]]
        for name in ("one", "two")
    ]
    assert shapes[0] == shapes[1]


# --- The description ---


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("unit: action", "unit: person", "no unit 'person'"),
        ("sigma: 3", "sigma: -3", "above 0"),
        ("sigma: 3", "sigmma: 3", "did you mean 'sigma'"),
        ("keys:", "kees:", "did you mean 'keys'"),
        ("sigma: 3, ", "", "not given"),
        ("action = 'click'", "action = 'view'", "same condition"),
        ("rows_per_part: 40", "rows_per_part: 0", "at least 1"),
        ("url: url_id", "url: actions.user_id", "identifiers cannot be"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, before: str, after: str, words: str) -> None:
    spec = write_world(tmp_path / "world", SPEC.replace(before, after))
    with pytest.raises(DitherError, match=words), open_release(spec) as release:
        release.quote()


def test_errors_name_the_line(tmp_path: Path) -> None:
    spec = write_world(tmp_path / "world", SPEC.replace("sigma: 3", "sigma: much"))
    with pytest.raises(InvalidSchema, match=r"release\.yml:15: "):
        load_spec(spec)


def test_column_noise_is_in_the_order_of_the_columns(spec: Path) -> None:
    with open_release(spec) as release:
        assert release.question.mechanism == ColumnGaussian((Fraction(9), Fraction(1)))


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda out: (out / "data" / "part-00002.parquet").unlink(), "part-00002.parquet is missing"),
        (lambda out: (out / "codebook.md").write_text("x"), "codebook.md differs from its checksum"),
        (lambda out: (out / "data" / "old.parquet").write_text("x"), "old.parquet is not listed in SHA256SUMS"),
        (lambda out: (out / "SHA256SUMS").unlink(), "has no file SHA256SUMS"),
        (lambda out: (out / "SHA256SUMS").write_text("x\n"), "not a checksum and a name"),
        (lambda out: (out / "SHA256SUMS").write_text(f"{'0' * 64}  ../x\n"), "../x is missing"),
        (lambda out: forge(out), "is not one that the ledger of this dataset has recorded"),
        (lambda out: link_elsewhere(out / "README.md"), "README.md is a link"),
        (lambda out: link_elsewhere(out / "SHA256SUMS"), "SHA256SUMS is a link"),
        (lambda out: link_elsewhere(out / "data"), "data is a link"),
        (lambda out: (out / "root").symlink_to("/"), "root is a link"),
        (lambda out: os.mkfifo(out / "pipe"), "pipe is a link or a special file"),
        (lambda out: list_twice(out), "lists a file twice"),
        (lambda out: os.truncate(out / "SHA256SUMS", 1 << 40), "SHA256SUMS is longer than"),
        (lambda out: forge(out, lambda old: old.replace(b'"format": 1', b'"format": 2')), "of a newer Dither"),
        (lambda out: forge(out, lambda old: b"[" * 200_000), "manifest.json lists no files"),
        (lambda out: (out / "a\x1b[31m\nb").write_text("x"), "a\\x1b[31m\\nb is not listed"),
        (lambda out: (out / os.fsdecode(b"a\xffb")).write_text("x"), "a\\udcffb is not listed"),
    ],
    ids=[
        *("missing", "changed", "left over", "no sums", "no checksum", "outside", "forged", "link", "linked sums"),
        *("linked folder", "link to a folder", "pipe", "twice", "huge sums", "newer", "deep", "control", "no text"),
    ],
)
def test_a_copy_that_is_not_the_release_is_refused(
    spec: Path, tmp_path: Path, fault: Callable[[Path], object], words: str
) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with open_release(spec) as release:
        release.write(out)
        shutil.copytree(out, copy)
        assert release.verify(copy) == hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()
        fault(copy)
        with pytest.raises(ReleaseStopped, match="is not a whole release: .*" + re.escape(words)):
            release.verify(copy)
        assert charges(release) == 1


def test_only_a_folder_can_be_verified(spec: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "absent", spec):
        with open_release(spec) as release, pytest.raises(ReleaseStopped, match="is not a folder; give --verify"):
            release.verify(place)


def link_elsewhere(path: Path) -> None:
    """Replace a file or folder by a link to an equal one outside."""
    target = path.parent.parent / f"elsewhere_{path.name}"
    path.rename(target)
    path.symlink_to(target)


def list_twice(out: Path) -> None:
    """Repeat the lines of the checksums."""
    (out / "SHA256SUMS").write_text((out / "SHA256SUMS").read_text() * 2)


def forge(out: Path, change: Callable[[bytes], bytes] = lambda old: old + b" ") -> None:
    """Change a manifest, and its checksum with it."""
    before = hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()
    (out / "manifest.json").write_bytes(change((out / "manifest.json").read_bytes()))
    after = hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()
    sums = out / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(before, after))
