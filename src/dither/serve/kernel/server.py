"""Serve a kernel over a socket: typed plans in, releases out. The kernel checks the token of every message."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dither.errors import Busy, DitherError, InvalidParameter, InvalidPlan, InvalidToken, NotAllowed
from dither.privacy.protocol import Kernel, LedgerHead
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.operations.logs import PRIVATE
from dither.serve.transport.framing import MOST_REQUEST, ConnectionClosed, Message, head_text, parse_head, receive, send
from dither.serve.transport.rpc import CALLS, Names, encode_result
from dither.serve.transport.vectors import FORM

MOST_CONNECTIONS = 256
QUEUED_CALLS = ("answer", "quote", "history", "ledger", "statement")  # calls that take time, and wait for a turn
READ_LIMITS = QueueLimits(running=2, waiting=64, per_account=8)  # limits of calls that read no data
IDLE_SECONDS = 600.0  # seconds that a connection may stay open without a message
HANDSHAKE_SECONDS = 5.0
MESSAGE_SECONDS = 30.0  # seconds for a message to arrive once it has begun, or to be sent


class HeadSource(Protocol):
    """A ledger whose head every response carries and every request may name."""

    head: LedgerHead

    def check_head(self, head: LedgerHead) -> bool:
        """Raise LedgerError if the ledger does not continue `head`; return false if a gap replaced that head."""

    def check_writable(self) -> None:
        """Raise LedgerError unless a charge could be recorded now."""


class FrameServer:
    """Serve each connection in its own thread, up to a fixed number; refuse more connections as busy."""

    def __init__(
        self,
        listener: socket.socket,
        respond: Callable[[Message, socket.socket], Message],
        max_connections: int = MOST_CONNECTIONS,
        message_seconds: float = MESSAGE_SECONDS,
    ) -> None:
        self._listener, self._respond, self._message_seconds = listener, respond, message_seconds
        self._slots, self._max_open = threading.BoundedSemaphore(max_connections), 2 * max_connections
        self._open: set[socket.socket] = set()
        self._unproven: dict[socket.socket, None] = {}  # connections before the end of their handshake, oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def serve_forever(self) -> None:
        """Accept connections until closed."""
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.01)  # closed, or out of file descriptors for now
                continue
            if not self._admit(connection):
                connection.close()
                continue
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> bool:
        """Return true if another connection may be open; it takes the place of one that delays its TLS handshake."""
        with self._lock:
            if len(self._open) >= self._max_open:
                oldest = next(iter(self._unproven), None)
                if oldest is None:
                    return False
                self._forget(oldest)
                with suppress(OSError):
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its own thread sees the end, and closes it
            self._open.add(connection)
            self._unproven[connection] = None
            return True

    def _forget(self, connection: socket.socket) -> None:
        """Stop counting a connection."""
        self._open.discard(connection)
        self._unproven.pop(connection, None)

    def close(self) -> None:
        """Stop accepting, and close all connections; charges made by then stand."""
        self._closing.set()
        with self._lock:
            sockets = [self._listener, *self._open]
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _serve_connection(self, connection: socket.socket) -> None:
        """Perform the TLS handshake if there is one, then serve the messages of a connection."""
        try:
            with connection:
                connection.settimeout(min(HANDSHAKE_SECONDS, self._message_seconds))
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                with self._lock:
                    self._unproven.pop(connection, None)
                self._serve_messages(connection)
        except (ConnectionClosed, OSError):
            return
        finally:
            with self._lock:
                self._forget(connection)

    def _serve_messages(self, connection: socket.socket) -> None:
        """Receive and answer messages until the connection or the server closes."""
        if not self._slots.acquire(blocking=False):
            send(
                connection,
                failure_message(Busy("the kernel has too many connections; try again later; nothing was charged")),
            )
            return
        try:
            while not self._closing.is_set():
                message = receive(connection, MOST_REQUEST, self._message_seconds, IDLE_SECONDS)
                answer = self._respond(message, connection)
                connection.settimeout(self._message_seconds)
                send(connection, answer)
        except InvalidPlan as error:  # the stream cannot be read further after a malformed frame
            send(connection, failure_message(error))
        finally:
            self._slots.release()


@dataclass(frozen=True)
class CallQueues:
    """The queues that all listeners of a kernel share: for answers, and for calls that read no data."""

    answers: FairQueue
    reads: FairQueue


class KernelServer(FrameServer):
    """Serve a kernel's calls over a socket; with `ledger`, every response carries the head of the ledger."""

    def __init__(
        self,
        kernel: Kernel,
        listener: socket.socket,
        *,
        ledger: HeadSource | None = None,
        limits: QueueLimits | None = None,
        max_connections: int = MOST_CONNECTIONS,
        message_seconds: float = MESSAGE_SECONDS,
        account_of: Callable[[str], str] = str,
        role_of: Callable[[str], str] = lambda token: "",
        queues: CallQueues | None = None,
        descriptions_hash: Callable[[], str] = str,
    ) -> None:
        super().__init__(listener, lambda message, _: self.respond(message), max_connections, message_seconds)
        self._kernel, self._ledger = kernel, ledger
        self._account_of, self._role_of, self._descriptions_hash = account_of, role_of, descriptions_hash
        shared = queues or CallQueues(FairQueue(limits), FairQueue(READ_LIMITS))
        self.answer_queue, self.read_queue = shared.answers, shared.reads

    def respond(self, message: Message) -> Message:
        """Answer one message with a result, or with an error that is safe to show."""
        name = message.header.get("call", "")
        if name not in (*CALLS, "ready"):
            return failure_message(InvalidPlan(f"unknown call; the calls are: {', '.join(CALLS)}"))
        gap: dict[str, str] = {}
        try:
            gap = self._check_head(message)
            body, form = encode_result(self._run(name, message), message.header.get("accept") == FORM)
            public = self._public_headers(message)
            if name == "datasets":
                token = message.header.get("token", "")
                public = {"who": self._account_hash(token), "role": self._role_of(token), **self._head_header()}
                public["described"] = self._descriptions_hash()
        except Busy as error:
            return failure_message(error, {**self._public_headers(message), **gap})
        except DitherError as error:
            return failure_message(error, {**self._head_header(), **gap})
        except Exception:
            logging.getLogger(PRIVATE).exception("call failed", extra={"event": {"call": name}})
            return failure_message(DitherError("the kernel failed to process this call; its private log has the cause"))
        return Message({"ok": "yes", **({"form": form} if form else {}), **public, **gap}, body)

    def _check_head(self, message: Message) -> dict[str, str]:
        """Check the head that the request expects; return the header `gap` if a gap replaced that head."""
        if self._ledger is None or "expect" not in message.header:
            return {}
        return {} if self._ledger.check_head(parse_head(message.header["expect"])) else {"gap": "yes"}

    def _run(self, name: str, message: Message) -> Any:
        """Run a call, in its queue if it takes time."""
        if name == "ready":  # the only call without a token
            if self._ledger is not None:
                self._ledger.check_writable()
            return Names(())
        token, dataset = message.header.get("token", ""), message.header.get("dataset", "")
        if name not in QUEUED_CALLS:
            return CALLS[name](self._kernel, token, dataset, message.body)
        # Only accounts with access to the dataset may take a place in its queue.
        if dataset not in self._kernel.datasets(token):
            raise NotAllowed("this account may not query this dataset; ask its curator for access")
        queue = self.answer_queue if name == "answer" else self.read_queue
        with queue.turn(dataset, self._account_hash(token)):
            return CALLS[name](self._kernel, token, dataset, message.body)

    def _account_hash(self, token: str) -> str:
        """Return a hash that identifies the token's account without its name."""
        return hashlib.sha256(self._account_of(token).encode()).hexdigest()

    def _public_headers(self, message: Message) -> dict[str, str]:
        """Return the headers of a response about a dataset: the ledger's head, and how many of its requests wait.

        The gateway keeps the head to itself, to notice a ledger that was rolled back.
        """
        try:
            account = self._account_hash(message.header.get("token", ""))
        except InvalidToken:  # no token, or one that was revoked during the call
            return self._head_header()
        waiting = self.answer_queue.waiting(message.header.get("dataset", ""), account)
        return {"waiting": str(waiting), **self._head_header()}

    def _head_header(self) -> dict[str, str]:
        """Return the header with the ledger's head."""
        return {} if self._ledger is None else {"head": head_text(self._ledger.head)}


def failure_message(error: DitherError, public: dict[str, str] | None = None) -> Message:
    """Return the message that carries an error."""
    return Message({"error": error.code, "message": str(error)[:4000], **(public or {})})


def unix_listener(path: str | Path, group: str | None = None, mode: int = 0o660) -> socket.socket:
    """Open a Unix socket that only this user can open and, with `mode` 660, a group."""
    socket_path = Path(path)
    if socket_path.exists() and not socket_path.is_socket():
        raise InvalidParameter(f"cannot create a socket at {socket_path}: another file has that name")
    socket_path.unlink(missing_ok=True)
    socket_path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(socket_path))
        if group is not None:
            shutil.chown(socket_path, group=int(group) if group.isdigit() else group)
    except (OSError, LookupError):
        raise InvalidParameter(
            f"cannot create a socket at {socket_path}; check permissions and group; paths have at most 107 characters"
        ) from None
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def tls_listener(host: str, port: int, certificate: Path, key: Path, authority: Path) -> socket.socket:
    """Open a TCP socket for clients with a certificate of `authority`; each connection's thread does its handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError):
        raise NotAllowed("cannot read the kernel's certificate, key or authority; check the three files") from None
    listener = socket.create_server((host, port))
    return context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
