"""The ledger's accounts: tokens, roles, what curators did, and the time by which tokens expire."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from dither.errors import InvalidParameter, InvalidToken, NotFound
from dither.privacy.ledger.charges import Account
from dither.privacy.ledger.keys import KERNEL, key
from dither.privacy.ledger.log import AppendLog, WriteBatch, utc_text


class AccountLog(AppendLog):
    """A log that records accounts and what curators do, and authenticates tokens."""

    def add_account(self, name: str, role: str, by: str = KERNEL, days: int | None = None) -> str:
        """Add an account, or replace its token; return the token, of which only the hash is stored."""
        token = f"dither_{secrets.token_urlsafe(32)}"
        expiry = None if days is None else utc_text(self.now() + timedelta(days=days))
        self._set_account(name, role, by, hash_token(token), expiry)
        return token

    def revoke_account(self, name: str, by: str = KERNEL) -> None:
        """Revoke an account's token."""
        with self._latest_state() as state:
            position = state.get(key("account", name))
            if position is None:
                raise NotFound(f"there is no account {name!r}")
            role = state.body(int(position))["role"]
        self._set_account(name, role, by, None, None)

    def _set_account(self, name: str, role: str, by: str, token: str | None, expires: str | None) -> None:
        """Add a row with an account's role and token hash; None revokes the token."""
        body = {"by": by, "expires": expires, "name": name, "role": role, "token": token}
        self._submit(lambda batch: batch.add("account", body))

    def record_act(self, by: str, act: str, of: str = "") -> None:
        """Record an action of a curator."""
        self._submit(lambda batch: batch.add("act", {"act": act, "by": by, "of": of}))

    def authenticate(self, token: str) -> Account:
        """Return the account of a token; unknown, expired and revoked tokens raise the same error."""
        presented_hash = hash_token(token)
        with self._latest_state() as state:
            name = state.get(key("token", presented_hash))
        body = self._account_body(name)
        expired = body["expires"] is not None and self._now() >= body["expires"]
        if expired and body["token"] is not None:
            self._remember_time()
        if expired or not hmac.compare_digest(body["token"] or "", presented_hash):
            raise InvalidToken("the token is not valid")
        return Account(body["name"], body["role"])

    def account(self, name: str) -> Account:
        """Return an account that was authenticated by other means, which have an expiry of their own."""
        body = self._account_body(name)
        if body["token"] is None:
            raise InvalidToken("the token is not valid")
        return Account(body["name"], body["role"])

    def _account_body(self, name: str | None) -> Mapping[str, Any]:
        """Return the last row of an account; its token is None if it was revoked, or if there is no such account."""
        with self._latest_state() as state:
            position = state.get(key("account", name)) if name is not None else None
            return state.body(int(position)) if position is not None else {"token": None, "expires": None}

    def now(self) -> datetime:
        """Return the time by which the ledger judges: the clock's, but never earlier than a time it has seen.

        It is stored, since a token may be refused by it.
        """
        with self._latest_state():
            now = self._now()
            self._remember_time()
            return datetime.fromisoformat(now)

    def reset_time(self, by: str = KERNEL) -> str:
        """Set the ledger's time back to the clock, after a clock that was wrong; return the time it had.

        Tokens that the wrong time ended are valid again.
        """

        def decide(batch: WriteBatch) -> str:
            before, batch.time = batch.time, utc_text(self._clock.utc())
            if batch.time >= before:
                raise InvalidParameter("the ledger's time is not ahead of the clock: there is nothing to set back")
            batch.add("clock", {"by": by, "from": before})
            return before

        before = self._submit(decide)
        self._store.write_meta("clock", self._time)
        return before


def hash_token(token: str) -> str:
    """Hash a token for storage; a token has 256 random bits, so an unsalted hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()
