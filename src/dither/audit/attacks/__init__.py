"""Attacks on a running service: each sends a few requests and names the secret that they must not reveal.

    from dither.audit.attacks import ServiceTarget, run
    findings = run([ServiceTarget.of("http://127.0.0.1:8765", {"analyst": token})])

With one target, an attack looks for undocumented failures, internal detail of the engine and answers without a charge.
With two targets, whose data differ by one person, replies must be equal except for noise.
"""

from __future__ import annotations

from dither.audit.attacks.api import ATTACKS, run, service
from dither.audit.attacks.model import Attack, Finding, ServiceReply, ServiceTarget

__all__ = ["ATTACKS", "Attack", "Finding", "ServiceReply", "ServiceTarget", "run", "service"]
