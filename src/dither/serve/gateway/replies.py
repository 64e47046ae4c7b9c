"""Replies of the gateway: errors as JSON with a status, security headers, ticks, and the access log."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dither.errors import DitherError
from dither.serve.operations.logs import ACCESS

STATUS = {
    "invalid_token": 401, "not_allowed": 403, "not_found": 404, "budget_exceeded": 402, "busy": 503, "ledger": 503,
    "engine_failure": 500, "error": 500,
}  # fmt: skip
STATUS_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
INTERNAL_ERROR = "the gateway failed to process this request"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
HTTPS_HEADERS = {"strict-transport-security": "max-age=31536000"}


class Refusal(DitherError):
    """An error that only the gateway raises, with its HTTP status and headers."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}


def error_response(error: DitherError) -> JSONResponse:
    """Return the JSON response for an error: its HTTP status, code and message."""
    if isinstance(error, Refusal):
        return _error(error.status, error.code, str(error), error.headers)
    status = STATUS.get(error.code, 400)
    return _error(status, error.code, str(error), STATUS_HEADERS.get(status, {}))


def _error(status: int, code: str, message: str, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def seconds_to_next_tick(passed: float, tick_ms: int) -> float:
    """Return the seconds to wait so that the time since a request's arrival is a whole number of ticks.

    Without ticks, the time of a request would show the load of the machine, which depends on the data of other queries.
    """
    return -passed % (tick_ms / 1000) if tick_ms else 0.0


def log_access(request: Request, route: str, status: int, seconds: float) -> None:
    """Log a request by its route; like a counter, a failure after the charge counts as done."""
    client = request.client.host if request.client else ""
    event = {
        "client": client,
        "method": request.method[:10],
        "route": route,
        "status": status,
        "ms": round(1000 * seconds),
    }
    logging.getLogger(ACCESS).info("request", extra={"event": event})


class SecurityHeaders:
    """ASGI middleware that adds the security headers to every response, also to 404 and 405 responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and add the headers to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                wanted = HEADERS | (HTTPS_HEADERS if scope["scheme"] == "https" else {})
                more = [(name.encode(), value.encode()) for name, value in wanted.items() if name.encode() not in names]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def http_error(request: Request, error: Exception) -> Response:
    """Return the JSON response for a request that no route answers."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    log_access(request, "none", status, 0.0)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    known_errors = {
        404: ("not_found", "there is no such page"),
        405: ("not_allowed", "this path does not support that method"),
    }
    code, message = known_errors.get(status, ("error", "the request cannot be answered"))
    return _error(status, code, message, headers)
