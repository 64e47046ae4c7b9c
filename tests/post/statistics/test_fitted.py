"""Fitted tables of units with many rows: intervals allow for what contribution bounds removed from each cell."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy.stats import binom

import dither
from dither.post.session import Session
from dither.post.statistics.consistency import AgreedTable, Margin, agree, clipping_errors
from dither.post.statistics.contingency import ContingencyTable
from dither.post.statistics.fitted import clipping_reach, deviation

DESCRIPTION = """
version: 1
name: trips
data_version: "1"
size_epsilon: 1
tables:
  trips:
    private: true
    source: {kind: parquet, path: trips.parquet}
    columns:
      plane: {type: identifier, kind: integer}
      hub: {type: category, values: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z]}
      day: {type: category, values: [x, y]}
units:
  plane: {kind: user, keys: {trips: plane}}
budgets:
  - {unit: plane, kind: pure, epsilon: 1000}
"""
OPTIONS = [{"consistent": True}, {"nonnegative": True}, {"whole": True, "nonnegative": True}]
HUBS = "abcdefghijklmnopqrstuvwxyz"
REDRAWS = 60
# A right interval of 95% falls short of so many redraws by chance with this probability at most, in each of four cells.
ALARM = 1e-6


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Path]:
    """3,000 planes with up to 600 trips: those of planes with over 100 start at one hub, and 20% of the others."""
    folder = tmp_path_factory.mktemp("trips")
    random = np.random.default_rng(8)
    trips = np.minimum(random.pareto(1.0, 3_000) * 20 + 1, 600).astype(int)
    planes = np.repeat(np.arange(3_000), trips)
    first = random.random(len(planes)) < np.where(trips[planes] > 100, 1.0, 0.2)
    hubs = np.where(first, 0, random.integers(1, len(HUBS), len(planes)))
    data = {"plane": planes, "hub": np.array(list(HUBS))[hubs], "day": random.choice(["x", "y"], len(planes))}
    columns = ", ".join(f"UNNEST($values['{name}']) AS {name}" for name in data)
    duckdb.execute(
        f"COPY (SELECT {columns}) TO '{folder / 'trips.parquet'}'",
        {"values": {name: column.tolist() for name, column in data.items()}},
    )
    (folder / "dataset.yml").write_text(DESCRIPTION)
    return dither.connect(folder / "dataset.yml", account="ann"), folder / "trips.parquet"


def truths(where: Path, table: ContingencyTable, keys: tuple[str, ...]) -> np.ndarray:
    grouped = f"GROUP BY {', '.join(keys)}" if keys else ""
    exact = duckdb.sql(f"SELECT {', '.join((*keys, 'COUNT(*)'))} FROM '{where}' {grouped}").fetchall()
    counts = {row[:-1]: row[-1] for row in exact}
    return np.array([counts.get(tuple(row[key] for key in keys), 0) for row in table.margins[keys].to_dicts()])


@pytest.mark.tier("test")
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[-1]])
def test_fitted_intervals_of_clipped_cells_hold(trips: tuple[Session, Path], options: dict[str, bool]) -> None:
    """The cells of the first hub lack most: with intervals of the noise's mean width, they held 29 of 60 times."""
    session, where = trips
    held, exact = np.zeros(2), None
    for repeat in range(REDRAWS):
        table = session.table("trips", ["hub", "day"], epsilon=1, repeat=repeat, **options)  # type: ignore[arg-type]
        exact = truths(where, table, ("hub", "day"))[:2] if exact is None else exact
        found = table["n"].estimate
        held += (found.low[:2] <= exact) & (exact <= found.high[:2])
    assert held.min() >= binom.ppf(ALARM, REDRAWS, 0.95)


@pytest.mark.parametrize("options", OPTIONS)
def test_fitting_does_not_shrink_what_clipping_may_have_removed(
    trips: tuple[Session, Path], options: dict[str, bool]
) -> None:
    session, _ = trips
    table = session.table("trips", ["hub", "day"], margins="all", epsilon=1, **options)  # type: ignore[arg-type]
    for keys, answer in table.margins.items():
        shown, raw = answer.columns[-1], table.raw[keys].columns[-1]
        for fitted, measured in zip(clipping_reach(shown, 0.95), clipping_reach(raw, 0.95), strict=True):
            assert np.all(fitted >= measured * (1 - 1e-9))
        assert np.all(shown.std_error >= np.hypot(shown.noise, deviation(*clipping_reach(raw, 0.95), 0.95)) - 1e-6)
    cells = table["n"].estimate
    assert cells.std_error[0] > 2 * cells.std_error[-1]


def test_combined_answers_keep_what_clipping_may_have_removed(trips: tuple[Session, Path]) -> None:
    session, _ = trips
    fine = session.sql("SELECT day, hub, COUNT(*) AS n FROM trips GROUP BY day, hub", epsilon=1)
    coarse = session.sql("SELECT hub, COUNT(*) AS n FROM trips GROUP BY hub", epsilon=1)
    for before, after in zip((fine, coarse), session.combine(fine, coarse), strict=True):
        (low, high), (below, above) = after["n"].interval, clipping_reach(after["n"], 0.95)
        assert np.all(low <= after["n"].value - below) and np.all(high >= after["n"].value + above)
        for own, measured in zip(*(clipping_reach(each["n"], 0.95) for each in (after, before)), strict=True):
            assert np.all(own >= measured * (1 - 1e-9))


def test_errors_of_clipping_are_those_of_the_fit() -> None:
    """The cells of one margin err together; those that clipping cannot change add nothing."""
    sizes, random = {"a": 3, "b": 2}, np.random.default_rng(4)
    truth = AgreedTable(sizes, random.random((3, 2)), {})
    lacking = {("a", "b"): random.random((3, 2)), ("a",): random.random(3)}
    margins = [
        Margin(keys, truth.margin(keys), variance, 1.0, lacking[keys], 2 * lacking[keys])
        for keys, variance in ((("a", "b"), 2.0), (("a",), 5.0))
    ]
    margins.append(Margin((), truth.margin(()), 3.0))
    moved = [
        agree(
            sizes, [Margin(m.keys, m.values + lacking.get(m.keys, 0) * (m.keys == keys), m.variance) for m in margins]
        )
        for keys in lacking
    ]
    shifts = [after.cells - truth.cells for after in moved]
    below, above = clipping_errors(sizes, margins)["a", "b"]
    assert np.allclose(below, np.sqrt(sum(np.maximum(shift, -2 * shift) ** 2 for shift in shifts)))
    assert np.allclose(above, np.sqrt(sum(np.maximum(2 * shift, -shift) ** 2 for shift in shifts)))


def test_the_noise_of_a_fit_is_told_apart_from_other_errors() -> None:
    """A margin whose cells have an error of variance 4, of which noise makes 1, has noise of variance 1 in the fit."""
    margin = Margin(("a",), np.arange(3.0), 4.0, noise=1.0)
    fitted = agree({"a": 3}, [margin])
    assert fitted.variance(["a"]) == pytest.approx(4)
    assert fitted.noise_variance(["a"]) == pytest.approx(1)
