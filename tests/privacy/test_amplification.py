"""Sampling of whole units: when a request costs less, that the loss covers the exact distribution, and known traps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import duckdb
import mpmath
import pytest

from dither.access.engines import open_engine
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.plan.context import Context, PublicTableFacts
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import UnitJoin
from dither.plan.relations.project import Union
from dither.plan.relations.scan import Scan
from dither.privacy.accounting.composition import compose, sampled_loss
from dither.privacy.amplification import amplify, sampling_rate
from dither.schema import Column as Described
from dither.schema import Dataset, Number, Source
from privacy.ledger_cases import dataset, monthly_units

CTX = Context(dataset(units=monthly_units()), PublicTableFacts())
USERS, ACTIONS = Scan("users"), Scan("actions")


def some(child: Relation, unit: str | None = "user", rate: Any = "1/4", tag: str = "") -> Sample:
    return Sample(child, Fraction(rate), unit, tag)


def few(child: Relation) -> Relation:
    return LimitRowsPerUnit(child, "user", 2)


BOTH = UnitJoin(some(few(ACTIONS)), some(few(USERS)), "user")
AFTER = some(UnitJoin(few(ACTIONS), few(USERS), "user"))
YOUNG = Filter(some(USERS), Compare("<", ColumnRef("age"), LiteralValue(30)))

GRANTED: dict[str, list[Relation]] = {
    "a sampled table": [some(USERS)],
    "bounded after the sample": [few(some(ACTIONS))],
    "bounded before the sample": [some(few(ACTIONS))],
    "a condition after the sample": [YOUNG],
    "a join of two sampled tables": [BOTH],
    "a sample of a join": [AFTER],
    "two measures of one sample": [some(USERS), few(some(ACTIONS))],
    "a sample of a sample": [some(some(USERS))],
}
DENIED: dict[str, list[Relation]] = {
    "no sample": [USERS],
    "rows, not units": [some(USERS, unit=None)],
    "another unit": [few(some(ACTIONS, unit="month"))],
    "a second measure without it": [some(USERS), few(ACTIONS)],
    "one side of a join without it": [UnitJoin(some(few(ACTIONS)), few(USERS), "user")],
    "one side of a union without it": [Union(some(USERS), USERS)],
    "two coins": [some(USERS, tag="a"), some(USERS, tag="b")],
    "two coins in a join": [UnitJoin(some(few(ACTIONS), tag="a"), some(few(USERS), tag="b"), "user")],
    "two rates": [some(USERS), some(USERS, rate="1/2")],
    "rows sampled by the same secret": [few(some(some(ACTIONS, unit=None)))],
}


@pytest.mark.parametrize("name", GRANTED)
def test_a_request_that_hangs_on_one_coin_is_cheaper(name: str) -> None:
    measures = [Count(child) for child in GRANTED[name]]
    assert sampling_rate(CTX, "user", measures) == Fraction(1, 4)
    assert amplify(CTX, "user", measures, Pure(1)) == sampled_loss(Pure(1), "1/4")
    assert amplify(CTX, "user", measures, Approximate(1, "1/100")) == sampled_loss(Approximate(1, "1/100"), "1/4")


@pytest.mark.parametrize("name", DENIED)
def test_any_way_past_the_coin_and_there_is_no_discount(name: str) -> None:
    measures = [Count(child) for child in DENIED[name]]
    assert sampling_rate(CTX, "user", measures) is None
    assert amplify(CTX, "user", measures, Pure(1)) == Pure(1)


def test_the_coin_of_one_unit_is_no_discount_for_another() -> None:
    measures = [Count(few(some(ACTIONS)))]
    assert sampling_rate(CTX, "month", measures) is None
    assert sampling_rate(CTX, "month", [Count(LimitRowsPerUnit(some(ACTIONS, "month"), "month", 2))]) == Fraction(1, 4)


def test_a_unit_that_tables_may_spell_differently_has_several_coins() -> None:
    actions = CTX.dataset.tables["actions"]
    numbers = {**actions.columns, "user_id": Described("user_id", Number(Fraction(0), Fraction(999)), Fraction(0))}
    tables = {**CTX.dataset.tables, "actions": replace(actions, columns=numbers)}
    mixed = Context(replace(CTX.dataset, tables=tables), PublicTableFacts())
    assert sampling_rate(mixed, "user", [Count(some(USERS))]) is None


@pytest.mark.parametrize("loss", [ZCDP("1/8"), Renyi(((2, 1),))], ids=lambda loss: loss.kind)
def test_concentrated_losses_get_none(loss: Loss) -> None:
    assert amplify(CTX, "user", [Count(some(USERS))], loss) == loss


# --- The exact distribution ---


def laplace(scale: Fraction, at: int, reach: int = 60) -> dict[int, Any]:
    """The distribution of `at` and discrete Laplace noise, cut where the rest is below 1e-12 for these scales."""
    p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    return {k: (1 - p) / (1 + p) * p ** abs(k - at) for k in range(-reach, reach + 1)}


def pairs(first: dict[int, Any], second: dict[int, Any]) -> dict[tuple[int, int], Any]:
    return {(a, b): p * q for a, p in first.items() for b, q in second.items()}


def beyond(left: dict[Any, Any], right: dict[Any, Any], epsilon: Any) -> Any:
    """How much of the left distribution lies above e**epsilon times the right one."""
    return sum(max(mpmath.mpf(0), p - mpmath.exp(epsilon) * right[x]) for x, p in left.items())


@pytest.mark.parametrize("rate", ["1/10", "1/2"])
def test_two_answers_of_one_coin_cost_the_discount_of_their_sum_and_no_less(rate: str) -> None:
    """The trap: a discount for each answer, added up, does not cover the exact distribution."""
    without, scale, q = laplace(Fraction(1), 0), Fraction(1), Fraction(rate)
    kept = laplace(scale, 1)
    absent, present = pairs(without, without), pairs(kept, kept)
    mixed = {x: (1 - mpmath.mpf(q.numerator) / q.denominator) * absent[x]
             + mpmath.mpf(q.numerator) / q.denominator * present[x] for x in absent}  # fmt: skip
    measures = [Count(some(USERS, rate=rate)), Count(some(ACTIONS, rate=rate))]
    claimed = amplify(CTX, "user", measures, compose([Pure(1), Pure(1)]))
    each = compose([amplify(CTX, "user", [measure], Pure(1)) for measure in measures])
    assert isinstance(claimed, Pure) and isinstance(each, Pure)
    for left, right in ((mixed, absent), (absent, mixed)):
        assert beyond(left, right, mpmath.mpf(claimed.epsilon.numerator) / claimed.epsilon.denominator) < 1e-12
    assert beyond(mixed, absent, mpmath.mpf(each.epsilon.numerator) / each.epsilon.denominator) > 1e-3


# --- The coin itself ---


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """1,000 people with an action each."""
    place = tmp_path_factory.mktemp("world")
    people = "range::bigint AS user_id, 30 AS age, 'DE' AS country, range AS number"
    duckdb.sql(f"COPY (SELECT {people} FROM range(1000)) TO '{place}/users.parquet'")
    acts = "range::bigint AS user_id, 'view' AS kind, make_timestamp(0::bigint) AS at, range AS number"
    duckdb.sql(f"COPY (SELECT {acts} FROM range(1000)) TO '{place}/actions.parquet'")
    made = dataset(10)
    number = {"number": Described("number", Number(Fraction(0), Fraction(999)), Fraction(0))}
    tables = {
        name: replace(
            table, columns={**table.columns, **number}, source=Source("parquet", {"path": f"{place}/{name}.parquet"})
        )
        for name, table in made.tables.items()
    }
    return replace(made, tables=tables)


@pytest.fixture
def kept(world: Dataset) -> Any:
    """Whom a sample keeps, by table, tag and secret."""
    engine = open_engine(world)

    def keeping(table: str, secret: int, tag: str = "", rate: str = "1/4") -> frozenset[int]:
        people = GroupKey("number", ColumnRef("number"))
        vector = engine.vector(Count(some(few(Scan(table)), rate=rate, tag=tag), (people,)), None, secret)
        return frozenset(at for at, count in enumerate(vector.tolist()) if count)

    yield keeping
    engine.close()


def test_one_coin_decides_for_a_unit_in_every_table(kept: Callable[..., frozenset[int]]) -> None:
    for secret in (1, 2, 3):
        assert kept("users", secret) == kept("actions", secret)
    assert kept("users", 1) != kept("users", 1, tag="another")
    assert kept("users", 1) <= kept("users", 1, rate="1/2")


def test_coins_are_fresh_for_a_secret_and_fall_at_the_rate(kept: Callable[..., frozenset[int]]) -> None:
    # Each count is binomial (1000, 1/4): beyond 250 +- 100 with probability below 2e-12; overlaps of two secrets are
    # binomial (1000, 1/16): beyond 62.5 +- 60 with probability below 2e-11. Ten of each: below 3e-10.
    samples = [kept("users", secret) for secret in range(10, 15)]
    assert all(150 <= len(sample) <= 350 for sample in samples)
    overlaps = [len(a & b) for at, a in enumerate(samples) for b in samples[:at]]
    assert all(3 <= overlap <= 122 for overlap in overlaps)


@pytest.mark.tier("test")
def test_the_chance_of_a_coin_is_never_above_the_rate(kept: Callable[..., frozenset[int]]) -> None:
    """A coin has 2^32 sides. A person's side is found by bisection; a rate that ends within that side leaves it out."""
    person, low, high = 17, 0, 1 << 32  # kept at the rate high / 2^32, not at low / 2^32
    while high - low > 1:
        middle = (low + high) // 2
        is_kept = person in kept("users", 5, rate=f"{middle}/{1 << 32}")
        low, high = (low, middle) if is_kept else (middle, high)
    assert person in kept("users", 5, rate=f"{high}/{1 << 32}")
    for part in ("1/2", "1/1000000", "999999/1000000"):
        assert person not in kept("users", 5, rate=str((low + Fraction(part)) / (1 << 32)))
