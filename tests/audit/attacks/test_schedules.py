"""Audits of running services: repeated with a history, and of two instances whose data differ by one person."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attacks.sites import COLUMNS
from dither.audit.attacks import schedules
from dither.audit.attacks.counting import audit_noisy_counts
from dither.audit.attacks.model import ServiceReply, ServiceTarget
from dither.cli.audit import app
from dither.errors import DitherError, InvalidParameter
from dither.privacy.bits import SystemBits
from dither.privacy.noise import discrete_laplace
from serve.servers import Careless, Town, free_port, serving, town

WORDS = ("--misses", "1000", "--floor", "100", "--rate", "5000", "--burst", "50000")
TOKENS = {"TOKEN": "ann", "OTHER_TOKEN": "bob", "AUDITOR_TOKEN": "aud"}


# ---- noisy counts of neighbours ------------------------------------------------------------------------------------


def instance(people: int, scale: Fraction) -> ServiceTarget:
    """Return a service that answers every query with a noisy count."""

    def send(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServiceReply:
        noisy = people + int(discrete_laplace(scale, 1, SystemBits())[0])
        return ServiceReply(200, {}, json.dumps({"rows": [{"n": noisy}]}).encode())

    return ServiceTarget(send, {"analyst": "t"}, COLUMNS, "1/2")


def test_counts_with_too_little_noise_are_found() -> None:
    """A correct service is refuted with probability at most 1e-9."""
    right = audit_noisy_counts([instance(200, Fraction(2)), instance(199, Fraction(2))], 2000, seed=1)
    assert not right.learned and right.evidence == "" and right.family == "end to end"
    wrong = audit_noisy_counts([instance(200, Fraction(1, 4)), instance(199, Fraction(1, 4))], 2000, seed=1)
    assert wrong.learned and "REFUTED" in wrong.evidence and wrong.requests >= 1000


def test_a_service_that_does_not_answer_is_not_a_pass() -> None:
    silent = ServiceTarget(lambda *given: ServiceReply(503, {}, b"{}"), {"analyst": "t"}, COLUMNS, "1/2")
    with pytest.raises(DitherError, match="503"):
        audit_noisy_counts([silent, silent], 2000)
    with pytest.raises(InvalidParameter, match="neighbour"):
        raise (
            CliRunner().invoke(app, ["service", "http://127.0.0.1:1", "--samples", "1000"]).exception or AssertionError
        )


# ---- schedules -----------------------------------------------------------------------------------------------------


def entry(status: int, command: str = "zoo") -> schedules.ScheduleEntry:
    return schedules.ScheduleEntry("now", (command,), status, 0.1, "")


def test_a_regression_is_what_passed_before() -> None:
    kept = [entry(0), entry(1), entry(1), entry(0), entry(1, "exact"), entry(1)]
    words = [line.split()[1] for line in schedules.format_history(kept)]
    assert words == ["passed", "REGRESSION", "FOUND", "passed", "FOUND", "REGRESSION"]


def create_accounts(there: Town, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create accounts on an instance and put their tokens into the environment."""
    for word, who in TOKENS.items():
        monkeypatch.setenv(prefix + word, there.account(who, "auditor" if who == "aud" else "analyst"))


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ExitStack, str, str]]:
    """Yield what closes the first instance, and the URLs of both; the second lacks person 7."""
    with ExitStack() as both, ExitStack() as first:
        port = str(free_port())
        one = first.enter_context(serving(town(tmp_path / "a", 1000), tmp_path / "s", *WORDS, "--port", port))
        data = town(tmp_path / "b", 1000, without=7)
        two = both.enter_context(serving(data, tmp_path / "n", *WORDS))
        create_accounts(one, "DITHER_", monkeypatch)
        create_accounts(two, "DITHER_NEIGHBOUR_", monkeypatch)
        yield first, one.url, two.url


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.tier("test")
@pytest.mark.xdist_group("servers")
def test_a_schedule_against_live_services_notices_a_regression(live: Any, tmp_path: Path) -> None:
    """Two rounds on neighbouring instances pass; then a careless service answers at the same URL."""
    first, url, other = live
    history = tmp_path / "history.jsonl"
    audit = ["service", url, "--neighbour", other, "--family", "accounts"]
    schedule = ["schedule", "--every", "0.1s", "--history", str(history)]
    done = invoke(*schedule, "--times", "2", "--", *audit)
    assert done.exit_code == 0 and done.stdout.count("passed") == 2, done.stdout
    first.close()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = invoke(*schedule, "--times", "1", "--", *audit)
    finally:
        server.shutdown()
        server.server_close()
    assert done.exit_code == 1 and "REGRESSION" in done.stdout
    kept = schedules.read_history(history)
    assert [each.passed for each in kept] == [True, True, False] and "LEARNED by" in kept[2].output
    assert all("attacks in" in each.output for each in kept)
    assert "REGRESSION" in invoke("schedule", "--show", "--history", str(history)).stdout


@pytest.mark.tier("deep")
@pytest.mark.xdist_group("servers")
def test_noisy_counts_of_live_neighbours(live: Any) -> None:
    """False alarm 1e-9, by the audit's own alpha."""
    _, url, other = live
    words = ["--epsilon", "1/2", "--family", "accounts", "--samples", "1000", "--json"]
    done = invoke("service", url, "--neighbour", other, *words)
    assert done.exit_code == 0, done.output[-2000:]
    found = json.loads(done.stdout)[-1]
    assert found["family"] == "end to end" and not found["learned"] and found["requests"] >= 900
