"""Many accounts at once against both servers, with kills in between: nothing is lost, and nothing is free.

    python benchmarks/load.py --accounts 50 --requests 10000 --seconds 300 --kills 10

Fifty accounts ask, ask again, quote and read budgets at random moments; kernel and gateway are killed with `kill -9` at
random in the first half. Then everything must add up, or the script says what does not and ends with 1:

- every reply is one that the documentation names;
- what the ledger's charges cost is what the budget says was spent, and is what the recorded losses add up to;
- every answer that somebody received stands in the ledger, under one charge; a question that a kill cut off is asked
  again and is charged once;
- 99 of 100 fresh answers leave at the instant that their pacing class predicts, and are in the client's hands within
  two ticks of it: the gateway sends replies at whole ticks after the request came;
- in the second half, in which nobody is killed, the memory of neither process grows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from dither.privacy.ledger.maintenance import verify
from dither.privacy.ledger.store import open_store
from dither.serve.operations.supervisor import SWITCH_INTERVAL
from dither.views.ledger import decimal_text
from serve.servers import Town, free_port, serving, town, until

REFUSALS = {429: "429 rate", 503: "503 busy", 402: "402 budget"}
KINDS = ("fresh", "again", "quote", "budget", "history")
SHARES = (0.20, 0.20, 0.32, 0.25, 0.03)
EPSILON = Fraction(1, 1000)
FLOOR = 2000  # milliseconds of the smallest pacing class: what a cold kernel and all slots at once need, and some more
SLOTS = 50  # one for each account: nobody waits for a turn
TICK = 100  # milliseconds: replies leave the gateway at whole ticks after their request came
PAUSE = 0.5  # seconds, at least, before anyone asks again
SETTLED = 60  # seconds without a kill that it takes to tell
GROWTH = 0.01  # of the memory in use that a flat process may gain in a minute, at most


@dataclass(frozen=True)
class Got:
    """An answer as somebody received it."""

    name: str
    sequence: int
    digest: str
    values: str


@dataclass
class Load:
    """What the accounts did, and what came back."""

    there: Town
    each: int
    seconds: float
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: list[Got] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    fresh: list[tuple[int, float, float]] = field(default_factory=list)  # sequence, asked, received
    lock: threading.Lock = field(default_factory=threading.Lock)

    def account(self, token: str, number: int) -> None:
        """One account's requests, at random moments."""
        mine, began = random.Random(number), time.monotonic()
        moments = sorted(mine.uniform(0, self.seconds) for _ in range(self.each))
        asked: list[dict[str, Any]] = []
        with httpx.Client(timeout=60, headers={"authorization": f"Bearer {token}"}) as client:
            for place, moment in enumerate(moments):
                time.sleep(max(0.0, began + moment - time.monotonic()))
                kind = mine.choices(KINDS, SHARES)[0] if asked else "fresh"
                if kind == "fresh":
                    asked.append(_question(mine, number, place))
                self._until_answered(client, kind, asked[-1] if kind == "fresh" else mine.choice(asked))

    def _until_answered(self, client: httpx.Client, kind: str, body: dict[str, Any]) -> None:
        """One request; whoever was cut off, or told to come back, asks again under the same request id."""
        for attempt in range(60):
            time.sleep(random.uniform(PAUSE, 3) if attempt else 0)
            began = time.monotonic()
            try:
                reply = self._send(client, kind, body)
            except httpx.HTTPError:
                self._note(kind, "hung up")
                continue
            self._note(kind, REFUSALS.get(reply.status_code, str(reply.status_code)))
            if reply.status_code not in REFUSALS:
                self._received(kind, body, reply, began, time.monotonic())
                return

    def _send(self, client: httpx.Client, kind: str, body: dict[str, Any]) -> httpx.Response:
        url = self.there.url
        if kind in ("fresh", "again"):
            return client.post(f"{url}/v1/answer", json=body)
        if kind == "quote":
            return client.post(f"{url}/v1/quote", json={**body, "request_id": None})
        return client.get(f"{url}/v1/{kind}?dataset=town")

    def _note(self, kind: str, outcome: str) -> None:
        with self.lock:
            self.outcomes[kind, outcome] += 1

    def _received(self, kind: str, body: dict[str, Any], reply: httpx.Response, began: float, ended: float) -> None:
        with self.lock:
            if kind in ("fresh", "again") and reply.status_code == 200:
                data = reply.json()
                release, values = data["releases"][0], json.dumps([part["values"] for part in data["measurements"]])
                self.answers.append(Got(body["request_id"], release["sequence"], release["digest"], values))
                kind = "again" if data["free"] else "fresh"
                if kind == "fresh":
                    self.fresh.append((release["sequence"], began, ended))
            self.times[kind].append(ended - began)


def _question(mine: random.Random, account: int, place: int) -> dict[str, Any]:
    """A question that nobody has asked before."""
    query = f"SELECT COUNT(*) FROM people WHERE age > {mine.randrange(60)}"
    return {"dataset": "town", "query": query, "epsilon": str(EPSILON), "repeat": account * 100_000 + place,
            "request_id": f"r{account}-{place}"}  # fmt: skip


@dataclass
class Accepted:
    """When each charge was made: a reader of the ledger looks for new ones a hundred times a second."""

    ledger: Path
    at: dict[int, float] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Until told that it is over. A charge counts from the last look that did not see it: no later than it was."""
        last, looked = 0, time.monotonic()
        while not self.done.wait(0.01):
            before, looked = looked, time.monotonic()
            try:
                found = self._after(last)
            except sqlite3.Error:  # nobody has opened it since a kill
                looked = before
                continue
            charged = sum(kind == "charge" for _, kind in found)  # accounts see charges counted from 1
            self.at.update({len(self.at) + number: before for number in range(1, charged + 1)})
            last = max((sequence for sequence, _ in found), default=last)

    def _after(self, last: int) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as connection:
            return connection.execute(
                "SELECT sequence, kind FROM rows WHERE sequence > ? ORDER BY sequence", (last,)
            ).fetchall()

    def parts(self, fresh: list[tuple[int, float, float]]) -> tuple[list[float], list[float]]:
        """The seconds of each fresh answer before its charge and from there on.

        Where a kill cut a question off, its charge is older than the asking that was answered: nobody outside sees
        when its time began anew, so it is left out here.
        """
        known = [(self.at[sequence], began, ended) for sequence, began, ended in fresh if sequence in self.at]
        whole = [(charged, began, ended) for charged, began, ended in known if charged > began - PAUSE]
        return [charged - began for charged, began, _ in whole], [ended - charged for charged, _, ended in whole]


@dataclass
class Memory:
    """The resident memory of both processes, once a second."""

    there: Town
    samples: list[tuple[float, str, int, float]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Until told that it is over."""
        began = time.monotonic()
        while not self.done.wait(1.0):
            for name, number in self.there.children().items():
                try:
                    size = psutil.Process(number).memory_info().rss / 2**20
                except psutil.Error:  # it was killed just now
                    continue
                self.samples.append((time.monotonic() - began, name, number, size))

    def flatness(self, name: str) -> dict[str, Any]:
        """The growth of the last process of that name, in MB a minute, and the error of that number."""
        last = [number for _, each, number, _ in self.samples if each == name][-1]
        mine = np.array([(at, size) for at, _, number, size in self.samples if number == last])
        settled = mine[mine[:, 0] >= mine[0, 0] + 0.4 * (mine[-1, 0] - mine[0, 0])]
        slope, margin = _slope(settled[:, 0] / 60, settled[:, 1])
        most = GROWTH * float(settled[:, 1].mean())
        verdict = "flat" if slope + margin <= most else "no growth beyond the margin" if slope <= margin else "grows"
        verdict = verdict if settled[-1, 0] - settled[0, 0] >= SETTLED else "too short to tell"
        return {"MB": [round(size) for size in mine[:: max(1, len(mine) // 8), 1]], "MB a minute": round(slope, 2),
                "margin": round(margin, 2), "allowed": round(most, 2), "seconds": round(settled[-1, 0] - settled[0, 0]),
                "verdict": verdict}  # fmt: skip


def _slope(minutes: Any, sizes: Any) -> tuple[float, float]:
    """The least-squares slope of ten means in a row (neighbouring samples are alike), and two standard errors."""
    blocks = min(10, len(minutes) // 2)
    if blocks < 3:
        return 0.0, float("inf")
    x = np.array([part.mean() for part in np.array_split(minutes, blocks)])
    y = np.array([part.mean() for part in np.array_split(sizes, blocks)])
    slope, start = np.polyfit(x, y, 1)
    left = y - slope * x - start
    error = np.sqrt((left**2).sum() / (blocks - 2) / ((x - x.mean()) ** 2).sum())
    return float(slope), float(2 * error)


def kill(there: Town, name: str) -> bool:
    """Kills one of the two and waits until it is back."""
    number = there.children().get(name)
    if number is None:
        return False
    os.kill(number, signal.SIGKILL)
    until(lambda: there.children().get(name) not in (None, number), 120)
    until(lambda: there.desk("status")["datasets"] and httpx.get(f"{there.url}/health/ready").status_code == 200, 120)
    return True


def killing(there: Town, kills: int, seconds: float) -> Counter[str]:
    """Kills either of the two at random moments of so many seconds."""
    killed: Counter[str] = Counter()
    began, moments = time.monotonic(), sorted(random.uniform(0.05, 1) * seconds for _ in range(kills))
    for number, moment in enumerate(moments):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        name = ("kernel", "gateway")[number] if number < 2 else random.choice(("kernel", "gateway"))
        while not kill(there, name):
            time.sleep(0.2)
        killed[name] += 1
    return killed


def checked(there: Town, ledger: Path, answers: list[Got]) -> dict[str, Any]:
    """The ledger against itself, against the budget, and against what people received."""
    store = open_store(ledger, create=False)
    rows = [(row.sequence, row.kind, json.loads(row.body)) for row in store.rows()]
    store.close()
    sequences = [sequence for sequence, kind, _ in rows if kind == "charge"]
    numbers = {sequence: number for number, sequence in enumerate(sequences, 1)}  # accounts see charges counted from 1
    charges = {numbers[sequence]: body for sequence, kind, body in rows if kind == "charge"}
    released = {numbers[body["charge"]]: json.loads(body["release"]) for _, kind, body in rows if kind == "answer"}
    spent = there.desk("budget", dataset="town")[0]["spent"]["epsilon"]
    losses = sum((Fraction(body["losses"][0][2]["epsilon"]) for body in charges.values()), Fraction())
    costs = sum(body["costs"][0][0] for body in charges.values())
    questions = Counter((body["digest"], body["version"]) for body in charges.values())
    return {
        "charges": len(charges),
        "charges without an answer": len(set(charges) - set(released)),
        "sum of charges": decimal_text(costs),
        "sum of recorded losses": str(losses),
        "spent by the budget": spent,
        "charges = losses = spent": losses == Fraction(costs, 10**15) == Fraction(spent),
        "charged twice": sum(count > 1 for count in questions.values()),
        "answers received": len(answers),
        "received but not recorded": sum(not _recorded(got, charges, released) for got in answers),
        "chain holds": verify(ledger).sound,
    }


def _recorded(got: Got, charges: dict[int, Any], released: dict[int, Any]) -> bool:
    """Whether an answer stands in the ledger as it was received, under a charge for that very question."""
    if got.sequence not in charges or got.sequence not in released:
        return False
    values = json.dumps([part["values"] for part in released[got.sequence]["parts"]])
    return bool(charges[got.sequence]["digest"] == got.digest and values == got.values)


def run(accounts: int, requests: int, seconds: float, kills: int, folder: Path) -> dict[str, Any]:
    """The whole thing, as a record."""
    sys.setswitchinterval(SWITCH_INTERVAL)  # the accounts are threads of one process: none should wait for all others
    words = ("--misses", "100000", "--floor", str(FLOOR), "--slots", str(SLOTS), "--waiting", "200", "--rate", "50",
             "--tick", str(TICK),
             "--port", str(free_port()))  # fmt: skip
    with serving(town(folder / "data", 900), folder / "s", *words) as there:
        tokens = [there.account(f"a{number}") for number in range(accounts)]
        predicted = _predicted(there, tokens[0])
        load, memory = Load(there, requests // accounts, seconds), Memory(there)
        accepted = Accepted(there.state / "private" / "ledger.sqlite")
        threads = [
            threading.Thread(target=load.account, args=(token, n), daemon=True) for n, token in enumerate(tokens)
        ]
        watching = [threading.Thread(target=each.watch, daemon=True) for each in (memory, accepted)]
        began = time.monotonic()
        for thread in (*watching, *threads):
            thread.start()
        killed = killing(there, kills, seconds / 2)
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        for watch, thread in zip((memory, accepted), watching, strict=True):
            watch.done.set()
            thread.join()
        late = len(there.desk("misses", dataset="town")["misses"])
        found = checked(there, accepted.ledger, load.answers)
    return {
        "accounts": accounts, "requests": sum(load.outcomes.values()), "seconds": round(took),
        "killed": dict(killed), "outcomes": _outcomes(load), **_latency(load, accepted, predicted, late), **found,
        "kernel memory": memory.flatness("kernel"), "gateway memory": memory.flatness("gateway"),
        "load of the machine": round(os.getloadavg()[1], 1),
    }  # fmt: skip


def _predicted(there: Town, token: str) -> int:
    """What the pacing class of the questions predicts, in milliseconds."""
    body = {"dataset": "town", "query": "SELECT COUNT(*) FROM people WHERE age > 3", "epsilon": str(EPSILON)}
    reply = httpx.post(f"{there.url}/v1/quote", json=body, headers={"authorization": f"Bearer {token}"})
    return int(reply.json()["milliseconds"])


def _outcomes(load: Load) -> dict[str, dict[str, int]]:
    return {kind: {seen: n for (each, seen), n in sorted(load.outcomes.items()) if each == kind} for kind in KINDS}


def _latency(load: Load, accepted: Accepted, predicted: int, late: int) -> dict[str, Any]:
    fresh = max(1, len(load.times["fresh"]))
    before, since = accepted.parts(load.fresh)
    return {
        "p50, p99 (ms)": {kind: [_quantile(times, 0.5), _quantile(times, 0.99)] for kind, times in load.times.items()},
        "before the charge: p50, p99 (ms)": [_quantile(before, 0.5), _quantile(before, 0.99)],
        "predicted by the pacing class (ms)": predicted,
        "from the charge to the reply: p50, p99 (ms)": [_quantile(since, 0.5), _quantile(since, 0.99)],
        "left later than predicted": late,
        "share on time": round(1 - late / fresh, 4),
        "answers timed": len(since),
        "share received within two ticks of the prediction": _share(since, (predicted + 2 * TICK) / 1000),
    }


def _share(times: list[float], most: float) -> float:
    return round(sum(each <= most for each in times) / max(1, len(times)), 4)


def _quantile(times: list[float], share: float) -> int:
    return round(1000 * float(np.quantile(times, share))) if times else 0


def problems(record: dict[str, Any]) -> Iterator[str]:
    """What does not add up."""
    documented = {"200", "hung up", *REFUSALS.values()}
    unknown = {seen for outcomes in record["outcomes"].values() for seen in outcomes} - documented
    if unknown:
        yield f"undocumented replies: {', '.join(sorted(unknown))}"
    for name in ("charges = losses = spent", "chain holds"):
        if not record[name]:
            yield f"not so: {name}"
    for name in ("charged twice", "received but not recorded"):
        if record[name]:
            yield f"{name}: {record[name]}"
    if record["share on time"] < 0.99:
        yield f"only {record['share on time']:.2%} of fresh answers left at the predicted instant"
    if record["share received within two ticks of the prediction"] < 0.99:
        yield f"only {record['share received within two ticks of the prediction']:.2%} of fresh answers came in time"
    for name in ("kernel memory", "gateway memory"):
        if record[name]["verdict"] == "grows":
            yield f"{name} grows"


def main() -> None:
    """Runs it and prints the record as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("accounts", 50), ("requests", 10_000), ("seconds", 300), ("kills", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    with tempfile.TemporaryDirectory() as folder:
        record = run(**vars(parser.parse_args()), folder=Path(folder))
    print("| | |\n|---|---|")
    for name, value in record.items():
        print(f"| {name} | {json.dumps(value) if isinstance(value, dict) else value} |")
    found = list(problems(record))
    print("\n" + ("\n".join(f"PROBLEM: {each}" for each in found) or "everything adds up"))
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
