"""Test the analysts' web page in a browser: what it shows of the data, of costs and of errors."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest
import uvicorn

from dither.privacy.pacing import Schedule
from dither.serve.gateway.app import AppSettings, application
from serve.browser import chromium
from serve.servers import place, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
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
      at: {type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: second}
units:
  buyer: {kind: user, keys: {sales: buyer}}
budgets:
  - {unit: buyer, kind: pure, epsilon: 5}
"""


def described(folder: Path) -> Path:
    """Write the sales, and return the path of their description."""
    folder.mkdir()
    duckdb.sql(f"COPY (SELECT unnest(['apple', 'pear', 'quince']) AS item) TO '{folder}/items.parquet'")
    duckdb.sql(
        f"""COPY (SELECT range::bigint AS buyer, ['apple', 'pear'][1 + range % 2] AS item,
        TIMESTAMP '2024-05-01 10:00:00' AS at FROM range(300)) TO '{folder}/sales.parquet'"""
    )
    path = folder / "sales.yml"
    path.write_text(SALES)
    return path


def test_the_page_shows_domains_and_costs_and_forgets_an_answer_before_an_error(tmp_path: Path) -> None:
    with place(tmp_path, described=described(tmp_path / "data"), schedule=Schedule(floor=1, max_misses=1000)) as there:
        config = uvicorn.Config(application(there.remote, AppSettings(tick_ms=0)), port=0, log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with chromium(tmp_path / "profile") as browser:
            browser.open(url)
            browser.fill("#token", there.tokens["ann"])
            browser.click("#who button")
            until(lambda: "spent" in browser.text("#budget"), 10)
            browser.run("document.getElementById('about').open = true")
            tables = browser.text("#tables")
            assert "apple, pear, quince" in tables, "values from a public table"
            assert "2024-01-01" in tables and "2024-12-31" in tables, "the range of times"
            browser.fill("#query", "SELECT item, COUNT(*) AS n FROM sales GROUP BY item")
            browser.fill("#epsilon", "1/2")
            browser.click("#quote")
            until(lambda: browser.text("#message") == "Nothing was charged.", 10)
            assert "buyer: epsilon 0.5" in browser.text("#cost") and "{" not in browser.text("#cost")
            browser.click("#answer")
            until(lambda: "quince" in browser.text("#result"), 10)
            assert "buyer: epsilon 0.5" in browser.text("#cost") and "{" not in browser.text("#cost")
            browser.fill("#query", "SELECT COUNT(colour) FROM sales")
            browser.click("#answer")
            until(lambda: "colour" in browser.text("#message"), 10)
            assert "quince" not in browser.text("#result") and browser.text("#cost") == "" == browser.text("#notes")
            browser.fill("#token", "wrong")
            browser.click("#who button")
            until(lambda: "not valid" in browser.text("#message"), 10)
            assert browser.text("#tables") == "" == browser.text("#budget"), "nothing of the account before"
        server.should_exit = True
        thread.join(10)
