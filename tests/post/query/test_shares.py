"""How a query's loss is divided: no column gets less than with the loss divided by the number of aggregates."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dither.post.contribution_bound import ContributionBound, OptimizeFor, judged_cells, row_bins
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import QueryPlan
from dither.post.query.request import search_share
from dither.post.query.shares import share_notes
from dither.post.session import Session
from dither.privacy.contribution_bound import bound_errors, fit_contributions
from dither.privacy.protocol import BoundRule

MIXED = "SELECT AVG(seconds) AS a, COUNT(*) AS c, STDDEV(price) AS d FROM actions"


def plan_of(query: str, session: Session) -> QueryPlan:
    planner = Planner(session.context, ContributionBound(auto=True))
    return planner.plan(parse_query(query, session.dataset, "user"))


def measured(plan: QueryPlan) -> dict[str, Fraction]:
    """The share of each measure, by the tag of its bound, and of each search."""
    tags = {source.measure_index: getattr(source, "bound_tag", "quantile") for source in plan.sources}
    rest = 1 - search_share(plan)
    answers = {str(tags[place]): rest * each.share for place, each in enumerate(plan.measures)}
    return answers | {f"search {search.tag}": search.share for search in plan.searches}


def test_shares_add_up_to_the_whole_loss(blind: Session) -> None:
    for query in (MIXED, "SELECT AVG(seconds), AVG(price) FROM actions", "SELECT COUNT(*), MEDIAN(price) FROM actions"):
        assert sum(measured(plan_of(query, blind)).values()) == 1


@pytest.mark.parametrize(
    ("alone", "tags"), [("COUNT(*)", ["mass"]), ("AVG(seconds)", ["mass", "values0"]), ("STDDEV(price)", ["mass"])]
)
def test_no_aggregate_gets_less_than_its_part_of_what_it_would_get_alone(
    alone: str, tags: list[str], blind: Session
) -> None:
    together, single = measured(plan_of(MIXED, blind)), measured(plan_of(f"SELECT {alone} FROM actions", blind))
    for tag in tags:
        assert together[tag] >= single[tag] / 3
        assert together[f"search {tag}"] >= single[f"search {tag}"] / 3


def test_a_single_aggregate_and_columns_of_one_measure_keep_their_shares(blind: Session) -> None:
    assert measured(plan_of("SELECT COUNT(*) FROM actions", blind)) == {
        "mass": Fraction(4, 5),
        "search mass": Fraction(1, 5),
    }
    assert share_notes(plan_of("SELECT COUNT(*) AS a, COUNT(*) * 2 AS b FROM actions", blind)) == ()


def test_the_answer_and_the_quote_say_which_share_each_column_got(session: Session) -> None:
    quote, answer = session.quote(MIXED, epsilon=1), session.sql(MIXED, epsilon=1)
    (said,) = [note for note in answer.notes if "what each column reads" in note]
    assert said in quote.notes and "32% for c" in said and "32% chooses bounds and centres" in said
    assert "columns share what several of them read" in said


def test_distinct_values_are_bounded_by_their_own_number(session: Session, blind: Session) -> None:
    """Six actions: nobody has more, so nothing is searched for. Links are many: the search counts distinct ones."""
    plan = plan_of("SELECT COUNT(DISTINCT action) AS n FROM actions", blind)
    assert not plan.searches and plan.measures[0].measure.sensitivity(blind.context, "user").l1 == 6
    (search,) = plan_of("SELECT COUNT(DISTINCT url_id) AS n FROM actions", blind).searches
    assert type(search.measure.child.child).__name__ == "GroupBy"  # type: ignore[attr-defined]
    given = Planner(blind.context, ContributionBound(max_rows=2))
    bounded = given.plan(parse_query("SELECT COUNT(DISTINCT action) AS n FROM actions", blind.dataset, "user"))
    assert bounded.measures[0].measure.sensitivity(blind.context, "user").l1 == 2
    answer = session.sql("SELECT COUNT(DISTINCT action) AS n FROM actions", epsilon=10_000)
    assert answer["n"].value == 6


def test_the_whole_answer_is_judged_between_large_and_equal_groups() -> None:
    judged = [judged_cells(groups, "answer") for groups in (1, 3, 6, 100, 6000, 20_000)]
    assert judged == [1, 5, 24, 9800, 16384, 20_000]
    assert all(groups <= judged_cells(groups, "answer") <= groups**2 for groups in range(1, 300))


def test_aims_go_from_the_total_to_the_smallest_groups() -> None:
    for groups in (2, 6, 16, 90, 200, 5000, 20_000, 1 << 20):
        aims: tuple[OptimizeFor, ...] = ("total", "answer", "typical", "smallest")
        judged = [judged_cells(groups, aim) for aim in aims]
        assert judged == sorted(judged) and judged[0] == 1


def test_small_groups_of_a_heavy_tail_are_not_drowned_in_noise() -> None:
    """Ninety groups of people with a Pareto tail, without any noise in the search.

    The bound for the total has a larger median relative error than the bound for the whole answer.
    """
    people = 9 * (1 - (np.arange(60_000) + 0.5) / 60_000) ** (-1 / 1.4)
    rows = np.minimum(np.floor(people), 5000)
    sizes = np.geomspace(1, 0.01, 90)
    groups = np.random.default_rng(7).choice(90, len(rows), p=sizes / sizes.sum())
    bins = row_bins(1)
    counts = np.bincount(np.searchsorted([bin + 1 for bin in bins[:-1]], rows, side="right"), minlength=len(bins))
    model = fit_contributions([bin + 1 for bin in bins[:-1]], counts, 5.0, 1, bins[-1])
    truth = np.bincount(groups, rows, 90)

    def typical_error(bound: int) -> float:
        clipped = np.bincount(groups, np.minimum(rows, bound), 90)
        back = clipped / clipped.sum() * (truth.sum() - clipped.sum())
        return float(np.median(np.hypot(clipped + back - truth, 1.75 * bound) / truth))

    def chosen(aim: OptimizeFor) -> int:
        rule = BoundRule(bins[1:], Fraction(7, 4), judged_cells(90, aim))
        return bins[int(np.argmin(bound_errors(model, bins, rule)))]

    assert typical_error(chosen("answer")) <= 0.7 * typical_error(chosen("total"))
