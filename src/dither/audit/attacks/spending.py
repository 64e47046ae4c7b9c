"""Attempts to get fresh noise without a charge: replays, retries, quotes, jobs, batches with a bad query, refunds."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence

from dither.audit.attacks.model import Attack, ServiceReply, ServiceTarget


def _count_query(target: ServiceTarget, excluded: int) -> str:
    """Return a query that counts the rows whose numeric column has another value than `excluded`."""
    return f"SELECT COUNT(*) FROM {target.columns.table} WHERE {target.columns.number} <> {excluded}"


def _fresh_query(target: ServiceTarget) -> str:
    """Return a query that has probably not been sent before."""
    low, high = target.columns.low, target.columns.high
    return _count_query(target, low + secrets.randbelow(max(1, high - low)))


def _noisy_values(reply: ServiceReply) -> object:
    """Return the noisy values of a reply, or None if it has none."""
    data = reply.json()
    if not isinstance(data, dict) or "measurements" not in data:
        return None
    return [part["values"] for part in data["measurements"]]


def replay(targets: Sequence[ServiceTarget]) -> str:
    """Send the same request ten times; it must have one draw."""
    target, query, name = targets[0], _fresh_query(targets[0]), secrets.token_hex(8)
    replies = [target.ask(query, request_id=name) for _ in range(10)]
    return "a replay drew fresh noise" if len(_distinct_draws(replies)) > 1 else ""


def _distinct_draws(replies: Sequence[ServiceReply]) -> set[str]:
    """Return the different noisy values among the successful replies."""
    return {str(_noisy_values(reply)) for reply in replies if reply.status == 200}


def rewrite_query(targets: Sequence[ServiceTarget]) -> str:
    """Send the same query under other request ids, written differently; it must not have several draws for free."""
    target, query = targets[0], _fresh_query(targets[0])
    variants = (query, query.lower().replace("count", "COUNT"), f"  {query}  ", query.replace("<>", "!="))
    before = target.spent()
    replies = [target.ask(variant, request_id=secrets.token_hex(8)) for variant in variants]
    charged = before != target.spent()
    return "several draws without a charge" if len(_distinct_draws(replies)) > 1 and not charged else ""


def request_second_draw(targets: Sequence[ServiceTarget]) -> str:
    """Request a second draw of the same query; it must be charged."""
    target, query = targets[0], _fresh_query(targets[0])
    first, before = target.ask(query, repeat=0), target.spent()
    second = target.ask(query, repeat=1)
    free = first.status == second.status == 200 and target.spent() == before
    return "a second draw was free" if free and _noisy_values(first) != _noisy_values(second) else ""


def retry_in_parallel(targets: Sequence[ServiceTarget]) -> str:
    """Send the same request sixteen times at once; it must have one draw."""
    target, query, name = targets[0], _fresh_query(targets[0]), secrets.token_hex(8)
    replies: list[ServiceReply] = []
    threads = [threading.Thread(target=lambda: replies.append(target.ask(query, request_id=name))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "parallel retries drew fresh noise" if len(_distinct_draws(replies)) > 1 else ""


def quote_only(targets: Sequence[ServiceTarget]) -> str:
    """Quote and explain the same query five times; quotes must be equal, and nothing may be charged."""
    target, query = targets[0], _fresh_query(targets[0])
    before = target.spent()
    replies = [target.ask(query, path=path) for path in ("/v1/quote", "/v1/explain") for _ in range(5)]
    if len({reply.body for reply in replies[:5]}) > 1:
        return "quotes of the same query differ"
    return "" if target.spent() == before else "a quote was charged"


def spoil_batch(targets: Sequence[ServiceTarget]) -> str:
    """Send batches with one bad query; each must be refused as a whole, without a charge."""
    target = targets[0]
    before = target.spent()
    for bad in (
        "SELECT * FROM nowhere",
        "nonsense",
        f"SELECT MAX({target.columns.number}, 1) FROM {target.columns.table} LIMIT",
    ):
        body = {"dataset": target.columns.dataset, "queries": [_fresh_query(target), bad], "epsilon": target.epsilon}
        if target.call("POST", "/v1/batch", body).status == 200:
            return "a batch with a bad query was answered"
    return "" if target.spent() == before else "a refused batch was charged"


def cancel_job(targets: Sequence[ServiceTarget]) -> str:
    """Delete a job and send its request again twice; both replies must be equal, and the second must not be charged."""
    target, query, name = targets[0], _fresh_query(targets[0]), secrets.token_hex(8)
    body = {"dataset": target.columns.dataset, "query": query, "epsilon": target.epsilon, "request_id": name}
    target.call("POST", "/v1/answer", body, prefer="respond-async")
    target.call("DELETE", f"/v1/jobs/{name}")
    first, before = target.call("POST", "/v1/answer", body), target.spent()
    second = target.call("POST", "/v1/answer", body)
    if first.status == 200 and (_noisy_values(first) != _noisy_values(second) or target.spent() != before):
        return "a cancelled job drew noise or was charged twice"
    return ""


def reuse_request_id(targets: Sequence[ServiceTarget]) -> str:
    """Send another query under a request id that was charged; it must not be answered for free."""
    target, name = targets[0], secrets.token_hex(8)
    low = target.columns.low
    first = target.ask(_count_query(target, low), request_id=name)
    before = target.spent()
    second = target.ask(_count_query(target, low + 1), request_id=name)
    free = first.status == second.status == 200 and target.spent() == before
    if free and _noisy_values(first) != _noisy_values(second):
        return "another query was answered for free under a charged request id"
    return ""


def overspend(targets: Sequence[ServiceTarget]) -> str:
    """Request more than the whole budget; it must be refused, and no budget may change."""
    target = targets[0]
    before = target.spent()
    reply = target.ask(_fresh_query(target), epsilon="1000000000")
    if reply.status == 200:
        return "an epsilon of 1000000000 was granted"
    return "" if target.spent() == before else "a refused request was charged or refunded"


CHECKS = {
    "a replayed request": replay,
    "a query written differently": rewrite_query,
    "a second draw": request_second_draw,
    "parallel retries": retry_in_parallel,
    "quotes": quote_only,
    "a batch with a bad query": spoil_batch,
    "a cancelled job": cancel_job,
    "a reused request id": reuse_request_id,
    "more than the budget": overspend,
}


def attacks() -> Iterator[Attack]:
    """Yield the attacks of this module."""
    for name, check in CHECKS.items():
        yield Attack(name, "spending", "a fresh draw without a charge", check)
