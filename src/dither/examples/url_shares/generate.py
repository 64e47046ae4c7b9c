"""Generate the three tables of the demonstration at any size: urls (public), users and actions (private).

    python examples/url_shares/generate.py --users 20000

The same size and seed give the same files. Activity is heavy-tailed: most people have few actions, some have very many,
up to a public limit. Tables are written to Parquet in pieces, so memory does not grow with the size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PIECE = 50_000
COUNTRIES = ("US", "GB", "DE", "FR", "IN", "BR", "JP", "NG", "other")
COUNTRY_SHARES = (0.25, 0.08, 0.07, 0.06, 0.2, 0.12, 0.07, 0.08, 0.07)
GENDERS = ("female", "male", "other")
ACTIONS = ("view", "click", "share", "like", "comment", "report")
ACTION_SHARES = (0.80, 0.09, 0.02, 0.06, 0.025, 0.005)
YEAR_START = np.datetime64("2019-01-01T00:00:00", "us")
YEAR_SECONDS = 365 * 86_400
# The most actions that the site allows a person in a year; dataset.yml declares it.
HEAVIEST = 500
DATA = Path(__file__).parent / "data"


def urls(count: int, seed: int) -> pa.Table:
    """Return public links, with a domain, a first day and a number of public shares."""
    random = np.random.default_rng([seed, 1])
    day = np.datetime64("2019-01-01", "D") + random.integers(0, 365, count)
    return pa.table(
        {
            "url_id": np.arange(1, count + 1, dtype=np.int64),
            "domain": pa.array([f"site{number}.example" for number in random.zipf(1.6, count) % 200]),
            "first_share": pa.array(day),
            "public_shares": np.minimum(random.zipf(1.4, count), 1_000_000).astype(np.int64),
        }
    )


def users(first: int, count: int, random: np.random.Generator) -> pa.Table:
    """Return people `first` to `first + count - 1`."""
    age = np.clip(np.rint(random.gamma(6.0, 6.5, count) + 8), 13, 100)
    return pa.table(
        {
            "user_id": np.arange(first, first + count, dtype=np.int64),
            "country": text_column(COUNTRIES, random.choice(len(COUNTRIES), count, p=COUNTRY_SHARES)),
            "age": age.astype(np.int32),
            "gender": text_column(GENDERS, random.choice(len(GENDERS), count, p=(0.5, 0.47, 0.03))),
        }
    )


def actions(
    first: int, count: int, links: int, mean: float, random: np.random.Generator, heaviest: int = HEAVIEST
) -> pa.Table:
    """Return all actions of people `first` to `first + count - 1`."""
    shape = 1.5
    activity = np.minimum(random.pareto(shape, count) * mean * (shape - 1), heaviest)
    rows = np.minimum(random.poisson(activity), heaviest)
    total = int(rows.sum())
    link = np.minimum(links * random.random(total) ** 3, links - 1).astype(np.int64) + 1
    seconds = random.integers(0, YEAR_SECONDS, total)
    return pa.table(
        {
            "user_id": np.repeat(np.arange(first, first + count, dtype=np.int64), rows),
            "url_id": link,
            "action": text_column(ACTIONS, random.choice(len(ACTIONS), total, p=ACTION_SHARES)),
            "at": pa.array(YEAR_START + seconds * np.timedelta64(1_000_000, "us")),
        }
    )


def text_column(values: tuple[str, ...], codes: Any) -> pa.Array:
    """Return a text column from values and their codes."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(values)).cast(pa.string())


def pieces(people: int) -> Iterator[tuple[int, int]]:
    """Yield the first person and the number of people of each piece."""
    for start in range(0, people, PIECE):
        yield start + 1, min(PIECE, people - start)


def generate(
    directory: Path, people: int, links: int, mean: float, seed: int, *, quiet: bool = False, heaviest: int = HEAVIEST
) -> int:
    """Write urls.parquet, users.parquet and actions.parquet; return the number of actions."""
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(urls(links, seed), directory / "urls.parquet")
    written = 0
    writers: dict[str, pq.ParquetWriter] = {}
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), disable=quiet
    )
    with bar:
        task = bar.add_task("people", total=people)
        for first, count in pieces(people):
            random = np.random.default_rng([seed, 2, first])
            tables = {
                "users": users(first, count, random),
                "actions": actions(first, count, links, mean, random, heaviest),
            }
            for name, table in tables.items():
                if name not in writers:
                    writers[name] = pq.ParquetWriter(directory / f"{name}.parquet", table.schema, compression="zstd")
                writers[name].write_table(table)
            written += tables["actions"].num_rows
            bar.advance(task, count)
    for writer in writers.values():
        writer.close()
    return written


def main(
    users: Annotated[int, typer.Option(min=1, help="number of people")] = 20_000,
    urls: Annotated[int, typer.Option(min=1, help="number of links")] = 1_000,
    mean: Annotated[float, typer.Option(min=0.1, help="approximate mean number of actions per person")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random data")] = 0,
    out: Annotated[Path, typer.Option(help="folder to write to")] = DATA,
    quiet: Annotated[bool, typer.Option(help="no progress bar")] = False,
) -> None:
    """Generate the demonstration data."""
    rows = generate(out, users, urls, mean, seed, quiet=quiet)
    typer.echo(f"wrote {users:,} people, {urls:,} links and {rows:,} actions to {os.path.relpath(out)}")
    if out == DATA and forget_earlier_people():
        typer.echo("removed the ledger of the people that were generated before: these have their whole budget")


def forget_earlier_people() -> bool:
    """Remove the ledger beside the description; return True if there was one.

    Only invented people can be forgotten so. A file beside the description itself, if this is a link to it, points to
    the ledger.
    """
    folders = {Path(__file__).parent, Path(__file__).resolve().parent}
    files = [file for folder in folders for file in folder.glob("dataset.ledger*")]
    for file in files:
        file.unlink()
    return bool(files)


if __name__ == "__main__":
    typer.run(main)
