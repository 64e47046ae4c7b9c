"""How much the black-box auditor finds, beside the optimum and the published figures of other tools.

    python benchmarks/audit.py catalogue [--samples 10000000] [--markdown FILE]   the table of the literature
    python benchmarks/audit.py zoo [--samples 2000000]                            every member, refuted or not
    python benchmarks/audit.py sequential [--repeats 51]                          pairs until refuted
    python benchmarks/audit.py wolf [--repeats 1000]                              refutations of true claims

The optimum is the 95% lower bound that the best event of the best pair gives if all samples are spent on judging it,
computed from the exact law; ours pays for the search too. Published figures are from Bichsel et al. (2021), whose runs
took 0.6 to 1.3 billion samples; neither tool is on the package index, so they are quoted, not run. The column "8-20M"
is DP-Sniper run on 8 to 20 million samples.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from dither import audit
from dither.audit import zoo
from dither.audit.bounds import optimal_epsilon
from dither.audit.zoo import Member
from dither.loss import Pure, rational

CATALOGUE = (
    "laplace", "noisy_hist1", "noisy_hist2", "noisy_max1", "noisy_max2", "noisy_max3", "noisy_max4", "svt1", "svt2",
    "svt3", "svt4", "svt5", "svt6", "numerical_svt", "svt34_parallel", "laplace_parallel", "truncated_geometric",
    "prefix_sum", "rappor", "one_time_rappor", "float_laplace",
)  # fmt: skip
EQUAL = {"noisy_max3": 0.139, "svt4": 0.148, "svt5": 1.74, "svt6": 0.177}


def catalogue(samples: int, names: list[str]) -> list[str]:
    """A row for each mechanism of the literature."""
    lines = [
        "| mechanism | true | found | optimum | share | DP-Sniper | StatDP | 8-20M | refuted | samples | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name in names or CATALOGUE:
        lines.append(_row(zoo.member(name), samples))
        print(lines[-1], flush=True)
    return lines


def _row(member: Member, samples: int) -> str:
    result = audit.privacy(
        member.mechanism(1), Pure(rational("0.1")), member.neighbours, samples=samples, alpha=0.05, seed=1
    )
    best = None
    if member.law is not None:
        best = optimal_epsilon([member.law(a, b) for a, b in member.neighbours], samples // 2, 0.05)
    cells = [
        member.name, _number(member.true_epsilon), _number(result.epsilon_lower), _number(best),
        _number(result.epsilon_lower / best if best else None), _number(member.published.get("dpsniper")),
        _number(member.published.get("statdp")), _number(EQUAL.get(member.name)), "yes" if result.refuted else "no",
        f"{result.samples:,}", f"{result.cpu_seconds:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


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


def wolf(repeats: int, samples: int = 4000) -> list[str]:
    """How often true claims are refuted at alpha 0.01, over the members whose claim is true and tight."""
    members = [member for member in zoo.catalogue() if member.private]
    lines = ["| mode | repetitions | refuted | CPU s |", "|---|---|---|---|"]
    for mode in ("fixed", "sequential"):
        started, refuted = time.process_time(), 0
        for seed in range(repeats):
            member = members[seed % len(members)]
            result = audit.privacy(
                member.mechanism(seed),
                member.claim,
                member.neighbours[:2],
                samples=samples,
                alpha=0.01,
                mode=mode,
                seed=seed,
            )
            refuted += result.refuted
        lines.append(f"| {mode} | {repeats} | {refuted} | {time.process_time() - started:.0f} |")
        print(lines[-1], flush=True)
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["catalogue", "zoo", "sequential", "wolf"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    if chosen.part == "catalogue":
        lines = catalogue(chosen.samples or 10_000_000, chosen.names)
    elif chosen.part == "zoo":
        lines = whole_zoo(chosen.samples or 2_000_000, chosen.names)
    elif chosen.part == "sequential":
        lines = sequential(chosen.repeats or 51)
    else:
        lines = wolf(chosen.repeats or 1000)
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
