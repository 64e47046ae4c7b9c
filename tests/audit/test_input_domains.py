"""Pairs come from a declared domain and never leave it; without one, the audit asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest

from dither import audit
from dither.audit import Choices, Examples, Numbers, Records
from dither.audit.input_domains import neighbours_in
from dither.audit.neighbours import Pair
from dither.audit.stability import ValueDomain, Vectors
from dither.errors import InvalidParameter
from dither.loss import Pure


def response(rng: np.random.Generator) -> Callable[[int, int], Any]:
    """Return a correct randomised response of epsilon 1, for the inputs 0 and 1."""
    return lambda value, size: np.where(rng.random(size) < math.e / (1 + math.e), value, 1 - value)


def rounded(values: Any) -> Any:
    """Return values on a lattice, so that their bits reveal nothing."""
    return np.rint(np.asarray(values) * 1024) / 1024


def test_without_a_domain_the_audit_asks_for_one() -> None:
    """Regression: a correct randomised response was refuted with the inputs 10 and 11."""
    with pytest.raises(InvalidParameter, match=r"domain=Numbers\(0, 100\).*Choices\(\[0, 1\]\).*neighbours="):
        audit.privacy(response(np.random.default_rng(1)), Pure(1), samples=20_000, seed=1)


def test_a_correct_response_is_audited_on_its_own_inputs() -> None:
    # alpha 1e-9
    for domain in (Choices([0, 1]), Numbers(0, 1)):
        mechanism = response(np.random.default_rng(1))
        result = audit.privacy(mechanism, Pure(1), domain=domain, samples=4000, alpha=1e-9, seed=1)
        assert not result.refuted and {result.evidence.a, result.evidence.b} == {0, 1}


BOUNDARY_FAULTS: dict[str, tuple[Callable[[Any, np.random.Generator], float], Any, Any]] = {
    "an empty list is answered exactly": (
        lambda rows, rng: sum(rows) + (rng.laplace(scale=1.0) if rows else 0.0), Records(0, 1), [([0.5], [0.5, 1.0])],
    ),
    "NaN passes through": (
        lambda rows, rng: sum(rows) + rng.laplace(scale=1.0), Records(0.0, 1.0, nan=True), [([], [1.0])],
    ),
    "a count at its upper end is exact": (
        lambda value, rng: float(value if value == 100 else value + rng.laplace(scale=1.0)), Numbers(0, 100), [(0, 1)],
    ),
    "a negative record is not clamped": (
        lambda rows, rng: sum(max(row, 5 * row) for row in (-row for row in rows)) + rng.laplace(scale=1.0),
        Records(-1.0, 1.0), [([], [1.0])],
    ),
    "ties are counted twice": (
        lambda rows, rng: len(rows) + 5 * (len(rows) > len(set(rows))) + rng.laplace(scale=1.0),
        Records(0, 1), [([0.2], [0.2, 0.7])],
    ),
}  # fmt: skip


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", list(BOUNDARY_FAULTS))
def test_faults_at_the_edges_of_a_domain_are_found(name: str) -> None:
    mechanism, domain, ordinary = BOUNDARY_FAULTS[name]
    rng = np.random.default_rng(3)

    def draw(value: Any) -> Any:
        return float(rounded(mechanism(value, rng)))

    assert audit.privacy(draw, Pure(1), domain=domain, samples=3000, seed=1).refuted
    # alpha 1e-9: inside the domain the fault does not show
    assert not audit.privacy(draw, Pure(1), ordinary, samples=3000, alpha=1e-9, seed=1).refuted


def contains(domain: Any, value: Any) -> bool:
    """Return True if the value is an input of the domain."""
    match domain:
        case Numbers():
            return (domain.nan and math.isnan(value)) or domain.low <= value <= domain.high
        case Records():
            return all((domain.nan and math.isnan(each)) or domain.low <= each <= domain.high for each in value)
        case Choices():
            return any(value is each or value == each for each in domain.values)
        case Vectors():
            return len(value) == domain.size and all(domain.low <= each <= domain.high for each in value)
    raise AssertionError


def step(domain: Any, a: Any, b: Any) -> bool:
    """Return True if the inputs are neighbours."""
    match domain:
        case Numbers():
            return math.isnan(b) or abs(b - a) <= domain.change * (1 + 1e-12)
        case Records():
            return len(b) == len(a) + 1 and repr(b[:-1]) == repr(a)
        case Vectors():
            return sum(one != two for one, two in zip(a, b, strict=True)) == 1
    return True


@pytest.mark.parametrize(
    "domain",
    [
        Numbers(0, 1), Numbers(0, 100), Numbers(-5, 5, change=2), Numbers(0.0, 0.5), Numbers(), Numbers(0),
        Numbers(1e300, math.inf, change=1e290),
        Numbers(0.0, 10.0, nan=True), Numbers(-3, -2), Records(), Records(-2, 3, nan=True), Records(0, 9, longest=1),
        Choices(["a", "b", "c"]), Choices([None, 1.5]), Choices(range(50)), Vectors(1, 0, 1), Vectors(9, -1, 1),
    ],
    ids=str,
)  # fmt: skip
def test_pairs_stay_in_the_domain_and_are_neighbours(domain: Any) -> None:
    pairs = neighbours_in(domain)
    assert 1 <= len(pairs) <= 40
    for a, b in pairs:
        assert contains(domain, a) and contains(domain, b) and step(domain, a, b), (a, b)


def test_ends_nan_empty_inputs_and_ties_are_among_the_pairs() -> None:
    numbers = [value for pair in neighbours_in(Numbers(-3, 50, nan=True)) for value in pair]
    assert (
        {-3, 0, 50} <= set(numbers) and any(map(math.isnan, numbers)) and all(type(each) is int for each in numbers[:4])
    )
    lists = [repr(value) for pair in neighbours_in(Records(0, 1, nan=True)) for value in pair]
    assert {"[]", "[1]", "[nan]", "[1, 1, 1, 1, 1, 1]", "[0, 1, 1]", "[nan, nan]"} <= set(lists)
    rows = [value for pair in neighbours_in({"age": [-1, 120], "sex": ["f", None]}) for value in pair]
    assert [] in rows and [{"age": 120, "sex": "f"}] * 2 in rows and [{"age": -1, "sex": None}] in rows
    assert [{"age": 0, "sex": "f"}] in rows
    assert neighbours_in({0, 1}) == neighbours_in(range(2)) == [(0, 1)]


def test_a_unit_of_several_rows_is_added_as_a_whole() -> None:
    domain = ValueDomain({"person": [1, 2], "spent": [0, 9]}, unit="person", rows=3)
    for a, b in neighbours_in(domain):
        added = b[len(a) :]
        assert len(added) == 3 and b[: len(a)] == a
        assert {row["person"] for row in added}.isdisjoint(row["person"] for row in a)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: pandas.DataFrame({"x": values})])
def test_examples_give_neighbours_of_their_kind(kind: Callable[[list[int]], Any]) -> None:
    data = kind([3, 1, 2])
    pairs: list[Pair] = neighbours_in(Examples([data]))
    assert [(len(a), len(b)) for a, b in pairs] == [(2, 3), (2, 3), (3, 4), (0, 1)]
    assert all(isinstance(value, type(data)) for pair in pairs for value in pair)
    frame = pairs[2][1]
    assert list(frame["x"] if hasattr(frame, "columns") else frame) == [3, 1, 2, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numbers(1, 1), "low < high"),
        (lambda: Numbers(0, 1, change=0), "change above 0"),
        (lambda: Numbers(math.nan, 1), "low < high"),
        (lambda: Records(0, math.inf), "finite"),
        (lambda: Choices([1]), "at least two"),
        (lambda: Choices("a"), "at least two"),
        (lambda: Examples([1, 2]), "a list of datasets"),
        (lambda: Examples([[]]), "one must not be empty"),
        (lambda: neighbours_in(5), "5 is no domain; say which inputs"),
        (lambda: neighbours_in(Numbers), "is no domain"),
        (lambda: neighbours_in({"age": 3}), "a list of values"),
        (lambda: audit.privacy(lambda value: 0, Pure(1), [(0, 0)]), "at least one pair of different inputs"),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        make()
