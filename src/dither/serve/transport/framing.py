"""Length-prefixed messages between a gateway and a kernel: a JSON header, then a body of the wire's own JSON.

A message is a 4-byte big-endian length and a header (an object of short texts), then a 4-byte length and a body.
Nothing else is ever read from a socket: no pickles, no code, no SQL.
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


class Closed(Exception):
    """The other side hung up between or inside messages, or took too long over one."""


@dataclass(frozen=True)
class Message:
    """A header of short texts and a body of bytes."""

    header: dict[str, str]
    body: bytes = b""


def send(connection: socket.socket, message: Message) -> None:
    """Writes one message."""
    header = json.dumps(message.header, separators=(",", ":")).encode()
    connection.sendall(LENGTH.pack(len(header)) + header + LENGTH.pack(len(message.body)))
    connection.sendall(message.body)


def receive(connection: socket.socket, most: int, patience: float | None = None, idle: float | None = None) -> Message:
    """Reads one message of at most `most` bytes.

    It must begin within `idle` seconds, and once it has begun, all of it must come within `patience` seconds.
    """
    reader = _Reader(connection, patience, idle)
    header = _header(reader.exactly(reader.length(MOST_HEADER)))
    return Message(header, reader.exactly(reader.length(most)))


class _Reader:
    """One message being read: waits so long for its first byte, and for the rest until a deadline."""

    def __init__(self, connection: socket.socket, patience: float | None, idle: float | None) -> None:
        self._connection, self._patience = connection, patience
        self._deadline: float | None = None
        connection.settimeout(idle)

    def length(self, most: int) -> int:
        """A length, if it is allowed."""
        (length,) = LENGTH.unpack(self.exactly(LENGTH.size))
        if length > most:
            raise InvalidPlan(f"the message must be at most {most} bytes, got {length}")
        return int(length)

    def exactly(self, length: int) -> bytes:
        """So many bytes."""
        pieces, left = [], length
        while left:
            piece = self._piece(left)
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _piece(self, left: int) -> bytes:
        if self._deadline is not None:
            self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            piece = self._connection.recv(min(left, 1 << 20))
        except TimeoutError:
            raise Closed from None
        if not piece:
            raise Closed
        if self._deadline is None and self._patience is not None:
            self._deadline = time.monotonic() + self._patience
        return piece


def _header(data: bytes) -> dict[str, str]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise InvalidPlan("the header must be a JSON object of texts")
    return header


def head_text(head: LedgerHead) -> str:
    """An end of the ledger's chain as SEQUENCE:HASH."""
    return f"{head.sequence}:{head.hash}"


def head_of(text: str) -> LedgerHead:
    """The end of the chain that SEQUENCE:HASH stands for."""
    sequence, _, digest = text.partition(":")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and len(digest) == 64):
        raise InvalidPlan("an end of the ledger is written SEQUENCE:HASH")
    return LedgerHead(int(sequence), digest)
