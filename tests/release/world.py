"""A small dataset and a release of it, for tests; nothing here draws noise."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dither.release.api import StaticRelease

DATASET = """
version: 1
name: shares
population: shares
data_version: "1"
tables:
  urls:
    private: false
    source: {kind: parquet, path: urls.parquet}
    unique: url_id
    columns:
      url_id: {type: identifier, kind: integer}
  users:
    private: true
    source: {kind: parquet, path: users.parquet}
    unique: user_id
    columns:
      user_id: {type: identifier, kind: integer}
      country: {type: category, values: [AT, CH, other], default: other}
  actions:
    private: true
    source: {kind: parquet, path: actions.parquet}
    columns:
      user_id: {type: identifier, kind: integer}
      url_id: {type: category, values_from: urls.url_id}
      action: {type: category, values: [view, click, share], default: view}
      at: {type: timestamp, min: 2019-01-01, max: 2019-03-31, precision: second}
      code: {type: integer, min: 0, max: 60000000}
units:
  user: {kind: user, keys: {users: user_id, actions: user_id}}
  action: {kind: row, tables: [actions]}
budgets:
  - {unit: action, kind: zcdp, rho: 10, delta: 1/100000}
"""
SPEC = """
version: 1
name: shares
title: Shares of links
description: Actions on links by month and country.
dataset: dataset.yml
from: actions JOIN users ON actions.user_id = users.user_id
where: url_id IS NOT NULL
unit: action
keys:
  url: url_id
  month: DATE_TRUNC('month', at)
  country: country
columns:
  views: {where: "action = 'view'", sigma: 3, k: 9}
  clicks: {where: "action = 'click'", sigma: 1}
output: {rows_per_part: 40}
"""
ADMISSION = "admission: {where: \"action = 'share'\", threshold: 30, scale: 1/2}\n"
URLS = 20


def write_world(folder: Path, spec: str = SPEC, dataset: str = DATASET) -> Path:
    """Write the tables, the dataset and the release; return the release's path."""
    folder.mkdir(parents=True, exist_ok=True)
    duckdb.sql(f"COPY (SELECT range + 1 AS url_id FROM range({URLS})) TO '{folder}/urls.parquet'")
    users = "SELECT range AS user_id, ['AT', 'CH', 'other'][1 + range % 3] AS country FROM range(90)"
    duckdb.sql(f"COPY ({users}) TO '{folder}/users.parquet'")
    actions = f"""SELECT range % 90 AS user_id, 1 + range * range % {URLS} AS url_id,
        ['view', 'click', 'share'][1 + range % 7 % 3] AS action,
        TIMESTAMP '2019-01-01' + INTERVAL 1 SECOND * (range * 2521 % 7700000) AS at, range AS code FROM range(3000)"""
    duckdb.sql(f"COPY ({actions}) TO '{folder}/actions.parquet'")
    (folder / "dataset.yml").write_text(dataset)
    (folder / "release.yml").write_text(spec)
    return folder / "release.yml"


def exact_counts(folder: Path) -> dict[tuple[int, str, str], tuple[int, int]]:
    """Count without Dither: views and clicks by url, month and country."""
    rows = duckdb.sql(
        f"""SELECT url_id, strftime("at", '%Y-%m'), country, COUNT(*) FILTER (WHERE action = 'view'),
        COUNT(*) FILTER (WHERE action = 'click') FROM '{folder}/actions.parquet' JOIN '{folder}/users.parquet'
        USING (user_id) GROUP BY ALL"""
    ).fetchall()
    return {(url, month, country): (views, clicks) for url, month, country, views, clicks in rows}


class Stop(Exception):
    """Raised by the progress of a release that a test interrupts."""


def stop_after(release: StaticRelease, out: Path, parts: int, staging: Path | None = None) -> None:
    """Interrupt a release after some parts."""

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "drawing" and done == parts:
            raise Stop

    with pytest.raises(Stop):
        release.write(out, staging, progress=stop)
