"""The kernel behind a socket: typed plans in, releases out; the token of every message is checked by the kernel."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from dither.errors import Busy, DitherError, InvalidParameter, InvalidPlan, NotAllowed
from dither.serve.calls import CALLS
from dither.serve.frames import MOST_REQUEST, Closed, Message, receive, send
from dither.wire import Kernel
from dither.wire.codec import encode

MOST_CONNECTIONS = 128
PATIENCE = 30.0  # seconds that a message may take to arrive once it has begun


class KernelServer:
    """Answers one connection in one thread, up to a fixed number of them; more are told to come back."""

    def __init__(self, kernel: Kernel, listener: socket.socket, most: int = MOST_CONNECTIONS) -> None:
        self._kernel, self._listener = kernel, listener
        self._places = threading.BoundedSemaphore(most)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def serve_forever(self) -> None:
        """Accepts until closed."""
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except (OSError, ssl.SSLError):
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stops accepting, and hangs up on everyone; a charge already made stays made."""
        self._closing.set()
        for connection in [self._listener, *self._open]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _attend(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            with connection:
                self._talk(connection)
        except (Closed, OSError):
            return
        finally:
            with self._lock:
                self._open.discard(connection)

    def _talk(self, connection: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            send(connection, failure(Busy("the kernel is busy; nothing was charged; try again shortly")))
            return
        try:
            while not self._closing.is_set():
                connection.settimeout(None)
                message = receive(connection, MOST_REQUEST)
                connection.settimeout(PATIENCE)
                send(connection, self.respond(message))
        except InvalidPlan as problem:  # the stream is out of step after a malformed frame
            send(connection, failure(problem))
        finally:
            self._places.release()

    def respond(self, message: Message) -> Message:
        """The answer to one message: a result, or one of the errors that are safe to show."""
        call = CALLS.get(message.header.get("call", ""))
        if call is None:
            return failure(InvalidPlan(f"no such call; there are: {', '.join(CALLS)}"))
        try:
            token, dataset = message.header.get("token", ""), message.header.get("dataset", "")
            return Message({"ok": "yes"}, encode(call(self._kernel, token, dataset, message.body)))
        except DitherError as problem:
            return failure(problem)
        except Exception:
            return failure(DitherError("the kernel could not do this; its log has the detail"))


def failure(problem: DitherError) -> Message:
    """An error as it travels."""
    return Message({"error": problem.code, "message": str(problem)})


def unix_listener(path: str | Path) -> socket.socket:
    """A socket in the file system that only this user (and its group) can reach."""
    place = Path(path)
    if place.exists() and not place.is_socket():
        raise InvalidParameter(f"{place} is in the way: a socket was to be made there")
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        listener.bind(str(place))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def tls_listener(host: str, port: int, certificate: Path, key: Path, authority: Path) -> socket.socket:
    """A TCP socket that admits only clients with a certificate of `authority`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError):
        raise NotAllowed("the kernel's certificate, key or authority cannot be read") from None
    return context.wrap_socket(socket.create_server((host, port)), server_side=True)
