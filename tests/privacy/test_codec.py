"""JSON v1: what goes over comes back equal, and nothing else gets in; never an error that is not ours."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dither.errors import DitherError, InvalidParameter, InvalidPlan
from dither.loss import ZCDP, Approximate, Pure, Renyi
from dither.plan import expressions as expr
from dither.plan import measures as measure
from dither.plan import relations as relation
from dither.plan.context import PublicTableFacts
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Case, Compare, In
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import NO_CHANGE, GroupKey
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.sums import Count, SumVector
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy import mechanisms
from dither.privacy.codec import FAMILIES, REQUEST, RESPONSE, MessageLimits, _init_fields, decode, digest, encode
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, Measurement, ReleasedMeasurement, Request
from dither.schema import Dataset
from privacy.ledger_cases import dataset, monthly_units, pure, teams, zcdp

BUCKET = Case(
    ((Compare("<", ColumnRef("age"), LiteralValue(Fraction(1, 2))), LiteralValue("young")),), LiteralValue(None)
)
PLAN = Count(
    LimitRowsPerUnit(
        Filter(Scan("users"), In(ColumnRef("country"), ("DE", "1/2", None, True, 3, Fraction(1, 3)))),
        "user",
        EstimatedLimit(),
    ),
    (GroupKey("bucket", BUCKET), GroupKey("country", ColumnRef("country"), ("DE", None))),
)
REQUESTS = [
    Request(
        "shop",
        (Measurement(PLAN, Calibrate("discrete_laplace", Pure("1/10"))),),
        request_id="r-1",
        unit="user",
        repeat=3,
    ),
    Request(
        "shop",
        (
            Measurement(
                ClippedSums(Scan("users"), "user", (LiteralValue(1), ColumnRef("age")), 5, "l1"),
                DiscreteGaussian(Fraction(9, 4)),
            ),
            Measurement(LinearQuery(PLAN, ((1, -1, 0),)), DiscreteLaplace(Fraction(1, 3))),
            Measurement(
                SumVector(Project(Scan("users"), (("a", ColumnRef("age")),)), (ColumnRef("a"),)),
                Calibrate("x", ZCDP(1, "1/9")),
            ),
        ),
        (
            BoundSearch(
                PLAN,
                Calibrate("quantiles", Approximate(1, "1/7"), (("quantiles", (Fraction(1, 2),)), ("k", 3))),
                (1, 2),
            ),
            BoundSearch(PLAN, DiscreteLaplace(Fraction(10)), (1, 2), "rows", BoundRule((1, 2, 4), Fraction(3, 2), 6)),
        ),
    ),
    Request("shop", (Measurement(PLAN, Calibrate("y", Renyi(((2, "1/2"), (3, 1))))),)),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_come_back_equal_and_canonical(request_: Request) -> None:
    data = encode(request_)
    assert decode(data, Request) == request_
    assert encode(decode(data, Request)) == data
    shuffled = json.dumps(dict(reversed(json.loads(data).items())), indent=2).encode()
    assert decode(shuffled, Request) == request_


def test_descriptions_and_facts_come_back_equal() -> None:
    described = dataset(
        budgets=(pure(1), zcdp(1, "month", "1/1000")), groups=teams(caps=(pure("1/3"),)), units=monthly_units()
    )
    assert decode(encode(described), Dataset, RESPONSE) == described
    facts = PublicTableFacts({"urls.id": (1, "a", Fraction(1, 2), True, None)}, {"urls.id": 3})
    back = decode(encode(facts), PublicTableFacts, RESPONSE)
    assert back == facts
    assert [type(value) for value in back.values["urls.id"]] == [int, str, Fraction, bool, type(None)]


@pytest.mark.parametrize("name", ["node", "rational", "version"])
def test_a_table_may_have_a_name_that_the_codec_uses(name: str) -> None:
    """The keys of a unit are a mapping from tables to columns, and must not be read as a node."""
    declared = dataset()
    unit = next(iter(declared.units.values()))
    (first, *_), table = unit.keys, next(iter(declared.tables.values()))
    renamed = replace(
        declared,
        tables={
            **{key: each for key, each in declared.tables.items() if key != first},
            name: replace(table, name=name),
        },
        units={unit.name: replace(unit, keys={name: unit.keys[first]})},
    )
    assert decode(encode(renamed), Dataset, RESPONSE) == renamed


@pytest.mark.parametrize("wrong", [True, None, "1", [2], 10**60 + 1, -(10**61)])
def test_an_array_of_integers_is_read_as_strictly_as_one_integer(wrong: Any) -> None:
    released = ReleasedMeasurement(
        (-5, 10**18, 0), (Fraction(1),), (3, 1), None, DiscreteLaplace(Fraction(1)), NO_CHANGE, Pure(1), ()
    )
    assert decode(encode(released), ReleasedMeasurement, RESPONSE) == released
    tree = json.loads(encode(released))
    for values in ([wrong], [1, 2, wrong], [wrong, 1]):
        with pytest.raises(InvalidPlan):
            decode(json.dumps(tree | {"values": values}).encode(), ReleasedMeasurement, RESPONSE)


def test_text_and_rationals_are_not_confused() -> None:
    for value in ("1/2", Fraction(1, 2), 1, True, None, Fraction(1), "true", ""):
        (part,) = decode(encode(asking(LiteralValue(value))), Request).parts
        found = part.measure.child.condition.value  # type: ignore[attr-defined]
        assert found == value and type(found) is type(value)


def asking(condition: Any) -> Request:
    return Request("shop", (Measurement(Count(Filter(Scan("users"), condition)), DiscreteLaplace(Fraction(1))),))


def test_the_digest_forgets_the_id_the_head_and_the_schema_hash_and_nothing_else() -> None:
    first = REQUESTS[0]
    assert digest(first) == digest(replace(first, request_id="other", schema_hash="ab" * 32))
    changed = [
        replace(first, repeat=4),
        replace(first, unit=None),
        replace(first, dataset="other"),
        replace(first, parts=first.parts * 2),
        replace(first, parts=(Measurement(PLAN, Calibrate("discrete_laplace", Pure("1/5"))),)),
        replace(first, parts=(Measurement(PLAN, DiscreteLaplace(Fraction(1))),)),
        REQUESTS[1],
    ]
    assert len({digest(each) for each in (first, *changed)}) == len(changed) + 1


def test_every_node_that_can_be_named_has_fields_that_can_be_sent() -> None:
    """A new node needs nothing here; one whose fields the codec cannot type fails."""
    sendable = set()
    for table in (expr.BY_NAME, relation.BY_NAME, measure.BY_NAME, mechanisms.BY_NAME):
        for name, kind in table.items():
            assert set(_init_fields(kind)) == {part.name for part in fields(kind) if part.init}, name
            sendable.add(kind)
    assert set(FAMILIES) == {expr.Expr, relation.Relation, measure.Measure, mechanisms.Mechanism}
    assert len(sendable) > 50


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b'"text"', b"\xff\xfe", b"{", b'{"version":2}', b"[" * 100_000, b'{"a":' * 5000,
        b'{"version":1,"node":"Request"}', b'{"version":2,"node":"Measurement"}', b'{"version":2,"version":2}',
        b"1e999", b'{"version":2,"node":"Request","dataset":"d"}', b'{"version":2.0}', b"NaN", b"9" * 5000,
        b'"\\ud800"',
    ],
)  # fmt: skip
def test_other_json_is_refused_with_our_own_error(data: bytes) -> None:
    with pytest.raises(InvalidPlan):
        decode(data, Request)


def changed(path: str, value: Any) -> bytes:
    """The first request with one value replaced."""
    tree = json.loads(encode(REQUESTS[0]))
    *way, last = path.split(".")
    node: Any = tree
    for step in way:
        node = node[int(step)] if step.isdigit() else node[step]
    node[int(last) if last.isdigit() else last] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parts.0.measure.node", "scan"),
        ("parts.0.measure.node", "Measure"),
        ("parts.0.measure.node", "Axis"),
        ("parts.0.measure.node", "__class__"),
        ("parts.0.measure.extra", 1),
        ("parts.0.measure.child.unit", None),
        ("parts.0.measure.child.unit", 3),
        ("parts.0.measure.child.limit", "3"),
        ("parts.0.measure.child.limit", True),
        ("parts.0.measure.child.limit", -1),
        ("parts.0.measure.child.limit", 10**70),
        ("parts.0.measure.child.limit", {"node": "scan", "table": "users"}),
        ("parts.0.mechanism.loss.epsilon", 0.1),
        ("parts.0.mechanism.loss.epsilon", "nan"),
        ("parts.0.mechanism.loss.epsilon", "-1"),
        ("parts.0.mechanism.loss.epsilon", "1/0"),
        ("parts.0.mechanism.loss.epsilon", "1" * 100),
        ("parts.0.mechanism.loss.epsilon", "1e400000000"),
        ("parts.0.mechanism", None),
        ("parts.0.mechanism", {"node": "Mechanism"}),
        ("parts.0.mechanism", {"node": "discrete_laplace", "scale": "0"}),
        ("parts", []),
        ("parts", {}),
        ("parts", [None]),
        ("request_id", "a b"),
        ("request_id", "x" * 65),
        ("repeat", -1),
        ("repeat", 2**31),
        ("dataset", ["shop"]),
        ("searches", {"node": "Request"}),
    ],
)
def test_values_of_another_kind_are_refused(path: str, value: Any) -> None:
    with pytest.raises((InvalidPlan, InvalidParameter)):
        decode(changed(path, value), Request)


def test_grids_and_batches_have_limits() -> None:
    part = REQUESTS[0].parts[0]
    for grid in ((), (0, 1), (2, 1), (1, 1), tuple(range(1, 600))):
        with pytest.raises(InvalidPlan):
            BoundSearch(PLAN, part.mechanism, grid)
    with pytest.raises(InvalidPlan):
        Request("shop", (part,) * 257)


def test_size_depth_and_number_of_values_are_limited() -> None:
    with pytest.raises(InvalidPlan, match="at most"):
        decode(b" " * (REQUEST.size + 1), Request)
    deep: Any = Scan("users")
    for _ in range(60):
        deep = Union(deep, Scan("users"))
    decode(encode(Request("shop", (Measurement(Count(deep), DiscreteLaplace(Fraction(1))),))), Request)
    for _ in range(60):
        deep = Union(deep, Scan("users"))
    with pytest.raises(InvalidPlan, match="deep"):
        decode(encode(Request("shop", (Measurement(Count(deep), DiscreteLaplace(Fraction(1))),))), Request)
    with pytest.raises(InvalidPlan, match="values"):
        decode(encode(REQUESTS[0]), Request, MessageLimits(size=1 << 20, values=10))
    for _ in range(3000):
        deep = Union(deep, Scan("users"))
    with pytest.raises(InvalidPlan, match="deeply"):
        encode(Request("shop", (Measurement(Count(deep), DiscreteLaplace(Fraction(1))),)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["Scan", "1/2", "user"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["node", "version", "parts", "dataset", "rational"]), inner
        )
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(JSON)
def test_no_json_gives_another_error(tree: Any) -> None:
    for data in (json.dumps(tree), json.dumps({"version": 2, "node": "Request", "dataset": "d", "parts": tree})):
        try:
            decode(data.encode(), Request)
        except DitherError:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_no_mutation_of_a_plan_gives_another_error(seed: int, tier: Any) -> None:
    """Swaps subtrees and values of real plans at random; whatever is accepted comes back equal."""
    chance = random.Random(seed)
    accepted = 0
    for _ in range(tier.pick(quick=100, test=2500, deep=10_000)):
        tree = json.loads(encode(chance.choice(REQUESTS)))
        for _ in range(chance.randrange(1, 4)):
            spots = list(places(tree))
            holder, name = chance.choice(spots)
            other, place = chance.choice(spots)
            holder[name] = chance.choice(
                [deepcopy(other[place]), None, 0, -1, 2**63, "", "1/2", [], {}, True, 1.5, "Scan"]
            )
        try:
            made = decode(json.dumps(tree).encode(), Request)
        except DitherError:
            continue
        accepted += 1
        assert decode(encode(made), Request) == made
    print(f"plan mutations: seed {seed}, {accepted} accepted")


def places(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        for name, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield tree, name
            yield from places(inner)
