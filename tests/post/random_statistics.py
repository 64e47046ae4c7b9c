"""Random statistics over the hostile world: every method of a session that asks, with columns and expressions of it."""

from __future__ import annotations

from typing import Any

from post.random_questions import COLUMNS, SMALL, QuestionMaker, RandomQuestion

METHODS = {
    "table": 6, "histogram": 4, "quantiles": 4, "contributions": 2, "distribution": 2, "compare": 4, "independence": 3,
    "describe": 3, "proportion": 3, "ratio": 3, "top": 4, "watch": 4, "regress": 3, "classify": 2, "synthesize": 2,
    "components": 2, "cluster": 2, "naive_bayes": 2,
}  # fmt: skip


class StatisticMaker:
    """Makes the arguments of random statistics, from the columns that a question maker has in scope."""

    def __init__(self, maker: QuestionMaker) -> None:
        self.maker = maker

    def arguments(self, method: str) -> dict[str, Any]:
        """Make the arguments of a method, by name; the FROM clause is a table or a subquery."""
        maker, start = self.maker, maker_source(self.maker)
        number, other = self.value("number"), self.value("number")
        small, second = self.key(), self.key()
        match method:
            case "table":
                keys = list(dict.fromkeys([small, second]))[: maker.pick([1, 2])]
                value = maker.pick(["COUNT(*)", "COUNT(*)", f"SUM({number})", f"COUNT({number})"])
                flags = {name: True for name in ("consistent", "nonnegative", "whole") if maker.chance(0.3)}
                return {"source": start, "by": keys, "margins": maker.pick([None, "all"]), "value": value, **flags}
            case "histogram":
                bins = maker.pick([2, 7, 20, "private", [0, 1, 10], ["0.5", 7]])
                return {"source": start, "column": number, "bins": bins, "most": maker.pick([2, 5, 20])}
            case "quantiles" | "distribution":
                levels = {"levels": maker.pick([0.5, [0.25, "0.5", 0.99], [0.001]])} if method == "quantiles" else {}
                return {"source": start, "column": number, "population": maker.chance(0.3), **levels}
            case "contributions":
                where = maker.pick(["", maker.condition(1)])
                return {"table": maker.pick(["visits", "nothing", "people"]), "levels": [0.5, 0.99], "where": where}
            case "compare":
                value = maker.pick([number, *maker.named("boolean")])
                return {"source": start, "value": value, "by": small, "trend": maker.pick([None, False, True])}
            case "independence":
                return {"source": start, "one": small, "two": second}
            case "describe":
                return {"source": start, "columns": maker.pick([None, [small], list({small, self.name("number")})])}
            case "proportion":
                by = maker.pick([(), small])
                return {"source": start, "condition": maker.condition(2), "by": by, "population": maker.chance(0.3)}
            case "ratio":
                return {"source": start, "over": number, "under": other, "by": maker.pick([(), small])}
            case "top":
                keys = list(dict.fromkeys([small, second]))[: maker.pick([1, 2])]
                return {
                    "source": start,
                    "by": keys,
                    "k": maker.pick([1, 1, 2, 3]),
                    "count": maker.pick(["units", "rows"]),
                }
            case "watch":
                above = maker.pick([0, -3, "0.5", 10, 10**6])
                cell = maker.pick(["COUNT(*)", f"SUM({number})", f"COUNT({number})"])
                table = start if start.isidentifier() else f"({start}) AS s"
                query = f"SELECT {small} AS k, {cell} AS n FROM {table} GROUP BY {small}"
                return {"query": query, "above": above, "alerts": maker.pick([1, 1, 2, 3])}
            case _:
                return self.model(method, start)

    def model(self, method: str, start: str) -> dict[str, Any]:
        """Make the arguments of a model."""
        maker = self.maker
        numbers = list(dict.fromkeys([self.name("number"), self.value("number"), self.name("number")]))
        mixed = list(dict.fromkeys([*numbers[:2], self.key()]))
        standard = {"standardize": maker.pick([None, None, "declared", "private"])}
        match method:
            case "regress":
                more = {"alpha": maker.pick([0, 0.5, 100]), "population": maker.chance(0.2)}
                return {"source": start, "target": self.value("number"), "features": mixed, **standard, **more}
            case "classify":
                target = self.name("boolean") if maker.chance(0.7) else self.key()
                positive = {"positive": maker.pick(["a", "walk", "north", 1])} if maker.chance(0.3) else {}
                sample = {"sample": maker.pick(["1/10", 0.5])} if maker.chance(0.2) else {}
                return {"source": start, "target": target, "features": mixed, **standard, **positive, **sample}
            case "synthesize":
                return {"source": start, "columns": mixed, "bins": maker.pick([None, {numbers[0]: 4}]), "seed": 3}
            case "components":
                flags = {"correlation": maker.chance(0.5), "count": maker.pick([None, 1, 2])}
                return {"source": start, "columns": mixed, **standard, **flags}
            case "cluster":
                return {
                    "source": start,
                    "columns": numbers[:2],
                    "count": maker.pick([2, 3]),
                    "bins": maker.pick([None, 3]),
                }
            case _:
                return {
                    "source": start,
                    "target": self.key(),
                    "features": mixed,
                    "bins": maker.pick([None, {numbers[0]: 4}]),
                }

    def value(self, kind: str) -> str:
        """Make a number: mostly a column, sometimes an expression."""
        return self.name(kind) if self.maker.chance(0.6) else self.maker.number(1)

    def name(self, *kinds: Any) -> str:
        """Choose a column of some kinds, or any if there is none."""
        return self.maker.pick(self.maker.named(*kinds) or list(self.maker.columns))

    def key(self) -> str:
        """Choose a column with few values, or make one."""
        maker = self.maker
        forms = ["YEAR(at)"] if "at" in maker.columns else []
        small = [name for name in maker.columns if name in SMALL]
        return maker.pick([*small * 3, *forms, maker.condition(1)])


def random_statistic(maker: QuestionMaker) -> RandomQuestion:
    """Make a random statistic, as a question whose only query is the name of its method."""
    method = maker.choose(METHODS)
    maker.selects_keys = False
    arguments = StatisticMaker(maker).arguments(method)
    loss = maker.pick(maker.losses)
    options = {loss: maker.pick(["1/100", "0.1", "1/2", "1", "3"]), "repeat": maker.random.randrange(1 << 30)}
    bounds = {"max_contributions": [1, 3, "auto", {"max_rows": 3, "how": "rows"}], "unit": ["person", "month", "visit"]}
    options |= {name: maker.pick(values) for name, values in bounds.items() if maker.chance(0.25)}
    return RandomQuestion("statistic", (method,), {**arguments, **options})


def maker_source(maker: QuestionMaker) -> str:
    """Make the rows of a statistic: a table's name, or a SELECT without aggregates."""
    if maker.chance(0.5):
        maker.source_table()
        chosen = maker.pick([name for name in ("people", "visits", "nothing") if COLUMNS[name] == maker.columns])
        return str(chosen)
    prefix, start = maker.source()
    columns = dict(maker.columns)
    listed = ", ".join(columns)
    where = f" WHERE {maker.condition(1)}" if maker.chance(0.3) else ""
    return f"{prefix}SELECT {listed} FROM {start}{where}"
