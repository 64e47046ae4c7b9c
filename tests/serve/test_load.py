"""A short version of benchmarks/load.py: many accounts, killed processes, and consistent totals."""

from __future__ import annotations

import gc
import importlib.util
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dither.post.session import Session
from dither.privacy.ledger import keys
from serve.servers import Place, place, until

LOAD = Path(__file__).resolve().parents[2] / "benchmarks" / "load.py"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("load", LOAD)
    assert spec is not None and spec.loader is not None
    load = importlib.util.module_from_spec(spec)
    sys.modules["load"] = load
    spec.loader.exec_module(load)
    return load


@pytest.mark.tier("deep")
@pytest.mark.xdist_group("servers")
def test_nothing_is_lost_and_nothing_is_free_under_load(tmp_path: Path) -> None:
    """Durations are not checked, because tests share a machine."""
    load = loaded()
    record = load.run(accounts=20, requests=1_000, seconds=60, kills=4, folder=tmp_path)
    print(record)
    assert [each for each in load.problems(record) if not {"instant", "time", "grows"} & set(each.split())] == []
    assert record["charges"] > 100 and sum(record["killed"].values()) == 4
    assert record["answers received"] > record["charges"] - record["charges without an answer"] - 2


RIGHT: dict[str, Any] = {
    "outcomes": {"fresh": {"200": 5, "503 busy": 1}}, "charges = losses = spent": True, "chain holds": True,
    "charged twice": 0, "received but not recorded": 0, "share on time": 1.0,
    "share received within two ticks of the prediction": 1.0,
    "kernel memory": {"verdict": "flat"}, "gateway memory": {"verdict": "no growth beyond the margin"},
}  # fmt: skip


def test_the_record_says_what_does_not_add_up() -> None:
    load = loaded()
    assert list(load.problems(RIGHT)) == []
    for wrong in (
        {"outcomes": {"fresh": {"500": 1}}}, {"charges = losses = spent": False}, {"chain holds": False},
        {"charged twice": 1}, {"received but not recorded": 1}, {"share on time": 0.98},
        {"share received within two ticks of the prediction": 0.98},
        {"kernel memory": {"verdict": "grows"}},
    ):  # fmt: skip
        assert len(list(load.problems({**RIGHT, **wrong}))) == 1, wrong


def test_memory_growth_is_distinguished_from_noise() -> None:
    """A process that grows by 1 MB in ten seconds is detected; one whose memory goes up and down is not."""
    load = loaded()
    memory = load.Memory(None)
    memory.samples.append((0.0, "kernel", 32_000, 50.0))  # killed; numbers of processes begin anew some day
    for second in range(200):
        noise = (second * 7919) % 13 / 4
        memory.samples.append((float(second), "kernel", 1, 300 + second / 10 + noise))
        memory.samples.append((float(second), "gateway", 2, 170 + noise))
    assert memory.flatness("kernel")["verdict"] == "grows"
    assert memory.flatness("gateway")["verdict"] == "flat"
    memory.samples = [sample for sample in memory.samples if sample[0] < 50]
    assert memory.flatness("kernel")["verdict"] == "too short to tell"


def test_an_answer_that_is_not_in_the_ledger_is_noticed() -> None:
    load = loaded()
    got = load.Got("r", 7, "d", "[[1]]")
    charges, released = {7: {"digest": "d"}}, {7: {"parts": [{"values": [1]}]}}
    assert load._recorded(got, charges, released)
    assert not load._recorded(got, {}, released) and not load._recorded(got, charges, {})
    assert not load._recorded(got, {7: {"digest": "e"}}, released)
    assert not load._recorded(got, charges, {7: {"parts": [{"values": [2]}]}})


def test_a_charge_counts_from_the_last_look_that_did_not_see_it(tmp_path: Path) -> None:
    load = loaded()
    accepted = load.Accepted(tmp_path / "ledger.sqlite")
    with closing(sqlite3.connect(accepted.ledger)) as ledger:
        ledger.execute("CREATE TABLE rows (sequence INTEGER PRIMARY KEY, kind TEXT)")
        thread = threading.Thread(target=accepted.watch)
        thread.start()
        time.sleep(0.1)
        before = time.monotonic()
        ledger.executemany("INSERT INTO rows VALUES (?, ?)", [(1, "charge"), (2, "answer")])
        ledger.commit()
        until(lambda: accepted.at)
        accepted.done.set()
        thread.join()
    assert list(accepted.at) == [1] and before - 0.5 < accepted.at[1] < time.monotonic()
    accepted.at = {1: 10.0, 2: 10.0}
    parts = accepted.parts([(1, 9.5, 12.5), (2, 11.0, 13.0), (3, 1.0, 2.0)])
    assert parts == ([0.5], [2.5])  # the second was asked again; nobody saw the third's charge


def blocks_after(there: Place, numbers: range) -> int:
    """Return the memory blocks in use after some queries, without caches of fixed size."""
    for number in numbers:
        session = Session.from_kernel(there.remote, there.tokens["ann"])
        session.sql(f"SELECT COUNT(*) FROM people WHERE age > {number}", epsilon="0.001")
    there.kernel.ledger._snapshot()
    keys.key.cache_clear()
    keys.decode_names.cache_clear()
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.tier("test")
def test_answers_leave_nothing_behind(tmp_path: Path) -> None:
    """Neither the kernel nor its client, both in this process, keeps memory."""
    with place(tmp_path, slots=2) as there:
        before = blocks_after(there, range(1, 40))
        grown = blocks_after(there, range(40, 100)) - before
        assert grown < 60 * 10
