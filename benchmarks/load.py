"""Many accounts at once against both servers, with kills in between: nothing is lost, and nothing is free.

    python benchmarks/load.py --accounts 50 --requests 10000 --seconds 300 --kills 10

Every account asks, quotes, retries and reads its budget. Servers are killed at random. In the end: the charges in the
ledger add up to what the budgets say, no question was charged twice, the chain holds, and memory has not grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from dither.privacy.ledger.stores import open_store
from dither.privacy.ledger.upkeep import verify
from serve.house import Town, serving, town, until

REFUSALS = {429: "rate", 503: "busy", 402: "budget"}


class Load:
    """What the accounts did, and what came back."""

    def __init__(self, there: Town, most: int, seconds: float) -> None:
        self.there, self.most, self.end = there, most, time.monotonic() + seconds
        self.outcomes: Counter[str] = Counter()
        self.answers: dict[str, set[str]] = {}
        self.times: list[float] = []
        self.lock = threading.Lock()
        self.count = 0

    def next(self) -> bool:
        with self.lock:
            self.count += 1
            return self.count <= self.most and time.monotonic() < self.end

    def account(self, token: str, number: int) -> None:
        mine = random.Random(number)
        client = httpx.Client(timeout=60, headers={"authorization": f"Bearer {token}"})
        while self.next():
            try:
                self.one(client, mine)
            except httpx.HTTPError:
                with self.lock:
                    self.outcomes["hung up"] += 1
                time.sleep(2)
        client.close()

    def one(self, client: httpx.Client, mine: random.Random) -> None:
        url, kind = self.there.url, mine.random()
        age = mine.randrange(60)
        body = {"dataset": "town", "query": f"SELECT COUNT(*) FROM people WHERE age > {age}", "epsilon": "1/1000",
                "draw": mine.randrange(8)}  # fmt: skip
        began = time.monotonic()
        if kind < 0.5:
            reply = client.post(f"{url}/v1/answer", json=body)
        elif kind < 0.8:
            reply = client.post(f"{url}/v1/quote", json={**body, "draw": 0})
        else:
            reply = client.get(f"{url}/v1/budget?dataset=town")
        with self.lock:
            self.outcomes[REFUSALS.get(reply.status_code, str(reply.status_code))] += 1
            if kind < 0.5 and reply.status_code == 200:
                values = str([part["values"] for part in reply.json()["noisy"]])
                self.answers.setdefault(f"{age} {body['draw']}", set()).add(values)
                self.times.append(time.monotonic() - began)
        if reply.status_code in REFUSALS:
            time.sleep(mine.random())


def kill(load: Load, name: str) -> None:
    """Kills one of the two and waits until it is back."""
    number = load.there.children().get(name)
    if number is None:
        return
    os.kill(number, signal.SIGKILL)
    until(lambda: load.there.children().get(name) not in (None, number), 120)
    until(lambda: load.there.desk("status")["datasets"], 120)


def memory(there: Town) -> dict[str, int]:
    return {name: psutil.Process(number).memory_info().rss >> 20 for name, number in there.children().items()}


def checked(there: Town, ledger: Path) -> dict[str, object]:
    """The ledger against itself and against the budgets."""
    store = open_store(ledger, create=False)
    rows = [(row.kind, json.loads(row.body)) for row in store.rows()]
    store.close()
    charges = [body for kind, body in rows if kind == "charge"]
    total = sum(body["costs"][0][0] for body in charges)
    spent = there.desk("budget", dataset="town")[0]["spent"]["epsilon"]
    questions = Counter((body["digest"], body["version"]) for body in charges)
    return {
        "rows": len(rows),
        "charges": len(charges),
        "answers": sum(kind == "answer" for kind, _ in rows),
        "sum of charges": total / 10**15,
        "spent by the budget": float(spent),
        "charged twice": sum(count > 1 for count in questions.values()),
        "chain holds": verify(ledger).sound,
    }


def run(accounts: int, requests: int, seconds: float, kills: int, folder: Path) -> dict[str, object]:
    """The whole thing; raises if anything does not add up."""
    port = str(random.randrange(20_000, 40_000))
    words = ("--misses", "100000", "--floor", "400", "--slots", "8", "--waiting", "200", "--rate", "50", "--port", port)
    with serving(town(folder / "data", 900), folder / "s", *words) as there:
        tokens = [there.account(f"a{number}") for number in range(accounts)]
        load, began = Load(there, requests, seconds), time.monotonic()
        threads = [threading.Thread(target=load.account, args=(token, n)) for n, token in enumerate(tokens)]
        for thread in threads:
            thread.start()
        until(lambda: load.count > accounts, 60)
        before = memory(there)
        for number in range(kills):
            time.sleep((0.5 + random.random() / 2) * seconds / (kills + 1))
            kill(load, ("kernel", "gateway")[number % 2])
        for thread in threads:
            thread.join()
        until(lambda: httpx.get(f"{there.url}/health").json()["kernel"], 120)
        after, found = memory(there), checked(there, there.state / "private" / "ledger.sqlite")
    times = sorted(load.times) or [0.0]
    result = {
        "requests": sum(load.outcomes.values()), "seconds": round(time.monotonic() - began), "kills": kills,
        "outcomes": dict(load.outcomes), "p50": round(times[len(times) // 2], 2),
        "p99": round(times[int(len(times) * 0.99)], 2), "memory before (MB)": before, "memory after (MB)": after,
        **found,
    }  # fmt: skip
    unknown = set(load.outcomes) - {"200", "rate", "busy", "budget", "hung up"}
    assert not unknown, result
    assert found["sum of charges"] == found["spent by the budget"] and not found["charged twice"], result
    assert found["chain holds"], result
    assert all(len(values) == 1 for values in load.answers.values()), "a question was drawn twice for one charge"
    return result


def main() -> None:
    """Runs it and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("accounts", 50), ("requests", 10_000), ("seconds", 300), ("kills", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(**vars(given), folder=Path(folder)), indent=2))


if __name__ == "__main__":
    main()
