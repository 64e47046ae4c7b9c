"""A test of the contract suite: change one operator in what a mechanism says it costs, and a test turns red."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import pytest

from cases import CASES, Case
from dither.privacy import mechanisms
from dither.privacy.mechanisms import BY_NAME, additive, partitions, quantiles, selection
from privacy.mechanisms import test_calibration as calibration_tests
from privacy.mechanisms import test_contract as contract
from privacy.mechanisms import test_partitions as partition_tests
from privacy.mechanisms import test_quantiles as quantile_tests
from privacy.mechanisms import test_selection as selection_tests
from privacy.mechanisms import test_stated_costs as stated_costs

OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
SWAPPED = {"min": "max", "max": "min"}

# Functions whose changes show in the mechanisms named beside them.
SHARED: list[tuple[Any, str, tuple[str, ...]]] = [
    (additive, "laplace_rho", ("discrete_laplace", "geometric", "snapping")),
    (selection, "gap_sensitivity", ("noisy_max", "exponential", "top_k")),
    (selection, "crossing_loss", ("above_threshold", "sparse_vector")),
    (quantiles, "deepest_path", ("quantiles",)),
    (partitions, "any_probability", ("partition_selection", "laplace_threshold")),
    (partitions, "laplace_tail", ("laplace_threshold",)),
    (partitions, "gaussian_tail", ("gaussian_threshold",)),
]


def variants(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """The function with one operator, or one min or max, changed; named by the line that changed."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    places = [node for node in ast.walk(tree) if changeable(node)]
    for number, node in enumerate(places):
        changed = copy.deepcopy(tree)
        target = [other for other in ast.walk(changed) if changeable(other)][number]
        change(target)
        names: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(changed), "<changed>", "exec"), function.__globals__, names)
        yield f"{ast.unparse(node)} -> {ast.unparse(target)}", names[function.__name__]


def changeable(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=operator):
            return type(operator) in OTHER
        case ast.Call(func=ast.Name(id=name)):
            return name in SWAPPED
        case _:
            return False


def change(node: Any) -> None:
    if isinstance(node, ast.BinOp):
        node.op = OTHER[type(node.op)]()
    else:
        node.func.id = SWAPPED[node.func.id]


@lru_cache
def rows(names: tuple[str, ...]) -> tuple[Case, ...]:
    return tuple(case for case in CASES if case.mechanism.name in names)


FORMULAS: tuple[Callable[[], None], ...] = (
    calibration_tests.test_calibration_is_exact_where_rationals_are,
    quantile_tests.test_several_quantiles_cost_less_than_one_mechanism_each,
    quantile_tests.test_one_quantile_costs_the_rank_times_the_larger_share,
    selection_tests.test_the_exponential_mechanism_alone_has_bounded_range,
    selection_tests.test_sparse_vector_has_the_corrected_constants,
    partition_tests.test_the_threshold_of_the_url_release,
    partition_tests.test_the_worst_number_of_keys_sets_delta,
    stated_costs.test_the_stated_costs,
    stated_costs.test_the_stated_costs_of_laplace_noise_in_rho,
    partition_tests.test_one_of_several_events,
)


def red(names: tuple[str, ...]) -> bool:
    """Whether the contract fails for these mechanisms."""
    try:
        for case in rows(names):
            contract.test_the_loss_covers_the_exact_distribution(case)
            contract.test_the_zcdp_loss_covers_the_exact_distribution(case)
            contract.test_no_distance_costs_nothing(case, (3, 0))
            if case.mechanism.name in contract.LONE:
                contract.test_delta_is_what_a_unit_alone_needs(case)
        for formula in FORMULAS:
            formula()
    except Exception:
        return True
    return False


def survivors(owner: Any, attribute: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = []
    for label, function in variants(inspect.unwrap(getattr(owner, attribute))):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, function)
            if not red(names):
                found.append(label)
    return found


def test_the_contract_is_green_unchanged() -> None:
    assert not red(("discrete_laplace", "quantiles", "laplace_threshold"))


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", BY_NAME)
def test_a_changed_loss_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = BY_NAME[name]
    for attribute in ("loss", "zcdp_loss"):
        if attribute in owner.__dict__:
            assert survivors(owner, attribute, (name,), monkeypatch) == []


@pytest.mark.tier("test")
@pytest.mark.parametrize(("owner", "attribute", "names"), SHARED, ids=[row[1] for row in SHARED])
def test_a_changed_formula_is_caught(
    owner: Any, attribute: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert survivors(owner, attribute, names, monkeypatch) == []


@pytest.mark.tier("test")
def test_three_changes_that_anyone_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laplace: l1 * scale; Gaussian: without the 2; above threshold: without the count."""
    changes = [
        (mechanisms.DiscreteLaplace, "loss", "sensitivity.l1 / self.scale", "sensitivity.l1 * self.scale"),
        (mechanisms.DiscreteGaussian, "loss", "(2 * self.variance)", "(3 * self.variance)"),
        (selection, "crossing_loss", "2 * mechanism.count", "2"),
    ]
    names = [("discrete_laplace",), ("discrete_gaussian",), ("above_threshold",)]
    for (owner, attribute, old, new), which in zip(changes, names, strict=True):
        function = getattr(owner, attribute)
        source = textwrap.dedent(inspect.getsource(function))
        assert old in source
        scope: dict[str, Any] = {}
        exec(source.replace(old, new), function.__globals__, scope)
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, scope[attribute])
            assert red(which)
        assert not red(which)
