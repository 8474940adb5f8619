"""TLS for the edge: with the files of a certificate authority, or self-made for development, kept in the data folder.

A self-made certificate is its own authority: clients that are given it (`--ca`) trust this one server and nobody else.
It is made anew when it is about to end or does not name the address that is listened on.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import CertificateError

LIFE_DAYS = 397
"""Longer is refused by browsers."""
RENEW_DAYS = 30


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and of its private key."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What a server needs; raises `CertificateError`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"'{self.cert}' and '{self.key}' cannot be used for TLS",
                detail=getattr(error, "reason", None) or error.strerror,
                hint="pass a PEM certificate with its chain, and the private key that belongs to it, unencrypted",
            ) from None
        return context

    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as browsers show it."""
        digest = x509.load_pem_x509_certificate(self.cert.read_bytes()).fingerprint(hashes.SHA256())
        return ":".join(f"{byte:02X}" for byte in digest)


def self_made(folder: Path, host: str, now: dt.datetime | None = None) -> Certificate:
    """The certificate of this folder for this host, made if there is none that will do."""
    certificate = Certificate(folder / "cert.pem", folder / "key.pem")
    now = now or dt.datetime.now(dt.UTC)
    names = _names(host)
    if not _will_do(certificate, names, now):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        _make(certificate, names, now)
    return certificate


def _names(host: str) -> list[x509.GeneralName]:
    texts = dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname() or "localhost", host])
    return [_name(text) for text in texts if text not in ("", "0.0.0.0", "::")]


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text.encode("idna").decode())


def _will_do(files: Certificate, names: list[x509.GeneralName], now: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        files.context()
    except (OSError, ValueError, x509.ExtensionNotFound, CertificateError):
        return False
    lasts = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - dt.timedelta(days=RENEW_DAYS)
    return lasts and all(name in list(named) for name in names)


def _make(files: Certificate, names: list[x509.GeneralName], now: dt.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock, self-made")])
    public = key.public_key()
    signing = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True}
    others = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    never = dict.fromkeys(others.split(), False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=LIFE_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**signing, **never), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(files.key, key.private_bytes(pem, form, serialization.NoEncryption()), 0o600)
    _write(files.cert, certificate.public_bytes(pem), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file whole; nobody else can read it at any moment."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)
