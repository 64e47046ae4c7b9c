"""Random tables of timestamps in every spelling and precision, with what each must become; for three engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlglot import exp

from dither.plan import relations as r
from dither.plan.sql.statement import SqlStatement, column_ref
from dither.schema import Column, Dataset, Identifier, Moment, Source, Table, Unit

EPOCH = datetime(1970, 1, 1)
DAY = 86_400_000_000
LENGTHS = {"microsecond": 1, "millisecond": 10**3, "second": 10**6, "minute": 6 * 10**7, "hour": 36 * 10**8, "day": DAY}
ZONES = (
    "UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Monrovia",
    "America/St_Johns", "Pacific/Apia",
)  # fmt: skip
GARBAGE = (
    "", "n/a", "2021-02-29", "2020-01-01 24:00:00", "2016-12-31 23:59:60", "2016-12-31T23:59:60Z", "2020-13-01",
    "20200101", "20200101T000000Z", "2020-01-01T00:00:00+25:00", "01/02/2020", "2020-01-01 00:00:00 PST",
    "2020-01-01 00:00:00+", "infinity", "now", "epoch", "２０２０-01-01", "2020-01-01\n", " 2020-01-01", "2020-01-01 ",
    "2020-01-01T00:00:00ZZ", "2020-01-01Z", "2020-01-01+00:00", "1577836800", "2020-01-01T00:00:00.Z",
    "2020-01-01T00:00:00.1234567890", "2020-01-01T00:00:00,5", "2020-01-01T00:00:00+5", "2020-01-01T00:00:00+05:3",
    "2020-01-01T00:00:00--05", "2020-01-01T00:00:00Z+05", "2020-01-01T00", "0000-01-01", "10000-01-01", "-2020-01-01",
    "2020-01-01T00:00:00 Europe/Paris", "2020-01-01T00:00:00 BC", "2020-01-01T00:00:00+16:00", "2020-01-01T00:00Z\0",
)  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A stored value, and the reading of the wall clock that it means, in microseconds; None if it means none."""

    value: Any
    meant: int | None


def wall_clock(instant: int, zone: str) -> int:
    """The reading of a zone's wall clock at an instant, both in microseconds."""
    place = ZoneInfo(zone)
    shift = place.fromutc((EPOCH + timedelta(microseconds=instant)).replace(tzinfo=place)).utcoffset()
    return instant + shift // timedelta(microseconds=1)


def clock_text(rng: Random, nanoseconds: int) -> str:
    """A date and time, with a T or a blank, with seconds unless they are 0, and with 0 to 9 digits of them."""
    microseconds, rest = divmod(nanoseconds, 1000)
    moment = EPOCH + timedelta(microseconds=microseconds)
    date, clock = f"{moment.year:04d}-{moment:%m-%d}", f"{moment:%H:%M:%S}"
    fraction = f"{moment.microsecond:06d}{rest:03d}"
    digits = rng.randint(len(fraction.rstrip("0")), 9)
    if not digits and moment.second == 0 and rng.random() < 0.3:
        clock = clock[:5]
    return f"{date}{rng.choice('T ')}{clock}" + (f".{fraction[:digits]}" if digits else "")


def offset_text(rng: Random, seconds: int) -> str:
    """An offset from UTC in one of its spellings."""
    if seconds == 0 and rng.random() < 0.6:
        return rng.choice(("Z", "Z", " UTC", "+00", "-00:00"))
    hours, rest = divmod(abs(seconds), 3600)
    minutes, seconds_left = divmod(rest, 60)
    colon, sign = rng.choice((":", "")), "-" if seconds < 0 else "+"
    parts = [f"{hours:02d}", f"{minutes:02d}", f"{seconds_left:02d}"]
    least = 3 if seconds_left else 2 if minutes else 1
    return rng.choice(("", "", " ")) + sign + colon.join(parts[: rng.randint(least, 3)])


def naive_text(rng: Random, nanoseconds: int, zone: str) -> Stored:
    if nanoseconds % (DAY * 1000) == 0 and rng.random() < 0.5:
        return Stored(str((EPOCH + timedelta(microseconds=nanoseconds // 1000)).date()).zfill(10), nanoseconds // 1000)
    return Stored(clock_text(rng, nanoseconds), nanoseconds // 1000)


def aware_text(rng: Random, nanoseconds: int, zone: str) -> Stored:
    seconds = rng.choice((0, 0, 0, 5 * 3600 + 1800, -5 * 3600, 3600, -12 * 3600, 14 * 3600, 561, -3600 - 1))
    spelt = clock_text(rng, nanoseconds + seconds * 10**9) + offset_text(rng, seconds)
    return Stored(spelt, wall_clock(nanoseconds // 1000, zone))


def text(rng: Random, nanoseconds: int, zone: str) -> Stored:
    chance = rng.random()
    if chance < 0.15:
        return Stored(rng.choice(GARBAGE), None)
    return (naive_text if chance < 0.5 else aware_text)(rng, nanoseconds, zone)


def typed(unit: int, aware: bool) -> Any:
    """A timestamp that is stored as an integer of `unit` nanoseconds."""

    def stored(rng: Random, nanoseconds: int, zone: str) -> Stored:
        value = nanoseconds // unit
        microseconds = value * unit // 1000
        return Stored(value, wall_clock(microseconds, zone) if aware else microseconds)

    return stored


def day(rng: Random, nanoseconds: int, zone: str) -> Stored:
    days = nanoseconds // 1000 // DAY
    return Stored(days, days * DAY)


@dataclass(frozen=True)
class Form:
    """A way to store moments: how a value is made, and the column's Arrow type."""

    make: Any
    arrow: pa.DataType


FORMS = {
    "text": Form(text, pa.string()),
    "naive_ms": Form(typed(10**6, False), pa.timestamp("ms")),
    "naive_us": Form(typed(10**3, False), pa.timestamp("us")),
    "naive_ns": Form(typed(1, False), pa.timestamp("ns")),
    "aware_s": Form(typed(10**9, True), pa.timestamp("s", "UTC")),
    "aware_ms": Form(typed(10**6, True), pa.timestamp("ms", "Asia/Tokyo")),
    "aware_us": Form(typed(10**3, True), pa.timestamp("us", "UTC")),
    "aware_ns": Form(typed(1, True), pa.timestamp("ns", "America/New_York")),
    "day": Form(day, pa.date32()),
    "number": Form(typed(10**3, True), pa.int64()),
}


def random_domain(rng: Random, form: str) -> Moment:
    """Bounds between 1900 and 2100, mostly near a change of clocks, at any precision."""
    precision = rng.choice(list(LENGTHS))
    start = rng.choice((-2_208_988_800, -100_000_000, 0, 946_684_800, 1_356_998_400, 1_711_846_800)) * 10**6
    length = rng.choice((DAY, 40 * DAY, 400 * DAY, 8_000 * DAY))
    step = LENGTHS[precision]
    lo = (start + rng.randint(-2 * DAY, 2 * DAY)) // step * step
    return Moment(lo, (lo + length + rng.randint(0, DAY)) // step * step, precision, rng.random() < 0.3)


def random_moment(rng: Random, domain: Moment) -> int:
    """A moment in nanoseconds: at a bound, near it, within, or far outside."""
    near = rng.choice((domain.lo, domain.hi, rng.randint(domain.lo, domain.hi), rng.randint(domain.lo, domain.hi)))
    moved = near + rng.choice((0, 0, 1, -1, rng.randint(-DAY, DAY)))
    far = rng.choice((-6 * 10**16 // 7, 6 * 10**15, -(10**14), 0))
    chosen = far if rng.random() < 0.05 else moved
    chosen = rng.choice((chosen, chosen, chosen // 10**6 * 10**6, chosen // DAY * DAY))
    return chosen * 1000 + rng.choice((0, 0, rng.randint(0, 999)))


@dataclass(frozen=True)
class RandomTable:
    """The records of one table by column, each value with its meaning, and the declared domains."""

    name: str
    domains: Mapping[str, Moment]
    records: Mapping[str, list[Stored | None]]

    def arrow(self) -> pa.Table:
        """The stored records, with a key `u`."""
        columns: dict[str, pa.Array] = {"u": pa.array(range(len(next(iter(self.records.values())))), pa.int64())}
        for name, values in self.records.items():
            plain, kind = [None if each is None else each.value for each in values], FORMS[name].arrow
            if pa.types.is_string(kind):
                columns[name] = pa.array(plain, kind)
            elif pa.types.is_date(kind):
                columns[name] = pa.array(plain, pa.int32()).cast(kind)
            else:
                columns[name] = pa.array(plain, pa.int64()).cast(kind)
        return pa.table(columns)

    def declared(self, source: Source) -> Table:
        columns = {"u": Column("u", Identifier("integer"))}
        columns |= {name: Column(name, domain) for name, domain in self.domains.items()}
        return Table(self.name, True, columns, source)

    def expected(self) -> Iterator[tuple[int, dict[str, int | None], int]]:
        """For each row its key, its values on the wall clock, and how many of them count as corrected."""
        for row in range(len(next(iter(self.records.values())))):
            found = {name: expected(self.domains[name], self.records[name][row]) for name in self.domains}
            yield row, {name: value for name, (value, _) in found.items()}, sum(wrong for _, wrong in found.values())


def expected(domain: Moment, stored: Stored | None) -> tuple[int | None, bool]:
    """What a value becomes, and whether that is a correction: being cut to the declared precision is none."""
    if stored is None:
        return (None, False) if domain.nullable else (domain.lo, True)
    if stored.meant is None:
        return (None if domain.nullable else domain.lo), True
    held = min(max(stored.meant, domain.lo), domain.hi)
    return held // LENGTHS[domain.precision] * LENGTHS[domain.precision], held != stored.meant


def random_table(rng: Random, name: str, zone: str, forms: tuple[str, ...], rows: int = 7) -> RandomTable:
    domains = {form: random_domain(rng, form) for form in forms}
    records: dict[str, list[Stored | None]] = {}
    for form, domain in domains.items():
        made = [None if rng.random() < 0.07 else _stored(rng, form, domain, zone) for _ in range(rows)]
        records[form] = made
    return RandomTable(name, domains, records)


def _stored(rng: Random, form: str, domain: Moment, zone: str) -> Stored:
    nanoseconds = random_moment(rng, domain)
    if form.endswith("_ns"):
        nanoseconds = min(max(nanoseconds, -9 * 10**18), 9 * 10**18)
    made: Stored = FORMS[form].make(rng, nanoseconds, zone)
    return made


def described(tables: Mapping[str, Table], zone: str) -> Dataset:
    units = {"user": Unit("user", "user", dict.fromkeys(tables, "u"))}
    return Dataset("d", "d", "1", tables, units, (), timezone=zone)


def read_back(engine: Any, tables: Mapping[str, RandomTable]) -> list[tuple[str, dict[str, Any]]]:
    """All cleaned rows of tables with as many columns, in one statement, with the number of corrections of each."""
    forms = frozenset(form for table in tables.values() for form in table.domains)
    statement = SqlStatement(engine.ctx, engine._sources, engine.dialect, 0, forms, keeps_order=False)
    columns = [*(f"c{index}" for index in range(len(next(iter(tables.values())).domains) + 1)), "b"]
    parts = [
        exp.select(exp.alias_(exp.Literal.string(name), "name"), *map(column_ref, columns)).from_(
            statement.table(r.Scan(name))
        )
        for name in tables
    ]
    found = engine._run(statement.finish(parts[0] if len(parts) == 1 else exp.union(*parts, distinct=False)))
    return [(row["name"], row) for row in found.to_pylist()]


def differences(
    engine: Any, tables: Mapping[str, RandomTable], tally: Counter[str], *, counted: bool = True
) -> list[str]:
    """Every value that is not what was meant, and every row whose corrections are not counted."""
    problems = []
    rows = {(name, row["c0"]): row for name, row in read_back(engine, tables)}
    for name, table in tables.items():
        for key, values, corrected in table.expected():
            row = rows.pop((name, key), None)
            if row is None:
                problems.append(f"{name} row {key} is missing")
                continue
            for place, form in enumerate(table.domains, start=1):
                tally["values"] += 1
                stored = table.records[form][key]
                if row[f"c{place}"] != values[form]:
                    problems.append(f"{name}.{form}: {stored} became {row[f'c{place}']}, not {values[form]}")
            tally["corrections"] += corrected
            if counted and row["b"] != corrected:
                problems.append(f"{name} row {key}: {row['b']} corrections counted, not {corrected}")
        tally["tables"] += 1
    return problems + [f"{place}: a row too many" for place in rows]
