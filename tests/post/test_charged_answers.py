"""Whatever is charged is answered: the same groups in every column, estimates in their intervals, notes where none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from conftest import Tier
from dither.errors import Unsupported
from dither.post.estimate import rehearsal
from dither.post.session import Session
from dither.privacy.kernel import LocalKernel
from dither.schema import load
from post.fuzz_charges import faults_of, run
from post.hostile_world import build


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("hostile")
    kernel = LocalKernel(load(build(folder)), folder / "ledger.db")
    yield Session.from_kernel(kernel, "analyst")
    kernel.close()


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    "aggregate", ["MEDIAN(age + income)", "MIN(ABS(age))", "MAX(SQRT(age))", "QUANTILE(NULLIF(age, 3), 0.9)"]
)
def test_quantiles_of_expressions_over_nullable_columns_are_answered(aggregate: str, hostile: Session) -> None:
    answer = hostile.sql(f"SELECT {aggregate} AS m FROM people", epsilon=1)
    low, high = answer["m"].interval
    assert low <= answer["m"].value <= high
    grouped = hostile.sql(f"SELECT vip, {aggregate} AS m FROM people GROUP BY vip", epsilon=1)
    assert len(grouped) == 3 and not list(faults_of(grouped))


@pytest.mark.parametrize(
    "filtered",
    [
        "COUNT(DISTINCT person) FILTER (WHERE grade = 'a')",
        "COUNT(DISTINCT age) FILTER (WHERE grade = 'a')",
        "MEDIAN(age) FILTER (WHERE grade = 'a')",
        "COUNT(*) FILTER (WHERE grade = 'a')",
    ],
)
def test_a_filter_on_a_key_leaves_all_groups(filtered: str, hostile: Session) -> None:
    alone = hostile.sql(f"SELECT grade, {filtered} AS n FROM people GROUP BY grade", epsilon=50)
    beside = hostile.sql(f"SELECT grade, {filtered} AS n, COUNT(*) AS m FROM people GROUP BY grade", epsilon=100)
    for answer in (alone, beside):
        assert answer.table.column("grade").to_pylist() == ["a", "B", "c'", None]
    if not filtered.startswith("MEDIAN"):  # the median of nothing lies anywhere
        # With scale 1/25 at most, noise is beyond 1.5 with probability 2 exp(-37) in each of 8 cells.
        for answer in (alone, beside):
            assert answer["n"].value[0] > 1.5 and np.all(np.abs(answer["n"].value[1:]) < 1.5)


def test_a_key_with_null_keeps_its_group_beside_a_median(hostile: Session) -> None:
    answer = hostile.sql("SELECT age > 20 AS old, MEDIAN(age) AS m, COUNT(*) AS n FROM people GROUP BY 1", epsilon=1)
    assert answer.table.column("old").to_pylist() == [False, True, None]


def test_distinct_values_are_not_more_than_declared(hostile: Session) -> None:
    query = "SELECT COUNT(DISTINCT member) AS two, COUNT(DISTINCT grade) + 1 AS four FROM people"
    for repeat in range(8):
        answer = hostile.sql(query, epsilon="1/10", repeat=repeat)
        for name, most in (("two", 2), ("four", 4)):
            low, high = answer[name].interval
            assert low <= answer[name].value <= high <= most


def test_a_quote_of_distinct_values_states_the_noise(hostile: Session) -> None:
    """The bound on the answer must not make the expected error, from which max_error= is solved, too small."""
    query = "SELECT COUNT(DISTINCT member) AS n FROM people"
    assert hostile.quote(query, epsilon="1/10")["n"].half_width > 20


@pytest.mark.tier("test")
def test_what_is_undefined_has_a_note_and_a_possible_interval(hostile: Session) -> None:
    answer = hostile.sql("SELECT CORR(x, y) AS c FROM nothing", epsilon="1/100")
    for repeat in range(1, 60):
        if np.isnan(answer["c"].value):
            break
        answer = hostile.sql("SELECT CORR(x, y) AS c FROM nothing", epsilon="1/100", repeat=repeat)
    assert np.isnan(answer["c"].value) and answer["c"].interval == (-1, 1)
    assert any("c is left undefined" in note for note in answer.notes)
    refined = hostile.refine(answer, epsilon=1)
    undefined = [note for note in refined.notes if "left undefined" in note]
    assert len(undefined) == int(np.isnan(refined["c"].value))


def test_a_recipe_that_fails_is_found_before_the_charge(hostile: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("planted")

    before = hostile.budget
    monkeypatch.setattr(rehearsal, "build_answer", fail)
    with pytest.raises(Unsupported, match="nothing was asked or spent"):
        hostile.sql("SELECT COUNT(*) AS n FROM people WHERE age > 3", epsilon=1)
    assert hostile.budget == before


@pytest.mark.tier("test")
def test_random_questions_do_not_fail_after_their_charge(tier: Tier) -> None:
    tally = run(tier.pick(quick=2, test=40, deep=2_000), seed=7)
    assert not tally.faults, "\n".join(tally.faults)
