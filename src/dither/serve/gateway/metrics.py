"""Counters for Prometheus. None depends on a record: a failure after the charge counts as done, like any answer."""

from __future__ import annotations

import threading
from collections import Counter

HELP = {
    "dither_requests_total": "Requests by route and outcome (done, or refused before any charge).",
    "dither_requests_open": "Requests under way.",
    "dither_kernel_unreachable_total": "Times that the kernel could not be reached.",
}


class Metrics:
    """What the gateway counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._open = 0
        self._unreachable = 0

    def began(self) -> None:
        """A request came in."""
        with self._lock:
            self._open += 1

    def ended(self, route: str, refused: bool) -> None:
        """A request was done with, or refused."""
        with self._lock:
            self._open -= 1
            self._requests[route, "refused" if refused else "done"] += 1

    def unreachable(self) -> None:
        """The kernel could not be reached."""
        with self._lock:
            self._unreachable += 1

    def text(self) -> str:
        """All counters in Prometheus's format."""
        with self._lock:
            lines = _family("dither_requests_total", "counter")
            for (route, outcome), count in sorted(self._requests.items()):
                lines.append(f'dither_requests_total{{route="{route}",outcome="{outcome}"}} {count}')
            lines += [*_family("dither_requests_open", "gauge"), f"dither_requests_open {self._open}"]
            lines += _family("dither_kernel_unreachable_total", "counter")
            lines.append(f"dither_kernel_unreachable_total {self._unreachable}")
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str) -> list[str]:
    return [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]
