"""A new mechanism is a class, a proof and a row: the contract does the rest, and refuses one that states too little."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest

from cases import laplace_distribution, row
from dither.loss import Pure, Sensitivity, round_up
from dither.privacy.bits import Bits
from dither.privacy.mechanisms import Mechanism, Vector, saturating_add
from dither.privacy.noise import discrete_laplace
from privacy.mechanisms import test_contract as contract


@dataclass(frozen=True)
class NewLaplace(Mechanism):
    """Discrete Laplace noise, as if it were new."""

    name = "new_laplace"
    proof = "new_laplace.md"
    scale: Fraction

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(sensitivity.l1 / self.scale))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return saturating_add(exact, discrete_laplace(self.scale, len(exact), bits))


@dataclass(frozen=True)
class TooCheap(NewLaplace):
    """The same noise, at half of its loss."""

    name = "too_cheap"
    proof = "too_cheap.md"
    scale: Fraction

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(NewLaplace.loss(self, sensitivity).epsilon / 2)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return NewLaplace.release(self, exact, bits)


CHECKS = (
    contract.test_the_written_distribution_is_a_distribution,
    contract.test_the_loss_covers_the_exact_distribution,
    contract.test_the_zcdp_loss_covers_the_exact_distribution,
    contract.test_a_longer_way_never_costs_less,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_row_is_all_that_the_contract_needs(check: object) -> None:
    check(row(NewLaplace(Fraction(7, 3)), 1, 3, (0,), laplace_distribution(120), 1.0))  # type: ignore[operator]


def test_a_loss_that_is_too_small_is_refused() -> None:
    with pytest.raises(AssertionError):
        contract.test_the_loss_covers_the_exact_distribution(
            row(TooCheap(Fraction(7, 3)), 1, 3, (0,), laplace_distribution(120))
        )


@pytest.mark.parametrize("missing", ["proof", "loss", "release"])
def test_a_class_without_one_of_them_cannot_be_defined(missing: str) -> None:
    parts = {"name": "x", "proof": "x.md", "loss": NewLaplace.loss, "release": NewLaplace.release}
    del parts[missing]
    with pytest.raises(TypeError):
        type("Incomplete", (Mechanism,), parts)()
