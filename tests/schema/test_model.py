"""The rules for units also apply to descriptions that are built in code."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dither.errors import InvalidSchema
from dither.schema import Boolean, Category, Column, Dataset, Domain, Identifier, Moment, Number, Source, Table, Unit

WHOLE, HALVES = Number(Fraction(0), Fraction(9)), Number(Fraction(0), Fraction(9), Fraction(1, 2))
TIMES = {"a": "t", "b": "t"}


def dataset(first: Domain, second: Domain, time: Domain | None = None, **unit: Any) -> Dataset:
    """Two tables whose key columns have these domains."""
    tables = {}
    for name, domain in (("a", first), ("b", second)):
        columns = {"u": Column("u", domain), "t": Column("t", time or Moment(0, 9))}
        tables[name] = Table(name, True, columns, Source("parquet", {"path": f"{name}.parquet"}))
    declared = {"name": "user", "kind": "user", "keys": {"a": "u", "b": "u"}, **unit}
    return Dataset("d", "d", "1", tables, {"user": Unit(**declared)}, ())


@pytest.mark.parametrize(
    "pair", [(WHOLE, WHOLE), (WHOLE, Identifier("integer")), (Category(("a",)), Identifier("text"))]
)
def test_keys_of_one_kind(pair: tuple[Domain, Domain]) -> None:
    assert dataset(*pair).units
    assert dataset(*pair, kind="window", times=TIMES, every="month").units


@pytest.mark.parametrize(
    "pair",
    [(WHOLE, HALVES), (WHOLE, Identifier("text")), (WHOLE, Category(("1",))), (Identifier("integer"), HALVES)],
)
def test_keys_of_two_kinds_are_refused(pair: tuple[Domain, Domain]) -> None:
    """Equal stored values would merge different units, or split one unit in two."""
    with pytest.raises(InvalidSchema, match="of one kind"):
        dataset(*pair)
    with pytest.raises(InvalidSchema, match="of one kind"):
        dataset(*pair, kind="window", times=TIMES, every="month")


@pytest.mark.parametrize(
    "unit",
    [
        {"keys": {"a": "u", "b": "w"}},
        {"keys": {"a": "u", "c": "u"}},
        {"keys": {"a": None}},
        {"kind": "window", "times": {"a": "t"}, "every": "month"},
        {"kind": "window", "times": TIMES},
        {"kind": "window", "times": {"a": "t", "b": "u"}, "every": "month"},
    ],
)
def test_units_that_name_nothing_are_refused(unit: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema, match="unit user"):
        dataset(WHOLE, WHOLE, **unit)


@pytest.mark.parametrize("domain", [Boolean(), Moment(0, 9)])
def test_a_truth_or_a_moment_is_no_key(domain: Domain) -> None:
    with pytest.raises(InvalidSchema, match="identifiers, integers or categories"):
        dataset(domain, domain)
