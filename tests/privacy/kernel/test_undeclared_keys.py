"""Keys that are not declared leave only through partition selection."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dither.errors import Unsupported
from dither.loss import Approximate
from dither.plan.expressions.core import ColumnRef
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.bounding import LimitGroupsPerUnit
from dither.plan.relations.scan import Scan
from dither.privacy.mechanisms import DiscreteGaussian
from dither.privacy.protocol import Calibrate, Measurement, Request
from privacy.kernel_cases import KINDS
from privacy.ledger_cases import zcdp


@pytest.mark.tier("test")
def test_undeclared_keys_leave_through_partition_selection_only(world: Any, opened: Any) -> None:
    budget = (zcdp(100, delta="1/1000"),)
    room = opened(world(budgets=budget))
    measure = PartitionCounts(LimitGroupsPerUnit(Scan("actions"), "user", (ColumnRef("kind"),), 1, 1), KINDS)
    naming = Measurement(measure, Calibrate("partition_selection", Approximate(1, "1/100000")))
    (part,) = room.kernel.answer(Request("shop", (naming,)), "ann").parts
    assert set(part.keys or ()) <= {("view",), ("click",), ("share",)} and part.values == () and part.shape == ()
    with pytest.raises(Unsupported, match="partition selection only"):
        room.kernel.answer(Request("shop", (Measurement(measure, DiscreteGaussian(Fraction(100))),)), "ann")
