"""The gateway over a real kernel socket: every route, its limits, its document, and the session that speaks to it."""

from __future__ import annotations

import hashlib
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
from dither.errors import BudgetExceeded, Busy, InvalidParameter, InvalidPlan, NotAllowed
from dither.loss import Pure
from dither.plan.measures.sums import Count
from dither.plan.relations.scan import Scan
from dither.post.options import LOSSES
from dither.privacy.codec import encode
from dither.privacy.protocol import Calibrate, Measurement, Request
from dither.schema import load
from dither.serve.gateway import app as gateway_module
from dither.serve.gateway.app import ARROW, Gateway, Settings, application, to_next_tick
from dither.serve.gateway.openapi import CALLS as LISTED
from dither.serve.gateway.openapi import document
from dither.serve.gateway.rate_limits import Rate
from dither.serve.kernel.fair_queue import QueueLimits
from dither.serve.kernel.server import READERS
from dither.serve.transport.http_client import connect as connect_http
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


def test_a_quote_is_of_the_draw_that_is_asked(there: Place) -> None:
    """The named bug: /v1/quote took `draw`, and said of every draw what was true of the first."""
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


def test_rate_limits_hold_for_accounts_and_strangers(tmp_path: Path) -> None:
    settings = Settings(account=Rate(0.001, 3), stranger=Rate(0.001, 2))
    with place(tmp_path, settings=settings) as there:
        codes = [there.get("/v1/datasets").status_code for _ in range(5)]
        assert codes == [200, 200, 200, 200, 429]  # the first as a stranger, three as an account
        reply = there.get("/v1/datasets", "guess")
        assert reply.status_code == 401
        assert there.get("/v1/datasets", "guess2").status_code == 429
        assert there.get("/v1/datasets").headers["retry-after"]


def test_a_gateway_without_limits_lets_strangers_guess(tmp_path: Path) -> None:
    """The weakened build: as many guesses as anyone likes."""
    for stranger, codes in ((Rate(1, 5), {401, 429}), (Rate(10**9, 10**9), {401})):
        folder = tmp_path / str(len(codes))
        with place(folder, settings=Settings(stranger=stranger, tick=0)) as there:
            assert {there.get("/v1/datasets", f"guess{number}").status_code for number in range(30)} == codes


def test_whoever_quotes_waits_in_a_line_of_their_own(tmp_path: Path) -> None:
    """So many questions about prices at once, and no more of one account: they take the kernel's time too."""
    with place(tmp_path) as there:
        body = {"dataset": "town", "query": COUNT, "epsilon": 1}
        with ExitStack() as stack:
            for number in range(READERS.running):
                stack.enter_context(there.server.readers.turn("town", f"somebody {number}"))
            mine = hashlib.sha256(b"ann").hexdigest()
            for _ in range(READERS.account):
                there.server.readers._enter("town", mine)
            reply = there.post("/v1/quote", body)
            assert reply.status_code == 503 and "under way already" in reply.json()["error"]["message"]
            assert there.get("/v1/history?dataset=town").status_code == 503
            assert there.ask(COUNT, 1).status_code == 200  # answers have another line
        for _ in range(READERS.account):
            there.server.readers._leave("town", mine)
        assert there.post("/v1/quote", body).status_code == 200


def test_a_quote_says_how_many_wait(tmp_path: Path) -> None:
    """How long one will wait is public: how many are ahead, and how long each takes."""
    body = {"dataset": "town", "query": COUNT, "epsilon": 1}
    with place(tmp_path, limits=QueueLimits(running=1, waiting=9, account=9)) as there:
        turns = there.server.turns
        assert there.post("/v1/quote", body).json()["waiting"] == 0
        with turns.turn("town", "somebody"):
            for other in ("a", "b"):
                turns._enter("town", other)
            told = [there.post("/v1/quote", body, who).json()["waiting"] for who in ("ann", "bob")]
            typed = there.http.post("/v1/kernel/budget?dataset=town", headers=there.headers("ann"))
        assert told == [2, 2] and typed.headers["x-dither-waiting"] == "2"


def test_a_request_waits_in_the_line_of_its_own_dataset(there: Place) -> None:
    """The message's name of the dataset decides the line, so the plan inside must be for that one."""
    request = Request(
        "elsewhere", (Measurement(Count(Scan("people")), Calibrate("discrete_laplace", Pure(Fraction(1)))),)
    )
    for call in ("answer", "quote"):
        with pytest.raises(InvalidPlan, match="another dataset"):
            there.remote.call(call, there.tokens["ann"], "town", encode(request))


def test_a_description_that_changed_is_read_at_once(tmp_path: Path) -> None:
    """Categories in another order: the next answer, a moment later, has them under their new labels."""
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
    """Whole multiples of a tick after the request came, however long a small thing took."""
    waits = [
        round(1000 * (passed + to_next_tick(passed, 100))) for passed in (0.001, 0.004, 0.015, 0.0999, 0.101, 0.25)
    ]
    assert waits == [100, 100, 100, 100, 200, 300] and to_next_tick(0.123, 0) == 0


def test_no_reply_comes_before_its_tick(tmp_path: Path) -> None:
    """Also refusals, and what needs no token."""
    with place(tmp_path, settings=Settings(tick=150)) as there:
        for path, who in (("/health", ""), ("/v1/budget?dataset=town", "ann"), ("/v1/datasets", "guess")):
            began = time.monotonic()
            there.get(path, who)
            assert time.monotonic() - began >= 0.149


def test_bodies_are_limited(tmp_path: Path) -> None:
    with place(tmp_path, settings=Settings(body=1000)) as there:
        reply = there.http.post("/v1/answer", content=b"x" * 1001, headers=there.headers("ann"))
        assert reply.status_code == 413 and reply.json()["error"]["code"] == "invalid_parameter"


def test_the_page_needs_nothing_from_elsewhere(there: Place) -> None:
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
    listed = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert {each for each in routes if each[1] != "head"} == listed | pages
    assert set(LISTED) == set(gateway_module.CALLS)


def test_a_dead_kernel_is_said_to_be_so(tmp_path: Path) -> None:
    with place(tmp_path) as there:
        assert there.get("/health").json() == {"status": "ok", "kernel": True}
        there.server.close()
        there.remote.close()
        (tmp_path / "k.sock").unlink()
        assert there.get("/health").json()["kernel"] is False
        reply = there.get("/v1/datasets")
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "busy"
        assert "dither_kernel_unreachable_total 1" in there.get("/metrics").text


@pytest.fixture(scope="module")
def address(there: Place) -> Iterator[str]:
    """The gateway on a port of its own, for clients that need one."""
    settings = Settings(account=Rate(1000, 10_000), stranger=Rate(1000, 10_000), tick=0)
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


def test_a_gateway_that_is_not_there() -> None:
    with pytest.raises(Busy, match="cannot be reached"):
        connect_http("http://127.0.0.1:9", "token").datasets("token")


ASKED = (COUNT, "SELECT AVG(age) AS a FROM people", "SELECT age, COUNT(*) FROM people GROUP BY age",
         "SELECT place, SUM(spent) FROM visits GROUP BY place", "SELECT MEDIAN(age) FROM people")  # fmt: skip
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["right", "wrong", "real"])
def test_the_document_holds_under_schemathesis(there: Place, address: str, tier: Tier, how: str) -> None:
    """Generated requests get documented answers of the documented form: such as the document describes, such as it
    does not, and with any options that it allows beside a real question of a real dataset."""
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
