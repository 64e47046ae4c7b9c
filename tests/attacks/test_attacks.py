"""The list of attacks against the town and its neighbour: nothing is learned, and weakened builds are caught."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import sqlglot

from attacks.sites import COLUMNS, neighbours, target
from conftest import Tier
from dither.audit.attacks import ATTACKS, Attack, ServiceTarget, run
from dither.audit.attacks.api import format_findings
from dither.audit.attacks.fuzz import Fuzzer
from dither.audit.attacks.oracles import EXPRESSIONS, SHAPES, fill_template
from dither.errors import DitherError, InvalidPlan
from dither.plan import expressions as expr
from dither.plan.domains import as_number
from dither.plan.expressions import core
from dither.plan.sql.scope import Scope
from dither.post.query import parser as sql
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger import accounts, keys
from dither.privacy.ledger import ledger as chain
from dither.privacy.ledger import state as rules
from dither.privacy.receipted_read import ReceiptedRead
from dither.serve.gateway import app as gateway_app
from dither.serve.gateway import requests
from dither.serve.gateway.jobs import Jobs
from dither.serve.transport.framing import Message
from dither.views.answers import answer_data
from serve.servers import PEOPLE, SALARY, Place, place, town

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {attack.name: attack for attack in ATTACKS}
HEAVY = {"groups by values of the data", "a long list", "many commas", "a deep sum", "many columns", "the longest list",
         "as many columns as allowed"}  # fmt: skip


def attack_parameters() -> Iterator[Any]:
    """Yield every attack; the quick tier runs one in five oracles and all others."""
    for number, attack in enumerate(ATTACKS):
        oracle = attack.family in ("error oracles", "shape and order", "malformed") and number % 5
        later = oracle or attack.name in HEAVY
        yield pytest.param(attack, id=attack.name, marks=[pytest.mark.tier("test")] if later else [])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    with neighbours(tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture(scope="module")
def targets(pair: tuple[Place, Place]) -> list[ServiceTarget]:
    return [target(there) for there in pair]


@pytest.mark.parametrize("attack", attack_parameters())
def test_nothing_is_learned(attack: Attack, targets: list[ServiceTarget]) -> None:
    finding = attack.run(targets)
    assert not finding.learned, finding
    assert finding.requests > 0


def test_the_list_is_long_and_every_attack_says_what_must_not_be_learned() -> None:
    assert len(ATTACKS) >= 170 and len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(len(attack.secret) > 10 for attack in ATTACKS)


def documented_rows(heading: str) -> list[list[str]]:
    """Return the rows of a table of docs/security.md."""
    text = (ROOT / "docs" / "security.md").read_text()
    lines = text[text.index(heading) :].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(lambda each: each, lines)]


def test_the_page_on_security_counts_the_attacks() -> None:
    families = Counter(attack.family for attack in ATTACKS)
    assert {family: int(count) for family, count, _ in documented_rows("| family | attacks |")} == families
    assert f"That is {len(ATTACKS)} attacks" in (ROOT / "docs" / "security.md").read_text()


def test_the_page_on_security_names_weakened_builds_that_are_there() -> None:
    """Every row's test exists, and every family of attacks has at least one."""
    rows = documented_rows("| weakened build | found by |")
    tests = "".join(path.read_text() for room in ("attacks", "serve") for path in (ROOT / "tests" / room).rglob("*.py"))
    assert [name for _, _, name in rows if f"def {name.strip('`')}(" not in tests] == []
    assert {attack.family for attack in ATTACKS} <= {by for _, by, _ in rows}


def test_the_report_counts_families(targets: list[ServiceTarget]) -> None:
    findings = run(targets[:1], [BY_NAME["quotes"], BY_NAME["no token"]])
    assert "spending: 1 attacks" in format_findings(findings) and "LEARNED" not in format_findings(findings)


ALLOWED = {
    "division by zero", "division of zero by zero", "remainder by zero", "modulo function", "square root of a negative",
    "square root in a CASE", "logarithm of zero", "logarithm of a negative", "overflow of an exponential",
    "overflow of a power", "negative power of zero", "root of a negative", "overflow of a product",
    "cast to a small integer", "a product near the end of the range", "an absolute value near the end",
    "a quotient by very little", "a quotient by a CASE", "a root within a quotient within a logarithm",
    "a key inside an aggregate",
}  # fmt: skip


@pytest.mark.tier("test")
def test_oracles_are_not_only_refused(pair: tuple[Place, Place]) -> None:
    """Expressions of the language are answered by the engine on both sides, so these attacks do reach the data."""
    for name in sorted(ALLOWED):
        query = fill_template(f"SELECT {EXPRESSIONS[name]} FROM {{t}}", COLUMNS, SALARY)
        assert [there.ask(query, "1/1000").status_code for there in pair] == [200, 200], name
    for name in ("as deep as allowed", "the longest list", "as many columns as allowed"):
        assert pair[0].ask(fill_template(SHAPES[name](), COLUMNS, SALARY), "1/1000").status_code == 200, name


def test_oracles_quote_queries_as_the_service_documents(pair: tuple[Place, Place]) -> None:
    """A quote with a field that the service does not know would be refused, and so compare nothing."""
    replies: list[tuple[str, int]] = []
    site = target(pair[0])

    def send(method: str, path: str, *rest: Any) -> Any:
        reply = site.send(method, path, *rest)
        replies.append((path, reply.status))
        return reply

    assert not BY_NAME["division by zero"].run([replace(site, send=send)]).learned
    assert replies == [(path, 200) for path in ("/v1/quote", "/v1/explain", "/v1/answer")]


# --- Exact numbers anywhere ---


def test_no_exact_number_appears_anywhere(tmp_path: Path, caplog: Any) -> None:
    """No answer, error, header, metric or log line contains exact sums, a person's salary or paths."""
    caplog.set_level(logging.DEBUG)
    with place(tmp_path) as there:
        seen = [
            there.get(f"{path}?dataset=town", "aud" if path == "/v1/ledger" else "ann")
            for path in ("/v1/datasets", "/v1/statement", "/v1/history", "/v1/budget", "/v1/ledger", "/metrics")
        ]  # fmt: skip
        for query in ("SELECT COUNT(*) FROM visits", "SELECT SUM(salary) FROM people", "SELECT 1/0 FROM people"):
            body = {"dataset": "town", "query": query, "epsilon": "1/1000"}
            seen += [there.post(path, body) for path in ("/v1/quote", "/v1/explain", "/v1/answer")]
    exact = sum(SALARY if person == 7 else 20_000 + 100 * person for person in range(PEOPLE))
    text = "\n".join(reply.text + str(dict(reply.headers)) for reply in seen) + caplog.text
    for secret in (str(SALARY), str(exact), f"{exact:,}", "people.parquet", str(tmp_path)):
        assert secret not in text, secret


# --- Weakened builds: each attack must succeed against the weakness that it looks for ---


def weak(folder: Path, *names: str) -> dict[str, bool]:
    """Return which of the attacks succeed on a fresh pair."""
    with neighbours(folder) as made:
        # Another value than in the tests above, since statements that were built once are kept.
        sites = [replace(target(there), secret="55500") for there in made]
        return {name: BY_NAME[name].run(sites).learned for name in names}


def test_a_root_without_its_guards_is_an_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build takes the square root of any value and casts the result to an integer.

    The query then fails where that person's record is present, and only there.
    """

    def unguarded(self: expr.Function, scope: Scope) -> Any:
        child, target = (as_number(each.domain(scope), "SQRT") for each in (self.child, self))
        return expr.snap_to_lattice(self._call(expr.to_double(self.child.sql(scope), child.step)), target)

    query = f"SELECT SUM(CLAMP(SQRT(CASE WHEN salary = {SALARY} THEN -16 ELSE 16 END), 0, 9)) FROM people"
    with neighbours(tmp_path) as made:
        guarded = [there.ask(query, "1/1000").status_code for there in made]
        monkeypatch.setattr(expr.Function, "sql", unguarded)
        monkeypatch.setattr(core, "clamp_double", lambda value, *_: value)
        weakened = [there.ask(query, "1/1000", repeat=1).status_code for there in made]
        found = BY_NAME["square root in a CASE"].run([target(there) for there in made])
    assert guarded == [200, 200] and weakened == [500, 200] and found.learned


def test_groups_that_vanish_with_their_last_record_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: GROUP BY as databases do it, with a row only for groups that exist."""
    read, shown, exact = ReceiptedRead._read, answer_data, list[Any]()

    def seen(self: ReceiptedRead, name: str, measure: Any) -> Any:
        exact.append(read(self, name, measure))
        return exact[-1].copy()

    def present(answer: Any) -> dict[str, Any]:
        data = shown(answer)
        return {**data, "rows": [row for row, count in zip(data["rows"], exact[-1], strict=True) if count]}

    with neighbours(tmp_path) as made:
        monkeypatch.setattr(ReceiptedRead, "_read", seen)
        monkeypatch.setattr(gateway_app, "answer_data", present)
        assert BY_NAME["a group that may be missing"].run([target(there) for there in made]).learned


def test_a_parser_without_limits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: queries of any depth, until Python's stack overflows."""
    with place(tmp_path) as there:
        monkeypatch.setattr(sql, "parse_statement", lambda text: sqlglot.parse_one(text, dialect="duckdb"))
        assert BY_NAME["deep NOT"].run([target(there)]).learned


def test_tokens_that_are_not_hashed_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "hash_token", lambda token: token)
    assert weak(tmp_path, "tokens in the ledger") == {"tokens in the ledger": True}


@pytest.mark.parametrize(("name", "method"), [("another account's job", "find"), ("a reused job name", "submit")])
def test_jobs_that_are_anyones_are_found(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weakened builds: a job is looked up by its name alone, or is not tied to its query."""

    def by_name(self: Jobs, account: str, wanted: str) -> Any:
        owner = next((owner for owner, each in self._jobs if each == wanted), account)
        return find(self, owner, wanted)

    def any_question(self: Jobs, account: str, wanted: str, question: str, *rest: Any) -> Any:
        return submit(self, account, wanted, "", *rest)

    find, submit = Jobs.find, Jobs.submit
    monkeypatch.setattr(Jobs, method, by_name if method == "find" else any_question)
    with place(tmp_path) as there:
        assert BY_NAME[name].run([target(there)]).learned


def test_request_ids_that_are_anyones_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weakened build: a request id is shared by all accounts."""
    original = keys.key

    def of_everyone(*parts: Any) -> str:
        return original(*(("request", "everyone", *parts[2:]) if parts[0] == "request" else parts))

    monkeypatch.setattr(rules, "key", of_everyone)
    monkeypatch.setattr(chain, "key", of_everyone)
    with place(tmp_path) as there:
        assert BY_NAME["another account's request id"].run([target(there)]).learned


def test_a_kernel_that_shows_the_cause_of_an_error_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lomas's free endpoint showed the exception's text."""

    def telling(self: LocalKernel, *given: Any) -> Any:
        raise InvalidPlan("Conversion Error: could not convert 'Mrs. Stanton'")

    with place(tmp_path) as there:
        monkeypatch.setattr(LocalKernel, "_cost_request", telling)
        assert BY_NAME["division by zero"].run([target(there)]).learned


def test_a_gateway_that_fails_loudly_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as there:
        monkeypatch.setattr(requests, "_object", lambda body, known: json.loads(body))
        assert BY_NAME["a body: not JSON"].run([target(there)]).learned


def test_a_kernel_that_believes_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as there:
        monkeypatch.setattr(there.kernel, "_trusted", True)
        assert BY_NAME["an account's name"].run([target(there)]).learned


def test_a_ledger_that_forgets_questions_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the recorded answer, a replay would draw fresh noise."""
    drawn = iter(range(10**6))

    def fresh(self: LocalKernel, outcome: Any, cached: bool) -> Any:
        release = original(self, outcome, cached)
        parts = tuple(part.__class__(**{**vars(part), "values": (next(drawn),)}) for part in release.parts)
        return release.__class__(**{**vars(release), "parts": parts})

    with place(tmp_path) as there:
        original = LocalKernel._decode_recorded
        monkeypatch.setattr(LocalKernel, "_decode_recorded", fresh)
        assert BY_NAME["a replayed request"].run([target(there)]).learned


def test_a_missing_policy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as there:
        monkeypatch.setitem(
            __import__("dither.serve.gateway.replies", fromlist=["HEADERS"]).HEADERS, "content-security-policy", ""
        )
        assert BY_NAME["security headers"].run([target(there)]).learned


# --- The plan fuzzer, at the kernel's socket handler ---

SEEDS = (
    ("SELECT city, COUNT(*) FROM people GROUP BY city", {}),
    ("SELECT AVG(salary) FROM people WHERE age > 30", {}),
    ("SELECT SUM(CLAMP(1 / (salary - 91000), -1, 1)) FROM people", {}),
    ("SELECT place, SUM(spent) FROM visits GROUP BY place", {"max_contributions": 3}),
    ("SELECT COUNT(DISTINCT id) FROM visits WHERE place IN ('bar', 'shop')", {}),
    ("SELECT MEDIAN(age) FROM people", {}),
    ("SELECT city, AVG(spent) FROM visits JOIN people USING (id) GROUP BY city", {"max_contributions": 2}),
    ("SELECT SUM(CASE WHEN ill THEN SQRT(age) ELSE LN(salary + 1) END) FROM people", {}),
)


RICH: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/answer", {"query": "SELECT age, COUNT(*) FROM people GROUP BY age", "rho": 20, "delta": "1/100000"}),
    (
        "/v1/batch",
        {"queries": ["SELECT COUNT(*) FROM people", "SELECT city, COUNT(*) FROM people GROUP BY city"], "rho": "1/10"},
    ),
    ("/v1/split", {"query": "SELECT SUM(spent) FROM visits", "threshold": 2, "rho": "1/10"}),
    ("/v1/answer", {"query": "SELECT MAX(age), QUANTILE(salary, 0.9) FROM people", "rho": 1}),
    ("/v1/answer", {"query": "SELECT VARIANCE(spent) FROM visits", "epsilon": 1}),
    (
        "/v1/answer",
        {"query": "SELECT COUNT(*) FROM (SELECT DISTINCT id, place FROM visits)", "rho": 1, "max_contributions": 3},
    ),
    ("/v1/answer", {"query": "SELECT AVG(n) FROM (SELECT id, COUNT(*) AS n FROM visits GROUP BY id) q", "rho": 1}),
    (
        "/v1/answer",
        {
            "query": "SELECT COUNT(*) FROM (SELECT id FROM people UNION ALL SELECT id FROM visits) u",
            "rho": 1,
            "max_contributions": 4,
        },
    ),
    (
        "/v1/answer",
        {
            "query": "SELECT place, SUM(spent) FROM visits GROUP BY place",
            "rho": 1,
            "max_contributions": {"max_groups": 2, "max_rows_per_group": 1},
        },
    ),
)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield the town with a zCDP budget that has a delta, for all kinds of plans."""
    folder = tmp_path_factory.mktemp("rich")
    path = town(folder / "data")
    path.write_text(path.read_text().replace("kind: pure, epsilon: 10", "kind: zcdp, rho: 1000, delta: 1/10"))
    with place(folder, described=path) as made:
        yield made


def seeds(there: Place, asked: Sequence[tuple[str, dict[str, Any]]] = ()) -> list[bytes]:
    """Return the requests that the gateway sends to the kernel for real queries."""
    simple = [("/v1/answer", {"query": query, "epsilon": "0.001", **more}) for query, more in SEEDS]
    heard: list[bytes] = []
    respond = there.server.respond

    def listening(message: Message) -> Message:
        if message.header["call"] == "answer":
            heard.append(message.body)
        return respond(message)

    there.server.respond = listening  # type: ignore[method-assign]
    for path, body in asked or simple:
        reply = there.post(path, {"dataset": "town", **body})
        assert reply.status_code == 200, (body, reply.text)
    there.server.respond = respond  # type: ignore[method-assign]
    return heard


@pytest.mark.tier("test")
@pytest.mark.parametrize("number", [20261115, 20261116])
def test_fuzzed_plans_are_answered_or_refused(pair: tuple[Place, Place], rich: Place, tier: Tier, number: int) -> None:
    """Never another error, never an engine failure, and nothing is charged without an answer."""
    there, asked = (pair[0], ()) if number % 2 else (rich, RICH)
    fuzzer = Fuzzer(seeds(there, asked), number)
    count = tier.pick(quick=100, test=500, deep=10_000)
    token, outcomes = there.tokens["ann"], dict[str, int]()
    for plan in fuzzer.plans(count):
        charges = there.charges() if len(outcomes) < 3 else None
        reply = there.server.respond(Message({"call": "answer", "token": token, "dataset": "town"}, plan))
        outcome = reply.header.get("error", "answered")
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        assert outcome not in ("error", "engine_failure", "ledger"), (outcome, reply.header, plan[:2000])
        if charges is not None and outcome != "answered":
            assert there.charges() == charges
    print(f"plan fuzzer: {count} plans with seed {number}:", outcomes)
    assert outcomes["answered"] >= count // 20 and sum(outcomes.values()) == count


def test_the_fuzzer_finds_a_planted_bug(pair: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that accepts one kind of invalid value fails on some plan."""
    there = pair[0]
    plans = list(Fuzzer(seeds(there), seed=1).plans(300))

    def careless(self: LocalKernel, house: Any, request: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(LocalKernel, "_cost_request", careless)
    header = {"call": "quote", "token": there.tokens["ann"], "dataset": "town"}
    codes = {there.server.respond(Message(header, plan)).header.get("error") for plan in plans}
    assert DitherError.code in codes


def test_a_wire_body_is_canonical(pair: tuple[Place, Place]) -> None:
    assert all(json.loads(seed)["version"] == 2 for seed in seeds(pair[0]))
