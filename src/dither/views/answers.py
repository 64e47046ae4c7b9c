"""Answers and quotes as plain data for JSON; numbers that must stay exact are strings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dither.loss import to_json as loss_data
from dither.post.estimate.answer import Answer
from dither.post.estimate.quote import Quote
from dither.views.ledger import json_value, losses_data


def answer_data(answer: Answer) -> dict[str, Any]:
    """Return an answer's estimates and intervals, with its losses, bounds, notes and releases."""
    return {
        "columns": [
            {"name": column.name, "title": column.title, "key": column.key, "additive": column.additive}
            for column in answer.columns
        ],
        "rows": json_value(answer.to_dicts()),
        "confidence": answer.confidence,
        "loss": [loss_data(loss) for loss in answer.loss],
        "losses": [losses_data(release.losses) for release in answer.releases],
        "free": all(release.cached for release in answer.releases),
        "bounds": {tag: chosen.bound for tag, chosen in answer.bounds.items()},
        "notes": list(answer.notes),
        "measurements": json_value(answer.measurements),
        "releases": [
            {"digest": release.digest, "sequence": release.sequence, "time": release.time, "code": release.code}
            for release in answer.releases
        ],
    }


def answer_arrow(answer: Answer) -> bytes:
    """Return the answer's table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    table = answer.table
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def quote_data(quote: Quote) -> dict[str, Any]:
    """Return the cost of a query and the expected error of its columns."""
    return {
        "loss": loss_data(quote.loss),
        "losses": losses_data(quote.losses),
        "expected": [
            {
                "column": column.name,
                "half_width": json_value(column.half_width),
                "std_error": json_value(column.std_error),
                "needs_rows": column.needs_rows,
                "text": column.width,
                "known": column.known,
            }
            for column in quote.expected
        ],
        "bounds": dict(quote.bounds),
        "affordable": quote.affordable,
        "free": quote.free,
        "time_class": quote.time_class,
        "milliseconds": quote.milliseconds,
        "notes": list(quote.notes),
    }
