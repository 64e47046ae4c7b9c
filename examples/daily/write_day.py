"""Write the visits of one day, generated at random, for day.yml in this folder.

python examples/daily/write_day.py 2024-05-01 --people 5000
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

HERE = Path(__file__).parent
PAGES, PAGE_SHARES = ("home", "search", "article", "help"), (0.3, 0.2, 0.45, 0.05)
COUNTRIES, COUNTRY_SHARES = ("AT", "CH", "DE", "other"), (0.25, 0.2, 0.45, 0.1)


def visits(day: date, people: int) -> pa.Table:
    """Return the visits of a day; most people have a few, and some come back often."""
    random = np.random.default_rng([day.toordinal(), people])
    person = np.repeat(np.arange(people), random.geometric(0.25, people))
    seconds = np.clip(random.normal(15, 4, len(person)), 0, 23.999) * 3600
    country = random.choice(4, people, p=COUNTRY_SHARES)[person]
    return pa.table(
        {
            "person": person,
            "page": np.array(PAGES)[random.choice(4, len(person), p=PAGE_SHARES)],
            "country": np.array(COUNTRIES)[country],
            "at": np.datetime64(day, "us") + (seconds * 1_000_000).astype("timedelta64[us]"),
        }
    )


def main(day: str, people: Annotated[int, typer.Option()] = 5_000, folder: Path = HERE) -> None:
    """Write the file of one day to the folder `days`."""
    table = visits(date.fromisoformat(day), people)
    (folder / "days").mkdir(exist_ok=True)
    pq.write_table(table, folder / "days" / f"{day}.parquet")
    print(f"wrote {table.num_rows:,} visits of {day}")


if __name__ == "__main__":
    typer.run(main)
