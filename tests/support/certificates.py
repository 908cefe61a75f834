"""Certificate authorities of a test's own, and certificates by them."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


def authority(path: Path, *, of: str = "127.0.0.1", days: float = 90) -> ssl.SSLContext:
    """Written to `path`: an authority whose own key serves the host `of`. What a server with it needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "company")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(of)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(_PEM))
    plain = serialization.NoEncryption()
    key_file = path.with_suffix(".key")
    key_file.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key_file)
    return context


def _name(of: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(of))
    except ValueError:
        return x509.DNSName(of)
