"""Noise beside OpenDP, NumPy's Generator and diffprivlib: throughput, single draws, set-up, and what time tells.

    python benchmarks/noise.py          everything (about ten minutes of one core)
    python benchmarks/noise.py --brief  a tenth of the timed calls, which are then too few to judge

CPU time throughout, except where a caller's clock is the point (the timing tables). Exit status 1 if a goal is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import opendp.prelude as dp
from numpy.typing import NDArray
from peer import Unavailable, run
from scipy.stats import rankdata

from dither.privacy.bits import SystemBits
from dither.privacy.noise import discrete_gaussian, discrete_laplace
from dither.privacy.noise.lattice import LatticeWeights, Sampler, thresholds

MILLION = 1_000_000
SCALES = (1, 100, MILLION)
BITS = SystemBits()
KINDS = ("laplace", "gaussian")
PARAMETERS = {scale**power: Fraction(scale**power) for scale in (*SCALES, 5) for power in (1, 2)}
missed: list[str] = []


def goal(name: str, reached: bool) -> str:
    """Remember a goal that is missed; the mark for the table."""
    if not reached:
        missed.append(name)
    return "" if reached else "  MISSED"


def draw(kind: str, scale: int, size: int) -> NDArray[np.int64]:
    """Our draws."""
    if kind == "laplace":
        return discrete_laplace(PARAMETERS[scale], size, BITS)
    return discrete_gaussian(PARAMETERS[scale**2], size, BITS)


def opendp_measurement(kind: str, scale: int, vector: bool) -> Callable[[Any], Any]:
    """OpenDP's discrete noise on an integer or on a vector of integers."""
    domain = dp.atom_domain(T=int)
    distance = dp.absolute_distance(T=int if kind == "laplace" else float)
    if vector:
        domain = dp.vector_domain(domain)
        distance = dp.l1_distance(T=int) if kind == "laplace" else dp.l2_distance(T=float)
    make = dp.m.make_laplace if kind == "laplace" else dp.m.make_gaussian
    measurement: Callable[[Any], Any] = make(domain, distance, scale=float(scale))
    return measurement


def cpu(work: Callable[[], object], times: int) -> float:
    """The least CPU seconds of several goes."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def diffprivlib() -> dict[str, float]:
    """Its figures, or none with the reason printed."""
    script = Path(__file__).resolve().parent / "peers" / "diffprivlib_noise.py"
    try:
        result: dict[str, float] = run("diffprivlib", script, [str(scale) for scale in SCALES]).result
    except Unavailable as reason:
        print(f"diffprivlib: {reason}")
        return {}
    return result


def throughput() -> None:
    """Batches of a million."""
    print("\nBatches of a million, ns of CPU time a draw (best of 7; OpenDP: 50,000 at once)")
    print(f"{'':10}{'scale':>9}{'Dither':>9}{'OpenDP':>9}{'NumPy':>8}{'diffprivlib':>13}{'x OpenDP':>10}{'x NumPy':>9}")
    floats, others = np.random.default_rng(), diffprivlib()
    zeros = [0] * 50_000
    for kind in KINDS:
        generate = floats.laplace if kind == "laplace" else floats.normal
        for scale in SCALES:
            ours = cpu(lambda k=kind, s=scale: draw(k, s, MILLION), 7) * 1e3
            theirs = cpu(lambda m=opendp_measurement(kind, scale, vector=True): m(zeros), 2) / len(zeros) * 1e9
            numpy = cpu(lambda g=generate, s=scale: g(0, s, MILLION), 7) * 1e3
            other = others.get(f"{kind} {scale:g}")
            mark = goal(f"throughput {kind} {scale}", theirs / ours >= 300 and ours < numpy)
            row = f"{kind:10}{scale:>9}{ours:9.2f}{theirs:9.0f}{numpy:8.1f}{other or float('nan'):13.0f}"
            print(f"{row}{theirs / ours:10.0f}{numpy / ours:9.1f}{mark}", flush=True)


def singles() -> None:
    """One draw at a time."""
    print("\nSingle draws, ns of CPU time (pools refilled on the way)")
    print(f"{'':10}{'scale':>9}{'Dither':>9}{'OpenDP':>9}{'x OpenDP':>10}")
    for kind in KINDS:
        for scale in (5, MILLION):
            measurement = opendp_measurement(kind, scale, vector=False)
            draw(kind, scale, 1)
            ours = cpu(lambda k=kind, s=scale: [draw(k, s, 1) for _ in range(200_000)], 3) / 200_000 * 1e9
            theirs = cpu(lambda m=measurement: [m(0) for _ in range(10_000)], 3) / 10_000 * 1e9
            mark = goal(f"single {kind} {scale}", theirs / ours >= 20)
            print(f"{kind:10}{scale:>9}{ours:9.0f}{theirs:9.0f}{theirs / ours:10.1f}{mark}", flush=True)


def set_up() -> None:
    """A scale that was never seen; the worst is just below a power of two."""
    print("\nSet-up for a new scale, ms of CPU time (best of 5)")
    for kind in KINDS:
        power = KINDS.index(kind) + 1
        for scale in (Fraction(1), Fraction(100), Fraction(127999, 1000), Fraction(MILLION), Fraction(2**40)):

            def make(law: LatticeWeights = LatticeWeights(power, scale**power)) -> None:
                thresholds.cache_clear()
                Sampler(law)

            took = cpu(make, 5) * 1e3
            print(f"{kind:10}{float(scale):>16g}{took:9.2f}{goal(f'set-up {kind} {scale}', took < 5)}", flush=True)


def timed(call: Callable[[], Any], calls: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How long each call took, and the largest absolute value that it returned."""
    times, sizes = np.zeros(calls, np.int64), np.zeros(calls)
    clock = time.perf_counter_ns
    for i in range(calls):
        start = clock()
        values = call()
        times[i] = clock() - start
        sizes[i] = np.abs(values).max()
    return times, sizes


def tell(times: NDArray[np.int64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Spearman's correlation, and the AUC of time for the one percent of the largest."""
    by_time, by_size = rankdata(times), rankdata(sizes)
    spearman = float(np.corrcoef(by_time, by_size)[0, 1])
    largest = np.argsort(sizes + np.random.default_rng().random(len(sizes)) / 2)[-(len(sizes) // 100) :]
    count = len(largest)
    auc = (by_time[largest].sum() - count * (count + 1) / 2) / (count * (len(sizes) - count))
    return spearman, float(auc)


def timing(calls: int) -> None:
    """What the time of a call tells about the noise in it."""
    print("\nWhat time tells: Spearman(time, largest |noise|), AUC of time for the largest 1%")
    ours, theirs = f"{'calls':>10}{'Spearman':>10}{'AUC':>8}", f"{'OpenDP: calls':>16}{'Spearman':>10}{'AUC':>8}"
    print(f"{'':10}{'scale':>9}{'batch':>7}{ours}{theirs}")
    for kind in KINDS:
        for scale in (5, MILLION):
            for batch in (1, 100, 1000):
                told = tell(*timed(lambda k=kind, s=scale, b=batch: draw(k, s, b), calls))
                measurement, zeros = opendp_measurement(kind, scale, vector=True), [0] * batch
                theirs_calls = max(2_000, calls // (10 * batch))
                peer = tell(*timed(lambda m=measurement, z=zeros: m(z), theirs_calls))
                good = calls < MILLION or (abs(told[0]) < 0.01 and 0.49 <= told[1] <= 0.51)
                row = f"{kind:10}{scale:>9}{batch:>7}{calls:>10}{told[0]:10.4f}{told[1]:8.4f}"
                rest = f"{theirs_calls:>16}{peer[0]:10.4f}{peer[1]:8.4f}"
                print(f"{row}{rest}{goal(f'timing {kind} {scale} {batch}', good)}", flush=True)


def main(arguments: list[str]) -> int:
    """All tables in one run."""
    dp.enable_features("contrib")
    throughput()
    singles()
    set_up()
    timing(MILLION // 10 if "--brief" in arguments else MILLION)
    print("\nevery goal is reached" if not missed else f"\nmissed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
