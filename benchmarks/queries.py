"""Four queries at user level, epsilon 1, beside five other systems: error, missing groups, CPU, memory, code.

    python benchmarks/queries.py [--users 100000] [--repeats 5] [--seed N] [--record docs/records/peers.md]

`make bench-peers` runs it. The data are those of examples/url_shares, of a fresh seed unless one is given. Peers bound
each user to 20 rows (to 1,000 as well where the peer takes any bound); Dither is asked with its defaults: it finds its
bound privately out of the same epsilon, and chooses itself how to bound. Errors are relative to the unbounded truth, a
missing group counts as 100%. CPU is that of the whole process for one answer (planning, charge, reading, noise,
estimates), over that of raw DuckDB for the bare query. Dither reads data that `dither prepare` has prepared, once and
outside these figures, and then the bare files; its peers read data frames in memory, or Spark tables. Memory is the
largest process of a system's whole run. Code is what a user writes for the four queries, without blank lines:
descriptions, queries, and preparation that the system leaves to its user.
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
import peer

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
PEERS = {
    "SmartNoise SQL 1.0.10": ("smartnoise-sql", "smartnoise.py", 20),
    "Qrlew 0.9.27": ("qrlew", "qrlew.py", 20),
    "OpenDP 0.16.0, 20 rows": ("opendp", "opendp_polars.py", 20),
    "OpenDP 0.16.0, 1,000 rows": ("opendp", "opendp_polars.py", 1_000),
    "Tumult Analytics 0.21.0, 20 rows": ("tumult", "tumult_analytics.py", 20),
    "Tumult Analytics 0.21.0, 1,000 rows": ("tumult", "tumult_analytics.py", 1_000),
    "PipelineDP 0.3.1, 20 rows": ("pipeline-dp", "pipelinedp.py", 20),
    "PipelineDP 0.3.1, 1,000 rows": ("pipeline-dp", "pipelinedp.py", 1_000),
}
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


@dataclass(frozen=True)
class System:
    """One system's results for all queries, its peak memory in MB and the lines of code that its user writes."""

    results: list[Result]
    memory: float
    lines: int


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
    return int(module.generate(folder, users, 1_000, 20.0, seed, quiet=True, heaviest=5_000))


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


def ours(folder: Path, truths: list[Rows], repeats: int, name: str) -> System:
    """Ask Dither in a process of its own, like its peers."""
    script = HERE / "peers_queries" / "dither_sessions.py"
    arguments = [str(folder), json.dumps(list(range(len(QUERIES)))), str(repeats), name]
    done = peer.run_python(Path(sys.executable), "dither", script, arguments)
    return system_of(done, truths, lines_of(script.read_text()) + lines_of(DESCRIPTION, whole=True))


def system_of(done: peer.Run, truths: list[Rows], lines: int) -> System:
    """Judge the answers of a run."""
    results = []
    for found, truth in zip(done.result, truths, strict=True):
        if not found["runs"]:
            results.append(Result(float("nan"), len(truth), float("nan"), found.get("problem", "no answer")))
        else:
            results.append(judged(truth, found["runs"], found["cpu"], found.get("note", "")))
    return System(results, done.peak_megabytes, lines)


def lines_of(text: str, whole: bool = False) -> int:
    """Count the lines that are not blank between "# user code" and "# end of user code", or in the whole text."""
    counted, inside = 0, whole
    for line in text.splitlines():
        inside = (inside or line.strip() == "# user code") and line.strip() != "# end of user code"
        counted += inside and bool(line.strip()) and line.strip() != "# user code"
    return counted


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


def theirs(name: str, folder: Path, truths: list[Rows], repeats: int) -> System | str:
    """Ask a peer in its own environment; return a sentence where it cannot run."""
    package, script, rows = PEERS[name]
    try:
        arguments = [str(folder), json.dumps(list(range(len(QUERIES)))), str(repeats), str(rows)]
        done = peer.run(package, HERE / "peers_queries" / script, arguments)
    except peer.Unavailable as reason:
        return str(reason)
    return system_of(done, truths, lines_of((HERE / "peers_queries" / script).read_text()))


def table(systems: dict[str, System | str], truths: list[Rows], seconds: list[float]) -> list[str]:
    """Markdown: a row for each system, a column for each query."""
    sizes = [f"{name} ({len(truth)} groups; raw {took:.3f} CPU s)"
             for name, truth, took in zip(NAMES, truths, seconds, strict=True)]  # fmt: skip
    lines = ["| system | " + " | ".join(sizes) + " | peak MB | lines of code |", "|---" * (len(NAMES) + 3) + "|"]
    for name, found in systems.items():
        if isinstance(found, str):
            lines.append(f"| {name} | not run: {found} |" + " |" * (len(NAMES) + 1))
            continue
        cells = [cell(one, took) for one, took in zip(found.results, seconds, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {found.memory:,.0f} | {found.lines} |")
    return lines


def cell(one: Result, raw_seconds: float) -> str:
    """Return error, missing groups and CPU as a multiple of the raw query."""
    if one.error != one.error:
        return " ".join(one.note.split())
    gone = f", {one.missing} missing" if one.missing else ""
    return f"{100 * one.error:.3g}%{gone}; {one.cpu / raw_seconds:.1f}x"


def main() -> None:
    """Run everything, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None, help="of the data; a fresh one unless given")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--only", nargs="*", choices=list(PEERS), help="these peers alone")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6) + 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = generate(folder, options.users, seed)
        (folder / "dataset.yml").write_text(DESCRIPTION)
        truths, seconds = raw(folder, options.repeats)
        bare = ours(folder, truths, options.repeats, "bare")
        took, planned = prepared(folder), planning(folder)
        results: dict[str, System | str] = {
            "Dither": ours(folder, truths, options.repeats, "prepared"),
            "Dither, files not prepared": bare,
        }
        head = [
            "# Queries beside other systems",
            "",
            f"`python benchmarks/queries.py --users {options.users} --repeats {options.repeats} --seed {seed}`, "
            f"{date.today()}, {platform.machine()}, {options.users:,} users, {rows:,} actions, user level, epsilon 1.",
            "Median relative error over groups and runs against the unbounded truth (a missing group counts as 100%), "
            "and CPU as a multiple of raw DuckDB. Dither is asked with its defaults; `dither prepare` took "
            f"{took:.1f} CPU s, once, and is not counted.",
            "",
        ]
        tail = [
            "",
            "Planning, from the text of a query to its cost, in CPU ms: "
            + ", ".join(f"{name} {each:.1f}" for name, each in zip(NAMES, planned, strict=True)),
            "",
        ]
        for name in [] if options.alone else options.only or PEERS:
            results[name] = theirs(name, folder, truths, options.repeats)
            write_record(options.record, [*head, *table(results, truths, seconds), *tail, *comparisons(results)])
    lines = [*head, *table(results, truths, seconds), *tail, *comparisons(results)]
    print("\n".join(lines))
    write_record(options.record, lines)


def write_record(place: Path | None, lines: list[str]) -> None:
    """Write the record so far, so that a run that is stopped leaves what it has measured."""
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(lines) + "\n")


def comparisons(systems: dict[str, System | str]) -> list[str]:
    """Say, for each query, what Dither chose, and which systems have a lower error or take less CPU than it does."""
    mine, lines = systems["Dither"], []
    if isinstance(mine, str):
        return []
    for number, (name, own) in enumerate(zip(NAMES, mine.results, strict=True)):
        others = {
            other: found.results[number]
            for other, found in systems.items()
            if not isinstance(found, str) and not other.startswith("Dither")
        }
        better = [f"{other} has a lower error" for other, found in others.items() if found.error < own.error]
        better += [f"{other} takes less CPU" for other, found in others.items() if found.cpu < own.cpu]
        lines.append(f"- {name}: {'; '.join(better) or 'Dither has the lowest error and takes the least CPU'}.")
        lines += [f"  {own.note}"] if own.note else []
    return lines


if __name__ == "__main__":
    main()
