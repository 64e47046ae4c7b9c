"""The protocol as it is sent and stored: a change of these files is a change of the protocol, and needs a new version.

With DITHER_SNAPSHOT=1 they are written anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither import loss as losses
from dither.loss import Pure, Sensitivity
from dither.plan import context, expressions, measures, relations
from dither.plan.expressions import ColumnRef, Compare, LiteralValue
from dither.plan.measures import Count, GroupKey
from dither.plan.relations import Filter, LimitRowsPerUnit, Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy import codec, mechanisms, protocol
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import (
    BoundRule,
    BoundSearch,
    Calibrate,
    Measurement,
    Release,
    ReleasedMeasurement,
    Request,
    UnitLoss,
)
from dither.schema import model
from dither.serve.transport import rpc

FIXTURES = Path(__file__).parent / "fixtures"
ADULTS = Filter(Scan("users"), Compare(">=", ColumnRef("age"), LiteralValue(Fraction(18))))
REQUEST = Request(
    "shop",
    (
        Measurement(
            Count(
                LimitRowsPerUnit(ADULTS, "user", EstimatedLimit("rows")),
                (GroupKey("country", ColumnRef("country"), ("DE", None)),),
            ),
            Calibrate("discrete_laplace", Pure("1/10")),
        ),
    ),
    (
        BoundSearch(
            Count(ADULTS),
            Calibrate("discrete_laplace", Pure("1/50")),
            (1, 2, 4),
            "rows",
            BoundRule((1,), Fraction(3), 2),
        ),
    ),
    request_id="r-1",
    unit="user",
    repeat=2,
    schema_hash="cd" * 32,
)
RELEASE = Release(
    dataset="shop",
    data_version="1",
    digest="ef" * 32,
    parts=(
        ReleasedMeasurement(
            values=(3, -1),
            steps=(Fraction(1),),
            shape=(2, 1),
            keys=None,
            mechanism=DiscreteLaplace(Fraction(10)),
            sensitivity=Sensitivity.of(l0=1, linf=1),
            loss=Pure("1/10"),
            notes=("at most 4 rows of each user",),
        ),
    ),
    losses=(UnitLoss("user", "pure", Pure("1/10")),),
    chosen_bounds=(4,),
    search_results=None,
    cached=False,
    sequence=9,
    time="2026-01-31T12:00:00Z",
    code="0.1.0",
)


def names_of(*modules: Any) -> dict[str, list[str]]:
    """The classes that cross between processes or stand in the ledger, with their fields."""
    found = {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    }
    return {name: [part.name for part in fields(kind) if part.init] for name, kind in sorted(found.items())}


def nodes() -> dict[str, list[str]]:
    """The nodes of plans by the names that stand in JSON, with their fields."""
    tables = (expressions.BY_NAME, relations.BY_NAME, measures.BY_NAME, mechanisms.BY_NAME)
    return {
        name: [part.name for part in fields(kind) if part.init]  # type: ignore[arg-type]
        for table in tables
        for name, kind in sorted(table.items())
    }


GOLDEN = {
    "request": lambda: json.loads(encode(REQUEST)),
    "release": lambda: json.loads(encode(RELEASE)),
    "nodes": nodes,
    "nouns": lambda: {
        # A field that is not written at its default changes no older message.
        noun: [name for name in names if name not in codec.ADDED_FIELDS.get(noun, {})]
        for noun, names in names_of(protocol, losses, model, rpc, context).items()
    },
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_protocol_is_as_recorded(name: str) -> None:
    path = FIXTURES / f"{name}_v{codec.VERSION}.json"
    made = GOLDEN[name]()
    if os.environ.get("DITHER_SNAPSHOT"):
        path.write_text(json.dumps(made, indent=1) + "\n")
    recorded = json.loads(path.read_text())
    kept = {key: value for key, value in made.items() if key in recorded}  # a new node changes no older message
    assert (kept if name == "nodes" else made) == recorded, "the protocol changed: raise codec.VERSION and FORMAT"


@pytest.mark.parametrize(("name", "kind", "wanted"), [("request", Request, REQUEST), ("release", Release, RELEASE)])
def test_what_is_recorded_can_be_read(name: str, kind: type, wanted: Any) -> None:
    text = (FIXTURES / f"{name}_v{codec.VERSION}.json").read_bytes()
    assert decode(text, kind, RESPONSE) == wanted


def test_an_added_field_at_its_default_is_not_written_and_another_value_is() -> None:
    plain = model.Unit("user", "user", {"t": "u"})
    capped = replace(plain, max_rows={"t": 3})
    assert b"max_rows" not in encode(plain) and decode(encode(plain), model.Unit) == plain
    assert b'"max_rows":{"t":3}' in encode(capped) and decode(encode(capped), model.Unit) == capped
