"""An authority of our own, and certificates for servers and clients of the tests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Authority:
    """An authority that signs certificates, and the folder of its files."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, folder: Path, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name)
        made = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(subject), 0, 30)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signed = made.sign(key, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return cls(folder, name, key, signed)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def sign(self, name: str, *, client: bool, days: tuple[int, int] = (-1, 30)) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        use = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = _dated(x509.CertificateBuilder().subject_name(_named(name)).issuer_name(_named(self.name)), *days)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        signed = made.add_extension(known, critical=False).sign(self.key, hashes.SHA256())
        certificate, secret = self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        secret.chmod(0o600)
        return certificate, secret


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _dated(builder: x509.CertificateBuilder, first: int, last: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - timedelta(minutes=5)
    return builder.not_valid_before(now + timedelta(days=first)).not_valid_after(now + timedelta(days=last))
