"""The HTTP server that analysts use: accounts, SQL queries, estimates and the web page. It has no access to the data.

The gateway reads everything from a kernel over one socket and passes on the caller's token, which the kernel checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dither.errors import DitherError, EngineFailure, InvalidParameter, NotAllowed, NotFound
from dither.post.options import LOSSES
from dither.privacy.protocol import MAX_PAGE, Page
from dither.serve.gateway.endpoints import AppSettings, Endpoint, Endpoints, Handler, choose_dataset, digest
from dither.serve.gateway.files import PROOFS, DocumentFolder, read_document
from dither.serve.gateway.openapi import openapi_document
from dither.serve.gateway.replies import STATUS_HEADERS, Refusal, SecurityHeaders, http_error
from dither.serve.gateway.requests import QueryRequest, read_any, read_batch, read_query, read_split
from dither.serve.transport.http_client import PACKED, WIRE
from dither.serve.transport.rpc import CALLS
from dither.serve.transport.socket_client import RemoteKernel
from dither.serve.transport.vectors import FORM
from dither.views.answers import answer_arrow, answer_data, quote_data
from dither.views.dataset import dataset_data
from dither.views.history import history_data
from dither.views.ledger import budget_data, ledger_data, statement_data

WEB = Path(__file__).parent / "web"
PAGES = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"),
         "/page.css": ("page.css", "text/css")}  # fmt: skip
ARROW = "application/vnd.apache.arrow.stream"
OPERATORS = ("auditor", "curator")
LONGEST_NAME = 200


Read = Callable[[RemoteKernel, str, str, Page], Any]
READS: dict[str, Read] = {
    "budget": lambda kernel, name, token, page: budget_data(kernel.budget(name, token)),
    "history": lambda kernel, name, token, page: history_data(kernel.history(name, token, page)),
    "ledger": lambda kernel, name, token, page: ledger_data(kernel.ledger_rows(name, token, page)),
    "statement": lambda kernel, name, token, page: statement_data(kernel.statement(name, token)),
}


class Gateway(Endpoints):
    """The HTTP routes in front of one kernel."""

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

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def _ready(self, request: Request) -> Response:
        problem = await self._readiness.problem()
        if problem is not None:
            raise Refusal(503, problem.code, str(problem), STATUS_HEADERS[503])
        return JSONResponse({"status": "ready"})

    async def _metrics(self, request: Request, token: str) -> Response:
        """Return the counters to auditors and curators: they show how much other accounts ask."""
        if self._recent_tokens.role(digest(token)) not in OPERATORS:
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
            return read(self.kernel, name or choose_dataset("", self.kernel.datasets(token)), token, page)

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
            self._account_key(token), parsed.request_id, digest(repr(parsed)), quote["milliseconds"],
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


def _dataset(request: Request) -> str:
    """Return the dataset that a request names, or "" if it names none."""
    name = request.query_params.get("dataset", "")
    if len(name) > LONGEST_NAME:
        raise InvalidParameter(f"name the dataset with ?dataset=..., in at most {LONGEST_NAME} characters")
    return name


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


def application(kernel: RemoteKernel, settings: AppSettings | None = None) -> ASGIApp:
    """Build the gateway as an ASGI application."""
    gateway = Gateway(kernel, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = gateway.settings.threads
        yield
        gateway.jobs.close()
        kernel.close()

    app = Starlette(routes=gateway.routes(), exception_handlers={HTTPException: http_error}, lifespan=lifespan)
    app.router.redirect_slashes = False
    return SecurityHeaders(app)
