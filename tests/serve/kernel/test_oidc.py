"""Test ID tokens: the kernel accepts valid tokens, and refuses every known kind of forgery."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from dither.errors import InvalidParameter, NotAllowed
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.gateway.rate_limits import Rate
from dither.serve.kernel.oidc import LONGEST_TOKEN, Issuer, IssuerFile, read_issuer
from serve.servers import place, until

NOW = 1_800_000_000
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
THIEF = rsa.generate_private_key(65537, 2048)
CLAIMS = {"iss": "https://login.example.org", "aud": "dither", "sub": "u-17", "iat": NOW - 60, "exp": NOW + 600}
DESCRIBED = {"issuer": "https://login.example.org", "audience": "dither", "keys": "jwks.json",
             "accounts": {"u-17": "ann", "u-18": "aud"}}  # fmt: skip


def dialect(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return dialect(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key: rsa.RSAPrivateKey, name: str = "r") -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": name, "n": number(numbers.n), "e": number(numbers.e), "use": "sig", "alg": "RS256"}


def ec_jwk(key: ec.EllipticCurvePrivateKey, name: str = "e") -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "kid": name, "x": number(numbers.x, 32), "y": number(numbers.y, 32)}


def described(folder: Path, keys: list[Any] | None = None, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    made = [rsa_jwk(RSA_KEY), ec_jwk(EC_KEY)] if keys is None else keys
    (folder / "jwks.json").write_text(json.dumps({"keys": made}))
    path = folder / "oidc.yml"
    path.write_text(json.dumps({**DESCRIBED, **more}))  # JSON is YAML too
    return path


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return read_issuer(described(tmp_path_factory.mktemp("oidc")), lambda: datetime.fromtimestamp(NOW, UTC))


def signed_rsa(data: bytes, key: rsa.RSAPrivateKey = RSA_KEY) -> bytes:
    return key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def signed_ec(data: bytes, between: bytes = b"") -> bytes:
    r, s = decode_dss_signature(EC_KEY.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + between + s.to_bytes(32, "big")


def token(claims: Any = None, header: Any = None, sign: Callable[[bytes], bytes] = signed_rsa) -> str:
    """Return a token; by default a valid one."""
    parts = [{"alg": "RS256", "kid": "r", "typ": "JWT"} if header is None else header, claims or CLAIMS]
    body = ".".join(dialect(part if isinstance(part, bytes) else json.dumps(part).encode()) for part in parts)
    return f"{body}.{dialect(sign(body.encode()))}"


def bent(**claims: Any) -> str:
    made = {**CLAIMS, **claims}
    return token({name: value for name, value in made.items() if value is not None})


def headed(**header: Any) -> str:
    made = {"alg": "RS256", "kid": "r", **header}
    return token(header={name: value for name, value in made.items() if value is not None})


def test_a_valid_token_maps_to_its_account(issuer: Issuer) -> None:
    assert issuer.account(token()) == "ann" == issuer.account(token(header={"alg": "RS256", "kid": "r"}))
    assert issuer.account(token(header={"alg": "ES256", "kid": "e"}, sign=signed_ec)) == "ann"
    assert issuer.account(bent(aud=["dither"])) == "ann" == issuer.account(bent(azp="dither", nbf=NOW - 1))
    assert issuer.account(bent(aud=["dither", "other"], azp="dither")) == "ann"
    assert issuer.account("dither_a_token_of_the_ledger") is None


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def confused(secret: bytes, kid: str = "r") -> str:
    """Return a token signed by HS256 with a public value as its secret."""
    return token(header={"alg": "HS256", "kid": kid}, sign=lambda data: hmac.digest(secret, data, hashlib.sha256))


def changed(text: str, part: int, data: bytes) -> str:
    parts = text.split(".")
    parts[part] = dialect(data)
    return ".".join(parts)


def loose(text: str) -> str:
    """Return the same bytes in non-canonical base64: unused bits of the last character are set."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    made = text[:-1] + letters[letters.index(text[-1]) + 1]
    data, again = (base64.urlsafe_b64decode(each.rpartition(".")[2] + "==") for each in (text, made))
    assert data == again
    return made


FORGED = {
    "no algorithm": lambda: token(header={"alg": "none"}, sign=lambda data: b""),
    "no algorithm, with a key": lambda: token(header={"alg": "none", "kid": "r"}, sign=lambda data: b""),
    "no algorithm in capitals": lambda: token(header={"alg": "NONE", "kid": "r"}, sign=lambda data: b""),
    "no algorithm at all": lambda: headed(alg=None),
    "the public key as a secret": lambda: confused(pem(RSA_KEY)),
    "the key's JSON as a secret": lambda: confused(json.dumps(rsa_jwk(RSA_KEY)).encode()),
    "the other public key as a secret": lambda: confused(pem(EC_KEY), "e"),
    "an algorithm of another key": lambda: token(header={"alg": "ES256", "kid": "r"}, sign=signed_ec),
    "another algorithm of this key": lambda: headed(alg="PS256"),
    "a longer hash": lambda: headed(alg="RS512"),
    "a key of one's own": lambda: token(header={"alg": "RS256", "kid": "x", "jwk": rsa_jwk(THIEF, "x")},
                                        sign=lambda data: signed_rsa(data, THIEF)),
    "a right key and one's own": lambda: headed(jwk=rsa_jwk(THIEF)),
    "an address of keys": lambda: headed(jku="https://login.example.org.evil.test/keys"),
    "a certificate": lambda: headed(x5c=["MIIB"]),
    "an extension": lambda: headed(crit=["exp"]),
    "an unknown key": lambda: headed(kid="q"),
    "no key named": lambda: headed(kid=None),
    "a path as a key": lambda: headed(kid="../../dev/null"),
    "a list as a key": lambda: headed(kid=["r"]),
    "an access token": lambda: headed(typ="at+jwt"),
    "somebody else's signature": lambda: token(sign=lambda data: signed_rsa(data, THIEF)),
    "no signature": lambda: token(sign=lambda data: b""),
    "half a signature": lambda: token(sign=lambda data: signed_rsa(data)[:128]),
    "a signature of nothing": lambda: token(header={"alg": "ES256", "kid": "e"}, sign=lambda data: bytes(64)),
    "a signature of another form": lambda: token(
        header={"alg": "ES256", "kid": "e"}, sign=lambda data: EC_KEY.sign(data, ec.ECDSA(hashes.SHA256()))),
    "another claim under the signature": lambda: changed(token(), 1, json.dumps({**CLAIMS, "sub": "u-18"}).encode()),
    "another header over it": lambda: changed(token(), 0, b'{"alg":"RS256","kid":"r" }'),
    "another issuer": lambda: bent(iss="https://evil.test"),
    "nearly the issuer": lambda: bent(iss="https://login.example.org/"),
    "no issuer": lambda: bent(iss=None),
    "another audience": lambda: bent(aud="other"),
    "nobody's": lambda: bent(aud=None),
    "an empty audience": lambda: bent(aud=[]),
    "a part of the audience": lambda: bent(aud="dither2"),
    "an audience as a mapping": lambda: bent(aud={"dither": 1}),
    "for several, by nobody": lambda: bent(aud=["dither", "other"]),
    "for several, by another": lambda: bent(aud=["dither", "other"], azp="other"),
    "for us, by another": lambda: bent(azp="other"),
    "expired": lambda: bent(exp=NOW - 31),
    "without an end": lambda: bent(exp=None),
    "an end as a text": lambda: bent(exp=str(NOW + 600)),
    "an end that is true": lambda: bent(exp=True),
    "an endless one": lambda: token(json.dumps(CLAIMS).replace(str(NOW + 600), "1e400").encode()),
    "not a number": lambda: token(json.dumps(CLAIMS).replace(str(NOW + 600), "NaN").encode()),
    "good for a year": lambda: bent(exp=NOW + 31_536_000),
    "from the future": lambda: bent(iat=NOW + 60, exp=NOW + 600),
    "not yet": lambda: bent(nbf=NOW + 60),
    "without a beginning": lambda: bent(iat=None),
    "a beginning that is none": lambda: bent(nbf="0"),
    "nobody": lambda: bent(sub=None),
    "somebody unknown": lambda: bent(sub="u-99"),
    "an account's own name": lambda: bent(sub="ann"),
    "several at once": lambda: bent(sub=["u-17"]),
    "a name twice": lambda: token(json.dumps(CLAIMS).replace('"sub": "u-17"', '"sub": "x", "sub": "u-17"').encode()),
    "a list": lambda: token([CLAIMS]),
    "not JSON": lambda: token(b"sub=u-17"),
    "deep nesting": lambda: token(b"[" * 5000),
    "other bits at the end": lambda: loose(token()),
    "a longer signature": lambda: token(
        header={"alg": "ES256", "kid": "e"}, sign=lambda data: signed_ec(data, b"\0")),
    "padded": lambda: token() + "==",
    "a line break": lambda: token() + "\n",
    "two dots": lambda: "..",
    "too long": lambda: token({**CLAIMS, "more": "x" * LONGEST_TOKEN}),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_token_is_refused(issuer: Issuer, how: str) -> None:
    with pytest.raises(NotAllowed, match="the token is not valid"):
        issuer.account(FORGED[how]())


def test_an_email_address_must_be_verified(issuer: Issuer) -> None:
    by_mail = replace(issuer, claim="email", accounts={"ann@example.org": "ann"})
    mail = {"email": "ann@example.org"}
    assert by_mail.account(bent(**mail, email_verified=True)) == "ann"
    for wrong in ({}, {"email_verified": False}, {"email_verified": "true"}):
        with pytest.raises(NotAllowed):
            by_mail.account(bent(**mail, **wrong))


@pytest.mark.parametrize("key", [
    {"kty": "oct", "kid": "s", "k": dialect(b"secret")}, {**rsa_jwk(RSA_KEY), "kid": ""}, {**ec_jwk(EC_KEY), "x": "AA"},
    {**rsa_jwk(RSA_KEY), "alg": "HS256"}, {**rsa_jwk(RSA_KEY), "use": "enc"}, {**ec_jwk(EC_KEY), "crv": "P-384"},
    rsa_jwk(rsa.generate_private_key(65537, 1024)), {**rsa_jwk(RSA_KEY), "n": 7}, "r", {},
])  # fmt: skip
def test_an_invalid_key_is_refused(tmp_path: Path, key: Any) -> None:
    with pytest.raises(InvalidParameter):
        read_issuer(described(tmp_path, [key]), lambda: datetime.now(UTC))


@pytest.mark.parametrize("more", [
    {"issuer": "http://login.example.org"}, {"audience": ""}, {"audience": 3}, {"accounts": []}, {"accounts": None},
    {"accounts": {"u": 1}}, {"claim": ["sub"]}, {"keys": "nowhere.json"}, {"secret": "x"},
])  # fmt: skip
def test_an_invalid_issuer_file_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        read_issuer(described(tmp_path, **more), lambda: datetime.now(UTC))


def test_two_keys_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="the same kid"):
        read_issuer(described(tmp_path, [rsa_jwk(RSA_KEY), rsa_jwk(THIEF)]), lambda: datetime.now(UTC))


def test_changed_files_count_at_once(tmp_path: Path) -> None:
    """The issuer replaces its keys, and the curator the accounts, while the kernel runs."""
    path = described(tmp_path)
    issuer = IssuerFile(path, lambda: datetime.fromtimestamp(NOW, UTC))
    new_key = token(header={"alg": "RS256", "kid": "new"}, sign=lambda data: signed_rsa(data, THIEF))
    assert issuer.account(token()) == "ann"
    with pytest.raises(NotAllowed):
        issuer.account(new_key)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [rsa_jwk(THIEF, "new")]}))
    assert issuer.account(new_key) == "ann"
    with pytest.raises(NotAllowed):
        issuer.account(token())  # the key that was taken away signs nobody in
    described(tmp_path, [rsa_jwk(RSA_KEY)], accounts={"u-17": "bob"})
    assert issuer.account(token()) == "bob"


@pytest.mark.parametrize("how", ["half a file", "a missing file", "a weak key"])
def test_invalid_files_leave_the_earlier_in_use(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    issuer = IssuerFile(described(tmp_path), lambda: datetime.fromtimestamp(NOW, UTC))
    keys = tmp_path / "jwks.json"
    good = keys.read_text()
    match how:
        case "half a file":
            keys.write_text(good[:100])
        case "a missing file":
            keys.unlink()
        case _:
            keys.write_text(json.dumps({"keys": [rsa_jwk(rsa.generate_private_key(65537, 1024))]}))
    with caplog.at_level("ERROR", logger="dither.public"):
        assert issuer.account(token()) == "ann" == issuer.account(token())
    assert len(caplog.records) == 1, "each state of the files is reported once"
    keys.write_text(json.dumps({"keys": []}))
    with pytest.raises(NotAllowed):
        issuer.account(token())


def test_an_account_for_single_sign_on_outlives_its_token(tmp_path: Path) -> None:
    """The issuer's tokens have an end of their own; revoking the account ends them too."""
    made = read_issuer(described(tmp_path / "o"), lambda: datetime.fromtimestamp(NOW, UTC))
    with place(tmp_path, sign_in=made.account) as there:
        expired = there.kernel.ledger.add_account("ann", "analyst", days=-1)
        assert there.get("/v1/datasets", expired).status_code == 401
        assert there.get("/v1/datasets", bent()).status_code == 200
        there.kernel.ledger.revoke_account("ann")
        assert there.get("/v1/datasets", bent()).status_code == 401


def test_an_analyst_asks_with_an_id_token(tmp_path: Path) -> None:
    """Role, revocation and limits are the account's, for any number of tokens."""
    made = read_issuer(described(tmp_path / "o"), lambda: datetime.fromtimestamp(NOW, UTC))
    settings = AppSettings(account_rate=Rate(0.001, 12), unknown_token_rate=Rate(1000, 1000))
    query = "SELECT COUNT(*) FROM people"
    with place(tmp_path, sign_in=made.account, settings=settings) as there:
        first, second, auditor = bent(), bent(iat=NOW - 59), bent(sub="u-18")
        assert there.ask(query, who=first).status_code == 200 and there.ask(query, who=second).json()["free"]
        assert there.ask(query, who=auditor).status_code == 403  # an auditor asks nothing
        assert there.get("/v1/ledger?dataset=town", auditor).status_code == 200
        assert there.get("/v1/datasets", bent(exp=NOW - 99)).status_code == 401
        body = {"dataset": "town", "query": query, "epsilon": 1, "request_id": "mine"}
        assert there.post("/v1/answer", body, first, prefer="respond-async").status_code == 202
        assert until(lambda: there.get("/v1/jobs/mine", second).json()["status"] == "done", 10)
        codes = [there.get("/v1/datasets", who).status_code for _ in range(8) for who in (first, second)]
        assert codes[-1] == 429 and there.get("/v1/datasets", "ann").status_code in (200, 429)
        there.kernel.ledger.revoke_account("ann")
        assert there.get("/v1/budget?dataset=town", bent(iat=NOW - 58)).status_code == 401
