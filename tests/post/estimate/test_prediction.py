"""Predicted sizes and bounds: what quotes know of groups, of typical rows, and of questions with conditions."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import dither
from dither.connection import measure_profile
from dither.loss import Pure, Sensitivity
from dither.plan import expressions as expr
from dither.plan.context import Context, with_public_facts
from dither.plan.domains import bounds_of
from dither.post.contribution_bound import ContributionBound
from dither.post.estimate.intervals import Measured, estimate
from dither.post.estimate.prediction import every_row, expected_rows
from dither.post.estimate.solve import least_epsilon
from dither.post.formulas import FunctionCall, NoisyCell
from dither.post.noise import noise_of
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.typical_rows import TYPICAL_ROWS, typical_rows
from dither.post.session import Session
from dither.privacy.mechanisms import calibrate
from post.estimate.test_profile import COUNTED, MEAN, copy_world

PER_PERSON = "SELECT AVG(n) AS a FROM (SELECT user_id, COUNT(*) AS n FROM actions GROUP BY user_id)"
PER_PERSON_AND_ACTION = "SELECT AVG(n) AS a FROM (SELECT user_id, action, COUNT(*) AS n FROM actions GROUP BY 1, 2)"
PEOPLE, ROWS = 20_000, 4_000_000


@pytest.fixture
def sized(blind: Session) -> Session:
    """A session whose kernel has published noisy sizes, and has no engine."""
    return publish(blind, {"users": PEOPLE, "actions": ROWS, "": PEOPLE})


def publish(session: Session, sizes: dict[str, int]) -> Session:
    dataset = with_public_facts(session.dataset, False, sizes)
    return Session(session.kernel, session.name, session.token, Context(dataset, session.context.facts))


@pytest.fixture(scope="module")
def profiled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    place = tmp_path_factory.mktemp("predicted")
    copy_world(folder, place)
    return measure_profile(dither.connect(place / "dataset.yml"), Fraction(200), ["actions.seconds", "actions.price"])


def test_a_quote_over_units_counts_units_and_not_rows(sized: Session) -> None:
    """Regression: the error of the number of rows was put on a number of units."""
    quote = sized.quote(PER_PERSON, epsilon=1)
    (note,) = (note for note in quote.notes if "assume about" in note)
    assert re.search(r"assume about 20,000 users in each group, from the noisy number of users", note)
    found = re.search(r"that number may be off by about ([\d,.]+) users", note)
    rows = sized.quote("SELECT AVG(price) AS a FROM actions", epsilon=1)
    (other,) = filter(None, (re.search(r"off by about ([\d,.]+) rows", note) for note in rows.notes))
    assert found is not None and float(found[1].replace(",", "")) < float(other[1].replace(",", "")) / 10
    assert "users" in quote["a"].width and "rows" in rows["a"].width


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (PER_PERSON, PEOPLE),
        (PER_PERSON_AND_ACTION, 6 * PEOPLE),
        ("SELECT AVG(seconds) AS a FROM actions WHERE seconds > 300", ROWS),
        ("SELECT action, AVG(seconds) AS a FROM actions GROUP BY action", ROWS / 6),
        ("SELECT AVG(shares) AS a FROM actions JOIN urls USING (url_id)", ROWS),
    ],
)
def test_groups_after_a_subquery_for_each_person_have_a_row_for_each(query: str, rows: float, sized: Session) -> None:
    assert sized.quote(query, epsilon=1)["a"].rows == rows


def test_sizes_are_unknown_where_nothing_was_measured(blind: Session) -> None:
    question = parse_query(PER_PERSON, blind.dataset, "user")
    assert expected_rows(blind.context, question.relation, "user") is None
    assert blind.context.noisy_units() is None


@pytest.mark.parametrize(
    ("rows", "units", "told"), [(1, 6_000, 6_000), (9_000, 6_000, 9_000), (1, 300, 1), (800_000, 900_000, 800_000)]
)
def test_a_table_whose_size_is_hidden_has_a_row_for_each_of_many_units(
    rows: int, units: int, told: int, blind: Session
) -> None:
    """Sizes have noise of scale 300 in units and 76,800 in rows here."""
    small = publish(blind, {"actions": rows, "": units})
    question = parse_query("SELECT AVG(seconds) AS a FROM actions", blind.dataset, "user")
    assert expected_rows(small.context, question.relation, "user") == told


def test_quotes_assume_a_few_times_the_mean_number_of_rows(sized: Session, blind: Session) -> None:
    assert any("this quote assumes 800 rows" in note for note in sized.quote(COUNTED, epsilon=1).notes)
    relation = parse_query(COUNTED, blind.dataset, "user").relation
    unclear = publish(blind, {"users": 400, "actions": 8_000, "": 400})
    assert (
        typical_rows(unclear.context, relation, "user") == TYPICAL_ROWS == typical_rows(blind.context, relation, "user")
    )


def test_averages_of_counts_are_weighted_for_the_typical_count(sized: Session) -> None:
    """With weights for 16 rows, the noise of the number of people would be 50 times as large as it need be."""
    question, _ = Planner(sized.context, ContributionBound(auto=True)).bound_inner_rows(
        parse_query(PER_PERSON, sized.dataset, "user")
    )
    likely = Planner(sized.context, ContributionBound(auto=True)).likely_scope(question)
    assert bounds_of(expr.ColumnRef("n").domain(likely)) == (0, 800)


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    "query", [COUNTED, MEAN, f"{COUNTED} WHERE seconds > 300", "SELECT SUM(price) AS n FROM actions"]
)
def test_quotes_fall_as_epsilon_grows(query: str, profiled: Session) -> None:
    """They may rise a little where a larger loss first shows how people spread, and leads to another bound."""
    widths = [profiled.quote(query, epsilon=Fraction(2**place, 10))["n"].half_width for place in range(8)]
    assert all(later < 1.25 * earlier for earlier, later in pairwise(widths)) and widths[-1] < widths[0] / 10, widths


@pytest.mark.parametrize(
    "query",
    [
        f"{COUNTED} WHERE seconds > 50",
        "SELECT COUNT(price) AS n FROM actions WHERE price > 1",
        "SELECT SUM(price) AS n FROM actions",
        "SELECT SUM(seconds) AS n FROM actions WHERE seconds < 599",
        "SELECT COUNT(*) AS n FROM actions JOIN urls USING (url_id)",
    ],
)
def test_conditions_sums_and_public_joins_are_predicted_from_all_rows(query: str, profiled: Session) -> None:
    quote, every_row = profiled.quote(query, epsilon=4), profiled.quote(query.partition(" WHERE ")[0], epsilon=4)
    assert quote["n"].known and every_row["n"].half_width / 2 <= quote["n"].half_width <= 4 * every_row["n"].half_width
    said = any("as if every row met the conditions" in note for note in quote.notes)
    assert said == ("WHERE" in query or "JOIN" in query)


def test_only_steps_that_never_repeat_a_row_are_looked_through(blind: Session) -> None:
    joined = "SELECT COUNT(*) FROM actions a JOIN actions b ON a.user_id = b.user_id WHERE a.seconds > 3"
    relation = every_row(parse_query(joined, blind.dataset, "user").relation, blind.context)
    assert type(relation).__name__ == "UnitJoin"


def test_counts_of_present_values_take_their_bound_from_all_rows(
    profiled: Session, folder: Path, tmp_path: Path
) -> None:
    copy_world(folder, tmp_path)
    path = tmp_path / "dataset.yml"
    path.write_text(path.read_text().replace("max: 600}", "max: 600, nullable: true}"))
    session = measure_profile(dither.connect(path), Fraction(200), ["actions.seconds"])
    answer = session.sql(MEAN, epsilon=1)
    assert answer.releases[0].search_results is None
    assert [bound.at_most for tag, bound in answer.bounds.items() if tag == "mass"] == [True]


def test_the_least_loss_is_found_where_errors_rise_for_a_while() -> None:
    def fits(epsilon: Fraction) -> bool:
        return epsilon >= 2 or Fraction(9, 10) <= epsilon <= Fraction(6, 5)

    assert fits(Fraction(1)) and Fraction(9, 10) <= least_epsilon(fits, Fraction(1, 10**6), Fraction(1000)) < 1
    assert least_epsilon(lambda epsilon: epsilon >= 2, Fraction(1, 10**6), Fraction(1000)) == pytest.approx(2, rel=2e-3)


def test_intervals_of_what_cannot_be_negative_end_at_zero() -> None:
    noise = noise_of(calibrate("discrete_laplace", Pure(Fraction(1, 10)), Sensitivity.of(l0=1, linf=1)), Fraction(1))
    counts = Measured(np.array([5.0, 500.0, -4.0]), noise, least=0.0)
    found = estimate(NoisyCell(0), [counts], [], 0.95)
    assert found.low[0] == 0 < found.low[1] and found.low[2] == -4 and list(found.value) == [5, 500, -4]
    less = estimate(FunctionCall("neg", (NoisyCell(0),)), [counts], [], 0.95)
    assert less.high[0] == 0 and less.low[0] < -5


def test_opening_a_dataset_is_said_to_have_been_charged(folder: Path, tmp_path: Path) -> None:
    copy_world(folder, tmp_path)
    session = dither.connect(tmp_path / "dataset.yml")
    assert any("size_epsilon" in note for note in session.quote(COUNTED, epsilon=1).notes)
    session.sql(COUNTED, epsilon=1)
    assert not any("size_epsilon" in note for note in session.quote(COUNTED, epsilon=1).notes)
    assert abs((session.context.noisy_units() or 0) - 400) < 1 / float(session.dataset.size_epsilon) * 3 * 25
