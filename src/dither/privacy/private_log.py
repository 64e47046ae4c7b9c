"""The curator's private log: findings in the records, engine failures, late answers: all may depend on records."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

MAX_EVENTS = 1000
EVENTS_PER_MINUTE = 60
# Where a program configures no logging, Python would print each warning's first word; this drops them.
logging.getLogger("dither.private").addHandler(logging.NullHandler())


class PrivateLog:
    """A rate-limited log that only the curator may read. Its own thread writes it, so that no answer waits for it."""

    def __init__(self) -> None:
        self.events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        self.dropped = 0
        self._minute, self._count = 0, 0
        self._queue: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def note(self, **event: object) -> None:
        """Store an event and pass it to the writer thread; drop it if this minute has had too many."""
        minute = int(time.monotonic() // 60)
        self._minute, self._count = minute, (self._count if minute == self._minute else 0) + 1
        if self._count > EVENTS_PER_MINUTE:
            self.dropped += 1
            return
        self.events.append(event)
        self._queue.put(event)
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._write, daemon=True)
            self._writer.start()

    def _write(self) -> None:
        """Write queued events to the logger `dither.private`, forever."""
        while True:
            event = self._queue.get()
            logging.getLogger("dither.private").warning("kernel", extra={"event": event})
