"""Attacks on a running service: each is a few requests and the statement of what must not be learned from them.

    from dither.audit.attacks import Target, run
    findings = run([Target.of("http://127.0.0.1:8765", {"analyst": token})])

With one target an attack looks for what no answer may hold (undocumented failures, detail of the engine, free answers);
with two targets, whose data differ by one person, everything but the noise must be equal.
"""

from __future__ import annotations

from dither.audit.attacks.api import ATTACKS, run, service
from dither.audit.attacks.model import Attack, Finding, ServiceReply, ServiceTarget

__all__ = ["ATTACKS", "Attack", "Finding", "ServiceReply", "ServiceTarget", "run", "service"]
