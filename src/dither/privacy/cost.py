"""Compute the privacy cost of a request from public facts alone: one function quotes, charges and verifies.

Nothing here reads a record, and nothing is taken on trust from the request: sensitivities follow from the plan and the
schema, scales from the loss that was asked for, and losses from both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, assert_never

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Sensitivity, round_up
from dither.plan.context import Context
from dither.plan.domains import EPOCH, period_starts
from dither.plan.expressions.core import EstimatedValue, domain_of
from dither.plan.expressions.numeric import Clamp
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure, SelectedValues
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.facts import needs_order, window_range
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.joins import KeyJoin, PublicJoin, UnitJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import columns_read
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import count_star, select
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import MAX_SQL_NODES, SqlStatement, TableSource
from dither.plan.traversal import fill_limits, fill_values, unfilled_limits, unfilled_values, walk
from dither.privacy.accounting.composition import compose, compose_parallel, joint_gaussian, joint_laplace
from dither.privacy.accounting.conversion import as_zcdp, delta_of, epsilon_at
from dither.privacy.accounting.filters import filter_of
from dither.privacy.amplification import amplify
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
from dither.privacy.pacing import Work
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
from dither.schema import Boolean, BudgetCap, Category, Domain, Identifier, Moment, Number, Reference, Table

# The mechanisms that may release keys that come from the data.
KEY_SELECTORS = (PartitionSelection, LaplaceThreshold, GaussianThreshold)
ADDITIVE_KINDS = ("discrete_laplace", "discrete_gaussian")
# The kind of budget that counts a loss of this class as it is.
BUDGET_KIND: dict[type, str] = {Pure: "pure", ZCDP: "zcdp"}
MAX_WEIGHTS = 1 << 20
ANY_LENGTH = (DiscreteLaplace, DiscreteGaussian)  # mechanisms that release a vector of any length
# Choosing a bound by its rule takes as long as this many cells for each point of the rule.
CHOICE_CELLS = 256
MAX_BOUND_COMBINATIONS = 1 << 10
MAX_PLAN_NODES = 40_000
MAX_COLUMNS = 1_600  # PostgreSQL rejects any SELECT of more than 1,664 columns
MAX_DEPTH = 150  # usual plans have 30 to 50 levels; Python and databases fail at several hundred


@dataclass(frozen=True)
class CalibratedMeasure:
    """A measure and the mechanism that releases it; together they determine the loss to every budget."""

    measure: Measure
    mechanism: Mechanism


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
    _check_values_open(request)
    _check_order(request.searches)
    _check_selection(ctx, request)
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
        budget.unit: _touched_windows(ctx, widest, budget.unit)
        for budget in ctx.dataset.budgets
        if ctx.unit(budget.unit).kind == "window"
    }
    ends = [*widest, *(costed[0].measure for costed in fillings)]
    values = [{tag: search.grid[end] for search in request.searches for tag in search.tags} for end in (0, -1)]
    for measure in dict.fromkeys(fill_values(each, end) for each in ends for end in values) if compile_sql else ():
        check_compilable(ctx, measure)
    return PrivacyCost(tuple(losses), windows, searches, tuple(steps), cells, rounds)


def _check_values_open(request: Request) -> None:
    """Refuse an estimated value that is filled in already: only the kernel fills them, when it reads."""
    plans = [*(search.histogram for search in request.searches), *(part.measure for part in request.parts)]
    if any(isinstance(node, EstimatedValue) and node.value is not None for plan in plans for node in walk(plan)):
        raise InvalidPlan("the kernel chooses estimated values; write a known one as a literal")


def _check_order(searches: Sequence[BoundSearch]) -> None:
    """Refuse a search whose histogram has an estimated limit, or a value that no earlier search chooses.

    A Newton rule starts at the weights of an earlier search with the same grid, as many of them.
    """
    chosen: set[str] = set()
    starts: dict[str, BoundSearch] = {}
    for search in searches:
        if unfilled_limits(search.histogram) or {value.tag for value in unfilled_values(search.histogram)} - chosen:
            raise InvalidPlan(f"the search {search.tag[:40]!r} needs a bound or value that no earlier search chooses")
        if isinstance(search.rule, NewtonRule) and search.rule.start:
            start = starts.get(search.rule.start)
            if start is None or start.grid != search.grid or len(start.tags) != len(search.tags):
                raise InvalidPlan(f"the search {search.tag[:40]!r} must start at weights of its own grid and size")
        chosen.update(search.tags)
        starts |= {search.tag: search} if isinstance(search.rule, NewtonRule) else {}


def _check_selection(ctx: Context, request: Request) -> None:
    """Refuse rounds that do not select the same keys, and parts whose first keys are not the selected ones in order.

    All of them have the same domains, and rounds depend on no search: nothing that was selected can make a part fail.
    """
    rounds = [part.measure for part in request.selection.rounds] if request.selection else []
    numbers = {len(measure.keys) if isinstance(measure, PartitionCounts) else 0 for measure in rounds}
    wanted = [SelectedValues(position) for position in range(max(numbers, default=0))]
    first_keys = [[key.values for key in getattr(part.measure, "keys", ())[: len(wanted)]] for part in request.parts]
    plans = (tuple(rounds), request.searches, request.parts)
    found = sum(isinstance(node, SelectedValues) for node in walk(plans))
    if len(numbers) > 1 or 0 in numbers or any(keys != wanted for keys in first_keys):
        raise InvalidPlan("all rounds must select the same keys, and every part must have these keys first, in order")
    if found != len(wanted) * len(request.parts):
        raise InvalidPlan("only the first keys of parts can be keys that the request selects")
    if any(isinstance(node, EstimatedValue) for node in walk(tuple(rounds))) or any(map(unfilled_limits, rounds)):
        raise InvalidPlan("a round of a selection cannot use a bound or value that a search chooses")
    measures = [*rounds, *(part.measure for part in request.parts)]
    if wanted and len({_key_domains(ctx, measure, len(wanted)) for measure in measures}) > 1:
        raise InvalidPlan("the selected keys must have the same domain in every round and in every part")


def _key_domains(ctx: Context, measure: Any, count: int) -> tuple[Domain, ...]:
    """Return the domains of the first keys of a measure."""
    scope = Scope(measure.child.domain(ctx))
    return tuple(domain_of(key.value, scope) for key in measure.keys[:count])


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


def check_compilable(ctx: Context, measure: Measure) -> None:
    """Build the SQL of a plan as an engine would; refuse, before the charge, SQL that is too large for a database.

    The SQL that cleans a table depends on the schema alone. If its size is known, its tables are read as if prepared,
    and the size is added.
    """
    tables = {node.table for node in walk(measure) if isinstance(node, Scan)}
    measured = tables <= ctx.scan_nodes.keys()
    sources = {name: typical_source(ctx.table(name), is_prepared=measured) for name in tables}
    counted = frozenset(columns_read(measure))
    statement = SqlStatement(ctx, sources, counted_columns=counted, keeps_order=needs_order(measure))
    measure.vector_query(statement)
    nodes = statement.size.nodes + (sum(ctx.scan_nodes[name] for name in tables) if measured else 0)
    most = max(MAX_COLUMNS, *(len(table.columns) + 64 for table in ctx.dataset.tables.values()))
    if nodes > MAX_SQL_NODES or statement.size.depth > MAX_DEPTH or statement.size.columns > most:
        raise Unsupported("the plan's SQL would be too large, too deep or too wide for a database; split the query")


def scan_sizes(ctx: Context) -> dict[str, int]:
    """Measure the SQL that reads and cleans each table, with everything that a plan may make it compute."""
    sizes = {}
    for name, table in ctx.dataset.tables.items():
        sources, every_column = {name: typical_source(table)}, frozenset(table.columns)
        statement = SqlStatement(ctx, sources, counted_columns=every_column)
        statement.finish(select(count_star()).from_(statement.table(Scan(name)), copy=False))
        sizes[name] = statement.size.nodes
    return sizes


def typical_source(table: Table, is_prepared: bool = False) -> TableSource:
    """Return a source that stands for a table in any engine, to build SQL without opening one."""
    kinds = {name: typical_kind(column.domain) for name, column in table.columns.items()}
    source = exp.Table(this=exp.to_identifier(table.name, quoted=True))
    return TableSource(source, kinds, is_prepared, "o" if is_prepared else None, deduplicated=is_prepared)


def typical_kind(domain: Domain) -> RawKind:
    """Return the kind of raw column that usually stores values of a domain; for moments the one with most SQL."""
    match domain:
        case Number():
            return "decimal"
        case Boolean():
            return "boolean"
        case Moment():
            return "text"
        case Category():
            return "text"
        case Reference(kind=kind) | Identifier(kind=kind):
            return kind
        case _:
            assert_never(domain)


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


def check_covered(ctx: Context, plan: Any) -> None:
    """Refuse to read a private table that no budget covers, unless it is joined to covered rows by its unique key."""
    covered = {table for unit in ctx.budgeted_units for table in ctx.unit(unit).keys}
    uncovered = sorted({name for name in _paid_tables(plan) if ctx.table(name).private and name not in covered})
    if uncovered:
        raise Unsupported(
            f"no budget covers the records of {', '.join(uncovered)}: join them by their unique key to a table that"
            " a budget covers, or declare a budget for a unit that covers them"
        )


def _paid_tables(plan: Any) -> Iterator[str]:
    """Yield the tables that a plan reads, except the public side of inner and left joins, which adds no rows."""
    if isinstance(plan, Scan):
        yield plan.table
    elif isinstance(plan, PublicJoin) and plan.how != "right":
        # A private table can be on the public side only by its enforced unique key: see PublicJoin.multiplicity.
        yield from _paid_tables(plan.child)
    elif isinstance(plan, Measure | Relation):
        yield from (name for part in vars(plan).values() for name in _paid_tables(part))


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
    losses = _joint_losses(ctx, budget, [*single, *searches])
    losses += [_largest_loss(ctx, budget, unit, part) for part in parts if len(part.choices) > 1]
    return compose(losses)


def convert_to_pure(total: Loss, conversion_delta: Fraction) -> Loss:
    """Return the epsilon that a zCDP loss implies for a pure budget at this additional delta.

    Proof: selected_keys.md.
    """
    own_delta = delta_of(total)
    if as_zcdp(total) == ZCDP(Fraction(0)):
        return Pure(Fraction(0))
    delta = round_up(own_delta + (1 - own_delta) * conversion_delta)
    return Approximate(round_up(epsilon_at(total, delta)), delta)


def _largest_loss(ctx: Context, budget: BudgetCap, unit: str, part: BoundedPart) -> Loss:
    """Return the largest loss of a part over all of its candidate bounds.

    A mechanism calibrated for this budget's unit costs at most the wanted loss at every bound. If it costs exactly that
    at the largest bound, no other bound costs more. Proof: two_steps.md.
    """
    wanted, widest = part.part.mechanism, part.calibrated_at(ctx, unit, part.choices[-1])
    calibrated = (
        isinstance(wanted, Calibrate) and budget.unit == unit and budget.kind == BUDGET_KIND.get(type(wanted.loss))
    )
    if calibrated and _step_loss(ctx, budget, widest) == wanted.loss:
        return wanted.loss
    return compose_parallel([_step_loss(ctx, budget, part.calibrated_at(ctx, unit, each)) for each in part.choices])


def _step_loss(ctx: Context, budget: BudgetCap, step: CalibratedMeasure) -> Loss:
    """Return the loss of one step to one budget, in the kind that the budget counts."""
    if isinstance(step.measure, ColumnCounts) and isinstance(step.mechanism, ColumnGaussian):
        return column_loss(ctx, budget.unit, step.measure, step.mechanism)
    sensitivity = step.measure.sensitivity(ctx, budget.unit)
    return step.mechanism.zcdp_loss(sensitivity) if budget.kind == "zcdp" else step.mechanism.loss(sensitivity)


def column_loss(ctx: Context, unit: str, measure: ColumnCounts, mechanism: ColumnGaussian) -> ZCDP:
    """Return the joint loss of all columns of a table: half the largest change of one unit, weighted by 1 / variance.

    Proof: column_counts.md.
    """
    if len(mechanism.variances) != len(measure.columns):
        raise InvalidPlan(f"the table has {len(measure.columns)} columns and {len(mechanism.variances)} variances")
    weights = [1 / variance for variance in mechanism.variances]
    return ZCDP(round_up(measure.weighted_square(ctx, unit, weights) / 2))


def _joint_losses(ctx: Context, budget: BudgetCap, steps: Sequence[CalibratedMeasure]) -> list[Loss]:
    """Return the losses of steps; linear queries over the same cells are costed jointly where that is cheaper."""
    families: dict[object, list[CalibratedMeasure]] = {}
    for number, step in enumerate(steps):
        linear = isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian)
        base = step.measure.child if isinstance(step.measure, LinearQuery) else step.measure
        families.setdefault((type(step.mechanism), base) if linear else number, []).append(step)
    return [_cheaper_loss(ctx, budget, family) for family in families.values()]


def _cheaper_loss(ctx: Context, budget: BudgetCap, family: Sequence[CalibratedMeasure]) -> Loss:
    """Return the cheaper of the sum of the steps' losses and their joint loss."""
    separate = compose([_step_loss(ctx, budget, step) for step in family])
    joint = _joint_loss(ctx, budget, family) if len(family) > 1 else None
    if joint is None:
        return separate
    cap = filter_of(budget)
    return min(separate, joint, key=cap.femto_cost)


def _joint_loss(ctx: Context, budget: BudgetCap, family: Sequence[CalibratedMeasure]) -> Loss | None:
    """Return the joint loss of linear queries over the same cells, or None if their weights are too many to add up.

    It is the largest column norm of the weights over the noise, times the most that one unit changes the cells.
    """
    base = family[0].measure.child if isinstance(family[0].measure, LinearQuery) else family[0].measure
    size = base.size(ctx)
    if size * size * len(family) > MAX_WEIGHTS:
        return None
    rows = [_query_weights(step.measure, size) for step in family]
    change = base.sensitivity(ctx, budget.unit).l1
    weights = [row for step in rows for row in step]
    noise = [_noise_parameter(step.mechanism) for step, step_rows in zip(family, rows, strict=True) for _ in step_rows]
    if isinstance(family[0].mechanism, DiscreteGaussian):
        return joint_gaussian(weights, noise, change)
    return joint_laplace(weights, noise, change)


def _query_weights(measure: Measure, size: int) -> list[tuple[int, ...]]:
    """Return the weights of a linear query; those of any other measure are the identity matrix."""
    if isinstance(measure, LinearQuery):
        return list(measure.weights)
    return [tuple(int(row == column) for column in range(size)) for row in range(size)]


def _noise_parameter(mechanism: Mechanism) -> Fraction:
    """Return the variance of Gaussian noise, or the scale of Laplace noise."""
    return mechanism.variance if isinstance(mechanism, DiscreteGaussian) else mechanism.scale  # type: ignore[attr-defined]


def _touched_windows(ctx: Context, measures: Iterable[Measure], unit: str) -> tuple[str, ...]:
    """Return the names of the windows that the plans' public time ranges touch."""
    spans = [span for measure in measures if (span := window_range(ctx, measure, unit)) is not None]
    every = ctx.unit(unit).every
    if not spans or every is None:
        return ()
    lo, hi = min(lo for lo, _ in spans), max(hi for _, hi in spans)
    return tuple(window_name(start) for start in period_starts(lo, hi, every))


def window_name(start: int) -> str:
    """Name a window by its first day."""
    return (EPOCH + timedelta(microseconds=start)).strftime("%Y-%m-%d")


def windows_of(ctx: Context, unit: str) -> tuple[str, ...]:
    """Return the names of all windows of a unit within its declared time ranges."""
    declared = ctx.unit(unit)
    spans = [ctx.columns(table)[column] for table, column in declared.times.items()]
    moments = [domain for domain in spans if isinstance(domain, Moment)]
    if not moments or declared.every is None:
        return ()
    lo, hi = min(moment.lo for moment in moments), max(moment.hi for moment in moments)
    return tuple(window_name(start) for start in period_starts(lo, hi, declared.every))


# --- Public facts of the work, and notes for the release ---


def work_of(measures: Iterable[Measure], rows: Mapping[str, int], cells: int) -> Work:
    """Estimate the work of plans: passes and sorts over tables of noisy size `rows`, cells, and plan nodes."""
    nodes = [node for measure in measures for node in walk(measure)]
    scans = [node.table for node in nodes if isinstance(node, Scan)]
    sorting_nodes = (LimitRowsPerUnit, LimitGroupsPerUnit, GroupBy, Distinct, UnitJoin, MarkJoin, KeyJoin, ClippedSums)
    sorts, rows_read = (
        sum(isinstance(node, sorting_nodes) for node in nodes),
        sum(rows.get(table, 0) for table in scans),
    )
    return Work(len(scans), sorts, rows_read, cells, len(nodes))


def describe_processing(ctx: Context, measure: Measure) -> tuple[str, ...]:
    """Describe the clamping, bounding, sampling and correcting in a plan, one note each."""
    notes = [_describe_node(node) for node in walk(measure)]
    tables = sorted({node.table for node in walk(measure) if isinstance(node, Scan) and ctx.table(node.table).private})
    correction = f"values of {', '.join(tables)} outside their declared domains are moved into them" if tables else ""
    return tuple(dict.fromkeys(text for text in (*notes, correction) if text))


def _describe_node(node: Any) -> str:
    """Describe what one node does to the data; "" if it needs no note."""
    match node:
        case LimitRowsPerUnit(unit=unit, limit=limit):
            return f"at most {limit} rows of each {unit} counted, chosen pseudo-randomly"
        case LimitGroupsPerUnit(unit=unit, groups=groups, rows=rows):
            return f"at most {rows} rows of each {unit} in each of at most {groups} groups counted"
        case ClippedSums(unit=unit, bound=bound, norm=norm):
            return f"each {unit}'s sums scaled into an {norm.upper()} ball of radius {bound} steps"
        case KeyJoin(left_limit=left, right_limit=right):
            return f"at most {left} rows on the left and {right} on the right joined for each key"
        case Sample(rate=rate, unit=unit):
            return f"each {unit or 'row'} kept with probability {rate}"
        case Clamp(lo=lo, hi=hi):
            return f"values clamped to between {lo} and {hi}"
        case _:
            return ""
