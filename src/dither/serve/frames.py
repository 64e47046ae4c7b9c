"""Length-prefixed messages between a gateway and a kernel: a JSON header, then a body of the wire's own JSON.

A message is a 4-byte big-endian length and a header (an object of short texts), then a 4-byte length and a body.
Nothing else is ever read from a socket: no pickles, no code, no SQL.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass

from dither.errors import InvalidPlan

LENGTH = struct.Struct(">I")
MOST_HEADER = 1 << 14
MOST_REQUEST = 1 << 22
MOST_RESPONSE = 1 << 30


class Closed(Exception):
    """The other side hung up between or inside messages."""


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


def receive(connection: socket.socket, most: int) -> Message:
    """Reads one message whose body has at most `most` bytes."""
    header = _header(_exactly(connection, _length(connection, MOST_HEADER)))
    return Message(header, _exactly(connection, _length(connection, most)))


def _length(connection: socket.socket, most: int) -> int:
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > most:
        raise InvalidPlan(f"the message must be at most {most} bytes, got {length}")
    return int(length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    pieces, left = [], length
    while left:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            raise Closed
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _header(data: bytes) -> dict[str, str]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise InvalidPlan("the header must be a JSON object of texts")
    return header
