"""A client certificate: its files are read once for all connections, and the server is checked as before."""

from __future__ import annotations

import base64
import gc
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3.connection
import yaml
from cryptography import x509
from kubernetes.client.exceptions import ApiException
from urllib3.util.ssl_ import create_urllib3_context

from harness.core import kubernetes_retries
from harness.core.kubernetes import Kube
from harness.provision.controllers.certificates import issued
from harness.provision.controllers.tracker import EmbeddedTracker

SECRET = {"metadata": {"name": "x-webhook-server-cert", "namespace": "n"}}
NAME = "x-webhook-service.n.svc"


def files(folder: Path) -> Path:
    """Make an authority, and a certificate of it, in a new folder."""
    folder.mkdir()
    for name, text in issued(SECRET)["data"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    return folder


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Serve HTTPS. Yields the port, and the folder of the certificate."""
    own = files(tmp_path_factory.mktemp("tls") / "own")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / "tls.crt", own / "tls.key")
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    http_server.socket = context.wrap_socket(http_server.socket, server_side=True)
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    yield http_server.server_port, own
    http_server.shutdown()
    http_server.server_close()


def client(port: int, own: Path, authority: Path, folder: Path) -> Kube:
    cluster = {"server": f"https://127.0.0.1:{port}", "tls-server-name": NAME}
    user = {"client-certificate": str(own / "tls.crt"), "client-key": str(own / "tls.key")}
    config = {
        "clusters": [{"name": "c", "cluster": {**cluster, "certificate-authority": str(authority)}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return Kube(folder / "kubeconfig")


def test_they_are_read_once(server: tuple[int, Path], tmp_path: Path) -> None:
    """Contract: a connection reads no file. Each did, and a launch makes 25 of them."""
    port, served = server
    own = files(tmp_path / "client")
    kube = client(port, own, served / "ca.crt", tmp_path)
    (own / "tls.key").unlink()
    assert kube.fetch("/", seconds=5).status == 200


@pytest.mark.parametrize("user", ["certificate", "token"])
def test_an_authority_of_eks_is_accepted(
    server: tuple[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """Contract: as in kubectl, certificates need no key identifiers. Python 3.13 and later require them."""

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = create_urllib3_context(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    for module in (kubernetes_retries, urllib3.connection):
        monkeypatch.setattr(module, "create_urllib3_context", strict)
    default = ssl.create_default_context

    def default_strict(**options: Any) -> ssl.SSLContext:
        context = default(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", default_strict)
    port, served = server
    own = files(tmp_path / "client")
    client(port, own, served / "ca.crt", tmp_path)
    if user == "token":
        document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        document["users"][0]["user"] = {"token": "x"}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    kube = Kube(tmp_path / "kubeconfig")
    assert kube.fetch("/", seconds=5).status == 200
    with EmbeddedTracker("http://tracker", "key").client(kube) as tracker:
        assert tracker.get("healthz").status_code == 200
    authority = x509.load_pem_x509_certificate((served / "ca.crt").read_bytes())
    with pytest.raises(x509.ExtensionNotFound):
        authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)


def test_a_kubeconfig_without_verification_applies_to_the_tracker(
    server: tuple[int, Path], tmp_path: Path
) -> None:
    """Contract: the tracker's client, which is not the API's, reads insecure-skip-tls-verify as well."""
    port, served = server
    client(port, files(tmp_path / "client"), served / "ca.crt", tmp_path)
    document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    document["clusters"][0]["cluster"] = cluster
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    with EmbeddedTracker("http://tracker", "key").client(Kube(tmp_path / "kubeconfig")) as tracker:
        assert tracker.get("healthz").status_code == 200


def test_no_key_is_written_to_a_disk(
    server: tuple[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a process that is killed leaves no key and no certificate of its kubeconfig behind."""
    port, served = server
    own = files(tmp_path / "client")
    client(port, own, served / "ca.crt", tmp_path)
    document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    for entry in (document["clusters"][0]["cluster"], document["users"][0]["user"]):
        for name in [
            name for name in entry if name in ("certificate-authority", "client-certificate", "client-key")
        ]:
            entry[f"{name}-data"] = base64.b64encode(Path(entry.pop(name)).read_bytes()).decode()
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    open_before = len(os.listdir("/proc/self/fd"))
    kube = Kube(tmp_path / "kubeconfig")
    assert kube.fetch("/", seconds=5).status == 200
    assert list(temporary.iterdir()) == []
    kube.api.close()
    del kube
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1  # the server's end of the connection


def test_a_server_of_another_authority_is_refused(server: tuple[int, Path], tmp_path: Path) -> None:
    """Contract: one context for all connections checks the server as each of them did."""
    port, _ = server
    own = files(tmp_path / "client")
    with pytest.raises(ApiException, match="CERTIFICATE_VERIFY_FAILED"):
        client(port, own, own / "ca.crt", tmp_path).fetch("/", seconds=5)


def test_a_bad_key_is_told_by_the_request(server: tuple[int, Path], tmp_path: Path) -> None:
    """Contract: a kubeconfig whose key cannot be read is an error of the first request, as always."""
    port, served = server
    own = files(tmp_path / "client")
    (own / "tls.key").write_text("no key")
    kube = client(port, own, served / "ca.crt", tmp_path)
    with pytest.raises(ApiException, match="PEM"):
        kube.fetch("/", seconds=5)
