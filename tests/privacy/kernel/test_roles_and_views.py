"""Tokens and roles, and the parts of a dataset that each role may see."""

from __future__ import annotations

from typing import Any

import pytest

from dither.errors import NotAllowed
from privacy.kernel_cases import counting
from privacy.ledger_cases import teams


def test_tokens_and_roles_are_checked_by_the_kernel_itself(world: Any, opened: Any) -> None:
    room = opened(world(groups=teams()), trusted=False)
    analyst = room.kernel.ledger.add_account("ann", "analyst")
    outsider = room.kernel.ledger.add_account("eve", "analyst")
    auditor = room.kernel.ledger.add_account("aud", "auditor")
    assert room.kernel.answer(counting(), analyst).parts
    for token in ("ann", "", "kernel", analyst[:-1], outsider, auditor):
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), token)
        with pytest.raises(NotAllowed):
            room.kernel.quote(counting(), token)
    assert room.kernel.datasets(outsider) == () and room.kernel.datasets(analyst) == ("shop",)
    assert room.kernel.ledger_rows("shop", auditor)[-1].kind == "account" or room.kernel.ledger_rows("shop", auditor)
    for call in (room.kernel.schema, room.kernel.budget, room.kernel.history, room.kernel.statement, room.kernel.facts):
        assert call("shop", analyst) is not None
        with pytest.raises(NotAllowed):
            call("shop", outsider)
        with pytest.raises(NotAllowed):
            call("nothing", analyst)
    with pytest.raises(NotAllowed):
        room.kernel.ledger_rows("shop", analyst)


def test_auditors_and_curators_do_not_ask(world: Any, opened: Any) -> None:
    room = opened(world(), trusted=False)
    for role in ("auditor", "curator"):
        token = room.kernel.ledger.add_account(role, role)
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), token)
        assert room.kernel.ledger_rows("shop", token)


@pytest.mark.tier("test")
def test_nobody_speaks_as_the_kernel(world: Any, opened: Any) -> None:
    room = opened(world())
    for name in ("kernel", ""):
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), name)


@pytest.mark.tier("test")
def test_the_schema_does_not_say_where_the_records_are(world: Any, opened: Any) -> None:
    described = world()
    path = described.tables["users"].source.options["path"]
    room = opened(described)
    shown = repr(room.kernel.schema("shop", "ann")) + repr(room.kernel.ledger_rows("shop", "ann"))
    assert "tables users, actions" in shown and "parquet" in shown
    assert path.endswith(".parquet") and ".parquet" not in shown and path.rsplit("/", 1)[0] not in shown
