"""Limits on connections without a request in progress: their number, in total and per address, and their time.

A connection counts from the moment it is accepted, before any TLS handshake. When an address has too many, the oldest
that has had an answer is closed, or else the oldest of all, so that a client that sends its requests at once is served
whatever others hold open.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from dither.errors import InvalidParameter

HEAD_SECONDS = 5.0
MOST_IDLE, MOST_IDLE_PER_ADDRESS = 512, 64
BACKLOG, ACCEPTED_AT_ONCE = 1024, 16  # a request is read before its connection is old, also in a flood
Peer = tuple[Any, ...]  # address and port of the other end


class IdleConnections:
    """The connections without a request in progress, oldest first; `proxies` have no limit of their own."""

    def __init__(
        self, most: int = MOST_IDLE, per_address: int = MOST_IDLE_PER_ADDRESS, proxies: Collection[str] = ()
    ) -> None:
        self._most, self._per_address, self._proxies = most, per_address, frozenset(proxies)
        self._all: OrderedDict[Peer, socket.socket] = OrderedDict()
        self._by_address: dict[str, OrderedDict[Peer, socket.socket]] = {}
        self._answered: set[Peer] = set()

    def add(self, peer: Peer, connection: socket.socket, answered: bool = False) -> None:
        """Add a connection; close one of its address, or of all, if there are too many."""
        of_address = self._by_address.setdefault(peer[0], OrderedDict())
        self._all[peer] = of_address[peer] = connection
        if answered:
            self._answered.add(peer)
        if len(of_address) > self._per_address and peer[0] not in self._proxies:
            self._close(self._first_to_close(of_address))
        if len(self._all) > self._most:
            self._close(self._first_to_close(self._all))

    def _first_to_close(self, connections: OrderedDict[Peer, socket.socket]) -> Peer:
        """Return the oldest connection that has had an answer, or else the oldest: its request may be on the way."""
        return next((peer for peer in connections if peer in self._answered), next(iter(connections)))

    def remove(self, peer: Peer) -> socket.socket | None:
        """Remove a connection that has a request in progress, or is closed; return it if it was there."""
        of_address = self._by_address.get(peer[0], OrderedDict())
        of_address.pop(peer, None)
        self._answered.discard(peer)
        if not of_address:
            self._by_address.pop(peer[0], None)
        return self._all.pop(peer, None)

    def _close(self, peer: Peer) -> None:
        """Remove a connection and close it; its protocol sees the end of the stream."""
        connection = self.remove(peer)
        if connection is not None:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)


class CountingListener(socket.socket):
    """A listening socket that counts the connections that it accepts."""

    connections: IdleConnections

    def listen(self, backlog: int = 0, /) -> None:
        """Let the operating system queue BACKLOG connections, whatever number the event loop accepts at once."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and count it as idle."""
        connection, peer = super().accept()
        self.connections.add(peer, connection)
        return connection, peer


class TimeoutProtocol(H11Protocol):
    """Close a connection whose request line and headers take more than HEAD_SECONDS; tell which ones are idle."""

    idle_connections: ClassVar[IdleConnections]
    _timer: asyncio.TimerHandle | None = None
    _peer: Peer = ("", 0)
    _idle: socket.socket | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer of a new connection."""
        super().connection_made(transport)
        self._peer = tuple(transport.get_extra_info("peername") or ("", 0))
        self._timer = self.loop.call_later(HEAD_SECONDS, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Stop the timer once the headers are complete; start it when the next request begins."""
        before: Any = self.cycle
        super().data_received(data)
        after: Any = self.cycle
        if after is not before and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and (after is None or after.response_complete):
            self._timer = self.loop.call_later(HEAD_SECONDS, self._hang_up)
        if after is not None and not after.response_complete:
            self._idle = self.idle_connections.remove(self._peer) or self._idle

    def on_response_complete(self) -> None:
        """Count the connection as idle again."""
        super().on_response_complete()
        if self._idle is not None and not self.transport.is_closing():
            self.idle_connections.add(self._peer, self._idle, answered=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection, and forget it."""
        if self._timer is not None:
            self._timer.cancel()
        self.idle_connections.remove(self._peer)
        super().connection_lost(exc)

    def _hang_up(self) -> None:
        """Close the connection."""
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int, connections: IdleConnections) -> CountingListener:
    """Open the TCP socket that the gateway listens on."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        plain = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError:
        raise InvalidParameter(
            f"cannot listen on {host} port {port}; choose another --port, or stop the program that uses it"
        ) from None
    # Accepted connections inherit this; without it the second part of a reply waits 40 ms for an acknowledgement.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener = CountingListener(fileno=plain.detach())
    listener.connections = connections
    return listener
