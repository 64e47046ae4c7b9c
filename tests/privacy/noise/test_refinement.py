"""Refinement: results depend on the random numbers, and not on the number of bits that are read at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dither.privacy.bits import Bits, SystemBits
from dither.privacy.noise import FULL, bernoulli, exact, lattice
from dither.privacy.noise.lattice import LatticeWeights, Sampler
from privacy.doubles import CountingBits, RecordedBits, ScriptedBits, SerialBits
from privacy.noise_cases import SMALL, SMALLEST, F, assert_counts, bits, draw_cell, keep


@pytest.mark.parametrize(
    "distribution",
    [LatticeWeights(1, F(1, 3)), LatticeWeights(1, F(9)), LatticeWeights(2, F(1)), LatticeWeights(2, F(1000))],
    ids=str,
)
def test_a_cell_depends_on_the_uniform_number_and_not_on_how_it_is_read(distribution: LatticeWeights) -> None:
    readers = [Sampler(distribution, replace(widths, cells=64, padded=False)) for widths in (FULL, SMALL, SMALLEST)]
    for label in map(str, range(300)):
        assert len({draw_cell(reader)(SerialBits(label)) for reader in readers}) == 1


@pytest.mark.parametrize(
    "distribution", [LatticeWeights(1, F(10**6)), LatticeWeights(2, F(10**12)), LatticeWeights(2, F(2**79))], ids=str
)
def test_acceptance_depends_on_the_uniform_number_and_not_on_how_it_is_read(distribution: LatticeWeights) -> None:
    all_widths = (FULL, replace(FULL, margin=0.5), replace(FULL, accept=1, fine=2, more=1))
    readers = [Sampler(distribution, replace(widths, padded=False)) for widths in all_widths]
    for label in map(str, range(100)):
        low = int(label) * (1 << readers[0].k) // 100
        assert len({keep(reader, 17, low)(SerialBits(label)) for reader in readers}) == 1


def test_acceptance_far_out_does_not_trust_the_polynomial() -> None:
    """With few cells a drop may be 6, where the polynomial is negative; a uniform number near 0 is below exp(-6)."""
    sampler = Sampler(LatticeWeights(2, F(401)), replace(FULL, cells=1, padded=False))
    assert keep(sampler, 20, 15)(ScriptedBits((0,) * 9))
    assert not keep(sampler, 20, 15)(ScriptedBits((1 << 15,) + (0,) * 9))


def test_refinement_is_forced_by_a_wide_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    refined: list[int] = []
    monkeypatch.setattr(lattice, "decide_below", lambda *given: refined.append(1) or exact.decide_below(*given))
    for margin, most in ((2.0**-40, 0), (2.0**-6, 5000)):
        Sampler(LatticeWeights(1, F(10**6)), replace(FULL, margin=margin)).draw(5000, bits)
        assert min(most, 20) <= len(refined) <= most  # about 100 are expected; false alarm below 1e-9
    source = CountingBits(bits)
    assert_counts(np.bincount(below_third(source), minlength=2), [2 / 3, 1 / 3])
    assert source.integers > 1000


def below_third(source: Bits) -> NDArray[np.int64]:
    """Bernoulli(1/3) of which a quarter is undecided at first."""
    return bernoulli(F(1, 3), 20_000, source, replace(FULL, word=2, more=1))


def test_draws_do_the_same_slow_work_whatever_they_find() -> None:
    """The bits read for 2^16 candidates do not vary."""
    sampler = Sampler(LatticeWeights(2, F(10**12)), FULL)
    used = set()
    for label in map(str, range(40)):
        source = RecordedBits(label)
        sampler.attempt(np.zeros(1 << 16, np.int64), source)
        used.add(source.used)
    assert len(used) == 1  # a quota of six standard deviations: false alarm below 1e-7 if the bits were fresh


def test_the_far_tail_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def __len__(self) -> int:
            return 1 << 62

        def __getitem__(self, i: int) -> int:
            return 0 if i < 1 << 61 else 1 << 200

    sampler = Sampler(LatticeWeights(1, F(1 << 40)), replace(FULL, padded=False))
    monkeypatch.setattr(lattice, "thresholds", lambda *_: (Endless(), 2))
    cell = sampler._resolve_cell((1 << 64) - 1, SystemBits())
    assert 1 << 60 <= cell >> 1 << sampler.k < (1 << 61)
