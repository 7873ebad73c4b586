"""Which way the images come, and that nothing unpinned is applied."""

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.provision.images import mirror, registry_access, versions
from harness.provision.images.stack import download, resolve, verified
from harness.provision.images.versions import Controller, Registry
from harness.settings import Settings


def manifest(name: str) -> bytes:
    container = {"name": "manager", "image": f"old/{name}", "imagePullPolicy": "Always"}
    container["resources"] = {"requests": {"cpu": "500m"}}  # type: ignore[assignment]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-controller-manager"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return yaml.safe_dump(deployment).encode()


@dataclass
class Server:
    """A registry and a file server in one, on loopback."""

    port: int
    asked: list[str]
    v2_status: int = 200


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(f"{self.command} {self.path}")
            name = self.path.strip("/").removesuffix(".yaml")
            body = manifest(name) if name in {"jobset", "kueue"} else b""
            self.send_response(state.v2_status if self.path == "/v2/" else 200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(http.server_port, [])
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    host = f"localhost:{server.port}"
    digest = "@sha256:" + "0" * 64
    lines = [
        "[registry]",
        'kubernetes = "v1.36.3"',
        f'node = "{host}/node{digest}"',
        f'torch_base = "{host}/torch{digest}"',
        f'python_base = "{host}/python{digest}"',
    ]
    for name in ("jobset", "kueue"):
        lines += [
            f"[registry.{name}]",
            'version = "v1"',
            f'image = "{host}/{name}{digest}"',
            f'manifest = "http://127.0.0.1:{server.port}/{name}.yaml"',
            f'sha256 = "{hashlib.sha256(manifest(name)).hexdigest()}"',
        ]
    lines += ["[registry.mirrors]", f'"{host}" = "http://{{gateway}}:{server.port}"']
    lines += ["[worker]", 'python = "3.13"', 'torch = "2.9.1"', 'debian = "trixie"']
    file = tmp_path / "versions.toml"
    file.write_text("\n".join(lines))
    return Settings(versions_file=file, cache_dir=tmp_path / "cache", images="auto")


def test_auto_takes_the_registry_that_answers(settings: Settings, server: Server) -> None:
    """References stay by digest; the manifests are the pinned ones, with them put in and fit for 2 cores."""
    messages: list[str] = []
    stack = resolve(RunContext(settings=settings, progress=messages.append))
    host = f"localhost:{server.port}"
    assert stack.image_source == "registry"
    assert stack.node_images == ()
    assert stack.node_image == f"{host}/node@sha256:{'0' * 64}"
    assert messages[0] == "images: registry (the registries and manifest hosts respond)"
    manager = yaml.safe_load(stack.kueue_manifest.read_text())["spec"]["template"]["spec"]["containers"][0]
    assert manager["image"] == f"{host}/kueue@sha256:{'0' * 64}"
    assert manager["imagePullPolicy"] == "IfNotPresent"
    assert manager["resources"]["requests"]["cpu"] == "50m"
    assert 'config_path = "/etc/containerd/certs.d"' in stack.containerd_patches[0]
    assert stack.mirrors == {host: f"http://{{gateway}}:{server.port}"}


def test_a_second_run_downloads_nothing(settings: Settings, server: Server) -> None:
    """The manifest is kept by its hash."""
    context = RunContext(settings=settings, progress=lambda _: None)
    first = resolve(context)
    server.asked.clear()
    assert resolve(context) == first
    assert [line for line in server.asked if line.startswith("GET")] == []


def test_manifest_that_is_not_pinned_one_is_refused(settings: Settings) -> None:
    """The error says what was expected and seen, and its cause is judged as any other."""
    assert settings.versions_file is not None
    pinned = versions.load(settings).registry.kueue
    other = Controller(version="v1", image="i", manifest=pinned.manifest, sha256="f" * 64)
    with pytest.raises(HarnessError) as error:
        verified(download(other.manifest), other)
    assert error.value.cause == "controllers.manifest"
    assert "f" * 64 in error.value.message
    assert pinned.sha256 in error.value.message


def test_a_manifest_that_is_not_there_says_so(server: Server) -> None:
    """A 404 is no manifest."""
    with pytest.raises(HarnessError, match="404") as error:
        download(f"http://127.0.0.1:{server.port}/nothing.yaml")
    assert error.value.cause == "controllers.manifest"


def test_proxy_that_forbids_registry_is_not_registry(settings: Settings, server: Server) -> None:
    """Only 200 and 401 are a registry's answers; anything else sends auto to the source way, saying why."""
    server.v2_status = 403
    assert registry_access.unreached(versions.load(settings).registry) == [
        f"http://localhost:{server.port}/v2/: HTTP 403"
    ]
    server.v2_status = 401
    assert registry_access.unreached(versions.load(settings).registry) == []


@pytest.fixture
def nowhere(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One of whose hosts there is no address, and no proxy that would look for it."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    registry = versions.load(settings).registry
    return registry.model_copy(update={"node": "registry.invalid/node:v1"})


def test_a_host_without_an_address_is_reported_without_requests(
    nowhere: Registry, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would look for it itself, so it is asked where there is one."""
    (problem,) = registry_access.unreached(nowhere)
    assert problem.startswith("https://registry.invalid/v2/: [Errno -")
    assert server.asked == []
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.port}")
    (problem,) = registry_access.unreached(nowhere)
    assert problem.startswith("https://registry.invalid/v2/: 501")  # this proxy knows no CONNECT
    assert "HEAD /v2/" in server.asked


def test_a_name_server_that_is_silent_is_not_awaited(
    nowhere: Registry, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """getaddrinfo waits 10 s for each server that drops questions, as a firewall makes them. A host is told
    as not reached within the limit.
    """
    answered, find = threading.Event(), socket.getaddrinfo

    def silent(host: str, *more: object) -> object:
        if host == "registry.invalid":
            answered.wait()
        return find(host, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(registry_access, "ADDRESS_SECONDS", 2.0)
    try:
        (problem,) = registry_access.unreached(nowhere)
    finally:
        answered.set()
    assert problem == "https://registry.invalid/v2/: no address within 2 s"
    assert server.asked == []


@pytest.mark.parametrize(
    ("reference", "host", "url"),
    [
        ("python:3.13", "docker.io", "https://registry-1.docker.io/v2/"),
        ("kindest/node:v1", "docker.io", "https://registry-1.docker.io/v2/"),
        ("docker.io/kindest/node:v1@sha256:0", "docker.io", "https://registry-1.docker.io/v2/"),
        ("registry.k8s.io/jobset/jobset:v1", "registry.k8s.io", "https://registry.k8s.io/v2/"),
        ("localhost:5001/node@sha256:0", "localhost:5001", "http://localhost:5001/v2/"),
    ],
)
def test_the_registry_of_a_reference(reference: str, host: str, url: str) -> None:
    """As Docker reads references; loopback is plain HTTP."""
    assert registry_access.registry_host(reference) == host
    assert registry_access.api_url(host) == url


def test_the_lock_of_the_project_fits() -> None:
    """harness/versions.toml has every value, and what is run as root on the nodes is pinned by digest."""
    locked = versions.load(Settings(versions_file=None))
    assert "@sha256:" in locked.registry.node
    assert "@sha256:" in locked.registry.jobset.image
    assert isinstance(locked.registry, Registry)


@pytest.mark.parametrize(
    ("wanted", "version"),
    [
        (None, "v1.36.4"),
        ("1.36", "v1.36.4"),
        ("1.34", "v1.34.11"),
        ("v1.35.8", "v1.35.8"),
        ("1.37", "v1.37.0"),
    ],
)
def test_a_kubernetes_version_is_a_node_image_by_digest(wanted: str | None, version: str) -> None:
    """A minor version or a whole one; the image is of that very version, and pinned."""
    found, image = versions.load(Settings(versions_file=None)).registry.node_of(wanted)
    assert found == version
    assert re.fullmatch(rf"docker\.io/kindest/node:{re.escape(version)}@sha256:[0-9a-f]{{64}}", image)


@pytest.mark.parametrize("wanted", ["1.3", "1.36.3", "2.0"])
def test_an_unknown_kubernetes_version_lists_the_available_ones(wanted: str) -> None:
    """1.3 is not 1.34, and a patch version is not another one."""
    with pytest.raises(UsageError, match=r"v1\.36\.4, v1\.37\.0, v1\.35\.8, v1\.34\.11"):
        versions.load(Settings(versions_file=None)).registry.node_of(wanted)


def test_the_registry_way_takes_the_wanted_version(settings: Settings) -> None:
    """The node image and what the manifest of a run will say are of the version that was asked for."""
    file = settings.versions_file
    assert file is not None
    file.write_text(f"{file.read_text()}\n[registry.nodes]\n'v1.35.8' = 'kindest/node:v1.35.8'\n")
    wanted = settings.model_copy(update={"kubernetes": "1.35"})
    stack = resolve(RunContext(settings=wanted, progress=lambda _: None))
    assert (stack.kubernetes, stack.node_image) == ("v1.35.8", "kindest/node:v1.35.8")
    assert stack.versions["node_image"] == "kindest/node:v1.35.8"


def test_the_source_way_has_one_version() -> None:
    """Another one ends before anything is built, with the way out."""
    settings = Settings(versions_file=None, images="source", kubernetes="1.35")
    with pytest.raises(UsageError, match=r"only Kubernetes v1\.36\.3 can be built from source"):
        resolve(RunContext(settings=settings, progress=lambda _: None))


def test_version_and_node_image_are_not_both_obeyed() -> None:
    """The one that lost would be silently ignored."""
    settings = Settings(versions_file=None, kubernetes="1.35", node_image="mine:1")
    with pytest.raises(UsageError, match="both"):
        resolve(RunContext(settings=settings, progress=lambda _: None))


def test_a_lock_that_lacks_values_names_them(tmp_path: Path) -> None:
    """Every missing value, and where to compare."""
    file = tmp_path / "versions.toml"
    file.write_text('[registry]\nkubernetes = "v1"\n')
    with pytest.raises(UsageError) as error:
        versions.load(Settings(versions_file=file))
    assert "registry.node" in error.value.message
    assert "worker" in error.value.message
    assert error.value.exit_code == 64


def test_a_registry_mirror_uses_the_gateway_address() -> None:
    """The reference's registry host names the folder; only the mirror is asked, by the gateway's address."""
    path, content = mirror.hosts_file("localhost:5001", "http://{gateway}:5001/", "172.18.0.1")
    assert path == "/etc/containerd/certs.d/localhost:5001/hosts.toml"
    assert content.splitlines()[0] == 'server = "http://172.18.0.1:5001"'
    assert '[host."http://172.18.0.1:5001"]' in content
    assert mirror.patches({}) == ()
    assert mirror.parse_gateway("default via 172.18.0.1 dev eth0 \n") == "172.18.0.1"
