"""Read exact values and add noise, each at most once for each step of a charge: the only exit of private data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from dither.access.engines import Engine
from dither.access.result_vector import GroupCounts, Key, KeyHolders
from dither.plan.measures.core import MAX_SELECTED, Measure, SelectedValues
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts, fill_keys, fitting_keys, key_columns, selected_cells
from dither.plan.traversal import fill_values, walk
from dither.privacy.bits import Bits
from dither.privacy.cost import CostedStep, PrivacyCost
from dither.privacy.ledger import Receipt
from dither.privacy.mechanisms import Mechanism, Vector
from dither.privacy.protocol import ReleasedMeasurement, Request
from dither.privacy.search_rules import choose_values

NO_CELLS = np.zeros(0, dtype=np.int64)


class ReceiptedRead:
    """Reads data and adds noise for one charge; every read and every draw redeems the receipt of that charge."""

    def __init__(
        self, receipt: Receipt, engine: Engine, bits: Bits, secret: int, seconds_left: Callable[[], float | None]
    ) -> None:
        self._receipt, self._engine, self._bits, self._secret, self._seconds_left = (
            receipt,
            engine,
            bits,
            secret,
            seconds_left,
        )
        self._vectors: dict[Measure, Vector] = {}
        self._groups: dict[PartitionCounts, GroupCounts | KeyHolders] = {}

    def release(self, name: str, step: CostedStep, keys: tuple[Key, ...] | None = None) -> ReleasedMeasurement:
        """Read the exact integers of one step and release them through its mechanism; only the cells of given keys."""
        if isinstance(step.measure, PartitionCounts):
            return self.select(name, step)
        if keys is None:
            return released_measurement(step, self._draw(name, step.mechanism, self._read(name, step.measure)), None)
        if not keys:
            return released_measurement(step, NO_CELLS, keys)
        exact = selected_cells(self._read(name, fill_keys(step.measure, key_columns(keys))), keys)
        return released_measurement(step, self._draw(name, step.mechanism, exact), keys)

    def select(self, name: str, step: CostedStep, closed: Collection[Key] = ()) -> ReleasedMeasurement:
        """Read the counts of undeclared keys, without closed keys, and release those that the mechanism names."""
        keys, exact = self._read_groups(name, step.measure, closed)
        # Release keys, not indices: the list depends on the data, so indices would reveal more than the keys do.
        named = tuple(keys[place] for place in self._draw(name, step.mechanism, exact))
        return released_measurement(step, NO_CELLS, named)

    def _read(self, name: str, measure: Measure) -> Vector:
        """Redeem the receipt for reading this step, then return its exact vector."""
        self._receipt.redeem(f"read {name}")
        # The joint cost of linear queries assumes that all of them use one vector: read it once.
        if isinstance(measure, LinearQuery):
            return measure.apply(self._vector(measure.child))
        return self._vector(measure)

    def _vector(self, measure: Measure) -> Vector:
        """Return the exact vector of a measure; read it at most once for each charge."""
        if measure not in self._vectors:
            self._vectors[measure] = self._engine.vector(measure, self._seconds_left(), self._secret)
        return self._vectors[measure]

    def _read_groups(self, name: str, measure: Any, closed: Collection[Key]) -> tuple[tuple[Key, ...], Vector]:
        """Redeem the receipt for reading this step; return the keys in the data and exact counts, 0 for closed keys."""
        self._receipt.redeem(f"read {name}")
        if measure not in self._groups:
            self._groups[measure] = self._engine.groups(measure, self._seconds_left(), self._secret)
        return self._groups[measure].keys, self._groups[measure].without(closed)

    def _draw(self, name: str, mechanism: Mechanism, exact: Vector) -> Vector:
        """Redeem the receipt for drawing this step, then release the exact vector through the mechanism."""
        self._receipt.redeem(f"draw {name}")
        return mechanism.release(exact, self._bits)


def released_measurement(step: CostedStep, values: Vector, keys: tuple[Key, ...] | None) -> ReleasedMeasurement:
    """Return a release: of all cells of a step, of no cells but keys, or of the cells of selected keys."""
    quoted, selected = step.quoted, sum(isinstance(node, SelectedValues) for node in walk(step.measure))
    shape = quoted.shape if not selected or keys is None else (len(keys), *quoted.shape[selected:])
    facts = (step.mechanism, quoted.sensitivity, quoted.loss, quoted.notes)
    return ReleasedMeasurement(tuple(values.tolist()), quoted.steps, shape, keys, *facts)


def select_keys(reader: ReceiptedRead, cost: PrivacyCost) -> tuple[tuple[ReleasedMeasurement, ...], tuple[Key, ...]]:
    """Take the rounds in turn, each over the keys that no earlier one named; return as many keys as the parts take."""
    released: list[ReleasedMeasurement] = []
    keys: dict[Key, None] = {}
    for number, step in enumerate(cost.rounds):
        part = reader.select(f"select {number}", step, keys)
        released.append(part)
        keys |= dict.fromkeys(part.keys or ())
    cells = max(prod(step.quoted.shape) for step in cost.steps) // MAX_SELECTED
    return tuple(released), fitting_keys(keys, max(1, cells))


def search_bounds(
    reader: ReceiptedRead, request: Request, cost: PrivacyCost
) -> tuple[tuple[ReleasedMeasurement, ...], dict[str, int]]:
    """Take the searches in turn; choose each bound or value from its release, always a point of its public grid."""
    released: list[ReleasedMeasurement] = []
    chosen: dict[str, int] = {}
    for number, (search, step) in enumerate(zip(request.searches, cost.searches, strict=True)):
        part = reader.release(f"find {number}", replace(step, measure=fill_values(step.measure, chosen)))
        released.append(part)
        chosen |= choose_values(search, part, chosen)
    return tuple(released), chosen
