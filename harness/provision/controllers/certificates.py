"""Issue certificates for JobSet's and Kueue's webhooks before the controllers' pods start.

Otherwise, both controllers create their own certificates with open-policy-agent/cert-controller. They then
check after 1 s, 3 s, 7 s and so on whether the kubelet has mounted the new Secret. If the Secret contains a
valid certificate from the start, the controllers use it and renew it before it expires.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harness.core.clock import CLOCK
from harness.core.kubernetes import Object
from harness.provision.controllers.ca_bundle import SECRET

AUTHORITY_DAYS = SERVER_DAYS = 3650
"""The number of days for which the certificates are valid, as in cert-controller. On a user's cluster, the
controllers renew the certificates 90 days before they expire. In a kind cluster, the certificates are not
renewed (fast_start.single_replica)."""


def issued(secret: Object) -> Object:
    """Return a copy of the Secret <name>-webhook-server-cert with a new authority and server certificate.

    cert-controller expects the name `<name>-ca` for the authority, and the DNS name of the webhook Service
    for the server certificate.
    """
    metadata = secret["metadata"]
    name = metadata["name"].removesuffix(SECRET)
    service = f"{name}-webhook-service.{metadata['namespace']}.svc"
    now = CLOCK.utc()
    authority_key, server_key = _key(), _key()
    authority_name = _named(f"{name}-ca", name)
    authority = (
        _builder(authority_name, authority_name, authority_key, now, AUTHORITY_DAYS, [f"{name}-ca"])
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _builder(_named(service), authority_name, server_key, now, SERVER_DAYS, [service])
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = {
        "ca.crt": authority.public_bytes(serialization.Encoding.PEM),
        "ca.key": _pem(authority_key),
        "tls.crt": server.public_bytes(serialization.Encoding.PEM),
        "tls.key": _pem(server_key),
    }
    return {**secret, "data": {file: base64.b64encode(text).decode() for file, text in files.items()}}


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    """Return a key in PKCS #1 format, the only format in which cert-controller can read the certificate
    authority's key."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _named(common: str, organization: str | None = None) -> x509.Name:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization is not None:
        names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(names)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPrivateKey,
    now: datetime,
    days: int,
    hosts: Sequence[str],
) -> x509.CertificateBuilder:
    """Return a builder for certificates whose validity began an hour ago, because a node's clock can be
    behind this machine's clock."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
