"""Make the static release of the codebook from generated data, and measure it: memory, speed, noise.

python examples/url_shares/release_demo.py --users 1000000 --urls 10000      # 20 million actions, 847 million values
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dither.examples.url_shares.codebook_data import generate
from dither.privacy.bits import SystemBits
from dither.release.api import StaticRelease, open_release

HERE = Path(__file__).parent


def noise_nanoseconds(release: StaticRelease) -> float:
    """Return the CPU time of the noise of one value, over all columns; draws that are measured and thrown away."""
    cells = np.zeros((len(release.spec.columns), 1 << 18), np.int64)
    release.question.mechanism.release_columns(cells, SystemBits())
    start = time.process_time()
    for _ in range(3):
        release.question.mechanism.release_columns(cells, SystemBits())
    return (time.process_time() - start) / (3 * cells.size) * 1e9


def write_spec(folder: Path, every_url: bool) -> Path:
    """Copy the description; for `every_url`, without the admission, so that the full key set is written."""
    shutil.copy(HERE / "codebook_dataset.yml", folder)
    lines = (HERE / "release.yml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not (every_url and line.startswith("admission:"))]
    (folder / "release.yml").write_text("".join(kept))
    return folder / "release.yml"


def measure(spec: Path, out: Path) -> None:
    """Write the release and print what it took."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    start = time.process_time()
    with open_release(spec) as release, Progress(*columns) as bar:
        task = bar.add_task("reading", total=1)
        marks: dict[str, float] = {}

        def show(stage: str, done: int, total: int) -> None:
            marks.setdefault(stage, time.process_time())
            bar.update(task, description=stage, completed=done, total=total)

        release.write(out, progress=show)
        spent = time.process_time() - start
        noise = noise_nanoseconds(release)
    manifest = json.loads((out / "manifest.json").read_text())
    values = manifest["rows"] * manifest["columns"]
    size = sum(path.stat().st_size for path in (out / "data").iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    typer.echo(
        f"{values:,} values in {len(manifest['files']):,} files, {size / 1e6:,.0f} MB; peak memory {peak:,.0f} MB"
    )
    typer.echo(
        f"{spent:.1f} CPU s, {values / spent / 1e6:.1f} million values per CPU second; noise {noise:.1f} ns a value;"
        f" reading and the first part {marks['drawing'] - marks['reading']:.1f} CPU s"
    )


def main(
    users: Annotated[int, typer.Option(min=1, help="number of people")] = 50_000,
    urls: Annotated[int, typer.Option(min=1, help="number of links")] = 500,
    out: Annotated[Path | None, typer.Option(help="folder to write; by default one that is deleted at the end")] = None,
    every_url: Annotated[bool, typer.Option(help="write every link, not only the admitted ones")] = True,
) -> None:
    """Generate data, release it, and print memory, speed and the cost of noise."""
    with TemporaryDirectory(dir=os.environ.get("DITHER_DEMO_DIR")) as scratch:
        folder = Path(scratch)
        actions = generate(folder / "codebook_data", users, urls, 20.0)
        typer.echo(f"generated {users:,} people, {urls:,} links, {actions:,} actions")
        spec = write_spec(folder, every_url)
        with open_release(spec) as release:
            typer.echo(release.quote().text)
        place = out or folder / "release"
        measure(spec, place)
        if out is not None:
            typer.echo(f"read {place}/README.md")


if __name__ == "__main__":
    typer.run(main)
