"""Every error that Dither raises. Each message is safe to show anyone: it never depends on a record.

DitherError
├── InvalidParameter     a number, name or option is outside what is allowed
├── InvalidSchema        a dataset description does not say what it must
├── InvalidQuery         the SQL text is not understood
├── Unsupported          understood, but cannot be answered privately; says what to write instead
├── InvalidPlan          a plan is malformed, too large, or does not fit the schema
├── Unbounded            one unit could change the result without limit
├── BudgetExceeded       the charge would pass a budget; nothing was read
├── NotAllowed           the account may not do this
├── NotFound             there is no such dataset, account or release
├── Busy                 too many requests at once; nothing was charged
├── LedgerError          the ledger is missing, damaged, behind or of a newer format
└── EngineFailure        the constant error for anything that fails after the charge
"""

from __future__ import annotations


class DitherError(Exception):
    """The root of the tree; `code` is the stable name that crosses the wire."""

    code = "error"


class InvalidParameter(DitherError, ValueError):
    """A number, name or option is outside what is allowed."""

    code = "invalid_parameter"


class InvalidSchema(DitherError):
    """A dataset description does not say what it must."""

    code = "invalid_schema"


class InvalidQuery(DitherError):
    """The SQL text is not understood."""

    code = "invalid_query"


class Unsupported(DitherError):
    """Understood, but cannot be answered privately; the message says what to write instead."""

    code = "unsupported"


class InvalidPlan(DitherError):
    """A plan is malformed, too large, or does not fit the schema."""

    code = "invalid_plan"


class Unbounded(DitherError):
    """One unit could change the result without limit."""

    code = "unbounded"


class BudgetExceeded(DitherError):
    """The charge would pass a budget; nothing was read."""

    code = "budget_exceeded"


class NotAllowed(DitherError):
    """The account may not do this."""

    code = "not_allowed"


class NotFound(DitherError):
    """There is no such dataset, account or release."""

    code = "not_found"


class Busy(DitherError):
    """Too many requests at once; nothing was charged."""

    code = "busy"


class LedgerError(DitherError):
    """The ledger is missing, damaged, behind its remembered head, or of a newer format."""

    code = "ledger"


class EngineFailure(DitherError):
    """The constant error for anything that fails after the charge."""

    code = "engine_failure"

    def __init__(self) -> None:
        super().__init__("the answer could not be computed; the charge stands, and the curator's log has the detail")
