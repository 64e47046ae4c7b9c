"""Four queries at user level, epsilon 1, beside SmartNoise SQL and Qrlew in one run: error, missing groups, CPU.

    python benchmarks/queries.py [--users 100000] [--repeats 5] [--seed N] [--record docs/records/queries.md]

The data are those of examples/url_shares, of a fresh seed unless one is given. Peers bound each user to 20 rows; Dither
is asked with its defaults: it finds its bound privately out of the same epsilon, and chooses itself how to bound.
Errors are relative to the unbounded truth, a missing group counts as 100%. CPU is that of the whole process for one
answer (planning, charge, reading, noise, estimates), over that of raw DuckDB for the bare query. Dither reads data that
`dither prepare` has prepared, once and outside these figures, and then the bare files; its peers read data frames in
memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import resource
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb

import dither
from dither.access.snapshot import prepare

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
QUERIES = (
    "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "SELECT country, FLOOR(age / 10) AS decade, COUNT(*) AS n FROM actions JOIN users USING (user_id) "
    "GROUP BY country, decade",
    "SELECT country, AVG(age) AS a FROM users GROUP BY country",
    "SELECT COUNT(DISTINCT user_id) AS n FROM actions",
)
NAMES = ("COUNT by action", "COUNT by country x age, joined", "AVG(age) by country", "COUNT(DISTINCT user)")
PLANNED = 50
PEERS = {"SmartNoise SQL 1.0.10": ("smartnoise-sql", "smartnoise.py"), "Qrlew 0.9.27": ("qrlew", "qrlew.py")}
DESCRIPTION = """
version: 1
name: url_shares
population: url_shares
data_version: "1"
tables:
  users:
    private: true
    source: {kind: parquet, path: users.parquet}
    unique: user_id
    columns:
      user_id: {type: identifier, kind: integer}
      country: {type: category, values: [US, GB, DE, FR, IN, BR, JP, NG, other], default: other}
      age: {type: integer, min: 13, max: 100}
  actions:
    private: true
    source: {kind: parquet, path: actions.parquet}
    columns:
      user_id: {type: identifier, kind: integer}
      action: {type: category, values: [view, click, share, like, comment, report], default: view}
units:
  user: {kind: user, keys: {users: user_id, actions: user_id}}
budgets:
  - {unit: user, kind: pure, epsilon: 1000}
"""
Rows = list[list[Any]]


@dataclass(frozen=True)
class Result:
    """One system's answers to one query."""

    error: float
    missing: int
    cpu: float
    note: str = ""


def cpu() -> float:
    """CPU seconds of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def generate(folder: Path, users: int, seed: int) -> int:
    """The demonstration data at this size."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "examples" / "url_shares" / "generate.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/url_shares/generate.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return int(module.generate(folder, users, 1_000, 20.0, seed, quiet=True))


def key(row: list[Any]) -> tuple[str, ...]:
    """The keys of a row as text, however a system spells numbers."""
    return tuple(str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in row[:-1])


def judged(truth: Rows, runs: list[Rows], seconds: float, note: str = "") -> Result:
    """The median, over groups and runs, of the relative error."""
    errors: list[float] = []
    missing = 0
    for rows in runs:
        found = {key(row): row[-1] for row in rows}
        for row in truth:
            value = found.get(key(row))
            missing += value is None
            errors.append(1.0 if value is None else abs(value - row[-1]) / abs(row[-1]))
    return Result(statistics.median(errors), round(missing / len(runs)), seconds, note)


def timed(action: Callable[[int], Rows], repeats: int) -> tuple[list[Rows], float]:
    """The answers of several runs after one to warm up, and the CPU seconds of one."""
    action(-1)
    start = cpu()
    runs = [action(number) for number in range(repeats)]
    return runs, (cpu() - start) / repeats


def raw(folder: Path, repeats: int) -> tuple[list[Rows], list[float]]:
    """The exact answers by DuckDB, and what they cost."""
    con = duckdb.connect()
    for table in ("users", "actions"):
        con.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder / table}.parquet')")
    truths, seconds = [], []
    for query in QUERIES:
        runs, took = timed(lambda _, q=query: [list(row) for row in con.execute(q).fetchall()], 3 * repeats)  # type: ignore[misc]
        truths.append(runs[0])
        seconds.append(took)
    return truths, seconds


def ours(folder: Path, truths: list[Rows], repeats: int, name: str) -> list[Result]:
    """Dither through its real kernel, charged and recorded, with the options that it has by default."""
    session = dither.connect(
        folder / "dataset.yml", account="benchmark", ledger=folder / f"{name}.ledger", another_ledger=True
    )
    results = []
    for query, truth in zip(QUERIES, truths, strict=True):
        notes: list[str] = []

        def ask(number: int, query: str = query, notes: list[str] = notes) -> Rows:
            answer = session.sql(query, epsilon=1, repeat=number + 1)
            notes[:] = [note for note in answer.notes if "bound" in note]
            columns = [
                answer.keys.column(place).to_pylist() if column.key else column.estimate.value.tolist()
                for place, column in enumerate(answer.columns)
            ]
            return [list(row) for row in zip(*columns, strict=True)]

        runs, seconds = timed(ask, repeats)
        results.append(judged(truth, runs, seconds, "; ".join(notes)))
    session.kernel.close()  # type: ignore[attr-defined]
    return results


def planning(folder: Path) -> list[float]:
    """CPU milliseconds from a query's text to its cost: parsing, planning, checking, costing; nothing is read."""
    session = dither.connect(
        folder / "dataset.yml", account="benchmark", ledger=folder / "planning.ledger", another_ledger=True
    )
    found = []
    for query in QUERIES:
        for _ in range(5):
            session.quote(query, epsilon=1)
        start = cpu()
        for _ in range(PLANNED):
            session.quote(query, epsilon=1)
        found.append(1000 * (cpu() - start) / PLANNED)
    session.kernel.close()  # type: ignore[attr-defined]
    return found


def prepared(folder: Path) -> float:
    """The CPU seconds that preparing takes, once."""
    start = cpu()
    prepare(dither.load(folder / "dataset.yml"))
    return cpu() - start


def theirs(name: str, folder: Path, truths: list[Rows], repeats: int) -> list[Result] | str:
    """A peer in its own environment; a sentence where it cannot run."""
    sys.path.insert(0, str(HERE))
    import peer

    package, script = PEERS[name]
    try:
        arguments = [str(folder), json.dumps(list(range(len(QUERIES)))), str(repeats)]
        done = peer.run(package, HERE / "peers_queries" / script, arguments)
    except peer.Unavailable as reason:
        return str(reason)
    results = []
    for found, truth in zip(done.result, truths, strict=True):
        if not found["runs"]:
            results.append(Result(float("nan"), len(truth), float("nan"), found.get("problem", "no answer")))
        else:
            results.append(judged(truth, found["runs"], found["cpu"]))
    return results


def table(results: dict[str, list[Result] | str], truths: list[Rows], seconds: list[float]) -> list[str]:
    """Markdown: a row for each query, a column for each system."""
    lines = ["| query | raw DuckDB, CPU s | " + " | ".join(results) + " |", "|---" * (len(results) + 2) + "|"]
    for place, name in enumerate(NAMES):
        cells = []
        for found in results.values():
            if isinstance(found, str):
                cells.append(f"not run: {found}")
                continue
            one = found[place]
            gone = f", {one.missing} of {len(truths[place])} groups missing" if one.missing else ""
            cells.append(
                f"{100 * one.error:.3g}%{gone}; {one.cpu / seconds[place]:.1f}x" if one.error == one.error else one.note
            )
        lines.append(f"| {name} | {seconds[place]:.3f} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run everything, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None, help="of the data; a fresh one unless given")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--alone", action="store_true", help="without the peers")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6) + 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = generate(folder, options.users, seed)
        (folder / "dataset.yml").write_text(DESCRIPTION)
        truths, seconds = raw(folder, options.repeats)
        bare = ours(folder, truths, options.repeats, "bare")
        took, planned = prepared(folder), planning(folder)
        results: dict[str, list[Result] | str] = {
            "Dither": ours(folder, truths, options.repeats, "prepared"),
            "Dither, files not prepared": bare,
        }
        if not options.alone:
            results |= {name: theirs(name, folder, truths, options.repeats) for name in PEERS}
    lines = [
        "# Queries beside SQL peers",
        "",
        f"`python benchmarks/queries.py --users {options.users} --repeats {options.repeats} --seed {seed}`, "
        f"{date.today()}, {platform.machine()}, {options.users:,} users, {rows:,} actions, user level, epsilon 1.",
        "Median relative error over groups and runs against the unbounded truth (a missing group counts as 100%), "
        "and CPU as a multiple of raw DuckDB. Dither is asked with its defaults; `dither prepare` took "
        f"{took:.1f} CPU s, once, and is not counted.",
        "",
        *table(results, truths, seconds),
        "",
        "Planning, from the text of a query to its cost, in CPU ms: "
        + ", ".join(f"{name} {each:.1f}" for name, each in zip(NAMES, planned, strict=True)),
        "",
    ]
    mine = results["Dither"]
    if not isinstance(mine, str):
        lines += [f"- {name}: {one.note}" for name, one in zip(NAMES, mine, strict=True) if one.note]
    print("\n".join(lines))
    if options.record is not None:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
