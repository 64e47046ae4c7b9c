"""Open sessions; only this module chooses between a kernel in this process and one behind a gateway."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any

from dither.errors import BudgetExceeded, InvalidParameter, InvalidPlan, NotAllowed, Unbounded, Unsupported
from dither.post.estimate.profile import profile_items, profile_request
from dither.post.options import read_text
from dither.post.query.conflicting_units import conflicts
from dither.post.session import Session
from dither.post.statistics.source_rows import default_unit
from dither.privacy.protocol import LAST_PAGE, Kernel

LONGEST_TOKEN = 8192
# Refusals of a declared profile, after which the data are open all the same.
REFUSALS = (BudgetExceeded, InvalidParameter, InvalidPlan, NotAllowed, Unbounded, Unsupported)


def connect(
    target: str | Path,
    *,
    account: str | None = None,
    token: str | None = None,
    dataset: str | None = None,
    **options: Any,
) -> Session:
    """Open a session, from the path of a dataset description and `account=`, or a gateway's address and `token=`.

    In this process, noisy sizes are measured once, before the first question or quote: opening counts no records.
    """
    return Session.from_kernel(*open_kernel(target, account=account, token=token, **options), dataset)


def open_kernel(
    target: str | Path, *, account: str | None = None, token: str | None = None, **options: Any
) -> tuple[Kernel, str]:
    """Return a kernel in this process or behind a gateway, and the account name or token to use with it."""
    if not isinstance(target, str | Path):
        raise InvalidParameter(
            f"target must be a description's path or a gateway's address, got {type(target).__name__}"
        )
    for name, value in {"account": account, "token": token}.items():
        if value is not None:
            read_text(name, value, LONGEST_TOKEN)
    if not isinstance(options.get("ledger"), str | Path | None):
        raise InvalidParameter(f"ledger must be a path, got {type(options['ledger']).__name__}")
    if str(target).startswith(("http://", "https://")):
        if token is None:
            raise InvalidParameter("a gateway needs token=...; the curator issues tokens")
        from dither.serve.transport import http_client

        return http_client.connect(str(target), token, **options), token
    from dither.privacy import kernel

    place = _new_ledger(Path(target), **{name: options.get(name) for name in ("ledger", "another_ledger")})
    if options.get("measure_size", True) and options.get("schedule") is None and options.get("trusted", True):
        options.setdefault("size_later", show_measuring)
    opened = kernel.open_kernel(target, **options)
    # Sizes that are measured at opening are a charge before anybody could have read a warning.
    unasked = "size_later" not in options or opened.ledger.page(LAST_PAGE)[-1].kind == "dataset"
    if place:
        print(f"new ledger created at {os.path.relpath(place)}: nothing is spent yet", file=sys.stderr)
    for event in opened.log.events:
        # For whoever opens the data in this process, its curator, until the first question on this version of the data.
        if event["event"] == "finding" and unasked:
            print(f"WARNING: {event['finding']}", file=sys.stderr)
    name = account if account is not None else "analyst"
    for dataset in opened.datasets(name):
        session = Session.from_kernel(opened, name, dataset)
        for conflict in conflicts(session.described):
            print(f"WARNING: {conflict}", file=sys.stderr)
        _measure_declared_profile(session)
    return opened, name


def _new_ledger(description: Path, ledger: str | Path | None, another_ledger: bool | None) -> str:
    """Return the file of the ledger that opening a description will create; empty if it has one already."""
    from dither.privacy.ledger.location import file_beside, find_ledger
    from dither.privacy.ledger.store import is_database

    try:
        place = find_ledger([description], file_beside(description), ledger, another=bool(another_ledger))
        return "" if is_database(place) or Path(place).exists() else place
    except (OSError, ValueError):  # a path that cannot be: opening it says so
        return ""


def show_measuring(dataset: str) -> AbstractContextManager[object]:
    """Show on the error stream, if that is a terminal or a notebook, that records are read for noisy sizes."""
    from rich.console import Console

    return Console(stderr=True).status(measuring_text(dataset))


def measuring_text(dataset: str) -> str:
    """Return what is shown while sizes are measured."""
    return f"reading the records of {dataset}, once, for noisy sizes"


def _measure_declared_profile(session: Session) -> None:
    """Measure the profile that a description asks for, if this version of the data has none and the budget allows."""
    epsilon = session.dataset.profile_epsilon
    if not epsilon or session.profile is not None:
        return
    try:
        measure_profile(session, epsilon)
    except REFUSALS as problem:
        print(f"WARNING: {session.name} is open without a profile: {problem}", file=sys.stderr)


def measure_profile(session: Session, epsilon: Fraction, columns: Sequence[str] = ()) -> Session:
    """Measure the profile of a dataset that is open in this process, and return a session that knows it."""
    measure = getattr(session.kernel, "measure_profile", None)
    if measure is None:
        raise InvalidParameter("a profile is measured where the data are: give the path of the description")
    unit = default_unit(session.dataset)
    items = profile_items(session.context, unit, columns)
    measure(profile_request(session.context, unit, epsilon, items))
    measured = Session.from_kernel(session.kernel, session.token, session.name)
    if measured.profile is None:
        raise NotAllowed(
            "the group of this account was added after the profile was measured, and has not paid for it; the profile"
            " of the next data_version is for all groups"
        )
    return measured
