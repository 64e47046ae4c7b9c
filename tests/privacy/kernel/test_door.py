"""One door to the data: charge, then read, then record, then release; no other code reads or draws."""

from __future__ import annotations

import ast
import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dither.errors import EngineFailure, LedgerError
from dither.loss import Pure
from dither.privacy import kernel as kernel_module
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import Release
from dither.privacy.receipted_read import ReceiptedRead
from privacy.kernel_cases import automatic, counting, wide
from privacy.ledger_cases import ONE

SOURCE = Path(kernel_module.__file__).parents[1]


# --- Charge, read, record, release ---


def test_the_charge_is_durable_before_anything_is_read(world: Any, opened: Any) -> None:
    room = opened(world())
    seen: list[int] = []

    def look() -> None:
        fresh = kernel_module.Ledger(room.place)
        seen.append(fresh.balances("shop", "ann", {})[0].spent[0])
        fresh.close()

    room.spy.before = look
    room.kernel.answer(counting("1/2"), "ann")
    assert seen == [ONE // 2 + ONE // 100]


def test_the_answer_is_recorded_before_it_leaves(world: Any, opened: Any) -> None:
    room = opened(world())
    answer = room.kernel.answer(counting(), "ann")
    recorded = room.rows("answer")[-1]
    assert json.loads(recorded["release"])["parts"][0]["values"] == list(answer.parts[0].values)
    assert recorded["charge"] == 4 and answer.sequence == 2  # the second charge of the dataset


@pytest.mark.tier("test")
def test_an_answer_that_cannot_be_recorded_does_not_leave(world: Any, opened: Any, monkeypatch: Any) -> None:
    room = opened(world())

    def full(*_: Any) -> str:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(room.kernel.ledger, "record", full)
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert room.spent() == [ONE + ONE // 100]


def test_the_release_says_what_was_done(world: Any, opened: Any) -> None:
    room = opened(world())
    (part,) = room.kernel.answer(counting(), "ann").parts
    assert part.mechanism == DiscreteLaplace(Fraction(20))
    assert part.shape == (3, 1) and len(part.values) == 3
    assert part.sensitivity.l1 == 20 and part.loss == Pure(1)
    assert part.notes[0] == "at most 20 rows of each user counted, chosen pseudo-randomly"
    assert all(abs(value - 2000) < 1000 for value in part.values)  # Laplace(20): false alarm 3 e^-50


@pytest.mark.tier("test")
def test_noise_is_added_and_differs_between_draws(world: Any, opened: Any) -> None:
    """Laplace(10^6): two draws of three cells agree with probability below 1e-17."""
    room = opened(world(1000))
    drawn = {room.kernel.answer(wide(number), "ann").parts[0].values for number in range(8)}
    assert len(drawn) == 8
    assert room.spent() == [8 * 20 * ONE // 10**6 + ONE // 100]


@pytest.mark.tier("test")
def test_answers_survive_the_wire(world: Any, opened: Any) -> None:
    from dither.privacy.codec import RESPONSE, decode, encode

    room = opened(world())
    answer = room.kernel.answer(automatic(), "ann")
    assert decode(encode(answer), Release, RESPONSE) == answer
    quote = room.kernel.quote(automatic(), "ann")
    assert decode(encode(quote), type(quote), RESPONSE) == quote
    for value in (
        room.kernel.statement("shop", "ann"),
        room.kernel.schema("shop", "ann"),
        room.kernel.facts("shop", "ann"),
    ):
        assert decode(encode(value), type(value), RESPONSE) == value  # type: ignore[arg-type]
    assert np.array(answer.parts[0].values, dtype=np.int64).shape == (3,)


# --- There is no other path ---


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    paths = SOURCE.rglob("*.py")
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


@cache
def callers() -> dict[str, set[str]]:
    """By the name of an attribute: the functions of the package that call it with something (locks are let go bare)."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                        found.setdefault(node.func.attr, set()).add(f"{module}:{scope.name}")
    return found


def calls(name: str) -> set[str]:
    """Functions in the package that call an attribute of that name."""
    return callers().get(name, set())


def outside(found: set[str], *rooms: str) -> set[str]:
    return {each for each in found if not each.startswith(rooms)}


def test_only_the_kernel_reads_and_draws_and_only_with_a_receipt() -> None:
    """Walks every call in the package. Engines and mechanisms may call themselves; the auditor has no data, and by the
    import contracts neither have `post` and the gateway. Nothing imports the library `dither.mechanisms`."""
    assert outside(calls("vector"), "access.engines", "audit", "post") == {
        "privacy.receipted_read:_vector",
        "privacy.table_release:_draw_admission",
    }
    assert calls("_vector") == {"privacy.receipted_read:_read"}
    assert outside(calls("groups"), "access.engines", "audit") == {"privacy.receipted_read:_read_groups"}
    drawing = outside(calls("release"), "audit", "mechanisms", "privacy.mechanisms", "access.engines")
    assert drawing == {
        "privacy.table_release:_draw_admission",
        "privacy.kernel:_make_release",
        *(f"privacy.receipted_read:{name}" for name in ("search_bounds", "_draw")),
    }
    assert outside(calls("release_columns"), "examples.") == {"privacy.table_release:__call__"}
    assert outside(calls("write_cells"), "access.engines") == {"privacy.table_release:_read_cells"}
    check_redeeming("receipted_read", "_read", "_read_groups", "_draw", receipt="self._receipt")
    check_redeeming("table_release", "_read_cells", "_draw_admission", "_redeem_draws", receipt="receipt")


def check_redeeming(module: str, *names: str, receipt: str) -> None:
    """Functions that read or draw begin by redeeming the receipt of the charge."""
    tree = ast.parse((SOURCE / "privacy" / f"{module}.py").read_text())
    for name in names:
        (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        after_docstring = function.body[ast.get_docstring(function) is not None]
        assert ast.unparse(after_docstring).startswith(f"{receipt}.redeem("), name


def test_receipts_are_minted_in_one_place() -> None:
    minted = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Receipt":
                minted.add(module)
    assert minted == {"privacy.ledger.ledger"}


def test_engines_are_imported_by_the_kernel_alone() -> None:
    importers = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("dither.access.engines") for name in names):
                importers.add(module)
    curators = {"cli.prepare"}  # `dither prepare` writes a snapshot where the data are, and answers nothing
    others = {each for each in importers if not each.startswith(("access.", "audit"))} - curators
    assert others == {f"privacy.{name}" for name in ("kernel", "kernel_datasets", "receipted_read", "table_release")}


@pytest.mark.tier("test")
def test_a_receipt_serves_each_step_once(world: Any, opened: Any, monkeypatch: Any) -> None:
    room = opened(world())
    original = ReceiptedRead.release

    def twice(self: Any, name: str, step: Any, keys: Any = None) -> Any:
        original(self, name, step, keys)
        return original(self, name, step, keys)

    monkeypatch.setattr(ReceiptedRead, "release", twice)
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert "already drawn" in str(room.kernel.log.events[-1]["detail"])
