"""Counters for Prometheus, independent of the data: an engine failure after the charge counts as done."""

from __future__ import annotations

import threading
from collections import Counter

HELP = {
    "dither_requests_total": "Requests by route and outcome (done, or refused before any charge).",
    "dither_requests_open": "Requests in progress.",
    "dither_kernel_unreachable_total": "Times that the kernel could not be reached.",
}


class Metrics:
    """The gateway's counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._open = 0
        self._unreachable = 0

    def start_request(self) -> None:
        """Count a request that arrived."""
        with self._lock:
            self._open += 1

    def end_request(self, route: str, refused: bool) -> None:
        """Count a request that ended: done, or refused before any charge."""
        with self._lock:
            self._open -= 1
            self._requests[route, "refused" if refused else "done"] += 1

    def count_unreachable(self) -> None:
        """Count a failed attempt to reach the kernel."""
        with self._lock:
            self._unreachable += 1

    def text(self) -> str:
        """Return all counters in Prometheus's text format."""
        with self._lock:
            lines = _family("dither_requests_total", "counter")
            for (route, outcome), count in sorted(self._requests.items()):
                lines.append(f'dither_requests_total{{route="{route}",outcome="{outcome}"}} {count}')
            lines += [*_family("dither_requests_open", "gauge"), f"dither_requests_open {self._open}"]
            lines += _family("dither_kernel_unreachable_total", "counter")
            lines.append(f"dither_kernel_unreachable_total {self._unreachable}")
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str) -> list[str]:
    """Return the two header lines of a metric."""
    return [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]
