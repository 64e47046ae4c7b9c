"""Top keys by noisy maxima, and watching a series."""

from __future__ import annotations

import duckdb
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.post.session import Session
from post.bare import BareKernel

SERIES = "SELECT action, COUNT(*) AS n FROM actions GROUP BY action"


def test_the_top_keys_are_the_most_common(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    found = session.top("actions", "action", 2, epsilon=1000)
    exact = truth.sql("SELECT action FROM actions GROUP BY 1 ORDER BY COUNT(DISTINCT user_id) DESC LIMIT 2").fetchall()
    assert list(found.selected) == exact
    (first,) = session.top("actions", "action", count="rows", epsilon=1000).selected
    assert first == ("view",)


def test_a_unit_moves_each_count_by_one(session: Session, kernel: BareKernel) -> None:
    found = session.top("actions", ["action", "url_id"], 3, epsilon=1)
    (part,) = found.measurements
    assert part["sensitivity"]["linf"] == "1" and part["mechanism"] == "top_k"
    assert not kernel.requests[-1].searches


def test_the_shortfall_holds(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    """40 draws at 95%, with a bound that holds far more often; 24 must keep it, or a false alarm below 1e-9."""
    counts = dict(truth.sql("SELECT action, COUNT(DISTINCT user_id) FROM actions GROUP BY 1").fetchall())
    kept = 0
    for _ in range(40):
        found = session.top("actions", "action", 2, epsilon="1/10")
        chosen = [key for (key,) in found.selected]
        left_out = max(count for key, count in counts.items() if key not in chosen)
        kept += left_out - min(counts[key] for key in chosen) <= found.shortfall
    assert kept >= 24


def test_too_many_or_unknown(blind: Session) -> None:
    with pytest.raises(InvalidParameter, match="only 6 combinations"):
        blind.top("actions", "action", 7, epsilon=1)
    with pytest.raises(InvalidParameter, match="'units' or 'rows'"):
        blind.top("actions", "action", count="cells", epsilon=1)  # type: ignore[arg-type]


def test_watching_finds_the_first_above(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    counts = dict(truth.sql("SELECT action, COUNT(*) FROM actions GROUP BY 1").fetchall())
    found = session.watch(SERIES, above=counts["share"] - 50, alerts=2, epsilon=900)
    assert [key for (key,) in found.keys_above] == ["view", "click"]
    assert [row["n"] for row in found.to_dicts()] == pytest.approx([counts["view"], counts["click"]], abs=20)


def test_watching_finds_nothing_above_everything(session: Session) -> None:
    found = session.watch(SERIES, above=10**6, alerts=3, epsilon=10)
    assert found.keys_above == () and len(found) == 0
    assert "no alerts" in repr(found)


def test_one_charge_covers_the_series(session: Session, kernel: BareKernel) -> None:
    before = len(kernel.requests)
    session.watch("SELECT age, COUNT(*) AS n FROM users GROUP BY age", above=5, alerts=4, epsilon=1)
    assert len(kernel.requests) == before + 1 and len(kernel.requests[-1].parts) == 1


def test_watch_takes_one_count_by_keys(blind: Session) -> None:
    for query in ("SELECT COUNT(*) AS n FROM users", "SELECT age, AVG(salary) AS s FROM users GROUP BY age"):
        with pytest.raises(Unsupported, match="watch takes"):
            blind.watch(query, above=5, epsilon=1)


def test_quotes_are_free(blind: Session) -> None:
    assert blind.top.quote("actions", "action", 2, epsilon=1).expected[0].half_width > 0
    assert len(blind.watch.quote(SERIES, above=5, epsilon=1).expected) == 2


def test_watching_without_values_names_the_same_keys_with_less_noise(
    session: Session, kernel: BareKernel, truth: duckdb.DuckDBPyConnection
) -> None:
    counts = dict(truth.sql("SELECT action, COUNT(*) FROM actions GROUP BY 1").fetchall())
    found = session.watch(SERIES, above=counts["share"] - 50, alerts=2, values=False, epsilon=900)
    assert [key for (key,) in found.keys_above] == ["view", "click"]
    assert [column.name for column in found.columns] == ["action"]
    assert kernel.requests[-1].parts[0].mechanism.kind == "above_threshold"  # type: ignore[union-attr]
    shown, hidden = (
        session.watch.quote(SERIES, above=5, values=values, epsilon=1)["a comparison with the threshold"]
        for values in (True, False)
    )
    assert hidden.half_width < shown.half_width
    assert session.watch(SERIES, above=10**6, alerts=2, values=False, epsilon=10).keys_above == ()


def test_one_key_is_selected_by_the_mechanism_that_costs_least(session: Session, kernel: BareKernel) -> None:
    """In zCDP the noise of an exponential mechanism has half the scale that a noisy maximum would need."""
    gaps = {}
    for loss, kind in (({"epsilon": 1}, "noisy_max"), ({"rho": "1/2"}, "exponential")):
        assert len(session.top("actions", "action", **loss).selected) == 1  # type: ignore[arg-type]
        assert kernel.requests[-1].parts[0].mechanism.kind == kind  # type: ignore[union-attr]
        gaps[kind] = session.top.quote("actions", "action", **loss).expected[0].half_width  # type: ignore[arg-type]
    assert gaps["exponential"] < 0.6 * gaps["noisy_max"]
