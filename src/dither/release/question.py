"""Turn a release's description into the request of one table, and solve its noise from a budget or wanted errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isqrt

from dither.errors import InvalidParameter, InvalidQuery, Unbounded
from dither.loss import rational
from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef, Expr, domain_of
from dither.plan.measures.columns import ColumnCounts, CountColumn
from dither.plan.measures.core import Axis, GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.sql.scope import Scope
from dither.post.formulas import NoisyCell
from dither.post.query.parser import parse_query
from dither.post.query.question import Question
from dither.privacy.accounting.conversion import largest_rho
from dither.privacy.budget_loss import column_loss
from dither.privacy.cost import privacy_cost
from dither.privacy.mechanisms import ColumnGaussian, PublicThreshold
from dither.privacy.protocol import Measurement, ReleaseRequest, Request
from dither.release.limits import beyond_text, limit_texts, narrower_text, unbounded_release, window_text
from dither.release.spec import ColumnSpec, KeySpec, ReleaseSpec
from dither.schema import Boolean, Category, Domain, Number, Scalar

NORMAL_95 = Fraction(1959964, 1000000)
DIGITS = 10**6
HALVINGS = 60


@dataclass(frozen=True)
class ReleaseQuestion:
    """The table of a release: its measure, the noise of each column, and the admission of items."""

    spec: ReleaseSpec
    request: ReleaseRequest
    measure: ColumnCounts
    mechanism: ColumnGaussian
    admission: PublicThreshold | None
    axes: tuple[Axis, ...]
    domains: tuple[Domain, ...]
    is_row_level: bool
    squares: tuple[Fraction, ...]  # the most by which one unit changes each column, as a sum of squares
    limits: tuple[str, ...] = ()
    beyond: str = ""
    windows: Mapping[str, str] = field(default_factory=dict)  # in which each window unit's budget is charged
    overlap: int = 1  # the most columns in which one row may count
    narrower: tuple[str, ...] = ()  # how to charge fewer windows, if every one is charged

    @property
    def is_bounded(self) -> bool:
        """True if rows of a unit beyond a limit are left out; `limits` and `beyond` say which, and how many."""
        return bool(self.limits)

    @property
    def rows(self) -> int:
        """The number of declared keys; an admission releases fewer."""
        count = 1
        for axis in self.axes:
            count *= len(axis.values)
        return count


def build_question(spec: ReleaseSpec, ctx: Context) -> ReleaseQuestion:
    """Plan a release in the context of its dataset; refuse what is not a table of counts over declared keys."""
    question = _parse(spec, ctx, spec.columns)
    _check_clauses(spec, question)
    child = _limit_rows(spec, question.relation, question)
    keys = tuple(
        GroupKey(key.name, value, _key_values(ctx, child, key, value))
        for key, (_, value) in zip(spec.keys, question.keys, strict=True)
    )
    measure = ColumnCounts(child, _count_columns(spec, question), keys)
    admission = _admission(spec, ctx, measure)
    threshold = None if admission is None else admission.mechanism
    try:
        mechanism = solve_noise(spec, ctx, measure, admission)
        column_loss(ctx, spec.unit, measure, mechanism)
    except Unbounded:
        raise unbounded_release(spec) from None
    parts = (*(() if admission is None else (admission,)), Measurement(measure, mechanism))
    request = Request(ctx.dataset.name, parts, unit=spec.unit, repeat=spec.repeat)
    scope = Scope(child.domain(ctx))
    domains = tuple(domain_of(key.value, scope) for key in keys)
    is_row = ctx.unit(spec.unit).kind == "row"
    found = threshold if isinstance(threshold, PublicThreshold) else None
    limits = limit_texts(spec, ctx, question.relation)
    windows = privacy_cost(ctx, request, compile_sql=False).windows
    return ReleaseQuestion(
        spec,
        ReleaseRequest(request),
        measure,
        mechanism,
        found,
        measure.axes(ctx),
        domains,
        is_row,
        column_squares(ctx, spec.unit, measure),
        limits,
        beyond_text(spec, ctx, question.relation) if limits else "",
        {unit: window_text(ctx, unit, touched) for unit, touched in windows.items() if touched},
        overlap_of(ctx, spec, measure),
        tuple(filter(None, (narrower_text(ctx, unit, touched) for unit, touched in windows.items()))),
    )


def _parse(spec: ReleaseSpec, ctx: Context, columns: Sequence[ColumnSpec]) -> Question:
    """Parse the SQL that the description stands for."""
    keys = ", ".join(f'{key.sql} AS "{key.name}"' for key in spec.keys)
    counts = ", ".join(
        f'COUNT(*) FILTER (WHERE {column.where}) AS "{column.name}"' if column.where else f'COUNT(*) AS "{column.name}"'
        for column in columns
    )
    where = f" WHERE {spec.where}" if spec.where else ""
    places = ", ".join(str(place + 1) for place in range(len(spec.keys)))
    return parse_query(f"SELECT {keys}, {counts} FROM {spec.source}{where} GROUP BY {places}", ctx.dataset, spec.unit)  # noqa: S608


def _check_clauses(spec: ReleaseSpec, question: Question) -> None:
    """Refuse SQL that has become more than keys and counts: another clause, another column, or one key twice."""
    shape = (len(question.keys), len(question.outputs))
    more = (question.having, question.limit, question.order, question.offset, question.sets)
    if any(more) or shape != (len(spec.keys), len(spec.keys) + len(spec.columns)):
        raise InvalidQuery(
            "the SQL of a release is one expression for each key and one condition for each column, without comments or"
            " further clauses, and no two keys are the same expression"
        )


def _count_columns(spec: ReleaseSpec, question: Question) -> tuple[CountColumn, ...]:
    """Return the columns of counts in the order of the description."""
    found = []
    for column, output in zip(spec.columns, question.outputs[len(spec.keys) :], strict=True):
        if not isinstance(output.node, NoisyCell):
            raise InvalidQuery(f"the column {column.name} must be a count of rows with a condition")
        found.append(CountColumn(column.name, question.aggregates[output.node.index].condition))
    if len({repr(column.condition) for column in found}) != len(found):
        raise InvalidQuery("two columns of the release have the same condition; keep one of them")
    return tuple(found)


def _limit_rows(spec: ReleaseSpec, relation: Relation, question: Question) -> Relation:
    """Bound the rows of each unit as the description says."""
    if spec.value_limit is not None:
        limit = spec.value_limit
        relation = LimitGroupsPerUnit(relation, spec.unit, (ColumnRef(limit.column),), limit.values, limit.rows)
    if spec.max_rows is not None:
        relation = LimitRowsPerUnit(relation, spec.unit, spec.max_rows)
    if spec.key_limit is not None:
        keys = tuple(value for _, value in question.keys)
        relation = LimitGroupsPerUnit(relation, spec.unit, keys, *spec.key_limit)
    return relation


def _key_values(ctx: Context, child: Relation, key: KeySpec, value: Expr) -> tuple[Scalar, ...] | None:
    """Return the listed values of a key in the type of its domain; refuse one that has another type."""
    if key.values is None:
        return None
    domain = domain_of(value, Scope(child.domain(ctx)))
    if isinstance(domain, Boolean):
        return tuple(_listed_truth(key.name, text) for text in key.values)
    if isinstance(domain, Category) and (undeclared := sorted(set(key.values) - set(domain.values))):
        raise InvalidParameter(
            f"the key {key.name} lists {undeclared[0][:40]!r}, which its column never has; it has:"
            f" {', '.join(domain.values[:20])}"
        )
    if isinstance(domain, Number) or getattr(domain, "kind", "") == "integer":
        exact = [rational(text, f"a value of the key {key.name}") for text in key.values]
        return tuple(int(number) if number.denominator == 1 else number for number in exact)
    return key.values


def _listed_truth(name: str, text: str) -> bool:
    """Return the truth value that a text stands for."""
    if text.lower() not in ("true", "false"):
        raise InvalidParameter(f"a value of the key {name} must be true or false, got {text[:40]!r}")
    return text.lower() == "true"


def _admission(spec: ReleaseSpec, ctx: Context, table: ColumnCounts) -> Measurement | None:
    """Return the measurement that admits values of the first key, over all of the table's values of it."""
    if spec.admission is None:
        return None
    alone = replace(spec, columns=(ColumnSpec("admission", spec.admission.where),))
    question = _parse(alone, ctx, alone.columns)
    _check_clauses(alone, question)
    (column,) = _count_columns(alone, question)
    child = question.relation if column.condition is None else Filter(question.relation, column.condition)
    key, values = table.keys[0], tuple(table.axes(ctx)[0].values)
    measure = Count(_limit_rows(spec, child, question), (GroupKey(key.name, question.keys[0][1], key.values),))
    if tuple(measure.axes(ctx)[0].values) != values:  # the condition has narrowed the key's domain
        measure = replace(measure, keys=(replace(measure.keys[0], values=values),))
    return Measurement(measure, PublicThreshold(spec.admission.scale, spec.admission.threshold))


# --- Noise ---


def solve_noise(
    spec: ReleaseSpec, ctx: Context, measure: ColumnCounts, admission: Measurement | None
) -> ColumnGaussian:
    """Return the noise of each column: given, for a wanted error, or the least that the total loss allows."""
    squares = column_squares(ctx, spec.unit, measure)
    sigmas = [_known_sigma(spec, column, square) for column, square in zip(spec.columns, squares, strict=True)]
    if None not in sigmas:
        return ColumnGaussian(tuple(sigma * sigma for sigma in sigmas if sigma is not None))
    total = spec.privacy.rho
    if spec.privacy.epsilon is not None:
        total = largest_rho(spec.privacy.epsilon, spec.privacy.delta)
    if total is None:
        missing = [column.name for column, sigma in zip(spec.columns, sigmas, strict=True) if sigma is None]
        raise InvalidParameter(
            f"the noise of {', '.join(missing)} is not given: give each a sigma or an error, or the release a total"
            " under privacy (rho; epsilon and delta; or column_rho)"
        )
    spent = Fraction(0)
    if admission is not None and isinstance(admission.mechanism, PublicThreshold):
        spent = admission.mechanism.zcdp_loss(admission.measure.sensitivity(ctx, spec.unit)).rho
    return _least_noise(ctx, spec, measure, sigmas, total - spent)


def column_squares(ctx: Context, unit: str, measure: ColumnCounts) -> tuple[Fraction, ...]:
    """Return the most by which one unit changes each column, as a sum of squares; 1 for a row that counts once."""
    places = range(len(measure.columns))
    return tuple(measure.weighted_square(ctx, unit, [Fraction(place == own) for place in places]) for own in places)


def overlap_of(ctx: Context, spec: ReleaseSpec, measure: ColumnCounts) -> int:
    """Return the most columns in which one row may count, as its cost is computed; 1 if each value has a limit."""
    if spec.value_limit is not None:
        return 1
    everything = measure.weighted_square(ctx, spec.unit, [Fraction(1)] * len(measure.columns))
    largest = max(column_squares(ctx, spec.unit, measure))
    return int(everything / largest) if largest else 1


def _known_sigma(spec: ReleaseSpec, column: ColumnSpec, square: Fraction) -> Fraction | None:
    """Return the standard deviation that a column states, or that its wanted error or its k determines."""
    if column.sigma is not None:
        return column.sigma
    if column.error is not None:
        return Fraction(int(column.error / NORMAL_95 * DIGITS), DIGITS)
    if spec.privacy.column_rho is not None:
        return _root_up(column.k * square / (2 * spec.privacy.column_rho))
    return None


def _least_noise(
    ctx: Context, spec: ReleaseSpec, measure: ColumnCounts, sigmas: Sequence[Fraction | None], rho: Fraction
) -> ColumnGaussian:
    """Return the least common noise of the open columns at which all columns together cost at most `rho`."""

    def at(sigma: Fraction) -> ColumnGaussian:
        return ColumnGaussian(tuple((known or sigma) ** 2 for known in sigmas))

    def fits(sigma: Fraction) -> bool:
        return column_loss(ctx, spec.unit, measure, at(sigma)).rho <= rho

    low, high = Fraction(1, 1 << 10), Fraction(1 << 30)
    if not fits(high):
        raise InvalidParameter(
            "the total loss is spent by the admission and the columns whose noise is given; allow more, or add noise"
        )
    for _ in range(HALVINGS):
        middle = Fraction(int((low + high) / 2 * DIGITS), DIGITS)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return at(high)


def _root_up(value: Fraction) -> Fraction:
    """Return a square root, rounded up to six decimals."""
    return Fraction(isqrt(int(value * DIGITS * DIGITS)) + 1, DIGITS)
