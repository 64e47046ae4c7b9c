"""What the auditor finds in released code, each in one command and with a counterexample to check by hand.

    python benchmarks/findings.py list
    python benchmarks/findings.py diffprivlib-laplace
    python benchmarks/findings.py record        # runs all of them and writes docs/findings.md

Each runs `dither audit ...` in a process of its own; libraries that are not installed are taken from their own
environments (benchmarks/peer.py).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import peer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "findings.md"
FOUND = 1


@dataclass(frozen=True)
class Finding:
    """Something that a library promises and does not keep: the command after `dither audit` that shows it."""

    name: str
    title: str
    command: str
    by_hand: str
    library: str = ""
    module: str = ""


FINDINGS = (
    Finding(
        "diffprivlib-laplace", "diffprivlib 0.6.6: Laplace (epsilon 1) is not private in floating point",
        "mechanism 'dither.audit.adapters:diffprivlib_laplace()' --claim epsilon=1 --domain 'Numbers(0, 100)' "
        "--samples 200000",
        "On input 1 every output is a multiple of 2^-53: either the output is at least 1/2 in size, or the noise was "
        "between -2 and -1/2, and floats of that size are multiples of 2^-53, and so is their sum with 1. On input 0 "
        "the output is the noise itself, and a small one has digits further down. An output with such a digit shows "
        "that the input was 0.", "diffprivlib", "diffprivlib",
    ),
    Finding(
        "python-dp-gaussian", "python-dp 1.1.5: Gaussian at (1, 1e-5) is not private in floating point",
        "mechanism 'dither.audit.adapters:python_dp_gaussian()' --claim 'epsilon=1, delta=1e-5' "
        "--domain 'Numbers(0, 100)' --samples 400000",
        "As above: on input 1 every output is a multiple of 2^-53, on input 0 some are not, and their probability is "
        "thousands of times the delta that was promised.", "python-dp", "pydp",
    ),
    Finding(
        "private-mean", "DP-Auditorium's 'private' mean (the zoo's copy) is not private",
        "zoo private_mean --samples 200000 --no-bits",
        "The noise is scaled by a noisy count. On no records that is negative with probability 1/2, and then "
        "the noise is 1e-12 and the exact mean, 0, is shown; on [1] the mean is 1, and with a count below "
        "zero the output is within 1e-9 of 1, so an output within 1e-11 of 0 practically never comes. (On [0] "
        "against [0, 1] the same event has probability e^(-1/2)/2 = 0.303 against 0.)",
    ),
    Finding(
        "opendp-deviations", "OpenDP 0.16: the sum of squared deviations moves more than it states",
        "transformation 'dither.audit.adapters:opendp_deviations()'",
        "The values are 1,024 floats from 2^50 to 2^50 + 1; the search found the rest. All are 2^50 + 1/4 (printed "
        "with one digit), so the result is 0. One of them becomes 2^50: the true result is 1023/1024/16. But floats "
        "near the sum of all, 2^60, are 256 apart, so the sum comes out as 2^60 and the mean as 2^50. The "
        "other 1,023 values are each 1/4 away from it, and the result is 1023/16 = 63.94, where OpenDP's map says that "
        "it moves by at most 40.60 when one value is replaced.", "opendp", "opendp",
    ),
    Finding(
        "diffprivlib-geometric", "diffprivlib 0.6.6: Geometric (epsilon 1) has outputs that only one input can give",
        "exact 'dither.audit.adapters:diffprivlib_geometric()' --pair '[0, 1]' --residual 0 --claim epsilon=1",
        "Its noise is a function of one float of 53 bits. The extreme output on one side is made by one float, and "
        "on the neighbour nothing leads to it: pure epsilon is false for every epsilon, by a delta of about 1e-15. No "
        "sample would show it; the enumeration takes 150 runs.", "diffprivlib", "diffprivlib",
    ),
)  # fmt: skip


def audited(finding: Finding) -> str:
    """What `dither audit` prints in a process that has the finding's library; it must have found something."""
    missing = finding.module and not find_spec(finding.module)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "dither", "audit", *shlex.split(finding.command)],
        env=peer.beside(finding.library) if missing else None, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != FOUND or not done.stdout:
        last = (done.stderr.strip().splitlines() or ["nothing was found"])[-1]
        raise peer.Unavailable(f"{finding.name}: {last[:200]}")
    return done.stdout.strip()


def record() -> str:
    """The page of all findings."""
    lines = [
        "# Findings", "",
        "Bugs in released libraries that the auditor found without hints. Each takes one command and can be",
        "checked by hand. Written by `python benchmarks/findings.py record`; samples are fresh in every run, so the",
        "last digits differ. The library named must be installed beside Dither.", "",
    ]  # fmt: skip
    for finding in FINDINGS:
        started = time.monotonic()
        said = audited(finding)
        lines += [f"## {finding.title}", "", f"`dither audit {finding.command}`", ""]
        lines += ["```text", said, "```", "", f"By hand: {finding.by_hand}", ""]
        print(f"{finding.name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """`list`, `record`, or one finding."""
    names = {finding.name: finding for finding in FINDINGS}
    match arguments:
        case ["list"]:
            print("\n".join(f"{finding.name:24}{finding.title}" for finding in FINDINGS))
        case ["record"]:
            PAGE.write_text(record())
        case [name] if name in names:
            print(f"$ dither audit {names[name].command}")
            print(audited(names[name]))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
