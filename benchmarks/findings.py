"""What the auditor finds in released code, each in one command and with a counterexample to check by hand.

    python benchmarks/findings.py list
    python benchmarks/findings.py diffprivlib-laplace
    python benchmarks/findings.py record        # runs all of them and writes docs/findings.md

Libraries that are not installed are taken from their own environments (benchmarks/peer.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import peer

from dither.audit import exact, privacy
from dither.audit.adapters import (
    diffprivlib_exact,
    diffprivlib_laplace,
    opendp_deviations,
    python_dp_gaussian,
)
from dither.audit.zoo import member
from dither.loss import Approximate, Pure, rational

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "findings.md"


@dataclass(frozen=True)
class Finding:
    """Something that a library promises and does not keep."""

    name: str
    title: str
    by_hand: str
    run: Callable[[], str]
    library: str = ""
    module: str = ""


def laplace() -> str:
    """diffprivlib's float Laplace, with standard inputs and events."""
    result = privacy(diffprivlib_laplace(1.0), Pure(1), samples=200_000)
    return f"{result}\n{result.evidence}"


def gaussian() -> str:
    """python-dp's Gaussian, with standard inputs and events."""
    result = privacy(python_dp_gaussian(1.0, 1e-5), Approximate(1, rational("1e-5")), samples=400_000)
    return f"{result}\n{result.evidence}"


def mean() -> str:
    """The zoo's copy of DP-Auditorium's private mean."""
    found = member("private_mean")
    result = privacy(found.mechanism(), found.claim, found.neighbours, samples=200_000, bits=False)
    return f"{result}\n{result.evidence}"


LOW, SIZE = 2.0**52, 4095


def deviations() -> str:
    """OpenDP's sum of squared deviations, on two tables that differ in one value."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(bounds=(LOW, LOW + 2), nan=False), SIZE), dp.symmetric_distance()
    plain = space >> dp.t.then_sum_of_squared_deviations()
    scale = float(plain.map(2))  # one record replaced: the claim is then epsilon 1
    same, changed = [LOW + 1] * SIZE, [LOW + 1] * (SIZE - 1) + [LOW + 2]
    result = privacy(opendp_deviations(SIZE, LOW, LOW + 2, scale), Pure(1), [(same, changed)], samples=4_000)
    said = f"claimed sensitivity {scale:.6g}; the exact results are {plain(same):g} and {plain(changed):g}"
    return f"{said}\n{result}\n{result.evidence}"


def geometric() -> str:
    """diffprivlib's Geometric, unmodified, every float that its generator can return."""
    import diffprivlib.mechanisms as mechanisms

    result = exact(diffprivlib_exact(lambda: mechanisms.Geometric(epsilon=1.0)), (0, 1), residual=0)
    return f"{result}\nno delta below {float(result.delta_lower(1)):.4g} is true at epsilon 1"


FINDINGS = (
    Finding(
        "diffprivlib-laplace", "diffprivlib 0.6.6: Laplace (epsilon 1) is not private in floating point",
        "On input 1 every output is a multiple of 2^-53: either the output is at least 1/2 in size, or the noise was "
        "between -2 and -1/2, and floats of that size are multiples of 2^-53, and so is their sum with 1. On input 0 "
        "the output is the noise itself, and a small one has digits further down. An output with such a digit shows "
        "that the input was 0.", laplace, "diffprivlib", "diffprivlib",
    ),
    Finding(
        "python-dp-gaussian", "python-dp 1.1.5: Gaussian at (1, 1e-5) is not private in floating point",
        "As above: on input 1 every output is a multiple of 2^-53, on input 0 some are not, and their probability is "
        "thousands of times the delta that was promised.", gaussian, "python-dp", "pydp",
    ),
    Finding(
        "private-mean", "DP-Auditorium's 'private' mean (the zoo's copy) is not private",
        "The noise is scaled by a noisy count. On no records that is negative with probability 1/2, and then "
        "the noise is 1e-12 and the exact mean, 0, is shown; on [1] the mean is 1, and with a count below "
        "zero the output is within 1e-9 of 1, so an output within 1e-11 of 0 practically never comes. (On [0] "
        "against [0, 1] the same event has probability e^(-1/2)/2 = 0.303 against 0.)", mean,
    ),
    Finding(
        "opendp-deviations", "OpenDP 0.16: the sum of squared deviations moves more than it states",
        "All 4,095 values are 2^52 + 1, so the result is 0. One of them becomes 2^52 + 2: the true result is "
        "4094/4095. But floats near the sum of 4,095 such numbers are 2,048 apart, and rounding the partial sums makes "
        "the mean 2^52 + 2. The other 4,094 values are each 1 away from it, and the result is 4,094 (no other mean "
        "gives that): six "
        "times the stated sensitivity.", deviations, "opendp", "opendp",
    ),
    Finding(
        "diffprivlib-geometric", "diffprivlib 0.6.6: Geometric (epsilon 1) has outputs that only one input can give",
        "Its noise is a function of one float of 53 bits. The extreme output on one side is made by one float, and "
        "on the neighbour nothing leads to it: pure epsilon is false for every epsilon, by a delta of about 3e-15. No "
        "sample would show it; the enumeration takes 150 runs.", geometric, "diffprivlib", "diffprivlib",
    ),
)  # fmt: skip


def audited(finding: Finding) -> str:
    """The finding's own run, in a process that has its library."""
    if not finding.module or find_spec(finding.module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return finding.run()
    python = peer.environment(finding.library)
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, finding.name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise peer.Unavailable(f"{finding.name}: {done.stderr.strip().splitlines()[-1][:200]}")
    return done.stdout.strip()


def record() -> str:
    """The page of all findings."""
    lines = [
        "# Findings", "",
        "What the auditor found in released code without being told which event to look for. Each is one command and",
        "can be checked by hand. Written by `python benchmarks/findings.py record`; samples are fresh in every run, so",
        "the last digits differ.", "",
    ]  # fmt: skip
    for finding in FINDINGS:
        started = time.monotonic()
        said = audited(finding)
        lines += [f"## {finding.title}", "", f"`python benchmarks/findings.py {finding.name}`", ""]
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
            print(audited(names[name]))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
