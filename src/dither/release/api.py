"""`dither.release`: quote, plan and write a static release from its description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

from dither import __version__
from dither.access.exact_cells import TableKeys
from dither.errors import InvalidParameter, NotAllowed
from dither.loss import ZCDP
from dither.plan.context import Context
from dither.post.display import loss_text
from dither.privacy.kernel import LocalKernel, open_kernel
from dither.privacy.protocol import CostQuote
from dither.privacy.table_release import Progress, TableLayout, part_size
from dither.release.documents import CHECKSUMS, Documents
from dither.release.limits import NOT_MEASURED
from dither.release.losses import ColumnFacts, column_facts, formula_epsilon, tight_epsilon, total_for_k
from dither.release.part_files import PartFile, key_labels
from dither.release.question import ReleaseQuestion, build_question
from dither.release.spec import MAX_ROWS_PER_PART, ReleaseSpec, load_spec
from dither.release.verify import check_folder, check_recorded

MAX_PARTS = 1 << 20
BYTES_PER_VALUE = 1.0  # of noise near sigma 10 in Parquet; larger noise takes more


@dataclass(frozen=True)
class ReleaseQuote:
    """The expected errors and the cost of a release, from public facts alone."""

    columns: tuple[ColumnFacts, ...]
    cost: CostQuote
    delta: float
    text: str

    @property
    def affordable(self) -> bool:
        """True if the budgets allow the release, or it is paid already."""
        return self.cost.affordable


class StaticRelease:
    """A release that can be quoted, planned and written; it holds the kernel of its dataset until it is closed."""

    def __init__(self, spec: ReleaseSpec, kernel: LocalKernel, account: str = "curator") -> None:
        self.spec, self.kernel, self.account = spec, kernel, account

    def __enter__(self) -> StaticRelease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the data and the ledger."""
        self.kernel.close()

    @cached_property
    def question(self) -> ReleaseQuestion:
        """The table that is asked for."""
        names = self.kernel.datasets(self.account)
        if len(names) != 1:
            raise NotAllowed(
                f"the account {self.account!r} may not query this dataset: its groups list who may; release as one of"
                " their analysts (--account)"
            )
        context = Context(self.kernel.schema(names[0], self.account), self.kernel.facts(names[0], self.account))
        return build_question(self.spec, context)

    @cached_property
    def cost(self) -> CostQuote:
        """The cost of the release to every budget."""
        return self.kernel.quote_table(self.question.request, self.account)

    def quote(self) -> ReleaseQuote:
        """Return the expected error of every column, and the cost; charges nothing and reads no record."""
        columns = column_facts(self.question)
        delta = float(self.spec.privacy.delta)
        return ReleaseQuote(columns, self.cost, delta, "\n".join(self._quote_lines(columns)))

    def _quote_lines(self, columns: tuple[ColumnFacts, ...]) -> list[str]:
        """Return the lines of a quote."""
        lines = [f"{'column':24} {'sigma':>10} {'95% error':>10} {'k':>8} {'rho for k':>10} {'epsilon':>8}"]
        for c in columns:
            for_k = f" {c.k:8,} {float(c.k_rho):10.5f} {c.k_epsilon:8.2f}" if self.question.is_row_level else ""
            lines.append(f"{c.name:24} {c.sigma:10.6g} {c.error_95:10.4g}{for_k}")
        if self.question.is_row_level:
            lines.append(self._total_line(columns))
        else:
            lines[0] = lines[0][:46]
        for each in self.cost.losses:
            windows = self.question.windows.get(each.unit)
            where = f", {windows}" if windows else ""
            lines.append(f"charged to the budget of unit {each.unit}: {loss_text([each.loss])}{where}")
        lines += [f"  {text}" for text in self.question.narrower]
        if self.question.is_bounded:
            lines.append(
                "the 95% error is that of the noise alone; rows beyond the limits are dropped, and counts too low:"
            )
            lines += [f"  {limit}" for limit in self.question.limits]
            advice = " (dither profile measures it)" if self.question.beyond == NOT_MEASURED else ""
            lines.append(f"  {self.question.beyond}{advice}")
        if self.question.overlap > 1:
            lines.append(
                f"one row may count in {self.question.overlap} columns, as far as Dither sees: their losses add up, and"
                " noise that is solved is larger for it; conditions that compare one column of the data with different"
                " constants, by = or IN, tell columns apart"
            )
        state = "paid already" if self.cost.free else "within budget" if self.cost.affordable else "BEYOND THE BUDGET"
        return [*lines, f"this release is {state}; nothing was read and nothing charged"]

    def _total_line(self, columns: tuple[ColumnFacts, ...]) -> str:
        """Return the line on somebody with k actions in every column."""
        delta, total = self.spec.privacy.delta, total_for_k(columns)
        return (
            f"a user with k actions in every column, each in its own cell: rho {float(total):.4f}, epsilon"
            f" {formula_epsilon(float(total), float(delta)):.2f} by the formula,"
            f" {tight_epsilon(ZCDP(total), delta):.2f} tight, at delta {float(delta):g}"
        )

    def plan(self) -> str:
        """Return what would be written: keys, rows, parts, files and their estimated size."""
        keys, spec = self._keys(), self.spec
        columns = len(spec.columns) * (2 if spec.nonnegative else 1)
        size = keys.rows * len(spec.columns) * BYTES_PER_VALUE / 1e6
        lines = [f"key {axis.name}: {len(axis.values):,} values" for axis in self.question.axes]
        lines.append(
            f"{keys.rows:,} rows, {keys.rows * columns:,} values, about {size:,.0f} MB, {self._count_parts():,} files"
        )
        if spec.admission is not None:
            lines.append(f"at most: only admitted values of {spec.keys[0].name} are written")
        lines.append(
            f"data/part-00000.{spec.format} ..., manifest.json, codebook.md, codebook.json, privacy_statement.md,"
            f" README.md, charts/, {CHECKSUMS}"
        )
        return "\n".join(lines)

    def _count_parts(self) -> int:
        """Return the most files of parts; refuse more than a journal and a manifest can list."""
        keys = self._keys()
        count = -(-keys.rows // part_size(keys, self.spec.rows_per_part))
        if count > MAX_PARTS:
            raise InvalidParameter(
                f"the release has {count:,} files, and at most {MAX_PARTS:,} are possible: raise rows_per_part under"
                f" output (up to {MAX_ROWS_PER_PART:,}), or make several releases, such as one for each month"
            )
        return count

    def _keys(self) -> TableKeys:
        """Return all rows of the table, as if every item were admitted."""
        sizes = [len(axis.values) for axis in self.question.axes]
        return TableKeys(sizes[0], self.question.rows // sizes[0], len(self.spec.columns))

    def layout(self, progress: Progress = lambda stage, done, total: None) -> TableLayout:
        """Return the layout of the files, and who writes and documents them."""
        question, spec = self.question, self.spec
        self._count_parts()
        labels = [tuple(key_labels(a.values, d)) for a, d in zip(question.axes, question.domains, strict=True)]
        names = tuple(axis.name for axis in question.axes)
        columns = tuple(column.name for column in spec.columns)
        files = PartFile(names, tuple(labels), columns, spec.nonnegative, spec.format)
        documents = Documents(question, self.cost, files, self._unit_text(), __version__)
        documents.rehearse()
        return TableLayout(spec.rows_per_part, f".{spec.format}", files, documents, progress, files.names)

    def _unit_text(self) -> str:
        """Return the unit of privacy in words."""
        texts = self.kernel.statement(self.question.request.question.dataset, self.account).units
        return next(text for text in texts if text.startswith(f"{self.spec.unit}:"))

    def write(
        self,
        out: str | Path,
        staging: str | Path | None = None,
        progress: Progress = lambda stage, done, total: None,
    ) -> bool:
        """Write the release to the new folder `out`, for one charge; return False if it is there already.

        If it is interrupted, the same call goes on where it stopped. `staging` is a private folder on the same file
        system; by default a hidden one beside `out`.
        """
        place = Path(out)
        private = Path(staging) if staging is not None else place.parent / f".{place.name}.staging"
        return self.kernel.release_table(self.question.request, self.account, private, place, self.layout(progress))

    def verify(self, folder: str | Path) -> str:
        """Check a published folder, or a copy of one: every file is whole and listed, and the ledger has recorded it.

        Return the SHA-256 of its manifest. Charges nothing and reads no record.
        """
        place = Path(folder)
        digest = check_folder(place)
        rows = self.kernel.ledger.rows()
        answers = [str(json.loads(row.body)["release"]) for row in rows if row.kind == "answer"]
        check_recorded(place, digest, answers)
        return digest


def open_release(
    spec: str | Path, *, ledger: str | Path | None = None, account: str = "curator", memory: str = "800MB"
) -> StaticRelease:
    """Open the release that a file describes: check it, and open its dataset's ledger and data.

    `memory` is the most that the database uses; it writes the rest to disk.
    """
    loaded = load_spec(spec)
    if not loaded.dataset.is_file():
        raise InvalidParameter(f"{spec}: there is no dataset description {loaded.dataset}")
    kernel = open_kernel(loaded.dataset, ledger=ledger, memory=memory, measure_size=False)
    return StaticRelease(loaded, kernel, account)
