"""A key and a self-signed certificate, created by each process of an encrypted run.

Imported by runs with encryption only: `cryptography` takes a tenth of a second to import.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import ssl
from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# The certificate is valid while its process runs. No date is checked, so the clocks of hosts may differ.
_VALID_FROM = datetime.datetime(2000, 1, 1)
_VALID_UNTIL = datetime.datetime(9999, 12, 31)


class Identity:
    """One process's key and certificate. The key never leaves the process and is never written to disk."""

    def __init__(self) -> None:
        self.certificate, self._pem = _make()

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return a TLS 1.3 context that presents this certificate and trusts no other one yet."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the exact certificate is compared instead
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            context.num_tickets = 0  # a connection is never resumed
        with _as_file(self._pem) as path:
            context.load_cert_chain(path)
        return context


def _make() -> tuple[bytes, bytes]:
    """Return a new certificate (DER), and the same with its key (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Names differ, so that OpenSSL finds a certificate among many without comparing all of them.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, secrets.token_hex(16))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return certificate.public_bytes(serialization.Encoding.DER), secret + pem


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Provide a path in memory for `data`: Python's ssl module loads keys from files only."""
    fd = os.memfd_create("paceline-identity", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
