"""A client for a kernel behind a socket, with the same calls as a kernel in this process."""

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
from dither.serve.transport.errors import KernelUnreachable, remote_error
from dither.serve.transport.framing import (
    MOST_RESPONSE,
    ConnectionClosed,
    Message,
    head_text,
    parse_head,
    receive,
    send,
)
from dither.serve.transport.rpc import RpcKernel, decode_result
from dither.serve.transport.vectors import FORM

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 3600.0  # longest wait for a response


@dataclass(frozen=True)
class MutualTls:
    """The address of a kernel on another machine, and the files with which both sides authenticate."""

    host: str
    port: int
    certificate: Path
    key: Path
    authority: Path

    def connect(self) -> socket.socket:
        """Open a connection on which both sides are authenticated."""
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
    """A response: its body, the ledger's head, the number of waiting requests, and all of its header."""

    body: bytes
    head: LedgerHead | None
    waiting: int
    header: Mapping[str, str] = field(default_factory=dict)


class SeenHeads:
    """The latest ledger head seen so far; a kernel behind it refuses requests that name it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock, self._write_lock = path, threading.Lock(), threading.Lock()
        self._last = _read_head(path) if path is not None and path.exists() else None
        self._written = self._last

    @property
    def last(self) -> LedgerHead | None:
        """The latest head, or None before the first response."""
        return self._last

    def record(self, head: LedgerHead, replaced: LedgerHead | None = None) -> None:
        """Record a later head, also on disk; concurrent callers share one write.

        `replaced` is a head that a gap replaced: if it is the latest, `head` takes its place, even if its sequence is
        smaller.
        """
        with self._lock:
            if self._last is None or self._last == replaced or head.sequence > self._last.sequence:
                self._last = head
        with self._write_lock:
            latest = self._last
            if self._path is not None and self._written != latest:
                self._write(self._path, head_text(latest))
                self._written = latest

    def _write(self, path: Path, text: str) -> None:
        """Replace the file atomically and durably."""
        draft = path.with_suffix(".new")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


def _read_head(path: Path) -> LedgerHead:
    """Read the latest head from its file."""
    try:
        return parse_head(path.read_text().strip())
    except (InvalidPlan, ValueError):
        raise InvalidParameter(
            f"{path} is damaged: it must contain the latest ledger head seen. Compare the head that "
            "`dither curator status` prints with one you trust, then remove the file to start again"
        ) from None


@dataclass(frozen=True)
class RemoteKernel(RpcKernel):
    """A kernel behind a Unix socket (a path) or mutual TLS; connections are reused."""

    address: str | MutualTls
    heads: SeenHeads = field(default_factory=SeenHeads, repr=False)
    _last_reply: threading.local = field(default_factory=threading.local, repr=False)
    _idle: list[socket.socket] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """Make one call and return its result; raise the error that the kernel sent."""
        reply = self.exchange(name, token, dataset, body)
        return decode_result(name, reply.body, reply.header.get("form", ""))

    def exchange(self, name: str, token: str, dataset: str = "", body: bytes = b"", accept: str = FORM) -> Reply:
        """Make one call and return its encoded result; the kernel refuses if its ledger is behind the latest head."""
        header = {"call": name, "token": token, "dataset": dataset, "accept": accept}
        expected = self.heads.last
        if expected is not None:
            header["expect"] = head_text(expected)
        answer = self._send_and_receive(Message(header, body))
        head, error = parse_head(answer.header["head"]) if "head" in answer.header else None, answer.header.get("error")
        if head is not None and error != LedgerError.code:
            self.heads.record(head, expected if "gap" in answer.header else None)
        if error is not None:
            raise remote_error(error, answer.header.get("message", ""))
        waiting = answer.header.get("waiting")
        self._last_reply.waiting = int(waiting or "0")
        return Reply(answer.body, head, int(waiting or "0"), answer.header)

    def waiting(self) -> int:
        """Return how many of the account's own requests wait, as this thread's last reply said."""
        return int(getattr(self._last_reply, "waiting", 0))

    def _send_and_receive(self, message: Message) -> Message:
        """Send a message and receive its response."""
        connection = self._checkout()
        try:
            send(connection, message)
            answer = receive(connection, MOST_RESPONSE, idle_seconds=ANSWER_SECONDS)
        except (ConnectionClosed, OSError):
            connection.close()
            raise Busy(
                "the kernel closed the connection; ask again with the same request_id, which never charges twice"
            ) from None
        except BaseException:
            connection.close()
            raise
        self._check_in(connection)
        return answer

    def _checkout(self) -> socket.socket:
        """Return an open connection: an idle one, or a new one."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        try:
            return self._connect()
        except OSError:
            raise KernelUnreachable("the kernel cannot be reached; nothing was charged") from None

    def _connect(self) -> socket.socket:
        if isinstance(self.address, MutualTls):
            return self.address.connect()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(self.address)
        connection.settimeout(None)
        return connection

    def check_ready(self) -> None:
        """Raise if the kernel cannot be reached, cannot write its ledger, or has one behind the latest head."""
        self.exchange("ready", "")

    def _check_in(self, connection: socket.socket) -> None:
        """Keep an idle connection for the next call."""
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


def _is_open(connection: socket.socket) -> bool:
    """Return true if an idle connection is still usable: the peer has neither closed it nor sent anything."""
    try:
        connection.setblocking(False)
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        connection.setblocking(True)
        return True
    except OSError:
        return False
    return False
