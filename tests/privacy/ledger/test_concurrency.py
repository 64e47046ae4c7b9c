"""Concurrency: several ledgers, forks, threads and processes share one budget."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from fractions import Fraction
from typing import Any

import pytest

from dither.errors import BudgetExceeded
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import verify
from privacy.ledger_cases import ONE, charge_for, dataset, pay, recorded, total_spent


def test_two_ledgers_on_one_place_see_each_other(place: str) -> None:
    one, two = Ledger(place), Ledger(place)
    one.register(dataset(1))
    two.charge(charge_for(1, "1/2"))
    one.charge(charge_for(2, "1/2"))
    with pytest.raises(BudgetExceeded):
        two.charge(charge_for(3, Fraction(1, ONE)))
    one.record(pay(one, charge_for(1, "1/2")), "one's")
    assert two.charge(charge_for(1, "1/2")) == recorded(2, "one's", paid=True)
    assert verify(place).sound


def test_a_forked_child_charges_the_same_budget(ledger: Ledger) -> None:
    ledger.charge(charge_for("parent", "1/2"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.charge(charge_for("child", "1/2"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BudgetExceeded):
        ledger.charge(charge_for("parent again", Fraction(1, ONE)))
    assert total_spent(ledger) == [(ONE, 0)]


def race(place: str, seed: int, results: Any) -> None:
    """Charge random costs; append the accepted total to `results`."""
    ledger, chance, accepted = Ledger(place), random.Random(seed), 0
    for number in range(12):
        cost = chance.randrange(1, ONE // 8)
        try:
            ledger.charge(charge_for(f"{seed}/{number}", Fraction(cost, ONE)))
            accepted += cost
        except BudgetExceeded:
            pass
    results.append(accepted)


def test_64_threads_racing_for_the_last_1_never_pass_it(place: str) -> None:
    shared = Ledger(place)
    shared.register(dataset(1))
    accepted: list[int] = []

    def run(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(12):
            cost = chance.randrange(1, ONE // 8)
            try:
                shared.charge(charge_for(f"{seed}/{number}", Fraction(cost, ONE)))
                accepted.append(cost)
            except BudgetExceeded:
                pass

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(accepted) == total_spent(shared)[0][0] <= ONE
    assert sum(accepted) > ONE - ONE // 8
    assert verify(place).sound
    print(f"race: 64 threads, {64 * 12} charges, {len(accepted)} accepted, sum {sum(accepted) / ONE:.15f} of 1")


def race_in_process(place: str, seed: int, pipe: Any) -> None:
    accepted: list[int] = []
    race(place, seed, accepted)
    pipe.send(accepted)
    os._exit(0)  # skip exit handlers, which would stop the parent's services


@pytest.mark.tier("test")
def test_64_processes_racing_for_the_last_1_never_pass_it(place: str, tier: Any) -> None:
    Ledger(place).register(dataset(1))
    context = multiprocessing.get_context("fork")
    pipes = []
    processes = []
    for seed in range(64):
        here, there = context.Pipe(duplex=False)
        pipes.append(here)
        processes.append(context.Process(target=race_in_process, args=(place, seed, there)))
    for process in processes:
        process.start()
    accepted = [sum(pipe.recv()) for pipe in pipes]
    for process in processes:
        process.join()
    assert sum(accepted) == total_spent(Ledger(place))[0][0] <= ONE
    assert sum(accepted) > ONE - ONE // 8
    assert verify(place).sound
    print(f"race: 64 processes, {64 * 12} charges, sum accepted {sum(accepted) / ONE:.15f} of 1")
