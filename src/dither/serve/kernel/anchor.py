"""The latest ledger head in a file outside the state folder, so that a ledger that was rolled back is noticed."""

from __future__ import annotations

import threading
from pathlib import Path

from dither.errors import LedgerError
from dither.privacy.ledger import Ledger
from dither.serve.transport.socket_client import SeenHeads

ANCHOR_SECONDS = 1.0  # seconds between two looks at the ledger's head


class HeadAnchor:
    """A file that follows a ledger's head; without a path it does nothing."""

    def __init__(self, place: str, path: Path | None) -> None:
        """Raise LedgerError if the ledger at a place does not continue the head in the file."""
        self._heads = SeenHeads(path) if path is not None else None
        self._stopping, self._thread = threading.Event(), threading.Thread()
        seen = self._heads.last if self._heads is not None else None
        if self._heads is None or seen is None:
            return
        ledger = Ledger(place, create=False)
        try:
            continued = ledger.check_head(seen)
            self._heads.record(ledger.head, replaced=None if continued else seen)
        except LedgerError as problem:
            raise LedgerError(f"the ledger does not continue the head in {path}: {problem}") from None
        finally:
            ledger.close()

    def follow(self, ledger: Ledger) -> None:
        """Write the ledger's head to the file whenever it has changed, until stopped."""
        heads = self._heads
        if heads is None:
            return

        def watch() -> None:
            while not self._stopping.wait(ANCHOR_SECONDS):
                heads.record(ledger.head)
            heads.record(ledger.head)

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write the last head and stop."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
