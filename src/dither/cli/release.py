"""`dither release`: write a static table of noisy counts, with its documents, for one charge."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dither.cli.options import PROGRESS, AsJson, print_json
from dither.errors import BudgetExceeded, InvalidParameter
from dither.release.api import ReleaseQuote, StaticRelease, open_release

app = typer.Typer(add_completion=False)

STAGES = {"reading": "reading the records once", "drawing": "drawing and writing parts"}


@app.command(name="release")
def command(
    spec: Annotated[Path, typer.Argument(help="a release's description, release.yml", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="the folder to write; it must not exist")] = None,
    quote: Annotated[bool, typer.Option("--quote", help="print expected errors and the cost; free")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="print what would be written; free")] = False,
    verify: Annotated[
        Path | None, typer.Option(help="check the files of a published folder, or of its copy, against the ledger")
    ] = None,
    staging: Annotated[
        Path | None, typer.Option(help="a private folder on the same file system; by default beside --out")
    ] = None,
    ledger: Annotated[str | None, typer.Option(envvar="DITHER_LEDGER", help="the ledger; by default beside it")] = None,
    account: Annotated[str, typer.Option(help="the account that is charged")] = "curator",
    as_json: AsJson = False,
) -> None:
    """Write a static table of noisy counts by key and column, with a codebook and a privacy statement."""
    with closing(open_release(spec, ledger=ledger, account=account)) as release:
        if verify is not None:
            _verify(release, verify, as_json)
            return
        if quote or plan:
            _print_facts(release, quote, plan, as_json)
            return
        if out is None:
            raise InvalidParameter("give --out the folder to write; or --quote or --plan to look first")
        if not release.cost.affordable:
            raise BudgetExceeded("the release would exceed a budget; `--quote` shows its cost, and nothing was read")
        new = _write(release, out, staging, as_json)
    if as_json:
        print_json({"out": str(out), "new": new})
    else:
        typer.echo(f"wrote {out}: read its README.md" if new else f"{out} holds this release already; nothing to do")


def _verify(release: StaticRelease, folder: Path, as_json: bool) -> None:
    """Check a published folder, and print its manifest's digest."""
    digest = release.verify(folder)
    if as_json:
        print_json({"folder": str(folder), "manifest": digest})
    else:
        typer.echo(f"{folder} is whole, and the ledger has recorded its manifest {digest}")


def _write(release: StaticRelease, out: Path, staging: Path | None, quiet: bool) -> bool:
    """Write the release, with a bar of finished parts; their number is public."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=PROGRESS, disable=quiet) as bar:
        tasks = {stage: bar.add_task(text, total=1, visible=False) for stage, text in STAGES.items()}

        def show(stage: str, done: int, total: int) -> None:
            bar.update(tasks[stage], completed=done, total=total, visible=True)
            if stage == "drawing":
                bar.update(tasks["reading"], completed=1)

        return release.write(out, staging, show)


def _print_facts(release: StaticRelease, quote: bool, plan: bool, as_json: bool) -> None:
    """Print the quote, the plan, or both."""
    found = release.quote()
    if as_json:
        print_json(_quote_data(release, found))
        return
    if quote:
        typer.echo(found.text)
    if plan:
        typer.echo(release.plan())


def _quote_data(release: StaticRelease, quote: ReleaseQuote) -> dict[str, object]:
    """Return the quote and the plan as plain data."""
    columns = [
        {"name": c.name, "sigma": c.sigma, "error_95": c.error_95, "k": c.k, "rho_for_k": str(c.k_rho)}
        for c in quote.columns
    ]
    losses = [{"unit": each.unit, "kind": each.kind, "loss": str(each.loss)} for each in quote.cost.losses]
    limits = {"limits": list(release.question.limits), "rows_beyond_limits": release.question.beyond}
    facts = {"columns": columns, "losses": losses, "delta": quote.delta, "free": quote.cost.free} | limits
    return facts | {"affordable": quote.affordable, "plan": release.plan().splitlines()}
