"""Test the words of the command line: costs, options, whole counts, NULL, bounds and explanations."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dither
from dither.cli import app
from dither.cli.options import with_flags
from dither.errors import Unsupported
from dither.loss import ZCDP, Pure
from dither.post.display import loss_text
from dither.post.estimate.answer import import_optional

DATASET = """\
version: 1
name: flights
tables:
  flights:
    private: true
    source: {kind: parquet, path: flights.parquet}
    columns:
      plane: {type: identifier, kind: integer}
      carrier: {type: category, values: [AA, UA], nullable: true}
      miles: {type: integer, min: 0, max: 5000}
      hour: {type: timestamp, min: 2013-01-01, max: 2013-12-31, precision: hour, nullable: true}
units:
  plane: {kind: user, keys: {flights: plane}}
budgets:
  - {unit: plane, kind: pure, epsilon: 100}
"""
COUNTS = "SELECT carrier, COUNT(DISTINCT plane) AS n FROM flights GROUP BY carrier"


@pytest.fixture
def description(tmp_path: Path) -> str:
    size = 600
    columns = {
        "plane": [row // 2 for row in range(size)],
        "carrier": ["AA", "UA", None] * (size // 3),
        "miles": [row % 5000 for row in range(size)],
        "hour": pa.nulls(size, pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "flights.parquet")
    (tmp_path / "dataset.yml").write_text(DATASET)
    return str(tmp_path / "dataset.yml")


def test_check_knows_a_cap_on_rows_and_states_a_budget_as_epsilon(tmp_path: Path) -> None:
    file = tmp_path / "dataset.yml"
    file.write_text(DATASET)
    assert "any number of rows of one plane" in run("check", str(file))
    assert "the budget of plane comes to epsilon 100" in run("check", str(file))
    file.write_text(file.read_text().replace("epsilon: 100}", "epsilon: 1000}"))
    assert "the budget of plane comes to epsilon 1,000," in run("check", str(file)).replace("\n", " ")
    for cap, note in ((1825, "table flights has at most 1,825 rows of one plane (max_rows)"), (8, "")):
        file.write_text(DATASET.replace("{flights: plane}}", f"{{flights: plane}}, max_rows: {{flights: {cap}}}}}"))
        said = run("check", str(file))
        assert "any number of rows" not in said and note in said and ("note: table" in said) == bool(note)
    file.write_text(DATASET.replace("kind: pure, epsilon: 100", "kind: zcdp, rho: 1/2"))
    assert "zcdp, rho 0.5; that is epsilon 5.22 at delta 1e-6" in run("check", str(file))
    file.write_text(DATASET.replace("kind: pure, epsilon: 100", "kind: zcdp, rho: 1/2, delta: 1e-6"))
    told = "that is epsilon 5.22 at delta 2e-6 (the budget's own 1e-6, and as much for the conversion to epsilon)"
    assert told in run("check", str(file))


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return " ".join((result.stderr if code else result.stdout).split())


def test_costs_counts_and_keys(description: str) -> None:
    assert "cost: epsilon 20; affordable note" in run("quote", description, COUNTS, "--epsilon", "20")
    shown = run("ask", description, COUNTS, "--epsilon", "20")
    assert "NULL" in shown and "None" not in shown and "." not in shown
    assert "answered before for epsilon 20 (95% intervals)" in run("ask", description, COUNTS, "--epsilon", "20")
    free = run("quote", description, COUNTS, "--epsilon", "20")
    assert "cost: nothing more, because this was answered before for epsilon 20 note" in free


def test_a_given_bound_can_report_what_it_removes(description: str) -> None:
    total = "SELECT COUNT(*) AS n FROM flights"
    clipped = run("ask", description, total, "--epsilon", "5", "--max-contributions", "1")
    reported = run("ask", description, total, "--epsilon", "5", "--max-contributions", "1,report")
    assert "--max-contributions 1,report estimates that" in clipped and "clipping removed about" in reported
    numbers = [float(found.replace(",", "")) for found in re.findall(r"│ ([\d,.]+) \[", clipped + reported)]
    assert abs(numbers[0] - 300) < 100 and abs(numbers[1] - 600) < 200  # 300 planes with two flights each


def test_both_sides_of_a_split_are_labelled_and_nothing_in_the_first_is_clipped(description: str) -> None:
    shown = run("ask", description, "SELECT COUNT(*) AS n FROM flights", "--split", "2", "--epsilon", "5")
    first, second = (
        shown.index("answer about each plane with at most 2 rows: "),
        shown.index("each plane with more than 2 rows"),
    )
    assert first < shown.index("┃ n ┃") < second and "of clipped data" not in shown


def test_a_quote_says_what_a_budget_in_rho_is_charged(description: str) -> None:
    Path(description).write_text(DATASET.replace("kind: pure, epsilon: 100", "kind: zcdp, rho: 2"))
    quoted = run("quote", description, COUNTS, "--epsilon", "0.5")
    charged = re.search(r"cost: epsilon 0.5, charged to the budget as (rho about 0.0\d{6}); affordable", quoted)
    assert charged is not None, quoted
    assert f"cost: {charged[1]} (95% intervals)" in run("ask", description, COUNTS, "--epsilon", "0.5")
    assert re.search(r"│ 0\.0\d{6} │ 2 │", run("budget", description))
    rolled = run("ask", description, "SELECT carrier, GROUPING(carrier) AS g, COUNT(DISTINCT plane) AS n FROM flights"
                 " GROUP BY ROLLUP (carrier)", "--rho", "0.1")  # fmt: skip
    assert "│ AA │ 0 │" in rolled and "│ 1 │" in rolled and "[1, 1]" not in rolled


def test_bounds_are_named_in_words(description: str) -> None:
    total = "SELECT SUM(miles) AS s FROM flights"
    quoted = run("quote", description, total, "--epsilon", "5")
    assert (
        "the contribution bound of sums is chosen privately when asked; this quote assumes" in quoted
        and "to the sum of values" in quoted
    )
    assert "each plane adds at most as much as 1 row can;" in run(
        "ask", description, total, "--epsilon", "5", "--max-contributions", "1"
    )
    told = run("explain", description, "SELECT carrier, AVG(miles) AS a FROM flights GROUP BY carrier")
    assert "chooses the contribution bound of sums among" in told and "mass" not in quoted + told
    assert "c0 is the noisy value of measure 0; c1 is the noisy value of measure 1; k0 is the key carrier" in told
    assert "the contribution bound of sums, which is chosen privately when the query is asked" in told
    assert "fill_limits" not in told and "has not been estimated" not in told
    assert "1 cell, the whole loss" in run("explain", description, "SELECT COUNT(DISTINCT plane) FROM flights")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "the query is empty"),
        ("SELECT COUNT(*) FROM flights WHERE miles > '3000'", "; write the number without quotes"),
        ("SELECT COUNT(*) FROM flights WHERE carrier > 3000", "not a category and a number\n"),
        ("SELECT PERCENTILE(miles, 0.5) FROM flights", "(did you mean QUANTILE(x, q)?); docs/sql.md"),
    ],
)
def test_refusals(description: str, query: str, words: str) -> None:
    assert words.strip() in run("quote", description, query, "--epsilon", "1", code=2)


def test_options_have_the_names_of_the_command_line(description: str) -> None:
    assert "give --epsilon or --rho, and only one of them" in run("ask", description, COUNTS, code=2)
    assert with_flags("max_error= with delta=: epsilon=1, unit='a'") == "--max-error with --delta: epsilon=1, unit='a'"


def test_domains_have_their_precision_and_null(description: str) -> None:
    shown = run("datasets", description)
    assert "hour: time to the hour, from 2013-01-01 to 2013-12-31T23:00:00, or NULL" in shown
    assert "carrier: one of AA, UA, or NULL" in shown
    assert "all rows of one plane in flights" in run("statement", description)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(Unsupported, match="this needs nowhere_at_all: pip install nowhere_at_all,"):
        import_optional("nowhere_at_all.pyplot")


def test_the_interval_is_shown_as_it_is_in_every_place(description: str) -> None:
    """An interval need not have the estimate in its middle, so that no half width may stand for it."""
    total = "SELECT SUM(miles) AS s FROM flights"
    session = dither.connect(description)
    answer = session.sql(total, epsilon=7)
    session.kernel.close()  # type: ignore[attr-defined]
    (row,), column = answer.to_dicts(), answer["s"]
    assert row["s"] - row["s_low"] < row["s_high"] - row["s"], "the bound may have removed something"
    value, low, high = column.texts(0)
    assert [float(text.replace(",", "")) for text in (value, low, high)] == pytest.approx(
        [row["s"], row["s_low"], row["s_high"]], abs=(row["s_high"] - row["s_low"]) / 10
    )
    cell = f"{value} [{low}, {high}]"
    assert cell == column.cell(0) and cell in str(answer) and f"[{low}, {high}]" in answer._repr_html_()
    shown = run("ask", description, total, "--epsilon", "7")
    assert cell in shown and "±" not in shown


def test_a_terminal_shows_a_part_of_a_large_answer_and_says_so(description: str) -> None:
    shown = run("ask", description, "SELECT miles, COUNT(*) AS n FROM flights GROUP BY miles", "--epsilon", "1")
    assert "... and 4,001 more rows; --json prints all of them" in shown and shown.count("]") == 1000


def test_losses_have_few_digits() -> None:
    losses = [Pure(Fraction(10**9 + 7, 3 * 10**9))]
    assert loss_text(losses) == "epsilon about 0.333334", "never less than it is"
    assert loss_text([Pure("1/3")]) == "epsilon 1/3" and loss_text([ZCDP("0.05", "1/1000000")]) == (
        "rho 0.05, delta 1e-6"
    )
    assert loss_text([Pure(Fraction(1, 10**9 + 7))]) == "epsilon about 1e-9"
