"""Test mutual TLS between gateway and kernel: both need a certificate of the one authority."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from dither.connection import connect
from dither.errors import Busy, NotAllowed
from dither.privacy.kernel import LocalKernel
from dither.schema import load
from dither.serve.gateway.app import application
from dither.serve.kernel.admin import call_admin
from dither.serve.kernel.server import KernelServer, tls_listener
from dither.serve.transport.framing import Message, receive, send
from dither.serve.transport.socket_client import MutualTls, RemoteKernel
from serve.certificates import Authority
from serve.servers import free_port, town, until

COUNT = "SELECT city, COUNT(*) AS n FROM people GROUP BY city"


@dataclass(frozen=True)
class Far:
    """A kernel that listens with TLS, and the settings of a gateway that reaches it."""

    kernel: LocalKernel
    mutual: MutualTls
    ours: Authority
    theirs: Authority
    token: str

    def asked(self, mutual: MutualTls) -> tuple[str, ...]:
        remote = RemoteKernel(mutual)
        try:
            return remote.datasets(self.token)
        finally:
            remote.close()


@contextmanager
def far(folder: Path) -> Iterator[Far]:
    ours, theirs = Authority.made(folder, "ours"), Authority.made(folder, "theirs")
    kernel = LocalKernel(load(town(folder / "data")), folder / "l.sqlite", trusted=False)
    listener = tls_listener("127.0.0.1", 0, *ours.sign("kernel", client=False), ours.path)
    server = KernelServer(kernel, listener, ledger=kernel.ledger, message_seconds=5)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = listener.getsockname()[1]
    mutual = MutualTls("127.0.0.1", port, *ours.sign("gateway", client=True), ours.path)
    yield Far(kernel, mutual, ours, theirs, kernel.ledger.add_account("ann", "analyst"))
    server.close()
    kernel.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    with far(tmp_path_factory.mktemp("tls")) as made:
        yield made


def test_a_gateway_with_a_valid_certificate_connects(there: Far) -> None:
    assert there.asked(there.mutual) == ("town",)


def test_a_gateway_queries_over_mutual_tls(there: Far) -> None:
    """Queries go through a whole gateway, which reuses its connection."""
    remote = RemoteKernel(there.mutual)
    with TestClient(application(remote), raise_server_exceptions=False) as http:
        headers = {"authorization": f"Bearer {there.token}"}
        for epsilon in ("1/3", "1/4"):
            reply = http.post("/v1/answer", json={"dataset": "town", "query": COUNT, "epsilon": epsilon},
                              headers=headers)  # fmt: skip
            assert reply.status_code == 200 and len(reply.json()["rows"]) == 3
        assert http.get("/health/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("who", ["of another authority", "expired", "not yet valid", "a server's"])
def test_a_wrong_certificate_is_refused(there: Far, who: str) -> None:
    """A kernel's own certificate is refused too: a stolen server certificate does not make a gateway."""
    made = {
        "of another authority": lambda: there.theirs.sign("thief", client=True),
        "expired": lambda: there.ours.sign("late", client=True, days=(-10, -1)),
        "not yet valid": lambda: there.ours.sign("early", client=True, days=(1, 9)),
        "a server's": lambda: there.ours.sign("server", client=False),
    }[who]()
    with pytest.raises(Busy):
        there.asked(replace(there.mutual, certificate=made[0], key=made[1]))


def hears(there: Far, context: ssl.SSLContext) -> bool:
    """Return true if a client with this TLS context gets a response of the kernel."""
    try:
        with socket.create_connection(("127.0.0.1", there.mutual.port), 10) as plain:
            connection = context.wrap_socket(plain, server_hostname="127.0.0.1")
            send(connection, Message({"call": "datasets", "token": there.token}))
            return bool(receive(connection, 1 << 20).header)
    except Exception:  # hung up on, in whichever way
        return False


def test_no_certificate_is_refused(there: Far) -> None:
    context = ssl.create_default_context(cafile=str(there.ours.path))
    assert not hears(there, context)
    context.load_cert_chain(there.mutual.certificate, there.mutual.key)
    assert hears(there, context)  # the certificate was what was missing


def test_old_protocols_and_plain_text_are_refused(there: Far) -> None:
    context = ssl.create_default_context(cafile=str(there.ours.path))
    context.load_cert_chain(there.mutual.certificate, there.mutual.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not hears(there, context)
    with socket.create_connection(("127.0.0.1", there.mutual.port), 10) as plain:
        said = b""
        try:
            send(plain, Message({"call": "datasets", "token": there.token}))
            while piece := plain.recv(1000):
                said += piece
        except OSError:  # hung up on
            pass
        assert b"town" not in said


@pytest.mark.parametrize("who", ["of another authority", "expired", "a client's"])
def test_a_gateway_refuses_a_wrong_kernel(there: Far, who: str, tmp_path: Path) -> None:
    """The gateway sends no token to a server without a valid certificate."""
    made = {
        "of another authority": lambda: there.theirs.sign("kernel", client=False),
        "expired": lambda: there.ours.sign("old", client=False, days=(-10, -1)),
        "a client's": lambda: there.ours.sign("guest", client=True),
    }[who]()
    listener = tls_listener("127.0.0.1", 0, *made, there.ours.path)
    heard: list[Message] = []

    class Listening(KernelServer):
        def respond(self, message: Message) -> Message:
            heard.append(message)
            return super().respond(message)

    server = Listening(there.kernel, listener, message_seconds=5)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(Busy):
        there.asked(replace(there.mutual, port=listener.getsockname()[1]))
    server.close()
    assert heard == []


def test_a_kernel_of_another_name_is_refused(there: Far) -> None:
    """The certificate is for localhost and 127.0.0.1; the same address under another name is refused."""
    assert there.asked(replace(there.mutual, host="localhost")) == ("town",)
    with pytest.raises(Busy):
        there.asked(replace(there.mutual, host="127.1"))


def test_connections_without_a_handshake_are_limited(tmp_path: Path) -> None:
    """Beyond twice the maximum, the oldest connection without a finished handshake is closed, and a gateway gets in."""
    authority = Authority.made(tmp_path, "ours")
    kernel = LocalKernel(load(town(tmp_path / "data")), tmp_path / "l.sqlite", trusted=False)
    listener = tls_listener("127.0.0.1", 0, *authority.sign("kernel", client=False), authority.path)
    server = KernelServer(kernel, listener, max_connections=2, message_seconds=30)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    silent = [socket.create_connection(listener.getsockname(), 10) for _ in range(8)]
    for each in silent[:4]:
        each.settimeout(10)
        assert each.recv(1) == b""
    gateway = MutualTls("127.0.0.1", listener.getsockname()[1], *authority.sign("g", client=True), authority.path)
    remote = RemoteKernel(gateway)
    assert remote.datasets(kernel.ledger.add_account("ann", "analyst")) == ("town",)
    remote.close()
    for each in silent:
        each.close()
    until(lambda: not server._open)
    server.close()
    kernel.close()


def test_invalid_tls_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="cannot read"):
        tls_listener("127.0.0.1", 0, tmp_path / "a", tmp_path / "b", tmp_path / "c")


@pytest.mark.tier("test")
@pytest.mark.xdist_group("servers")
def test_two_processes_communicate_over_mutual_tls(tmp_path: Path) -> None:
    """Run `dither kernel --listen` and `dither gateway --kernel tls://`, with an analyst over HTTPS."""
    ours, state, port = Authority.made(tmp_path, "ours"), tmp_path / "s", free_port()
    kernel_files, gateway_files = ours.sign("kernel", client=False), ours.sign("gateway", client=True)
    me = [sys.executable, "-m", "dither"]

    def files(made: tuple[Path, Path]) -> list[str]:
        return ["--certificate", str(made[0]), "--key", str(made[1]), "--authority", str(ours.path)]

    listen = ["--listen", f"127.0.0.1:{port}", *files(kernel_files)]
    site = ours.sign("site", client=False)
    https = ["--https-certificate", str(site[0]), "--https-key", str(site[1])]
    commands = [
        [*me, "kernel", str(town(tmp_path / "data")), "--state", str(state), *listen],
        [*me, "gateway", "--kernel", f"tls://localhost:{port}", "--state", str(tmp_path / "g"), "--port", "0",
         *files(gateway_files), *https],
    ]  # fmt: skip
    children = [subprocess.Popen(command) for command in commands]
    try:
        trusting = ssl.create_default_context(cafile=str(ours.path))
        token = until(lambda: call_admin(state / "private" / "admin.sock", "account", name="ann", role="analyst"))[
            "token"
        ]
        url = until(lambda: (tmp_path / "g" / "address").read_text())
        assert url.startswith("https://")
        until(lambda: httpx.get(f"{url}/health/ready", verify=trusting).status_code == 200)
        silent = [socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) for _ in range(600)]
        assert silent[0].recv(1) == b"", "before its handshake, too, a connection counts"
        reply = httpx.post(f"{url}/v1/answer", json={"dataset": "town", "query": COUNT, "epsilon": 1},
                           headers={"authorization": f"Bearer {token}"}, verify=trusting, timeout=60)  # fmt: skip
        assert reply.status_code == 200 and len(reply.json()["rows"]) == 3
        assert "max-age" in reply.headers["strict-transport-security"]
        for each in silent:
            each.close()
        with pytest.raises(Exception, match="this machine does not trust"):
            connect(url, token=token)
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(40)
