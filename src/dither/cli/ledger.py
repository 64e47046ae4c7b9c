"""`dither ledger show | verify | backup | restore | gap`: for curators and auditors; reads no data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dither.cli.options import CONSOLE, AsJson, composed, print_json
from dither.cli.sessions import open_session
from dither.errors import InvalidParameter, LedgerError
from dither.loss import ZCDP, Loss, Pure
from dither.post.session import Session
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger import maintenance as upkeep
from dither.privacy.ledger.ledger import Ledger
from dither.privacy.protocol import LedgerHead
from dither.views.ledger import ledger_data

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show, verify, back up and restore a ledger.")


def _is_ledger(place: str) -> str:
    """Refuses a description, which `show` takes and the other commands do not."""
    if place.endswith((".yml", ".yaml")):
        raise InvalidParameter(f"{place} is a description; name the ledger itself, a file that ends in .ledger")
    return place


Place = Annotated[
    str,
    typer.Argument(
        callback=_is_ledger, help="the ledger: a file's path or a postgresql:// address", show_default=False
    ),
]
Seen = Annotated[str | None, typer.Option("--head", help="an end that was seen before, as SEQUENCE:HASH")]


def head_of(text: str) -> LedgerHead:
    """An end of the chain written as SEQUENCE:HASH."""
    sequence, _, digest = text.partition(":")
    if not sequence.isdigit() or len(digest) != 64:
        raise InvalidParameter("an end of the ledger is written SEQUENCE:HASH, as every response carries it")
    return LedgerHead(int(sequence), digest)


def _say(text: str, as_json: bool, **facts: object) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


@app.command()
def verify(place: Place, head: Seen = None, as_json: AsJson = False) -> None:
    """Recompute hashes, rules, sums and losses, from the ledger alone; name the first row that does not fit."""
    verdict = upkeep.verify(place, recompute_losses, head_of(head) if head else None)
    end = f"{verdict.head.sequence}:{verdict.head.hash}"
    facts = {"sound": verdict.sound, "rows": verdict.rows, "head": end, "first_bad": verdict.first_bad}
    if not verdict.sound:
        where = f"row {verdict.first_bad}: " if verdict.first_bad is not None else ""
        if as_json:
            typer.echo(json.dumps({**facts, "problem": verdict.problem}))
        raise LedgerError(f"the ledger does not hold: {where}{verdict.problem}")
    _say(f"{verdict.rows} rows hold, up to {end}", as_json, **facts)


def show(session: Session, as_json: AsJson = False) -> None:
    """Every row of a dataset's ledger, as auditors read it through a gateway; the chain's hashes are among them."""
    rows = session.kernel.ledger_rows(session.name, session.token)
    if as_json:
        print_json(ledger_data(rows))
        return
    for row in rows:
        CONSOLE.print(f"{row.sequence} {row.time} {row.kind} {row.hash} {row.body}", markup=False)


app.command()(composed(show, session=open_session))


@app.command()
def backup(
    place: Place,
    copy: Annotated[Path, typer.Argument(help="the new file", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Copy a ledger into a new file."""
    head = upkeep.backup(place, copy)
    _say(f"copied {head.sequence} rows, up to {head.sequence}:{head.hash}", as_json, rows=head.sequence, hash=head.hash)


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="the backup", show_default=False)], place: Place, as_json: AsJson = False
) -> None:
    """Put a backup in an empty place; it stays closed until `dither ledger gap` says what was spent since."""
    head = upkeep.restore(copy, place)
    text = f"restored {head.sequence} rows; closed until `dither ledger gap` says what was spent since the backup"
    _say(text, as_json, rows=head.sequence, hash=head.hash)


@app.command()
def gap(
    place: Place,
    head: Annotated[str, typer.Option(help="the last end that was seen, as SEQUENCE:HASH")],
    epsilon: Annotated[str | None, typer.Option(help="what anyone may have spent since, at most")] = None,
    rho: Annotated[str | None, typer.Option(help="the same, in zCDP")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="count all that was left as spent")] = False,
    as_json: AsJson = False,
) -> None:
    """Count a lost stretch of the ledger as spent, and open it again."""
    given: list[Loss | None] = [None] if everything else []
    given += [Pure(epsilon)] if epsilon is not None else []  # type: ignore[arg-type]
    given += [ZCDP(rho)] if rho is not None else []  # type: ignore[arg-type]
    if len(given) != 1:
        raise InvalidParameter("give one of --epsilon, --rho and --everything")
    ledger = Ledger(place, create=False)
    ledger.mark_gap(head_of(head), given[0])
    _say("the gap counts as spent", as_json, head=f"{ledger.head.sequence}:{ledger.head.hash}")
    ledger.close()
