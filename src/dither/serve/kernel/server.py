"""The kernel behind a socket: typed plans in, releases out; the token of every message is checked by the kernel."""

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

from dither.errors import Busy, DitherError, InvalidParameter, InvalidPlan, NotAllowed
from dither.privacy.protocol import Kernel, LedgerHead
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.operations.logs import PRIVATE
from dither.serve.transport.framing import MOST_REQUEST, Closed, Message, head_of, head_text, receive, send
from dither.serve.transport.rpc import CALLS, written
from dither.serve.transport.vectors import FORM

MOST_CONNECTIONS = 256
LINES = ("answer", "quote", "history", "ledger", "statement")  # what takes the kernel a while, and waits in a line
READERS = QueueLimits(running=2, waiting=64, account=8)  # the line of those who do not read data
IDLE = 600.0  # seconds that a connection may be kept without a word
HANDSHAKE = 5.0
PATIENCE = 30.0  # seconds that a message may take to arrive once it has begun, or to be taken


class HeadSource(Protocol):
    """The end of the chain, which every response carries and every request may name."""

    head: LedgerHead

    def check_head(self, head: LedgerHead) -> bool:
        """Refuses if the chain does not continue that end; false if a gap gave it up."""


class FrameServer:
    """Answers one connection in one thread, up to a fixed number of them; more are told to come back."""

    def __init__(self, listener: socket.socket, respond: Callable[[Message, socket.socket], Message],
                 most: int = MOST_CONNECTIONS, patience: float = PATIENCE) -> None:  # fmt: skip
        self._listener, self._respond, self._patience = listener, respond, patience
        self._places, self._most_open = threading.BoundedSemaphore(most), 2 * most
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def serve_forever(self) -> None:
        """Accepts until closed."""
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.01)  # closed, or out of file descriptors for now
                continue
            if not self._admitted(connection):
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _admitted(self, connection: socket.socket) -> bool:
        """Whether a connection may be attended to: those who have yet to show who they are count too."""
        with self._lock:
            if len(self._open) >= self._most_open:
                return False
            self._open.add(connection)
            return True

    def close(self) -> None:
        """Stops accepting, and hangs up on everyone; a charge already made stays made."""
        self._closing.set()
        with self._lock:
            everything = [self._listener, *self._open]
        for connection in everything:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(min(HANDSHAKE, self._patience))
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                self._talk(connection)
        except (Closed, OSError):
            return
        finally:
            with self._lock:
                self._open.discard(connection)

    def _talk(self, connection: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            send(connection, failure(Busy("the kernel has too many connections; nothing was charged")))
            return
        try:
            while not self._closing.is_set():
                message = receive(connection, MOST_REQUEST, self._patience, IDLE)
                answer = self._respond(message, connection)
                connection.settimeout(self._patience)
                send(connection, answer)
        except InvalidPlan as problem:  # the stream is out of step after a malformed frame
            send(connection, failure(problem))
        finally:
            self._places.release()


@dataclass(frozen=True)
class ReaderLines:
    """Where callers wait, whichever door they came through: to be answered, and to be told something."""

    asking: FairQueue
    reading: FairQueue


class KernelServer(FrameServer):
    """A kernel's calls over a socket. With `books`, every answer carries the end of the ledger's chain."""

    def __init__(
        self,
        kernel: Kernel,
        listener: socket.socket,
        *,
        ledger: HeadSource | None = None,
        limits: QueueLimits | None = None,
        most: int = MOST_CONNECTIONS,
        patience: float = PATIENCE,
        whose: Callable[[str], str] = str,
        lines: ReaderLines | None = None,
        described: Callable[[], str] = str,
    ) -> None:
        super().__init__(listener, lambda message, _: self.respond(message), most, patience)
        self._kernel, self._ledger, self._whose, self._described = kernel, ledger, whose, described
        shared = lines or ReaderLines(FairQueue(limits), FairQueue(READERS))
        self.turns, self.readers = shared.asking, shared.reading

    def respond(self, message: Message) -> Message:
        """The answer to one message: a result, or one of the errors that are safe to show."""
        name = message.header.get("call", "")
        if name not in CALLS:
            return failure(InvalidPlan(f"no such call; there are: {', '.join(CALLS)}"))
        past: dict[str, str] = {}
        try:
            past = self._checked(message)
            body, form = written(self._done(name, message), message.header.get("accept") == FORM)
        except Busy as problem:
            return failure(problem, {**self._public(message), **past})
        except DitherError as problem:
            return failure(problem, {**self._end(), **past})
        except Exception:
            logging.getLogger(PRIVATE).exception("a call failed", extra={"event": {"call": name}})
            return failure(DitherError("the kernel could not do this; its log has the detail"))
        if name == "datasets":
            about = {"who": self._who(message.header.get("token", "")), "described": self._described()}
            return Message({"ok": "yes", **about, **self._end(), **past}, body)
        return Message({"ok": "yes", **({"form": form} if form else {}), **self._public(message), **past}, body)

    def _checked(self, message: Message) -> dict[str, str]:
        """Whether the chain continues the end that is expected; `gap` says that a gap gave that end up."""
        if self._ledger is None or "expect" not in message.header:
            return {}
        return {} if self._ledger.check_head(head_of(message.header["expect"])) else {"gap": "yes"}

    def _done(self, name: str, message: Message) -> Any:
        token, dataset = message.header.get("token", ""), message.header.get("dataset", "")
        if name not in LINES:
            return CALLS[name](self._kernel, token, dataset, message.body)
        # Only those who may ask can take a place in a line.
        if dataset not in self._kernel.datasets(token):
            raise NotAllowed("this account may not ask this dataset")
        turns = self.turns if name == "answer" else self.readers
        with turns.turn(dataset, self._who(token)):
            return CALLS[name](self._kernel, token, dataset, message.body)

    def _who(self, token: str) -> str:
        """What tells accounts apart, of whom one may have several tokens, without their names."""
        return hashlib.sha256(self._whose(token).encode()).hexdigest()

    def _public(self, message: Message) -> dict[str, str]:
        """What travels with an answer about a dataset: the end of the chain, and how many wait for that dataset."""
        return {"waiting": str(self.turns.waiting(message.header.get("dataset", ""))), **self._end()}

    def _end(self) -> dict[str, str]:
        """The end of the chain."""
        return {} if self._ledger is None else {"head": head_text(self._ledger.head)}


def failure(problem: DitherError, public: dict[str, str] | None = None) -> Message:
    """An error as it travels."""
    return Message({"error": problem.code, "message": str(problem)[:4000], **(public or {})})


def unix_listener(path: str | Path, group: str | None = None, mode: int = 0o660) -> socket.socket:
    """A socket in the file system that only this user (and, with `mode` 660, a group) can reach."""
    place = Path(path)
    if place.exists() and not place.is_socket():
        raise InvalidParameter(f"{place} is in the way: a socket was to be made there")
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(place))
        if group is not None:
            shutil.chown(place, group=int(group) if group.isdigit() else group)
    except (OSError, LookupError):
        raise InvalidParameter(f"no socket could be made at {place}; paths have at most 107 characters") from None
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def tls_listener(host: str, port: int, certificate: Path, key: Path, authority: Path) -> socket.socket:
    """A TCP socket that admits only clients with a certificate of `authority`; each shakes hands in its own thread."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError):
        raise NotAllowed("the kernel's certificate, key or authority cannot be read") from None
    listener = socket.create_server((host, port))
    return context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
