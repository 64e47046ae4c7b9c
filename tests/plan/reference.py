"""A plain Python interpreter of plans: slow, obvious, and independent of SQL. Engines must agree with it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache
from hashlib import md5, sha256
from math import floor, isqrt, trunc
from typing import Any
from zoneinfo import ZoneInfo

from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.domains import bounds_of, domain_values
from dither.plan.relations.group_by import MAX_SUM
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Column, Identifier, Moment, Number, Reference

EPOCH = datetime(1970, 1, 1)
DAY = 86_400_000_000
PRIME = 2**31 - 69
FOLD = 2**40 - 87
LENGTH = {
    "microsecond": 1,
    "millisecond": 10**3,
    "second": 10**6,
    "minute": 6 * 10**7,
    "hour": 36 * 10**8,
    "day": DAY,
    "week": 7 * DAY,
}

WIRE_NAMES = {node: name for name, node in r.BY_NAME.items()}


@dataclass(frozen=True)
class Row:
    """Visible values by name (numbers as Fractions), the units that are known, and the pseudo-random order."""

    cells: dict[str, Any]
    units: dict[str, tuple[Any, ...]]
    order: int


@dataclass(frozen=True)
class Raw:
    """A table's raw records: how each column is stored, and the rows."""

    kinds: Mapping[str, str]
    rows: list[dict[str, Any]]


# ---------------------------------------------------------------- reading records


def away(value: Fraction) -> int:
    size = floor(abs(value) + Fraction(1, 2))
    return size if value >= 0 else -size


def stand_in(column: Column) -> Any:
    domain, default = column.domain, column.default
    if default is not None:
        return Fraction(default) if isinstance(domain, Number) else default
    if domain.nullable or isinstance(domain, Reference | Identifier):
        return None
    match domain:
        case Number(lo=lo) | Moment(lo=lo):
            return lo
        case Boolean():
            return False
        case Category(values=values):
            return values[0]


def as_float(value: Any, kind: str) -> float | None:
    if kind == "text":
        digits = r"([0-9]{1,18}([.][0-9]{0,30})?|[.][0-9]{1,30})"
        if not re.fullmatch(rf" {{0,30}}[-+]?{digits}([eE][-+]?[0-9]{{1,2}})? {{0,30}}", value, re.ASCII):
            return None
        return float(value)
    if kind in ("integer", "float", "decimal", "boolean"):
        number = float(value)
        return None if math.isnan(number) else number
    return None


def as_integer(value: Any, kind: str) -> int | None:
    match kind:
        case "integer":
            return value if -(2**63) <= value < 2**63 else None
        case "text":
            try:
                number = int(value)
            except ValueError:
                return None
            return number if str(number) == value and -(2**63) <= number < 2**63 else None
        case "float" | "decimal":
            number = float(value)
            if math.isnan(number) or math.isinf(number) or number != math.floor(number) or abs(number) >= 2**53:
                return None
            return int(number)
    return None


def as_text(value: Any, kind: str) -> str | None:
    match kind:
        case "text":
            return str(value)
        case "integer":
            return str(value)
        case "boolean":
            return "true" if value else "false"
    return None


def composed(text: str) -> str:
    """A name as it is compared: in NFC, with NUL replaced."""
    return unicodedata.normalize("NFC", text.replace("\0", "\ufffd"))


def as_truth(value: Any, kind: str) -> bool | None:
    match kind:
        case "boolean":
            return bool(value)
        case "integer" | "float" | "decimal":
            return {1: True, 0: False}.get(value)
        case "text":
            return {
                "true": True,
                "t": True,
                "yes": True,
                "1": True,
                "false": False,
                "f": False,
                "no": False,
                "0": False,
            }.get(value.lower())
    return None


MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]{1,9})?)?)"
    r"(?: ?(Z|UTC|[-+](?:0[0-9]|1[0-5])(?::?[0-5][0-9](?::?[0-5][0-9])?)?))?)?",
    re.ASCII,
)


def as_micros(value: Any, kind: str, zone: str) -> int | None:
    """Microseconds on the wall clock of the zone."""
    match kind:
        case "timestamp":
            return int(value)
        case "instant" | "integer":
            return on_wall_clock(int(value), zone)
        case "date":
            return int(value) * DAY
        case "text":
            found = MOMENT.fullmatch(value)
            try:
                moment = found and datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}"[:26])
            except ValueError:
                return None
            if not found or not moment:
                return None
            micros = (moment - EPOCH) // timedelta(microseconds=1)
            return micros if found[3] is None else on_wall_clock(micros - offset(found[3]), zone)
    return None


def offset(text: str) -> int:
    """The microseconds of an offset from UTC."""
    digits = "" if text in ("Z", "UTC") else text.replace(":", "")
    hours, minutes, seconds = (int(digits.ljust(7, "0")[start : start + 2]) for start in (1, 3, 5))
    return (-1 if digits.startswith("-") else 1) * (hours * 3600 + minutes * 60 + seconds) * 10**6


def on_wall_clock(micros: int, zone: str) -> int:
    if zone == "UTC" or not -(5 * 10**16) < micros < 25 * 10**16:  # beyond these, the bounds hold it anyway
        return micros
    utc = EPOCH + timedelta(microseconds=micros)
    return micros + ZoneInfo(zone).fromutc(utc.replace(tzinfo=ZoneInfo(zone))).utcoffset() // timedelta(microseconds=1)


def read(column: Column, value: Any, kind: str, zone: str) -> Any:
    """What a record's value becomes."""
    domain = column.domain
    if value is None:
        spare = None if domain.nullable else stand_in(column)
        return spare if spare is None or not isinstance(domain, Moment) else read_moment(domain, spare)
    match domain:
        case Number():
            number = as_float(value, kind) if kind != "integer" else value
            if number is None:
                return stand_in(column)
            lo, hi = bounds_of(domain)
            if kind == "integer":
                index = away(Fraction(number) / domain.step)
            elif math.isinf(number):
                index = hi if number > 0 else lo
            elif number <= float(lo * domain.step) or number >= float(hi * domain.step):
                index = lo if number <= float(lo * domain.step) else hi
            else:
                size = math.floor(abs(number) * domain.step.denominator / domain.step.numerator + 0.5)
                index = size if number >= 0 else -size
            return min(max(index, lo), hi) * domain.step
        case Moment():
            micros = as_micros(value, kind, zone)
            if micros is None and (default := stand_in(column)) is None:
                return None
            return read_moment(domain, default if micros is None else micros)
        case Boolean():
            truth = as_truth(value, kind)
            return stand_in(column) if truth is None else truth
        case Category(values=values):
            text = as_text(value, kind)
            name = text if text is None or all(map(str.isascii, values)) else composed(text)
            return name if name in values else stand_in(column)
        case Reference(kind=wanted) | Identifier(kind=wanted):
            found = as_integer(value, kind) if wanted == "integer" else as_text(value, kind)
            return stand_in(column) if found is None else composed(found) if kind == wanted == "text" else found


def read_moment(domain: Moment, micros: int) -> int:
    held = min(max(micros, domain.lo), domain.hi)
    return held // LENGTH[domain.precision] * LENGTH[domain.precision]


# ---------------------------------------------------------------- expressions


def held(value: Any, domain: Any) -> Any:
    return int(value / domain.step) if isinstance(domain, Number) and value is not None else value


def toward_zero(value: Fraction) -> int:
    return math.trunc(value)


def trunc_moment(value: int, every: str) -> int:
    if every in LENGTH:
        return value - (value + (3 * DAY if every == "week" else 0)) % LENGTH[every]
    date = EPOCH + timedelta(microseconds=value)
    month = {"month": date.month, "quarter": (date.month - 1) // 3 * 3 + 1, "year": 1}[every]
    return (datetime(date.year, month, 1) - EPOCH) // timedelta(microseconds=1)


def in_months(value: int, months: int) -> int:
    """The moment some months later or earlier; the day is the last one that the month has, at most."""
    date = EPOCH + timedelta(microseconds=value)
    for day in range(date.day, 27, -1) if date.day > 28 else [date.day]:
        try:
            moved = date.replace(
                year=(date.year * 12 + date.month - 1 + months) // 12,
                month=(date.month - 1 + months) % 12 + 1,
                day=day,
            )
        except ValueError:
            continue
        return (moved - EPOCH) // timedelta(microseconds=1)
    raise AssertionError("every month has 28 days")


def period(value: int, every: str) -> int:
    if every in LENGTH:
        return (value + (3 * DAY if every == "week" else 0)) // LENGTH[every]
    date = EPOCH + timedelta(microseconds=value)
    return {
        "year": date.year,
        "quarter": date.year * 4 + (date.month - 1) // 3,
        "month": date.year * 12 + date.month - 1,
    }[every]


def snap(value: float, domain: Number) -> Fraction:
    lo, hi = bounds_of(domain)
    index = math.floor(value * domain.step.denominator / domain.step.numerator + 0.5)
    return min(max(index, lo), hi) * domain.step


def real(value: Fraction, step: Fraction) -> float:
    return float(int(value / step)) * step.numerator / step.denominator


def evaluate(node: x.Expr, cells: Mapping[str, Any], scope: Scope) -> Any:
    """The value of an expression for one row."""

    def val(child: x.Expr) -> Any:
        return evaluate(child, cells, scope)

    match node:
        case x.ColumnRef(name=name):
            return cells[name]
        case x.LiteralValue(value=value):
            if isinstance(value, str):
                return unicodedata.normalize("NFC", value)
            return Fraction(value) if isinstance(value, int | Fraction) and not isinstance(value, bool) else value
        case x.EstimatedValue(step=step, value=int(steps)):
            return steps * step
        case x.Instant(microseconds=value):
            return value
        case x.Arithmetic(op=op, left=left, right=right):
            a, b = val(left), val(right)
            if a is None or b is None:
                return None
            match op:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "/":
                    step = node.domain(scope).step
                    return None if b == 0 else toward_zero(a / b / step) * step
                case "%":
                    return None if b == 0 else a - b * toward_zero(a / b)
        case x.Absolute(child=child):
            a = val(child)
            return None if a is None else abs(a)
        case x.Rounded(how=how, child=child, step=step):
            a = val(child)
            if a is None:
                return None
            return {"floor": floor, "ceil": math.ceil, "round": away}[how](a / step) * step
        case x.Function(name=name, child=child):
            a = val(child)
            if a is None or (name == "sqrt" and a < 0) or (name == "ln" and a <= 0):
                return None
            value = real(a, child.domain(scope).step)
            reach = node._argument_range(child.domain(scope))
            value = min(max(value, reach[0]), reach[1]) if name in ("exp", "logistic") else value
            call = {"sqrt": math.sqrt, "ln": math.log, "exp": math.exp, "logistic": lambda v: 1 / (1 + math.exp(-v))}[
                name
            ]
            return snap(call(value), node.domain(scope))
        case x.Power(child=child, exponent=exponent):
            a = val(child)
            if a is None or (a == 0 and exponent < 0) or (a < 0 and exponent.denominator != 1):
                return None
            if a == 0:
                return Fraction(0)
            least, most = node._argument_range()
            size = math.pow(
                min(max(abs(real(a, child.domain(scope).step)), least), most), exponent.numerator / exponent.denominator
            )
            lo, hi = bounds_of(node.domain(scope))
            index = math.floor(size * node.step.denominator / node.step.numerator + 0.5)
            index = -index if a < 0 and exponent % 2 == 1 else index
            return min(max(index, lo), hi) * node.step
        case x.Clamp(child=child, lo=lo, hi=hi):
            a = val(child)
            step = child.domain(scope).step
            return None if a is None else min(max(a, math.ceil(lo / step) * step), floor(hi / step) * step)
        case x.Rescale(child=child, resolution=resolution):
            a, d = val(child), child.domain(scope)
            lo, hi = bounds_of(d)
            if a is None:
                return None
            if lo == hi:
                return Fraction(0)
            return Fraction(floor(Fraction(a / d.step - lo, hi - lo) * 2 * resolution + Fraction(1, 2)) - resolution)
        case x.LeastGreatest(which=which, children=children):
            values = [v for v in map(val, children) if v is not None]
            return (min if which == "least" else max)(values) if values else None
        case x.Compare(op=op, left=left, right=right):
            a, b = val(left), val(right)
            if a is None or b is None:
                return None
            return (
                {"=": a == b, "<>": a != b}[op]
                if op in ("=", "<>")
                else {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
            )
        case x.And(children=children):
            values = [val(c) for c in children]
            return False if False in values else None if None in values else True
        case x.Or(children=children):
            values = [val(c) for c in children]
            return True if True in values else None if None in values else False
        case x.Not(child=child):
            a = val(child)
            return None if a is None else not a
        case x.IsNull(child=child):
            return val(child) is None
        case x.In(child=child, values=values):
            a = val(child)
            return (
                None
                if a is None
                else any(a == (unicodedata.normalize("NFC", v) if isinstance(v, str) else v) for v in values)
            )
        case x.Case(branches=branches, default=default):
            for when, then in branches:
                if val(when) is True:
                    return val(then)
            return val(default)
        case x.Coalesce(children=children):
            return next((v for v in map(val, children) if v is not None), None)
        case x.NullIf(left=left, right=right):
            a, b = val(left), val(right)
            return None if a is not None and a == b else a
        case x.AsNumber(child=child):
            a = val(child)
            return None if a is None else Fraction(int(a))
        case x.DatePart(part=part, child=child):
            a = val(child)
            return None if a is None else Fraction(date_part(part, a))
        case x.MovedMoment(child=child, months=months, microseconds=more):
            a = val(child)
            return None if a is None else in_months(a, months) + more
        case x.DateTrunc(every=every, child=child):
            a = val(child)
            return None if a is None else trunc_moment(a, every)
        case x.DateDiff(every=every, start=start, end=end):
            a, b = val(start), val(end)
            return None if a is None or b is None else Fraction(period(b, every) - period(a, every))
        case x.Bucket(child=child, edges=edges):
            a = val(child)
            return None if a is None else Fraction(sum(edge <= a for edge in edges))
        case x.TextCase(which=which, child=child):
            a = val(child)
            return None if a is None else unicodedata.normalize("NFC", a.lower() if which == "lower" else a.upper())
        case x.CategoryMap(child=child):
            a = val(child)
            return None if a is None else unicodedata.normalize("NFC", node.convert(a))
        case x.TextMatch(how=how, child=child, text=text):
            a, text = val(child), unicodedata.normalize("NFC", text)
            return (
                None
                if a is None
                else {"prefix": a.startswith(text), "suffix": a.endswith(text), "contains": text in a}[how]
            )
    raise TypeError(f"the reference does not know {type(node).__name__}")


def date_part(part: str, value: int) -> int:
    date = EPOCH + timedelta(microseconds=value)
    match part:
        case "quarter":
            return (date.month - 1) // 3 + 1
        case "dayofweek":
            return date.isoweekday() % 7
        case "dayofyear":
            return date.timetuple().tm_yday
        case "week":
            return date.isocalendar().week
        case _:
            return int(getattr(date, part))


# ---------------------------------------------------------------- the pseudo-random order


def pieces(value: Any, domain: Any) -> list[tuple[int, int]]:
    """A value as integers, each with the bits that it may have."""
    if isinstance(domain, Number):
        value = held(value, domain)
    if isinstance(domain, Number | Moment):
        lo, hi = bounds_of(domain) if isinstance(domain, Number) else (domain.lo, domain.hi)
        bits = max(abs(lo), abs(hi + 1)).bit_length()
        if bits < 40:
            return [(hi + 1 if value is None else value, bits)]
    if isinstance(domain, Boolean):
        return [({None: 0, False: 1, True: 2}[value], 2)]
    if isinstance(domain, Category) and len(domain.values) <= 32:
        return [(0 if value is None else domain.values.index(value) + 1, len(domain.values).bit_length())]
    if isinstance(domain, Category) or getattr(domain, "kind", "") == "text":
        return [(-1 if value is None else int(md5(value.encode()).hexdigest()[:8], 16), 32)]
    return [(FOLD if value is None else remainder(value, FOLD), 40)]


def remainder(value: int, divisor: int) -> int:
    """With the sign of the value."""
    return value - divisor * toward_zero(Fraction(value, divisor))


@cache
def coefficient(seed: int, index: int, bits: int) -> int:
    return 2 ** (bits - 1) + int.from_bytes(sha256(f"{seed}:{index}".encode()).digest()[:8]) % 2 ** (bits - 1)


def scramble(parts: Iterable[tuple[int, int]], seed: int) -> int:
    parts = list(parts)
    room = 62 - (len(parts) + 1).bit_length()
    result = coefficient(seed, -1, room)
    return result + sum(part * coefficient(seed, i, room - bits) for i, (part, bits) in enumerate(parts))


def spread(order: int) -> int:
    residue = remainder(order, PRIME)
    cube = remainder(remainder(residue * residue, PRIME) * residue, PRIME)
    return cube * 2**31 + order % 2**31


def remix(orders: Iterable[int], seed: int) -> int:
    return scramble([(piece, 31) for order in orders for piece in (order % 2**31, remainder(order, PRIME))], seed)


def order_of(cells: Mapping[str, Any], domain: Mapping[str, Any], extra: Iterable[tuple[Any, Any]] = ()) -> list[Any]:
    parts = [piece for name, d in domain.items() for piece in pieces(cells[name], d)]
    return parts + [piece for value, d in extra for piece in pieces(value, d)]


def unit_pieces(ctx: Context, unit: str, key: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    declared = ctx.unit(unit)
    table, column = next(iter(declared.keys.items()))
    domain = ctx.table(table).columns[column].domain
    text = isinstance(domain, Category) or getattr(domain, "kind", "") == "text"
    return [(key[0], Identifier("text" if text else "integer"))] + [(w, Identifier("integer")) for w in key[1:]]


# ---------------------------------------------------------------- relations


class Interpreter:
    """Interprets plans over one dataset."""

    def __init__(self, ctx: Context, data: Mapping[str, Raw], secret: int = 0) -> None:
        self.ctx, self.data, self.secret = ctx, data, secret
        # By identity, since equal nodes may differ; a held node keeps its id to itself. Scans by their table.
        self.found: dict[Any, tuple[r.Relation, list[Row]]] = {}

    def known(self, node: r.Relation) -> list[str]:
        return [
            n for n, u in self.ctx.dataset.units.items() if u.kind != "row" and node.stability(self.ctx, n).tracks_unit
        ]

    def rows(self, node: r.Relation) -> list[Row]:
        which = node.table if isinstance(node, r.Scan) else id(node)
        if which not in self.found:
            self.found[which] = (node, getattr(self, f"_{WIRE_NAMES[type(node)]}")(node))
        return self.found[which][1]

    def _scan(self, node: r.Scan) -> list[Row]:
        ctx, table, raw = self.ctx, self.ctx.table(node.table), self.data[node.table]
        domain = node.domain(ctx)
        units = [u for u in ctx.dataset.units.values() if node.table in u.keys]
        result = []
        for record in raw.rows:
            cells = {k: read(c, record[k], raw.kinds[k], ctx.dataset.timezone) for k, c in table.columns.items()}
            needed = [k for u in units for k in (u.keys.get(node.table), u.times.get(node.table)) if k]
            if any(cells[k] is None for k in needed):
                continue
            tags = {}
            for u in units:
                if u.kind != "row" and node.stability(ctx, u.name).tracks_unit:
                    key = cells[u.keys[node.table]]
                    key = held(key, domain[u.keys[node.table]])
                    tags[u.name] = (key, period(cells[u.times[node.table]], u.every)) if u.kind == "window" else (key,)
            result.append(Row(cells, tags, scramble(order_of(cells, domain), 1)))
        if ctx.enforces_unique_key(table):
            best: dict[Any, Row] = {}
            for row in sorted(result, key=lambda row: spread(row.order)):
                best.setdefault(row.cells[table.unique], row)
            result = list(best.values())
        else:
            for unit in units:
                if node.table in unit.max_rows:
                    result = self._first(result, lambda row, name=unit.name: row.units[name], unit.max_rows[node.table])
        return result

    def _filter(self, node: r.Filter) -> list[Row]:
        scope = Scope(node.child.domain(self.ctx))
        return [row for row in self.rows(node.child) if evaluate(node.condition, row.cells, scope) is True]

    def _project(self, node: r.Project) -> list[Row]:
        scope = Scope(node.child.domain(self.ctx))
        return [
            Row({n: evaluate(e, row.cells, scope) for n, e in node.columns}, row.units, row.order)
            for row in self.rows(node.child)
        ]

    def _union(self, node: r.Union) -> list[Row]:
        known, result = self.known(node), []
        for branch, side in enumerate((node.left, node.right)):
            result += [
                Row(row.cells, {u: row.units[u] for u in known}, remix([row.order], 11 + branch))
                for row in self.rows(side)
            ]
        return result

    def _grouped(self, node: r.Relation, groups: Mapping[Any, dict[str, Any]], units: list[str]) -> list[Row]:
        domain, result = node.domain(self.ctx), []
        for (tags, _), cells in groups.items():
            keys = dict(zip(units, tags, strict=True))
            extra = [piece for unit in units for piece in unit_pieces(self.ctx, unit, keys[unit])]
            result.append(Row(cells, keys, scramble(order_of(cells, domain, extra), 3)))
        return result

    def _distinct(self, node: r.Distinct) -> list[Row]:
        first = [node.unit] if node.unit else []
        units = first + [u for u in self.known(node) if u not in first]
        groups = {
            (tuple(row.units[u] for u in units), tuple(row.cells.values())): row.cells for row in self.rows(node.child)
        }
        return self._grouped(node, groups, units)

    def _group_by(self, node: r.GroupBy) -> list[Row]:
        units, scope, domain = self.known(node), Scope(node.child.domain(self.ctx)), node.domain(self.ctx)
        members: dict[Any, list[Row]] = {}
        for row in self.rows(node.child):
            keys = tuple(evaluate(e, row.cells, scope) for _, e in node.keys)
            members.setdefault((tuple(row.units[u] for u in units), keys), []).append(row)
        if not node.keys and node.unit is None:
            members.setdefault(((), ()), [])
        groups = {}
        for (tags, keys), rows in members.items():
            cells = dict(zip((n for n, _ in node.keys), keys, strict=True))
            cells |= {a.name: self._aggregate(a, rows, scope, domain[a.name]) for a in node.aggregates}
            groups[tags, keys] = cells
        return self._grouped(node, groups, units)

    def _aggregate(self, a: r.GroupAggregate, rows: list[Row], scope: Scope, domain: Any) -> Any:
        if a.value is None:
            return Fraction(min(len(rows), bounds_of(domain)[1]))
        values = [v for v in (evaluate(a.value, row.cells, scope) for row in rows) if v is not None]
        match a.kind:
            case "count":
                return Fraction(min(len(values), bounds_of(domain)[1]))
            case "distinct":
                return Fraction(min(len(set(values)), bounds_of(domain)[1]))
            case "sum":
                return min(max(sum(values, Fraction(0)), domain.lo), domain.hi)
            case "avg":
                total = min(max(sum(values, Fraction(0)), -MAX_SUM * domain.step), MAX_SUM * domain.step)
                mean = domain.step * trunc(total / len(values) / domain.step) if values else None
                return None if mean is None else min(max(mean, domain.lo), domain.hi)
            case "min":
                return min(values, default=None)
            case "max":
                return max(values, default=None)

    def _public_join(self, node: r.PublicJoin) -> list[Row]:
        private, public = self.rows(node.child), self.rows(node.public)
        known, result = self.known(node), []
        names = [*node.child.domain(self.ctx)], [*node.public.domain(self.ctx)]
        blanks = dict.fromkeys(names[0]), dict.fromkeys(names[1])
        met_public: set[int] = set()
        for row in private:
            matches = [(i, p) for i, p in enumerate(public) if self._match(node.on, row, p)]
            met_public |= {i for i, _ in matches}
            units = {u: row.units[u] for u in known}
            result += [Row(row.cells | p.cells, units, remix([row.order, p.order], 21)) for _, p in matches]
            if not matches and node.how == "left":
                result.append(Row(row.cells | blanks[1], units, remix([row.order, 0], 21)))
        if node.how == "right":
            result += [
                Row(blanks[0] | p.cells, {}, remix([0, p.order], 21))
                for i, p in enumerate(public)
                if i not in met_public
            ]
        return result

    def _match(self, on: Any, left: Row, right: Row) -> bool:
        return all(left.cells[a] is not None and left.cells[a] == right.cells[b] for a, b in on)

    def _unit_join(self, node: r.UnitJoin) -> list[Row]:
        known, result = self.known(node), []
        blank, others = dict.fromkeys(node.right.domain(self.ctx)), self.rows(node.right)
        for row in self.rows(node.left):
            units = {u: row.units[u] for u in known}
            matches = [o for o in others if o.units[node.unit] == row.units[node.unit]]
            result += [Row(row.cells | o.cells, units, remix([row.order, o.order], 31)) for o in matches]
            if not matches and node.how == "left":
                result.append(Row(row.cells | blank, units, remix([row.order, 0], 31)))
        return result

    def _mark_join(self, node: r.MarkJoin) -> list[Row]:
        known, present = self.known(node), {row.units[node.unit] for row in self.rows(node.right)}
        return [
            Row(row.cells | {node.name: row.units[node.unit] in present}, {u: row.units[u] for u in known}, row.order)
            for row in self.rows(node.left)
        ]

    def _key_join(self, node: r.KeyJoin) -> list[Row]:
        left = self._first(self.rows(node.left), lambda row: tuple(row.cells[a] for a, _ in node.on), node.left_limit)
        right = self._first(
            self.rows(node.right), lambda row: tuple(row.cells[b] for _, b in node.on), node.right_limit
        )
        return [
            Row(a.cells | b.cells, {}, remix([a.order, b.order], 41))
            for a in left
            for b in right
            if self._match(node.on, a, b)
        ]

    def _first(self, rows: list[Row], key: Any, limit: int) -> list[Row]:
        seen: Counter[Any] = Counter()
        kept = []
        for row in sorted(rows, key=lambda row: spread(row.order)):
            seen[key(row)] += 1
            if seen[key(row)] <= limit:
                kept.append(row)
        return kept

    def _sample(self, node: r.Sample) -> list[Row]:
        secret = sha256(f"{self.secret}:{node.tag}".encode()).hexdigest()
        kept = []
        for row in self.rows(node.child):
            names = [row.order] if node.unit is None else list(row.units[node.unit])
            text = ":".join([secret, *map(str, names)])
            if int(md5(text.encode()).hexdigest()[:8], 16) < floor(node.rate * 2**32):
                kept.append(row)
        return kept

    def _limit_rows_per_unit(self, node: r.LimitRowsPerUnit) -> list[Row]:
        return self._first(self.rows(node.child), lambda row: row.units[node.unit], node.limit)

    def _limit_groups_per_unit(self, node: r.LimitGroupsPerUnit) -> list[Row]:
        scope = Scope(node.child.domain(self.ctx))
        domains = [key.domain(scope) for key in node.keys]

        def key(row: Row) -> Any:
            return tuple(evaluate(k, row.cells, scope) for k in node.keys)

        rows = self._first(self.rows(node.child), lambda row: (row.units[node.unit], key(row)), node.rows)
        groups: dict[Any, dict[Any, int]] = {}
        for row in rows:
            unit = row.units[node.unit]
            parts = [p for v, d in unit_pieces(self.ctx, node.unit, unit) for p in pieces(v, d)]
            parts += [p for v, d in zip(key(row), domains, strict=True) for p in pieces(v, d)]
            groups.setdefault(unit, {})[key(row)] = spread(scramble(parts, 51))
        kept = {unit: set(sorted(ranks, key=ranks.__getitem__)[: node.groups]) for unit, ranks in groups.items()}
        return [row for row in rows if key(row) in kept[row.units[node.unit]]]

    # ------------------------------------------------------------ measures

    def vector(self, measure: m.Measure) -> list[int]:
        match measure:
            case m.LinearQuery(child=child, weights=weights):
                cells = self.vector(child)
                return [saturate(sum(w * c for w, c in zip(row, cells, strict=True))) for row in weights]
            case m.ClippedSums():
                return self._clipped(measure)
            case _:
                return self._sums(measure.child, measure.summands(), measure.keys, None)

    def _cells(
        self, child: r.Relation, values: Any, keys: Any, unit: str | None
    ) -> tuple[list[Any], dict[Any, list[int]]]:
        scope = Scope(child.domain(self.ctx))
        axes = []
        for key in keys:
            domain = key.value.domain(scope)
            public = self.ctx.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
            axes.append(list(key.values) if key.values is not None else list(domain_values(domain, 10**6, public)))
        steps = [value.domain(scope).step for value in values]
        sums: dict[Any, list[int]] = {}
        for row in self.rows(child):
            place = tuple(evaluate(key.value, row.cells, scope) for key in keys)
            listed_only = [(v, axis) for v, axis, key in zip(place, axes, keys, strict=True) if key.values is not None]
            if all(value in axis for value, axis in listed_only):
                cell = sums.setdefault((row.units[unit] if unit else None, place), [0] * len(values))
                for i, value in enumerate(values):
                    found = evaluate(value, row.cells, scope)
                    cell[i] += 0 if found is None else int(found / steps[i])
        labels: list[Any] = [()]
        for axis in axes:
            labels = [(*label, value) for label in labels for value in axis]
        return labels, sums

    def _sums(self, child: r.Relation, values: Any, keys: Any, unit: None) -> list[int]:
        labels, sums = self._cells(child, values, keys, unit)
        blank = [0] * len(values)
        return [saturate(v) for label in labels for v in sums.get((None, tuple(label)), blank)]

    def _clipped(self, measure: m.ClippedSums) -> list[int]:
        labels, sums = self._cells(measure.child, measure.values, measure.keys, measure.unit)
        cap, bound = 2**31, measure.bound
        by_unit: dict[Any, dict[Any, list[int]]] = {}
        for (unit, place), cell in sums.items():
            by_unit.setdefault(unit, {})[place] = [min(max(v, -cap), cap) for v in cell]
        totals: dict[Any, list[int]] = {}
        for cells in by_unit.values():
            flat = [v for cell in cells.values() for v in cell]
            square = sum(v * v for v in flat)
            size = sum(map(abs, flat)) if measure.norm == "l1" else isqrt(square) + (isqrt(square) ** 2 < square)
            within = size <= bound if measure.norm == "l1" else square <= bound * bound
            for place, cell in cells.items():
                scaled = cell if within else [toward_zero(Fraction(v * bound, size)) for v in cell]
                totals[place] = [a + b for a, b in zip(totals.get(place, [0] * len(cell)), scaled, strict=True)]
        blank = [0] * len(measure.values)
        return [saturate(v) for label in labels for v in totals.get(tuple(label), blank)]


def saturate(value: int) -> int:
    return max(-(2**63 - 1), min(2**63 - 1, value))
