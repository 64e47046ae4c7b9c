"""The kernel's own socket for its curator: datasets, accounts, the private log. The gateway cannot reach it.

Whoever may open the socket is the curator: it belongs to the user that runs the kernel, and the operating system says
who calls. Whatever changes something is a row of the ledger with that caller's number.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dither.errors import DitherError, InvalidParameter, InvalidPlan, NotFound
from dither.loss import ZCDP, Loss, Pure
from dither.privacy.kernel import LocalKernel
from dither.schema import load
from dither.serve.kernel.server import FrameServer, failure
from dither.serve.transport.errors import raise_remote
from dither.serve.transport.framing import MOST_RESPONSE, Closed, Message, head_of, head_text, receive, send
from dither.views.ledger import budget_data

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
PEER = struct.Struct("3i")
MOST_DAYS = 3650


def caller(connection: socket.socket) -> str:
    """Who is at the other end, as the operating system says."""
    if not hasattr(socket, "SO_PEERCRED"):
        return "uid ?"
    _, uid, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return f"uid {uid}"


class AdminService:
    """What a curator may do to a running kernel; each act under the name of whoever calls."""

    def __init__(self, kernel: LocalKernel, remembered: Path) -> None:
        self._kernel, self._remembered = kernel, remembered
        self.calls: dict[str, Callable[[dict[str, str], str], Any]] = {
            "status": self._status, "register": self._register, "accounts": self._accounts, "account": self._account,
            "revoke": self._revoke, "budget": self._budget, "log": self._log, "misses": self._misses,
            "unlock": self._unlock, "quicken": self._reset_latency, "corrections": self._corrections, "gap": self._gap,
        }  # fmt: skip

    def respond(self, message: Message, by: str) -> Message:
        """The answer to one message; a curator may see why something failed."""
        call = self.calls.get(message.header.get("call", ""))
        try:
            if call is None:
                raise InvalidPlan(f"no such call; there are: {', '.join(self.calls)}")
            return Message({"ok": "yes"}, json.dumps(call(message.header, by), default=str).encode())
        except DitherError as problem:
            return failure(problem)
        except Exception as problem:
            return failure(DitherError(f"this failed: {type(problem).__name__}: {problem}"))

    def _status(self, given: dict[str, str], by: str) -> Any:
        names = self._kernel.registered
        return {"head": head_text(self._kernel.ledger.head), "datasets": [self._state(name) for name in names]}

    def _state(self, name: str) -> dict[str, Any]:
        misses, since = self._kernel.ledger.misses(name)
        return {"name": name, "misses": len(misses), "misses_since_unlock": since, "locked": self._kernel.locked(name)}

    def _register(self, given: dict[str, str], by: str) -> Any:
        path = Path(_given(given, "path")).absolute()
        dataset = load(path)
        self._kernel.register(dataset)
        self._kernel.ledger.act(by, "register", dataset.name)
        known = [str(path), *(each for each in load_seen_heads(self._remembered) if each != str(path))]
        draft = self._remembered.with_suffix(".new")
        draft.write_text(json.dumps(known))
        draft.replace(self._remembered)
        return {"registered": dataset.name}

    def _accounts(self, given: dict[str, str], by: str) -> Any:
        last: dict[str, dict[str, Any]] = {}
        for row in self._kernel.ledger.rows():
            if row.kind == "account":
                body = json.loads(row.body)
                last[body["name"]] = {
                    "name": body["name"],
                    "role": body["role"],
                    "expires": body["expires"],
                    "active": body["token"] is not None,
                    "since": row.time,
                    "by": body["by"],
                }
        return sorted(last.values(), key=lambda each: str(each["name"]))

    def _account(self, given: dict[str, str], by: str) -> Any:
        name, days = _given(given, "name"), given.get("days", "")
        if not NAME.fullmatch(name):
            raise InvalidParameter("an account's name has 1 to 64 of A-Z a-z 0-9 _ . @ -")
        if days and not (days.isascii() and days.isdigit() and 1 <= int(days[:6]) <= MOST_DAYS):
            raise InvalidParameter(f"days must be a whole number from 1 to {MOST_DAYS}")
        token = self._kernel.ledger.add_account(name, _given(given, "role"), by, int(days) if days else None)
        return {"name": name, "token": token}

    def _revoke(self, given: dict[str, str], by: str) -> Any:
        self._kernel.ledger.revoke_account(_given(given, "name"), by)
        return {"revoked": given["name"]}

    def _budget(self, given: dict[str, str], by: str) -> Any:
        return budget_data(self._kernel.balances(_given(given, "dataset")))

    def _log(self, given: dict[str, str], by: str) -> Any:
        self._kernel.ledger.act(by, "read the private log")
        return {"events": list(self._kernel.log.events), "dropped": self._kernel.log.dropped}

    def _misses(self, given: dict[str, str], by: str) -> Any:
        self._known(given)
        notes, since = self._kernel.ledger.misses(given["dataset"])
        return {"misses": [{"time": note.time, "time_class": note.body} for note in notes], "since_unlock": since}

    def _unlock(self, given: dict[str, str], by: str) -> Any:
        self._known(given)
        self._kernel.unlock(given["dataset"])
        self._kernel.ledger.act(by, "unlock", given["dataset"])
        return {"unlocked": given["dataset"]}

    def _reset_latency(self, given: dict[str, str], by: str) -> Any:
        self._known(given)
        self._kernel.reset_latency(given["dataset"])
        self._kernel.ledger.act(by, "quicken", given["dataset"])
        return {"quickened": given["dataset"]}

    def _corrections(self, given: dict[str, str], by: str) -> Any:
        self._known(given)
        self._kernel.ledger.act(by, "read corrections", given["dataset"])
        return dict(self._kernel.corrections(given["dataset"]))

    def _gap(self, given: dict[str, str], by: str) -> Any:
        spent: Loss | None = None
        if "epsilon" in given:
            spent = Pure(given["epsilon"])  # type: ignore[arg-type]
        elif "rho" in given:
            spent = ZCDP(given["rho"])  # type: ignore[arg-type]
        elif given.get("everything") != "yes":
            raise InvalidParameter("say what may have been spent: epsilon, rho, or everything")
        self._kernel.ledger.mark_gap(head_of(_given(given, "head")), spent, by)
        return {"head": head_text(self._kernel.ledger.head)}

    def _known(self, given: dict[str, str]) -> None:
        if _given(given, "dataset") not in self._kernel.registered:
            raise NotFound(f"there is no such dataset; there are: {', '.join(self._kernel.registered) or 'none'}")


def _given(given: dict[str, str], name: str) -> str:
    if not given.get(name):
        raise InvalidParameter(f"{name} is missing")
    return given[name]


def load_seen_heads(place: Path) -> list[str]:
    """The descriptions that were registered while the kernel ran."""
    return [str(path) for path in json.loads(place.read_text())] if place.exists() else []


def admin_server(desk: AdminService, listener: socket.socket) -> FrameServer:
    """A desk behind its socket."""
    return FrameServer(listener, lambda message, connection: desk.respond(message, caller(connection)), most=8)


def call_admin(at: Path, call: str, /, **given: str) -> Any:
    """One call to a kernel's desk."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(at))
            send(connection, Message({"call": call, **given}))
            answer = receive(connection, MOST_RESPONSE)
        except (OSError, Closed):
            raise NotFound(f"no kernel answers at {at}; is it running, and are you its curator?") from None
    if "error" in answer.header:
        raise raise_remote(answer.header["error"], answer.header.get("message", ""))
    return json.loads(answer.body)
