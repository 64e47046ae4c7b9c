"""Test the analysts' web page in a browser: what it shows of the data, of costs and of errors."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
import uvicorn

from dither.privacy.pacing import Schedule
from dither.serve.gateway.app import application
from dither.serve.gateway.endpoints import AppSettings
from serve.browser import Browser, chromium
from serve.servers import Place, place, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
HOSTILE = "<img src=x onerror=window.broken=1>"
BY_ITEM = "SELECT item, COUNT(*) AS n FROM sales GROUP BY item"
PRICES = "SELECT AVG(price) AS typical FROM sales"
SALES = """
version: 1
name: sales
data_version: "1"
tables:
  items:
    private: false
    source: {kind: parquet, path: items.parquet}
    unique: item
    columns:
      item: {type: category, values_from: items.item, kind: text}
  sales:
    private: true
    source: {kind: parquet, path: sales.parquet}
    columns:
      buyer: {type: identifier, kind: integer}
      item: {type: category, values_from: items.item}
      price: {type: decimal, min: 0, max: 200, step: 0.01}
      at: {type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: second}
units:
  buyer: {kind: user, keys: {sales: buyer}}
budgets:
  - {unit: buyer, kind: pure, epsilon: 50}
"""


def described(folder: Path) -> Path:
    """Write the sales, and return the path of their description."""
    folder.mkdir()
    duckdb.sql(f"COPY (SELECT unnest(['apple', 'pear', 'quince', '{HOSTILE}']) AS item) TO '{folder}/items.parquet'")
    duckdb.sql(
        f"""COPY (SELECT range::bigint AS buyer, ['apple', 'pear'][1 + range % 2] AS item,
        (150 + range % 7)::double AS price, TIMESTAMP '2024-05-01 10:00:00' AS at FROM range(3000))
        TO '{folder}/sales.parquet'"""
    )
    path = folder / "sales.yml"
    path.write_text(SALES)
    return path


@contextmanager
def page(folder: Path) -> Iterator[tuple[Browser, Place]]:
    """Open the page of a gateway in a browser, as ann, who is not connected yet."""
    with place(folder, described=described(folder / "data"), schedule=Schedule(floor=1, max_misses=1000)) as there:
        config = uvicorn.Config(application(there.remote, AppSettings(tick_ms=0)), port=0, log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        with chromium(folder / "profile") as browser:
            browser.open(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
            browser.fill("#token", there.tokens["ann"])
            yield browser, there
        server.should_exit = True
        thread.join(10)


def connect(browser: Browser) -> None:
    """Press Connect, and wait for the budget and the history."""
    browser.click("#who button")
    until(lambda: "spent" in browser.text("#budget") and "opening" in browser.text("#history"), 10)


def ask(browser: Browser, query: str, epsilon: str = "1/2", button: str = "#answer") -> None:
    """Fill in a query, press a button, and wait until the page is no longer busy."""
    browser.fill("#query", query)
    browser.fill("#epsilon", epsilon)
    browser.click(button)
    settle(browser)


def settle(browser: Browser) -> None:
    """Wait until the page is no longer busy."""
    until(lambda: not browser.run("document.getElementById('answer').disabled"), 20)


def count(browser: Browser, selector: str) -> int:
    """Return the number of elements of a kind."""
    return int(browser.run(f"document.querySelectorAll({json.dumps(selector)}).length"))


def test_the_page_shows_domains_and_costs_and_forgets_an_answer_before_an_error(tmp_path: Path) -> None:
    with page(tmp_path) as (browser, _):
        assert browser.run("document.getElementById('answer').disabled"), "before connecting"
        connect(browser)
        tables = browser.text("#tables")
        assert "apple, pear, quince" in tables, "values from a public table"
        assert "2024-01-01" in tables and "2024-12-31" in tables, "the range of times"
        assert "delta" not in browser.text("#budget"), "a part without a limit"
        ask(browser, BY_ITEM, button="#quote")
        assert browser.text("#message") == "Nothing was charged."
        assert "buyer: epsilon 0.5" in browser.text("#cost") and "{" not in browser.text("#cost")
        ask(browser, BY_ITEM)
        assert "quince" in browser.text("#result")
        assert "buyer: epsilon 0.5" in browser.text("#cost") and "{" not in browser.text("#cost")
        ask(browser, "SELECT COUNT(colour) FROM sales")
        assert "colour" in browser.text("#message")
        assert browser.run("document.getElementById('message').className") == "bad"
        assert browser.run("document.getElementById('outcome').hidden") and browser.text("#charts") == ""
        browser.fill("#token", "wrong")
        browser.click("#who button")
        until(lambda: "not valid" in browser.text("#problem"), 10)
        assert browser.text("#tables") == "" == browser.text("#budget") == browser.text("#history")
        assert browser.run("document.getElementById('answer').disabled"), "nothing of the account before"


def test_charts_have_bars_from_zero_for_counts_and_dots_on_the_range_of_averages(tmp_path: Path) -> None:
    with page(tmp_path) as (browser, _):
        connect(browser)
        ask(browser, PRICES, "5", button="#quote")
        assert "±" in browser.text("#result") and "in a group of" in browser.text("#result"), "with what it assumes"
        ask(browser, BY_ITEM, "5")
        assert count(browser, "svg .bar") == 5 and count(browser, "svg .whisker") == 15 and not count(browser, ".dot")
        ticks = "[...document.querySelectorAll('svg .tick')].map((each) => each.textContent)"
        assert "0" in browser.run(ticks) and any("," in tick for tick in browser.run(ticks)), "axis numbers"
        assert "wider than half the value" in browser.text("#charts .why"), "no quince was sold"
        ask(browser, PRICES, "5")
        assert count(browser, "svg .dot") and not count(browser, "svg .bar")
        assert "0" not in browser.run(ticks), "averages near 150 are not drawn from 0"
        for part in ("", "_low", "_high"):
            assert f"typical{part}" in browser.run("toCsv(answered)")


def test_a_hostile_name_stays_text_and_the_csv_holds_the_answer(tmp_path: Path) -> None:
    with page(tmp_path) as (browser, _):
        connect(browser)
        ask(browser, BY_ITEM)
        assert HOSTILE in browser.text("#result") and HOSTILE in browser.text("#tables")
        assert not count(browser, "img") and browser.run("window.broken") is None
        browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        browser.click("#csv")
        until(lambda: (tmp_path / "answer.csv").read_text().count("\n") == 6, 10)
        rows = list(csv.DictReader((tmp_path / "answer.csv").read_text().splitlines()))
        assert [row["item"] for row in rows] == [HOSTILE, "apple", "pear", "quince", ""], "and NULL"
        assert all(float(row["n_low"]) <= float(row["n"]) <= float(row["n_high"]) for row in rows)
        assert browser.run("""csvText('=1+1"')""") == '"\'=1+1"""', "a formula of a spreadsheet"


def test_own_questions_are_listed_with_their_costs_and_can_be_asked_again(tmp_path: Path) -> None:
    with page(tmp_path) as (browser, there):
        connect(browser)
        browser.fill("#query", BY_ITEM)
        browser.fill("#epsilon", "1/4")
        browser.run("document.getElementById('query').dispatchEvent("
                    "new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true}))")  # fmt: skip
        assert browser.run("document.getElementById('message').className") == "busy"
        assert browser.text("#message").startswith("Running…") and browser.text("#message").endswith(" s")
        settle(browser)
        assert BY_ITEM in browser.text("#history") and "buyer: epsilon 0.25" in browser.text("#history")
        browser.fill("#query", "")
        browser.click("#history button")
        assert browser.run("document.getElementById('query').value") == BY_ITEM
        assert browser.run("document.getElementById('epsilon').value") == "1/4"
        ask(browser, BY_ITEM, "1/4")
        assert "free: answered before" in browser.text("#cost")
        browser.fill("#token", there.tokens["amy"])
        connect(browser)
        assert BY_ITEM not in browser.text("#history"), "another account"


def test_the_page_fits_a_narrow_screen(tmp_path: Path) -> None:
    with page(tmp_path) as (browser, _):
        browser.send("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        connect(browser)
        ask(browser, BY_ITEM)
        assert browser.run("document.documentElement.scrollWidth") <= 400
        tops = "['quote', 'answer'].map((id) => document.getElementById(id).getBoundingClientRect().top)"
        browser.send("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)
        quote, answer = browser.run(tops)
        assert quote == answer, "buttons in one row"
