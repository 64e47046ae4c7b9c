"""An anytime-valid audit: it bets against the claim until its wealth reaches 1/alpha or the samples run out.

Each run is on an input chosen by a fair coin. Under a pure claim, the coin can be guessed from the output with
probability at most e^epsilon / (1 + e^epsilon). A bet that breaks even at exactly that probability is fair or worse, so
wealth is a supermartingale, and by Ville's inequality it reaches 1/alpha with probability at most alpha, over all
rounds, pairs and bets together. Bets against claims other than pure ones are on events. Every bet is learned from
earlier runs only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy import special

from dither.audit.blackbox import learners, search
from dither.audit.blackbox.events import Encoded, OutcomeSpace, SampleTable, Score
from dither.audit.blackbox.learners import Learner
from dither.audit.blackbox.plan import AuditPlan, make_evidence, make_power
from dither.audit.blackbox.plots import PlotRecorder
from dither.audit.blackbox.report import Plots, PrivacyResult
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.claims import MAX_STRENGTH, Floats, compose_steps, strength, tangent
from dither.audit.confidence import Counts
from dither.audit.neighbours import Pair, step_count
from dither.loss import Approximate, Pure

FIRST_RUNS = 200
GROWTH = 1.3  # a bet is learned again once the runs of its pair have grown by this factor
LARGEST_BATCH = 100_000
# The strengths to bet against, as multiples of the claimed epsilon.
MULTIPLES = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])
STAKES = (0.5, 1.0)  # shares of the best stake
SLOTS = 2 * len(STAKES)  # two bets, each with every stake


@dataclass
class PairHistory:
    """All runs of one pair so far, the number of steps between its inputs, and the current bet."""

    space: OutcomeSpace
    a: Encoded
    b: Encoded
    steps: int = 1
    learned_at: int = 0
    bet: Bet | None = None

    @property
    def runs(self) -> int:
        """The number of runs so far."""
        return len(self.a) + len(self.b)

    @property
    def sample(self) -> SampleTable:
        """All runs so far."""
        return SampleTable(self.space, self.a, self.b)

    def add(self, a: Encoded, b: Encoded) -> None:
        """Add a batch of runs."""
        self.a, self.b = _concatenate(self.a, a), _concatenate(self.b, b)


@dataclass(frozen=True)
class Bet:
    """A bet on the next runs of a pair, by scores or else by events, and its expected growth for each run."""

    scores: tuple[Score, ...]
    candidates: tuple[CandidateEvent, ...]
    growth: float


@dataclass
class BettingAccount:
    """The log-wealth of betting against each strength, in slots that start with equal shares.

    `peak` is the largest log of the mean wealth so far. `implied_epsilon` is the least epsilon that was bet against in
    place of a claim of another kind.
    """

    strengths: Floats
    alpha: float
    wealth: Floats = field(init=False)
    peak: Floats = field(init=False)
    implied_epsilon: float = inf

    def __post_init__(self) -> None:
        self.wealth = np.zeros((len(self.strengths), SLOTS))
        self.peak = np.zeros(len(self.strengths))

    def add(self, gains: Floats) -> None:
        """Add the log-returns of a batch."""
        self.wealth += gains
        self.peak = np.maximum(self.peak, special.logsumexp(self.wealth, axis=1) - log(SLOTS))

    @property
    def refuted(self) -> Any:
        """A boolean for each strength: True if its wealth ever reached 1/alpha."""
        return self.peak >= -log(self.alpha)

    @property
    def strength_lower(self) -> float:
        """The largest strength such that it and all smaller ones are refuted; 0 if none is."""
        count = int(np.argmin(np.append(self.refuted, False)))
        return float(self.strengths[count - 1]) if count else 0.0


def audit_sequential(plan: AuditPlan, started: float) -> PrivacyResult:
    """Run the audit that stops as soon as the claim is refuted."""
    histories = [_first_runs(plan, place) for place in range(len(plan.pairs))]
    used = sum(history.runs for history in histories) + plan.swept
    account = BettingAccount(_strengths(plan), plan.alpha)
    claimed = int(np.flatnonzero(account.strengths == strength(plan.claim))[0])
    counts_by_pair: dict[int, FreshCounts] = {}
    chosen = 0
    while used < plan.samples and not account.refuted[claimed]:
        chosen = _choose_pair(plan, histories)
        fresh = counts_by_pair.setdefault(chosen, FreshCounts(histories[chosen]))
        used += _run_round(plan, histories[chosen], plan.pairs[chosen], account, fresh, plan.samples - used)
        plan.progress("bet", min(used, plan.samples), plan.samples)
    best = chosen if account.refuted[claimed] else _choose_pair(plan, histories)
    fresh = counts_by_pair.setdefault(best, FreshCounts(histories[best]))
    return _result(plan, plan.pairs[best], histories[best], account, claimed, fresh, used, started)


@dataclass
class FreshCounts:
    """The hits of the event to report, in runs after it was chosen; they do not affect the verdict."""

    history: PairHistory
    candidate: CandidateEvent | None = None
    hits: Floats = field(default_factory=lambda: np.zeros(2))
    runs: Floats = field(default_factory=lambda: np.zeros(2))
    recorder: PlotRecorder | None = None

    def show(self, candidate: CandidateEvent) -> None:
        """Switch to a new event and count from zero, unless the current counts cover two thirds of the runs."""
        if self.candidate is None or self.runs.sum() < 2 * self.history.runs / 3:
            bits_event = candidate.event if candidate.event.reads_bits else None
            self.candidate, self.recorder = candidate, PlotRecorder(candidate, bits_event)
            self.hits, self.runs = np.zeros(2), np.zeros(2)

    def add(self, a: Any, b: Any) -> None:
        """Count a batch."""
        if self.candidate is not None and self.recorder is not None:
            self.hits += [self.candidate.event.contains(side).sum() if len(side) else 0 for side in (a, b)]
            self.runs += [len(a), len(b)]
            self.recorder.add(a, b)


def _strengths(plan: AuditPlan) -> Floats:
    """Return the strengths to bet against: multiples of the claimed epsilon, or just the claim if it has none."""
    stated = strength(plan.claim)
    if not isinstance(plan.claim, Pure | Approximate):
        return np.array([stated])
    scaled = MULTIPLES * stated if stated > 0 else np.concatenate([[0.0], MULTIPLES])
    return np.unique(np.append(scaled, stated))


def _first_runs(plan: AuditPlan, place: int) -> PairHistory:
    """Draw the first runs of a pair, on which nothing is bet."""
    runs = max(50, min(FIRST_RUNS, plan.samples // (10 * len(plan.pairs))))
    plan.progress("explore", place, len(plan.pairs))
    a, b = plan.sampler.draw_pair(*plan.pairs[place], (runs, runs), plan.rng)
    space = OutcomeSpace.learn(a, b, plan.sampler.timed, plan.bits)
    return PairHistory(space, space.encode(a), space.encode(b), step_count(plan.pairs[place]))


def _choose_pair(plan: AuditPlan, histories: list[PairHistory]) -> int:
    """Choose the pair whose bet has the largest expected growth; if none is positive, the one with the fewest runs."""
    for history in histories:
        if history.bet is None or history.runs > GROWTH * history.learned_at:
            history.bet, history.learned_at = _learn_bet(plan, history), history.runs
    growth = [history.bet.growth if history.bet else 0.0 for history in histories]
    if max(growth) > 0:
        return int(np.argmax(growth))
    return int(np.argmin([history.runs for history in histories]))


def _run_round(
    plan: AuditPlan, history: PairHistory, pair: Pair, account: BettingAccount, fresh: FreshCounts, left: int
) -> int:
    """Draw one batch, settle the bets and add the batch to the history; return its size."""
    size = int(min(max(100, 0.15 * history.runs), LARGEST_BATCH, max(left, 2)))
    first = int(plan.rng.binomial(size, 0.5))
    a, b = plan.sampler.draw_pair(*pair, (first, size - first), plan.rng)
    encoded = (
        history.space.encode(a) if first else history.a[:0],
        history.space.encode(b) if size > first else history.b[:0],
    )
    bet = history.bet
    if bet is not None:
        fresh.show(bet.candidates[0])
        fresh.add(a, b)
        account.add(_batch_returns(plan, account.strengths, bet, *encoded, history.steps))
        account.implied_epsilon = min(account.implied_epsilon, _least_implied_epsilon(plan, bet, history.steps))
    history.add(*encoded)
    return size


def _learn_bet(plan: AuditPlan, history: PairHistory) -> Bet:
    """Learn the two best bets: compare learners on the late part of the history, then train on all of it."""
    sample = history.sample
    middle_a, middle_b = (3 * len(sample.a)) // 5, (3 * len(sample.b)) // 5
    early = SampleTable(sample.space, sample.a[:middle_a], sample.b[:middle_b])
    late = SampleTable(sample.space, sample.a[middle_a:], sample.b[middle_b:])
    worth = search.worth_function(plan.claim, max(2 * len(sample.a), 200), plan.alpha, history.steps)
    chosen = _learners(history)
    trials = search.try_scores(sample, chosen)
    events = search.candidate_events(sample.space, trials, worth, search.CAUTION, search.SEQUENTIAL_CAUTION)
    candidates = tuple(search.distinct_candidates(events, 2))
    if not isinstance(plan.claim, Pure):
        return Bet((), candidates, _event_growth(plan, candidates[0], history.steps))
    epsilon = history.steps * strength(plan.claim)
    early_scores = [learner(early) for learner in chosen]
    growth = [_score_growth(score, late, epsilon) if score else -inf for score in early_scores]
    order = np.argsort(growth)[::-1][:2]
    scores = [chosen[index](sample) for index in order]
    return Bet(tuple(score for score in scores if score), candidates, float(growth[order[0]]))


def _learners(history: PairHistory) -> list[Learner]:
    """Return the fast learners, and with enough runs polynomial surfaces and trees too."""
    chosen = learners.small_sample_learners(history.space)
    if history.runs < 4000:
        return chosen
    pairs = learners.feature_pairs(history.space)
    surfaces = [partial(learners.polynomial_surface, pair=pair, degree=2) for pair in pairs]
    return [*chosen, *surfaces, partial(learners.trees, rows=40_000)]


def _score_growth(score: Score, late: SampleTable, epsilon: float) -> float:
    """Return the average log-return of betting the full stake by this score."""
    total = _total_log_return((score.evaluate(late.a), score.evaluate(late.b)), epsilon, 1.0)
    return float(total) / max(len(late.a) + len(late.b), 1)


def _total_log_return(log_ratios: tuple[Floats, Floats], epsilon: float, stake: float) -> Any:
    """Return the sum of the log-returns over the outputs of both inputs."""
    on_first, on_second = log_ratios
    return _log_returns(on_first, epsilon, stake, True).sum() + _log_returns(on_second, epsilon, stake, False).sum()


def _log_returns(log_ratio: Floats, epsilon: float, stake: float, first: bool) -> Floats:
    """Return the log-return of a bet on the coin for each output, given its estimated log-likelihood ratio.

    `first` is True for outputs of the first input. Nothing is bet where the ratio is within e^epsilon.
    """
    if epsilon > MAX_STRENGTH:  # no sample can show a larger ratio
        return np.zeros(len(log_ratio))
    right_chance, wrong_chance = special.expit(epsilon), special.expit(-epsilon)
    edge = np.maximum(wrong_chance - special.expit(-np.abs(log_ratio)), 0.0)
    right = (log_ratio > 0) == first
    result: Floats = np.where(right, np.log1p(stake * edge / right_chance), np.log1p(-stake * edge / wrong_chance))
    return result


def _batch_returns(plan: AuditPlan, strengths: Floats, bet: Bet, a: Encoded, b: Encoded, steps: int = 1) -> Floats:
    """Return the log-returns of a batch for each strength and slot; a slot without a bet returns 0."""
    returns = np.zeros((len(strengths), SLOTS))
    for place, score in enumerate(bet.scores):
        log_ratios = score.evaluate(a), score.evaluate(b)
        for row, epsilon in enumerate(steps * strengths):
            for column, stake in enumerate(STAKES):
                returns[row, place * len(STAKES) + column] = _total_log_return(log_ratios, epsilon, stake)
    if not bet.scores:
        for place, candidate in enumerate(bet.candidates[:2]):
            slots = returns[:, place * len(STAKES) : (place + 1) * len(STAKES)]
            _event_returns(plan, strengths, candidate, a, b, slots, steps)
    return returns


def _event_returns(
    plan: AuditPlan, strengths: Floats, candidate: CandidateEvent, a: Encoded, b: Encoded, returns: Floats, steps: int
) -> None:
    """Write the log-returns of betting that an event is too likely into `returns`.

    The bet pays 2[a, in] - 2 e^epsilon [b, in] - delta, whose mean is at most 0 under the claim.
    """
    first, second = (_in_event(candidate, side).sum() for side in ((b, a) if candidate.swapped else (a, b)))
    outside = len(a) + len(b) - first - second
    for row, at in enumerate(strengths):
        epsilon, extra = _implied_loss(plan, candidate, float(at), steps)
        best = _best_stake(candidate.p, candidate.q, epsilon, extra)
        for column, stake in enumerate(STAKES):
            size = stake * best
            up, down = np.log1p(size * (2 - extra)), np.log1p(-size * (2 * exp(epsilon) + extra))
            returns[row, column] = first * up + second * down + outside * np.log1p(-size * extra)


def _implied_loss(plan: AuditPlan, candidate: CandidateEvent, at: float, steps: int) -> tuple[float, float]:
    """Return an (epsilon, delta) that a claim of strength `at` implies for inputs `steps` steps apart."""
    if isinstance(plan.claim, Pure | Approximate):
        return compose_steps(plan.claim, at, steps)
    return tangent(plan.claim, max(candidate.q, 1e-6), steps)


def _least_implied_epsilon(plan: AuditPlan, bet: Bet, steps: int) -> float:
    """Return the least epsilon, divided by the steps, against which the bet stakes anything; infinity if none."""
    epsilons = []
    for candidate in bet.candidates[:2]:
        epsilon, extra = _implied_loss(plan, candidate, strength(plan.claim), steps)
        if _best_stake(candidate.p, candidate.q, epsilon, extra) > 0:
            epsilons.append(epsilon / steps)
    return min(epsilons, default=inf)


def _best_stake(p: float, q: float, epsilon: float, extra: float) -> float:
    """Return the stake of the largest expected growth if the event has these probabilities."""
    stakes = np.linspace(0, 0.95, 40) / (2 * exp(epsilon) + extra)
    return float(stakes[int(np.argmax(_expected_growth(stakes, p, q, epsilon, extra)))])


def _expected_growth(stakes: Floats, p: float, q: float, epsilon: float, extra: float) -> Floats:
    """Return the expected log-return of one run for each stake."""
    up, down = np.log1p(stakes * (2 - extra)), np.log1p(-stakes * (2 * exp(epsilon) + extra))
    result: Floats = p / 2 * up + q / 2 * down + (1 - (p + q) / 2) * np.log1p(-stakes * extra)
    return result


def _event_growth(plan: AuditPlan, candidate: CandidateEvent, steps: int) -> float:
    """Return the expected log-return of one run, with the best stake against the claim."""
    epsilon, extra = _implied_loss(plan, candidate, strength(plan.claim), steps)
    stake = np.array([_best_stake(candidate.p, candidate.q, epsilon, extra)])
    return float(_expected_growth(stake, candidate.p, candidate.q, epsilon, extra)[0])


def _in_event(candidate: CandidateEvent, data: Encoded) -> Any:
    return candidate.event.contains_encoded(data)


def _result(
    plan: AuditPlan,
    pair: Any,
    history: PairHistory,
    account: BettingAccount,
    claimed: int,
    fresh: FreshCounts,
    used: int,
    started: float,
) -> PrivacyResult:
    """Build the result from the betting account and the counts of the reported event."""
    candidate = fresh.candidate or (history.bet or _learn_bet(plan, history)).candidates[0]
    order = [1, 0] if candidate.swapped else [0, 1]
    hits, runs = fresh.hits[order].astype(int), np.maximum(fresh.runs[order].astype(int), 1)
    counts = Counts(int(hits[0]), int(runs[0]), int(hits[1]), int(runs[1]))
    p = float(min(1.0, np.exp(-account.peak[claimed])))
    lower, refuted = account.strength_lower, bool(account.refuted[claimed])
    epsilon = lower if isinstance(plan.claim, Pure | Approximate) else account.implied_epsilon if refuted else 0.0
    halves = max(used // 2, 1), max(used // 2, 1)
    power = replace(make_power(plan, pair, counts, used), runs=halves, sequential=True)
    examples = fresh.recorder.examples if fresh.recorder else ()
    leak = fresh.recorder.leak if fresh.recorder else None
    evidence = make_evidence(pair, candidate, counts, p, plan.alpha, examples, leak)
    return PrivacyResult(
        plan.claim, "sequential", plan.alpha, refuted, p, epsilon, lower, evidence, used, len(plan.pairs),
        power, time.process_time() - started, _plots(fresh, candidate),
    )  # fmt: skip


def _plots(fresh: FreshCounts, candidate: CandidateEvent) -> Plots:
    """Return the plots of the reported event, without data if it was counted on too few runs."""
    if fresh.recorder is None or fresh.runs.min() < 2:
        return PlotRecorder(candidate).empty_plots()
    return fresh.recorder.plots()


def _concatenate(one: Encoded, other: Encoded) -> Encoded:
    return Encoded(np.concatenate([one.codes, other.codes]), np.concatenate([one.keys, other.keys]))
