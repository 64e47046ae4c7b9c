"""Getting something for nothing: replays, retries, quotes, jobs, batches with a bad member, refunds."""

# ruff: noqa: S608 (these texts are sent to a service that must parse them, not to a database)
from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence

from dither.audit.attacks.model import Attack, ServiceReply, ServiceTarget


def _query(target: ServiceTarget, mark: int) -> str:
    return f"SELECT COUNT(*) FROM {target.columns.table} WHERE {target.columns.number} <> {mark}"


def _fresh(target: ServiceTarget) -> str:
    """A question that nobody asked before."""
    return _query(target, target.columns.low + secrets.randbelow(max(1, target.columns.high - target.columns.low)))


def _values(reply: ServiceReply) -> object:
    data = reply.json()
    return [part["values"] for part in data["noisy"]] if isinstance(data, dict) and "noisy" in data else None


def replayed(targets: Sequence[ServiceTarget]) -> str:
    """The same request ten times: one draw."""
    target, query, name = targets[0], _fresh(targets[0]), secrets.token_hex(8)
    replies = [target.ask(query, request_id=name) for _ in range(10)]
    drawn = {str(_values(reply)) for reply in replies if reply.status == 200}
    return "a replay drew again" if len(drawn) > 1 else ""


def renamed(targets: Sequence[ServiceTarget]) -> str:
    """The same question under other request ids and spellings: one draw for one charge."""
    target, query = targets[0], _fresh(targets[0])
    spellings = (query, query.lower().replace("count", "COUNT"), f"  {query}  ", query.replace("<>", "!="))
    before = target.spent()
    replies = [target.ask(dialect, request_id=secrets.token_hex(8)) for dialect in spellings]
    drawn = {str(_values(reply)) for reply in replies if reply.status == 200}
    moved = before != target.spent()
    return "several draws for one charge" if len(drawn) > 1 and not moved else ""


def redrawn(targets: Sequence[ServiceTarget]) -> str:
    """Another draw of the same question is charged again."""
    target, query = targets[0], _fresh(targets[0])
    first, at = target.ask(query, repeat=0), target.spent()
    second = target.ask(query, repeat=1)
    if first.status == second.status == 200 and target.spent() == at and _values(first) != _values(second):
        return "a second draw was free"
    return ""


def parallel(targets: Sequence[ServiceTarget]) -> str:
    """Sixteen retries at once: one draw."""
    target, query, name = targets[0], _fresh(targets[0]), secrets.token_hex(8)
    replies: list[ServiceReply] = []
    threads = [threading.Thread(target=lambda: replies.append(target.ask(query, request_id=name))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = {str(_values(reply)) for reply in replies if reply.status == 200}
    return "parallel retries drew again" if len(drawn) > 1 else ""


def quoted(targets: Sequence[ServiceTarget]) -> str:
    """Quotes and explanations cost nothing and say nothing noisy."""
    target, query = targets[0], _fresh(targets[0])
    before = target.spent()
    replies = [target.ask(query, path=path) for path in ("/v1/quote", "/v1/explain") for _ in range(5)]
    if len({reply.body for reply in replies[:5]}) > 1:
        return "quotes of the same question differ"
    return "" if target.spent() == before else "a quote was charged"


def spoiled(targets: Sequence[ServiceTarget]) -> str:
    """A batch with one bad member is refused whole, before any charge."""
    target = targets[0]
    before = target.spent()
    for bad in (
        "SELECT * FROM nowhere",
        "nonsense",
        f"SELECT MAX({target.columns.number}, 1) FROM {target.columns.table} LIMIT",
    ):
        body = {"dataset": target.columns.dataset, "queries": [_fresh(target), bad], "epsilon": target.epsilon}
        if target.call("POST", "/v1/batch", body).status == 200:
            return "a batch with a bad member was answered"
    return "" if target.spent() == before else "a refused batch was charged"


def cancelled(targets: Sequence[ServiceTarget]) -> str:
    """A job that is forgotten keeps its charge, and asking again gives the same answer."""
    target, query, name = targets[0], _fresh(targets[0]), secrets.token_hex(8)
    body = {"dataset": target.columns.dataset, "query": query, "epsilon": target.epsilon, "request_id": name}
    target.call("POST", "/v1/answer", body, prefer="respond-async")
    target.call("DELETE", f"/v1/jobs/{name}")
    first, at = target.call("POST", "/v1/answer", body), target.spent()
    second = target.call("POST", "/v1/answer", body)
    if first.status == 200 and (_values(first) != _values(second) or target.spent() != at):
        return "a cancelled job was drawn twice"
    return ""


def stolen_id(targets: Sequence[ServiceTarget]) -> str:
    """A request id stands for one question: another one under it is refused, not answered for free."""
    target, name = targets[0], secrets.token_hex(8)
    low = target.columns.low
    first = target.ask(_query(target, low), request_id=name)
    before = target.spent()
    second = target.ask(_query(target, low + 1), request_id=name)
    if first.status == 200 and second.status == 200 and target.spent() == before and _values(first) != _values(second):
        return "another question was answered under a paid id"
    return ""


def beyond(targets: Sequence[ServiceTarget]) -> str:
    """More than the whole budget is refused, and the refusal moves nothing."""
    target = targets[0]
    before = target.spent()
    reply = target.ask(_fresh(target), epsilon="1000000000")
    if reply.status == 200:
        return "a loss of a thousand million was granted"
    return "" if target.spent() == before else "a refusal was charged or refunded"


def attacks() -> Iterator[Attack]:
    """All of them."""
    free = "a fresh draw that nobody was charged for"
    for check in (replayed, renamed, redrawn, parallel, quoted, spoiled, cancelled, stolen_id, beyond):
        yield Attack(check.__name__.replace("_", " "), "spending", free, check)
