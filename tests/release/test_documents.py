"""The documents of a release, for somebody who has nothing but its folder: what they say is right, and can be read."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dither.errors import InvalidParameter
from dither.release.api import open_release
from dither.release.charts import bar_chart
from release.world import ADMISSION, DATASET, SPEC, write_world

pytestmark = pytest.mark.tier("test")


def documents(folder: Path, spec: str, dataset: str = DATASET) -> dict[str, str]:
    """The quote and the documents of a release."""
    with open_release(write_world(folder / "world", spec, dataset)) as release:
        quote = release.quote().text
        release.write(folder / "out")
    found = {path.name: path.read_text() for path in (folder / "out").rglob("*") if path.suffix in (".md", ".svg")}
    return found | {"quote": quote}


def bars(svg: str) -> list[tuple[float, float, float, float]]:
    """The left and right end of each bar, and of the line of its error."""
    tree = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    boxes = [(float(each.attrib["x"]), float(each.attrib["width"])) for each in tree.findall(f"{space}rect")[1:]]
    lines = [re.fullmatch(r"M([\d.]+) [\d.]+H([\d.]+)", each.attrib["d"]) for each in tree.findall(f"{space}path")]
    ends = [(float(found[1]), float(found[2])) for found in lines if found is not None]
    return [(x, x + width, *end) for (x, width), end in zip(boxes, ends, strict=True)]


def test_totals_of_noise_alone_do_not_look_like_counts() -> None:
    """Regression: bars had no error, those below zero no length, and numbers an exponent."""
    svg = bar_chart("views by month", ["one", "two"], [300_000.0, -100_000.0], "noisy", error=500_000.0)
    (_, right, low, high), (left, zero, *_) = bars(svg)
    assert low < left < zero < right < high and high - low > 3 * (right - zero)
    assert ">-100,000<" in svg and ">300,000<" in svg


def test_the_chart_of_totals_shows_their_error(tmp_path: Path) -> None:
    """The total of a link adds 9 cells with sigma 3: its error is three times 1.96 times 3."""
    assert "95% are off by less than 17.64 (the lines)" in documents(tmp_path, SPEC)["totals.svg"]


def test_only_keys_with_all_their_values_are_charted(tmp_path: Path) -> None:
    """Regression: links that were not admitted had bars of length 0, as if nobody had seen them."""
    found = documents(tmp_path, SPEC.replace("  month: DATE_TRUNC('month', at)\n", "") + ADMISSION)
    assert "views by country" in found["totals.svg"]
    assert "Not every url is here" in found["README.md"]


def test_words_of_the_documents(tmp_path: Path) -> None:
    """Regressions: rows that are not people, one column, and truth values that were not as in the files."""
    spec = SPEC.replace("  clicks: {where: \"action = 'click'\", sigma: 1}\n", "").replace(
        "  country: country\n", "  big: {sql: \"country <> 'AT'\"}\n"
    )
    found = documents(tmp_path, spec)
    assert "with 3 keys and 1 column of noisy counts" in found["README.md"]
    assert "The noise protects each action:" in found["README.md"]
    assert "| big | country <> 'AT' | 2 | false, true |" in found["codebook.md"]


def test_the_loss_of_several_units_is_not_understated(tmp_path: Path) -> None:
    """Regression: the statement said that somebody with more units has proportionally more loss; rho has the square."""
    statement = documents(tmp_path, SPEC)["privacy_statement.md"]
    assert "rho grows with the square of their number" in statement
    assert "| 1,000 | 500,000 |" in statement  # rho 1/2 of one action


def test_a_quote_says_that_columns_are_not_told_apart(tmp_path: Path) -> None:
    """Regression: an analyst's conditions on a number had root 3 times the noise, and nothing said why."""
    apart = documents(tmp_path / "apart", SPEC)["quote"]
    both = SPEC.replace("action = 'view'", "code < 1000").replace("action = 'click'", "code >= 1000")
    overlapping = documents(tmp_path / "both", both)["quote"]
    assert "one row may count in" not in apart
    assert "one row may count in 2 columns, as far as Dither sees" in overlapping


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_the_readme_runs_whatever_the_names_are(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a key called `order` or `at`, words of SQL, made the example of the README fail."""
    spec = SPEC.replace("  country: country", "  order: country").replace("  views:", "  group:")
    found = documents(tmp_path, spec.replace("rows_per_part: 40", f"format: {form}"))
    (program,) = re.findall(r"```python\n(.*?)```", found["README.md"], flags=re.S)
    monkeypatch.chdir(tmp_path / "out")
    exec(compile(program, "README.md", "exec"), {})


def test_tables_hold_whatever_conditions_are(tmp_path: Path) -> None:
    """Regression: a bar or a line break in SQL broke the tables of the codebook."""
    spec = SPEC.replace("  country: country\n", '  country: {sql: country, description: "a|b\\n# c"}\n')
    lines = documents(tmp_path, spec)["codebook.md"].splitlines()
    assert r"| country | a\|b # c | 3 | AT, CH, other |" in lines


def test_a_listed_value_that_never_occurs_is_a_mistake(tmp_path: Path) -> None:
    """Regression: a misspelt value was a row of nothing but noise."""
    spec = SPEC.replace("  country: country\n", "  country: {sql: country, values: [AT, CHH]}\n")
    words = "lists 'CHH', which its column never has; it has: AT, CH, other"
    with open_release(write_world(tmp_path / "world", spec)) as release, pytest.raises(InvalidParameter, match=words):
        release.quote()


# --- Sizes ---


def test_more_files_than_a_manifest_can_list_are_refused_at_once(tmp_path: Path) -> None:
    """Regression: `--plan` of 540 million rows in files of one row took all memory before it said anything."""
    text = SPEC.replace("  country: country", "  code: code").replace("rows_per_part: 40", "rows_per_part: 1")
    with open_release(write_world(tmp_path / "world", text)) as release:
        for step in (release.plan, release.layout):
            with pytest.raises(InvalidParameter, match=r"3,600,000,060 files, .* raise rows_per_part"):
                step()
    text = text.replace("rows_per_part: 1}", "rows_per_part: 1_000_000}")
    with open_release(write_world(tmp_path / "other", text)) as release:
        assert "3,600,000,060 rows, 7,200,000,120 values" in release.plan()  # without a list of 60 million labels
