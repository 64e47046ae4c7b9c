"""Attacks on released numbers: membership within its bound, averages that are charged, reconstruction at eps = 100."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Tier
from dither.audit.attacks.statistics import GuessResult, best_accuracy, guess_membership, random_subsets, reconstruct
from dither.errors import BudgetExceeded
from dither.loss import Pure, rational
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare, In
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count
from dither.plan.relations.filter import Filter
from dither.plan.relations.scan import Scan
from dither.privacy.kernel import LocalKernel
from dither.privacy.mechanisms import DiscreteLaplace, Vector
from dither.privacy.protocol import Calibrate, Measurement, Request
from dither.schema import BudgetCap, load
from serve.servers import SALARY, SEPARATE, SHARED, place, town

SINGLED = Count(Filter(Scan("people"), Compare("=", ColumnRef("salary"), LiteralValue(SALARY))))
EVERYONE = Count(Scan("people"))
OTHERS = Count(Filter(Scan("people"), Compare("<>", ColumnRef("salary"), LiteralValue(SALARY))))


@contextmanager
def kernel(folder: Path, without: int | None = None, epsilon: Any = 4_600) -> Iterator[LocalKernel]:
    described = replace(load(town(folder, without=without)), budgets=(BudgetCap("person", "pure", rational(epsilon)),))
    made = LocalKernel(described, folder / "ledger.sqlite")
    yield made
    made.close()


def draws(
    there: LocalKernel, trials: int, *measures: Measure, who: str = "ann", epsilon: Fraction = Fraction(1)
) -> list[list[int]]:
    """Return fresh draws of counts, each trial at `epsilon` in total, with many trials in one request."""
    share = Calibrate("discrete_laplace", Pure(epsilon / len(measures)))
    found: list[int] = []
    each = max(1, 200 // len(measures))
    for number in range(-(-trials // each)):
        parts = tuple(Measurement(measure, share) for _ in range(each) for measure in measures)
        found += [part.values[0] for part in there.answer(Request("town", parts, repeat=number), who).parts]
    return [found[at : at + len(measures)] for at in range(0, len(found), len(measures))]


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["singled out", "by difference"])
def test_one_persons_presence_is_guessed_no_better_than_the_loss_allows(how: str, tmp_path: Path, tier: Tier) -> None:
    """False alarm 1e-9 each by Hoeffding's margin."""
    trials = tier.pick(quick=200, test=1_000, deep=4_000)
    measures = (SINGLED,) if how == "singled out" else (EVERYONE, OTHERS)
    with kernel(tmp_path / "a") as there, kernel(tmp_path / "b", without=7) as absent:
        one, two = draws(there, trials, *measures), draws(absent, trials, *measures)
    guess = guess_membership(lambda i: statistic(one[i]), lambda i: statistic(two[i]), 0.5, 1.0, trials)
    assert not guess.learned, guess
    assert guess.rate > 0.5 - guess.margin


def statistic(values: list[int]) -> int:
    """Return a count of one person, or the difference between everyone's count and the others'."""
    return values[0] - sum(values[1:])


def test_a_draw_with_too_little_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the scale: the true rate is about e^4/(1+e^4) = 0.98 against a bound of 0.73 + 0.16."""
    release = DiscreteLaplace.release

    def quiet(self: DiscreteLaplace, exact: Vector, bits: Any) -> Vector:
        return release(DiscreteLaplace(self.scale / 8), exact, bits)

    with kernel(tmp_path / "a") as there, kernel(tmp_path / "b", without=7) as absent:
        monkeypatch.setattr(DiscreteLaplace, "release", quiet)
        one, two = draws(there, 200, SINGLED), draws(absent, 200, SINGLED)
    assert guess_membership(lambda i: one[i][0], lambda i: two[i][0], 0.5, 1.0, 200).learned


def test_the_bound_is_that_of_the_literature() -> None:
    assert (
        best_accuracy(0) == 0.5 and math.isclose(best_accuracy(1), math.e / (1 + math.e)) and best_accuracy(50, 1) == 1
    )


def among(asked: np.ndarray) -> list[Measure]:
    """Return counts of ill people in subsets that are selected by public salaries."""
    salaries = [20_000 + 100 * person for person in range(asked.shape[1])]
    measures: list[Measure] = []
    for row in asked:
        chosen = tuple(LiteralValue(salary).value for salary, inside in zip(salaries, row, strict=True) if inside)
        measures.append(Count(Filter(Filter(Scan("people"), In(ColumnRef("salary"), chosen)), ColumnRef("ill"))))
    return measures


def answers(there: LocalKernel, asked: np.ndarray, epsilon: object) -> list[float]:
    """Return the noisy counts, each at `epsilon`."""
    loss = Calibrate("discrete_laplace", Pure(str(epsilon)))  # type: ignore[arg-type]
    parts = tuple(Measurement(measure, loss) for measure in among(asked))
    return [float(part.values[0]) for part in there.answer(Request("town", parts), "ann").parts]


@pytest.mark.tier("test")
def test_reconstruction_succeeds_at_a_hundred_and_fails_within_the_budget(tmp_path: Path) -> None:
    """Dinur and Nissim: 24 people's illness from 40 subsets. All bits are right at eps = 100 per query.

    At eps = 1 in all, each bit is right with probability at most e/(1+e) = 0.73: 24 of 24 by chance below 0.06%, and
    the test allows up to 23, repeated three times with fresh noise: false alarm (0.73^24)^3 < 1e-9.
    """
    people, questions = 24, 40
    asked = random_subsets(people, questions)
    truth = np.array([person % 5 == 0 for person in range(people)])
    with kernel(tmp_path / "loud") as there:
        exact = reconstruct(asked, answers(there, asked, 100))
        # Person 7 earns something else, and is told by nobody's salary.
        assert (exact == truth).sum() >= people - 1
    rounds = []
    for number in range(3):
        with kernel(tmp_path / f"quiet{number}", epsilon="1.01") as there:
            found = reconstruct(asked, answers(there, asked, f"1/{questions}"))
            rounds.append(int((found == truth).sum()))
            with pytest.raises(BudgetExceeded):
                answers(there, 1 - asked[:1], f"1/{questions}")
    assert min(rounds) < people, rounds


TARGET = 5  # is ill; a town without them is, to these questions, one in which they are well
BITS = random_subsets(8, 10, 4)


def guess_one_bit(folder: Path, rounds: int, epsilon: Fraction) -> GuessResult:
    """Return how often the reconstruction of all bits is right about one person's, at `epsilon` per round."""
    measures, found = among(BITS), list[list[bool]]()
    for name, without in (("ill", None), ("well", TARGET)):
        with kernel(folder / name, without=without) as there:
            answered = draws(there, rounds, *measures, epsilon=epsilon)
            found.append([bool(reconstruct(BITS, each)[TARGET]) for each in answered])
    return guess_membership(lambda i: found[0][i], lambda i: found[1][i], 0.5, float(epsilon), rounds)


@pytest.mark.tier("test")
def test_reconstruction_guesses_one_persons_bit_no_better_than_the_loss_allows(tmp_path: Path) -> None:
    """Ten subsets of eight people at epsilon 1 in total, 150 rounds: at most e/(1+e), plus Hoeffding's margin for
    a false alarm of 1e-9. At epsilon 100 per query the reconstruction is right."""
    quiet = guess_one_bit(tmp_path / "quiet", 150, Fraction(1))
    assert not quiet.learned and quiet.allowed_rate + quiet.margin < 0.93, quiet
    for name, without in (("ill", None), ("well", TARGET)):
        with kernel(tmp_path / "loud" / name, without=without) as there:
            assert reconstruct(BITS, answers(there, BITS, 100))[TARGET] == (name == "ill")


@pytest.mark.tier("test")
def test_a_reconstruction_that_learns_too_much_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: a hundredth of the noise."""
    release = DiscreteLaplace.release

    def quiet(self: DiscreteLaplace, exact: Vector, bits: Any) -> Vector:
        return release(DiscreteLaplace(self.scale / 100), exact, bits)

    monkeypatch.setattr(DiscreteLaplace, "release", quiet)
    assert guess_one_bit(tmp_path, 150, Fraction(1)).learned


# --- Colluding accounts ---


def colluding(folder: Path, policy: str, without: int | None, trials: int) -> list[int]:
    """Return differences between the answers of two accounts of different groups, at half of epsilon each."""
    described = replace(
        load(town(folder, 10, policy, without)), budgets=(BudgetCap("person", "pure", rational(4_600)),)
    )
    made = LocalKernel(described, folder / "ledger.sqlite")
    half = Fraction(1, 2)
    told = [
        draws(made, trials, EVERYONE, who="ann", epsilon=half),
        draws(made, trials, OTHERS, who="bob", epsilon=half),
    ]
    made.close()
    return [one[0] - two[0] for one, two in zip(*told, strict=True)]


@pytest.mark.tier("test")
@pytest.mark.parametrize("policy", [SHARED, SEPARATE], ids=["shared", "separate"])
def test_two_accounts_that_take_differences_learn_no_more_than_the_sum_of_what_they_paid(
    policy: str, tmp_path: Path, tier: Tier
) -> None:
    """One asks about everyone and the other about all but one person; 1e-9 each by Hoeffding's margin."""
    trials = tier.pick(quick=200, test=1_000, deep=4_000)
    there = colluding(tmp_path / "a", policy, None, trials)
    absent = colluding(tmp_path / "b", policy, 7, trials)
    guess = guess_membership(lambda i: there[i], lambda i: absent[i], 0.5, 1.0, trials)
    assert not guess.learned and guess.rate > 0.5 - guess.margin, guess


@pytest.mark.parametrize(("policy", "paid"), [(SHARED, [200, 402]), (SEPARATE, [200, 200])], ids=["shared", "separate"])
def test_a_difference_is_paid_for_by_whoever_shares_the_budget(policy: str, paid: list[int], tmp_path: Path) -> None:
    """Shared: the second half is refused. Separate: each group pays its own, and has nothing left for another."""
    everyone, others = "SELECT COUNT(*) FROM people", f"SELECT COUNT(*) FROM people WHERE salary <> {SALARY}"
    with place(tmp_path, epsilon="1.01", policy=policy) as there:
        assert [there.ask(everyone, 1, "ann").status_code, there.ask(others, 1, "bob").status_code] == paid
        assert [there.ask(each, 1, who).status_code for each, who in ((others, "ann"), (everyone, "bob"))] == (
            [402, 200] if policy == SHARED else [402, 402]
        ), "what was asked before is free where the budget is shared"
        statement = there.get("/v1/statement?dataset=town").json()
        warned = any("do not share answers" in each for each in statement["assumptions"])
        assert warned == (policy == SEPARATE)


def draws_of_two_groups(folder: Path, policy: str) -> tuple[list[int], int]:
    """Return the draws of a query that two accounts get at eps = 1 of a budget of 5.01, and how many are distinct."""
    values = []
    with place(folder, epsilon="5.01", policy=policy) as there:
        for number in range(12):
            for who in ("ann", "amy", "bob"):
                reply = there.ask("SELECT COUNT(*) FROM people", 1, who, repeat=number)
                if reply.status_code == 200:
                    values.append((number, reply.json()["measurements"][0]["values"][0]))
                else:
                    assert reply.status_code == 402, reply.text
        charges = there.charges()
    assert charges >= 5
    return [value for _, value in values], len(set(values))


def test_colluding_accounts_under_a_shared_budget_get_five_draws(tmp_path: Path) -> None:
    values, distinct = draws_of_two_groups(tmp_path, SHARED)
    assert distinct == 5 and len(values) == 15


def test_colluding_groups_with_separate_budgets_pay_for_the_same_draws(tmp_path: Path) -> None:
    """A second group is charged for the recorded answer and gets the same one, so there is nothing to average."""
    values, distinct = draws_of_two_groups(tmp_path, SEPARATE)
    assert distinct == 5 and len(values) == 15


def test_draws_that_are_each_accounts_own_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: the same query of another account is a new query, so two groups can average ten draws."""
    claim = LocalKernel._build_charge

    def own(self: LocalKernel, house: Any, request: Request, appraisal: Any, account: str) -> Any:
        made = claim(self, house, request, appraisal, account)
        return replace(made, digest=hashlib.sha256(f"{made.digest} {account}".encode()).hexdigest())

    monkeypatch.setattr(LocalKernel, "_build_charge", own)
    assert draws_of_two_groups(tmp_path, SEPARATE)[1] > 5


def test_accounts_of_no_group_get_nothing(tmp_path: Path) -> None:
    with place(tmp_path, policy=SEPARATE) as there:
        assert there.ask("SELECT COUNT(*) FROM people", who="eve").status_code in (403, 404)
        assert there.get("/v1/datasets", "eve").json() == {"datasets": []}
        assert there.get("/v1/history?dataset=town", "eve").status_code == 403


def seen_by_bob(folder: Path, first: str | None) -> tuple[Any, ...]:
    """Return what a second group sees of a query it is charged for: quotes, noiseless answer, history, statement."""
    with place(folder, policy=SEPARATE) as there:
        query = {"dataset": "town", "query": "SELECT COUNT(*) FROM people WHERE ill", "epsilon": 1}
        if first is not None:
            assert there.post("/v1/answer", query, first).status_code == 200
        rows = len(there.kernel.ledger.rows())
        quote = there.post("/v1/quote", query, "bob").json()
        answers = [there.post("/v1/answer", {**query, **more}, "bob").json()
                   for more in ({}, {}, {"request_id": "r"})]  # fmt: skip
        own = next(row for row in there.kernel.ledger.rows()[rows:] if row.kind == "charge")
        for answer in answers:
            (release,) = answer["releases"]
            assert (release["sequence"], release["time"]) == (2, own.time)  # the first charge measures the size
        history = [each["account"] for each in there.get("/v1/history?dataset=town", "bob").json()["items"]]
        groups = {each["name"] for each in there.get("/v1/statement?dataset=town", "bob").json()["balances"]}
        return quote["free"], [answer["free"] for answer in answers], history, groups


def test_another_groups_private_questions_do_not_show(tmp_path: Path) -> None:
    """Under separate budgets, nothing that a group sees reveals if or when another group sent the same query."""
    alone, after = seen_by_bob(tmp_path / "a", None), seen_by_bob(tmp_path / "b", "ann")
    assert alone == after and alone[0] is False and alone[1] == [False, True, True]
    assert "ann" not in alone[2] and "red" not in alone[3]
