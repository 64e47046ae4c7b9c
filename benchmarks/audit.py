"""How much the black-box auditor finds, beside the optimum and the figures of other tools.

    python benchmarks/audit.py catalogue [--seeds N ...] [--steps 8] [--given] [--rows FILE]
                                                                                  the table of the literature
    python benchmarks/audit.py peers --peers FOLDER [--rows FILE]                 DP-Sniper and StatDP, as many samples
    python benchmarks/audit.py table [--rows FILE]                                what was measured so far, as a table
    python benchmarks/audit.py told NAME ... [--repeats 300]                      if each pair's best event were told
    python benchmarks/audit.py zoo [--samples 2000000]                            every member, refuted or not
    python benchmarks/audit.py sequential [--repeats 51]                          pairs until refuted
    python benchmarks/audit.py wolf [fixed] [sequential] [--repeats 1000] [--steps 8]
                                                                                  refutations of true claims
    python benchmarks/audit.py timing [--repeats 200]                             identical inputs, and planted leaks

The first two write a line to FILE (JSON) as soon as a row is measured, and leave out rows that are there already, so
that they may be stopped and started again. The table shows medians over the seeds; "luck" is the standard deviation,
as a share, that the counts of the judgement of the best event bring about alone. The optimum is the 95% lower bound
that the best event of the best pair gives if all samples are spent on judging it, computed from the exact law at
expected counts; ours pays for the search too. Where inputs are numbers, the search has pairs that are some steps apart
beside the neighbours (--steps 1: neighbours only), which the other tools have not; "optimum apart" is that of all these
pairs, what is found on one being divided by its steps. With --given only the best pair is searched, which tells what it
costs to find the pair; `told` tells what it costs to find the pair alone, if there were no event to be found: the best
of each pair is known, and all that is left is to count it on every pair and to judge it on the one that looks best.
Published figures are from Bichsel et al. (2021), whose runs took 0.6 to 1.3 billion samples; what `peers` needs is
said in `audit_peers.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import audit_peers
import numpy as np

from dither import audit
from dither.audit import zoo
from dither.audit.confidence import best_set, optimal_epsilon, predicted_epsilon
from dither.audit.neighbours import Pair, farther_pairs, step_count
from dither.audit.zoo import Member
from dither.loss import Pure, rational

Event = Callable[[int, int], tuple[float, float, float]]

CATALOGUE = (
    "laplace", "noisy_hist1", "noisy_hist2", "noisy_max1", "noisy_max2", "noisy_max3", "noisy_max4", "svt1", "svt2",
    "svt3", "svt4", "svt5", "svt6", "numerical_svt", "svt34_parallel", "laplace_parallel", "truncated_geometric",
    "prefix_sum", "rappor", "one_time_rappor", "float_laplace",
)  # fmt: skip
# Their neighbours differ by no more wherever they are, so that a change made several times over is as many steps.
MOVING = (
    "laplace", "noisy_hist1", "noisy_hist2", "noisy_max1", "noisy_max2", "noisy_max3", "noisy_max4", "svt1", "svt2",
    "svt3", "svt4", "svt5", "svt6", "numerical_svt", "svt34_parallel", "laplace_parallel", "prefix_sum", "gap_svt",
    "exponential", "discrete_laplace", "gaussian", "gaussian_zcdp",
)  # fmt: skip
SEEDS = (8209, 8219, 8221)
HEAD = (
    "| mechanism | true | found | steps | optimum | share | of each run | luck | optimum apart | share of it "
    "| DP-Sniper, as many samples | StatDP, as many samples | DP-Sniper, published | StatDP, published | refuted "
    "| samples | CPU s |\n"
    f"|{'---|' * 17}"
)


def catalogue(samples: int, names: list[str], rows: Path, seeds: Sequence[int], given: bool, times: int) -> list[str]:
    """A row for each mechanism of the literature, measured with each seed unless it was before."""
    for seed in seeds:
        for name in names or CATALOGUE:
            if all(row["seed"] != seed for row in _known(rows, "dither", name)):
                _remember(rows, _row(zoo.member(name), samples, seed, given, times))
                print(seed, _table(rows, [name])[-1], flush=True)
    return _table(rows, names)


def peers(samples: int, names: list[str], rows: Path, folder: Path, seed: int) -> list[str]:
    """The same mechanisms, searched by other tools."""
    for name in names or CATALOGUE:
        for tool in ("dp-sniper", "statdp"):
            if _known(rows, tool, name):
                continue
            measured = audit_peers.found(tool, zoo.member(name), samples, folder, seed)
            if measured is not None:
                row = {"tool": tool, "name": name, "found": measured[0], "cpu": measured[1], "samples": samples}
                _remember(rows, row)
                print(row, flush=True)
    return _table(rows, names)


def _row(member: Member, samples: int, seed: int, given: bool, times: int) -> dict[str, Any]:
    pairs = _pairs(member, times)
    bests = [_optimum(member, pair, samples) for pair in pairs]
    near, far = (max((each or 0 for each in some), default=0) for some in (bests[: len(member.neighbours)], bests))
    searched = [pairs[bests.index(far)]] if given else pairs
    result = audit.privacy(
        member.mechanism(seed), Pure(rational("0.1")), searched, samples=samples, alpha=0.05, seed=seed
    )
    return {
        "tool": "dither", "name": member.name, "found": result.epsilon_lower, "optimum": near or None, "seed": seed,
        "apart": far or None, "steps": result.evidence.steps, "times": times, "refuted": bool(result.refuted),
        "samples": result.samples, "cpu": result.cpu_seconds,
    }  # fmt: skip


def _pairs(member: Member, times: int, most: int | None = None) -> list[Pair]:
    """The neighbours, or the first of them, and the same so many steps apart where that can be."""
    near = member.neighbours[:most]
    return [*near, *(farther_pairs(near, times) if times > 1 and member.name in MOVING else [])]


def _optimum(member: Member, pair: Pair, samples: int) -> float | None:
    """What the best event of a pair gives for each step, with all samples."""
    return (
        optimal_epsilon([member.distribution(*pair)], samples // 2, 0.05) / step_count(pair)
        if member.distribution is not None
        else None
    )


def _known(rows: Path, tool: str, name: str) -> list[dict[str, Any]]:
    lines = rows.read_text().splitlines() if rows.exists() else []
    return [row for row in map(json.loads, lines) if (row["tool"], row["name"]) == (tool, name)]


def _remember(rows: Path, row: dict[str, Any]) -> None:
    with rows.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _table(rows: Path, names: list[str]) -> list[str]:
    return [HEAD, *(_line(zoo.member(name), rows) for name in names or CATALOGUE if _known(rows, "dither", name))]


def _line(member: Member, rows: Path) -> str:
    """Medians over the seeds."""
    own = _known(rows, "dither", member.name)
    equal = [next((row["found"] for row in _known(rows, tool, member.name)), None) for tool in ("dp-sniper", "statdp")]
    shares = [row["found"] / row["optimum"] for row in own if row["optimum"]]
    found = float(np.median([row["found"] for row in own]))
    refuted = f"{sum(row['refuted'] for row in own)} of {len(own)}"
    used, apart = {row["steps"] for row in own}, own[0]["apart"]
    cells = [
        member.name, *map(_number, (member.true_epsilon, found)), " or ".join(map(str, sorted(used))),
        *map(_number, (own[0]["optimum"], float(np.median(shares)) if shares else None)),
        ", ".join(f"{share:.2f}" for share in shares) or "-", _number(_luck(member, own[0])),
        *map(_number, (apart, found / apart if apart else None)),
        *map(_number, (*equal, member.published.get("dpsniper"), member.published.get("statdp"))),
        refuted, f"{own[0]['samples']:,}", f"{max(row['cpu'] for row in own):.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _luck(member: Member, row: dict[str, Any]) -> float | None:
    """The standard deviation of a result that the counts of the judgement alone bring about, as a share of it."""
    if member.distribution is None:
        return None
    runs = row["samples"] // 2
    bests = [
        (best_set(*law, runs, 0.05), step_count(pair))
        for pair in _pairs(member, row["times"])
        for law in _ways(member.distribution(*pair))
    ]
    value, p, q = max(bests, key=lambda each: each[0][0] / each[1])[0]
    return float(np.sqrt((1 / p + 1 / q - 2) / runs) / value) if q > 0 else None


def told(samples: int, names: list[str], repeats: int) -> list[str]:
    """The mean share of the optimum that is left by choosing the pair, for some shares of the samples."""
    lines = ["| mechanism | all pairs, once | all pairs, the better half, the best two |", "|---|---|---|"]
    for name in names:
        member, rng, cells = zoo.member(name), np.random.default_rng(1), []
        if member.distribution is None:
            raise SystemExit(f"the law of {name} is not known")
        laws = [member.distribution(a, b) for a, b in member.neighbours]
        event = cache(lambda place, runs, laws=laws: max(best_set(*law, runs, 0.05) for law in _ways(laws[place])))
        for widths, shares in (((8,), (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)), ((8, 4, 2), (0.03, 0.05, 0.08, 0.12))):
            shown = []
            for share in shares:
                rounds = [(width, share) for width in widths]
                found = [_told(member, event, rounds, samples, rng) for _ in range(repeats)]
                shown.append(f"{len(widths) * share:.0%}: {np.mean(found):.3f}")
            cells.append(", ".join(shown))
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def _ways(law: tuple[Any, Any]) -> tuple[tuple[Any, Any], ...]:
    return law, law[::-1]


def _told(
    member: Member, event: Event, rounds: list[tuple[int, float]], samples: int, rng: np.random.Generator
) -> float:
    """The share that is left if the best event of each pair is known, and counted on pairs that look best so far."""
    pairs = range(len(member.neighbours))
    left, alive, runs = samples, list(pairs), 0
    hits, hoped = np.zeros((len(pairs), 2)), np.zeros(len(pairs))
    for width, share in rounds:
        alive = sorted(alive, key=lambda place: -hoped[place])[:width]
        inputs = {id(value) for place in alive for value in member.neighbours[place]}
        each = int(share * samples / len(inputs))
        left, runs = left - each * len(inputs), runs + each
        for place in alive:
            hits[place] += rng.binomial(each, event(place, samples // 3)[1:])
            hoped[place] = predicted_epsilon(*(hits[place] / runs), left // 2, left // 2, 0.05)
    best = max(alive, key=lambda place: hoped[place])
    return event(best, left // 2)[0] / max(event(place, samples // 2)[0] for place in pairs)


def whole_zoo(samples: int, names: list[str]) -> list[str]:
    """A row for each member."""
    lines = ["| member | claim true | refuted | found | samples | CPU s | event |", "|---|---|---|---|---|---|---|"]
    for member in zoo.catalogue():
        if names and member.name not in names:
            continue
        size = 20_000 if member.timed else samples
        result = audit.privacy(
            member.mechanism(1), member.claim, member.neighbours, samples=size, alpha=0.01, seed=1, timed=member.timed
        )
        flag = "" if result.refuted != member.private else " **wrong**"
        cells = [
            member.name, str(member.private), f"{result.refuted}{flag}", _number(result.epsilon_lower),
            f"{result.samples:,}", f"{result.cpu_seconds:.1f}", str(result.evidence.event)[:90].replace("|", "/"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def sequential(repeats: int) -> list[str]:
    """Pairs of runs until a wrong Laplace mechanism is refuted at alpha 0.05."""
    lines = ["| mechanism | median pairs | largest | refuted |", "|---|---|---|---|"]
    for name in ("laplace_double", "laplace_quarter_more"):
        member = zoo.member(name)
        found = [
            audit.privacy(member.mechanism(seed), member.claim, member.neighbours, samples=100_000, alpha=0.05,
                          mode="sequential", seed=seed)
            for seed in range(repeats)
        ]  # fmt: skip
        pairs = [result.samples / 2 for result in found]
        refuted = sum(result.refuted for result in found)
        lines.append(f"| {name} | {np.median(pairs):,.0f} | {max(pairs):,.0f} | {refuted} of {repeats} |")
        print(lines[-1], flush=True)
    return lines


def wolf(repeats: int, modes: Sequence[str], times: int, samples: int = 4000) -> list[str]:
    """How often true claims are refuted at alpha 0.01, over the members whose claim is true and tight."""
    members = [member for member in zoo.catalogue() if member.private]
    lines = ["| mode | repetitions | refuted | CPU s |", "|---|---|---|---|"]
    for mode in modes or ("fixed", "sequential"):
        started, refuted = time.process_time(), 0
        for seed in range(repeats):
            member = members[seed % len(members)]
            result = audit.privacy(
                member.mechanism(seed),
                member.claim,
                _pairs(member, times, 2),
                samples=samples,
                alpha=0.01,
                mode=mode,
                seed=seed,
            )
            refuted += result.refuted
            if (seed + 1) % 100 == 0:
                print(f"{mode}: {refuted} refuted of {seed + 1}", flush=True)
        lines.append(f"| {mode} | {repeats} | {refuted} | {time.process_time() - started:.0f} |")
        print(lines[-1], flush=True)
    return lines


def timing(repeats: int) -> list[str]:
    """Return how often the timing test tells identical inputs apart at alpha 0.01, and how often it finds a leak.

    Inputs are the same number, or equal tables that share no memory; the leak leaves out one addition in ten.
    """
    lines = ["| inputs | median, microseconds | refuted | CPU s |", "|---|---|---|---|"]
    for size in (0, 20, 100, 400, 3000):
        lines.append(_timed_row(f"the same number, {size} additions", _additions(size), lambda: (7, 7), repeats))
    for size in (1, 5, 30, 150, 700):
        tables = partial(_equal_tables, size)
        lines.append(_timed_row(f"equal tables of {size}", lambda rows: sum(sorted(rows.values())), tables, repeats))
    for size in (20, 100, 400, 3000):
        fewer, all_of_them = _additions(size * 9 // 10), _additions(size)
        leak = partial(_leaky, fewer, all_of_them)
        lines.append(_timed_row(f"a leak: {size * 9 // 10} or {size} additions", leak, lambda: (0, 1), repeats // 10))
    return lines


def _timed_row(name: str, function: Callable[[Any], Any], inputs: Callable[[], tuple[Any, Any]], repeats: int) -> str:
    started, found = time.process_time(), [audit.timing(function, *inputs(), seed=seed) for seed in range(repeats)]
    median = 1e6 * np.median([result.median_a for result in found])
    refuted = f"{sum(result.refuted for result in found)} of {repeats}"
    print(row := f"| {name} | {median:.3g} | {refuted} | {time.process_time() - started:.0f} |", flush=True)
    return row


def _additions(count: int) -> Callable[[int], int]:
    def function(value: int) -> int:
        total = 0
        for _ in range(count):
            total += value
        return total

    return function


def _equal_tables(size: int) -> tuple[dict[str, float], dict[str, float]]:
    first, second = ({f"person {number}": float(number) for number in range(size)} for _ in range(2))
    return first, second


def _leaky(fewer: Callable[[int], int], all_of_them: Callable[[int], int], value: int) -> int:
    return all_of_them(7) if value else fewer(7)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["catalogue", "peers", "table", "told", "zoo", "sequential", "wolf", "timing"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--rows", type=Path, default=Path("audit_rows.jsonl"))
    parser.add_argument("--peers", type=Path, default=Path("peers"))
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    chosen = parser.parse_args()
    if chosen.part == "catalogue":
        lines = catalogue(
            chosen.samples or 10_000_000, chosen.names, chosen.rows, chosen.seeds, chosen.given, chosen.steps
        )
    elif chosen.part == "peers":
        lines = peers(chosen.samples or 10_000_000, chosen.names, chosen.rows, chosen.peers, chosen.seeds[0])
    elif chosen.part == "table":
        lines = _table(chosen.rows, chosen.names)
        print("\n".join(lines))
    elif chosen.part == "told":
        lines = told(chosen.samples or 10_000_000, chosen.names, chosen.repeats or 300)
    elif chosen.part == "zoo":
        lines = whole_zoo(chosen.samples or 2_000_000, chosen.names)
    elif chosen.part == "sequential":
        lines = sequential(chosen.repeats or 51)
    elif chosen.part == "timing":
        lines = timing(chosen.repeats or 200)
    else:
        lines = wolf(chosen.repeats or 1000, chosen.names, chosen.steps)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
