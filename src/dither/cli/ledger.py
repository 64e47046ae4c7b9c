"""`dither ledger show | verify | backup | restore | migrate | clock | anchor | gap`: commands that read no data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from dither.cli.options import CONSOLE, AsJson, compose_command, print_json
from dither.cli.sessions import open_session
from dither.errors import InvalidParameter, LedgerError
from dither.loss import ZCDP, Loss, Pure
from dither.post.session import Session
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger import maintenance, migration
from dither.privacy.ledger.ledger import Ledger
from dither.privacy.ledger.store import is_database
from dither.privacy.protocol import LedgerHead, Page
from dither.serve.transport.socket_client import SeenHeads
from dither.views.ledger import ledger_data

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show, verify, back up, restore and migrate a ledger."
)


def _check_location(location: str) -> str:
    """Return the ledger's location; raise InvalidParameter for a description, which only `show` takes."""
    if location.endswith((".yml", ".yaml")):
        raise InvalidParameter(
            f"{location} is a description; give the ledger itself, a file whose name ends in .ledger"
        )
    return location


Location = Annotated[
    str,
    typer.Argument(
        callback=_check_location, help="the ledger: a file's path or a postgresql:// address", show_default=False
    ),
]
SeenHead = Annotated[str | None, typer.Option("--head", help="a head seen before, as SEQUENCE:HASH")]


def parse_head(text: str) -> LedgerHead:
    """Parse a ledger head from SEQUENCE:HASH."""
    sequence, _, digest = text.partition(":")
    if not sequence.isdigit() or len(digest) != 64:
        raise InvalidParameter("a ledger head must have the form SEQUENCE:HASH, as in every response")
    return LedgerHead(int(sequence), digest)


def _print(text: str, as_json: bool, **facts: object) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


@app.command()
def verify(
    location: Location,
    head: SeenHead = None,
    anchor: Annotated[Path | None, typer.Option(help="a file with the head that a kernel wrote with --anchor")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger's hashes, rules, sums and losses, from the ledger alone; name the first row that fails."""
    seen = SeenHeads(anchor).last if anchor is not None else parse_head(head) if head else None
    verdict = maintenance.verify(location, recompute_losses, seen)
    end = f"{verdict.head.sequence}:{verdict.head.hash}"
    facts = {"sound": verdict.sound, "rows": verdict.rows, "head": end, "first_bad": verdict.first_bad}
    if not verdict.sound:
        row = f"row {verdict.first_bad}: " if verdict.first_bad is not None else ""
        if as_json:
            typer.echo(json.dumps({**facts, "problem": verdict.problem}))
        raise LedgerError(f"the ledger is not valid: {row}{verdict.problem}")
    _print(f"{verdict.rows} rows are valid, up to {end}", as_json, **facts)


def show(session: Session, as_json: AsJson = False) -> None:
    """Print every row of a dataset's ledger with its hashes, as a gateway shows them to auditors."""
    rows = session.kernel.ledger_rows(session.name, session.token)
    while rows and rows[0].sequence > 1:
        rows = (*session.kernel.ledger_rows(session.name, session.token, Page(before=rows[0].sequence)), *rows)
    if as_json:
        print_json(ledger_data(rows))
        return
    for row in rows:
        CONSOLE.print(f"{row.sequence} {row.time} {row.kind} {row.hash} {row.salt} {row.body}", markup=False)


app.command()(compose_command(show, session=open_session))


@app.command()
def backup(
    location: Location,
    copy: Annotated[Path, typer.Argument(help="the file to create", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Copy a ledger into a new file."""
    head = maintenance.backup(location, copy)
    _print(
        f"copied {head.sequence} rows, up to {head.sequence}:{head.hash}", as_json, rows=head.sequence, hash=head.hash
    )


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="the backup", show_default=False)],
    location: Location,
    as_json: AsJson = False,
) -> None:
    """Restore a backup to an empty location; `dither ledger gap` must account for later charges before it opens."""
    head = maintenance.restore(copy, location)
    text = (
        f"restored {head.sequence} rows; run `dither ledger gap` to account for charges since the backup, then it opens"
    )
    _print(text, as_json, rows=head.sequence, hash=head.hash)


@app.command()
def migrate(
    location: Location,
    copy: Annotated[
        Path | None, typer.Option("--copy", help="file for a copy of the old ledger; by default beside the ledger")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a ledger of the previous format; stop its kernels first. A copy of the old ledger is kept."""
    if copy is None and is_database(location):
        raise InvalidParameter("give --copy FILE, for a copy of the old ledger")
    kept = copy if copy is not None else Path(f"{location}.old")
    result = migration.migrate(location, kept, recompute_losses)
    _print(
        f"migrated {result.rows} rows; {kept} is a copy of the old ledger", as_json, rows=result.rows, copy=str(kept)
    )


@app.command()
def clock(location: Location, as_json: AsJson = False) -> None:
    """Set the ledger's time back to this machine's clock, after the clock was wrong; a row records it."""
    ledger = Ledger(location, create=False)
    before = ledger.reset_time(f"uid {os.getuid()}")
    ledger.close()
    text = f"the ledger's time was {before} and follows the clock again; tokens that ended in between are valid again"
    _print(text, as_json, before=before)


@app.command(name="anchor")
def write_anchor(
    location: Location,
    to: Annotated[Path, typer.Option(help="the file, best on another disk or machine", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Write the ledger's head to a file; refused if the ledger does not continue the head that is there."""
    heads, ledger = SeenHeads(to), Ledger(location, create=False)
    continued = heads.last is None or ledger.check_head(heads.last)
    heads.record(ledger.head, replaced=None if continued else heads.last)
    end = f"{ledger.head.sequence}:{ledger.head.hash}"
    ledger.close()
    _print(f"wrote {end} to {to}", as_json, head=end, to=str(to))


@app.command()
def gap(
    location: Location,
    head: Annotated[str, typer.Option(help="the last head seen, as SEQUENCE:HASH")],
    epsilon: Annotated[str | None, typer.Option(help="the most epsilon that any account may have spent since")] = None,
    rho: Annotated[str | None, typer.Option(help="the most rho (zCDP) that any account may have spent since")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="count the whole remaining budget as spent")] = False,
    as_json: AsJson = False,
) -> None:
    """Count a lost segment of the ledger as spent, and open the ledger again."""
    losses: list[Loss | None] = [None] if everything else []
    losses += [Pure(epsilon)] if epsilon is not None else []  # type: ignore[arg-type]
    losses += [ZCDP(rho)] if rho is not None else []  # type: ignore[arg-type]
    if len(losses) != 1:
        raise InvalidParameter("give one of --epsilon, --rho and --everything")
    ledger = Ledger(location, create=False)
    ledger.mark_gap(parse_head(head), losses[0])
    _print("the gap is counted as spent", as_json, head=f"{ledger.head.sequence}:{ledger.head.hash}")
    ledger.close()
