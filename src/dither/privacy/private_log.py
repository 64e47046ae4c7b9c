"""What only the curator may see: engine failures, late answers, and whatever else may depend on a record."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

KEPT_EVENTS = 1000
EVENTS_A_MINUTE = 60


class PrivateLog:
    """What only the curator may see: written by a thread of its own, so that no answer waits for it; rate-limited."""

    def __init__(self) -> None:
        self.events: deque[dict[str, object]] = deque(maxlen=KEPT_EVENTS)
        self.dropped = 0
        self._minute, self._count = 0, 0
        self._queue: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def note(self, **event: object) -> None:
        """Keeps an event and lets the writer have it."""
        minute = int(time.monotonic() // 60)
        self._minute, self._count = minute, (self._count if minute == self._minute else 0) + 1
        if self._count > EVENTS_A_MINUTE:
            self.dropped += 1
            return
        self.events.append(event)
        self._queue.put(event)
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._write, daemon=True)
            self._writer.start()

    def _write(self) -> None:
        while True:
            event = self._queue.get()
            logging.getLogger("dither.private").warning("kernel", extra={"event": event})
