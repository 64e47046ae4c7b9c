"""The HTTP server that analysts use: accounts, SQL queries, estimates and the web page. It has no access to the data.

The gateway reads everything from a kernel over one socket and passes on the caller's token, which the kernel checks.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dither.errors import DitherError, EngineFailure, InvalidParameter, InvalidToken, NotAllowed, NotFound
from dither.plan.context import Context
from dither.post.options import LOSSES
from dither.post.session import Session
from dither.privacy.protocol import MAX_PAGE, Page
from dither.serve.gateway.files import PROOFS, DocumentFolder, read_document
from dither.serve.gateway.jobs import Jobs
from dither.serve.gateway.metrics import Metrics
from dither.serve.gateway.openapi import openapi_document
from dither.serve.gateway.rate_limits import InFlight, Rate, RecentTokens, TokenBuckets
from dither.serve.gateway.readiness import Readiness
from dither.serve.gateway.requests import QueryRequest, read_any, read_batch, read_query, read_split
from dither.serve.operations.logs import ACCESS
from dither.serve.transport.errors import KernelUnreachable
from dither.serve.transport.http_client import PACKED, WIRE
from dither.serve.transport.rpc import CALLS, decode_result
from dither.serve.transport.socket_client import RemoteKernel
from dither.serve.transport.vectors import FORM
from dither.views.answers import answer_arrow, answer_data, quote_data
from dither.views.dataset import dataset_data
from dither.views.ledger import budget_data, history_data, ledger_data, statement_data

WEB = Path(__file__).parent / "web"
PAGES = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"),
         "/page.css": ("page.css", "text/css")}  # fmt: skip
ARROW = "application/vnd.apache.arrow.stream"
OPERATORS = ("auditor", "curator")
LONGEST_TOKEN = 8192
LONGEST_NAME = 200
CONTEXT_SECONDS = 5.0
ACCOUNT_RATE, UNKNOWN_TOKEN_RATE = Rate(20, 60), Rate(20, 200)
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


Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, str], Awaitable[Response]]
Read = Callable[[RemoteKernel, str, str, Page], Any]
READS: dict[str, Read] = {
    "budget": lambda kernel, name, token, page: budget_data(kernel.budget(name, token)),
    "history": lambda kernel, name, token, page: history_data(kernel.history(name, token, page)),
    "ledger": lambda kernel, name, token, page: ledger_data(kernel.ledger_rows(name, token, page)),
    "statement": lambda kernel, name, token, page: statement_data(kernel.statement(name, token)),
}


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


class Gateway:
    """The HTTP routes in front of one kernel."""

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

    def routes(self) -> list[Route]:
        """Return every route."""
        public_routes = [("/health/live", self._live), ("/health/ready", self._ready), ("/openapi.json", self._openapi)]
        routes = [Route(path, self._public_endpoint(path, handler), methods=["GET"]) for path, handler in public_routes]
        routes += [
            Route(path, self._public_endpoint(path, _page(*page)), methods=["GET"]) for path, page in PAGES.items()
        ]
        for method, path, handler in (
            ("GET", "/metrics", self._metrics),
            ("GET", "/v1/datasets", self._datasets),
            *(("GET", f"/v1/{name}", self._read_handler(read)) for name, read in READS.items()),
            ("POST", "/v1/quote", self._quote),
            ("POST", "/v1/explain", self._explain),
            ("POST", "/v1/answer", self._answer),
            ("POST", "/v1/batch", self._batch),
            ("POST", "/v1/split", self._split),
            ("GET", "/v1/jobs/{job}", self._job),
            ("DELETE", "/v1/jobs/{job}", self._delete_job),
            ("GET", "/v1/proofs", self._list_handler(PROOFS)),
            ("GET", "/v1/proofs/{name}", self._document_handler(PROOFS)),
            ("GET", "/v1/reports", self._list_handler(self.settings.reports)),
            ("GET", "/v1/reports/{name}", self._document_handler(self.settings.reports)),
            ("POST", "/v1/kernel/{call}", self._forward),
        ):  # fmt: skip
            routes.append(Route(path, self._endpoint(path, handler), methods=[method]))
        return routes

    # --- Steps common to all routes ---

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
                _log_access(request, path, response.status_code if refused else 200, time.monotonic() - arrived)
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
                self._recent_tokens.discard(_digest(_token(request)))
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
        account = self._recent_tokens.get(_digest(token))
        host = request.client.host if request.client else "?"
        wait = self._unknown_token_buckets.take(host) if account is None else self._account_buckets.take(account)
        if wait:
            raise Refusal(429, "busy", "too many requests; nothing was charged", {"retry-after": str(int(wait) + 1)})
        if account is None:
            reply = await run_in_threadpool(self.kernel.exchange, "datasets", token)
            who, role = reply.header.get("who") or _digest(token), reply.header.get("role", "")
            self._recent_tokens.add(_digest(token), who, role)
        return token

    def _account_key(self, token: str) -> str:
        """Return a key for the token's account, the same for all tokens of that account."""
        return self._recent_tokens.get(_digest(token)) or _digest(token)

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
        dataset = _choose_dataset(dataset, decode_result("datasets", reply.body).items)
        described, who = reply.header.get("described", ""), reply.header.get("who") or _digest(token)
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

    # --- Routes ---

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def _ready(self, request: Request) -> Response:
        problem = await self._readiness.problem()
        if problem is not None:
            raise Refusal(503, problem.code, str(problem), STATUS_HEADERS[503])
        return JSONResponse({"status": "ready"})

    async def _metrics(self, request: Request, token: str) -> Response:
        """Return the counters to auditors and curators: they show how much other accounts ask."""
        if self._recent_tokens.role(_digest(token)) not in OPERATORS:
            raise NotAllowed("metrics are for auditors and curators; ask the curator for an auditor's token")
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_document())

    async def _datasets(self, request: Request, token: str) -> Response:
        def describe_all() -> list[dict[str, Any]]:
            names = self.kernel.datasets(token)
            contexts = [self._session(name, token).context for name in names]
            return [dataset_data(context.dataset, context.facts) for context in contexts]

        return JSONResponse({"datasets": await run_in_threadpool(describe_all)})

    def _read_handler(self, read: Read) -> Handler:
        """Build the handler of a route that reads one thing about a dataset."""

        def read_dataset(name: str, token: str, page: Page) -> Any:
            return read(self.kernel, name or _choose_dataset("", self.kernel.datasets(token)), token, page)

        async def handler(request: Request, token: str) -> Response:
            data = await run_in_threadpool(read_dataset, _dataset(request), token, _page_wanted(request))
            return JSONResponse(data if isinstance(data, dict) else {"items": data})

        return handler

    async def _quote(self, request: Request, token: str) -> Response:
        parsed = read_any(await self._body(request))
        return JSONResponse(await run_in_threadpool(self._quote_data, parsed, token))

    def _quote_data(self, parsed: QueryRequest, token: str) -> dict[str, Any]:
        """Quote a query or a batch, and add how many of the account's own requests wait for its dataset."""
        session = self._session(parsed.dataset, token)
        if parsed.is_batch:
            quote = session.quote_batch(parsed.queries, **parsed.options)
        else:
            quote = session.quote(parsed.queries[0], **parsed.options)
        if parsed.refine is not None:
            kind = "epsilon" if parsed.options.get("rho") is None else "rho"
            quote = replace(quote, notes=(*quote.notes, f"refining costs {kind} {parsed.refine} on top of this"))
        return {**quote_data(quote), "waiting": self.kernel.waiting()}

    async def _explain(self, request: Request, token: str) -> Response:
        parsed = read_query(await self._body(request))
        options = {name: value for name, value in parsed.options.items() if name not in LOSSES}

        def explain_lines() -> list[str]:
            return list(self._session(parsed.dataset, token).explain(parsed.queries[0], **options).lines)

        return JSONResponse({"lines": await run_in_threadpool(explain_lines)})

    async def _answer(self, request: Request, token: str) -> Response:
        parsed = read_query(await self._body(request))
        if "respond-async" in request.headers.get("prefer", ""):
            job = await run_in_threadpool(self._submit_job, parsed, token)
            return JSONResponse(job.data(), 202, {"location": f"/v1/jobs/{job.name}"})
        answer = await run_in_threadpool(self._answer_query, parsed, token)
        if ARROW in request.headers.get("accept", ""):
            return Response(answer_arrow(answer), media_type=ARROW)
        return JSONResponse(answer_data(answer))

    def _answer_query(self, parsed: QueryRequest, token: str) -> Any:
        """Answer a query, and refine the answer if that was requested; keep the answer if only refining fails."""
        session, name = self._session(parsed.dataset, token), parsed.request_id
        answer = session.sql(parsed.queries[0], request_id=name, **parsed.options)
        if parsed.refine is None:
            return answer
        kind = "epsilon" if parsed.options.get("rho") is None else "rho"
        try:
            return session.refine(answer, request_id=f"{name}:refine" if name else "", **{kind: parsed.refine})
        except DitherError as error:
            if isinstance(error, EngineFailure) or all(release.cached for release in answer.releases):
                raise
            return replace(answer, notes=(*answer.notes, f"not refined: {error}"))  # the first answer was charged

    def _submit_job(self, parsed: QueryRequest, token: str) -> Any:
        """Start answering a query in the background; return its job."""
        if not parsed.request_id:
            raise InvalidParameter("a job needs a request_id of your choice, which becomes the job's name")
        quote = self._quote_data(parsed, token)
        return self.jobs.submit(
            self._account_key(token), parsed.request_id, _digest(repr(parsed)), quote["milliseconds"],
            lambda: answer_data(self._answer_query(parsed, token)),
        )  # fmt: skip

    async def _batch(self, request: Request, token: str) -> Response:
        parsed = read_batch(await self._body(request))

        def answer_all() -> list[dict[str, Any]]:
            session = self._session(parsed.dataset, token)
            answers = session.batch(parsed.queries, request_id=parsed.request_id, **parsed.options)
            return [answer_data(answer) for answer in answers]

        return JSONResponse({"answers": await run_in_threadpool(answer_all)})

    async def _split(self, request: Request, token: str) -> Response:
        parsed = read_split(await self._body(request))

        def answer_all() -> list[dict[str, Any]]:
            session = self._session(parsed.dataset, token)
            return [answer_data(each) for each in session.split(parsed.queries[0], parsed.threshold, **parsed.options)]

        return JSONResponse({"answers": await run_in_threadpool(answer_all)})

    async def _job(self, request: Request, token: str) -> Response:
        await run_in_threadpool(self.kernel.datasets, token)
        return JSONResponse(self.jobs.find(self._account_key(token), request.path_params["job"]).data())

    async def _delete_job(self, request: Request, token: str) -> Response:
        await run_in_threadpool(self.kernel.datasets, token)
        self.jobs.delete(self._account_key(token), request.path_params["job"])
        return JSONResponse({"status": "forgotten"})

    def _list_handler(self, folder: Path | None) -> Handler:
        """Build the handler that lists the documents of a folder."""
        documents = DocumentFolder(folder)

        async def handler(request: Request, token: str) -> Response:
            await run_in_threadpool(self.kernel.datasets, token)
            return JSONResponse({"items": await run_in_threadpool(documents.entries)})

        return handler

    def _document_handler(self, folder: Path | None) -> Handler:
        """Build the handler that returns one document of a folder."""

        async def handler(request: Request, token: str) -> Response:
            await run_in_threadpool(self.kernel.datasets, token)
            text, kind = await run_in_threadpool(read_document, folder, request.path_params["name"])
            return Response(text, media_type=kind, headers={"content-disposition": "attachment"})

        return handler

    async def _forward(self, request: Request, token: str) -> Response:
        """Pass a typed call of the Python client on to the kernel, unchanged."""
        call, dataset = request.path_params["call"], request.query_params.get("dataset", "")
        if call not in CALLS:
            raise NotFound(f"unknown call; the calls are: {', '.join(CALLS)}")
        if len(dataset) > LONGEST_NAME:
            raise InvalidParameter(f"dataset must be a name of at most {LONGEST_NAME} characters")
        accept = FORM if PACKED in request.headers.get("accept", "") else ""
        reply = await run_in_threadpool(self.kernel.exchange, call, token, dataset, await self._body(request), accept)
        kind = PACKED if reply.header.get("form") == FORM else WIRE
        return Response(reply.body, media_type=kind, headers={"x-dither-waiting": str(reply.waiting)})


def _log_access(request: Request, route: str, status: int, seconds: float) -> None:
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


def _token(request: Request) -> str:
    """Return the bearer token of a request, or an empty string if there is none or it is malformed."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    fits = 0 < len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
    return token if scheme.lower() == "bearer" and fits else ""


def _digest(text: str) -> str:
    """Return the SHA-256 hash under which the gateway remembers a token or a request."""
    return hashlib.sha256(text.encode()).hexdigest()


def _dataset(request: Request) -> str:
    """Return the dataset that a request names, or "" if it names none."""
    name = request.query_params.get("dataset", "")
    if len(name) > LONGEST_NAME:
        raise InvalidParameter(f"name the dataset with ?dataset=..., in at most {LONGEST_NAME} characters")
    return name


def _choose_dataset(name: str, known: Sequence[str]) -> str:
    """Return the dataset of that name or, without a name, the only one that the account has."""
    if not name and len(known) != 1:
        raise InvalidParameter(f"name the dataset; this account has: {', '.join(known) or 'none'}")
    if name and name not in known:
        raise NotFound("this account has no dataset of that name; GET /v1/datasets lists those that it has")
    return name or known[0]


def _page_wanted(request: Request) -> Page:
    """Return the page of a list that a request asks for."""
    given = [request.query_params.get(name, default) for name, default in (("before", "0"), ("limit", str(MAX_PAGE)))]
    if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in given):
        raise InvalidParameter(f"before must be a whole number, and limit one from 1 to {MAX_PAGE}")
    return Page(*map(int, given))


def _page(file: str, kind: str) -> Endpoint:
    """Build the handler of a file of the web page."""
    content = (WEB / file).read_bytes()

    async def handler(request: Request) -> Response:
        return Response(content, media_type=kind)

    return handler


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


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the JSON response for a request that no route answers."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    _log_access(request, "none", status, 0.0)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    known_errors = {
        404: ("not_found", "there is no such page"),
        405: ("not_allowed", "this path does not support that method"),
    }
    code, message = known_errors.get(status, ("error", "the request cannot be answered"))
    return _error(status, code, message, headers)


def application(kernel: RemoteKernel, settings: AppSettings | None = None) -> ASGIApp:
    """Build the gateway as an ASGI application."""
    gateway = Gateway(kernel, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = gateway.settings.threads
        yield
        gateway.jobs.close()
        kernel.close()

    app = Starlette(routes=gateway.routes(), exception_handlers={HTTPException: _http_error}, lifespan=lifespan)
    app.router.redirect_slashes = False
    return SecurityHeaders(app)
