"""Random schemas, plans, measures and hostile tables, all from one `random.Random` (Hypothesis supplies it)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pyarrow as pa

from dither.errors import DitherError
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context, PublicTableFacts
from dither.plan.domains import cardinality, domain_values
from dither.plan.sql.scope import Scope
from dither.schema import (
    Boolean,
    Category,
    Column,
    Dataset,
    Domain,
    Identifier,
    Moment,
    Number,
    Reference,
    Source,
    Table,
    Unit,
)
from plan.reference import Raw, period, read

DAY = 86_400_000_000
CENTRE = x.EstimatedValue("centre", -4, 9, Fraction(1, 2), 3)  # a value that a search has chosen
SMALL_NUMBERS = [0, 1, -3, 7, Fraction(1, 2), Fraction(-5, 3)]
NOWHERE = Source("parquet", {"path": "nowhere"})
ARROW = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.decimal128(18, 3),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
STRINGS = [
    "",
    "abc",
    "nan",
    "Infinity",
    "1e5",
    "-3.5",
    "12",
    "99999999999999999999",
    "'; DROP TABLE x; --",
    " 7",
    "0x10",
    "\u202eé",
    "z" * 300,
    "1970-02-30",
]
STEPS: tuple[str, ...] = (
    "where", "where", "project", "union", "distinct", "public", "public", "unit", "mark", "key", "group", "group",
    "sample", "rows", "rows", "groups",
)  # fmt: skip
# One name in several spellings, and names that only look alike.
SPELLINGS = ["é", "e\u0301", "\u1e69", "s\u0323\u0307", "s\u0307\u0323", "K", "\u212a", "e", "é "]
WORDS = ["FR", "DE", "fr", "É", "é", "Straße", "x'y", "日本", "", "_%", "I"]


@dataclass(frozen=True)
class Case:
    """A dataset description, its records, a relation and a measure on it."""

    ctx: Context
    data: dict[str, Raw]
    relation: r.Relation
    measure: m.Measure | None


# ---------------------------------------------------------------- schemas and records


def number_domain(rng: Random) -> Number:
    step = rng.choice([Fraction(1), Fraction(1), Fraction(1, 100), Fraction(5), Fraction(1, 3)])
    lo = rng.choice([-1000, -7, -1, 0, 0, 1, 18])
    hi = lo + rng.choice([0, 1, 3, 47, 300])
    if rng.random() < 0.05:
        lo, hi, step = -(2**60), 2**61, Fraction(1)
    return Number(lo * step, hi * step, step, rng.random() < 0.3)


def moment_domain(rng: Random) -> Moment:
    lo = rng.choice([0, 1_577_836_800_000_000, -62_135_596_800_000_000, -DAY * 400, 1_583_000_000_123_456])
    hi = lo + rng.choice([DAY // 2, DAY * 3, DAY * 100, DAY * 800])
    if rng.random() < 0.1:
        lo, hi = -62_135_596_800_000_000, 253_402_300_799_999_999
    precision = rng.choice(["day", "hour", "second", "microsecond", "microsecond"])
    length = {"day": DAY, "hour": DAY // 24, "second": 10**6, "microsecond": 1}[precision]
    return Moment(lo // length * length, hi // length * length, precision, rng.random() < 0.2)


def category_domain(rng: Random) -> Category:
    return Category(tuple(rng.sample(WORDS, rng.choice([1, 2, 3, 6]))), rng.random() < 0.3)


KINDS: dict[str, list[str]] = {
    "number": ["integer", "float", "float", "text", "decimal", "boolean", "date"],
    "moment": ["timestamp", "instant", "date", "text", "float"],
    "category": ["text", "text", "text", "integer", "boolean"],
    "boolean": ["boolean", "boolean", "integer", "text", "float"],
    "integer": ["integer", "integer", "text", "float"],
    "text": ["text", "text", "integer"],
}


def family(domain: Domain) -> str:
    return domain.kind if isinstance(domain, Reference | Identifier) else type(domain).__name__.lower()


def record(rng: Random, domain: Domain, kind: str, names: list[int]) -> Any:
    """One raw value of a stored kind, often inside the domain, often hostile."""
    if rng.random() < 0.12:
        return None
    hostile = rng.random() < 0.2
    match kind:
        case "integer":
            if hostile:
                return rng.choice([2**63 - 1, -(2**63), 0, -1, 2**31])
            return rng.choice(names) if isinstance(domain, Reference | Identifier) else _near(rng, domain)
        case "float":
            if hostile:
                return rng.choice([math.nan, math.inf, -math.inf, 1e308, -0.0, 5e-324, 0.5])
            return (
                float(rng.choice(names))
                if isinstance(domain, Reference | Identifier)
                else float(_near(rng, domain)) + rng.choice([0, 0.5, 0.25])
            )
        case "decimal":
            return (
                Decimal(rng.choice([0, 1, -1, 999999999])) / 8
                if hostile
                else Decimal(max(-(10**12), min(10**12, _near(rng, domain)))) / rng.choice([1, 4])
            )
        case "text":
            if hostile:
                return rng.choice(STRINGS)
            return _word(rng, domain, names)
        case "boolean":
            return rng.random() < 0.5
        case "timestamp" | "instant":
            return rng.choice([0, -(10**17), 10**18, 253_402_300_799_999_999]) if hostile else _near(rng, domain)
        case "date":
            return (
                rng.choice([0, -719162, 2932896])
                if hostile or not isinstance(domain, Moment)
                else _near(rng, domain) // DAY
            )


def _near(rng: Random, domain: Domain) -> int:
    if isinstance(domain, Number):
        return rng.choice(
            [
                math.floor(domain.lo),
                math.ceil(domain.hi),
                rng.randint(math.floor(domain.lo) - 2, math.ceil(domain.hi) + 2),
            ]
        )
    if isinstance(domain, Moment):
        return rng.choice([domain.lo, domain.hi, rng.randint(domain.lo, domain.hi)])
    return rng.choice([0, 1, 2])


def _word(rng: Random, domain: Domain, names: list[int]) -> str:
    if isinstance(domain, Category):
        return rng.choice([*domain.values, "E\u0301"])
    if isinstance(domain, Reference | Identifier):
        return rng.choice([str(rng.choice(names)), rng.choice(SPELLINGS)])
    if isinstance(domain, Moment):
        return rng.choice(
            [
                "2020-01-05",
                "2020-02-29 12:34:56",
                "1999-12-31T23:59:59.999999",
                "0001-01-01",
                "2021-02-29",
                "2020-03-29T01:30:00Z",
                "2020-01-01 00:30:00.123456789+05:30",
                "2020-10-25 00:59-01",
            ]
        )
    return str(_near(rng, domain))


def schema(rng: Random) -> Dataset:
    kind = rng.choice(["integer", "integer", "text"])
    item = rng.choice(["integer", "text"])
    unique = rng.random() < 0.7
    tables = {
        "people": _table("people", True, {
            "pid": Identifier(kind), "age": number_domain(rng), "country": category_domain(rng),
            "ok": Boolean(rng.random() < 0.5),
        }, "pid" if unique else None),
        "events": _table("events", True, {
            "pid": Identifier(kind), "item": Reference("items", "item", item, rng.random() < 0.3),
            "kind": category_domain(rng), "amount": number_domain(rng), "t": moment_domain(rng),
        }),
        "items": _table("items", False, {
            "item": Identifier(item), "topic": category_domain(rng), "price": number_domain(rng),
        }, "item" if rng.random() < 0.5 else None),
    }  # fmt: skip
    units = {"user": Unit("user", "user", {"people": "pid", "events": "pid"})}
    if rng.random() < 0.5:
        units["event"] = Unit("event", "row", {"events": None})
    if rng.random() < 0.4:
        units["window"] = Unit(
            "window", "window", {"events": "pid"}, {"events": "t"}, rng.choice(["day", "week", "month", "year"])
        )
    units = with_cap(Random(repr(tables)), units)
    zone = rng.choice(["UTC", "UTC", "UTC", "Europe/Paris", "America/New_York"])
    moment = tables["events"].columns["t"].domain
    if zone != "UTC" and (moment.lo < 0 or moment.hi > 4_000_000_000_000_000):
        zone = "UTC"
    return Dataset("d", "p", "1", tables, units, (), timezone=zone)


def with_cap(rng: Random, units: dict[str, Unit]) -> dict[str, Unit]:
    """Now and then, cap the rows of a unit in one of its tables; this draws from numbers of its own."""
    capped = rng.choice([None, None, *(unit for unit in units.values() if unit.kind != "row")])
    if capped is None:
        return units
    caps = {table: rng.randint(1, 3) for table in capped.keys if rng.random() < 0.8}
    return units | {capped.name: replace(capped, max_rows=caps)}


def _table(name: str, private: bool, columns: dict[str, Domain], unique: str | None = None) -> Table:
    return Table(name, private, {key: Column(key, domain) for key, domain in columns.items()}, NOWHERE, unique)


def records(rng: Random, dataset: Dataset) -> dict[str, Raw]:
    people = rng.sample([1, 2, 3, 7, 2**40], 4)
    things = [1, 2, 3]
    data = {}
    for name, table in dataset.tables.items():
        kinds = {key: rng.choice(KINDS[family(column.domain)]) for key, column in table.columns.items()}
        rows = []
        for _ in range({"people": rng.randint(0, 6), "events": rng.randint(0, 12), "items": rng.randint(0, 4)}[name]):
            rows.append({
                key: record(rng, column.domain, kinds[key], people if key == "pid" else things)
                for key, column in table.columns.items()
            })  # fmt: skip
            while rows and rng.random() < 0.15:
                rows.append(dict(rows[-1]))
        data[name] = Raw(kinds, rows)
    return data


def facts(dataset: Dataset, data: dict[str, Raw]) -> PublicTableFacts:
    """What an engine would count in the public table."""
    from plan.reference import Interpreter

    if "items" not in dataset.tables:
        return PublicTableFacts()
    interpreter = Interpreter(Context(dataset), data)
    rows = interpreter.rows(r.Scan("items"))
    multiplicity, values = {}, {}
    for name in dataset.tables["items"].columns:
        found = [row.cells[name] for row in rows if row.cells[name] is not None]
        multiplicity[f"items.{name}"] = max((found.count(value) for value in found), default=0)
        values[f"items.{name}"] = tuple(sorted(set(found)))
    return PublicTableFacts({key: values[key] for key in ("items.item",) if key in values}, multiplicity)


# ---------------------------------------------------------------- expressions


class Writer:
    """Writes expressions over given columns; what the language refuses is thrown away."""

    def __init__(self, rng: Random, columns: dict[str, Domain], exact: bool) -> None:
        self.rng, self.columns, self.exact = rng, columns, exact
        self.scope = Scope(columns)

    def of(self, *kinds: type) -> list[x.Expr]:
        return [x.ColumnRef(name) for name, domain in self.columns.items() if isinstance(domain, kinds)]

    def safe(self, make: Callable[[], x.Expr], fallback: Callable[[], x.Expr]) -> x.Expr:
        for _ in range(3):
            try:
                node = make()
                node.domain(self.scope)
                return node
            except DitherError:
                continue
        return fallback()

    def number(self, depth: int) -> x.Expr:
        leaves = self.of(Number) or [x.LiteralValue(2)]
        if depth <= 0 or self.rng.random() < 0.25:
            return self.rng.choice([*leaves, *leaves, CENTRE, x.LiteralValue(self.rng.choice(SMALL_NUMBERS))])
        return self.safe(lambda: self._number(depth - 1), lambda: self.rng.choice(leaves))

    def _number(self, depth: int) -> x.Expr:
        rng, a = self.rng, lambda: self.number(depth)
        choices: list[Callable[[], x.Expr]] = [
            lambda: x.Arithmetic(rng.choice(["+", "-", "*", "/", "%"]), a(), a()),
            lambda: x.Arithmetic("/", a(), a()),
            lambda: x.Absolute(a()),
            lambda: x.Rounded(
                rng.choice(["floor", "ceil", "round"]), a(), rng.choice([Fraction(1), Fraction(1, 10), Fraction(7)])
            ),
            lambda: x.Clamp(a(), Fraction(rng.choice([-5, 0])), Fraction(rng.choice([1, 20]))),
            lambda: x.Rescale(a(), rng.choice([1, 10, 1000])),
            lambda: x.LeastGreatest(rng.choice(["least", "greatest"]), (a(), a())),
            lambda: x.Case(
                ((self.truth(depth), a()), (self.truth(depth), a())), rng.choice([a(), x.LiteralValue(None)])
            ),
            lambda: x.Coalesce((a(), a())),
            lambda: x.NullIf(a(), a()),
            lambda: x.AsNumber(self.truth(depth)),
            lambda: x.Bucket(a(), (Fraction(0), Fraction(1, 2), Fraction(10))),
            lambda: x.Function("sqrt", a()),
        ]
        if not self.exact:
            choices += [
                lambda: x.Function(rng.choice(["ln", "exp", "logistic"]), a()),
                lambda: x.Power(
                    a(), rng.choice([Fraction(2), Fraction(3), Fraction(1, 2), Fraction(-1), Fraction(-3)])
                ),
            ]
        if self.of(Moment):
            part = rng.choice(
                ["year", "quarter", "month", "week", "day", "hour", "minute", "second", "dayofweek", "dayofyear"]
            )
            every = rng.choice(["second", "minute", "hour", "day", "week", "month", "quarter", "year"])
            choices += [
                lambda: x.DatePart(part, self.moment(depth)),
                lambda: x.DateDiff(every, self.moment(depth), self.moment(depth)),
            ]
        return rng.choice(choices)()

    def moment(self, depth: int) -> x.Expr:
        leaves = [*self.of(Moment), x.Instant(1_580_000_000_000_000)]
        if depth <= 0 or self.rng.random() < 0.5:
            return self.rng.choice(leaves)
        every = self.rng.choice(["second", "minute", "hour", "day", "week", "month", "quarter", "year"])
        return self.safe(
            lambda: self.rng.choice([
                lambda: x.DateTrunc(every, self.moment(depth - 1)),
                lambda: x.MovedMoment(
                    self.moment(depth - 1), self.rng.choice([0, 1, -1, 12, -25]), self.rng.choice([0, DAY, -DAY // 24])
                ),
                lambda: x.LeastGreatest("least", (self.moment(depth - 1), self.moment(depth - 1))),
                lambda: x.Coalesce((self.moment(depth - 1), self.moment(depth - 1))),
            ])(),
            lambda: self.rng.choice(leaves),
        )  # fmt: skip

    def category(self, depth: int) -> x.Expr:
        leaves = [*self.of(Category), x.LiteralValue("FR")]
        if depth <= 0 or self.rng.random() < 0.4:
            return self.rng.choice(leaves)
        return self.safe(
            lambda: self.rng.choice([
                lambda: x.TextCase(self.rng.choice(["lower", "upper"]), self.category(depth - 1)),
                lambda: x.TextSlice(self.category(depth - 1), self.rng.choice([1, 2]), self.rng.choice([None, 0, 1])),
                lambda: x.Case(((self.truth(depth - 1), self.category(depth - 1)),), self.category(depth - 1)),
                lambda: x.Coalesce((self.category(depth - 1), x.LiteralValue("x'y"))),
                lambda: x.NullIf(self.category(depth - 1), x.LiteralValue("DE")),
            ])(),
            lambda: self.rng.choice(leaves),
        )  # fmt: skip

    def truth(self, depth: int) -> x.Expr:
        leaves = [*self.of(Boolean), x.LiteralValue(True), x.LiteralValue(None)]
        if depth <= 0 and self.rng.random() < 0.4:
            return self.rng.choice(leaves)
        return self.safe(lambda: self._truth(depth - 1), lambda: self.rng.choice(leaves))

    def _truth(self, depth: int) -> x.Expr:
        rng, op = self.rng, self.rng.choice(["=", "<>", "<", "<=", ">", ">="])
        n = max(depth, 0)
        columns = [x.ColumnRef(name) for name in self.columns]
        choices: list[Callable[[], x.Expr]] = [
            lambda: x.Compare(op, self.number(n), self.number(n)),
            lambda: x.Compare(op, self.number(n), x.LiteralValue(rng.choice([0, 18, 20]))),
            lambda: x.Compare(op, self.moment(n), self.moment(n)),
            lambda: x.Compare(rng.choice(["=", "<>", op]), self.category(n), x.LiteralValue(rng.choice(WORDS))),
            lambda: x.In(self.category(n), tuple(rng.sample(WORDS, 2))),
            lambda: x.In(self.number(n), (0, 18, Fraction(1, 2))),
            lambda: x.TextMatch(
                rng.choice(["prefix", "suffix", "contains"]), self.category(n), rng.choice(["F", "é", "", "_"])
            ),
            lambda: x.IsNull(rng.choice([self.number(n), self.category(n), *columns])),
            lambda: x.Not(self.truth(n)),
            lambda: x.And((self.truth(n), self.truth(n))),
            lambda: x.Or((self.truth(n), self.truth(n))),
        ]
        names = [c for c in columns if isinstance(self.columns[c.name], Identifier | Reference)]
        if names:
            choices.append(lambda: x.Compare("=", rng.choice(names), x.LiteralValue(rng.choice([1, "1", 2]))))
        return rng.choice(choices)()

    def any(self, depth: int) -> x.Expr:
        return self.rng.choice(
            [
                self.number,
                self.category,
                self.truth,
                self.moment,
                lambda _: x.ColumnRef(self.rng.choice(list(self.columns))),
            ]
        )(depth)


# ---------------------------------------------------------------- relations


class Planner:
    """Grows a plan from a scan upwards; steps that are refused are left out."""

    def __init__(self, rng: Random, ctx: Context, exact: bool = True, single: bool = False) -> None:
        self.rng, self.ctx, self.exact, self.single, self.fresh = rng, ctx, exact, single, 0

    def name(self) -> str:
        self.fresh += 1
        return f"n{self.fresh}"

    def writer(self, node: r.Relation) -> Writer:
        return Writer(self.rng, node.domain(self.ctx), self.exact)

    def valid(self, node: r.Relation) -> bool:
        try:
            domain = node.domain(self.ctx)
            for unit in self.ctx.dataset.units:
                node.stability(self.ctx, unit)
            return len(domain) <= 14
        except DitherError:
            return False

    def relation(self, depth: int, table: str | None = None) -> r.Relation:
        node: r.Relation = r.Scan(table or self.rng.choice(["people", "events", "events"]))
        for level in range(depth):
            grown = self.step(node, depth - level)
            node = grown if self.valid(grown) else node
        return node

    def renamed(self, node: r.Relation) -> r.Relation:
        return r.Project(node, tuple((self.name(), x.ColumnRef(name)) for name in node.domain(self.ctx)))

    def step(self, node: r.Relation, depth: int) -> r.Relation:
        try:
            return self._step(node, depth)
        except (DitherError, IndexError, StopIteration):
            return node

    def _step(self, node: r.Relation, depth: int) -> r.Relation:
        rng, w = self.rng, self.writer(node)
        keyed = [n for n, u in self.ctx.dataset.units.items() if u.kind != "row"]
        unit = rng.choice(keyed)
        limit = rng.choice([1, 1, 2, 3, 8])
        kind = rng.choice(STEPS)
        match kind:
            case "where":
                return r.Filter(node, w.truth(rng.choice([0, 1, 2, 3])))
            case "project":
                names = list(w.columns)
                kept = tuple((name, x.ColumnRef(name)) for name in rng.sample(names, rng.randint(0, len(names))))
                return r.Project(
                    node, kept + tuple((self.name(), w.any(2)) for _ in range(rng.randint(0 if kept else 1, 2)))
                )
            case "union":
                other = node if rng.random() < 0.5 else r.Filter(node, w.truth(1))
                return r.Union(node, other)
            case "distinct":
                columns = rng.sample(list(w.columns), rng.randint(1, min(3, len(w.columns))))
                child = (
                    r.Project(node, tuple((name, x.ColumnRef(name)) for name in columns))
                    if rng.random() < 0.7
                    else node
                )
                return r.Distinct(child, rng.choice([None, unit]))
            case "public":
                return self._public(node, w)
            case "unit":
                other = self.renamed(self.relation(min(depth - 1, 2)))
                other = r.LimitRowsPerUnit(other, unit, limit) if rng.random() < 0.5 else other
                return r.UnitJoin(node, other, unit, rng.choice(["inner", "left"]))
            case "mark":
                other = self.relation(min(depth - 1, 2))
                node = r.LimitRowsPerUnit(node, unit, limit) if rng.random() < 0.5 else node
                return r.MarkJoin(node, other, unit, self.name())
            case "key":
                other = self.renamed(self.relation(min(depth - 1, 1)))
                pairs = [
                    (a, b)
                    for a, d in w.columns.items()
                    for b, e in other.domain(self.ctx).items()
                    if family(d) == family(e)
                ]
                return r.KeyJoin(node, other, (rng.choice(pairs),), limit, rng.choice([1, 2]))
            case "group":
                keys = tuple((self.name(), w.any(1)) for _ in range(rng.choice([0, 1, 1, 2])))
                aggregates = tuple(self._aggregate(w) for _ in range(rng.choice([0, 1, 2])))
                by = rng.choice([None, unit, unit])
                if not keys and by is None and not self.single:
                    by = unit
                keys = keys or (((self.name(), w.any(0)),) if not aggregates else ())
                return r.GroupBy(node, keys, aggregates, by)
            case "sample":
                return r.Sample(
                    node, Fraction(rng.choice([1, 2, 3]), 3), rng.choice([None, unit]), rng.choice(["", "b"])
                )
            case "rows":
                return r.LimitRowsPerUnit(node, unit, limit)
            case _:
                keys = tuple(w.any(1) for _ in range(rng.choice([1, 1, 2])))
                return r.LimitGroupsPerUnit(node, unit, keys, rng.choice([1, 2]), limit)

    def _aggregate(self, w: Writer) -> r.GroupAggregate:
        kind = self.rng.choice(["count", "count", "distinct", "sum", "avg", "min", "max"])
        value = w.any(1) if kind == "distinct" else w.number(1)
        return r.GroupAggregate(self.name(), kind, None if kind == "count" and self.rng.random() < 0.5 else value)

    def _public(self, node: r.Relation, w: Writer) -> r.Relation:
        public: r.Relation = self.renamed(r.Scan("items"))
        if self.rng.random() < 0.3:
            public = r.Filter(public, Writer(self.rng, public.domain(self.ctx), self.exact).truth(1))
        columns = public.domain(self.ctx)
        pairs = [(a, b) for a, d in w.columns.items() for b, e in columns.items() if family(d) == family(e)]
        return r.PublicJoin(node, public, (self.rng.choice(pairs),), self.rng.choice(["inner", "left", "right"]))

    # ------------------------------------------------------------ measures

    def measure(self, node: r.Relation) -> m.Measure | None:
        for _ in range(6):
            try:
                return self._checked(self._measure(node))
            except (DitherError, IndexError):
                continue
        return None

    def _checked(self, measure: m.Measure) -> m.Measure:
        if measure.size(self.ctx) > 400:
            raise IndexError
        found = []
        for unit in self.ctx.dataset.units:
            try:
                found.append(measure.sensitivity(self.ctx, unit))
            except DitherError:
                continue
        if not found:
            raise IndexError
        return measure

    def _measure(self, node: r.Relation) -> m.Measure:
        rng, ctx = self.rng, self.ctx
        keyed = [n for n, u in ctx.dataset.units.items() if u.kind != "row" and node.stability(ctx, n).tracks_unit]
        bounded = node.stability(ctx, "user").max_rows is not None
        kind = rng.choice(
            [
                "count",
                "count",
                "sum",
                "sums",
                "clipped",
                "clipped",
                "linear",
                "units",
                "contributions",
                "columns",
            ]
        )
        if kind in ("clipped", "units", "contributions") and keyed:
            unit = rng.choice(keyed)
            if kind == "clipped":
                values = tuple(self.writer(node).number(1) for _ in range(rng.choice([1, 1, 2])))
                if rng.random() < 0.4:
                    values = (x.LiteralValue(rng.choice([1, 1, 2, -3])),)
                return m.ClippedSums(
                    node, unit, values, rng.choice([1, 2, 5, 100, 10**6]), rng.choice(["l1", "l2"]), self.keys(node)
                )
            if kind == "units":
                return m.count_units(node, unit, self.keys(node))
            return m.contributions(node, unit, (Fraction(2), Fraction(3), Fraction(6)))
        if not bounded and keyed:
            node = self._bound(node, rng.choice(keyed))
        w = self.writer(node)
        match kind:
            case "sum":
                return m.Sum(node, w.number(2), self.keys(node))
            case "sums":
                return m.SumVector(node, (x.LiteralValue(1), w.number(1), w.number(1)), self.keys(node))
            case "columns":
                columns = tuple(m.CountColumn(f"n{i}", self._column_condition(w)) for i in range(rng.choice([1, 2, 4])))
                return m.ColumnCounts(node, columns, self.keys(node))
            case "linear":
                child = m.Count(node, self.keys(node))
                rows = tuple(
                    tuple(rng.choice([-2, 0, 1, 3]) for _ in range(child.size(ctx)))
                    for _ in range(rng.choice([1, 2, 3]))
                )
                return m.LinearQuery(child, rows)
            case _:
                return (
                    m.Count(self._same_keys(node), self.keys(node))
                    if rng.random() < 0.6
                    else self._by_bounded_keys(node)
                )

    def _column_condition(self, w: Writer) -> x.Expr | None:
        """None, some values of a category, one number, or any condition; often with another one."""
        rng, texts, numbers = self.rng, w.of(Category), w.of(Number)
        parts: list[x.Expr] = []
        if texts and rng.random() < 0.6:
            parts.append(x.In(rng.choice(texts), tuple(rng.sample(WORDS, rng.choice([1, 2])))))
        if numbers and rng.random() < 0.3:
            parts.append(x.Compare("=", rng.choice(numbers), x.LiteralValue(rng.choice([0, 1, 18]))))
        if rng.random() < 0.3:
            parts.append(w.truth(1))
        return x.And(tuple(parts)) if parts else None

    def _same_keys(self, node: r.Relation) -> r.Relation:
        return node

    def _by_bounded_keys(self, node: r.Relation) -> m.Measure:
        keys = self.keys(node) or (m.GroupKey("c", x.LiteralValue("a")),)
        child = r.LimitGroupsPerUnit(
            node, "user", tuple(key.value for key in keys), self.rng.choice([1, 2]), self.rng.choice([1, 2])
        )
        return m.Count(child, keys)

    def _bound(self, node: r.Relation, unit: str) -> r.Relation:
        return r.LimitRowsPerUnit(node, unit, self.rng.choice([1, 2, 3, 5]))

    def keys(self, node: r.Relation) -> tuple[m.GroupKey, ...]:
        w, result = self.writer(node), []
        for index in range(self.rng.choice([0, 1, 1, 2])):
            value = w.any(1)
            domain = value.domain(w.scope)
            try:
                public = self.ctx.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
                if cardinality(domain, public) > 60:
                    continue
                declared = domain_values(domain, 60, public)
            except DitherError:
                continue
            some = tuple(self.rng.sample(declared, self.rng.randint(1, len(declared)))) if declared else None
            result.append(m.GroupKey(f"k{index}", value, some if self.rng.random() < 0.2 else None))
        return tuple(result)


def case(rng: Random, exact: bool = True, single: bool = False) -> Case:
    """A whole random case."""
    return cases(rng, 1, exact, single)[0]


def cases(rng: Random, size: int, exact: bool = True, single: bool = False) -> list[Case]:
    """Several random plans on one random dataset."""
    dataset = schema(rng)
    data = records(rng, dataset)
    ctx = Context(dataset, facts(dataset, data))
    found = []
    for _ in range(size):
        planner = Planner(rng, ctx, exact, single)
        node = planner.relation(rng.choice([0, 1, 2, 3, 4, 5, 6]))
        found.append(Case(ctx, data, node, planner.measure(node)))
    return found


# ---------------------------------------------------------------- neighbours


def neighbours(rng: Random, case: Case, most: int) -> list[tuple[str, dict[str, Raw]]]:
    """Datasets that lack all rows of one unit, for each kind of unit; and one with a unit of many rows added."""
    found: list[tuple[str, dict[str, Raw]]] = []
    dataset = case.ctx.dataset
    for name, unit in dataset.units.items():
        places: dict[Any, dict[str, list[int]]] = {}
        for table in unit.keys:
            for index, row in enumerate(case.data[table].rows):
                place = _place(case, unit, table, index, row)
                if place is not None:
                    places.setdefault(place, {}).setdefault(table, []).append(index)
        chosen = list(places.values())
        rng.shuffle(chosen)
        found += [(name, _without(case.data, rows)) for rows in chosen[:most]]
    return found


def _place(case: Case, unit: Unit, table: str, index: int, row: dict[str, Any]) -> Any:
    declared, kinds, zone = case.ctx.table(table), case.data[table].kinds, case.ctx.dataset.timezone
    if unit.kind == "row":
        return (table, index)
    key = read(declared.columns[unit.keys[table]], row[unit.keys[table]], kinds[unit.keys[table]], zone)
    if unit.kind == "user" or key is None:
        return key
    time = unit.times[table]
    moment = read(declared.columns[time], row[time], kinds[time], zone)
    return None if moment is None else (key, period(moment, unit.every))


def _without(data: dict[str, Raw], rows: dict[str, list[int]]) -> dict[str, Raw]:
    return {
        name: Raw(raw.kinds, [row for index, row in enumerate(raw.rows) if index not in rows.get(name, ())])
        for name, raw in data.items()
    }


def arrow(raw: Raw, trials: list[Raw] | None = None) -> pa.Table:
    """The records of all trials, which are some of these, as one table with a trial column."""
    versions = trials if trials is not None else [raw]
    columns = [pa.array([row[name] for row in raw.rows], type=ARROW[kind]) for name, kind in raw.kinds.items()]
    place = {id(row): index for index, row in enumerate(raw.rows)}
    rows = pa.array([place[id(row)] for version in versions for row in version.rows], type=pa.int64())
    numbers = pa.array([number for number, version in enumerate(versions) for _ in version.rows], type=pa.int64())
    return pa.table([*(column.take(rows) for column in columns), numbers], names=[*raw.kinds, "trial"])
