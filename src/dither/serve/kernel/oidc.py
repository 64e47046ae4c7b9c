"""Signing in with an ID token of OpenID Connect, which the kernel checks itself against keys that its curator gave it.

A curator names one issuer, one audience, a file of that issuer's public keys (a JWK set), and which account each value
of a claim stands for. Nothing is fetched, and nothing that a token says about its own keys is believed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
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

from dither.errors import InvalidParameter, NotAllowed

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
KINDS = {"RS256": "RSA", "ES256": "EC"}
HEADER = {"alg", "kid", "typ"}
LONGEST = 8192
LONGEST_LIFE = 24 * 3600
LEEWAY = 30
BASE64 = re.compile(r"[A-Za-z0-9_-]+")
RSA_BITS = range(2048, 8193)


@dataclass(frozen=True)
class Issuer:
    """Whose ID tokens are believed, for what audience, by which keys, and whom they stand for."""

    issuer: str
    audience: str
    claim: str
    accounts: Mapping[str, str]
    keys: Mapping[tuple[str, str], PublicKey]
    now: Callable[[], datetime]

    def account(self, token: str) -> str | None:
        """The account that an ID token stands for; None for a token of another kind; refuses every other token."""
        if token.count(".") != 2:
            return None
        claims = self._claims(token) if len(token) <= LONGEST else None
        name = None if claims is None else self._named(claims)
        if name is None:
            raise NotAllowed("the token is not valid")
        return name

    def _claims(self, token: str) -> dict[str, Any] | None:
        """What a token says, if one of the keys has signed it."""
        signed, _, signature = token.rpartition(".")
        header = _object(signed.partition(".")[0])
        # A header may say which of our keys to use, and nothing else: no keys, addresses of keys, or extensions.
        if header is None or not set(header) <= HEADER or str(header.get("typ", "JWT")).upper() != "JWT":
            return None
        key = self.keys.get((str(header.get("alg")), str(header.get("kid", ""))))
        if key is None or not _signed(key, signed.encode(), _bytes(signature)):
            return None
        return _object(signed.partition(".")[2])

    def _named(self, claims: dict[str, Any]) -> str | None:
        """The account, if issuer, audience and times are right."""
        if claims.get("iss") != self.issuer or not self._for_us(claims) or not self._in_time(claims):
            return None
        value = claims.get(self.claim)
        if not isinstance(value, str) or (self.claim == "email" and claims.get("email_verified") is not True):
            return None
        return self.accounts.get(value)

    def _for_us(self, claims: dict[str, Any]) -> bool:
        audience = claims.get("aud")
        several = audience if isinstance(audience, list) else [audience]
        party = claims.get("azp", self.audience if len(several) == 1 else None)
        return self.audience in several and party == self.audience

    def _in_time(self, claims: dict[str, Any]) -> bool:
        now = self.now().timestamp()
        made, ends = _time(claims.get("iat")), _time(claims.get("exp"))
        begins = made if "nbf" not in claims else _time(claims["nbf"])
        if made is None or ends is None or begins is None or not 0 < ends - made <= LONGEST_LIFE:
            return False
        return max(made, begins) <= now + LEEWAY and now < ends + LEEWAY


def _time(value: Any) -> float | None:
    """Seconds since 1970."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40
    return float(value) if fits else None


def _bytes(text: str) -> bytes:
    """Bytes from base64 for addresses, in its one spelling; nothing for anything else."""
    if not BASE64.fullmatch(text) or len(text) % 4 == 1:
        return b""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return b""
    return data if base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text else b""


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object in which no name stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError
        return made

    try:
        value = json.loads(_bytes(text), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _signed(key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Whether a key has signed some bytes, by the one algorithm that belongs to its kind."""
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


# --- What the curator gives ---


def read_issuer(path: Path, now: Callable[[], datetime]) -> Issuer:
    """The issuer that a YAML file describes: issuer, audience, accounts, keys (a file beside it), and perhaps claim."""
    try:
        given = {"claim": "sub", **yaml.safe_load(path.read_text())}
        keys = [_key(each) for each in json.loads((path.parent / str(given.pop("keys"))).read_text())["keys"]]
        made = Issuer(**given, keys=dict(keys), now=now)
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError):
        raise InvalidParameter(f"{path} must hold issuer, audience, accounts, claim, and keys: a JWK set") from None
    accounts = made.accounts if isinstance(made.accounts, dict) else {"": ""}
    texts = [made.issuer, made.audience, made.claim, *accounts, *accounts.values()]
    if not all(isinstance(text, str) and text for text in texts) or not made.issuer.startswith("https://"):
        raise InvalidParameter(f"{path}: names must be texts, accounts a mapping, the issuer an https:// address")
    if len(made.keys) != len(keys):
        raise InvalidParameter(f"{path}: two keys have one name")
    return made


def _key(given: Any) -> tuple[tuple[str, str], PublicKey]:
    """One key of a JWK set, under its algorithm and its name."""
    kind, name = (given.get("kty"), given.get("kid")) if isinstance(given, dict) else (None, None)
    algorithm = next((each for each, needed in KINDS.items() if needed == kind), "")
    if (
        not algorithm
        or not isinstance(name, str)
        or not name
        or given.get("alg", algorithm) != algorithm
        or given.get("use", "sig") != "sig"
    ):
        raise InvalidParameter("each key of the JWK set needs a kid, and must be for RS256 or ES256 signatures")
    try:
        key = _rsa(given) if kind == "RSA" else _curve(given)
    except (ValueError, LookupError, TypeError):
        raise InvalidParameter(f"the key {name[:40]!r} is not one: RSA of 2048 bits or more, or P-256") from None
    return (algorithm, name), key


def _rsa(given: dict[str, str]) -> rsa.RSAPublicKey:
    key = rsa.RSAPublicNumbers(*(int.from_bytes(_bytes(given[part]), "big") for part in "en")).public_key()
    if key.key_size not in RSA_BITS:
        raise ValueError
    return key


def _curve(given: dict[str, str]) -> ec.EllipticCurvePublicKey:
    if given["crv"] != "P-256":
        raise ValueError
    x, y = (int.from_bytes(_bytes(given[part]), "big") for part in "xy")
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
