"""Refuse queries with parts that no code reads, so that nothing is silently ignored, and queries that are too large."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from sqlglot import exp

from dither.errors import Unsupported
from dither.post.query.functions import BY_NODE
from dither.post.query.literals import sql_excerpt

# The parts of each kind of node that some code reads; of kinds that are not listed, those in USUAL_PARTS.
READ_PARTS: dict[type[exp.Expr], str] = {
    exp.Alias: "this alias",
    exp.Anonymous: "this expressions",
    exp.ApproxQuantile: "this quantile",
    exp.Between: "this low high",
    exp.CTE: "this alias materialized",
    exp.Case: "this ifs default",
    exp.Cast: "this to",
    exp.Column: "this table",
    exp.Count: "this big_int",
    exp.DataType: "this",
    exp.Distinct: "expressions",
    exp.Cube: "expressions",
    exp.Group: "expressions all",
    exp.Grouping: "expressions",
    exp.GroupingSets: "expressions",
    exp.Identifier: "this quoted",
    exp.If: "this true false",
    exp.In: "this expressions query",
    exp.Interval: "this unit",
    exp.Join: "this side kind on using",
    exp.DPipe: "this expression safe",
    exp.ILike: "this expression negate",
    exp.Like: "this expression negate",
    exp.Limit: "expression",
    exp.Literal: "this is_string",
    exp.Max: "this",
    exp.Median: "this",
    exp.Min: "this",
    exp.Offset: "expression",
    exp.Order: "expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Quantile: "this quantile",
    exp.Rollup: "expressions",
    exp.Select: "expressions from_ joins where group having order limit offset distinct with_",
    exp.Star: "",
    exp.Subquery: "this alias with_",
    exp.Sum: "this",
    exp.Table: "this alias",
    exp.TableAlias: "this",
    exp.TryCast: "this to safe requires_string",
    exp.Tuple: "expressions",
    exp.Union: "this expression distinct with_",
    exp.Window: "this partition_by order over",
    exp.With: "expressions",
    **{node: function.reads for node, function in BY_NODE.items() if function.reads},
}
USUAL_PARTS = "this expression"
MAX_COLUMNS = 256
MAX_CTES = 64
MAX_PLAN_NODES = 5_000
ADVICE: dict[tuple[type[exp.Expr], str], str] = {
    (exp.Between, "symmetric"): "write the lower end first, without SYMMETRIC",
    (exp.DataType, "expressions"): "precision and scale are not read; write ROUND(x, digits)",
    (exp.Count, "expressions"): "COUNT takes one expression; write COUNT(DISTINCT a, b) for pairs",
    (exp.Max, "expressions"): "write GREATEST(a, b) for the larger of two values",
    (exp.Max, "count"): "write GREATEST(a, b) for the larger of two values; MAX(x, n) would return several",
    (exp.Min, "expressions"): "write LEAST(a, b) for the smaller of two values",
    (exp.Min, "count"): "write LEAST(a, b) for the smaller of two values; MIN(x, n) would return several",
    (exp.Limit, "limit_options"): "LIMIT takes a number of rows, not a share",
    (exp.TableAlias, "columns"): "name the columns with AS inside the subquery",
    (exp.Round, "truncate"): "ROUND takes a number and digits; halves go away from zero",
    (exp.Window, "spec"): "leave the frame out: a sum goes from the first row up to this one, or over all rows",
    (exp.Union, "by_name"): "columns are matched by position; write them in the same order",
}


def refuse_unread_parts(query: exp.Expr) -> None:
    """Refuse a query with a part that no code reads."""
    for node in query.walk():
        read = READ_PARTS.get(type(node), USUAL_PARTS).split()
        for name, part in node.args.items():
            if name not in read and part not in (None, False, []):
                advice = ADVICE.get(
                    (type(node), name), f"its {name.strip('_').replace('_', ' ')} is not read; leave it out"
                )
                raise Unsupported(f"{sql_excerpt(node)}: {advice}")


def refuse_large_query(query: exp.Expr) -> None:
    """Refuse a query with too many columns or WITH names, before it is translated."""
    for select in query.find_all(exp.Select):
        if len(select.expressions) > MAX_COLUMNS:
            raise Unsupported(f"a SELECT has at most {MAX_COLUMNS} columns, got {len(select.expressions)}; run a batch")
    named = sum(1 for _ in query.find_all(exp.CTE))
    if named > MAX_CTES:
        raise Unsupported(f"WITH names at most {MAX_CTES} subqueries, got {named}; run several queries")


def refuse_large_plan(plan: object) -> None:
    """Refuse a plan that is too large once every WITH name is expanded; a name that is used twice counts twice."""
    if (nodes := _tree_size(plan, {})) > MAX_PLAN_NODES:
        raise Unsupported(
            f"with its WITH names written out, the query has {nodes:.2g} parts, and the most is {MAX_PLAN_NODES}; "
            "use each name less often"
        )


def _tree_size(part: Any, known: dict[int, int]) -> int:
    """Count the nodes of a tree; a shared part counts at each place, but is visited once (`known` holds its size)."""
    if isinstance(part, tuple | list):
        return sum(_tree_size(each, known) for each in part)
    if not is_dataclass(part):
        return 0
    if id(part) not in known:
        known[id(part)] = 1 + sum(_tree_size(each, known) for each in vars(part).values())
    return known[id(part)]
