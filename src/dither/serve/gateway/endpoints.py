"""The steps common to all routes: token, rates, body, session with the kernel, and a reply at the next tick."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dither.errors import DitherError, EngineFailure, InvalidParameter, InvalidToken, NotAllowed, NotFound
from dither.plan.context import Context
from dither.post.session import Session
from dither.serve.gateway.jobs import Jobs
from dither.serve.gateway.metrics import Metrics
from dither.serve.gateway.rate_limits import InFlight, Rate, RecentTokens, TokenBuckets
from dither.serve.gateway.readiness import Readiness
from dither.serve.gateway.replies import INTERNAL_ERROR, Refusal, error_response, log_access, seconds_to_next_tick
from dither.serve.transport.errors import KernelUnreachable
from dither.serve.transport.rpc import decode_result
from dither.serve.transport.socket_client import RemoteKernel

LONGEST_TOKEN = 8192
CONTEXT_SECONDS = 5.0
ACCOUNT_RATE, UNKNOWN_TOKEN_RATE = Rate(20, 60), Rate(20, 200)


@dataclass(frozen=True)
class AppSettings:
    """The gateway's limits on bodies, threads, requests and rates, the tick of its replies, and the reports' folder."""

    max_body_bytes: int = 1 << 22
    body_seconds: float = 30.0
    threads: int = 96
    max_in_flight: int = 12
    tick_ms: int = 100
    account_rate: Rate = ACCOUNT_RATE
    unknown_token_rate: Rate = UNKNOWN_TOKEN_RATE
    reports: Path | None = None


Endpoint = Callable[[Request], Awaitable[Response]]


Handler = Callable[[Request, str], Awaitable[Response]]


@dataclass(frozen=True)
class CachedContext:
    """The public facts of a dataset, the time of their retrieval, and the kernel's hash of its descriptions then."""

    fetched_at: float
    descriptions_hash: str
    context: Context

    def is_fresh(self, descriptions_hash: str) -> bool:
        """Return True if the facts are recent and the descriptions have not changed since."""
        recent = time.monotonic() - self.fetched_at <= CONTEXT_SECONDS
        return recent and self.descriptions_hash == descriptions_hash


class Endpoints:
    """Wraps the handlers of a gateway in front of one kernel."""

    def __init__(self, kernel: RemoteKernel, settings: AppSettings | None = None) -> None:
        self.kernel, self.settings = kernel, settings or AppSettings()
        self.metrics, self.jobs = Metrics(), Jobs()
        self._account_buckets = TokenBuckets(self.settings.account_rate)
        self._unknown_token_buckets = TokenBuckets(self.settings.unknown_token_rate)
        self._recent_tokens, self._in_flight = RecentTokens(), InFlight(self.settings.max_in_flight)
        self._contexts: dict[
            tuple[str, str], CachedContext
        ] = {}  # by dataset, and account if groups see different facts
        self._readiness = Readiness(kernel.check_ready)
        self._lock = threading.Lock()

    def _public_endpoint(self, path: str, handler: Endpoint) -> Endpoint:
        """Wrap the handler of a route that needs no token."""
        return self._endpoint(path, lambda request, _: handler(request), token=False)

    def _endpoint(self, path: str, handler: Handler, token: bool = True) -> Endpoint:
        """Wrap a handler: count the request, handle it, and let the reply leave at the next tick."""

        async def endpoint(request: Request) -> Response:
            self.metrics.start_request()
            arrived = time.monotonic()
            response: Response = error_response(DitherError(INTERNAL_ERROR))
            try:
                response = await self._handle(request, handler, token)
                await asyncio.sleep(seconds_to_next_tick(time.monotonic() - arrived, self.settings.tick_ms))
            finally:
                refused = response.status_code >= 400 and response.headers.get("x-charged") != "yes"
                self.metrics.end_request(path, refused)
                log_access(request, path, response.status_code if refused else 200, time.monotonic() - arrived)
            return response

        return endpoint

    async def _handle(self, request: Request, handler: Handler, token: bool) -> Response:
        """Check the token and run the handler; turn every error into a response."""
        try:
            if not token:
                return await handler(request, "")
            bearer = await self._bearer(request)
            with self._in_flight.admit(self._account_key(bearer)):
                return await handler(request, bearer)
        except EngineFailure as error:
            response = error_response(error)
            response.headers["x-charged"] = "yes"
            return response
        except DitherError as error:
            if isinstance(error, KernelUnreachable):
                self.metrics.count_unreachable()
            if isinstance(error, NotAllowed) and token:
                self._recent_tokens.discard(digest(_token(request)))
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            # Do not log the traceback, although the gateway handles public facts only.
            logging.getLogger("dither.public").error("internal", extra={"event": {"error": type(error).__name__}})
            return error_response(DitherError(INTERNAL_ERROR))

    async def _bearer(self, request: Request) -> str:
        """Return the request's token within the rate limits; the kernel checks a token that was not seen recently."""
        token = _token(request)
        if not token:
            raise InvalidToken("no token came with the request; send the header Authorization: Bearer TOKEN")
        account = self._recent_tokens.get(digest(token))
        host = request.client.host if request.client else "?"
        wait = self._unknown_token_buckets.take(host) if account is None else self._account_buckets.take(account)
        if wait:
            raise Refusal(429, "busy", "too many requests; nothing was charged", {"retry-after": str(int(wait) + 1)})
        if account is None:
            reply = await run_in_threadpool(self.kernel.exchange, "datasets", token)
            who, role = reply.header.get("who") or digest(token), reply.header.get("role", "")
            self._recent_tokens.add(digest(token), who, role)
        return token

    def _account_key(self, token: str) -> str:
        """Return a key for the token's account, the same for all tokens of that account."""
        return self._recent_tokens.get(digest(token)) or digest(token)

    async def _body(self, request: Request) -> bytes:
        """Read the request body, within the limits of size and time."""
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                pieces, size = [], 0
                async for piece in request.stream():
                    size += len(piece)
                    if size > self.settings.max_body_bytes:
                        raise Refusal(
                            413, "invalid_parameter", f"the body must have at most {self.settings.max_body_bytes} bytes"
                        )
                    pieces.append(piece)
                return b"".join(pieces)
        except TimeoutError:
            raise Refusal(
                408, "invalid_parameter", f"the body must arrive within {self.settings.body_seconds:g} seconds"
            ) from None

    def _session(self, dataset: str, token: str) -> Session:
        """Open a session; refresh the dataset's public facts after CONTEXT_SECONDS and when a description changed."""
        reply = self.kernel.exchange("datasets", token)
        dataset = choose_dataset(dataset, decode_result("datasets", reply.body).items)
        described, who = reply.header.get("described", ""), reply.header.get("who") or digest(token)
        known = [self._contexts.get((dataset, account)) for account in ("", who)]
        context = next((each.context for each in known if each is not None and each.is_fresh(described)), None)
        if context is None:
            context = Context(self.kernel.schema(dataset, token), self.kernel.facts(dataset, token))
            self._keep_context(dataset, who, CachedContext(time.monotonic(), described, context))
        return Session(self.kernel, dataset, token, context)

    def _keep_context(self, dataset: str, account: str, cached: CachedContext) -> None:
        """Keep the facts of a dataset for a while; under separate budgets for this account alone, whose group paid."""
        account = account if cached.context.dataset.policy == "separate" else ""
        with self._lock:
            fresh = {name: each for name, each in self._contexts.items() if each.is_fresh(cached.descriptions_hash)}
            self._contexts = fresh | {(dataset, account): cached}


def _token(request: Request) -> str:
    """Return the bearer token of a request, or an empty string if there is none or it is malformed."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    fits = 0 < len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
    return token if scheme.lower() == "bearer" and fits else ""


def digest(text: str) -> str:
    """Return the SHA-256 hash under which the gateway remembers a token or a request."""
    return hashlib.sha256(text.encode()).hexdigest()


def choose_dataset(name: str, known: Sequence[str]) -> str:
    """Return the dataset of that name or, without a name, the only one that the account has."""
    if not name and len(known) != 1:
        raise InvalidParameter(f"name the dataset; this account has: {', '.join(known) or 'none'}")
    if name and name not in known:
        raise NotFound("this account has no dataset of that name; GET /v1/datasets lists those that it has")
    return name or known[0]
