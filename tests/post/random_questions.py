"""Random questions over the hostile world: most are accepted, and none of those may fail after its charge."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Kind = Literal["number", "text", "boolean", "moment", "key"]
Verb = Literal["sql", "quote", "batch", "split", "refine", "statistic"]

COLUMNS: dict[str, dict[str, Kind]] = {
    "people": {
        "person": "key", "age": "number", "income": "number", "share": "number", "huge": "number", "fixed": "number",
        "grade": "text", "level": "text", "vip": "boolean", "member": "boolean", "born": "moment", "seen": "moment",
        "home": "text",
    },
    "visits": {
        "person": "key", "place": "text", "kind": "text", "at": "moment", "left_at": "moment", "minutes": "number",
        "cost": "number", "paid": "boolean",
    },
    "nothing": {"person": "key", "x": "number", "y": "number", "c": "text"},
    "places": {"place": "text", "zone": "text", "size": "number", "opened": "moment"},
}  # fmt: skip
# Columns that have few enough values to be GROUP BY keys as they are.
SMALL = frozenset("fixed grade level vip member home place kind paid x c zone share".split())
WORDS = ["'a'", "'B'", "'c'''", "'pier'", "'nowhere'", "''", "'walk'", "'other'", "'p'", "'north'"]
NUMBERS = ["0", "1", "2", "3", "7", "10", "0.5", "-1", "-2.5", "100", "1000", "0.01", "1e6", "12345678", "NULL"]
DATES = ["DATE '2024-03-01'", "TIMESTAMP '2024-06-30 12:34:56'", "DATE '1950-01-01'", "DATE '2030-01-01'"]
PERIODS = ["day", "week", "month", "quarter", "year", "hour"]
PARTS = ["YEAR", "MONTH", "QUARTER", "DAY", "HOUR", "MINUTE", "SECOND", "DAYOFWEEK", "DAYOFYEAR", "ISODOW"]
CONFIDENCES: list[Any] = [0.5, 0.9, 0.95, "0.99", 0.01]


@dataclass(frozen=True)
class RandomQuestion:
    """What to call on a session, with which queries and options."""

    verb: Verb
    queries: tuple[str, ...]
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.verb}({'; '.join(self.queries)}, {self.options})"


@dataclass
class QuestionMaker:
    """Makes random questions; the same seed gives the same questions."""

    random: Random
    losses: tuple[str, ...] = ("epsilon",)
    columns: dict[str, Kind] = field(default_factory=dict)
    selects_keys: bool = False

    def question(self) -> RandomQuestion:
        """Make a question: a single one, a batch, a split or a refinement, or just a quote."""
        verb = self.choose({"sql": 60, "quote": 6, "batch": 10, "split": 5, "refine": 6})
        self.selects_keys = verb == "sql" and "rho" in self.losses and self.chance(0.25)
        count = self.random.randint(1, 4) if verb == "batch" else 1
        queries = tuple(self.query() for _ in range(count))
        return RandomQuestion(verb, queries, self.options(verb))

    # --- small helpers -------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """Be True with a probability."""
        return self.random.random() < probability

    def choose(self, weights: dict[Any, float]) -> Any:
        """Choose a key by its weight."""
        return self.random.choices(list(weights), list(weights.values()))[0]

    def pick(self, values: Any) -> Any:
        """Choose one of several values."""
        return self.random.choice(list(values))

    def named(self, *kinds: Kind) -> list[str]:
        """List the columns in scope that have one of these kinds."""
        return [name for name, kind in self.columns.items() if kind in kinds]

    def listed(self) -> list[str]:
        """List the columns of texts that the description lists, instead of a public table."""
        return [name for name in self.named("text") if name not in ("place", "home", "level")]

    # --- queries -------------------------------------------------------------------------------------------------

    def query(self) -> str:
        """Make a SELECT over a random FROM clause."""
        source = self.source()
        keys = self.keys()
        if not keys and self.selects_keys:
            keys = [self.pick(self.named("number", "text", "boolean", "moment"))]
        where = f" WHERE {self.condition(self.choose({0: 2, 1: 2, 2: 1}))}" if self.chance(0.35) else ""
        aggregates = [self.aggregate() for _ in range(self.choose({1: 8, 2: 2, 3: 1}))]
        columns = [f"{key} AS k{position}" for position, key in enumerate(keys) if self.chance(0.9)]
        columns += [f"{self.formula(aggregates, keys, 2)} AS f{position}" for position in range(len(aggregates))]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        return f"{source[0]}SELECT {', '.join(columns)} FROM {source[1]}{where}{group}{self.ending(aggregates, keys)}"

    def ending(self, aggregates: list[str], keys: list[str]) -> str:
        """Make HAVING, ORDER BY, LIMIT and OFFSET, each now and then."""
        text = ""
        if self.chance(0.15):
            text += f" HAVING {self.answer_condition(aggregates, keys)}"
        if self.chance(0.25):
            terms = [*(["f0"] if self.chance(0.5) else []), self.pick([*keys, self.formula(aggregates, keys, 1)])]
            ways = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]
            text += " ORDER BY " + ", ".join(term + self.pick(ways) for term in terms)
        if self.chance(0.15):
            text += f" LIMIT {self.pick([0, 1, 2, 5, 1000])}"
            text += f" OFFSET {self.pick([0, 1, 3])}" if self.chance(0.4) else ""
        return text

    def source(self) -> tuple[str, str]:
        """Make a FROM clause, with the WITH clause that it needs; set the columns in scope."""
        kind = self.choose(
            {"table": 10, "public": 3, "unit": 4, "left": 2, "grouped": 5, "filtered": 2, "union": 1, "with": 1,
             "distinct": 1, "key": 1, "member": 1, "nested": 1}
        )  # fmt: skip
        return getattr(self, f"source_{kind}")()

    def source_table(self) -> tuple[str, str]:
        """A table by itself."""
        table = self.choose({"people": 5, "visits": 5, "nothing": 2})
        self.columns = dict(COLUMNS[table])
        return "", table

    def source_public(self) -> tuple[str, str]:
        """Visits joined with the public places."""
        self.columns = {**COLUMNS["visits"], **COLUMNS["places"]}
        return "", f"visits {self.pick(['', 'LEFT ', 'RIGHT '])}JOIN places USING (place)"

    def source_unit(self) -> tuple[str, str]:
        """Two private tables joined on the unit's key."""
        other = self.pick(["visits", "nothing"])
        self.columns = {**COLUMNS["people"], **COLUMNS[other]}
        return "", f"people JOIN {other} USING (person)"

    def source_left(self) -> tuple[str, str]:
        """A left join, whose other side may be missing."""
        other = self.pick(["visits", "nothing"])
        self.columns = {**COLUMNS["people"], **COLUMNS[other]}
        return "", f"people LEFT JOIN {other} USING (person)"

    def source_grouped(self) -> tuple[str, str]:
        """One row for each person, or for each person and key."""
        table = self.choose({"visits": 6, "nothing": 1, "people": 1})
        self.columns = dict(COLUMNS[table])
        inner = {"n": "COUNT(*)", "total": f"SUM({self.number(1)})", "best": f"{self.pick(['MIN', 'MAX'])}"}
        inner["best"] += f"({self.number(1)})"
        inner["mean"] = f"AVG({self.number(1)})"
        inner["kinds"] = (
            f"COUNT(DISTINCT {self.pick(self.named('text', 'boolean'))})" if self.chance(0.8) else "COUNT(1)"
        )
        chosen = self.random.sample(sorted(inner), self.random.randint(1, 3))
        extra = [self.pick([name for name in self.columns if name in SMALL])] if self.chance(0.3) else []
        key = [] if self.chance(0.07) else ["person"]
        having = f" HAVING {self.pick(['COUNT(*) > 2', 'COUNT(*) <= 5'])}" if self.chance(0.2) else ""
        where = f" WHERE {self.condition(1)}" if self.chance(0.2) else ""
        keys = [*key, *extra] or ["person"]
        select = ", ".join([*keys, *(f"{inner[name]} AS {name}" for name in chosen)])
        scope: dict[str, Kind] = {name: self.columns[name] for name in keys}
        self.columns = scope | dict.fromkeys(chosen, "number")
        return "", f"(SELECT {select} FROM {table}{where} GROUP BY {', '.join(keys)}{having}) AS g"

    def source_filtered(self) -> tuple[str, str]:
        """A subquery that keeps some rows and computes a column."""
        table = self.pick(["people", "visits"])
        self.columns = dict(COLUMNS[table])
        computed, condition = self.number(1), self.condition(0)
        self.columns = {**self.columns, "z": "number"}
        return "", f"(SELECT *, {computed} AS z FROM {table} WHERE {condition}) AS s"

    def source_union(self) -> tuple[str, str]:
        """Two tables below each other."""
        self.columns = {"person": "key", "v": "number"}
        return "", "(SELECT person, minutes AS v FROM visits UNION ALL SELECT person, age AS v FROM people) AS u"

    def source_with(self) -> tuple[str, str]:
        """A subquery that WITH names."""
        self.columns = dict(COLUMNS["visits"])
        text = f"WITH w AS (SELECT * FROM visits WHERE {self.condition(1)}) "
        return text, self.pick(["w", "w JOIN places USING (place)"])

    def source_distinct(self) -> tuple[str, str]:
        """Distinct rows, each of one person."""
        self.columns = {"person": "key", "kind": "text", "place": "text"}
        return "", "(SELECT DISTINCT person, kind, place FROM visits) AS d"

    def source_key(self) -> tuple[str, str]:
        """A join on a key that is not the unit's."""
        self.columns = {"minutes": "number", "age": "number", "kind": "text", "grade": "text"}
        return "", "visits JOIN people ON visits.place = people.home"

    def source_member(self) -> tuple[str, str]:
        """Rows whose key is in a public list."""
        self.columns = dict(COLUMNS["visits"])
        condition = self.pick(["zone = 'north'", "size > 10", "size > 1000"])
        return "", f"(SELECT * FROM visits WHERE place IN (SELECT place FROM places WHERE {condition})) AS m"

    def source_nested(self) -> tuple[str, str]:
        """People joined with a count of their own visits."""
        self.columns = {**COLUMNS["people"], "n": "number", "spent": "number"}
        grouped = "SELECT person, COUNT(*) AS n, SUM(cost) AS spent FROM visits GROUP BY person"
        return "", f"people {self.pick(['', 'LEFT '])}JOIN ({grouped}) AS g USING (person)"

    # --- rows ----------------------------------------------------------------------------------------------------

    def number(self, depth: int) -> str:
        """Make a number for each row."""
        names = self.named("number")
        if depth <= 0 or self.chance(0.3):
            return self.pick(names) if names and self.chance(0.85) else self.pick(NUMBERS)
        one, two = self.number(depth - 1), self.number(depth - 1)
        moments = self.named("moment")
        forms = [
            f"({one} + {two})", f"({one} - {two})", f"({one} * {two})", f"({one} / {two})", f"({one} % {two})",
            f"-{one}" if not one.startswith("-") else one, f"ABS({one})", f"FLOOR({one})", f"CEIL({one} / 10)",
            f"ROUND({one}, {self.pick([0, 1, -1, 2])})", f"LEAST({one}, {two})", f"GREATEST({one}, {two})",
            f"CASE WHEN {self.condition(depth - 1)} THEN {one} ELSE {two} END",
            f"CASE WHEN {self.condition(depth - 1)} THEN {one} END", f"COALESCE({one}, {two})", f"NULLIF({one}, {two})",
            f"CLAMP({one}, -10, {self.pick([10, 100, '99.5'])})", f"SQRT({one})", f"LN({one})",
            f"EXP(CLAMP({one}, -5, 5))", f"POWER(CLAMP({one}, 0, 10), {self.pick([2, 3, '0.5'])})",
            f"LOGISTIC({one})", f"BUCKET({one}, 1, 10, 50)", f"WIDTH_BUCKET({one}, 0, 100, 5)",
            f"CAST({self.condition(depth - 1)} AS INT)", f"IF({self.condition(depth - 1)}, {one}, {two})",
            f"({one})::INT", f"{one} // {self.pick([2, 7, 0])}",
        ]  # fmt: skip
        if moments:
            when = self.moment(depth - 1)
            forms += [f"{self.pick(PARTS)}({when})", f"DATE_PART('{self.pick(['year', 'month', 'hour'])}', {when})"]
            forms += [f"DATE_DIFF('{self.pick(PERIODS)}', {self.moment(0)}, {when})"]
        return self.pick(forms)

    def moment(self, depth: int) -> str:
        """Make a moment for each row."""
        names = self.named("moment")
        if not names or self.chance(0.15):
            return self.pick(DATES)
        name = self.pick(names)
        if depth <= 0 or self.chance(0.5):
            return name
        return self.pick([f"DATE_TRUNC('{self.pick(PERIODS)}', {name})", f"CAST({name} AS DATE)"])

    def text(self, depth: int) -> str:
        """Make a text for each row."""
        names = self.named("text")
        if not names:
            return f"CASE WHEN {self.condition(0)} THEN 'yes' ELSE 'no' END"
        name = self.pick(names)
        if depth <= 0 or self.chance(0.6):
            return name
        if name not in self.listed():
            return name
        return self.pick(
            [f"UPPER({name})", f"LOWER({name})", f"LEFT({name}, 1)", f"SUBSTR({name}, 1, 2)",
             f"COALESCE({name}, 'a')", f"NULLIF({name}, {self.pick(WORDS)})",
             f"CASE WHEN {self.condition(0)} THEN {name} ELSE {self.pick(WORDS)} END"]
        )  # fmt: skip

    def condition(self, depth: int) -> str:
        """Make a condition for each row."""
        forms = []
        if numbers := self.named("number"):
            number = self.number(depth - 1) if depth > 0 else self.pick(numbers)
            forms += [
                f"{number} {self.pick(['<', '<=', '>', '>=', '=', '<>'])} {self.pick(NUMBERS[:-1])}",
                f"{number} BETWEEN {self.pick([0, 1, '-5'])} AND {self.pick([2, 50, '0.5'])}",
                f"{number} IN (1, 2, 5)", f"{number} IS NULL", f"{number} IS NOT NULL",
            ]  # fmt: skip
        if self.named("text"):
            text = self.text(depth - 1)
            forms += [f"{text} = {self.pick(WORDS)}", f"{text} IN ('a', 'walk', 'pier')", f"{text} IS NULL"]
            forms += [
                f"{self.pick(listed)} LIKE '{self.pick(['a%', '%r', '%e%'])}'" for listed in [self.listed()] if listed
            ]
        if booleans := self.named("boolean"):
            forms += [self.pick(booleans), f"NOT {self.pick(booleans)}", f"{self.pick(booleans)} IS NULL"]
        if self.named("moment"):
            forms += [f"{self.moment(1)} {self.pick(['<', '>=', '='])} {self.pick(DATES)}"]
        if depth > 1:
            one, two = self.condition(depth - 1), self.condition(depth - 1)
            forms += [f"({one} AND {two})", f"({one} OR {two})", f"NOT ({one})"]
        return self.pick(forms or ["1 = 1"])

    # --- aggregates ----------------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """Choose GROUP BY keys; with `delta=`, also ones with too many values to list."""
        if self.selects_keys:
            names = self.named("number", "text", "boolean", "moment")
            wide = [self.pick(names) if self.chance(0.5) else self.number(1) for _ in range(self.choose({1: 5, 2: 1}))]
            return list(dict.fromkeys(wide))
        small = [name for name in self.columns if name in SMALL]
        keys = []
        for _ in range(self.choose({0: 4, 1: 5, 2: 1})):
            forms = [self.pick(small)] * 3 if small else []
            forms += [self.condition(1), self.text(1), f"BUCKET({self.number(1)}, 0, 10)"]
            if self.named("moment") and not keys:
                when = self.moment(0)
                forms += [f"{self.pick(PARTS)}({when})", f"DATE_TRUNC('{self.pick(PERIODS[4:5])}', {when})"]
            keys.append(self.pick(forms))
        return list(dict.fromkeys(keys))

    def aggregate(self) -> str:
        """Make an aggregate, sometimes of some rows only."""
        value, other = self.number(self.choose({0: 3, 1: 5, 2: 1})), self.number(self.choose({0: 3, 1: 2}))
        small = self.pick([name for name in self.columns if self.columns[name] != "key"])
        level = self.pick(["0.5", "0.25", "0.99", "0", "1"])
        text = self.pick(
            ["COUNT(*)"] * 3
            + [f"COUNT({value})", f"COUNT({small})", f"COUNT(DISTINCT {small})", f"COUNT(DISTINCT {value})",
               f"SUM({value})", f"SUM({value})", f"AVG({value})", f"AVG({value})", f"VARIANCE({value})",
               f"VAR_POP({value})", f"STDDEV({value})", f"STDDEV_POP({other})", f"MIN({value})", f"MAX({value})",
               f"MEDIAN({value})", f"MEDIAN({other})", f"QUANTILE({value}, {level})",
               f"PERCENTILE_CONT({level}) WITHIN GROUP (ORDER BY {value})", f"CORR({value}, {other})",
               f"COVAR_POP({value}, {other})", f"COVAR_SAMP({value}, {other})", f"COUNT_IF({self.condition(1)})"]
            + (["COUNT(DISTINCT person)"] * 2 if "person" in self.columns else [])
        )  # fmt: skip
        return f"{text} FILTER (WHERE {self.condition(0)})" if self.chance(0.12) else text

    def formula(self, aggregates: list[str], keys: list[str], depth: int) -> str:
        """Make a column of the answer from aggregates, keys and literals."""
        one = self.pick(aggregates)
        if depth <= 0 or self.chance(0.55):
            return one
        one = self.formula(aggregates, keys, depth - 1)
        other = self.pick([self.formula(aggregates, keys, depth - 1), self.pick(NUMBERS), *keys])
        condition = self.answer_condition(aggregates, keys)
        return self.pick(
            [f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"({one} / {other})",
             f"({one} % {other})", f"(-{one})", f"ABS({one})", f"ROUND({one}, 1)", f"FLOOR({one})", f"CEIL({one})",
             f"SQRT({one})", f"LN({one})", f"EXP({one})", f"POWER({one}, {self.pick([2, 0.5, -1])})",
             f"SIGN({one})", f"LEAST({one}, {other})", f"GREATEST({one}, {other})", f"COALESCE({one}, {other})",
             f"NULLIF({one}, {other})", f"CASE WHEN {condition} THEN {one} ELSE {other} END",
             f"CASE WHEN {condition} THEN {one} END", f"CAST({one} AS INT)", f"{one} / NULLIF({other}, 0)", condition,
             f"IF({condition}, {one}, {other})", f"100.0 * {one} / COUNT(*)"]
        )  # fmt: skip

    def answer_condition(self, aggregates: list[str], keys: list[str]) -> str:
        """Make a condition over the answer."""
        one = self.pick([*aggregates, *keys])
        other = self.pick([*NUMBERS, *aggregates, *keys])
        return self.pick(
            [f"{one} {self.pick(['<', '>=', '=', '<>'])} {other}", f"{one} IS NULL", f"{one} BETWEEN 0 AND 10",
             f"{one} IN (0, 1, 5)", f"({one} > 1 AND {self.pick(aggregates)} < 100)", f"NOT {one} > 3",
             f"({one} < 0 OR {self.pick(aggregates)} IS NOT NULL)"]
        )  # fmt: skip

    # --- options -------------------------------------------------------------------------------------------------

    def options(self, verb: Verb) -> dict[str, Any]:
        """Choose a loss and, now and then, other options."""
        loss = self.choose(
            {"epsilon": 6, self.losses[-1]: 6, "max_error": 1 if verb in ("sql", "quote", "batch") else 0}
        )
        amounts = ["1/100", "0.1", "1/2", "1", "3"] if loss != "max_error" else [100, 1000, 10000]
        options: dict[str, Any] = {loss: self.pick(amounts)}
        if self.selects_keys:
            options = {self.pick(self.losses): self.pick(["1", "5", "20"]), "delta": self.pick(["1e-6", "1/1000"])}
        if self.chance(0.6):
            options["max_contributions"] = self.pick(
                [1, 2, 20, "auto", {"max_rows": 3, "how": "rows"}, {"how": "clip"}, {"how": "rows"},
                 {"max_groups": 2, "max_rows_per_group": 3}, {"max_rows": 5, "how": "clip"}]
            )  # fmt: skip
        extras = {
            "confidence": CONFIDENCES, "unit": ["person", "month", "visit"], "max_rows_per_key": [1, 3],
            "assumed_group_size": [1, 50, 1e6], "nonnegative": [True],
        }  # fmt: skip
        for name, values in extras.items():
            if self.chance(0.12):
                options[name] = self.pick(values)
        if verb in ("sql", "quote", "batch"):
            options["repeat"] = self.random.randrange(1 << 30)
        return options
