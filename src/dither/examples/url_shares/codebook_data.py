"""Generate the tables of the static release at any size: the keys and actions of the URL-shares codebook.

    python examples/url_shares/codebook_data.py --users 50000 --urls 1000

The same size and seed give the same files. Tables are written in pieces, so memory does not grow with the size.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from dither.examples.url_shares.generate import COUNTRIES, COUNTRY_SHARES, pieces, text_column, urls

GENDERS = ("male", "female", "other")
ACTIONS = (
    "view", "click", "share", "like", "share_without_click", "comment", "anger", "haha", "love", "sorry", "wow",
    "spam", "false_news", "hate_speech",
)  # fmt: skip
ACTION_SHARES = (0.80, 0.09, 0.02, 0.045, 0.008, 0.017, 0.004, 0.005, 0.005, 0.002, 0.002, 0.001, 0.0006, 0.0004)
START = np.datetime64("2017-01-01T00:00:00", "us")
SECONDS = 973 * 86_400  # to the end of August 2019: 32 months
HEAVIEST = 5_000
SHAPE = 1.5


def users(first: int, count: int, random: np.random.Generator) -> pa.Table:
    """Return people; one in ten has not stated an age."""
    age = np.clip(np.rint(random.gamma(6.0, 6.5, count) + 8), 18, 100).astype(np.int32)
    return pa.table(
        {
            "user_id": np.arange(first, first + count, dtype=np.int64),
            "country": text_column(COUNTRIES, random.choice(len(COUNTRIES), count, p=COUNTRY_SHARES)),
            "age": pa.array(age, mask=random.random(count) < 0.1),
            "gender": text_column(GENDERS, random.choice(len(GENDERS), count, p=(0.47, 0.5, 0.03))),
        }
    )


def actions(first: int, count: int, links: int, mean: float, random: np.random.Generator) -> pa.Table:
    """Return all actions of people `first` to `first + count - 1`; some people have very many."""
    activity = np.minimum(random.pareto(SHAPE, count) * mean * (SHAPE - 1), HEAVIEST)
    rows = random.poisson(activity)
    total = int(rows.sum())
    link = np.minimum(links * random.random(total) ** 3, links - 1).astype(np.int64) + 1
    seconds = random.integers(0, SECONDS, total)
    return pa.table(
        {
            "user_id": np.repeat(np.arange(first, first + count, dtype=np.int64), rows),
            "url_id": link,
            "action": text_column(ACTIONS, random.choice(len(ACTIONS), total, p=ACTION_SHARES)),
            "at": pa.array(START + seconds * np.timedelta64(1_000_000, "us")),
        }
    )


def generate(directory: Path, people: int, links: int, mean: float, seed: int = 0) -> int:
    """Write urls.parquet, users.parquet and actions.parquet; return the number of actions."""
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(urls(links, seed), directory / "urls.parquet")
    written = 0
    writers: dict[str, pq.ParquetWriter] = {}
    for first, count in pieces(people):
        random = np.random.default_rng([seed, 3, first])
        tables = {"users": users(first, count, random), "actions": actions(first, count, links, mean, random)}
        for name, table in tables.items():
            if name not in writers:
                writers[name] = pq.ParquetWriter(directory / f"{name}.parquet", table.schema, compression="zstd")
            writers[name].write_table(table)
        written += tables["actions"].num_rows
    for writer in writers.values():
        writer.close()
    return written


def main(
    users: Annotated[int, typer.Option(min=1, help="number of people")] = 50_000,
    urls: Annotated[int, typer.Option(min=1, help="number of links")] = 1_000,
    mean: Annotated[float, typer.Option(min=0.1, help="approximate mean number of actions per person")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random data")] = 0,
    out: Annotated[Path, typer.Option(help="folder to write to")] = Path(__file__).parent / "codebook_data",
) -> None:
    """Generate the data of the static release."""
    rows = generate(out, users, urls, mean, seed)
    typer.echo(f"wrote {users:,} people, {urls:,} links and {rows:,} actions to {os.path.relpath(out)}")


if __name__ == "__main__":
    typer.run(main)
