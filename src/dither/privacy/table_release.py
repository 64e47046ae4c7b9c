"""Release a static table part by part, for one charge: each part is drawn and published once, after all are drawn.

release_table           the steps, each a prefix of which may have been taken before a crash
TableDraw               the draw of one part: an opaque function for engines, which may run it on workers
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from dither.access.engines import Engine
from dither.access.exact_cells import RowRange, TableKeys
from dither.errors import InvalidPlan, NotAllowed, ReleaseStopped, Unsupported
from dither.plan.context import Context
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import Sample
from dither.plan.traversal import walk
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.cost import CostedStep, PrivacyCost
from dither.privacy.ledger import Receipt, RecordedAnswer
from dither.privacy.mechanisms import ColumnGaussian, PublicThreshold, Vector
from dither.privacy.protocol import ReleaseRequest
from dither.privacy.staging import PartReceipt, Staging, clear_disk_errors, file_digest, sync

# Writes the noisy columns of a part to a file: (part, kept places of the first key, columns, path).
PartWriter = Callable[[RowRange, TableKeys, Vector, Path], None]
Progress = Callable[[str, int, int], None]
Record = Callable[[Receipt | RecordedAnswer, str], str]


@dataclass(frozen=True)
class TableLayout:
    """The public layout of a release: rows in a part, the files' suffix, and who writes and documents them.

    `write` gets noisy values only; `document` gets the folder that will be published, with the files in it. `columns`
    names the columns of the files.
    """

    rows_per_part: int
    suffix: str
    write: PartWriter
    document: Callable[[Path], None]
    progress: Progress = lambda stage, done, total: None
    columns: tuple[str, ...] = ()

    def check_space(self, keys: TableKeys, folder: Path) -> None:
        """Refuse, before the charge, a disk whose free space is below what the noisy files alone surely take."""
        least = keys.rows * keys.columns // 4 if keys.kept is None else 0
        if shutil.disk_usage(folder).free < least:
            raise ReleaseStopped(f"the disk of {folder} needs at least {least:,} free bytes; nothing was charged")

    def parts(self, keys: TableKeys) -> list[RowRange]:
        """Cut the released rows into parts, by public facts alone."""
        size = part_size(keys, self.rows_per_part)
        starts = range(0, keys.rows, size)
        return [RowRange(number, first, min(size, keys.rows - first)) for number, first in enumerate(starts)]


def part_size(keys: TableKeys, rows_per_part: int) -> int:
    """Return the rows of a part: whole values of the first key if they fit."""
    whole = max(1, rows_per_part // keys.inner) * keys.inner
    return whole if keys.inner <= rows_per_part else rows_per_part


@dataclass(frozen=True)
class TableDraw:
    """Draws the noise of one part and writes its file under a random name; fresh noise at each call."""

    mechanism: ColumnGaussian
    keys: TableKeys
    write: PartWriter
    folder: Path
    suffix: str

    def __call__(self, part: RowRange, exact: Vector) -> str:
        """Return the receipt of the part's file, which is durable, as JSON; the journal redeems it."""
        self.mechanism.release_columns(exact, SystemBits())
        path = self.folder / f"{secrets.token_hex(16)}{self.suffix}"
        self.write(part, self.keys, exact, path)
        sync(path)
        sync(self.folder)
        receipt = PartReceipt(part.number, path.name, part.rows, os.path.getsize(path), file_digest(path))
        return json.dumps(asdict(receipt))


def table_identity(digest: str, version: str, layout: TableLayout) -> str:
    """Return what a release in progress is: its question, the dataset's version, and the layout of its files."""
    files = {"rows": layout.rows_per_part, "files": layout.suffix, "columns": layout.columns}
    return json.dumps({"question": digest, "version": version, **files})


def is_output_of(out: Path, recorded: str) -> bool:
    """Return whether a folder is the published release that the ledger has recorded."""
    manifest = out / "manifest.json"
    return manifest.is_file() and file_digest(manifest) == json.loads(recorded).get("manifest")


def check_table(ctx: Context, request: ReleaseRequest, cost: PrivacyCost) -> tuple[CostedStep | None, CostedStep]:
    """Return the steps of admission, if any, and of the table; refuse, before the charge, any other request."""
    if ctx.dataset.policy == "separate":
        raise Unsupported(
            "a static release is public, so every group would see it, but under `policy: separate` it would be charged"
            " to one group's budget alone; release from a dataset with `policy: shared`"
        )
    *first, table = cost.steps
    if request.question.searches or request.question.selection is not None or len(first) > 1:
        raise Unsupported("a table is one measurement, after at most one admission; it searches and selects nothing")
    if not isinstance(table.measure, ColumnCounts):
        raise Unsupported("a table is a measurement of counts by column")
    if not isinstance(table.mechanism, ColumnGaussian):
        raise Unsupported("the columns of a table are released with Gaussian noise, one variance for each column")
    if any(isinstance(node, Sample) for step in cost.steps for node in walk(step.measure)):
        raise Unsupported("a table is not sampled: a release that goes on after a crash would read another sample")
    for step in first:
        if not isinstance(step.measure, Count) or not isinstance(step.mechanism, PublicThreshold):
            raise Unsupported("items are admitted by a noisy threshold on their counts, over declared keys")
        if not table.measure.keys or [key.value for key in step.measure.keys] != [table.measure.keys[0].value]:
            raise InvalidPlan("the admission must count by the first key of the table")
        if tuple(step.measure.axes(ctx)[0].values) != tuple(table.measure.axes(ctx)[0].values):
            raise InvalidPlan("the admission and the table must have the same values of the first key, in one order")
    return (first[0] if first else None), table


@dataclass(frozen=True)
class TableWork:
    """A charged table: its steps, the engine that reads, and the place and layout of the files."""

    admission: CostedStep | None
    table: CostedStep
    engine: Engine
    bits: Bits
    secret: int
    staging: Staging
    layout: TableLayout


def release_table(work: TableWork, charged: Receipt | RecordedAnswer, digest: str, record: Record) -> None:
    """Take the steps that are left until the table is published. Proof: table_release.md."""
    staging = work.staging
    with clear_disk_errors(staging.folder):
        if isinstance(charged, Receipt):
            manifest = json.dumps({"manifest": _draw_all(work, charged, digest)})
            recorded = record(charged, manifest)
        else:
            recorded = record(charged, charged.release)
        publish_recorded(staging, recorded, work.layout)


def publish_recorded(staging: Staging, recorded: str, layout: TableLayout) -> None:
    """Publish the manifest whose digest the ledger has recorded, and no other; then remove the exact cells."""
    if not staging.has_manifest(json.loads(recorded)["manifest"]):
        staging.remove()  # what is here was not recorded, and may never be published
        raise ReleaseStopped(
            "this release was already made and recorded, and its files are not here: its charge is spent and it cannot"
            " be drawn again; find the published folder, or set another `repeat` in the spec and pay again"
        )
    layout.document(staging.build_output())
    staging.publish()
    staging.remove()


def _draw_all(work: TableWork, receipt: Receipt, digest: str) -> str:
    """Read the cells once, draw every part that the journal lacks, and return the digest of the manifest."""
    staging, layout = work.staging, work.layout
    if not staging.has_cells():
        staging.discard_draws()
        layout.progress("reading", 0, 1)
        _read_cells(work, receipt)
        staging.note_cells()
    admitted, done = staging.journal()
    if work.admission is not None and admitted is None:
        admitted = _draw_admission(work, receipt)
        staging.note({"admitted": admitted})
    keys = table_keys(work.table, admitted)
    parts = layout.parts(keys)
    draw = _redeem_draws(work, receipt, keys)
    todo = [part for part in parts if part.number not in done]
    for report in work.engine.each_part(staging.exact, keys, todo, draw):
        part_receipt = PartReceipt(**json.loads(report))
        staging.note_part(part_receipt)
        done[part_receipt.part] = part_receipt
        layout.progress("drawing", len(done), len(parts))
    facts = {"digest": digest, "charge": receipt.own.sequence, "rows": keys.rows, "columns": keys.columns}
    return staging.write_manifest(facts, [done[part.number] for part in parts], layout.suffix)


def table_keys(table: CostedStep, admitted: Sequence[int] | None) -> TableKeys:
    """Return the released rows of a table."""
    *shape, columns = table.quoted.shape
    outer, inner = (shape[0], prod(shape[1:])) if shape else (1, 1)
    return TableKeys(outer, inner, columns, None if admitted is None else tuple(admitted))


def _read_cells(work: TableWork, receipt: Receipt) -> None:
    """Redeem the receipt for reading, then have the engine write the exact cells: the only read of the table."""
    receipt.redeem("read table")
    measure = work.table.measure
    if isinstance(measure, ColumnCounts):
        work.engine.write_cells(measure, work.staging.exact, work.secret)


def _draw_admission(work: TableWork, receipt: Receipt) -> list[int]:
    """Redeem the receipt for the admission, then return the places of the admitted values of the first key."""
    receipt.redeem("draw admission")
    if work.admission is None:
        raise NotAllowed("this table admits no items")
    exact = work.engine.vector(work.admission.measure, None, work.secret)
    kept: list[int] = work.admission.mechanism.release(exact, work.bits).tolist()
    return kept


def _redeem_draws(work: TableWork, receipt: Receipt, keys: TableKeys) -> TableDraw:
    """Redeem the receipt for drawing, then return the draw of a part; the journal redeems each part."""
    receipt.redeem("draw table")
    mechanism = work.table.mechanism
    if not isinstance(mechanism, ColumnGaussian):
        raise NotAllowed("only the noise of the charge may be drawn")
    return TableDraw(mechanism, keys, work.layout.write, work.staging.parts, work.layout.suffix)
