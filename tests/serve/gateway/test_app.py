"""Test the gateway over a real kernel socket: routes, limits, the OpenAPI document, and remote sessions."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn

from conftest import Tier, require
from dither.connection import connect
from dither.errors import BudgetExceeded, Busy, DitherError, InvalidParameter, InvalidPlan, InvalidToken, NotAllowed
from dither.loss import Pure
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.post.options import LOSSES
from dither.privacy.codec import encode
from dither.privacy.protocol import Calibrate, Measurement, Request
from dither.schema import load
from dither.serve.gateway import app as gateway_module
from dither.serve.gateway.app import ARROW, Gateway, application
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.gateway.openapi import openapi_document
from dither.serve.gateway.rate_limits import Rate
from dither.serve.gateway.replies import error_response, seconds_to_next_tick
from dither.serve.kernel.fair_queue import QueueLimits
from dither.serve.kernel.server import READ_LIMITS
from dither.serve.transport.errors import KernelUnreachable
from dither.serve.transport.http_client import connect as connect_http
from dither.serve.transport.socket_client import RemoteKernel
from serve.servers import Place, place, until

COUNT = "SELECT city, COUNT(*) AS n FROM people GROUP BY city"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("gateway"), epsilon=100) as made:
        yield made


def test_a_question_is_answered_with_intervals_and_costs(there: Place) -> None:
    reply = there.ask(COUNT, 0.5)
    data = reply.json()
    assert reply.status_code == 200 and [row["city"] for row in data["rows"]] == ["north", "south", "east"]
    assert all(row["n_low"] <= row["n"] <= row["n_high"] for row in data["rows"])
    assert data["loss"] == [{"kind": "pure", "epsilon": "1/2"}] and not data["free"]
    assert data["losses"] == [{"person (pure)": {"kind": "pure", "epsilon": "1/2"}}]  # of every budget
    assert there.ask(COUNT, 0.5).json()["free"]


def test_a_quote_is_free_and_explains(there: Place) -> None:
    before = there.spent()
    quote = there.post("/v1/quote", {"dataset": "town", "query": COUNT, "epsilon": "1/3"}).json()
    assert quote["affordable"] and quote["expected"][0]["half_width"] > 0
    lines = there.post("/v1/explain", {"dataset": "town", "query": COUNT}).json()["lines"]
    assert lines[0] == "unit of privacy: person" and there.spent() == before


def test_a_quote_respects_repeat(there: Place) -> None:
    """Regression test: /v1/quote ignored `repeat`, and quoted every repetition like the first."""
    body = {"dataset": "town", "query": COUNT, "epsilon": "1/7"}
    many = {"dataset": "town", "queries": [COUNT, COUNT], "epsilon": "1/7"}
    assert not there.post("/v1/answer", {**body, "repeat": 2}).json()["free"]
    assert there.post("/v1/batch", {**many, "repeat": 2}).status_code == 200
    for draw, free in ((0, False), (1, False), (2, True)):
        assert there.post("/v1/quote", {**body, "repeat": draw}).json()["free"] is free
        assert there.post("/v1/quote", {**many, "repeat": draw}).json()["free"] is free
        assert there.post("/v1/answer", {**body, "repeat": draw}).json()["free"] is free


def test_an_answer_as_arrow(there: Place) -> None:
    reply = there.post("/v1/answer", {"dataset": "town", "query": COUNT, "epsilon": "0.5"}, accept=ARROW)
    assert reply.headers["content-type"] == ARROW
    assert pa.ipc.open_stream(reply.content).read_all().column_names[:2] == ["city", "n"]


def test_a_job_waits_and_is_done(there: Place) -> None:
    body = {"dataset": "town", "query": COUNT, "epsilon": 0.25, "request_id": "later"}
    reply = there.post("/v1/answer", body, prefer="respond-async")
    assert reply.status_code == 202 and reply.headers["location"] == "/v1/jobs/later"
    done = until(lambda: (data := there.get("/v1/jobs/later").json())["status"] == "done" and data)
    assert len(done["answer"]["rows"]) == 3
    assert there.http.delete("/v1/jobs/later", headers=there.headers("ann")).status_code == 200
    assert there.get("/v1/jobs/later").status_code == 404
    assert there.post("/v1/answer", {**body, "request_id": None}, prefer="respond-async").status_code == 400


def test_a_batch_is_one_charge(there: Place) -> None:
    charges = there.charges()
    queries = ["SELECT COUNT(*) FROM people", "SELECT AVG(age) FROM people"]
    answers = there.post("/v1/batch", {"dataset": "town", "queries": queries, "epsilon": 0.3}).json()["answers"]
    assert len(answers) == 2 and there.charges() == charges + 1


def test_budget_history_statement_and_ledger(there: Place) -> None:
    budget = there.get("/v1/budget?dataset=town").json()["items"]
    assert budget[0]["limit"]["epsilon"] == "100"
    assert there.get("/v1/history?dataset=town").json()["items"][0]["account"] == "kernel"
    assert there.get("/v1/statement?dataset=town").json()["units"]
    assert there.get("/v1/ledger?dataset=town").status_code == 403
    rows = there.get("/v1/ledger?dataset=town", "aud").json()["items"]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("status", "code", "body"),
    [
        (402, "budget_exceeded", {"dataset": "town", "query": COUNT, "epsilon": 500}),
        (404, "not_found", {"dataset": "elsewhere", "query": COUNT, "epsilon": 1}),
        (400, "invalid_query", {"dataset": "town", "query": "SELECT COUNT(* FROM people", "epsilon": 1}),
        (400, "invalid_parameter", {"dataset": "town", "query": COUNT, "epsilon": -1}),
    ],
)
def test_errors_have_one_shape(there: Place, status: int, code: str, body: Any) -> None:
    reply = there.post("/v1/answer", body)
    assert reply.status_code == status and reply.json()["error"]["code"] == code
    assert set(reply.json()) == {"error"} and set(reply.json()["error"]) == {"code", "message"}


def test_expired_and_revoked_tokens_are_refused(there: Place) -> None:
    token = there.kernel.ledger.add_account("tmp", "analyst", days=1)
    assert there.get("/v1/datasets", token).status_code == 200
    there.kernel.ledger.revoke_account("tmp")
    assert there.get("/v1/datasets", token).status_code == 401
    expired = there.kernel.ledger.add_account("old", "analyst", days=-1)
    assert there.get("/v1/datasets", expired).status_code == 401
    renewed = there.kernel.ledger.add_account("tmp", "analyst", days=1)
    assert there.get("/v1/datasets", renewed).status_code == 200 and there.get("/v1/datasets", token).status_code == 401


def test_every_route_shows_the_token_to_the_kernel(there: Place) -> None:
    """The gateway remembers tokens for its rate limits; only the kernel knows that one was revoked."""
    routes = [route for route in Gateway(there.remote).routes() if route.path.startswith("/v1/")]
    asked = {"dataset": "town", "query": COUNT, "epsilon": 0.25}
    bodies = {
        "/v1/batch": {"dataset": "town", "queries": [COUNT], "epsilon": 1},
        "/v1/split": {**asked, "threshold": 2},
    }
    for number, (route, method) in enumerate((each, method) for each in routes for method in each.methods or ()):
        name = f"gone{number}"
        token = there.kernel.ledger.add_account(name, "analyst", days=1)
        job = there.post("/v1/answer", {**asked, "request_id": name}, token, prefer="respond-async")
        assert job.status_code == 202  # so the gateway has just seen this token, and has a job of this account
        path = route.path.format(job=name, name="count.md", call="datasets")
        there.kernel.ledger.revoke_account(name)
        reply = there.http.request(
            method, f"{path}?dataset=town", headers=there.headers(token), json=bodies.get(path, asked)
        )
        assert reply.status_code == 401, (method, path, reply.text)
    assert number >= 16


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (InvalidToken("in any words"), 401, {"www-authenticate": "Bearer"}),
        (NotAllowed("the token is not valid"), 403, {}),
        (Busy("the kernel cannot be reached"), 503, {"retry-after": "1"}),
    ],
    ids=str,
)
def test_the_status_depends_on_the_error_class_and_not_on_its_message(
    error: DitherError, status: int, headers: dict[str, str]
) -> None:
    reply = error_response(error)
    names = ("www-authenticate", "retry-after")
    assert (
        reply.status_code == status
        and {name: reply.headers[name] for name in names if name in reply.headers} == headers
    )
    assert json.loads(reply.body)["error"]["code"] == error.code


def test_an_invalid_token_keeps_its_class_over_the_wire(there: Place) -> None:
    with pytest.raises(InvalidToken):
        there.remote.datasets("guess")
    for token in ("guess", ""):
        reply = there.http.get("/v1/datasets", headers={"authorization": f"Bearer {token}"} if token else {})
        assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_token"
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("error", "count"), [(KernelUnreachable("in any words"), 1), (Busy("cannot be reached"), 0)])
def test_only_an_unreachable_kernel_is_counted_as_such(
    there: Place, monkeypatch: pytest.MonkeyPatch, error: Busy, count: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    def unreachable() -> int:
        return int(there.get("/metrics", "aud").text.split()[-1])

    before = unreachable()
    monkeypatch.setattr(RemoteKernel, "exchange", fail)
    assert there.get("/v1/datasets").status_code == 503
    assert unreachable() == before + count


def test_rate_limits_hold_for_accounts_and_unknown_tokens(tmp_path: Path) -> None:
    settings = AppSettings(account_rate=Rate(0.001, 3), unknown_token_rate=Rate(0.001, 2))
    with place(tmp_path, settings=settings) as there:
        codes = [there.get("/v1/datasets").status_code for _ in range(5)]
        assert codes == [200, 200, 200, 200, 429]  # the first as a stranger, three as an account
        reply = there.get("/v1/datasets", "guess")
        assert reply.status_code == 401
        assert there.get("/v1/datasets", "guess2").status_code == 429
        assert there.get("/v1/datasets").headers["retry-after"]


def test_a_gateway_without_limits_lets_tokens_be_guessed(tmp_path: Path) -> None:
    """The weakened build: an unlimited number of guessed tokens."""
    for stranger, codes in ((Rate(1, 5), {401, 429}), (Rate(10**9, 10**9), {401})):
        folder = tmp_path / str(len(codes))
        with place(folder, settings=AppSettings(unknown_token_rate=stranger, tick_ms=0)) as there:
            assert {there.get("/v1/datasets", f"guess{number}").status_code for number in range(30)} == codes


def test_quotes_wait_in_their_own_queue(tmp_path: Path) -> None:
    """Quotes take the kernel's time too, so their number is limited, in total and per account."""
    with place(tmp_path) as there:
        body = {"dataset": "town", "query": COUNT, "epsilon": 1}
        with ExitStack() as stack:
            for number in range(READ_LIMITS.running):
                stack.enter_context(there.server.read_queue.turn("town", f"somebody {number}"))
            mine = hashlib.sha256(b"ann").hexdigest()
            for _ in range(READ_LIMITS.per_account):
                there.server.read_queue._enter("town", mine)
            reply = there.post("/v1/quote", body)
            assert reply.status_code == 503 and "queries in progress" in reply.json()["error"]["message"]
            assert there.get("/v1/history?dataset=town").status_code == 503
            assert there.ask(COUNT, 1).status_code == 200  # answers have another line
        for _ in range(READ_LIMITS.per_account):
            there.server.read_queue._leave("town", mine)
        assert there.post("/v1/quote", body).status_code == 200


def test_a_quote_reports_the_queue_length(tmp_path: Path) -> None:
    """An account sees how many of its own requests wait, and not that others ask."""
    body = {"dataset": "town", "query": COUNT, "epsilon": 1}
    with place(tmp_path, limits=QueueLimits(running=1, waiting=9, per_account=9)) as there:
        turns = there.server.answer_queue
        assert there.post("/v1/quote", body).json()["waiting"] == 0
        with turns.turn("town", "somebody"):
            for waits in ("ann", "ann", "eve"):
                turns._enter("town", hashlib.sha256(waits.encode()).hexdigest())
            told = [there.post("/v1/quote", body, who).json()["waiting"] for who in ("ann", "bob")]
            typed = there.http.post("/v1/kernel/budget?dataset=town", headers=there.headers("ann"))
        assert told == [2, 0] and typed.headers["x-dither-waiting"] == "2"


def test_a_request_waits_in_the_queue_of_its_own_dataset(there: Place) -> None:
    """The dataset in a message's header selects the queue, so the plan in its body must be for the same dataset."""
    request = Request(
        "elsewhere", (Measurement(Count(Scan("people")), Calibrate("discrete_laplace", Pure(Fraction(1)))),)
    )
    for call in ("answer", "quote"):
        with pytest.raises(InvalidPlan, match="the same dataset"):
            there.remote.call(call, there.tokens["ann"], "town", encode(request))


def test_a_changed_description_takes_effect_at_once(tmp_path: Path) -> None:
    """After a change of the order of categories, the next answer has the new labels."""
    with place(tmp_path, epsilon=1000) as there:
        query = "SELECT city, SUM(CASE WHEN city = 'north' THEN 1 ELSE 0 END) AS n FROM people GROUP BY city"

        def north() -> str:
            rows = there.ask(query, 100).json()["rows"]
            return str(max(rows, key=lambda row: row["n"])["city"])

        assert north() == "north"
        path = tmp_path / "data" / "town.yml"
        path.write_text(path.read_text().replace("[north, south, east]", "[east, south, north]").replace('"1"', '"2"'))
        there.kernel.register(load(path))
        assert north() == "north"


def test_replies_leave_on_ticks() -> None:
    """Replies leave at whole multiples of a tick after the request arrived."""
    waits = [
        round(1000 * (passed + seconds_to_next_tick(passed, 100)))
        for passed in (0.001, 0.004, 0.015, 0.0999, 0.101, 0.25)
    ]
    assert waits == [100, 100, 100, 100, 200, 300] and seconds_to_next_tick(0.123, 0) == 0


def test_no_reply_comes_before_its_tick(tmp_path: Path) -> None:
    """Ticks also apply to refusals and to routes without a token."""
    with place(tmp_path, settings=AppSettings(tick_ms=150)) as there:
        for path, who in (("/health/live", ""), ("/v1/budget?dataset=town", "ann"), ("/v1/datasets", "guess")):
            began = time.monotonic()
            there.get(path, who)
            assert time.monotonic() - began >= 0.149


def test_bodies_are_limited(tmp_path: Path) -> None:
    with place(tmp_path, settings=AppSettings(max_body_bytes=1000)) as there:
        reply = there.http.post("/v1/answer", content=b"x" * 1001, headers=there.headers("ann"))
        assert reply.status_code == 413 and reply.json()["error"]["code"] == "invalid_parameter"


def test_the_page_loads_nothing_from_other_hosts(there: Place) -> None:
    for path in ("/", "/page.js", "/page.css"):
        reply = there.http.get(path)
        assert reply.status_code == 200 and "default-src 'none'" in reply.headers["content-security-policy"]
        outside = reply.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in outside and "https://" not in outside and "innerHTML" not in outside
        assert "<script>" not in outside and "style=" not in outside


def test_the_document_lists_every_route(there: Place) -> None:
    routes = {
        (route.path, method.lower()) for route in Gateway(there.remote).routes() for method in route.methods or ()
    }
    pages = {(path, "get") for path in gateway_module.PAGES}
    listed = {(path, method) for path, methods in openapi_document()["paths"].items() for method in methods}
    assert {each for each in routes if each[1] != "head"} == listed | pages


def test_a_dead_kernel_is_reported(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        assert there.get("/metrics").status_code == 403 and there.get("/metrics", "nobody").status_code == 401
        assert there.get("/metrics", "aud").status_code == there.get("/metrics", "cur").status_code == 200
        there.server.close()
        there.remote.close()
        (tmp_path / "k.sock").unlink()
        reply = there.get("/v1/datasets")
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "busy"
        assert "dither_kernel_unreachable_total 1" in there.get("/metrics", "aud").text


@pytest.fixture(scope="module")
def address(there: Place) -> Iterator[str]:
    """Run the gateway on its own port, and return its address."""
    settings = AppSettings(account_rate=Rate(1000, 10_000), unknown_token_rate=Rate(1000, 10_000), tick_ms=0)
    config = uvicorn.Config(application(there.remote, settings), port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def test_a_remote_session_is_a_session(there: Place, address: str) -> None:
    session = connect(address, token=there.tokens["ann"])
    answer = session.sql(COUNT, epsilon="1/7")
    assert len(answer) == 3 and session.sql(COUNT, epsilon="1/7").releases[0].cached
    assert session.quote(COUNT, epsilon=1).affordable and session.budget[0].spent[0] > 0
    assert session.history and session.statement.dataset == "town" and session.tables["people"]
    with pytest.raises(BudgetExceeded, match="nothing was read"):
        session.sql(COUNT, epsilon=999)
    with pytest.raises(NotAllowed):
        connect(address, token="dither_wrong")
    auditor = connect_http(address, there.tokens["aud"])
    assert auditor.ledger_rows("town", there.tokens["aud"])


@pytest.mark.parametrize(
    "url", ["http://dither.example.org", "ftp://localhost", "http://a:b@localhost", "http://localhost:x"]
)
def test_a_token_is_not_sent_in_the_clear(url: str) -> None:
    with pytest.raises(InvalidParameter):
        connect_http(url, "token")


def test_an_unreachable_gateway_is_reported() -> None:
    with pytest.raises(Busy, match="cannot be reached"):
        connect_http("http://127.0.0.1:9", "token").datasets("token")


ASKED = (COUNT, "SELECT AVG(age) AS a FROM people", "SELECT age, COUNT(*) FROM people GROUP BY age",
         "SELECT place, SUM(spent) FROM visits GROUP BY place", "SELECT MEDIAN(age) FROM people")  # fmt: skip
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["right", "wrong", "real"])
def test_the_document_holds_under_schemathesis(there: Place, address: str, tier: Tier, how: str) -> None:
    """Generated requests get documented responses: valid ones, invalid ones, and any options beside a real query."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    require(schemathesis, "schemathesis")
    from hypothesis import HealthCheck, Phase, given, seed
    from hypothesis import settings as bounded

    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    schemathesis.checks.load_all_checks()
    checks = [getattr(schemathesis.checks, name) for name in CHECKS]
    mode = schemathesis.GenerationMode.NEGATIVE if how == "wrong" else schemathesis.GenerationMode.POSITIVE
    headers, tried = there.headers("ann"), Counter[int]()
    for found in schema.get_all_operations():
        operation = found.ok()
        asks = operation.method == "post" and "kernel" not in operation.path
        if (how == "real" and not asks) or (how == "wrong" and not (asks or operation.path_parameters.items)):
            continue

        @seed(7)
        @bounded(
            max_examples=tier.pick(quick=2, test=15, deep=150), deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            if how == "real":
                number = sum(tried.values())
                query, loss = ASKED[number % len(ASKED)], {("epsilon", "within")[number % 2]: "1/100"}
                asked = {"queries": [query]} if "queries" in case.body else {"query": query}
                kept = {name: value for name, value in case.body.items() if name not in (*LOSSES, "unit")}
                case.body = {**kept, **loss, "dataset": "town", **asked}
            response = case.call(headers=headers)
            tried[response.status_code] += 1
            assert response.status_code < 500, (case, response.text)
            case.validate_response(response, checks=checks, headers=headers)

        check()
    print(f"schemathesis, {how}: {sum(tried.values())} requests with seed 7, answered with", dict(tried))
    assert sum(tried.values()) > 10 and (how != "real" or tried[200])
