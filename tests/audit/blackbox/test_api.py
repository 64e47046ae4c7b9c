"""The black-box audit. Seeds are fixed, so each outcome repeats; comments give the rates over seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies

from dither import audit
from dither.audit import neighbours, zoo
from dither.audit.blackbox import api as blackbox
from dither.audit.blackbox import learners, search
from dither.audit.blackbox.events import ColumnScore, Event, OutcomeSpace, SampleTable
from dither.audit.blackbox.plan import make_evidence
from dither.audit.blackbox.plots import PlotRecorder
from dither.audit.blackbox.report import PrivacyResult, shorten
from dither.audit.claims import ceiling
from dither.audit.confidence import Counts, p_value, strength_lower
from dither.audit.sampling import as_outputs, takes_size
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi

STEP = 2.0**-20


class Laplace:
    """Laplace noise on a lattice: `scale` 1 keeps a claim of epsilon 1 on a count."""

    def __init__(self, scale: float, seed: int = 0) -> None:
        self.scale, self.rng, self.runs = scale, np.random.default_rng(seed), 0

    def __call__(self, value: float, size: int) -> Any:
        self.runs += size
        return np.rint((value + self.rng.laplace(scale=self.scale, size=size)) / STEP) * STEP


def test_a_wrong_scale_is_refuted_with_a_counterexample() -> None:
    mechanism = Laplace(0.5, seed=1)
    result = audit.privacy(mechanism, Pure(1), [(0.0, 1.0)], samples=40_000, seed=1)
    found = result.counterexample
    assert result.refuted
    assert found is not None
    assert 1.7 < result.epsilon_lower <= 2.0
    assert result.samples == mechanism.runs == 40_000
    assert found.bounds_a[0] > np.e * found.bounds_b[1]
    assert result.p_value < 1e-9
    fresh = [found.event.contains(mechanism(value, 20_000)).mean() for value in (found.a, found.b)]
    assert fresh == pytest.approx([found.probability_a, found.probability_b], abs=0.03)


def test_a_right_scale_is_not_refuted_and_power_is_stated() -> None:
    # At alpha 1e-9 a true claim is refuted with probability at most 1e-9.
    result = audit.privacy(Laplace(1.0), Pure(1), [(0.0, 1.0)], samples=40_000, alpha=1e-9, seed=1)
    assert not result.refuted
    assert result.counterexample is None
    assert 0.5 < result.epsilon_lower <= 1.0
    assert 1.0 < result.detectable < 2.0
    assert "would have been refuted with probability 0.9" in str(result)


@pytest.mark.tier("test")
def test_judging_the_searched_sample_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bug: without fresh runs for the test, a true claim is refuted."""
    # Pure noise in 40 columns: the best of many learned events looks far from fair on the sample that taught it.
    rng = np.random.default_rng(3)
    draws = {value: rng.integers(0, 40, size=(60, 40)) for value in (0.0, 1.0)}
    plan_args = {"samples": 1000, "alpha": 0.01, "seed": 1}

    def recycled(value: float, size: int) -> Any:
        return np.resize(draws[value], (size, 40))

    assert audit.privacy(recycled, Pure(0.01), [(0.0, 1.0)], **plan_args).refuted  # type: ignore[arg-type]

    def fresh(value: float, size: int) -> Any:
        return rng.integers(0, 40, size=(size, 40))

    # 1e-2 * 12 over seeds, none with these
    assert not any(
        audit.privacy(fresh, Pure(0.01), [(0.0, 1.0)], samples=1000, alpha=0.01, seed=seed).refuted for seed in range(3)
    )


@pytest.mark.parametrize(("name", "most"), [("laplace_double", 2000), ("laplace_quarter_more", 5000)])
def test_sequential_mode_stops_early(name: str, most: int) -> None:
    # Seeds are fixed. Medians of 11 other runs were 250 and 1,228 pairs; the rate over seeds is not known to 1e-9.
    member = zoo.member(name)
    found = [
        audit.privacy(member.mechanism(seed), member.claim, member.neighbours, samples=60_000, alpha=0.05,
                      mode="sequential", seed=seed)
        for seed in range(9)
    ]  # fmt: skip
    assert np.median([result.samples / 2 for result in found]) <= most
    assert sum(result.refuted for result in found) >= 8
    assert all(result.epsilon_lower <= member.true_epsilon for result in found if member.true_epsilon)


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
@pytest.mark.parametrize(
    ("claim", "sigma", "refuted"),
    [
        (Approximate(1, 1e-5), 4.0, False), (Approximate(1, 1e-5), 1.0, True), (ZCDP("1/8"), 2.0, False),
        (ZCDP("1/8"), 1.0, True), (Renyi(((2, "1/4"), (8, 1))), 2.0, False), (Renyi(((2, "1/4"), (8, 1))), 1.0, True),
    ],
)  # fmt: skip
def test_every_kind_of_claim(claim: Loss, sigma: float, refuted: bool, mode: str) -> None:
    # True claims: alpha 1e-9.
    rng = np.random.default_rng(5)

    def gaussian(value: float, size: int) -> Any:
        return np.rint((value + sigma * rng.normal(size=size)) / STEP) * STEP

    samples, alpha = (30_000, 1e-3) if refuted else (8_000, 1e-9)  # a true claim uses up all of its samples
    result = audit.privacy(gaussian, claim, [(0.0, 1.0)], samples=samples, alpha=alpha, mode=mode, seed=2)
    assert result.refuted is refuted


def test_floating_point_gives_itself_away_by_its_bits() -> None:
    rng = np.random.default_rng(6)

    def library(value: float, size: int) -> Any:
        return value + rng.laplace(size=size)

    result = audit.privacy(library, Pure(1), [(0.0, 1.0)], samples=20_000, seed=1)
    assert result.refuted
    assert "bit" in str(result.evidence.event)
    assert result.evidence.probability_b == 0
    # alpha 1e-9
    assert not audit.privacy(library, Pure(1), [(0.0, 1.0)], samples=20_000, alpha=1e-9, bits=False, seed=1).refuted


def category(value: int, rng: np.random.Generator) -> str:
    return str(rng.choice(["red", "green", "blue"], p=[0.6, 0.3, 0.1] if value else [0.1, 0.3, 0.6]))


def ragged(value: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return (*["below"] * int(rng.geometric(0.3 + 0.5 * value)), float(rng.integers(5)))


def keyed(value: int, rng: np.random.Generator) -> dict[str, int]:
    return {"always": int(rng.integers(3))} | ({"rare": 1} if value and rng.random() < 0.3 else {})


def chosen(value: int, rng: np.random.Generator) -> frozenset[str]:
    return frozenset(name for name in ("a", "b") if rng.random() < 0.2 + 0.6 * value)


def vector(value: int, rng: np.random.Generator) -> Any:
    return value * np.array([0.0, 1.0, 0.0]) + np.rint(rng.laplace(scale=0.4, size=3) * 1024) / 1024


def yes_or_no(value: int, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.1 + 0.8 * value)


@pytest.mark.tier("test")
@pytest.mark.parametrize("draw", [category, ragged, keyed, chosen, vector, yes_or_no])
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_outputs_of_any_shape(draw: Any, mode: str) -> None:
    # True claims: alpha 1e-9, and each law's loss is below 3 or the event below is the claim's own.
    rng = np.random.default_rng(7)
    result = audit.privacy(
        lambda value: draw(value, rng), Pure(1), [(0, 1)], samples=3000, alpha=1e-3, mode=mode, seed=3
    )
    assert result.refuted
    same = audit.privacy(lambda value: draw(0, rng), Pure(0.1), [(0, 1)], samples=3000, alpha=1e-9, mode=mode, seed=3)
    assert not same.refuted


def test_the_best_pair_is_found_among_many() -> None:
    rng = np.random.default_rng(8)

    def one_bad_input(value: int, size: int) -> Any:
        return rng.integers(0, 10, size) + (100 * (rng.random(size) < 0.2) if value == 7 else 0)

    pairs = [(n, n + 1) for n in range(8)]
    for mode in ("fixed", "sequential"):
        result = audit.privacy(one_bad_input, Pure(1), pairs, samples=40_000, mode=mode, seed=1)
        assert result.refuted
        assert 7 in (result.evidence.a, result.evidence.b)


def test_neighbours_from_hypothesis() -> None:
    pairs = strategies.integers(0, 5).map(lambda n: (n, n + 1))
    drawn = neighbours.from_strategy(pairs, 20)
    assert drawn == neighbours.from_strategy(pairs, 20)
    assert len(drawn) > 1
    assert all(b == a + 1 for a, b in drawn)


def test_standard_neighbours_are_neighbours() -> None:
    assert [len(b) - len(a) for a, b in neighbours.tiny()] == [1, 1, 1]
    assert all(np.max(np.abs(a - b)) == 1 for a, b in neighbours.all_differ(6))
    assert all(np.abs(a - b).sum() == 1 for a, b in neighbours.one_differs(6))
    assert all(len(b) == len(a) + 1 for a, b in neighbours.records())


def _remember(seen: list[str], stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total
    seen.append(stage)


def test_progress_goes_through_every_stage() -> None:
    for mode, stages in (("fixed", {"explore", "search", "judge"}), ("sequential", {"explore", "bet"})):
        seen: list[str] = []
        remember = partial(_remember, seen)
        audit.privacy(Laplace(1), Pure(1), [(0.0, 1.0), (5.0, 6.0)], samples=2000, mode=mode, progress=remember)
        assert set(seen) == stages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 10}, "at least 1000"),
        ({"alpha": 0.9}, "alpha"),
        ({"mode": "quick"}, "fixed"),
        ({"neighbours": []}, "pair"),
        ({"neighbours": 5}, "pair"),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"samples": True}, "samples"),
        ({"alpha": "x"}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        audit.privacy(Laplace(1), Pure(1), **({"neighbours": [(0.0, 1.0)]} | options))


def test_a_mechanism_that_returns_too_few_outputs_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="vectorised=False"):
        audit.privacy(lambda value, size: np.zeros(1), Pure(1), [(0, 1)])
    with pytest.raises(InvalidParameter, match="callable"):
        audit.privacy(3, Pure(1), [(0, 1)])  # type: ignore[arg-type]


def test_how_a_callable_is_called() -> None:
    assert takes_size(lambda value, size: None)
    assert takes_size(lambda value, n=3: None)
    assert not takes_size(lambda value: None)
    assert not takes_size(lambda value, scale=1.0: None)
    assert as_outputs([1, 2]).tolist() == [1, 2]
    assert as_outputs(["a", "b"]) == ["a", "b"]


@pytest.fixture(scope="module")
def refuted() -> PrivacyResult:
    return audit.privacy(Laplace(0.5), Pure(1), [(0.0, 1.0)], samples=20_000, seed=1)


def test_the_report_is_a_page_with_plots(refuted: PrivacyResult, tmp_path: Any) -> None:
    page = refuted.report(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text() == page
    assert page.count("<svg") == 2
    assert "refuted" in page
    assert f"<td>{refuted.evidence.hits[0]:,} of {refuted.evidence.runs[0]:,} runs, a share of" in page
    assert "http" not in page


def test_the_report_is_json_too(refuted: PrivacyResult, tmp_path: Any) -> None:
    refuted.report(tmp_path / "audit.json")
    read = json.loads((tmp_path / "audit.json").read_text())
    assert read["refuted"] is True
    assert read["claim"] == {"kind": "pure", "epsilon": "1"}
    found = read["evidence"]
    assert found["probability_a"] > found["probability_b"]
    assert [hits / runs for hits, runs in zip(found["hits"], found["runs"], strict=True)] == pytest.approx(
        [found["probability_a"], found["probability_b"]]
    )
    with pytest.raises(InvalidParameter, match="html"):
        refuted.report(kind="pdf")


def test_plain_events_are_described_as_intervals(refuted: PrivacyResult) -> None:
    space = OutcomeSpace.learn(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 2.0]))
    from dither.audit.blackbox.events import ColumnScore, Event

    event = Event(space, ColumnScore(0, np.arange(256.0)), 3.0, True)
    assert str(event) == "output >= 1.0"
    assert event.contains(np.array([0.0, 1.0, 5.0])).tolist() == [False, True, True]


@pytest.mark.parametrize("narrow", [True, False])
def test_samples_are_divided_as_stated(narrow: bool) -> None:
    for pairs, samples in ((5, 1_000_000), (1, 1_000_000), (30, 4000), (8, 10**9)):
        plan = blackbox.AuditPlan(None, Pure(1), ((0, 1),) * pairs, samples, 0.01, np.random.default_rng(), print)  # type: ignore[arg-type]
        rounds = plan.rounds(narrow)
        assert sum(budget for _, budget in rounds) <= plan.search_share(narrow) * samples <= 0.5 * samples
        assert rounds[0][0] == pairs
        assert rounds[-1][0] == 1


@pytest.mark.tier("test")
def test_outputs_that_are_one_number_leave_more_for_the_judgement() -> None:
    for shape, narrow in (((), True), ((3,), False)):
        rng, asked = np.random.default_rng(26), list[int]()

        def noisy(value: int, size: int, rng: Any = rng, asked: Any = asked, shape: Any = shape) -> Any:
            asked.append(size)
            return np.rint(64 * rng.laplace(0.5 * value, 1, (size, *shape))) / 64

        found = audit.privacy(noisy, Pure("1/10"), [(0, 1)], samples=40_000, seed=1)
        plan = blackbox.AuditPlan(None, Pure(1), ((0, 1),), 40_000, 0.01, rng, print)  # type: ignore[arg-type]
        assert sum(asked) == found.samples == 40_000
        assert sum(asked[:4]) == 2 * 50 + 2 * (plan.rounds(narrow)[0][1] // 2)


@pytest.mark.tier("test")
@pytest.mark.parametrize("columns", [1, 2])
def test_the_last_round_leaves_out_the_runs_that_chose_the_pair_if_outputs_are_long(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = blackbox._search_pair, list[tuple[int, int]]()

    def record(plan: Any, current: Any, batch: Any, *rest: Any) -> Any:
        looks.append((len(current.outputs[0]) if current.outputs else 0, len(batch[0])))
        return real(plan, current, batch, *rest)

    monkeypatch.setattr(blackbox, "_search_pair", record)
    rng = np.random.default_rng(28)

    def noisy(value: int, size: int) -> Any:
        return rng.normal(0.1 * value, 1, (size, columns))

    audit.privacy(noisy, Pure(1), [(0, 1), (2, 3), (4, 5), (6, 7)], samples=8000, seed=1)
    assert len(looks) == 4 + 2 + 2 + 1
    seen, added = looks[-2]
    assert looks[-1][0] == (seen + added if columns == 1 else added)


def sides_and_candidates(rng: np.random.Generator) -> tuple[list[Any], list[search.CandidateEvent]]:
    """Outputs of six numbers on two inputs, and the events that a quick search finds, best first."""
    sides = [np.rint(1024 * rng.laplace(shift, 1, (5000, 6))) / 1024 for shift in (0.0, 0.3)]
    space = OutcomeSpace.learn(*sides)
    sample = SampleTable(space, *(space.encode(side) for side in sides))
    value = search.worth_function(Pure(0.1), 10_000, 0.05)
    return sides, search.candidate_events(
        space, search.try_scores(sample, learners.first_round_learners(space)), value, *search.FINAL_CAUTION[False]
    )


@pytest.mark.tier("test")
def test_one_event_alone_is_judged() -> None:
    """The named bug: the better of two events decides without a correction, or the event shown decides."""
    rng = np.random.default_rng(21)
    sides, found = sides_and_candidates(rng)
    judged = [found[0], next(lead for lead in found if lead.checkable_by_hand)]
    plan = blackbox.AuditPlan(None, Pure("1/10"), ((0, 1),), 10_000, 0.05, rng, print)  # type: ignore[arg-type]
    tracer = PlotRecorder(judged[0])
    tracer.add(*sides)
    weak, strong = Counts(520, 5000, 500, 5000), Counts(900, 5000, 500, 5000)
    for counted, refuted in (([weak, strong], False), ([strong, weak], True)):
        result = blackbox._verdict(plan, (0, 1), judged, counted, tracer, 0.0)
        assert result.refuted is refuted
        assert result.p_value == p_value(counted[0], ceiling(plan.claim, 0.1))
        assert result.epsilon_lower == strength_lower(counted[0], plan.claim, 0.05)
        assert result.evidence.event is judged[0].event
    both = blackbox._verdict(plan, (0, 1), judged, [strong, strong], tracer, 0.0)
    assert both.refuted and both.evidence.event is judged[1].event
    weaker = Counts(880, 5000, 500, 5000)
    other = blackbox._verdict(plan, (0, 1), judged, [strong, weaker], tracer, 0.0)
    assert other.evidence.event is judged[1].event  # with what it says by itself
    assert other.evidence.p_value == p_value(weaker, ceiling(plan.claim, 0.1)) > other.p_value


@pytest.mark.tier("test")
def test_the_best_learners_on_a_part_learn_from_everything() -> None:
    rng = np.random.default_rng(27)
    sides = [rng.laplace(shift, 1, (3000, 4)) for shift in (0.0, 0.5)]
    space = OutcomeSpace.learn(*sides)
    sample, value = (
        SampleTable(space, *(space.encode(side) for side in sides)),
        search.worth_function(Pure(0.1), 10_000, 0.05),
    )
    teachers = learners.last_round_learners(space)
    assert search.shortlist(sample, teachers, value) == teachers
    sample = SampleTable(space, *(side[np.arange(search.SHORT_ROWS + 1) % 3000] for side in (sample.a, sample.b)))
    kept = search.shortlist(sample, [*[lambda given: None] * search.SHORTLIST, *teachers[:3]], value)
    assert len(kept) == search.SHORTLIST and kept[-3:] == teachers[:3]
    # Whose score tells most of all outputs is kept too, however little its best event looks worth.
    telling = [partial(learners.sum_of_tables, columns=space.columns_in("base"), bins=3), *teachers[:3]]
    kept = search.shortlist(sample, telling * search.SHORTLIST, lambda p, q: -(p + q))
    assert telling[0] in kept[: search.MAX_BY_GAIN] and len(kept) <= search.SHORTLIST + search.MAX_BY_GAIN


def test_an_input_that_pairs_share_is_run_once_a_round() -> None:
    calls: list[tuple[int, int]] = []
    rng = np.random.default_rng(10)

    def counted(value: Any, size: int) -> Any:
        calls.append((int(value[0]), size))
        return rng.integers(0, 4, size)

    zero = [0]
    audit.privacy(counted, Pure(1), [(zero, [1]), (zero, [2]), (zero, [3]), (zero, [4])], samples=20_000, seed=1)
    assert calls[:2] == [(0, 50), (1, 50)]  # a glance
    first = [value for value, _ in calls[2:7]]
    assert sorted(first) == [0, 1, 2, 3, 4]
    assert sum(size for _, size in calls) == 20_000


def test_the_input_on_which_the_event_is_rarer_has_more_of_the_judgement() -> None:
    runs = {0: 0, 1: 0}
    rng = np.random.default_rng(11)

    def seldom(value: int, size: int) -> Any:
        runs[value] += size
        return rng.random(size) < (0.3 if value else 0.01)

    # By Neyman's rule 0.01 has 0.76 of the runs of the judgement, 0.3 the rest. Equal shares bound epsilon by 3.2 only.
    found = audit.privacy(seldom, Pure(1), [(0, 1)], samples=100_000, seed=1)
    assert found.refuted
    assert runs[0] > 1.8 * runs[1]
    assert runs[0] + runs[1] == found.samples == 100_000
    assert 3.28 < found.epsilon_lower < np.log(30)


def test_categories_are_called_by_their_names() -> None:
    """The named bug: codes are assigned anew, and names are listed in the order in which outputs came."""
    rng = np.random.default_rng(3)
    names = np.array(["gnu", "hen", "cat", "emu", "fox", "dog"])

    def leaves(value: int, size: int) -> Any:
        place = rng.integers(0, 6, size)
        leaving = (rng.random(size) < 0.9 * value) & np.isin(names[place], ["emu", "hen"])
        return list(names[np.where(leaving, 5, place)])

    found = audit.privacy(leaves, Pure(1), [(0, 1)], samples=20_000, seed=1)
    said = str(found.evidence.event)
    assert found.refuted and said.startswith(("output is ", "output in (")) and "'hen'" in said
    assert [name in said for name in names] == list(found.evidence.event.contains(list(names)))
    many = [f"c{place:02d}" for place in rng.permutation(30)]
    space = OutcomeSpace.learn(many, many)
    last = Event(space, ColumnScore(0, np.arange(256.0)), 30.0, True)
    first = replace(last, threshold=29.0, above=False)
    assert str(last) == "output in ('c28', 'c29')" and str(first) == "output not in ('c28', 'c29')"
    for event, inside in ((last, [True, True, False, False]), (first, [False, False, True, True])):
        assert list(event.contains(["c28", "c29", "c27", "never seen"])) == inside
    assert str(replace(first, threshold=3.0)).endswith("'c13', 16 more)")
    mixed = OutcomeSpace.learn([["b", 1.0], ["a", 2.0]], [["c", 3.0], ["a", 4.0]])
    kind = next(feature.label for feature in mixed.encoder.features if feature.label.codes)
    assert [kind.codes[code] for code in range(3)] == ["'a'", "'b'", "'c'"]
    assert list(mixed.encoder.codes.values()) == [0, 1, 2]


def test_examples_are_shown_of_events_without_a_description() -> None:
    sides, found = sides_and_candidates(np.random.default_rng(21))
    learned = next(lead for lead in found if not lead.checkable_by_hand and lead.swapped)
    plain = next(lead for lead in found if lead.checkable_by_hand)
    tracer = PlotRecorder(learned)
    tracer.add(*sides)
    likelier = sides[int(learned.swapped)]
    inside = {shorten(row) for row in likelier[learned.event.contains(likelier)]}
    assert len(tracer.examples) == 8 and set(tracer.examples) <= inside
    counts = Counts(900, 5000, 500, 5000)
    shown = make_evidence((0, 1), learned, counts, 0.01, 0.05, tracer.examples)
    assert shown.examples == tracer.examples and tracer.examples[2] in str(shown)
    assert (shown.hits, shown.runs) == ((900, 500), (5000, 5000))
    assert make_evidence((0, 1), plain, counts, 0.01, 0.05, tracer.examples).examples == ()


def test_the_kind_of_test_is_chosen_before_the_counts() -> None:
    """The named bug: the sharper of two tests is taken once the counts are known."""
    thought = search.CandidateEvent(None, False, 0.0, 0.03, 0.01)  # type: ignore[arg-type]
    assert blackbox._to_counts(Pure(1), thought, (5000, 5000), (10_000, 10_000)).rare
    assert not blackbox._to_counts(Pure(1), replace(thought, p=0.031), (5, 0), (10_000, 10_000)).rare
    for claim in (Approximate(1, "1/1000"), ZCDP(1), Renyi(((2, 1),))):  # their ceilings are no multiples
        assert not blackbox._to_counts(claim, thought, (5, 0), (10_000, 10_000)).rare


def test_a_rare_event_is_judged_by_how_its_hits_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, judged, count = np.random.default_rng(5), list[Counts](), blackbox._to_counts
    monkeypatch.setattr(blackbox, "_to_counts", lambda *given: judged.append(count(*given)) or judged[-1])

    def seldom(value: int, size: int) -> Any:
        return rng.random(size) < (0.012 if value else 0.0006)

    found = audit.privacy(seldom, Pure(1), [(0, 1)], samples=20_000, alpha=0.05, seed=1)
    assert found.refuted and judged[0].rare
    assert found.epsilon_lower == strength_lower(judged[0], Pure(1), 0.05)
    assert found.epsilon_lower > strength_lower(replace(judged[0], rare=False), Pure(1), 0.05) + 0.05


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_true_claims_are_seldom_refuted(mode: str, tier: Any) -> None:
    """At alpha 0.01, over all members whose claim is true (most of them exactly)."""
    # P[Binomial(20, 0.01) > 6] < 1e-9, P[Binomial(200, 0.01) > 14] < 1e-8; expected are far fewer.
    repeats, most = tier.pick(quick=0, test=(20, 6), deep=(200, 14))
    members = [member for member in zoo.catalogue() if member.private]
    refuted = 0
    for seed in range(repeats):
        member = members[seed % len(members)]
        result = audit.privacy(
            member.mechanism(seed), member.claim, member.neighbours[:2], samples=3000, alpha=0.01, mode=mode, seed=seed
        )
        refuted += result.refuted
    assert refuted <= most


@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_outputs_whose_length_differs_are_told_apart(mode: str) -> None:
    """The named bug: arrays of different lengths on the two inputs could not be read together."""
    rng = np.random.default_rng(23)

    def sizes(data: list[float]) -> Any:
        return np.array(data) + rng.normal(size=len(data))

    result = audit.privacy(sizes, Pure(1), [([1.0], [1.0, 1.0])], samples=4000, mode=mode, seed=3)
    assert result.refuted


@pytest.mark.tier("test")
def test_a_weak_difference_is_judged_by_what_differs_most() -> None:
    """If the runs are too few for any bound, the certain event must not be chosen although it is worth as much."""
    for seed in range(4):
        rng = np.random.default_rng([24, seed])

        def answer(value: int, size: int, rng: np.random.Generator = rng) -> Any:
            return (rng.random(size) < (0.41 if value else 0.29)).astype(int)

        result = audit.privacy(answer, Pure("1/10"), [(0, 1)], samples=2000, alpha=0.05, seed=seed)
        assert 0 < result.evidence.probability_a < 1


@pytest.mark.parametrize("samples", [5e3, None, "many"])
def test_samples_are_a_whole_number(samples: Any) -> None:
    with pytest.raises(InvalidParameter, match="whole number"):
        audit.privacy(lambda value, size: np.zeros(size), Pure(1), [(0, 1)], samples=samples)


def test_outputs_as_large_as_floats_can_be_are_drawn() -> None:
    """From -1e308 to 1e308 the difference overflows, and the report still has its plots."""
    rng = np.random.default_rng(48)

    def huge(value: int, size: int) -> np.ndarray:
        return np.asarray(1.7e308 * np.clip((3 * value + rng.laplace(size=size)) / 5, -1, 1))

    result = audit.privacy(huge, Pure(1), [(0, 1)], samples=4000, seed=1, vectorised=True)
    assert result.refuted
    assert len(result.plots.bin_starts) > 2 and np.all(np.diff(result.plots.bin_starts) > 0)
    page = result.report()
    assert "<svg" in page and "nan" not in page.split("<svg", 1)[1].split("</svg>")[0]
