"""All errors that Dither raises. Every message is safe to show to anyone: none depends on a record.

One exception: an InvalidSchema that is raised while a source is opened names its path and the reason. Only the curator
opens sources; a kernel that must open one again for a query hides the message behind an EngineFailure.

DitherError
├── InvalidParameter     a number, name or option is not allowed
├── InvalidSchema        a dataset's schema is invalid; the message names the field
├── InvalidQuery         the SQL text is not a valid query
├── Unsupported          the query cannot be answered privately; the message says what to write instead
├── InvalidPlan          a plan is malformed, too large, or does not fit the schema
├── Unbounded            one unit could change the result without limit
├── BudgetExceeded       the charge would exceed a budget; nothing was read
├── NotAllowed           the account may not do this
│   └── InvalidToken     the token is missing, unknown, expired or revoked
├── NotFound             there is no such dataset, account or release
├── Busy                 too many requests are running; nothing was charged
├── LedgerError          the ledger is missing, damaged, lacks rows that were seen before, or has another format
├── ReleaseStopped       a static release cannot go on; nothing was published
└── EngineFailure        the computation failed after the charge; the message is always the same
"""

from __future__ import annotations


class DitherError(Exception):
    """The base class of all errors; `code` is the stable name sent to clients."""

    code = "error"


class InvalidParameter(DitherError, ValueError):
    """A number, name or option is not allowed."""

    code = "invalid_parameter"


class InvalidSchema(DitherError):
    """A dataset's schema is invalid; the message names the field, and has a line for each mistake (`args`)."""

    code = "invalid_schema"

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class InvalidQuery(DitherError):
    """The SQL text is not a valid query."""

    code = "invalid_query"


class Unsupported(DitherError):
    """The query cannot be answered privately; the message says what to write instead."""

    code = "unsupported"


class InvalidPlan(DitherError):
    """A plan is malformed, too large, or does not fit the schema."""

    code = "invalid_plan"


class Unbounded(DitherError):
    """One unit could change the result without limit."""

    code = "unbounded"


class BudgetExceeded(DitherError):
    """The charge would exceed a budget; nothing was read."""

    code = "budget_exceeded"


class NotAllowed(DitherError):
    """The account may not do this."""

    code = "not_allowed"


class InvalidToken(NotAllowed):
    """The token is missing, unknown, expired or revoked."""

    code = "invalid_token"


class NotFound(DitherError):
    """There is no such dataset, account or release."""

    code = "not_found"


class Busy(DitherError):
    """Too many requests are running; nothing was charged."""

    code = "busy"


class LedgerError(DitherError):
    """The ledger is missing, damaged, lacks rows that were seen before, or has another format."""

    code = "ledger"


class ReleaseStopped(DitherError):
    """A static release cannot go on; nothing was published, and what was charged stays spent."""

    code = "release_stopped"


class EngineFailure(DitherError):
    """The computation failed after the charge; the message is always the same, so that it reveals nothing."""

    code = "engine_failure"

    def __init__(self) -> None:
        super().__init__("the answer could not be computed; the charge stands, and the curator's log has the detail")
