"""A webhook's certificate is what an API server verifies and cert-controller takes as it is."""

import base64
import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509

from harness.core.kubernetes_retries import as_kubectl
from harness.provision.controllers.certificates import issued

SECRET = {"metadata": {"name": "kueue-webhook-server-cert", "namespace": "kueue-system"}}
SERVICE = "kueue-webhook-service.kueue-system.svc"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name, text in issued(SECRET)["data"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    return folder


def handshake(files: Path, name: str) -> None:
    """Connect to a server with this certificate, as the API server does. Raises ssl.SSLError."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files / "tls.crt", files / "tls.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        context = as_kubectl(ssl.create_default_context(cafile=files / "ca.crt"))
        context.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


def test_the_server_is_the_webhook_service(files: Path) -> None:
    handshake(files, SERVICE)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(files, "kueue-webhook-service.default.svc")


def test_cert_controller_takes_it(files: Path) -> None:
    """It renews what ends within 90 days, looks for its own name, and reads keys in PKCS #1 alone."""
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=91)
    for name in ("ca", "tls"):
        assert x509.load_pem_x509_certificate((files / f"{name}.crt").read_bytes()).not_valid_after_utc > soon
        assert (files / f"{name}.key").read_text().startswith("-----BEGIN RSA PRIVATE KEY-----")
    authority = x509.load_pem_x509_certificate((files / "ca.crt").read_bytes())
    names = authority.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kueue-ca"]


def test_every_cluster_has_its_own(files: Path) -> None:
    assert base64.b64decode(issued(SECRET)["data"]["ca.key"]) != (files / "ca.key").read_bytes()
