"""The documents of a release, for people who have nothing but its folder: README, codebook, statement, checksums."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dither.loss import ZCDP
from dither.post.display import loss_text
from dither.privacy.accounting.conversion import as_zcdp
from dither.privacy.protocol import CostQuote
from dither.release.charts import bar_chart, short_number
from dither.release.losses import column_facts, formula_epsilon, group_rows, tight_epsilon, total_for_k
from dither.release.part_files import PartFile
from dither.release.question import ReleaseQuestion

CHECKSUMS = "SHA256SUMS"
MOST_BARS = 60
NOT_PROMISED = (
    "Facts about many people are not hidden: what is true of most can be learned, and used to guess about anyone.",
    "Somebody with several units may lose more than the loss of one: rho grows with the square of their number.",
    "The description of the dataset (its columns, their declared values and bounds) is public.",
)

COLUMNS_TEXT = (
    "Each value is a count plus noise, drawn independently for every cell: an integer with mean 0 and the standard",
    "deviation sigma. 95% of values are off by less than the error. Values may be negative; do not set these to 0",
    "before adding up or averaging, since that would bias sums upwards.",
)
BOUNDED_TEXT = (
    "Rows of a unit beyond its limits are not counted, so counts are lower than in the records. The errors below are",
    "those of the noise alone, and leave that out.",
    "",
)
SUMS_TEXT = (
    "The sum of n cells of a column has a standard deviation of sqrt(n) sigma. A regression on noisy columns can be",
    "corrected: the noise adds its variance to the variance of a column, and nothing to any covariance.",
    "",
    "`codebook.json` has the same facts for programs.",
)
DROPPED_TEXT = (
    "Rows of a unit beyond its limits were dropped before the noise,\n"
    "so that counts are too low; `codebook.md` has the limits."
)
README_TEXT = """# {title}

{description}{rows} rows with {keys} and {columns} of noisy counts, in {files} under `data/`. `codebook.md` explains
every column, and how large its noise is. The noise protects each {unit}: `privacy_statement.md` says what is promised.
{admission}
```sh
sha256sum --check --quiet {checksums}     # the files are whole
```

```python
import duckdb
print(duckdb.sql('''{query}'''))
```

Sum first, then round or cut off at 0: single cells may be negative, and that is right. The sum of n cells has noise of
sqrt(n) times the column's sigma.{dropped}

Made with Dither {version}. `manifest.json` lists the files; its SHA-256 is in the ledger of the data's owner.
"""


@dataclass(frozen=True)
class Documents:
    """Writes every document into the folder of a release, from public facts and its noisy files."""

    question: ReleaseQuestion
    quote: CostQuote
    files: PartFile
    unit_text: str
    version: str

    def __call__(self, folder: Path) -> None:
        """Write the documents, and last the checksums of everything."""
        (folder / "charts").mkdir()
        (folder / "charts" / "errors.svg").write_text(self._error_chart())
        if chart := self._total_chart(folder):
            (folder / "charts" / "totals.svg").write_text(chart)
        (folder / "codebook.json").write_text(json.dumps(self.codebook(), indent=1) + "\n")
        (folder / "codebook.md").write_text(self._codebook_text())
        (folder / "privacy_statement.md").write_text(self._statement_text())
        (folder / "README.md").write_text(self._readme_text(folder))
        (folder / CHECKSUMS).write_text(_checksums(folder))

    def rehearse(self) -> None:
        """Build, before anything is charged, every document that follows from public facts alone."""
        json.dumps(self.codebook())
        self._error_chart()
        self._codebook_text()
        self._statement_text()

    # --- The codebook ---

    def codebook(self) -> dict[str, Any]:
        """Return the codebook as plain data: every column of the files with its meaning and its noise."""
        spec = self.question.spec
        keys = [
            {"name": name, "description": key.description, "sql": key.sql, "values": len(labels), **_span(labels)}
            for key, name, labels in zip(spec.keys, self.files.key_names, self.files.labels, strict=True)
        ]
        columns = [
            {
                "name": facts.name,
                "description": facts.description,
                "counts": facts.condition,
                "noise": "discrete Gaussian, mean 0, independent in every cell",
                "variance": str(facts.variance),
                "sigma": facts.sigma,
                "error_95": facts.error_95,
                "k": facts.k,
                "rho_for_k": str(facts.k_rho),
                "epsilon_for_k": facts.k_epsilon,
            }
            for facts in column_facts(self.question)
        ]
        extra = [
            {"name": f"{c.name}_nonnegative", "description": f"the larger of {c.name} and 0; biased upwards"}
            for c in spec.columns
            if spec.nonnegative
        ]
        return {
            "name": spec.name,
            "title": spec.title or spec.name,
            "description": spec.description,
            "format": spec.format,
            "made_with": f"dither {self.version}",
            "unit": self.unit_text,
            "keys": keys,
            "columns": columns,
            "postprocessed": extra,
            "admission": self._admission(),
            "limits": list(self.question.limits),
            "rows_beyond_limits": self.question.beyond or "there are no limits on the rows of a unit",
            "losses": [
                {"unit": each.unit, "kind": each.kind, "loss": str(each.loss)} | self._windows(each.unit)
                for each in self.quote.losses
            ],
            "delta": str(spec.privacy.delta),
        }

    def _windows(self, unit: str) -> dict[str, str]:
        """Return in which windows the budget of a window unit is charged."""
        windows = self.question.windows.get(unit)
        return {"windows": windows} if windows else {}

    def _admission(self) -> dict[str, str] | None:
        """Return how values of the first key were admitted."""
        rule = self.question.spec.admission
        if rule is None:
            return None
        counted = f"its rows with {rule.where}" if rule.where else "its rows"
        return {
            "key": self.question.spec.keys[0].name,
            "rule": f"kept if {counted}, plus discrete Laplace noise of scale {rule.scale}, reach {rule.threshold}",
            "description": rule.description,
        }

    def _codebook_text(self) -> str:
        """Return the codebook for people."""
        spec, book = self.question.spec, self.codebook()
        rows = [_row(k["name"], k["description"] or k["sql"], f"{k['values']:,}", _few(k)) for k in book["keys"]]
        lines = [
            f"# Codebook of {book['title']}",
            "",
            *([spec.description, ""] if spec.description else []),
            "## Keys",
            "Every combination of the keys has a row, also where nothing was counted.",
            "",
            "| key | meaning | values | which |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
        if book["admission"]:
            rule = book["admission"]
            lines += [f"Not every {rule['key']} is here: one is {rule['rule']}. {rule['description']}", ""]
        if self.question.is_bounded:
            lines += [*BOUNDED_TEXT, *(f"- {text}" for text in (*self.question.limits, self.question.beyond)), ""]
        lines += [
            "## Columns",
            *COLUMNS_TEXT,
            "",
            "| column | counts | meaning | sigma | variance | 95% error |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            _row(
                *(c["name"], c["counts"], c["description"], f"{c['sigma']:.6g}"),
                *(f"{float(Fraction(c['variance'])):.6g}", f"{c['error_95']:.4g}"),
            )
            for c in book["columns"]
        ]
        lines += [f"| {c['name']} | | {c['description']} | | | |" for c in book["postprocessed"]]
        lines += [
            "",
            *SUMS_TEXT,
        ]
        return "\n".join(lines) + "\n"

    # --- The privacy statement ---

    def _statement_text(self) -> str:
        """Return the privacy statement: the guarantee, columns for k actions, groups, and what is not promised."""
        spec, delta = self.question.spec, self.question.spec.privacy.delta
        lines = [
            f"# Privacy statement of {spec.title or spec.name}",
            "",
            "The table is differentially private. Adding or removing one unit of privacy changes the probability of",
            "any table by little, whatever anybody knows besides. The unit is:",
            "",
            f"> {self.unit_text}",
            "",
            f"| unit | loss of the whole release | epsilon at delta {float(delta):g} |",
            "|---|---|---|",
        ]
        for each in self.quote.losses:
            lines.append(f"| {each.unit} | {loss_text([each.loss])} | {tight_epsilon(each.loss, delta):.4g} |")
        for unit, windows in self.question.windows.items():
            lines += ["", f"This loss is of a {unit} {windows}; its other windows lose nothing."]
        lines += ["", *self._group_text(delta)]
        if self.question.is_row_level:
            lines += self._column_text(delta)
        if self.question.admission is not None:
            lines += ["The admission of items is part of the loss of the whole release above, not of the columns.", ""]
        lines += ["## Not promised", *(f"- {text}" for text in NOT_PROMISED)]
        notes = [note for part in self.quote.parts for note in part.notes]
        lines += ["", "## Processing before noise", *(f"- {note}" for note in dict.fromkeys(notes))]
        return "\n".join(lines) + "\n"

    def _column_text(self, delta: Fraction) -> list[str]:
        """Return the table of columns for somebody with k actions in each."""
        facts = column_facts(self.question)
        total = total_for_k(facts)
        lines = [
            "## By column, for somebody with k actions in it",
            "rho = k c / (2 sigma^2), if each of the k actions is in a cell of its own; c is the square of what one",
            "action changes in the column: 1, unless the table counts an action several times. Epsilon by the formula",
            f"rho + sqrt(4 rho ln(sqrt(pi rho) / delta)) and by the tight conversion, at delta = {float(delta):g}.",
            "",
            "| column | k | sigma | rho | epsilon (formula) | epsilon (tight) |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {c.name} | {c.k:,} | {c.sigma:.6g} | {float(c.k_rho):.5f} | {c.k_epsilon:.2f}"
            f" | {c.k_epsilon_tight:.2f} |"
            for c in facts
        ]
        lines += [
            f"| all, k in each | | | {float(total):.5f} | {formula_epsilon(float(total), float(delta)):.2f} |"
            f" {tight_epsilon(ZCDP(total), delta):.2f} |",
            "",
            "Somebody with more than k actions has proportionally more rho; those in one cell count with the square of",
            "their number.",
            "",
        ]
        return lines

    def _group_text(self, delta: Fraction) -> list[str]:
        """Return the table for somebody with several units."""
        loss = next(each for each in self.quote.losses if each.unit == self.question.spec.unit)
        rows = group_rows(as_zcdp(loss.loss), delta)
        if not rows:
            return []
        header, line = "| units | rho | epsilon at", "|---|---|---|"
        if self.question.is_row_level:
            own = "its own cell" if self.question.admission is None else "a cell and an item of its own"
            header, line = (
                f"| units | all in one cell: rho | epsilon | each in {own}: rho | epsilon at",
                f"{line}---|---|",
            )
        lines = [f"## For somebody with several units ({loss.unit})", "", f"{header} {float(delta):g} |", line]
        for r in rows:
            distinct = (
                f" {short_number(r.distinct_rho)} | {short_number(r.distinct_epsilon)} |"
                if self.question.is_row_level
                else ""
            )
            same = f"{short_number(r.same_rho)} | {short_number(r.same_epsilon)}"
            lines.append(f"| {r.size:,} | {same} |{distinct}")
        return [*lines, ""]

    # --- README, charts and checksums ---

    def _readme_text(self, folder: Path) -> str:
        """Return the README for somebody who has found the folder."""
        spec = self.question.spec
        manifest = json.loads((folder / "manifest.json").read_text())
        reader = f"read_{spec.format}('data/*.{spec.format}')"
        query = f'SELECT "{spec.keys[-1].name}", SUM("{spec.columns[0].name}") FROM {reader} GROUP BY 1'  # noqa: S608
        return README_TEXT.format(
            title=spec.title or spec.name,
            description=f"{spec.description}\n\n" if spec.description else "",
            rows=f"{manifest['rows']:,}",
            keys=_count(len(spec.keys), "key"),
            columns=_count(len(spec.columns), "column"),
            files=_count(len(manifest["files"]), "file"),
            unit=spec.unit,
            admission=f"Not every {spec.keys[0].name} is here; `codebook.md` has the rule.\n" if spec.admission else "",
            checksums=CHECKSUMS,
            query=query,
            dropped=f" {DROPPED_TEXT}" if self.question.is_bounded else "",
            version=self.version,
        )

    def _error_chart(self) -> str:
        """Return the chart of expected errors."""
        facts = column_facts(self.question)
        names, errors = [column.name for column in facts], [column.error_95 for column in facts]
        return bar_chart("95% error of one cell, by column", names, errors, "logarithmic scale", logarithmic=True)

    def _total_chart(self, folder: Path) -> str | None:
        """Return the chart of noisy totals of the first column by the longest key that fits; None if none fits."""
        sizes = {name: len(labels) for name, labels in zip(self.files.key_names, self.files.labels, strict=True)}
        whole = list(sizes)[1:] if self.question.admission is not None else list(sizes)  # keys with all their values
        fitting = [name for name in whole if 2 <= sizes[name] <= MOST_BARS]
        if not fitting:
            return None
        key = max(fitting, key=lambda name: sizes[name])
        labels = self.files.labels[self.files.key_names.index(key)]
        column = self.question.spec.columns[0].name
        totals = np.zeros(len(labels), np.int64)
        for path in sorted((folder / "data").iterdir()):
            totals += _totals_by(path, key, column, labels)
        cells = json.loads((folder / "manifest.json").read_text())["rows"] // len(labels)
        error = column_facts(self.question)[0].error_95 * cells**0.5
        note = f"noisy totals of all released rows; 95% are off by less than {short_number(error)} (the lines)"
        return bar_chart(
            f"{column} by {key}",
            [_text_of(label) for label in labels],
            totals.astype(float).tolist(),
            note,
            error=error,
        )


def _totals_by(path: Path, key: str, column: str, labels: tuple[Any, ...]) -> Any:
    """Return the sums of a column of one file for each label of a key."""
    if path.suffix == ".csv":
        table = pa_csv.read_csv(path).select([key, column])
    else:
        table = pq.read_table(path, columns=[key, column])
    grouped = table.group_by(key).aggregate([(column, "sum")])
    sums = dict(
        zip(map(str, grouped.column(key).to_pylist()), grouped.column(f"{column}_sum").to_pylist(), strict=True)
    )
    return np.array([sums.get(str(label), 0) for label in labels], np.int64)


def _checksums(folder: Path) -> str:
    """Return the SHA-256 of every file, in the format of sha256sum."""
    listed = {entry["file"]: entry["sha256"] for entry in json.loads((folder / "manifest.json").read_text())["files"]}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    lines = []
    for path in files:
        name = path.relative_to(folder).as_posix()
        digest = listed.get(name) or hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {name}\n")
    return "".join(lines)


def _span(labels: tuple[Any, ...]) -> dict[str, Any]:
    """Return the labels of a short key, or the ends of a long one."""
    if len(labels) <= MOST_BARS:
        return {"labels": list(labels)}
    return {"first": labels[0], "last": labels[-1]}


def _few(key: dict[str, Any]) -> str:
    """Return the values of a key in one short cell."""
    labels = key.get("labels")
    if labels is None or len(labels) > 8:
        first, last = (key["first"], key["last"]) if labels is None else (labels[0], labels[-1])
        return f"{_text_of(first)} to {_text_of(last)}"
    return ", ".join(map(_text_of, labels))


def _text_of(label: Any) -> str:
    """Return a value of a key as readers find it in the files."""
    if isinstance(label, bool):
        return str(label).lower()
    return "missing" if label is None else str(label)


def _row(*cells: str) -> str:
    """Return a row of a table in Markdown, whatever is in its cells."""
    texts = (" ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(texts)} |"


def _count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> _count(1, "file"), _count(2000, "key")
    ('1 file', '2,000 keys')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
