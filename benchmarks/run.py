"""Runs every benchmark of this folder in turn, each in a process of its own: `python benchmarks/run.py [name...]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HELPERS = {"run", "peer"}


def benchmarks() -> list[str]:
    """The names that can be run: files with a `main`, helpers apart."""
    files = sorted(path for path in HERE.glob("*.py") if "__main__" in path.read_text())
    return [path.stem for path in files if path.stem not in HELPERS]


def main(wanted: list[str]) -> int:
    """Run the wanted ones, or all; report which failed."""
    unknown = set(wanted) - set(benchmarks())
    if unknown:
        print(
            f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(benchmarks())}", file=sys.stderr
        )
        return 2
    failed = []
    for name in wanted or benchmarks():
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
