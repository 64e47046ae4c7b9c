"""What the gateway answers, as plain data: numbers that must stay exact travel as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dither.loss import to_json as loss_data
from dither.post.estimate.answer import Answer
from dither.post.session import Quote
from dither.views.ledger import losses_data, plain


def answer_data(answer: Answer) -> dict[str, Any]:
    """Estimates with intervals, and everything that was done to get them."""
    return {
        "columns": [{"name": column.name, "key": column.key} for column in answer.columns],
        "rows": plain(answer.to_dicts()),
        "confidence": answer.confidence,
        "loss": [loss_data(loss) for loss in answer.loss],
        "losses": [losses_data(release.losses) for release in answer.releases],
        "free": all(release.cached for release in answer.releases),
        "bounds": {tag: found.bound for tag, found in answer.bounds.items()},
        "notes": list(answer.notes),
        "noisy": plain(answer.measurements),
        "releases": [
            {"digest": release.digest, "sequence": release.sequence, "time": release.time, "code": release.code}
            for release in answer.releases
        ],
    }


def answer_arrow(answer: Answer) -> bytes:
    """The answer's table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    table = answer.table
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def quote_data(quote: Quote) -> dict[str, Any]:
    """What a question would cost, and how far off its answer would be."""
    return {
        "loss": loss_data(quote.loss),
        "losses": losses_data(quote.losses),
        "expected": [
            {
                "column": column.name,
                "half_width": plain(column.half_width),
                "std_error": plain(column.std_error),
                "needs_rows": column.needs_rows,
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
