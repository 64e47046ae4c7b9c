"""Targets for the attacks: the town with and without one person, behind kernels and gateways in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from dither.audit.attacks.model import Columns, ServiceReply, ServiceTarget
from serve.servers import SALARY, Place, place, town

COLUMNS = Columns("town", "people", "salary", 0, 200_000, "city")
PERSON = 7


def target(there: Place, epsilon: str = "1/1000") -> ServiceTarget:
    """Return a place as a target."""

    def send(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServiceReply:
        try:
            reply = there.http.request(method, path, content=body, headers=dict(headers))
        except httpx.InvalidURL:
            return ServiceReply(400, {}, b'{"error":{"code":"invalid","message":"not sent"}}')
        return ServiceReply(reply.status_code, dict(reply.headers), reply.content)

    tokens = {"analyst": there.tokens["ann"], "other": there.tokens["bob"], "auditor": there.tokens["aud"]}
    return ServiceTarget(send, tokens, COLUMNS, epsilon, str(SALARY))


@contextmanager
def neighbours(folder: Path, epsilon: object = 1000, **options: Any) -> Iterator[tuple[Place, Place]]:
    """Yield the town with everyone, and the town without person 7."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                place(folder / name, described=town(folder / name / "data", epsilon, without=without), **options)
            )
            for name, without in (("with", None), ("less", PERSON))
        ]
        yield made[0], made[1]
