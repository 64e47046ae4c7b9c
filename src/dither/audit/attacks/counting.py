"""End to end: noisy counts of two instances whose data differ by one person, asked for through the public API."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from dither.audit.attacks.model import Finding, ServiceTarget
from dither.audit.blackbox.api import privacy
from dither.errors import DitherError
from dither.loss import Pure, rational

SECRET = "whether one person is in the data, beyond the epsilon that was asked for"
FALSE_ALARM = 1e-9


def counted(targets: Sequence[ServiceTarget]) -> Callable[[int], float]:
    """A mechanism whose input is which instance is asked, and whose output is a fresh noisy count."""
    draws = count(1)

    def mechanism(which: int) -> float:
        target = targets[which]
        reply = target.ask(f"SELECT COUNT(*) AS n FROM {target.columns.table}", repeat=next(draws))
        data = reply.json()
        if reply.status != 200 or not isinstance(data, dict) or not data.get("rows"):
            raise DitherError(f"a count was not answered: status {reply.status} {reply.code}")
        return float(data["rows"][0]["n"])

    return mechanism


def end_to_end(targets: Sequence[ServiceTarget], samples: int, seed: int | None = None) -> Finding:
    """The black-box audit of a count against the epsilon that each question asks for."""
    claim = Pure(rational(targets[0].epsilon))
    result = privacy(
        counted(targets), claim, [(0, 1)], samples=samples, alpha=FALSE_ALARM, vectorised=False, bits=False, seed=seed
    )
    evidence = f"{result}; {result.counterexample}" if result.refuted else ""
    return Finding("noisy counts of neighbours", "end to end", SECRET, result.refuted, evidence, result.samples)
