"""Test `dither serve`: two processes, a gateway without access to the data, and kills that lose no charge."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from conftest import require
from dither.audit.attacks import ATTACKS
from dither.connection import connect
from dither.privacy.ledger.maintenance import verify
from dither.serve.kernel.process import KernelSettings
from dither.serve.transport.socket_client import SeenHeads
from serve.servers import SEPARATE, Careless, Town, serving, town, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
COUNT = "SELECT city, COUNT(*) AS n FROM people GROUP BY city"
SECRET = "a-secret-that-must-not-travel"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("t")
    words = ("--misses", "1000", "--floor", "300", "--rate", "500", "--burst", "5000")
    with serving(town(folder / "data", 100), folder / "s", *words, DITHER_TEST_SECRET=SECRET) as made:
        made.account("ann")
        made.account("bob")
        made.account("aud", "auditor")
        yield made


def sockets_of(process: int) -> list[str]:
    """Return the open files of a process."""
    opened = []
    for place in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            opened.append(os.readlink(place))
    return opened


def test_the_gateway_has_no_access_to_the_data(there: Town) -> None:
    """Check arguments, environment, working directory, open files and loaded libraries of the running process."""
    connect(there.url, token=there.tokens["ann"]).sql(COUNT, epsilon=1)
    number = there.children()["gateway"]
    process = Path(f"/proc/{number}")
    data = str(there.state.parent / "data")
    words = process.joinpath("cmdline").read_bytes().decode()
    environment = process.joinpath("environ").read_bytes().decode()
    opened = "\n".join(sockets_of(number))
    maps = process.joinpath("maps").read_text()
    for text in (words, environment, opened, maps):
        assert data not in text and "parquet'" not in text and "ledger" not in text and "town.yml" not in text
    assert SECRET not in environment and "DITHER_LEDGER" not in environment
    assert SECRET in Path(f"/proc/{there.children()['kernel']}/environ").read_bytes().decode()  # it was there to leak
    assert "duckdb" not in maps and "psycopg" not in maps and "pyspark" not in maps
    assert os.readlink(process / "cwd") == str(there.state / "gateway")
    assert "private" not in words + opened


def test_the_gateway_holds_sockets_to_the_kernel_and_to_analysts_only(there: Town) -> None:
    import psutil

    gateway = psutil.Process(there.children()["gateway"])
    unix = {each.raddr or each.laddr for each in gateway.net_connections("unix") if each.raddr or each.laddr}
    assert unix <= {str(there.state / "kernel.sock"), ""}, unix
    for each in gateway.net_connections("inet"):
        assert each.laddr.ip == "127.0.0.1" and (not each.raddr or each.laddr.port == int(there.url.rpartition(":")[2]))


def test_the_gateway_needs_no_network_but_its_own(there: Town, tmp_path: Path) -> None:
    """In its own network namespace, with the kernel's Unix socket as the only way out, the gateway still answers."""
    require(os.geteuid() == 0, "network namespaces need root")
    works = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    require(works.returncode == 0, "this machine allows no network namespaces")
    script = """
import json, os, subprocess, sys, time, urllib.request
subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
child = subprocess.Popen([sys.executable, "-m", "dither", "gateway", "--kernel", sys.argv[1], "--state", sys.argv[2],
                          "--port", "8765"])
try:
    for _ in range(600):
        time.sleep(0.1)
        try:
            request = urllib.request.Request("http://127.0.0.1:8765/v1/datasets",
                                             headers={"authorization": "Bearer " + os.environ["T"]})
            print(urllib.request.urlopen(request).read().decode()); break
        except OSError: pass
    try:
        urllib.request.urlopen(os.environ["OUTSIDE"], timeout=2); print("REACHED")
    except OSError: print("sealed")
finally:
    child.terminate(); child.wait(20)
"""
    command = ["unshare", "-n", sys.executable, "-c", script, str(there.state / "kernel.sock"), str(tmp_path / "g")]
    environment = {**os.environ, "T": there.tokens["ann"], "OUTSIDE": f"{there.url}/health/live"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    require("Errno 99" not in result.stderr, "the namespace has no loopback")
    assert '"name":"town"' in result.stdout and "sealed" in result.stdout, result.stdout + result.stderr


def test_a_slow_client_is_disconnected(there: Town) -> None:
    """Connections with endless headers are closed; meanwhile others are served."""
    host, port = there.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    for each in slow:
        each.sendall(b"POST /v1/answer HTTP/1.1\r\nHost: x\r\nX-A: ")
    assert httpx.get(f"{there.url}/health/live").status_code == 200
    slow[0].settimeout(30)
    assert slow[0].recv(1000) == b""
    for each in slow:
        each.close()


def test_a_flood_is_refused_and_nothing_is_charged(there: Town) -> None:
    spent = connect(there.url, token=there.tokens["ann"]).budget[0].spent
    codes = []

    def strangers() -> None:
        with httpx.Client() as client:
            for number in range(200):
                headers = {"authorization": f"Bearer guess{number}"}
                codes.append(client.get(f"{there.url}/v1/datasets", headers=headers).status_code)

    threads = [threading.Thread(target=strangers) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) == {401, 429} and codes.count(401) < 600
    assert connect(there.url, token=there.tokens["ann"]).budget[0].spent == spent


def test_a_kill_in_the_middle_keeps_the_charge(there: Town) -> None:
    """After kill -9 of the kernel between charge and answer, the charge stands, and a retry is not charged again."""
    session = connect(there.url, token=there.tokens["ann"])
    before = session.budget[0].spent[0]
    query = "SELECT COUNT(*) FROM people WHERE age > 40"
    body = {"dataset": "town", "query": query, "epsilon": 1, "request_id": "killed"}
    headers = {"authorization": f"Bearer {there.tokens['ann']}"}
    seen: list[int] = []
    asked = f"{there.url}/v1/answer"
    asking = threading.Thread(
        target=lambda: seen.append(httpx.post(asked, json=body, headers=headers, timeout=60).status_code)
    )
    asking.start()
    number = there.children()["kernel"]
    charged = until(lambda: _spent(there) > before)
    os.kill(number, signal.SIGKILL)
    asking.join(60)
    assert charged and seen and seen[0] in (200, 503)
    until(lambda: there.desk("status")["datasets"], 90)
    assert _spent(there) == before + 10**15
    again = httpx.post(f"{there.url}/v1/answer", json=body, headers=headers, timeout=60)
    assert again.status_code == 200 and _spent(there) == before + 10**15


def _spent(there: Town) -> int:
    data = there.desk("budget", dataset="town")
    return round(float(data[0]["spent"]["epsilon"]) * 10**15) if data else 0


def test_the_gateway_is_restarted_and_remembers_the_head(there: Town) -> None:
    session = connect(there.url, token=there.tokens["ann"])
    session.sql("SELECT COUNT(*) FROM people WHERE age > 41", epsilon="1/100")
    head = (there.state / "gateway" / "head").read_text()
    old = there.children()["gateway"]
    os.kill(old, signal.SIGKILL)
    until(lambda: there.children().get("gateway") not in (None, old), 60)
    there.url = until(lambda: _fresh(there), 60)
    assert int((there.state / "gateway" / "head").read_text().split(":")[0]) >= int(head.split(":")[0])
    assert connect(there.url, token=there.tokens["ann"]).budget


def _fresh(there: Town) -> str | None:
    url = (there.state / "gateway" / "address").read_text()
    return url if httpx.get(f"{url}/health/ready").status_code == 200 else None


def test_the_attack_list_on_the_running_service(there: Town) -> None:
    """`dither audit service URL` runs every attack over HTTP and learns nothing."""
    tokens = {"DITHER_TOKEN": "ann", "DITHER_OTHER_TOKEN": "bob", "DITHER_AUDITOR_TOKEN": "aud"}
    environment = {**os.environ, **{name: there.tokens[who] for name, who in tokens.items()}}
    command = [sys.executable, "-m", "dither", "audit", "service", there.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    findings = json.loads(done.stdout)
    assert len(findings) == len(ATTACKS) and not any(finding["learned"] for finding in findings)
    assert sum(finding["requests"] for finding in findings) > 600


def test_the_attack_command_finds_a_weak_service(tmp_path: Path) -> None:
    """Against a server that gives everyone access, the command reports it and fails."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        command = [sys.executable, "-m", "dither", "audit", "service", url, "--family", "accounts"]
        environment = {**os.environ, "DITHER_TOKEN": "any"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 1 and "LEARNED by no token" in done.stdout and done.stderr == ""


def test_it_stops_cleanly_and_the_ledger_is_valid(tmp_path: Path) -> None:
    described, temporary = town(tmp_path / "data", 10, SEPARATE), tmp_path / "temporary"
    temporary.mkdir()
    with serving(described, tmp_path / "s", "--misses", "1000", TMPDIR=str(temporary)) as made:
        token = made.account("ann")
        connect(made.url, token=token).sql(COUNT, epsilon=1)
        assert list(temporary.iterdir())
        children = made.children()
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(40) == 0
    assert not any(Path(f"/proc/{number}").exists() for number in children.values())
    assert not list(temporary.iterdir())
    assert verify(tmp_path / "s" / "private" / "ledger.sqlite").sound
    assert not (tmp_path / "s" / "private" / "logs" / "private.jsonl").read_text()
    lines = (tmp_path / "s" / "private" / "logs" / "public.jsonl").read_text().splitlines()
    assert all("dither_" not in line and json.loads(line) for line in lines)


def test_children_end_with_their_supervisor(tmp_path: Path) -> None:
    with serving(town(tmp_path / "data"), tmp_path / "s") as made:
        children = made.children()
        made.process.kill()
        made.process.wait()
        until(lambda: not any(_alive(number) for number in children.values()), 30)


def _alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_sessions_and_servers_spend_from_one_ledger(tmp_path: Path) -> None:
    """Regression: a server started at 0.01 what a session in another process had spent 0.51 of."""
    path, anchor = town(tmp_path / "data", 100), tmp_path / "anchor"
    connect(path, account="ann").sql(COUNT, epsilon="1/2")
    with serving(path, tmp_path / "s", "--anchor", str(anchor)) as made:
        session = connect(made.url, token=made.account("ann"))
        assert session.budget[0].spent[0] == 51 * 10**13
        assert session.sql(COUNT, epsilon="1/2").releases[0].cached
        session.sql(COUNT, epsilon="1/4")
    assert connect(path, account="ann").budget[0].spent[0] == 76 * 10**13
    assert not (tmp_path / "s" / "private" / "ledger.sqlite").exists()
    ledger = path.with_suffix(".ledger")
    assert verify(ledger, seen_head=SeenHeads(anchor).last).sound


def test_a_new_server_notes_its_ledger_beside_the_description(tmp_path: Path) -> None:
    path = town(tmp_path / "data", 100)
    with serving(path, tmp_path / "s") as made:
        connect(made.url, token=made.account("ann")).sql(COUNT, epsilon="1/2")
        assert connect(path, account="ann").budget[0].spent[0] == 51 * 10**13
    kernel = KernelSettings((path,), tmp_path / "other")
    assert kernel.ledger_location([path]) == str(tmp_path / "s" / "private" / "ledger.sqlite")
