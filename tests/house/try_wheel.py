"""Install a built wheel in an empty environment outside the checkout; run the demonstration, the auditor and its
pytest plug-in there.

python tests/house/try_wheel.py dist
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AUDITED = """\
import numpy
from dither import audit
from dither.loss import Pure

rng = numpy.random.default_rng(7)


def noisy(value, size):
    return value + rng.geometric(1 - numpy.exp(-2.0), size) - rng.geometric(1 - numpy.exp(-2.0), size)


result = audit.privacy(noisy, Pure(1), [(0, 1)], samples=200_000, seed=1, vectorised=True)
print("refuted:", result.refuted, "epsilon is at least", float(result.epsilon_lower))
raise SystemExit(0 if result.refuted and result.epsilon_lower > 1.5 else 1)
"""


def newest_wheel(directory: Path) -> Path:
    """The wheel that was built last."""
    return max(directory.glob("dither-*.whl"), key=lambda path: path.stat().st_mtime)


def run(where: Path, *command: str | Path, ends: int = 0) -> str:
    """Run in `where`, with an environment that knows nothing of the checkout; returns what it printed."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    print("$", *(Path(word).name if isinstance(word, Path) else word for word in command), flush=True)
    done = subprocess.run(command, cwd=where, env=keep, capture_output=True, text=True, check=False)
    if done.returncode != ends:
        sys.exit(f"ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def try_wheel(wheel: Path) -> str:
    """Install, then demonstrate and audit; returns what the demonstration printed."""
    with tempfile.TemporaryDirectory(prefix="dither-wheel-") as name:
        where = Path(name)
        venv.create(where / "empty", with_pip=True)
        python, dither = where / "empty/bin/python", where / "empty/bin/dither"
        run(where, python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel.resolve()}[audit]")
        home = run(where, python, "-c", "import dither; print(dither.__file__)").strip()
        if str(ROOT) in home:
            sys.exit(f"this is the checkout and not the wheel: {home}")
        shown = run(where, dither, "demo", "--directory", where / "demo")
        (where / "mine.py").write_text(AUDITED)
        return shown + run(where, python, "mine.py") + run_documented(where, python)


def run_documented(where: Path, python: Path) -> str:
    """The pytest file of docs/auditing.md, whose mechanism is wrong: the test must fail and show why."""
    text = re.search(r"```python\n(# test_mine.py.*?)```", (ROOT / "docs" / "auditing.md").read_text(), re.DOTALL)
    if text is None:
        sys.exit("docs/auditing.md shows no test_mine.py")
    (where / "test_mine.py").write_text(text[1])
    run(where, python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "pytest")
    said = run(where, python, "-m", "pytest", "-q", "test_mine.py", ends=1)
    if "REFUTED" not in said or "event:" not in said:
        sys.exit(f"the test of docs/auditing.md did not find its bug:\n{said}")
    return said


if __name__ == "__main__":
    print(try_wheel(newest_wheel(Path(sys.argv[1]))))
    print("the wheel works")
