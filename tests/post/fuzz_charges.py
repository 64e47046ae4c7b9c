"""Ask random questions of a kernel over DuckDB, and report what fails after its charge or answers what it should not.

python tests/post/fuzz_charges.py --accepted 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dither.access.snapshot import prepare, snapshot_path
from dither.errors import BudgetExceeded, DitherError, NotFound
from dither.post.estimate.answer import Answer
from dither.post.session import Session
from dither.privacy.kernel import LocalKernel
from dither.schema import load
from dither.views.answers import answer_data, quote_data
from post.hostile_world import build
from post.random_questions import QuestionMaker, RandomQuestion
from post.random_statistics import random_statistic

WORLDS = ("pure", "zcdp")
LOSSES = {"pure": ("epsilon",), "zcdp": ("epsilon", "rho")}
QUESTIONS_PER_WORLD = 100
# The one refusal that is charged: which keys are common can only be known after they were selected.
NO_COMMON_KEY = "no key had enough units"


@dataclass
class Tally:
    """What came of the questions so far."""

    asked: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    verbs: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass
class World:
    """A session over a fresh kernel, and the ledger that shows what was charged."""

    kernel: LocalKernel
    session: Session
    losses: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, budgets: str, seed: int) -> World:
        """Write a world with its own data, and open a kernel over it."""
        dataset = load(build(folder, budgets, seed))
        if seed % 8 >= 2:  # most worlds are prepared, which is faster
            prepare(dataset, snapshot_path(dataset))
        kernel = LocalKernel(dataset, folder / "ledger.db")
        return cls(kernel, Session.from_kernel(kernel, "analyst"), LOSSES[budgets])

    def try_question(self, question: RandomQuestion, tally: Tally) -> bool:
        """Ask one question, and note what came of it; return False if the budget is exhausted."""
        tally.asked += 1
        before, answers = self.charges(), list[Answer]()
        try:
            for answer in self.ask(question):
                answers.append(answer)
                before = self.charges()
        except BudgetExceeded:
            tally.refused["BudgetExceeded"] += 1
            return self.has_budget()
        except Exception as problem:
            charged = self.charges() - before
            tally.refused[type(problem).__name__] += 1
            known = isinstance(problem, NotFound) and str(problem).startswith(NO_COMMON_KEY)
            if (charged or not isinstance(problem, DitherError)) and not known:
                when = f"after {charged} charges" if charged else "before a charge"
                detail = "; ".join(str(note) for note in list(self.kernel.log.events)[-1:]) if charged else ""
                tally.faults.append(f"{question}: {when}: {problem!r} {detail}")
            return True
        tally.accepted += 1
        tally.verbs[question.verb] += 1
        tally.faults += [f"{question}: {fault}" for answer in answers for fault in faults_of(answer)]
        return True

    def has_budget(self) -> bool:
        """Tell whether at least a tenth of each budget is left."""
        return all(
            10 * (limit - spent) >= limit
            for b in self.session.budget
            for limit, spent in zip(b.limit, b.spent, strict=True)
        )

    def charges(self) -> int:
        """Return how many charges the ledger holds."""
        return self.kernel.ledger.charges(self.session.name)

    def ask(self, question: RandomQuestion) -> Iterator[Answer]:
        """Ask a question as its verb says; yield each answer once it is there."""
        session, (first, *_), options = self.session, question.queries, question.options
        match question.verb:
            case "sql":
                yield session.sql(first, **options)
            case "quote":
                json.dumps(quote_data(session.quote(first, **options)), allow_nan=False)
            case "batch":
                yield from session.batch(question.queries, **options)
            case "split":
                yield from session.split(first, 3, **options)
            case "refine":
                yield (answer := session.sql(first, **options))
                yield (answer := session.refine(answer, epsilon=1))
                yield session.refine(answer, **{self.losses[-1]: "1/2"})
            case "statistic":
                ask = getattr(session, first)
                json.dumps(quote_data(ask.quote(**options)), allow_nan=False)
                yield ask(**options)


def faults_of(answer: Answer) -> Iterator[str]:
    """Yield what is wrong with an answer, in any of the forms in which it can be shown."""
    json.dumps(answer_data(answer), allow_nan=False)
    if len(answer.to_pandas()) != len(answer) or not str(answer) or not answer._repr_html_():
        yield "the forms of the answer differ"
    for column in answer.columns:
        if column.key or not np.any(column.estimate.std_error):
            continue
        result = column.estimate
        value = np.array([np.nan if cell is None or isinstance(cell, str) else float(cell) for cell in result.value])
        texts = any(isinstance(cell, str) for cell in result.value)
        if np.isnan(value).any() and not texts and not any(column.name in note for note in answer.notes):
            yield f"{column.name} is undefined, and no note says so"
        if not texts and np.isnan([result.low, result.high]).any() and not np.isnan(value).any():
            yield f"{column.name} has no interval"
        outside = (value < result.low) | (value > result.high)
        if outside.any():
            place = int(np.argmax(outside))
            ends = result.low[place], result.high[place]
            yield f"{column.name} lies outside its interval: {value[place]!r} not in {ends!r}"
        if not texts and np.isnan(result.std_error).any() and not np.isnan(value).any():
            yield f"{column.name} has no standard error"


def run(accepted: int, seed: int, report: Any = None, statistics: float = 0.25) -> Tally:
    """Ask until so many questions were accepted, in worlds that change now and then; a share of them are statistics."""
    tally, number = Tally(), 0
    while tally.accepted < accepted:
        budgets = WORLDS[number % len(WORLDS)]
        maker = QuestionMaker(Random(f"{seed} {number}"), LOSSES[budgets])
        with tempfile.TemporaryDirectory() as folder:
            world = World.open(Path(folder), budgets, number)
            for _ in range(QUESTIONS_PER_WORLD):
                question = random_statistic(maker) if maker.chance(statistics) else maker.question()
                if tally.accepted >= accepted or not world.try_question(question, tally):
                    break
            world.kernel.close()
        number += 1
        if report is not None:
            report(tally)
    return tally


def main() -> int:
    """Run from the command line; print faults as they are found, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accepted", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--statistics", type=float, default=0.25, help="the share of statistics among the questions")
    arguments = parser.parse_args()
    start, shown = time.time(), 0

    def report(tally: Tally) -> None:
        nonlocal shown
        for fault in tally.faults[shown:]:
            print("FAULT", fault, flush=True)
        shown = len(tally.faults)
        print(f"{tally.accepted} accepted of {tally.asked}, {time.time() - start:.0f} s", flush=True)

    tally = run(arguments.accepted, arguments.seed, report, arguments.statistics)
    print(f"{tally.accepted} accepted of {tally.asked}: {dict(tally.verbs)}; {len(tally.faults)} faults")
    print(f"refused: {dict(tally.refused)}")
    return bool(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
