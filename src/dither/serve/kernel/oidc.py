"""Sign-in with OpenID Connect ID tokens, which the kernel checks against public keys from its curator.

The curator configures one issuer, one audience, a file of the issuer's public keys (a JWK set), and the account for
each value of a claim. The kernel downloads no keys and ignores keys and key addresses inside a token.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from dither.errors import InvalidParameter, InvalidToken
from dither.serve.operations.logs import PUBLIC

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
KEY_TYPES = {"RS256": "RSA", "ES256": "EC"}
HEADER_FIELDS = {"alg", "kid", "typ"}
LONGEST_TOKEN = 8192
LONGEST_LIFETIME = 24 * 3600
LEEWAY_SECONDS = 30
BASE64 = re.compile(r"[A-Za-z0-9_-]+")
RSA_BITS = range(2048, 8193)


@dataclass(frozen=True)
class Issuer:
    """An issuer of ID tokens: its address, the audience, the public keys, and the account of each claim value."""

    issuer: str
    audience: str
    claim: str
    accounts: Mapping[str, str]
    keys: Mapping[tuple[str, str], PublicKey]
    now: Callable[[], datetime]
    files: tuple[Path, ...] = ()

    def account(self, token: str) -> str | None:
        """Return the account of an ID token, None for another kind of token; raise InvalidToken if it is not valid."""
        if token.count(".") != 2:
            return None
        claims = self._claims(token) if len(token) <= LONGEST_TOKEN else None
        name = None if claims is None else self._account_name(claims)
        if name is None:
            raise InvalidToken("the token is not valid")
        return name

    def _claims(self, token: str) -> dict[str, Any] | None:
        """Return a token's claims if one of the configured keys signed it, else None."""
        signed, _, signature = token.rpartition(".")
        header = _object(signed.partition(".")[0])
        # A header may only select one of the configured keys: no keys, addresses of keys, or extensions.
        if header is None or not set(header) <= HEADER_FIELDS or str(header.get("typ", "JWT")).upper() != "JWT":
            return None
        key = self.keys.get((str(header.get("alg")), str(header.get("kid", ""))))
        if key is None or not _verify_signature(key, signed.encode(), _bytes(signature)):
            return None
        return _object(signed.partition(".")[2])

    def _account_name(self, claims: dict[str, Any]) -> str | None:
        """Return the account if issuer, audience and times are valid, else None."""
        if claims.get("iss") != self.issuer or not self._audience_matches(claims) or not self._is_current(claims):
            return None
        value = claims.get(self.claim)
        if not isinstance(value, str) or (self.claim == "email" and claims.get("email_verified") is not True):
            return None
        return self.accounts.get(value)

    def _audience_matches(self, claims: dict[str, Any]) -> bool:
        """Return true if the token was issued for the configured audience."""
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        party = claims.get("azp", self.audience if len(audiences) == 1 else None)
        return self.audience in audiences and party == self.audience

    def _is_current(self, claims: dict[str, Any]) -> bool:
        """Return true if the token is valid now, with a leeway of LEEWAY_SECONDS."""
        now = self.now().timestamp()
        issued, expires = _time(claims.get("iat")), _time(claims.get("exp"))
        begins = issued if "nbf" not in claims else _time(claims["nbf"])
        if issued is None or expires is None or begins is None or not 0 < expires - issued <= LONGEST_LIFETIME:
            return False
        return max(issued, begins) <= now + LEEWAY_SECONDS and now < expires + LEEWAY_SECONDS


def _time(value: Any) -> float | None:
    """Return seconds since 1970, or None if the value is not a time."""
    valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40
    return float(value) if valid else None


def _bytes(text: str) -> bytes:
    """Decode canonical unpadded base64url; return no bytes for anything else."""
    if not BASE64.fullmatch(text) or len(text) % 4 == 1:
        return b""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return b""
    return data if base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text else b""


def _object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object without duplicate keys, or return None."""

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(pairs)
        if len(parsed) != len(pairs):
            raise ValueError
        return parsed

    try:
        value = json.loads(_bytes(text), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _verify_signature(key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Return true if the key signed the data, by the one algorithm of its type."""
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
            return True
        if len(signature) != 64:
            return False
        pair = (int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
        key.verify(encode_dss_signature(*pair), data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


# --- The curator's configuration ---


def read_issuer(path: Path, now: Callable[[], datetime]) -> Issuer:
    """Read an issuer from a YAML file: issuer, audience, accounts, keys (a file beside it), and optionally claim."""
    try:
        entry = {"claim": "sub", **yaml.safe_load(path.read_text())}
        key_file = path.parent / str(entry.pop("keys"))
        keys = [_key(each) for each in json.loads(key_file.read_text())["keys"]]
        issuer = Issuer(**entry, keys=dict(keys), now=now, files=(path, key_file))
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError):
        raise InvalidParameter(
            f"{path} must contain issuer, audience, accounts and keys (the file of a JWK set), and may contain claim"
        ) from None
    accounts = issuer.accounts if isinstance(issuer.accounts, dict) else {"": ""}
    texts = [issuer.issuer, issuer.audience, issuer.claim, *accounts, *accounts.values()]
    if not all(isinstance(text, str) and text for text in texts) or not issuer.issuer.startswith("https://"):
        raise InvalidParameter(f"{path}: names must be strings, accounts a mapping, and the issuer an https:// address")
    if len(issuer.keys) != len(keys):
        raise InvalidParameter(f"{path}: two keys have the same kid; each key needs its own")
    return issuer


class IssuerFile:
    """An issuer whose files are read again when they change; if they are invalid then, the earlier ones stay in use."""

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path, self._now, self._lock = path, now, threading.Lock()
        self._issuer = read_issuer(path, now)
        self._stamps: list[tuple[int, ...]] = []

    def account(self, token: str) -> str | None:
        """Return the account of an ID token, by the files as they are now."""
        with self._lock:
            stamps = [_stamp(file) for file in self._issuer.files]
            if stamps != self._stamps:
                self._stamps = stamps
                self._read_again()
        return self._issuer.account(token)

    def _read_again(self) -> None:
        try:
            self._issuer = read_issuer(self._path, self._now)
        except InvalidParameter as problem:
            event = {"problem": str(problem)}
            logging.getLogger(PUBLIC).error("issuer files invalid; the earlier ones count", extra={"event": event})


def _stamp(file: Path) -> tuple[int, ...]:
    """Return numbers that change with a file."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _key(entry: Any) -> tuple[tuple[str, str], PublicKey]:
    """Return one key of a JWK set with its algorithm and name."""
    kind, name = (entry.get("kty"), entry.get("kid")) if isinstance(entry, dict) else (None, None)
    algorithm = next((each for each, needed in KEY_TYPES.items() if needed == kind), "")
    if (
        not algorithm
        or not isinstance(name, str)
        or not name
        or entry.get("alg", algorithm) != algorithm
        or entry.get("use", "sig") != "sig"
    ):
        raise InvalidParameter("each key of the JWK set must have a kid, and be for RS256 or ES256 signatures")
    try:
        key = _rsa_key(entry) if kind == "RSA" else _p256_key(entry)
    except (ValueError, LookupError, TypeError):
        raise InvalidParameter(f"the key {name[:40]!r} must be RSA with 2048 to 8192 bits, or P-256") from None
    return (algorithm, name), key


def _rsa_key(entry: dict[str, str]) -> rsa.RSAPublicKey:
    """Build an RSA key of an accepted size."""
    key = rsa.RSAPublicNumbers(*(int.from_bytes(_bytes(entry[part]), "big") for part in "en")).public_key()
    if key.key_size not in RSA_BITS:
        raise ValueError
    return key


def _p256_key(entry: dict[str, str]) -> ec.EllipticCurvePublicKey:
    """Build a P-256 key."""
    if entry["crv"] != "P-256":
        raise ValueError
    x, y = (int.from_bytes(_bytes(entry[part]), "big") for part in "xy")
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
