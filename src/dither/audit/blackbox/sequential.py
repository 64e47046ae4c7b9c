"""An anytime-valid audit: it bets against the claim until its wealth reaches 1/alpha or the samples run out.

Each run is on an input chosen by a fair coin. Under a pure claim, whatever the output, the coin can be guessed with
probability at most e^epsilon / (1 + e^epsilon); a bet that would break even at exactly that probability is fair or
worse, so wealth is a supermartingale and by Ville's inequality reaches 1/alpha with probability at most alpha, over
all rounds, pairs and bets together. Claims with a delta are bet on through events. What is bet is learned from earlier
runs only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy import special

from dither.audit.blackbox import learners, search
from dither.audit.blackbox.events import Encoded, OutcomeSpace, SampleTable, Score
from dither.audit.blackbox.learners import Learner
from dither.audit.blackbox.plan import AuditPlan, evidence
from dither.audit.blackbox.plots import Tracer
from dither.audit.blackbox.report import Plots, PrivacyResult
from dither.audit.blackbox.search import Lead
from dither.audit.claims import LARGEST_STRENGTH, Floats, delta, strength, tangent, together
from dither.audit.confidence import Counts, detectable
from dither.audit.neighbours import Pair, steps
from dither.loss import Approximate, Pure

FIRST = 200
GROWTH = 1.3
LARGEST_BATCH = 100_000
MULTIPLES = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])
STAKES = (0.5, 1.0)
SLOTS = 2 * len(STAKES)


@dataclass
class History:
    """What was seen of one pair so far, whose inputs are some steps apart."""

    space: OutcomeSpace
    a: Encoded
    b: Encoded
    steps: int = 1
    learned_at: int = 0
    bet: Bet | None = None

    @property
    def runs(self) -> int:
        """How many runs were seen."""
        return len(self.a) + len(self.b)

    @property
    def sample(self) -> SampleTable:
        """Everything seen."""
        return SampleTable(self.space, self.a, self.b)

    def add(self, a: Encoded, b: Encoded) -> None:
        """Remembers a batch."""
        self.a, self.b = _join(self.a, a), _join(self.b, b)


@dataclass(frozen=True)
class Bet:
    """What will be staked on the next runs of a pair, and the growth that it promises."""

    scores: tuple[Score, ...]
    leads: tuple[Lead, ...]
    growth: float


@dataclass
class BettingAccount:
    """Log-wealth for each strength and slot; each slot started with an equal share.

    `implied` is the least epsilon of those that were bet on in place of a claim of another kind.
    """

    strengths: Floats
    alpha: float
    wealth: Floats = field(init=False)
    most: Floats = field(init=False)
    implied: float = inf

    def __post_init__(self) -> None:
        self.wealth = np.zeros((len(self.strengths), SLOTS))
        self.most = np.zeros(len(self.strengths))

    def add(self, gains: Floats) -> None:
        """Books the logarithms of a batch's returns."""
        self.wealth += gains
        self.most = np.maximum(self.most, special.logsumexp(self.wealth, axis=1) - log(SLOTS))

    @property
    def refuted(self) -> Any:
        """For each strength, whether its wealth ever reached 1/alpha."""
        return self.most >= -log(self.alpha)

    @property
    def lower(self) -> float:
        """The largest strength up to which every one is refuted."""
        count = int(np.argmin(np.append(self.refuted, False)))
        return float(self.strengths[count - 1]) if count else 0.0


def sequential(plan: AuditPlan, started: float) -> PrivacyResult:
    """The audit that stops as soon as it can."""
    histories = [_begin(plan, place) for place in range(len(plan.pairs))]
    used = sum(history.runs for history in histories)
    account = BettingAccount(_strengths(plan), plan.alpha)
    claimed = int(np.flatnonzero(account.strengths == strength(plan.claim))[0])
    fresh: dict[int, Fresh] = {}
    chosen = 0
    while used < plan.samples and not account.refuted[claimed]:
        chosen = _choose(plan, histories)
        seen = fresh.setdefault(chosen, Fresh(histories[chosen]))
        used += _round(plan, histories[chosen], plan.pairs[chosen], account, seen, plan.samples - used)
        plan.progress("bet", min(used, plan.samples), plan.samples)
    best = chosen if account.refuted[claimed] else _choose(plan, histories)
    seen = fresh.setdefault(best, Fresh(histories[best]))
    return _result(plan, plan.pairs[best], histories[best], account, claimed, seen, used, started)


@dataclass
class Fresh:
    """How often the event on show happened in runs that came after it was chosen."""

    history: History
    event: Lead | None = None
    hits: Floats = field(default_factory=lambda: np.zeros(2))
    runs: Floats = field(default_factory=lambda: np.zeros(2))
    tracer: Tracer | None = None

    def show(self, lead: Lead) -> None:
        """Starts counting again if the event is a new one and there is little to lose."""
        if self.event is None or self.runs.sum() < 2 * self.history.runs / 3:
            self.event, self.hits, self.runs, self.tracer = lead, np.zeros(2), np.zeros(2), Tracer(lead)

    def add(self, a: Any, b: Any) -> None:
        """Counts a batch."""
        if self.event is not None and self.tracer is not None:
            self.hits += [self.event.event.contains(side).sum() if len(side) else 0 for side in (a, b)]
            self.runs += [len(a), len(b)]
            self.tracer.add(a, b)


def _strengths(plan: AuditPlan) -> Floats:
    stated = strength(plan.claim)
    if not isinstance(plan.claim, Pure | Approximate):
        return np.array([stated])
    scaled = MULTIPLES * stated if stated > 0 else np.concatenate([[0.0], MULTIPLES])
    return np.unique(np.append(scaled, stated))


def _begin(plan: AuditPlan, place: int) -> History:
    """The first runs of a pair: nothing is bet on them."""
    runs = max(50, min(FIRST, plan.samples // (10 * len(plan.pairs))))
    plan.progress("explore", place, len(plan.pairs))
    a, b = plan.source.draw_pair(*plan.pairs[place], (runs, runs), plan.rng)
    space = OutcomeSpace.learn(a, b, plan.source.timed, plan.bits)
    return History(space, space.encode(a), space.encode(b), steps(plan.pairs[place]))


def _choose(plan: AuditPlan, histories: list[History]) -> int:
    """The pair whose bet promises most; if none does, the one seen least."""
    for history in histories:
        if history.bet is None or history.runs > GROWTH * history.learned_at:
            history.bet, history.learned_at = _learn(plan, history), history.runs
    growth = [history.bet.growth if history.bet else 0.0 for history in histories]
    if max(growth) > 0:
        return int(np.argmax(growth))
    return int(np.argmin([history.runs for history in histories]))


def _round(plan: AuditPlan, history: History, pair: Pair, account: BettingAccount, seen: Fresh, left: int) -> int:
    """One batch: draw, settle the bets, remember."""
    size = int(min(max(100, 0.15 * history.runs), LARGEST_BATCH, max(left, 2)))
    first = int(plan.rng.binomial(size, 0.5))
    a, b = plan.source.draw_pair(*pair, (first, size - first), plan.rng)
    encoded = (
        history.space.encode(a) if first else history.a[:0],
        history.space.encode(b) if size > first else history.b[:0],
    )
    bet = history.bet
    if bet is not None:
        seen.show(bet.leads[0])
        seen.add(a, b)
        account.add(_returns(plan, account.strengths, bet, *encoded, history.steps))
        account.implied = min(account.implied, _least_implied(plan, bet, history.steps))
    history.add(*encoded)
    return size


def _learn(plan: AuditPlan, history: History) -> Bet:
    """The two best bets: learners are compared on the part of the history that they did not see, then see it all."""
    sample = history.sample
    middle_a, middle_b = (3 * len(sample.a)) // 5, (3 * len(sample.b)) // 5
    early = SampleTable(sample.space, sample.a[:middle_a], sample.b[:middle_b])
    late = SampleTable(sample.space, sample.a[middle_a:], sample.b[middle_b:])
    value = search.worth(plan.claim, max(2 * len(sample.a), 200), plan.alpha, history.steps)
    chosen = _learners(history)
    tried = search.tries(sample, chosen)
    found = search.distinct(search.leads(sample.space, tried, value, search.CAUTION, search.MISTRUST), 2)
    scores = [learner(early) for learner in chosen]
    allowed = history.steps * strength(plan.claim)
    growth = [_likelihood_growth(score, late, allowed) if score else -inf for score in scores]
    if delta(plan.claim) == 0 and isinstance(plan.claim, Pure):
        order = np.argsort(growth)[::-1][:2]
        again = [chosen[index](sample) for index in order]
        return Bet(tuple(score for score in again if score), tuple(found), float(growth[order[0]]))
    return Bet((), tuple(found), _event_growth(plan, found[0], history.steps))


def _learners(history: History) -> list[Learner]:
    found = learners.light(history.space)
    if history.runs < 4000:
        return found
    surfaces = [partial(learners.surface, pair=pair, degree=2) for pair in learners.pairs(history.space)]
    return [*found, *surfaces, partial(learners.trees, rows=40_000)]


def _likelihood_growth(score: Score, late: SampleTable, epsilon: float) -> float:
    """The average log-return of betting by this score."""
    total = _settle(score.of(late.a), epsilon, 1.0, True).sum() + _settle(score.of(late.b), epsilon, 1.0, False).sum()
    return float(total) / max(len(late.a) + len(late.b), 1)


def _settle(ratio: Floats, epsilon: float, stake: float, first: bool) -> Floats:
    """Log-returns of a bet on the coin, for outputs whose log-likelihood ratio is believed to be `ratio`."""
    if epsilon > LARGEST_STRENGTH:  # nothing is told apart so surely
        return np.zeros(len(ratio))
    fair, unfair = special.expit(epsilon), special.expit(-epsilon)
    surer = np.maximum(unfair - special.expit(-np.abs(ratio)), 0.0)
    right = (ratio > 0) == first
    result: Floats = np.where(right, np.log1p(stake * surer / fair), np.log1p(-stake * surer / unfair))
    return result


def _returns(plan: AuditPlan, strengths: Floats, bet: Bet, a: Encoded, b: Encoded, apart: int = 1) -> Floats:
    """Log-returns of a batch for each strength and slot; slots without a bet keep their money."""
    gains = np.zeros((len(strengths), SLOTS))
    for place, score in enumerate(bet.scores):
        ratios = score.of(a), score.of(b)
        for row, epsilon in enumerate(apart * strengths):
            for column, stake in enumerate(STAKES):
                won = _settle(ratios[0], epsilon, stake, True).sum() + _settle(ratios[1], epsilon, stake, False).sum()
                gains[row, place * len(STAKES) + column] = won
    if not bet.scores:
        for place, lead in enumerate(bet.leads[:2]):
            part = gains[:, place * len(STAKES) : (place + 1) * len(STAKES)]
            _event_returns(plan, strengths, lead, a, b, part, apart)
    return gains


def _event_returns(
    plan: AuditPlan, strengths: Floats, lead: Lead, a: Encoded, b: Encoded, gains: Floats, apart: int
) -> None:
    """Log-returns of betting that an event is too likely: 2[a, in] - 2 e^epsilon [b, in] - delta has mean at most 0."""
    first, second = (_inside(lead, side).sum() for side in ((b, a) if lead.swapped else (a, b)))
    outside = len(a) + len(b) - first - second
    for row, at in enumerate(strengths):
        epsilon, extra = _implied(plan, lead, float(at), apart)
        best = _stake(lead.p, lead.q, epsilon, extra)
        for column, stake in enumerate(STAKES):
            size = stake * best
            up, down = np.log1p(size * (2 - extra)), np.log1p(-size * (2 * exp(epsilon) + extra))
            gains[row, column] = first * up + second * down + outside * np.log1p(-size * extra)


def _implied(plan: AuditPlan, lead: Lead, at: float, apart: int) -> tuple[float, float]:
    """The epsilon and the delta that a strength allows inputs so many steps apart."""
    if isinstance(plan.claim, Pure | Approximate):
        return together(plan.claim, at, apart)
    return tangent(plan.claim, max(lead.q, 1e-6), apart)


def _least_implied(plan: AuditPlan, bet: Bet, apart: int) -> float:
    """The least epsilon, for each step, of those against which something is staked."""
    implied = [(lead, _implied(plan, lead, strength(plan.claim), apart)) for lead in bet.leads[:2]]
    return min((both[0] / apart for lead, both in implied if _stake(lead.p, lead.q, *both) > 0), default=inf)


def _stake(p: float, q: float, epsilon: float, extra: float) -> float:
    """The stake that grows fastest if the event has these probabilities."""
    stakes = np.linspace(0, 0.95, 40) / (2 * exp(epsilon) + extra)
    return float(stakes[int(np.argmax(_growth_of(stakes, p, q, epsilon, extra)))])


def _growth_of(stakes: Floats, p: float, q: float, epsilon: float, extra: float) -> Floats:
    up, down = np.log1p(stakes * (2 - extra)), np.log1p(-stakes * (2 * exp(epsilon) + extra))
    result: Floats = p / 2 * up + q / 2 * down + (1 - (p + q) / 2) * np.log1p(-stakes * extra)
    return result


def _event_growth(plan: AuditPlan, lead: Lead, apart: int) -> float:
    epsilon, extra = _implied(plan, lead, strength(plan.claim), apart)
    stake = np.array([_stake(lead.p, lead.q, epsilon, extra)])
    return float(_growth_of(stake, lead.p, lead.q, epsilon, extra)[0])


def _inside(lead: Lead, data: Encoded) -> Any:
    scores = lead.event.score.of(data)
    return scores >= lead.event.threshold if lead.event.above else scores <= lead.event.threshold


def _result(
    plan: AuditPlan,
    pair: Any,
    history: History,
    account: BettingAccount,
    claimed: int,
    seen: Fresh,
    used: int,
    started: float,
) -> PrivacyResult:
    lead = seen.event or (history.bet or _learn(plan, history)).leads[0]
    order = [1, 0] if lead.swapped else [0, 1]
    hits, runs = seen.hits[order].astype(int), np.maximum(seen.runs[order].astype(int), 1)
    counts = Counts(int(hits[0]), int(runs[0]), int(hits[1]), int(runs[1]))
    p = float(min(1.0, np.exp(-account.most[claimed])))
    lower, refuted = account.lower, bool(account.refuted[claimed])
    epsilon = lower if isinstance(plan.claim, Pure | Approximate) else account.implied if refuted else 0.0
    least = detectable(
        max(counts.hits_b, 0.5) / counts.runs_b, max(used // 2, 1), plan.claim, plan.alpha, history.steps
    )
    return PrivacyResult(
        plan.claim, "sequential", plan.alpha, refuted, p, epsilon, lower if refuted or lower else 0.0,
        evidence(pair, lead, counts, p, plan.alpha, seen.tracer.examples if seen.tracer else ()), used, len(plan.pairs),
        least, time.process_time() - started, _pictures(seen, lead),
    )  # fmt: skip


def _pictures(seen: Fresh, lead: Lead) -> Plots:
    if seen.tracer is None or seen.runs.min() < 2:
        return Tracer(lead).empty()
    return seen.tracer.plots()


def _join(one: Encoded, other: Encoded) -> Encoded:
    return Encoded(np.concatenate([one.codes, other.codes]), np.concatenate([one.keys, other.keys]))
