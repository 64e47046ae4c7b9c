"""Audit a service end to end: noisy counts from two instances whose data differ by one person, over the public API."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from dither.audit.attacks.model import Finding, ServiceTarget
from dither.audit.blackbox.api import privacy
from dither.errors import DitherError
from dither.loss import Pure, rational

SECRET = "whether one person is in the data, beyond what the requested epsilon allows"
FALSE_ALARM = 1e-9


def count_mechanism(targets: Sequence[ServiceTarget]) -> Callable[[int], float]:
    """Return a mechanism whose input is the number of an instance, and whose output is a fresh noisy count from it."""
    repeats = count(1)

    def mechanism(instance: int) -> float:
        target = targets[instance]
        reply = target.ask(f"SELECT COUNT(*) AS n FROM {target.columns.table}", repeat=next(repeats))
        data = reply.json()
        if reply.status != 200 or not isinstance(data, dict) or not data.get("rows"):
            raise DitherError(f"the service did not answer a count: status {reply.status} {reply.code}")
        return float(data["rows"][0]["n"])

    return mechanism


def audit_noisy_counts(targets: Sequence[ServiceTarget], samples: int, seed: int | None = None) -> Finding:
    """Run the black-box audit of noisy counts against the epsilon that each query requests."""
    claim = Pure(rational(targets[0].epsilon))
    mechanism = count_mechanism(targets)
    result = privacy(
        mechanism, claim, [(0, 1)], samples=samples, alpha=FALSE_ALARM, vectorised=False, bits=False, seed=seed
    )
    evidence = f"{result}; {result.counterexample}" if result.refuted else ""
    return Finding("noisy counts of neighbours", "end to end", SECRET, result.refuted, evidence, result.samples)
