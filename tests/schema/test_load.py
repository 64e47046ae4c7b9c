"""Valid descriptions are read correctly; invalid ones are refused with the line of the error."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dither.access.engines import open_engine
from dither.cli import app
from dither.errors import InvalidSchema
from dither.plan.expressions.core import ColumnRef
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.schema import Category, Identifier, Moment, Number, Reference, load
from dither.schema.parser import loads
from dither.schema.spec import json_schema

ROOT = Path(__file__).resolve().parents[2]
GOOD = """\
version: 1
name: shop
tables:
  items:
    private: false
    source: {kind: csv, path: items.csv}
    columns:
      item: {type: identifier, kind: text}
  sales:
    private: true
    source: {kind: parquet, path: sales.parquet}
    columns:
      buyer: {type: identifier, kind: integer}
      item: {type: category, values_from: items.item}
      price: {type: decimal, min: 0, max: 500, step: 0.01}
      age: {type: integer, min: 18, max: 65, nullable: true}
      country: {type: category, values: [NO, SE, yes], default: SE}
      day: {type: date, min: 2024-01-01, max: 2024-12-31}
      at: {type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: hour}
units:
  buyer: {kind: user, keys: {sales: buyer}}
  month: {kind: window, keys: {sales: buyer}, times: {sales: day}, every: month}
  sale: {kind: row, tables: [sales]}
budgets:
  - {unit: buyer, kind: zcdp, rho: 1/2, delta: 1e-9}
  - {unit: month, kind: renyi, order: 8, epsilon: 0.1}
policy: separate
groups:
  - {name: team, analysts: [ann], budgets: [{unit: buyer, kind: pure, epsilon: 1}]}
"""


def test_a_description_means_what_it_says(tmp_path: Path) -> None:
    dataset = loads(GOOD, tmp_path)
    columns = dataset.tables["sales"].columns
    assert columns["price"].domain == Number(Fraction(0), Fraction(500), Fraction(1, 100))
    assert columns["country"].domain == Category(("NO", "SE", "yes")) and columns["country"].default == "SE"
    assert columns["item"].domain == Reference("items", "item", "text")
    assert columns["buyer"].domain == Identifier("integer")
    assert columns["age"].domain.nullable and columns["age"].default is None
    assert dataset.tables["sales"].source.options["path"] == str(tmp_path / "sales.parquet")
    assert dataset.units["month"].times == {"sales": "day"} and dataset.units["sale"].keys == {"sales": None}
    assert dataset.budgets[0].rho == Fraction(1, 2) and dataset.budgets[1].order == 8
    assert dataset.policy == "separate" and dataset.groups[0].caps[0].epsilon == 1


def test_bounds_of_time_include_the_last_day(tmp_path: Path) -> None:
    columns = loads(GOOD, tmp_path).tables["sales"].columns
    day, at = columns["day"].domain, columns["at"].domain
    assert isinstance(day, Moment) and day.hi == 1_735_603_200_000_000
    assert isinstance(at, Moment) and at.hi == 1_735_603_200_000_000 + 23 * 3_600_000_000


def test_bounds_are_readings_of_the_wall_clock_and_only_those_with_an_offset_are_moved(tmp_path: Path) -> None:
    start, hour, paris = 1_704_067_200_000_000, 3_600_000_000, GOOD + "timezone: Europe/Paris\n"
    columns = loads(paris, tmp_path).tables["sales"].columns
    assert columns["day"].domain.lo == columns["at"].domain.lo == start  # type: ignore[union-attr]
    moved = loads(paris.replace("min: 2024-01-01", "min: 2024-01-01T00:00Z"), tmp_path).tables["sales"].columns
    assert moved["at"].domain.lo == start + hour  # type: ignore[union-attr]
    assert moved["day"].domain.lo == start  # type: ignore[union-attr]


def test_text_is_compared_in_nfc(tmp_path: Path) -> None:
    dataset = loads(GOOD.replace("NO,", "Åland,"), tmp_path)
    assert dataset.tables["sales"].columns["country"].domain.values[0] == "Åland"  # type: ignore[union-attr]


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


UNCOVERED = """\
  notes:
    private: true
    source: {kind: csv, path: notes.csv}
    columns: {n: {type: boolean}}
"""
LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

# (text, the line that the error must name, words that it must contain)
MALFORMED = {
    "wrong type": (changed("min: 18", "min: eighteen"), 16, "min of column sales.age must be a number"),
    "unknown type": (changed("type: integer", "type: int32"), 16, "must be one of integer, decimal"),
    "missing bounds": (changed("min: 18, max: 65, ", ""), 16, "needs 'min:'"),
    "empty bound": (changed("min: 18", "min: "), 16, "needs 'min:'"),
    "bounds reversed": (changed("max: 65", "max: 17"), 16, "at least min"),
    "off the lattice": (changed("max: 500", "max: 500.001"), 15, "multiple of the step"),
    "missing step": (changed(", step: 0.01", ""), 15, "needs 'step:'"),
    "step of zero": (changed("step: 0.01", "step: 0"), 15, "above 0"),
    "not a number": (changed("min: 0,", "min: .nan,"), 15, "must be a number"),
    "infinite": (changed("max: 500", "max: .inf"), 15, "must be a number"),
    "huge integer": (changed("max: 65", "max: " + "9" * 400), 16, "must be a number"),
    "huge exponent": (changed("max: 65", "max: 1e999999999"), 16, "must be a number"),
    "beyond exact": (changed("max: 65", "max: 1e20"), 16, "2^53"),
    "division by zero": (changed("rho: 1/2", "rho: 1/0"), 25, "denominator is 0"),
    "no values": (changed("values: [NO, SE, yes], default: SE", "values: []"), 17, "1 to 100,000"),
    "values missing": (changed("values: [NO, SE, yes], default: SE", "nullable: true"), 17, "values_from"),
    "value twice": (changed("[NO, SE, yes]", "[NO, SE, NO]"), 17, "given twice"),
    "default outside": (changed("default: SE", "default: DK"), 17, "one of its values"),
    "reference to a private table": (changed("items.item", "sales.buyer"), 14, "is private"),
    "reference to nothing": (changed("items.item", "items.colour"), 14, "no column 'colour' in items"),
    "reference without a column": (changed("items.item", "items"), 14, "table.column"),
    "unknown entry": (changed("nullable: true", "nulable: true"), 16, "did you mean 'nullable'"),
    "overlapping columns": (changed("      day:", "      PRICE: {type: boolean}\n      day:"), 18, "overlaps 'price'"),
    "the same column twice": (changed("      day:", "      price: {type: boolean}\n      day:"), 18, "given twice"),
    "a name with a space": (changed("      day:", "      the day:"), 18, "letters, digits and _"),
    "a name that is SQL": (changed("      day:", "      'a\"; DROP TABLE x':"), 18, "letters, digits and _"),
    "a hidden name": (changed("      day:", "      _rank:"), 18, "a letter first"),
    "bad date": (changed("min: 2024-01-01", "min: 2024-02-31"), 18, "such as 2024-01-31"),
    "dates reversed": (changed("min: 2024-01-01", "min: 2025-01-01"), 18, "not be before min"),
    "unknown precision": (changed("precision: hour", "precision: fortnight"), 19, "must be one of day"),
    "unit on a missing column": (changed("keys: {sales: buyer}", "keys: {sales: client}"), 21, "no column 'client'"),
    "unit on a missing table": (changed("keys: {sales: buyer}", "keys: {sale: buyer}"), 21, "no table 'sale'"),
    "unit on a public table": (changed("keys: {sales: buyer}", "keys: {items: item}"), 21, "is public"),
    "unit by an unfit column": (changed("keys: {sales: buyer}", "keys: {sales: day}"), 21, "must be an identifier"),
    "window by an unfit column": (changed("times: {sales: day}", "times: {sales: price}"), 22, "must be a date"),
    "window without a length": (changed(", every: month", ""), 22, "needs 'every:'"),
    "unknown unit kind": (changed("kind: row", "kind: person"), 23, "must be one of user, row, window"),
    "private without a unit": (changed("  sales:", f"{UNCOVERED}  sales:"), 9, "no unit covers it"),
    "budget of no unit": (changed("unit: buyer, kind: zcdp", "unit: person, kind: zcdp"), 25, "no unit 'person'"),
    "budget without a cap": (changed("rho: 1/2, ", ""), 25, "needs 'rho:'"),
    "budget of the wrong kind": (changed("kind: zcdp, rho", "kind: pure, rho"), 25, "no entry 'rho'"),
    "negative budget": (changed("rho: 1/2", "rho: -1"), 25, "above 0"),
    "absurd budget": (changed("rho: 1/2", "rho: 1e9"), 25, "at most 1000"),
    "delta of one": (changed("delta: 1e-9", "delta: 1"), 25, "below 1"),
    "order of one": (changed("order: 8", "order: 1"), 26, "above 1"),
    "no budgets": (re.sub(r"budgets:\n.*\n.*\n", "budgets: []\n", GOOD, count=1), 24, "at least one"),
    "analyst twice": (changed("[ann]", "[ann, ann]"), 29, "given twice"),
    "unknown policy": (changed("separate", "shard"), 27, "must be one of shared, separate"),
    "no version": (changed("version: 1\n", ""), 1, "needs 'version:'"),
    "another version": (changed("version: 1", "version: 2"), 1, "version must be 1"),
    "unknown source": (changed("kind: csv", "kind: excel"), 6, "must be one of parquet"),
    "source without a path": (changed(", path: items.csv", ""), 6, "needs 'path:'"),
    "source with a password": (changed("path: items.csv", "path: items.csv, password: x"), 6, "no entry 'password'"),
    "private is not yes or no": (changed("private: true", "private: perhaps"), 10, "true or false"),
    "unknown zone": (GOOD + "timezone: Mars/Olympus\n", 30, "must be a time zone"),
    "a zone outside": (GOOD + "timezone: ../../etc/passwd\n", 30, "must be a time zone"),
    "not a mapping": ("- version\n- 1\n", 1, "must be a mapping"),
    "just a text": ("hello\n", 1, "must be a mapping"),
    "empty": ("", 1, "empty"),
    "only a comment": ("# nothing\n", 2, "empty"),
    "tables is a list": ("version: 1\nname: a\ntables: [x]\nunits: {}\nbudgets: []\n", 3, "must be a mapping"),
    "broken YAML": (changed("columns:", "columns: ["), 9, "not valid YAML"),
    "a tab": (changed("  items:", "\titems:"), 4, "not valid YAML"),
    "billion laughs": (LAUGHS, 1, "anchors"),
    "a tag": (changed("name: shop", "name: !!python/object/apply:os.system [ls]"), 2, "tags"),
    "two documents": (GOOD + "---\nversion: 1\n", 30, "one document only"),
    "very deep": ("a: " * 1 + "[" * 2000 + "]" * 2000, 1, ""),
    "a list as a name": ("? [a, b]\n: c\n", 1, "a name was expected"),
    "a control character": (changed("name: shop", 'name: "a\\nb"'), 2, "printable"),
}  # fmt: skip

# These contain further mistakes: another missing entry, or a unit that names what is gone.
MORE_MISTAKES = {
    "a name with a space": 2,
    "a name that is SQL": 2,
    "a hidden name": 2,
    "budget of the wrong kind": 3,
    "tables is a list": 3,
}
COLUMNS, UNITS = set(range(9, 19)), {13, 20, 21}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_descriptions_are_refused_on_their_line(case: str, tmp_path: Path) -> None:
    text, line, words = MALFORMED[case]
    file = tmp_path / "dataset.yml"
    file.write_text(text)
    refused(file, line, words, MORE_MISTAKES.get(case, 1))


def refused(file: Path, line: int | None, words: str, mistakes: int = 1) -> None:
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == mistakes and all(text.startswith(f"error: {file}:") for text in lines), result.stderr
    place = str(file) if line is None else f"{file}:{line}"
    assert any(text.startswith(f"error: {place}: ") and words in text for text in lines), result.stderr


def mistakes_of(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidSchema) as caught:
        loads(text, Path("."))
    assert str(caught.value) == "\n".join(caught.value.args)
    return caught.value.args


def test_every_mistake_is_named_in_the_order_of_lines() -> None:
    several = {
        "version: 1": "version: 2",
        "kind: csv, path": "kind: csv, pth",
        "values_from: items.item": "values_from: items.itm",
        "min: 0, max: 500": "min: low, max: high",
        "nullable: true": "nulable: true, minn: 3",
        "default: SE": "default: DK",
        "keys: {sales: buyer}}": "keys: {sales: buyr}}",
        "tables: [sales]": "tables: [sale, item]",
        "rho: 1/2, delta: 1e-9": "rho: -1, delta: 2",
        "unit: month": "unit: moth",
        "policy: separate": "policy: seperate",
    }
    text = GOOD
    for old, new in several.items():
        assert old in text
        text = text.replace(old, new, 1)
    assert [message.removeprefix("dataset.yml:") for message in mistakes_of(text)] == [
        "1: version must be 1, the only format that this version of Dither reads",
        "6: source of items has no entry 'pth'; did you mean 'path'?",
        "6: source of items needs 'path:' (a file or pattern, relative to this description)",
        "14: values_from of column sales.item: no column 'itm' in items; did you mean 'item'?",
        "15: max of column sales.price must be a number such as 3, 0.01, 1e-6 or 1/3; got 'high'",
        "15: min of column sales.price must be a number such as 3, 0.01, 1e-6 or 1/3; got 'low'",
        "16: column sales.age has no entry 'minn'; did you mean 'min'?",
        "16: column sales.age has no entry 'nulable'; did you mean 'nullable'?",
        "17: default of column sales.country must be one of its values; got 'DK'",
        "21: keys of unit buyer: no column 'buyr' in sales; did you mean 'buyer'?",
        "23: tables of unit sale: there is no table 'item'; did you mean 'items'?",
        "23: tables of unit sale: there is no table 'sale'; did you mean 'sales'?",
        "25: delta of budget 1 must be at least 0 and below 1; got 2",
        "25: rho of budget 1 must be above 0; got -1",
        "26: budget 2: no unit 'moth'; did you mean 'month'?",
        "27: policy of the description must be one of shared, separate; got 'seperate'",
    ]


def test_one_mistake_hides_no_other_and_brings_no_other() -> None:
    good, edits = GOOD.splitlines(), {}
    for case, (text, _, _) in MALFORMED.items():
        lines = text.splitlines()
        changes = [number for number, pair in enumerate(zip(good, lines, strict=False)) if pair[0] != pair[1]]
        if len(lines) == len(good) and len(changes) == 1 and not re.search("YAML|tag|tab", mistakes_of(text)[0]):
            edits[case] = changes[0], lines[changes[0]], set(mistakes_of(text))
    for (one, old, expected), (two, new, others) in islice(combinations(edits.values(), 2), 0, None, 5):
        if one == two or ({one, two} & UNITS and {one, two} & COLUMNS):  # units of a damaged column are not looked at
            continue
        lines = list(good)
        lines[one], lines[two] = old, new
        found = set(mistakes_of("\n".join(lines)))
        assert found == expected | others, (old, new)
    assert len(edits) > 40


def test_a_file_full_of_mistakes_gets_a_short_answer() -> None:
    columns = "".join(f"      c{number}: {{type: number}}\n" for number in range(200))
    found = mistakes_of(changed("      day:", columns + "      day:"))
    assert len(found) == 51 and found[-1] == "and 150 more mistakes"


def test_files_that_are_not_descriptions(tmp_path: Path) -> None:
    loop, other = tmp_path / "loop.yml", tmp_path / "other.yml"
    loop.symlink_to(other)
    other.symlink_to(loop)
    refused(loop, None, "cannot be read")
    refused(tmp_path, 1, "not a regular file")
    refused(tmp_path / "nowhere.yml", None, "No such file")
    refused(Path("/dev/zero"), 1, "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", 1, "not a regular file")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00\x01" * 10)
    refused(tmp_path / "binary.yml", 1, "not UTF-8")
    (tmp_path / "nul.yml").write_bytes(b"version: 1\nname: a\x00b\n")
    refused(tmp_path / "nul.yml", 1, "not valid YAML")
    with (tmp_path / "large.yml").open("wb") as file:
        file.truncate(100_000_000)
    refused(tmp_path / "large.yml", 1, "larger than")


def test_errors_as_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", str(tmp_path / "no.yml"), "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"]["code"] == "invalid_schema"


@pytest.mark.tier("test")
def test_too_many_entries(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match="200,000 entries"):
        loads(f"version: [{'1,' * 200_001}]\n", tmp_path)


def test_the_json_schema_accepts_what_is_read_and_is_published() -> None:
    published = json.loads((ROOT / "docs" / "dataset.schema.json").read_text())
    assert published == json_schema(), "run: dither schema > docs/dataset.schema.json"
    Draft202012Validator.check_schema(published)
    for text in (GOOD, (ROOT / "examples/url_shares/dataset.yml").read_text()):
        plain = json.loads(json.dumps(yaml.load(text, Loader=yaml.BaseLoader)).replace('"true"', "true"))
        plain = json.loads(json.dumps(plain).replace('"false"', "false").replace('"500"}', "500}")) | {"version": 1}
        assert list(Draft202012Validator(published).iter_errors(plain)) == []


def test_the_example_is_read() -> None:
    dataset = load(ROOT / "examples/url_shares/dataset.yml")
    assert set(dataset.tables) == {"urls", "users", "actions"}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_any_damage_gives_a_description_or_one_clean_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(start + 30, len(GOOD))))
    middle = data.draw(st.text(alphabet=" \n:-[]{},'\"&*!?#|>%@`~.0159aeZ_\t\x00\u0301\u2028", max_size=8))
    try:
        loads(GOOD[:start] + middle + GOOD[end:], Path("."))
    except InvalidSchema as error:
        assert all(re.fullmatch(r"dataset\.yml:\d+: [^\n]+", message) for message in error.args) and error.args


def test_the_examples_of_the_documentation_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "datasets.md").read_text()
    whole, metastore, capped, groups = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.M | re.S)
    dataset = loads(whole + groups, tmp_path)
    shape = f"version: 1\nname: d\n{capped}budgets: [{{unit: plane, kind: pure, epsilon: 1}}]\ntables: "
    source = "{private: true, source: {kind: csv, path: f.csv}, columns: {tailnum: {type: identifier, kind: text}}}"
    assert loads(f"{shape}{{flights: {source}}}", tmp_path).units["plane"].max_rows == {"flights": 1825}
    named = source.replace("source: {kind: csv, path: f.csv}", metastore.strip())
    assert loads(f"{shape}{{flights: {named}}}", tmp_path).tables["flights"].source.options["table"] == "web.visits"
    assert dataset.policy == "separate" and dataset.groups[0].analyst_caps[0].rho == Fraction(1, 8)


def test_a_missing_number_becomes_the_least_value_as_the_documents_say(tmp_path: Path) -> None:
    """Whether the default comes from the parser or from a column that declares none."""
    (tmp_path / "t.csv").write_text("x\nabc\n\n")
    (tmp_path / "d.yml").write_text(
        "version: 1\nname: d\ntables:\n  t:\n    private: true\n    source: {kind: csv, path: t.csv}\n"
        "    columns: {x: {type: integer, min: -5, max: 5}}\n"
        "units: {u: {kind: row, tables: [t]}}\nbudgets: [{unit: u, kind: pure, epsilon: 1}]\n"
    )
    described = load(tmp_path / "d.yml")
    table = described.tables["t"]
    bare = replace(table, columns={"x": replace(table.columns["x"], default=None)})
    for dataset in (described, replace(described, tables={"t": bare})):
        engine = open_engine(dataset)
        counts = engine.vector(Count(Scan("t"), (GroupKey("x", ColumnRef("x")),)))
        assert counts[0] == counts.sum() > 0
        engine.close()
