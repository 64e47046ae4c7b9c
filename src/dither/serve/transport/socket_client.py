"""A kernel at the other end of a socket, with the same calls as one in this process."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dither.errors import Busy, InvalidParameter, InvalidPlan, LedgerError
from dither.privacy.protocol import LedgerHead
from dither.serve.transport.errors import raise_remote
from dither.serve.transport.framing import MOST_RESPONSE, Closed, Message, head_of, head_text, receive, send
from dither.serve.transport.rpc import RpcKernel, decode_result
from dither.serve.transport.vectors import FORM

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 3600.0  # a kernel that has said nothing by then never will


@dataclass(frozen=True)
class MutualTls:
    """What a gateway needs to reach a kernel on another machine: both sides show a certificate."""

    host: str
    port: int
    certificate: Path
    key: Path
    authority: Path

    def connect(self) -> socket.socket:
        """A connection on which both sides have shown who they are."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.key)
        connection = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        try:
            secured = context.wrap_socket(connection, server_hostname=self.host)
        except BaseException:
            connection.close()
            raise
        secured.settimeout(None)
        return secured


@dataclass(frozen=True)
class Reply:
    """The body of an answer, with what stands beside it: the ledger's end, how many wait, and what else was said."""

    body: bytes
    head: LedgerHead | None
    waiting: int
    about: Mapping[str, str] = field(default_factory=dict)


class SeenHeads:
    """The furthest end of the chain that was seen; a kernel that lies behind it is refused by itself."""

    def __init__(self, place: Path | None = None) -> None:
        self._place, self._lock, self._writing = place, threading.Lock(), threading.Lock()
        self._last = _remembered(place) if place is not None and place.exists() else None
        self._kept = self._last

    @property
    def last(self) -> LedgerHead | None:
        """That end, or None before the first answer."""
        return self._last

    def saw(self, head: LedgerHead, past: LedgerHead | None = None) -> None:
        """Remembers an end that lies further than the last, also on disk: those who wait for that share one write.

        `past` is an end that a gap gave up: where it is the last, `head` takes its place, also if it lies less far.
        """
        with self._lock:
            if self._last is None or self._last == past or head.sequence > self._last.sequence:
                self._last = head
        with self._writing:
            furthest = self._last
            if self._place is not None and self._kept != furthest:
                self._write(self._place, head_text(furthest))
                self._kept = furthest

    def _write(self, place: Path, text: str) -> None:
        """Replaces the file in one durable step."""
        draft = place.with_suffix(".new")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)


def _remembered(place: Path) -> LedgerHead:
    try:
        return head_of(place.read_text().strip())
    except (InvalidPlan, ValueError):
        raise InvalidParameter(
            f"{place} is damaged: it remembers the end of the ledger that was seen last. Compare the ledger's end "
            "(`dither curator status`) with what you know of it, and remove the file to begin anew"
        ) from None


@dataclass(frozen=True)
class RemoteKernel(RpcKernel):
    """Speaks to a kernel over a Unix socket (a path) or mutual TLS; connections are kept and used again."""

    address: str | MutualTls
    heads: SeenHeads = field(default_factory=SeenHeads, repr=False)
    waits: dict[str, int] = field(default_factory=dict, repr=False)  # how many wait for a dataset, as last heard
    _idle: list[socket.socket] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """One call and its result, or the error that the kernel gave."""
        reply = self.exchange(name, token, dataset, body)
        return decode_result(name, reply.body, reply.about.get("form", ""))

    def exchange(self, name: str, token: str, dataset: str = "", body: bytes = b"", accept: str = FORM) -> Reply:
        """One call and its result as bytes; the kernel must not lie behind the end that was seen last."""
        header = {"call": name, "token": token, "dataset": dataset, "accept": accept}
        expected = self.heads.last
        answer = self._talk(Message(header if expected is None else {**header, "expect": head_text(expected)}, body))
        head, error = head_of(answer.header["head"]) if "head" in answer.header else None, answer.header.get("error")
        if head is not None and error != LedgerError.code:
            self.heads.saw(head, expected if "gap" in answer.header else None)
        if error is not None:
            raise raise_remote(error, answer.header.get("message", ""))
        about = answer.header
        if "waiting" in about:
            self.waits[dataset] = int(about["waiting"])
        return Reply(answer.body, head, int(about.get("waiting", "0")), about)

    def _talk(self, message: Message) -> Message:
        connection = self._take()
        try:
            send(connection, message)
            answer = receive(connection, MOST_RESPONSE, idle=ANSWER_SECONDS)
        except (Closed, OSError):
            connection.close()
            raise Busy("the kernel hung up; ask again with the same request id: nothing is charged twice") from None
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return answer

    def _take(self) -> socket.socket:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if _alive(connection):
                    return connection
                connection.close()
        try:
            return self._connect()
        except OSError:
            raise Busy("the kernel cannot be reached; nothing was charged") from None

    def _connect(self) -> socket.socket:
        if isinstance(self.address, MutualTls):
            return self.address.connect()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(self.address)
        connection.settimeout(None)
        return connection

    def reachable(self) -> bool:
        """Whether the kernel takes connections."""
        try:
            self._give_back(self._take())
        except Busy:
            return False
        return True

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Lets go of the connections that are kept."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


def _alive(connection: socket.socket) -> bool:
    """Whether the other side is still there: a kept connection has nothing to read."""
    try:
        connection.setblocking(False)
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        connection.setblocking(True)
        return True
    except OSError:
        return False
    return False
