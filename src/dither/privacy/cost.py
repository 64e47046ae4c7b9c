"""Compute the privacy cost of a request from public facts alone: one function quotes, charges and verifies.

Nothing here reads a record, and nothing is taken on trust from the request: sensitivities follow from the plan and the
schema, scales from the loss that was asked for, and losses from both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import prod

from dither.errors import InvalidPlan, Unsupported
from dither.loss import ZCDP, Loss, Pure, Sensitivity
from dither.plan.context import Context
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.group_by import GroupBy
from dither.plan.traversal import fill_limits, fill_values, unfilled_limits, unfilled_values, walk
from dither.privacy.accounting.composition import compose, compose_parallel
from dither.privacy.amplification import amplify
from dither.privacy.budget_loss import CalibratedMeasure, column_loss, convert_to_pure, joint_losses, step_loss
from dither.privacy.codec import decode
from dither.privacy.mechanisms import (
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    GaussianThreshold,
    LaplaceThreshold,
    Mechanism,
    PartitionSelection,
    calibrate,
)
from dither.privacy.plan_facts import describe_processing, touched_windows
from dither.privacy.protocol import (
    BoundRule,
    BoundSearch,
    Calibrate,
    Measurement,
    NewtonRule,
    QuotedMeasurement,
    ReleaseRequest,
    Request,
    UnitLoss,
)
from dither.privacy.request_checks import check_covered, check_order, check_selection, check_values_open
from dither.privacy.sql_size import check_compilable
from dither.schema import BudgetCap

# The mechanisms that may release keys that come from the data.
KEY_SELECTORS = (PartitionSelection, LaplaceThreshold, GaussianThreshold)
ADDITIVE_KINDS = ("discrete_laplace", "discrete_gaussian")
# The kind of budget that counts a loss of this class as it is.
BUDGET_KIND: dict[type, str] = {Pure: "pure", ZCDP: "zcdp"}
ANY_LENGTH = (DiscreteLaplace, DiscreteGaussian)  # mechanisms that release a vector of any length
# Choosing a bound by its rule takes as long as this many cells for each point of the rule.
CHOICE_CELLS = 256
MAX_BOUND_COMBINATIONS = 1 << 10
MAX_PLAN_NODES = 40_000


@dataclass(frozen=True)
class CostedStep(CalibratedMeasure):
    """A measure without open limits, its mechanism, and the public facts of its release."""

    quoted: QuotedMeasurement

    @property
    def work(self) -> int:
        """The number of cells' worth of noise that its release draws."""
        return self.mechanism.work(prod(self.quoted.shape))


@dataclass(frozen=True)
class PrivacyCost:
    """A request's losses to every budget, the windows touched, its steps at the largest bounds, and its most cells.

    The steps are the rounds that select keys, the searches, and the parts.
    """

    losses: tuple[UnitLoss, ...]
    windows: Mapping[str, tuple[str, ...]]
    searches: tuple[CostedStep, ...]
    steps: tuple[CostedStep, ...]
    cells: int
    rounds: tuple[CostedStep, ...] = ()

    @property
    def all_steps(self) -> tuple[CostedStep, ...]:
        """All steps in the order in which the kernel takes them."""
        return (*self.rounds, *self.searches, *self.steps)


def privacy_cost(ctx: Context, request: Request, compile_sql: bool = True) -> PrivacyCost:
    """Check a whole request against the schema and compute its cost; refuse it if any unit's loss is unbounded.

    Another bound changes neither the tables nor the windows that a plan reads, so these are checked at the largest
    bounds only. It changes domains, and so the cells of the answer, only below a GROUP BY: such parts are checked at
    every bound. With `compile_sql`, refuse a plan whose SQL is too large for a database. This check changes no loss, so
    versions of Dither may differ in it.
    """
    check_values_open(request)
    check_order(request.searches)
    check_selection(ctx, request)
    plans = [*(part.measure for part in request.parts), *(search.histogram for search in request.searches)]
    used_tags = {limit.tag for plan in plans for limit in unfilled_limits(plan)}
    used_tags |= {value.tag for plan in plans for value in unfilled_values(plan)}
    if unused_tags := [search.tag[:40] for search in request.searches if used_tags.isdisjoint(search.tags)]:
        raise InvalidPlan(f"no part uses the bound {unused_tags[0]!r}; remove its search")
    rounds = tuple(cost_step(ctx, request, part) for part in (request.selection.rounds if request.selection else ()))
    searches = tuple(_search_step(ctx, request, search) for search in request.searches)
    parts = [_bounded_part(request.searches, part) for part in request.parts]
    _check_combinations(parts)
    fillings = [
        [cost_step(ctx, request, part.measurement_at(each)) for each in part.checked_choices()] for part in parts
    ]
    steps = [costed[-1] for costed in fillings]
    if rounds and any(type(step.mechanism) not in ANY_LENGTH for costed in fillings for step in costed):
        raise InvalidPlan(
            "parts with selected keys need discrete Laplace or Gaussian noise: it fits any number of keys"
        )
    cells = sum(step.work for step in searches)
    cells += CHOICE_CELLS * sum(_rule_cells(search.rule) for search in request.searches if search.rule is not None)
    cells += sum(max(step.work for step in costed) for costed in fillings)
    widest = [step.measure for step in (*rounds, *searches, *steps)]
    unit, conversion = calibration_unit(ctx, request), request.selection.conversion_delta if request.selection else 0
    losses = []
    for budget in ctx.dataset.budgets:
        converted = budget.kind == "pure" and conversion > 0
        counted = replace(budget, kind="zcdp", epsilon=None, rho=Fraction(1)) if converted else budget
        loss = _total_loss(ctx, counted, unit, (*rounds, *searches), parts)
        total = convert_to_pure(loss, Fraction(conversion)) if converted else loss
        losses.append(UnitLoss(budget.unit, budget.kind, amplify(ctx, budget.unit, widest, total)))
    windows = {
        budget.unit: touched_windows(ctx, widest, budget.unit)
        for budget in ctx.dataset.budgets
        if ctx.unit(budget.unit).kind == "window"
    }
    ends = [*widest, *(costed[0].measure for costed in fillings)]
    values = [{tag: search.grid[end] for search in request.searches for tag in search.tags} for end in (0, -1)]
    for measure in dict.fromkeys(fill_values(each, end) for each in ends for end in values) if compile_sql else ():
        check_compilable(ctx, measure)
    return PrivacyCost(tuple(losses), windows, searches, tuple(steps), cells, rounds)


def _check_combinations(parts: Sequence[BoundedPart]) -> None:
    """Refuse more candidate bounds, or more nodes at all of them, than can be checked quickly."""
    if (combinations := sum(len(part.choices) for part in parts)) > MAX_BOUND_COMBINATIONS:
        raise InvalidPlan(f"at most {MAX_BOUND_COMBINATIONS} combinations of bounds are allowed, got {combinations}")
    if sum(sum(1 for _ in walk(p.part.measure)) * len(p.choices) for p in parts if len(p.choices) > 1) > MAX_PLAN_NODES:
        raise InvalidPlan(f"the plans at all bounds may have at most {MAX_PLAN_NODES} nodes; use fewer bounds")


def _search_step(ctx: Context, request: Request, search: BoundSearch) -> CostedStep:
    """Cost the step that searches for a bound; refuse a histogram or mechanism that does not fit the search's rule."""
    step = cost_step(ctx, request, Measurement(search.histogram, search.mechanism))
    if search.rule is not None:
        step.mechanism.std()
        if prod(step.quoted.shape) != _rule_cells(search.rule):
            raise InvalidPlan(f"the search {search.tag[:40]!r} needs {_rule_cells(search.rule)} histogram cells")
    return step


def _rule_cells(rule: BoundRule | NewtonRule) -> int:
    """Return the number of cells that a rule reads."""
    return rule.cells if isinstance(rule, NewtonRule) else len(rule.points) + 1


def recompute_losses(ctx: Context, request: str) -> tuple[tuple[UnitLoss, ...], Mapping[str, tuple[str, ...]]]:
    """Recompute the losses of a recorded request and the windows that it touches, for the verifier."""
    cost = privacy_cost(ctx, decode_question(request), compile_sql=False)
    return cost.losses, cost.windows


def decode_question(request: str) -> Request:
    """Decode a recorded request, of an answer or of a table."""
    if json.loads(request).get("node") == ReleaseRequest.__name__:
        return decode(request.encode(), ReleaseRequest).question
    return decode(request.encode(), Request)


def steps_at_bounds(ctx: Context, request: Request, chosen: Mapping[str, int]) -> tuple[CostedStep, ...]:
    """Return the steps that answer the parts at the chosen bounds; values are filled in for reading only."""
    steps = (
        cost_step(ctx, request, Measurement(fill_limits(part.measure, chosen), part.mechanism))
        for part in request.parts
    )
    return tuple(replace(step, measure=fill_values(step.measure, chosen)) for step in steps)


@dataclass(frozen=True)
class BoundedPart:
    """A part of a request, and the bounds that its limits may get, by tag: the smallest first, the largest last.

    What was calibrated for one budget is kept for the others, as long as this request is costed.
    """

    part: Measurement
    choices: tuple[Mapping[str, int], ...]
    calibrated: dict[tuple[object, ...], CalibratedMeasure] = field(default_factory=dict, compare=False)

    def measurement_at(self, bounds: Mapping[str, int]) -> Measurement:
        """Return the part with its limits filled in."""
        return Measurement(fill_limits(self.part.measure, bounds), self.part.mechanism) if bounds else self.part

    def calibrated_at(self, ctx: Context, unit: str, bounds: Mapping[str, int]) -> CalibratedMeasure:
        """Return the part's measure at these bounds, with its mechanism calibrated for `unit`."""
        if (key := (unit, *bounds.items())) not in self.calibrated:
            measure = self.measurement_at(bounds).measure
            mechanism = _make_mechanism(self.part.mechanism, measure.sensitivity(ctx, unit))
            self.calibrated[key] = CalibratedMeasure(measure, mechanism)
        return self.calibrated[key]

    def checked_choices(self) -> tuple[Mapping[str, int], ...]:
        """Return the bounds at which the part is checked in full: the largest, or all if more may go wrong at others.

        A limit below a GROUP BY bounds counts and sums there, and so changes domains and the number of cells.
        Calibration of additive noise fails at no bound if it succeeds at the largest.
        """
        changes_domains = any(isinstance(n, GroupBy) and unfilled_limits(n) for n in walk(self.part.measure))
        wanted = self.part.mechanism
        additive = not isinstance(wanted, Calibrate) or wanted.kind in ADDITIVE_KINDS
        return self.choices[-1:] if additive and not changes_domains else self.choices


def _bounded_part(searches: Sequence[BoundSearch], part: Measurement) -> BoundedPart:
    """Return a part with every combination of candidate bounds that its limits may get."""
    tags = {limit.tag for limit in unfilled_limits(part.measure)}
    used = [search for search in searches if search.tag in tags.intersection(search.tags)]
    if prod(len(search.grid) for search in used) > MAX_BOUND_COMBINATIONS:
        raise InvalidPlan(f"a part may have at most {MAX_BOUND_COMBINATIONS} combinations of bounds; use fewer")
    names = [search.tag for search in used]
    combinations = product(*(search.grid for search in used))
    return BoundedPart(part, tuple(dict(zip(names, each, strict=True)) for each in combinations))


def calibration_unit(ctx: Context, request: Request) -> str:
    """Return the unit that mechanisms are calibrated for: the request's, or that of the first budget."""
    unit = request.unit if request.unit is not None else ctx.dataset.budgets[0].unit
    ctx.unit(unit)
    return unit


def cost_step(ctx: Context, request: Request, part: Measurement) -> CostedStep:
    """Make the mechanism of a part, and compute the public facts of its release."""
    measure = part.measure
    if unfilled_limits(measure):
        raise InvalidPlan("the plan has an estimated limit that no search fills in; add a search with its tag")
    check_covered(ctx, measure)
    sensitivity = measure.sensitivity(ctx, calibration_unit(ctx, request))
    mechanism = _make_mechanism(part.mechanism, sensitivity)
    shape, steps = _vector_shape(ctx, measure, mechanism)
    loss = mechanism.loss(sensitivity)
    if isinstance(measure, ColumnCounts) and isinstance(mechanism, ColumnGaussian):
        loss = column_loss(ctx, calibration_unit(ctx, request), measure, mechanism)
    quoted = QuotedMeasurement(mechanism, sensitivity, loss, steps, shape, describe_processing(ctx, measure))
    return CostedStep(measure, mechanism, quoted)


def _make_mechanism(wanted: Mechanism | Calibrate, sensitivity: Sensitivity) -> Mechanism:
    """Return the mechanism itself, or calibrate it to the loss that the request gives."""
    if isinstance(wanted, Calibrate):
        options = dict(wanted.options)
        if reserved := {"kind", "loss", "sensitivity"} & options.keys():
            raise InvalidPlan(f"a mechanism has no option called {', '.join(sorted(reserved))}")
        return calibrate(wanted.kind, wanted.loss, sensitivity, **options)
    return wanted


def _vector_shape(ctx: Context, measure: Measure, mechanism: Mechanism) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """Return the shape and steps of the released vector; both are empty for undeclared keys."""
    if isinstance(measure, PartitionCounts):
        if not isinstance(mechanism, KEY_SELECTORS):
            raise Unsupported("undeclared keys can be released by partition selection only; declare them")
        return (), ()
    steps = measure.steps(ctx)
    shape = (*(len(axis.values) for axis in measure.axes(ctx)), len(steps))
    mechanism.check_length(prod(shape))
    return shape, steps


# --- Losses to each budget ---


def _total_loss(
    ctx: Context,
    budget: BudgetCap,
    unit: str,
    searches: Sequence[CostedStep],
    parts: Sequence[BoundedPart],
) -> Loss:
    """Return the sum of the losses of all steps to one budget; `unit` is the one that mechanisms are calibrated for."""
    single = [part.calibrated_at(ctx, unit, part.choices[0]) for part in parts if len(part.choices) == 1]
    losses = joint_losses(ctx, budget, [*single, *searches])
    losses += [_largest_loss(ctx, budget, unit, part) for part in parts if len(part.choices) > 1]
    return compose(losses)


def _largest_loss(ctx: Context, budget: BudgetCap, unit: str, part: BoundedPart) -> Loss:
    """Return the largest loss of a part over all of its candidate bounds.

    A mechanism calibrated for this budget's unit costs at most the wanted loss at every bound. If it costs exactly that
    at the largest bound, no other bound costs more. Proof: two_steps.md.
    """
    wanted, widest = part.part.mechanism, part.calibrated_at(ctx, unit, part.choices[-1])
    calibrated = (
        isinstance(wanted, Calibrate) and budget.unit == unit and budget.kind == BUDGET_KIND.get(type(wanted.loss))
    )
    if calibrated and step_loss(ctx, budget, widest) == wanted.loss:
        return wanted.loss
    return compose_parallel([step_loss(ctx, budget, part.calibrated_at(ctx, unit, each)) for each in part.choices])
