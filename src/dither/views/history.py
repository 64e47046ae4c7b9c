"""The charges that an account may see as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dither.post.question_text import question_text
from dither.privacy.protocol import HistoryEntry
from dither.views.ledger import losses_data


def history_data(entries: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    """Return the charges, each with what was asked."""
    return [
        {
            "sequence": entry.sequence,
            "time": entry.time,
            "account": entry.account,
            "digest": entry.digest,
            "question": question_text(entry.request),
            "losses": losses_data(entry.losses),
            "answered": entry.answered,
        }
        for entry in entries
    ]
