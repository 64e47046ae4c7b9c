"""The gateway shows a profile to the accounts whose group paid for it, and to no other."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

import dither
from dither.connection import measure_profile
from dither.post.estimate.profile import PROFILE_NOTE
from serve.servers import SEPARATE, place, town

COUNTED = {"dataset": "town", "query": "SELECT COUNT(*) AS n FROM visits", "epsilon": 1}


@pytest.mark.tier("test")
@pytest.mark.parametrize("first", ["ann", "bob"])
def test_facts_that_one_group_paid_for_are_not_kept_for_another(tmp_path: Path, first: str) -> None:
    """Whoever asks first: the facts of a dataset are kept for a few seconds, and shared among accounts otherwise."""
    before, _, blue = SEPARATE.partition("  - {name: blue")
    session = dither.connect(town(tmp_path / "data", policy=before), account="ann", ledger=tmp_path / "ledger.sqlite")
    assert blue and measure_profile(session, Fraction(5)).profile is not None
    session.kernel.close()  # type: ignore[attr-defined]
    with place(tmp_path, policy=SEPARATE) as there:
        for who in (first, "ann", "bob", "amy", "ann"):
            reply = there.post("/v1/quote", COUNTED, who)
            assert reply.status_code == 200 and (PROFILE_NOTE in reply.text) == (who != "bob"), who
