"""The curator's admin socket: datasets, accounts and the private log. The gateway cannot open it.

The socket belongs to the user that runs the kernel, and every user who may open it acts as curator. The ledger records
each change with the caller's user id, as reported by the operating system.
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
from dither.privacy.ledger.location import find_ledger, note_ledger
from dither.schema import load
from dither.serve.kernel.server import FrameServer, failure_message
from dither.serve.transport.errors import remote_error
from dither.serve.transport.framing import (
    MOST_RESPONSE,
    ConnectionClosed,
    Message,
    head_text,
    parse_head,
    receive,
    send,
)
from dither.views.ledger import budget_data

ACCOUNT_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
PEER_CREDENTIALS = struct.Struct("3i")  # process id, user id and group id of the other end of a Unix socket
MOST_DAYS = 3650


def caller_name(connection: socket.socket) -> str:
    """Return the user id of the connected process, as reported by the operating system."""
    if not hasattr(socket, "SO_PEERCRED"):
        return "uid ?"
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    _, uid, _ = PEER_CREDENTIALS.unpack(credentials)
    return f"uid {uid}"


class AdminService:
    """The calls of a curator to a running kernel; the ledger records changes and reads of private facts."""

    def __init__(self, kernel: LocalKernel, paths_file: Path) -> None:
        self._kernel, self._paths_file = kernel, paths_file
        self.calls: dict[str, Callable[[dict[str, str], str], Any]] = {
            "status": self._status, "register": self._register, "accounts": self._accounts, "account": self._account,
            "revoke": self._revoke, "budget": self._budget, "log": self._log, "misses": self._misses,
            "unlock": self._unlock, "reset_latency": self._reset_latency, "corrections": self._corrections,
            "gap": self._gap,
        }  # fmt: skip

    def respond(self, message: Message, by: str) -> Message:
        """Answer one message; unlike analysts, a curator sees the cause of an internal error."""
        call = self.calls.get(message.header.get("call", ""))
        try:
            if call is None:
                raise InvalidPlan(f"unknown call; the calls are: {', '.join(self.calls)}")
            return Message({"ok": "yes"}, json.dumps(call(message.header, by), default=str).encode())
        except DitherError as error:
            return failure_message(error)
        except Exception as error:
            return failure_message(DitherError(f"the call failed: {type(error).__name__}: {error}"))

    def _status(self, arguments: dict[str, str], by: str) -> Any:
        names = self._kernel.registered
        return {"head": head_text(self._kernel.ledger.head), "datasets": [self._dataset_status(name) for name in names]}

    def _dataset_status(self, name: str) -> dict[str, Any]:
        misses, since = self._kernel.ledger.misses(name)
        return {"name": name, "misses": len(misses), "misses_since_unlock": since, "locked": self._kernel.locked(name)}

    def _register(self, arguments: dict[str, str], by: str) -> Any:
        path = Path(_argument(arguments, "path")).absolute()
        dataset, ledger = load(path), self._kernel.ledger
        find_ledger([path], path, ledger.place)
        self._kernel.register(dataset)
        note_ledger([path], ledger.place, ledger.identity)
        self._kernel.ledger.record_act(by, "register", dataset.name)
        earlier = load_registered_paths(self._paths_file)
        draft = self._paths_file.with_suffix(".new")
        draft.write_text(json.dumps([str(path), *(each for each in earlier if each != str(path))]))
        draft.replace(self._paths_file)
        return {"registered": dataset.name}

    def _accounts(self, arguments: dict[str, str], by: str) -> Any:
        accounts: dict[str, dict[str, Any]] = {}
        for row in self._kernel.ledger.rows():
            if row.kind == "account":
                body = json.loads(row.body)
                accounts[body["name"]] = {
                    "name": body["name"],
                    "role": body["role"],
                    "expires": body["expires"],
                    "active": body["token"] is not None,
                    "since": row.time,
                    "by": body["by"],
                }
        return sorted(accounts.values(), key=lambda each: str(each["name"]))

    def _account(self, arguments: dict[str, str], by: str) -> Any:
        name, days = _argument(arguments, "name"), arguments.get("days", "")
        if not ACCOUNT_NAME.fullmatch(name):
            raise InvalidParameter("an account's name must have 1 to 64 characters out of A-Z a-z 0-9 _ . @ -")
        if days and not (days.isascii() and days.isdigit() and 1 <= int(days[:6]) <= MOST_DAYS):
            raise InvalidParameter(f"days must be a whole number from 1 to {MOST_DAYS}")
        token = self._kernel.ledger.add_account(name, _argument(arguments, "role"), by, int(days) if days else None)
        return {"name": name, "token": token if arguments.get("sso") != "yes" else None}  # nobody learns it

    def _revoke(self, arguments: dict[str, str], by: str) -> Any:
        self._kernel.ledger.revoke_account(_argument(arguments, "name"), by)
        return {"revoked": arguments["name"]}

    def _budget(self, arguments: dict[str, str], by: str) -> Any:
        return budget_data(self._kernel.balances(_argument(arguments, "dataset")))

    def _log(self, arguments: dict[str, str], by: str) -> Any:
        self._kernel.ledger.record_act(by, "read the private log")
        return {"events": list(self._kernel.log.events), "dropped": self._kernel.log.dropped}

    def _misses(self, arguments: dict[str, str], by: str) -> Any:
        self._check_dataset(arguments)
        notes, since = self._kernel.ledger.misses(arguments["dataset"])
        return {"misses": [{"time": note.time, "time_class": note.body} for note in notes], "since_unlock": since}

    def _unlock(self, arguments: dict[str, str], by: str) -> Any:
        self._check_dataset(arguments)
        self._kernel.unlock(arguments["dataset"])
        self._kernel.ledger.record_act(by, "unlock", arguments["dataset"])
        return {"unlocked": arguments["dataset"]}

    def _reset_latency(self, arguments: dict[str, str], by: str) -> Any:
        self._check_dataset(arguments)
        self._kernel.reset_latency(arguments["dataset"])
        self._kernel.ledger.record_act(by, "reset latency", arguments["dataset"])
        return {"reset_latency": arguments["dataset"]}

    def _corrections(self, arguments: dict[str, str], by: str) -> Any:
        self._check_dataset(arguments)
        self._kernel.ledger.record_act(by, "read corrections", arguments["dataset"])
        return dict(self._kernel.corrections(arguments["dataset"]))

    def _gap(self, arguments: dict[str, str], by: str) -> Any:
        spent: Loss | None = None
        if "epsilon" in arguments:
            spent = Pure(arguments["epsilon"])  # type: ignore[arg-type]
        elif "rho" in arguments:
            spent = ZCDP(arguments["rho"])  # type: ignore[arg-type]
        elif arguments.get("everything") != "yes":
            raise InvalidParameter("give the largest loss that may have been spent: epsilon, rho, or everything=yes")
        self._kernel.ledger.mark_gap(parse_head(_argument(arguments, "head")), spent, by)
        return {"head": head_text(self._kernel.ledger.head)}

    def _check_dataset(self, arguments: dict[str, str]) -> None:
        """Raise NotFound if the arguments name no registered dataset."""
        if _argument(arguments, "dataset") not in self._kernel.registered:
            raise NotFound(f"unknown dataset; the datasets are: {', '.join(self._kernel.registered) or 'none'}")


def _argument(arguments: dict[str, str], name: str) -> str:
    """Return an argument that must be present."""
    if not arguments.get(name):
        raise InvalidParameter(f"{name} is required")
    return arguments[name]


def load_registered_paths(file: Path) -> list[str]:
    """Return the paths of the descriptions that were registered while the kernel ran."""
    return [str(path) for path in json.loads(file.read_text())] if file.exists() else []


def admin_server(service: AdminService, listener: socket.socket) -> FrameServer:
    """Build the server of the admin socket."""
    return FrameServer(listener, lambda message, connection: service.respond(message, caller_name(connection)), 8)


def call_admin(path: Path, call: str, /, **arguments: str) -> Any:
    """Make one call to a kernel's admin socket, and return its result."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
            send(connection, Message({"call": call, **arguments}))
            answer = receive(connection, MOST_RESPONSE)
        except (OSError, ConnectionClosed):
            raise NotFound(
                f"no kernel answers at {path}; check that it runs, and that your user may open its socket"
            ) from None
    if "error" in answer.header:
        raise remote_error(answer.header["error"], answer.header.get("message", ""))
    return json.loads(answer.body)
