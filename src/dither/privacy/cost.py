"""Compute the privacy cost of a request from public facts alone: one function quotes, charges and verifies.

Nothing here reads a record, and nothing is taken on trust from the request: sensitivities follow from the plan and the
schema, scales from the loss that was asked for, and losses from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, assert_never

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.loss import ZCDP, Loss, Pure, Sensitivity
from dither.plan.context import Context
from dither.plan.domains import EPOCH, period_starts
from dither.plan.expressions.numeric import Clamp
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.facts import needs_order, window_range
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.joins import KeyJoin, PublicJoin, UnitJoin
from dither.plan.relations.project import columns_read
from dither.plan.relations.scan import Scan
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import SqlStatement, TableSource
from dither.plan.traversal import fill_limits, unfilled_limits, walk
from dither.privacy.accounting.composition import compose, compose_parallel, joint_gaussian, joint_laplace
from dither.privacy.accounting.filters import filter_of
from dither.privacy.amplification import amplify
from dither.privacy.codec import decode
from dither.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    GaussianThreshold,
    LaplaceThreshold,
    Mechanism,
    PartitionSelection,
    calibrate,
)
from dither.privacy.pacing import Work
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement, QuotedMeasurement, Request, UnitLoss
from dither.schema import Boolean, BudgetCap, Category, Domain, Identifier, Moment, Number, Reference, Table

NAMING = (PartitionSelection, LaplaceThreshold, GaussianThreshold)
KIND_OF: dict[type, str] = {Pure: "pure", ZCDP: "zcdp"}
MOST_WEIGHTS = 1 << 20
MOST_FILLINGS = 1 << 10
MOST_WORK = 40_000
MOST_COLUMNS = 1_600  # PostgreSQL gives up at 1,664, wherever in a statement
MOST_DEPTH = 150  # plans have some 30 to 50 levels; Python and databases give up at several hundred


@dataclass(frozen=True)
class PricedMeasure:
    """A measure and the mechanism that releases it: all that a loss depends on."""

    measure: Measure
    mechanism: Mechanism


@dataclass(frozen=True)
class CostedStep(PricedMeasure):
    """A measure that is ready to be read, its mechanism, and everything public about its release."""

    quoted: QuotedMeasurement


@dataclass(frozen=True)
class PrivacyCost:
    """The cost of a request to every budget, the windows that it touches, and its steps at the widest bounds."""

    losses: tuple[UnitLoss, ...]
    windows: Mapping[str, tuple[str, ...]]
    searches: tuple[CostedStep, ...]
    steps: tuple[CostedStep, ...]

    @property
    def all_steps(self) -> tuple[CostedStep, ...]:
        """The steps in the order in which they are taken."""
        return (*self.searches, *self.steps)


def privacy_cost(ctx: Context, request: Request, compile_sql: bool = True) -> PrivacyCost:
    """Check a whole request against the schema and compute its cost; refuse it if any unit's loss is unbounded.

    A limit is a constant in a plan: other bounds change neither which rows and windows it reads nor its SQL's shape, so
    these are checked at the widest bounds alone. With `compile_sql`, a plan that no database could run is refused; that
    changes no loss, and may change from one version to the next.
    """
    used = {auto.tag for part in request.parts for auto in unfilled_limits(part.measure)}
    if unused := [search.tag[:40] for search in request.searches if search.tag not in used]:
        raise InvalidPlan(f"no part uses the bound {unused[0]!r}: leave out its search")
    searches = tuple(_search_step(ctx, request, search) for search in request.searches)
    parts = [_bounded_part(request.searches, part) for part in request.parts]
    if (many := sum(len(part.choices) for part in parts)) > MOST_FILLINGS:
        raise InvalidPlan(f"the grid of bounds times the parts that use it must be at most {MOST_FILLINGS}, got {many}")
    if sum(sum(1 for _ in walk(p.part.measure)) * len(p.choices) for p in parts if len(p.choices) > 1) > MOST_WORK:
        raise InvalidPlan(f"the parts of a plan times the bounds that they may have must be at most {MOST_WORK}")
    steps = [step_of(ctx, request, part.at(part.choices[-1])) for part in parts]
    widest = [step.measure for step in (*searches, *steps)]
    losses = tuple(
        UnitLoss(budget.unit, budget.kind, _total(ctx, budget, _own_unit(ctx, request), searches, parts, widest))
        for budget in ctx.dataset.budgets
    )
    windows = {
        budget.unit: _windows(ctx, widest, budget.unit)
        for budget in ctx.dataset.budgets
        if ctx.unit(budget.unit).kind == "window"
    }
    for measure in dict.fromkeys(widest) if compile_sql else ():
        check_compilable(ctx, measure)
    return PrivacyCost(losses, windows, searches, tuple(steps))


def _search_step(ctx: Context, request: Request, search: BoundSearch) -> CostedStep:
    """Cost the step that chooses a bound; a rule needs a count for each of its bins, with noise of one distribution."""
    step = step_of(ctx, request, Measurement(search.histogram, search.mechanism))
    if search.rule is not None:
        step.mechanism.std()
        if prod(step.quoted.shape) != len(search.rule.points) + 1:
            raise InvalidPlan(f"the rule of {search.tag[:40]!r} needs {len(search.rule.points) + 1} counts to read")
    return step


def check_compilable(ctx: Context, measure: Measure) -> None:
    """Build the SQL of a plan as an engine would: a plan that no database could run is refused before the charge."""
    sources = {node.table: source_like(ctx.table(node.table)) for node in walk(measure) if isinstance(node, Scan)}
    counted = frozenset(columns_read(measure))
    statement = SqlStatement(ctx, sources, counted_columns=counted, keeps_order=needs_order(measure))
    measure.plan(statement)
    most = max(MOST_COLUMNS, *(len(table.columns) + 64 for table in ctx.dataset.tables.values()))
    if statement.size.depth > MOST_DEPTH or statement.size.columns > most:
        raise Unsupported("the plan would be nested too deeply, or be too wide, for a database; ask for less at once")


def source_like(table: Table) -> TableSource:
    """A table as any engine could hold it."""
    return TableSource(
        exp.table_(table.name), {name: kind_like(column.domain) for name, column in table.columns.items()}
    )


def kind_like(domain: Domain) -> RawKind:
    """The simplest storage type for values of a domain."""
    match domain:
        case Number():
            return "decimal"
        case Boolean():
            return "boolean"
        case Moment():
            return "timestamp"
        case Category():
            return "text"
        case Reference(kind=kind) | Identifier(kind=kind):
            return kind
        case _:
            assert_never(domain)


def recompute_losses(ctx: Context, request: str) -> tuple[tuple[UnitLoss, ...], Mapping[str, tuple[str, ...]]]:
    """Recompute what a recorded request costs and the windows that it touches, for the verifier."""
    cost = privacy_cost(ctx, decode(request.encode(), Request), compile_sql=False)
    return cost.losses, cost.windows


def steps_at_bounds(ctx: Context, request: Request, bounds: Sequence[int]) -> tuple[CostedStep, ...]:
    """The steps that answer, once the bounds are known."""
    found = {search.tag: bound for search, bound in zip(request.searches, bounds, strict=True)}
    return tuple(
        step_of(ctx, request, Measurement(fill_limits(part.measure, found), part.mechanism)) for part in request.parts
    )


@dataclass(frozen=True)
class BoundedPart:
    """A part of a request and the bounds that its limits may get: the smallest first, the largest last."""

    part: Measurement
    choices: tuple[Mapping[str, int], ...]

    def at(self, bounds: Mapping[str, int]) -> Measurement:
        """The part with its limits filled."""
        return Measurement(fill_limits(self.part.measure, bounds), self.part.mechanism) if bounds else self.part

    def price(self, ctx: Context, unit: str, bounds: Mapping[str, int]) -> PricedMeasure:
        """The part's measure at these bounds, with the mechanism that is calibrated for it."""
        measure = self.at(bounds).measure
        return PricedMeasure(measure, _mechanism(self.part.mechanism, measure.sensitivity(ctx, unit)))


def _bounded_part(searches: Sequence[BoundSearch], part: Measurement) -> BoundedPart:
    """A part with every combination of the candidate bounds that its limits may get."""
    tags = {limit.tag for limit in unfilled_limits(part.measure)}
    used = [search for search in searches if search.tag in tags]
    if prod(len(search.grid) for search in used) > MOST_FILLINGS:
        raise InvalidPlan(f"the bounds that a part uses must have at most {MOST_FILLINGS} combinations")
    names = [search.tag for search in used]
    combinations = product(*(search.grid for search in used))
    return BoundedPart(part, tuple(dict(zip(names, each, strict=True)) for each in combinations))


def _own_unit(ctx: Context, request: Request) -> str:
    """The unit that mechanisms are calibrated for."""
    unit = request.unit if request.unit is not None else ctx.dataset.budgets[0].unit
    ctx.unit(unit)
    return unit


def step_of(ctx: Context, request: Request, part: Measurement) -> CostedStep:
    """Make the mechanism of a part, and work out everything public about its release."""
    measure = part.measure
    if unfilled_limits(measure):
        raise InvalidPlan("the plan has an automatic bound that the request does not say how to find")
    check_covered(ctx, measure)
    sensitivity = measure.sensitivity(ctx, _own_unit(ctx, request))
    mechanism = _mechanism(part.mechanism, sensitivity)
    shape, steps = _shape(ctx, measure, mechanism)
    quoted = QuotedMeasurement(
        mechanism, sensitivity, mechanism.loss(sensitivity), steps, shape, describe_processing(ctx, measure)
    )
    return CostedStep(measure, mechanism, quoted)


def check_covered(ctx: Context, plan: Any) -> None:
    """Refuses to read a private table for which no budget pays, but as context: joined to others by its unique key."""
    covered = {table for unit in ctx.budgeted_units for table in ctx.unit(unit).keys}
    free = sorted({name for name in _read(plan) if ctx.table(name).private and name not in covered})
    if free:
        raise Unsupported(
            f"no budget covers the records of {', '.join(free)}: only join them by their unique key to a table that"
            " one covers, or give a unit that covers them a budget"
        )


def _read(plan: Any) -> Iterator[str]:
    """The tables that a plan reads, other than as the context of a join that keeps the other side's rows."""
    if isinstance(plan, Scan):
        yield plan.table
    elif isinstance(plan, PublicJoin) and plan.how != "right":
        # A private table joins here by its enforced unique key only: see PublicJoin.multiplicity.
        yield from _read(plan.child)
    elif isinstance(plan, Measure | Relation):
        yield from (name for part in vars(plan).values() for name in _read(part))


def _mechanism(asked: Mechanism | Calibrate, sensitivity: Sensitivity) -> Mechanism:
    if isinstance(asked, Calibrate):
        options = dict(asked.options)
        if taken := {"kind", "loss", "sensitivity"} & options.keys():
            raise InvalidPlan(f"a mechanism has no option called {', '.join(sorted(taken))}")
        return calibrate(asked.kind, asked.loss, sensitivity, **options)
    return asked


def _shape(ctx: Context, measure: Measure, mechanism: Mechanism) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """The public shape of the vector; undeclared keys have none, and leave through partition selection only."""
    if isinstance(measure, PartitionCounts):
        if not isinstance(mechanism, NAMING):
            raise Unsupported("keys that are not declared leave through partition selection only")
        return (), ()
    steps = measure.steps(ctx)
    shape = (*(len(axis.values) for axis in measure.axes(ctx)), len(steps))
    mechanism.check_length(prod(shape))
    return shape, steps


# --- What it costs ---


def _total(
    ctx: Context,
    budget: BudgetCap,
    unit: str,
    searches: Sequence[CostedStep],
    parts: Sequence[BoundedPart],
    widest: Sequence[Measure],
) -> Loss:
    """The cost of a whole request to one budget; `unit` is the one that mechanisms are calibrated for."""
    single = [part.price(ctx, unit, part.choices[0]) for part in parts if len(part.choices) == 1]
    losses = _together(ctx, budget, [*single, *searches])
    losses += [_largest_loss(ctx, budget, unit, part) for part in parts if len(part.choices) > 1]
    return amplify(ctx, budget.unit, widest, compose(losses))


def _largest_loss(ctx: Context, budget: BudgetCap, unit: str, part: BoundedPart) -> Loss:
    """The largest loss that a part has at any of its bounds.

    What is calibrated for this unit costs at most the loss asked for, at every bound: where the largest bound costs
    just that, no other costs more. Proof: two_steps.md.
    """
    wanted, widest = part.part.mechanism, part.price(ctx, unit, part.choices[-1])
    calibrated = isinstance(wanted, Calibrate) and budget.unit == unit and budget.kind == KIND_OF.get(type(wanted.loss))
    if calibrated and _loss(ctx, budget, widest) == wanted.loss:
        return wanted.loss
    return compose_parallel([_loss(ctx, budget, part.price(ctx, unit, each)) for each in part.choices])


def _loss(ctx: Context, budget: BudgetCap, step: PricedMeasure) -> Loss:
    """The loss of one step to one budget, in the kind that the budget counts."""
    sensitivity = step.measure.sensitivity(ctx, budget.unit)
    return step.mechanism.zcdp_loss(sensitivity) if budget.kind == "zcdp" else step.mechanism.loss(sensitivity)


def _together(ctx: Context, budget: BudgetCap, steps: Sequence[PricedMeasure]) -> list[Loss]:
    """The losses of several steps, those over one partition at their joint cost where that is less."""
    families: dict[object, list[PricedMeasure]] = {}
    for number, step in enumerate(steps):
        linear = isinstance(step.mechanism, DiscreteLaplace | DiscreteGaussian)
        base = step.measure.child if isinstance(step.measure, LinearQuery) else step.measure
        families.setdefault((type(step.mechanism), base) if linear else number, []).append(step)
    return [_cheaper(ctx, budget, family) for family in families.values()]


def _cheaper(ctx: Context, budget: BudgetCap, family: Sequence[PricedMeasure]) -> Loss:
    alone = compose([_loss(ctx, budget, step) for step in family])
    joint = _joint(ctx, budget, family) if len(family) > 1 else None
    if joint is None:
        return alone
    cap = filter_of(budget)
    return min(alone, joint, key=cap.femto_cost)


def _joint(ctx: Context, budget: BudgetCap, family: Sequence[PricedMeasure]) -> Loss | None:
    """The largest column norm of the noise-weighted matrix, times how far one unit moves the partition below it."""
    base = family[0].measure.child if isinstance(family[0].measure, LinearQuery) else family[0].measure
    size = base.size(ctx)
    if size * size * len(family) > MOST_WEIGHTS:
        return None
    rows = [_weights(step.measure, size) for step in family]
    moved = base.sensitivity(ctx, budget.unit).l1
    weights = [row for step in rows for row in step]
    noise = [_noise(step.mechanism) for step, made in zip(family, rows, strict=True) for _ in made]
    if isinstance(family[0].mechanism, DiscreteGaussian):
        return joint_gaussian(weights, noise, moved)
    return joint_laplace(weights, noise, moved)


def _weights(measure: Measure, size: int) -> list[tuple[int, ...]]:
    if isinstance(measure, LinearQuery):
        return list(measure.weights)
    return [tuple(int(row == column) for column in range(size)) for row in range(size)]


def _noise(mechanism: Mechanism) -> Fraction:
    return mechanism.variance if isinstance(mechanism, DiscreteGaussian) else mechanism.scale  # type: ignore[attr-defined]


def _windows(ctx: Context, measures: Iterable[Measure], unit: str) -> tuple[str, ...]:
    """The names of the windows that the plans' public time ranges touch."""
    spans = [span for measure in measures if (span := window_range(ctx, measure, unit)) is not None]
    every = ctx.unit(unit).every
    if not spans or every is None:
        return ()
    lo, hi = min(lo for lo, _ in spans), max(hi for _, hi in spans)
    return tuple(window_name(start) for start in period_starts(lo, hi, every))


def window_name(start: int) -> str:
    """A window by its first day."""
    return (EPOCH + timedelta(microseconds=start)).strftime("%Y-%m-%d")


def windows_of(ctx: Context, unit: str) -> tuple[str, ...]:
    """Every window of a unit within its declared times."""
    declared = ctx.unit(unit)
    spans = [ctx.columns(table)[column] for table, column in declared.times.items()]
    moments = [domain for domain in spans if isinstance(domain, Moment)]
    if not moments or declared.every is None:
        return ()
    lo, hi = min(moment.lo for moment in moments), max(moment.hi for moment in moments)
    return tuple(window_name(start) for start in period_starts(lo, hi, declared.every))


# --- What is public about the work, and what was done ---


def work_of(measures: Iterable[Measure], rows: Mapping[str, int], cells: int) -> Work:
    """Passes and sorts over the tables that the plans name, by their noisy sizes; cells and the plans' own size."""
    nodes = [node for measure in measures for node in walk(measure)]
    scans = [node.table for node in nodes if isinstance(node, Scan)]
    heavy = (LimitRowsPerUnit, LimitGroupsPerUnit, GroupBy, Distinct, UnitJoin, KeyJoin, ClippedSums)
    sorts, read = sum(isinstance(node, heavy) for node in nodes), sum(rows.get(table, 0) for table in scans)
    return Work(len(scans), sorts, read, cells, len(nodes))


def describe_processing(ctx: Context, measure: Measure) -> tuple[str, ...]:
    """The clamping, bounding and sampling of a plan, in words."""
    found = [_words(node) for node in walk(measure)]
    tables = sorted({node.table for node in walk(measure) if isinstance(node, Scan) and ctx.table(node.table).private})
    corrected = f"values of {', '.join(tables)} outside their declared domains corrected into them" if tables else ""
    return tuple(dict.fromkeys(text for text in (*found, corrected) if text))


def _words(node: Any) -> str:
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
