"""The server that analysts see: accounts, SQL, estimates, the web page. It holds no data and no way to any.

All that it knows comes from a kernel over one socket, with the token of whoever asks; the kernel checks that token.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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

from dither.errors import Busy, DitherError, EngineFailure, InvalidParameter, NotAllowed, NotFound
from dither.plan.context import Context
from dither.post.options import LOSSES
from dither.post.session import Session
from dither.serve.gateway import requests as questions
from dither.serve.gateway.files import PROOFS, DocumentFolder, read_document
from dither.serve.gateway.jobs import Jobs
from dither.serve.gateway.metrics import Metrics
from dither.serve.gateway.openapi import document
from dither.serve.gateway.rate_limits import InFlight, Rate, RecentTokens, TokenBuckets
from dither.serve.gateway.requests import QueryRequest
from dither.serve.transport.http_client import PACKED, WIRE
from dither.serve.transport.rpc import CALLS, decode_result
from dither.serve.transport.socket_client import RemoteKernel
from dither.serve.transport.vectors import FORM
from dither.views import answers as documents
from dither.views.dataset import dataset_data
from dither.views.ledger import budget_data, history_data, ledger_data, statement_data

WEB = Path(__file__).parent / "web"
PAGES = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"),
         "/page.css": ("page.css", "text/css")}  # fmt: skip
ARROW = "application/vnd.apache.arrow.stream"
LONGEST_TOKEN = 8192
LONGEST_NAME = 200
CONTEXT_SECONDS = 5.0
ACCOUNT, STRANGER = Rate(20, 60), Rate(20, 200)
STATUS = {
    "not_allowed": 403, "not_found": 404, "budget_exceeded": 402, "busy": 503, "ledger": 503, "engine_failure": 500,
    "error": 500,
}  # fmt: skip
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


@dataclass(frozen=True)
class Settings:
    """Limits of the gateway."""

    body: int = 1 << 22
    patience: float = 30.0
    threads: int = 96
    each: int = 12
    tick: int = 100
    account: Rate = ACCOUNT
    stranger: Rate = STRANGER
    reports: Path | None = None


class Refusal(DitherError):
    """A refusal that only the gateway makes, with its status."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}


def failed(problem: DitherError) -> JSONResponse:
    """The one shape of errors."""
    if isinstance(problem, Refusal):
        return _error(problem.status, problem.code, str(problem), problem.headers)
    status = STATUS.get(problem.code, 400)
    if isinstance(problem, NotAllowed) and str(problem) == "the token is not valid":
        return _error(401, problem.code, str(problem), {"www-authenticate": "Bearer"})
    return _error(status, problem.code, str(problem), {"retry-after": "1"} if status == 503 else {})


def _error(status: int, code: str, message: str, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def to_next_tick(passed: float, tick: int) -> float:
    """Seconds until a whole number of ticks (milliseconds) has passed since a request came.

    How long small things take depends on what else the machine is doing, and so on data that others ask about.
    """
    return -passed % (tick / 1000) if tick else 0.0


Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, str], Awaitable[Response]]
Read = Callable[[RemoteKernel, str, str], Any]
READS: dict[str, Read] = {
    "budget": lambda kernel, name, token: budget_data(kernel.budget(name, token)),
    "history": lambda kernel, name, token: history_data(kernel.history(name, token)),
    "ledger": lambda kernel, name, token: ledger_data(kernel.ledger_rows(name, token)),
    "statement": lambda kernel, name, token: statement_data(kernel.statement(name, token)),
}


@dataclass(frozen=True)
class CachedContext:
    """What is public about a dataset, as it was at a moment, and the descriptions that the kernel had then."""

    at: float
    described: str
    context: Context


class Gateway:
    """The routes, over one kernel."""

    def __init__(self, kernel: RemoteKernel, settings: Settings | None = None) -> None:
        self.kernel, self.settings = kernel, settings or Settings()
        self.metrics, self.jobs = Metrics(), Jobs()
        self._accounts, self._strangers = TokenBuckets(self.settings.account), TokenBuckets(self.settings.stranger)
        self._known, self._under_way = RecentTokens(), InFlight(self.settings.each)
        self._contexts: dict[str, CachedContext] = {}
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """Every route."""
        open_routes = [("/health", self._health), ("/metrics", self._metrics), ("/openapi.json", self._openapi)]
        made = [Route(path, self._open(path, handler), methods=["GET"]) for path, handler in open_routes]
        made += [Route(path, self._open(path, _page(*page)), methods=["GET"]) for path, page in PAGES.items()]
        for method, path, handler in (
            ("GET", "/v1/datasets", self._datasets),
            *(("GET", f"/v1/{name}", self._about(read)) for name, read in READS.items()),
            ("POST", "/v1/quote", self._quote),
            ("POST", "/v1/explain", self._explain),
            ("POST", "/v1/answer", self._answer),
            ("POST", "/v1/batch", self._batch),
            ("POST", "/v1/split", self._split),
            ("GET", "/v1/jobs/{job}", self._job),
            ("DELETE", "/v1/jobs/{job}", self._delete_job),
            ("GET", "/v1/proofs", self._papers(PROOFS)),
            ("GET", "/v1/proofs/{name}", self._paper(PROOFS)),
            ("GET", "/v1/reports", self._papers(self.settings.reports)),
            ("GET", "/v1/reports/{name}", self._paper(self.settings.reports)),
            ("POST", "/v1/kernel/{call}", self._pass),
        ):  # fmt: skip
            made.append(Route(path, self._guarded(path, handler), methods=[method]))
        return made

    # --- What every route goes through ---

    def _open(self, path: str, handler: Endpoint) -> Endpoint:
        return self._guarded(path, lambda request, _: handler(request), token=False)

    def _guarded(self, path: str, handler: Handler, token: bool = True) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            self.metrics.began()
            arrived = time.monotonic()
            response: Response = failed(DitherError("the gateway could not do this"))
            try:
                response = await self._tried(request, handler, token)
                await asyncio.sleep(to_next_tick(time.monotonic() - arrived, self.settings.tick))
            finally:
                refused = response.status_code >= 400 and response.headers.get("x-charged") != "yes"
                self.metrics.ended(path, refused)
            return response

        return endpoint

    async def _tried(self, request: Request, handler: Handler, token: bool) -> Response:
        try:
            if not token:
                return await handler(request, "")
            bearer = await self._bearer(request)
            with self._under_way.one_more(self._who(bearer)):
                return await handler(request, bearer)
        except EngineFailure as problem:
            response = failed(problem)
            response.headers["x-charged"] = "yes"
            return response
        except DitherError as problem:
            if isinstance(problem, Busy) and "cannot be reached" in str(problem):
                self.metrics.unreachable()
            if isinstance(problem, NotAllowed) and token:
                self._known.discard(_digest(_token(request)))
            return failed(problem)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as problem:
            # The gateway sees public facts only, yet a stack is nobody's business.
            logging.getLogger("dither.public").error("internal", extra={"event": {"error": type(problem).__name__}})
            return failed(DitherError("the gateway could not do this"))

    async def _bearer(self, request: Request) -> str:
        """The token, if whoever shows it does not do so too often; a new one is shown to the kernel first of all."""
        token = _token(request)
        if not token:
            raise Refusal(401, "not_allowed", "send a token: Authorization: Bearer ...", {"www-authenticate": "Bearer"})
        account = self._known.get(_digest(token))
        host = request.client.host if request.client else "?"
        wait = self._strangers.take(host) if account is None else self._accounts.take(account)
        if wait:
            raise Refusal(429, "busy", "too many requests; nothing was charged", {"retry-after": str(int(wait) + 1)})
        if account is None:
            reply = await run_in_threadpool(self.kernel.exchange, "datasets", token)
            self._known.add(_digest(token), reply.about.get("who") or _digest(token))
        return token

    def _who(self, token: str) -> str:
        """A name for the account that a token belongs to, however many tokens it has."""
        return self._known.get(_digest(token)) or _digest(token)

    async def _body(self, request: Request) -> bytes:
        """The body, if it is small enough and comes in time."""
        try:
            async with asyncio.timeout(self.settings.patience):
                pieces, size = [], 0
                async for piece in request.stream():
                    size += len(piece)
                    if size > self.settings.body:
                        raise Refusal(413, "invalid_parameter", f"a body has at most {self.settings.body} bytes")
                    pieces.append(piece)
                return b"".join(pieces)
        except TimeoutError:
            raise Refusal(408, "invalid_parameter", "the body took too long to arrive") from None

    def _session(self, dataset: str, token: str) -> Session:
        """A session; what is public about a dataset is asked for again after a few seconds, and when it changed."""
        reply = self.kernel.exchange("datasets", token)
        if dataset not in decode_result("datasets", reply.body).items:
            raise NotFound("this account has no such dataset")
        described = reply.about.get("described", "")
        known = self._contexts.get(dataset)
        if known is None or known.described != described or time.monotonic() - known.at > CONTEXT_SECONDS:
            context = Context(self.kernel.schema(dataset, token), self.kernel.facts(dataset, token))
            known = CachedContext(time.monotonic(), described, context)
            with self._lock:
                self._contexts[dataset] = known
        return Session(self.kernel, dataset, token, known.context)

    # --- Routes ---

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "kernel": await run_in_threadpool(self.kernel.reachable)})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document())

    async def _datasets(self, request: Request, token: str) -> Response:
        def found() -> list[dict[str, Any]]:
            names = self.kernel.datasets(token)
            return [dataset_data(self._session(name, token).dataset) for name in names]

        return JSONResponse({"datasets": await run_in_threadpool(found)})

    def _about(self, read: Read) -> Handler:
        async def handler(request: Request, token: str) -> Response:
            data = await run_in_threadpool(read, self.kernel, _dataset(request), token)
            return JSONResponse(data if isinstance(data, dict) else {"items": data})

        return handler

    async def _quote(self, request: Request, token: str) -> Response:
        asked = questions.read_any(await self._body(request))
        return JSONResponse(await run_in_threadpool(self._quote_data, asked, token))

    def _quote_data(self, asked: QueryRequest, token: str) -> dict[str, Any]:
        session = self._session(asked.dataset, token)
        if asked.is_batch:
            quote = session.quote_batch(asked.queries, **asked.options)
        else:
            quote = session.quote(asked.queries[0], **asked.options)
        if asked.refine is not None:
            kind = "epsilon" if asked.options.get("rho") is None else "rho"
            quote = replace(quote, notes=(*quote.notes, f"refining costs {kind} {asked.refine} on top of this"))
        return {**documents.quote_data(quote), "waiting": self.kernel.waits.get(asked.dataset, 0)}

    async def _explain(self, request: Request, token: str) -> Response:
        asked = questions.read_query(await self._body(request))
        chosen = {name: value for name, value in asked.options.items() if name not in LOSSES}

        def explained() -> list[str]:
            return list(self._session(asked.dataset, token).explain(asked.queries[0], **chosen).lines)

        return JSONResponse({"lines": await run_in_threadpool(explained)})

    async def _answer(self, request: Request, token: str) -> Response:
        asked = questions.read_query(await self._body(request))
        if "respond-async" in request.headers.get("prefer", ""):
            job = await run_in_threadpool(self._submitted, asked, token)
            return JSONResponse(job.data(), 202, {"location": f"/v1/jobs/{job.name}"})
        answer = await run_in_threadpool(self._asked, asked, token)
        if ARROW in request.headers.get("accept", ""):
            return Response(documents.answer_arrow(answer), media_type=ARROW)
        return JSONResponse(documents.answer_data(answer))

    def _asked(self, asked: QueryRequest, token: str) -> Any:
        session, name = self._session(asked.dataset, token), asked.request_id
        answer = session.sql(asked.queries[0], request_id=name, **asked.options)
        if asked.refine is None:
            return answer
        kind = "epsilon" if asked.options.get("rho") is None else "rho"
        try:
            return session.refine(answer, request_id=f"{name}:refine" if name else "", **{kind: asked.refine})
        except DitherError as problem:
            if isinstance(problem, EngineFailure) or all(release.cached for release in answer.releases):
                raise
            return replace(answer, notes=(*answer.notes, f"not refined: {problem}"))  # the first is paid for

    def _submitted(self, asked: QueryRequest, token: str) -> Any:
        if not asked.request_id:
            raise InvalidParameter("a job needs a request_id of your choice; it is the job's name")
        quote = self._quote_data(asked, token)
        return self.jobs.submit(
            self._who(token), asked.request_id, _digest(repr(asked)), quote["milliseconds"],
            lambda: documents.answer_data(self._asked(asked, token)),
        )  # fmt: skip

    async def _batch(self, request: Request, token: str) -> Response:
        asked = questions.read_batch(await self._body(request))

        def answered() -> list[dict[str, Any]]:
            session = self._session(asked.dataset, token)
            answers = session.batch(asked.queries, request_id=asked.request_id, **asked.options)
            return [documents.answer_data(answer) for answer in answers]

        return JSONResponse({"answers": await run_in_threadpool(answered)})

    async def _split(self, request: Request, token: str) -> Response:
        asked = questions.read_split(await self._body(request))

        def answered() -> list[dict[str, Any]]:
            session = self._session(asked.dataset, token)
            return [
                documents.answer_data(each)
                for each in session.split(asked.queries[0], asked.threshold, **asked.options)
            ]

        return JSONResponse({"answers": await run_in_threadpool(answered)})

    async def _job(self, request: Request, token: str) -> Response:
        await run_in_threadpool(self.kernel.datasets, token)
        return JSONResponse(self.jobs.find(self._who(token), request.path_params["job"]).data())

    async def _delete_job(self, request: Request, token: str) -> Response:
        await run_in_threadpool(self.kernel.datasets, token)
        self.jobs.delete(self._who(token), request.path_params["job"])
        return JSONResponse({"status": "forgotten"})

    def _papers(self, folder: Path | None) -> Handler:
        shelf = DocumentFolder(folder)

        async def handler(request: Request, token: str) -> Response:
            await run_in_threadpool(self.kernel.datasets, token)
            return JSONResponse({"items": await run_in_threadpool(shelf.listed)})

        return handler

    def _paper(self, folder: Path | None) -> Handler:
        async def handler(request: Request, token: str) -> Response:
            await run_in_threadpool(self.kernel.datasets, token)
            text, kind = await run_in_threadpool(read_document, folder, request.path_params["name"])
            return Response(text, media_type=kind, headers={"content-disposition": "attachment"})

        return handler

    async def _pass(self, request: Request, token: str) -> Response:
        """A typed call as the wire spells it, for the Python client."""
        call, dataset = request.path_params["call"], request.query_params.get("dataset", "")
        if call not in CALLS:
            raise NotFound(f"no such call; there are: {', '.join(CALLS)}")
        if len(dataset) > LONGEST_NAME:
            raise InvalidParameter("dataset must be a short text")
        accept = FORM if PACKED in request.headers.get("accept", "") else ""
        reply = await run_in_threadpool(self.kernel.exchange, call, token, dataset, await self._body(request), accept)
        kind = PACKED if reply.about.get("form") == FORM else WIRE
        return Response(reply.body, media_type=kind, headers={"x-dither-waiting": str(reply.waiting)})


def _token(request: Request) -> str:
    """The bearer token, if it looks like one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    fits = 0 < len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
    return token if scheme.lower() == "bearer" and fits else ""


def _digest(text: str) -> str:
    """What the gateway keeps of a token or a question."""
    return hashlib.sha256(text.encode()).hexdigest()


def _dataset(request: Request) -> str:
    name = request.query_params.get("dataset", "")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidParameter("name the dataset: ?dataset=...")
    return name


def _page(file: str, kind: str) -> Endpoint:
    content = (WEB / file).read_bytes()

    async def handler(request: Request) -> Response:
        return Response(content, media_type=kind)

    return handler


class Secured:
    """Puts the security headers on every answer, also on those that no route made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                more = [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names
                ]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, sending)


async def _http_error(request: Request, problem: Exception) -> Response:
    """What no route answers, in the one shape of errors."""
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    headers = dict(problem.headers or {}) if isinstance(problem, HTTPException) else {}
    words = {404: ("not_found", "there is no such page"), 405: ("not_allowed", "this page does not answer that method")}
    code, message = words.get(status, ("error", "the request cannot be answered"))
    return _error(status, code, message, headers)


def application(kernel: RemoteKernel, settings: Settings | None = None) -> ASGIApp:
    """The gateway as an ASGI application."""
    gateway = Gateway(kernel, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = gateway.settings.threads
        yield
        gateway.jobs.close()
        kernel.close()

    app = Starlette(routes=gateway.routes(), exception_handlers={HTTPException: _http_error}, lifespan=lifespan)
    app.router.redirect_slashes = False
    return Secured(app)
