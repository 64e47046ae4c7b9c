"""Test that connections without a request do not keep others from being served."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from dither.serve.gateway.connections import IdleConnections
from serve.servers import Town, serving, town

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
MANY = 1030
SENT = {
    "nothing": b"",
    "half a head": b"POST /v1/answer HTTP/1.1\r\nHost: x\r\nX-A: ",
    "a request without its body": b"POST /v1/answer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    "a request, and no other": b"GET /page.css HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("t")
    with serving(town(folder / "data"), folder / "s") as made:
        made.account("ann")
        yield made


@contextmanager
def connections(url: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Open many connections of one address, and send the same on each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    host, port = url.removeprefix("http://").split(":")
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            made.append(socket.create_connection((host, int(port)), timeout=20))
            made[-1].sendall(sent)
        yield made
    finally:
        for each in made:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("sent", SENT)
def test_a_thousand_connections_of_one_address_do_not_stop_the_service(there: Town, sent: str) -> None:
    headers = {"authorization": f"Bearer {there.tokens['ann']}"}
    with connections(there.url, MANY, SENT[sent]):
        began = time.monotonic()
        codes = [httpx.get(f"{there.url}/v1/datasets", headers=headers, timeout=20).status_code for _ in range(5)]
        passed = time.monotonic() - began
    assert codes == [200] * 5 and passed < 5, (codes, passed)


def test_a_connection_that_has_had_its_answer_is_closed_before_one_whose_request_is_on_the_way() -> None:
    """The named bug: in a flood of answered connections, a new one was the oldest before its request had been read."""
    pairs = [socket.socketpair() for _ in range(4)]
    idle = IdleConnections(per_address=2)
    idle.add(("a", 0), pairs[0][0])
    for number in (1, 2, 3):
        idle.add(("a", number), pairs[number][0], answered=True)
    assert idle.remove(("a", 0)) is pairs[0][0] and idle.remove(("a", 3)) is pairs[3][0]
    assert idle.remove(("a", 1)) is idle.remove(("a", 2)) is None
    idle.add(("b", 0), pairs[0][0])
    idle.add(("b", 1), pairs[1][0])
    idle.add(("b", 2), pairs[2][0])
    assert idle.remove(("b", 0)) is None
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_connection_may_be_used_again_and_again(there: Town) -> None:
    """Idle connections below the limit stay open for the next request."""
    with httpx.Client(base_url=there.url) as client, connections(there.url, 20, b""):
        ports = set()
        for _ in range(5):
            with client.stream("GET", "/page.css") as reply:
                ports.add(reply.extensions["network_stream"].get_extra_info("client_addr"))
                assert reply.read() and reply.status_code == 200
        assert len(ports) == 1
