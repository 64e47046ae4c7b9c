"""Length-prefixed messages between a gateway and a kernel: a JSON header and a body.

A message is a 4-byte big-endian length and a header (a JSON object of strings), then a 4-byte length and a body in the
format of its call. Both sides parse nothing else from a socket: no pickles, no code, no SQL.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass

from dither.errors import InvalidPlan
from dither.privacy.protocol import LedgerHead

LENGTH = struct.Struct(">I")
MOST_HEADER = 1 << 14
MOST_REQUEST = 1 << 22
MOST_RESPONSE = 1 << 30


class ConnectionClosed(Exception):
    """The peer closed the connection between or inside messages, or sent a message too slowly."""


@dataclass(frozen=True)
class Message:
    """A header of short strings and a body of bytes."""

    header: dict[str, str]
    body: bytes = b""


def send(connection: socket.socket, message: Message) -> None:
    """Send one message."""
    header = json.dumps(message.header, separators=(",", ":")).encode()
    connection.sendall(LENGTH.pack(len(header)) + header + LENGTH.pack(len(message.body)))
    connection.sendall(message.body)


def receive(
    connection: socket.socket, max_bytes: int, message_seconds: float | None = None, idle_seconds: float | None = None
) -> Message:
    """Receive one message whose body has at most `max_bytes` bytes.

    It must begin within `idle_seconds`, and arrive completely within `message_seconds` of its first byte.
    """
    reader = _Reader(connection, message_seconds, idle_seconds)
    header = _parse_header(reader.read_bytes(reader.read_length(MOST_HEADER)))
    return Message(header, reader.read_bytes(reader.read_length(max_bytes)))


class _Reader:
    """Read one message: wait `idle_seconds` for its first byte, and for the rest until a deadline."""

    def __init__(self, connection: socket.socket, message_seconds: float | None, idle_seconds: float | None) -> None:
        self._connection, self._message_seconds = connection, message_seconds
        self._deadline: float | None = None
        connection.settimeout(idle_seconds)

    def read_length(self, max_bytes: int) -> int:
        """Read a length; raise InvalidPlan if it exceeds `max_bytes`."""
        (length,) = LENGTH.unpack(self.read_bytes(LENGTH.size))
        if length > max_bytes:
            raise InvalidPlan(f"the message must be at most {max_bytes} bytes, got {length}")
        return int(length)

    def read_bytes(self, length: int) -> bytes:
        """Read exactly `length` bytes."""
        pieces, remaining = [], length
        while remaining:
            piece = self._read_piece(remaining)
            pieces.append(piece)
            remaining -= len(piece)
        return b"".join(pieces)

    def _read_piece(self, remaining: int) -> bytes:
        """Receive up to `remaining` bytes before the deadline."""
        if self._deadline is not None:
            self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            piece = self._connection.recv(min(remaining, 1 << 20))
        except TimeoutError:
            raise ConnectionClosed from None
        if not piece:
            raise ConnectionClosed
        if self._deadline is None and self._message_seconds is not None:
            self._deadline = time.monotonic() + self._message_seconds
        return piece


def _parse_header(data: bytes) -> dict[str, str]:
    """Parse a header; raise InvalidPlan unless it is a JSON object of strings."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise InvalidPlan("the header must be a JSON object of strings")
    return header


def head_text(head: LedgerHead) -> str:
    """Format a ledger head as SEQUENCE:HASH."""
    return f"{head.sequence}:{head.hash}"


def parse_head(text: str) -> LedgerHead:
    """Parse a ledger head from SEQUENCE:HASH."""
    sequence, _, digest = text.partition(":")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and len(digest) == 64):
        raise InvalidPlan("a ledger head must have the form SEQUENCE:HASH, with a hash of 64 characters")
    return LedgerHead(int(sequence), digest)
