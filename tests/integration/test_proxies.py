"""All clients with a real proxy on loopback: the requests that the proxy receives, and their credentials. The
proxy is set in the environment, as on a company's machine, or in a kubeconfig.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import yaml
from kubernetes.client.exceptions import ApiException
from proxy_server import ProxyServer, proxy_server

from harness import provision, run
from harness.cli.main import main
from harness.context import RunContext
from harness.core import processes
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, UsageError
from harness.core.http_client import client
from harness.core.kubernetes import Kube
from harness.launch.konduktor.launch_process import Konduktor
from harness.observe.container_inspection import inspect_pods
from harness.provision.controllers.tracker import EmbeddedTracker
from harness.provision.images import registry_access, versions
from harness.provision.kind.nodes import KindNodes
from harness.provision.source.shell import build_command
from harness.settings import Settings
from harness.torchrun_sync.channel import Cut, PodRefused
from harness.torchrun_sync.exec_channel import opening

CREDENTIALS = "me:p@ss+word/=="
"""The base64 encoding of these credentials contains a plus sign and a slash."""
IN_URL = "me:p%40ss%2Bword%2F%3D%3D"
PASSWORD = "p@ss+word/=="
POD = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}}


@pytest.fixture
def server() -> Iterator[int]:
    """Yield the port of an API server that serves an empty object at every path, and rejects every exec with
    403."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"kind": "Status", "message": "refused here", "gitVersion": "v1.36.0"}).encode()
            self.send_response(403 if "Upgrade" in self.headers else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    yield http.server_port
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProxyServer]:
    """Yield a proxy that the environment sets for all requests, without exceptions."""
    with proxy_server() as running:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, running.url)
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield running


def kubeconfig(folder: Path, port: int, host: str = "127.0.0.1", **cluster: object) -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}", **cluster}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def uses(kube: Kube) -> None:
    """Send a request with each of the harness's API clients."""
    assert kube.silence(60) is None
    assert kube.fetch("/version").status == 200
    with EmbeddedTracker("http://tracker", "key").client(kube) as tracker:
        assert tracker.get("healthz").status_code == 200
    with pytest.raises(PodRefused, match="refused here"):
        opening(kube, "n", "p", "c", "/root", "/control")("session", Deadline.after(60))
    [inspected] = inspect_pods(kube, [POD], network=False)
    assert "refused here" in inspected.error or "403" in inspected.error


@pytest.mark.parametrize("exceptions", [None, "corp.example", "10.0.0.0/8,.svc"])
def test_loopback_requests_do_not_go_to_the_proxy(
    proxy: ProxyServer, server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exceptions: str | None
) -> None:
    if exceptions:
        monkeypatch.setenv("NO_PROXY", exceptions)
    uses(Kube(kubeconfig(tmp_path, server)))
    with client() as requests:
        assert requests.get(f"http://127.0.0.1:{server}/").status_code == 200
    assert proxy.asked == []


def test_a_kubeconfig_s_proxy_gets_every_request(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in kubectl, the proxy is used even for a loopback address or a host in NO_PROXY, and with a user
    name and a password."""
    monkeypatch.setenv("NO_PROXY", "*")
    with proxy_server(CREDENTIALS) as proxy:
        through = f"http://{IN_URL}@127.0.0.1:{proxy.port}"
        uses(Kube(kubeconfig(tmp_path, server, **{"proxy-url": through})))
        gets = [line for line in proxy.asked if line.startswith("GET")]
        assert len(gets) >= 3
        assert len(proxy.asked) - len(gets) == 2  # Both execs use CONNECT.
        assert proxy.refused == []


def test_host_that_proxy_alone_knows_is_reached_through_it(
    proxy: ProxyServer, server: int, tmp_path: Path
) -> None:
    proxy.elsewhere["api.invalid"] = server
    uses(Kube(kubeconfig(tmp_path, 6443, "api.invalid")))
    assert proxy.asked


def test_a_wrong_password_is_an_error_without_the_password(
    server: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with proxy_server("me:right") as proxy:
        kube = Kube(kubeconfig(tmp_path, server, **{"proxy-url": f"http://{IN_URL}@127.0.0.1:{proxy.port}"}))
        messages = [str(kube.silence(60))]
        with pytest.raises(ApiException) as failed:
            kube.fetch("/version", seconds=60)
        messages.append(str(failed.value))
        with pytest.raises((Cut, PodRefused)) as cut:
            opening(kube, "n", "p", "c", "/root", "/control")("session", Deadline.after(60))
        messages.append(str(cut.value))
        assert proxy.refused
        assert proxy.asked == []
    assert "407" in messages[0]
    for secret in (PASSWORD, IN_URL, "bWU6"):
        assert secret not in "\n".join([*messages, caplog.text])


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1", "socks5h://me:secret@127.0.0.1:1"])
def test_a_socks_proxy_of_a_kubeconfig_is_refused(server: int, tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="expected an http:// or https:// proxy") as refused:
        Kube(kubeconfig(tmp_path, server, **{"proxy-url": url}))
    assert refused.value.cause == "cluster.kubeconfig"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_socks_proxy_of_the_environment_is_one_message(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """There is not a message for each registry and host, and the message does not contain the password."""
    for each in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "socks5h://me:secret@127.0.0.1:1")
    [message] = registry_access.unreached(versions.load(Settings()).registry)
    found = "found a socks5h:// proxy, which the harness's clients do not support"
    assert message == f"{name.upper()}: expected an http:// or https:// proxy, {found}"
    with client() as downloads, pytest.raises(httpx.ProxyError) as refused:
        downloads.get("https://files.invalid/x")
    assert str(refused.value) == message


def test_a_command_refuses_a_socks_proxy_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5h://me:secret@127.0.0.1:1")
    config = kubeconfig(tmp_path, 6443, "api.invalid")
    with pytest.raises(SystemExit) as ended:
        main(["preflight", "--kubeconfig", str(config), "--context", "c"])
    assert ended.value.code == 64
    [sentence, advice] = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "harness: HTTP_PROXY: expected an http:// or https:// proxy, found a socks5h://"
    )
    assert advice.startswith("  → ")


@pytest.mark.parametrize("host", ["127.0.0.1:x", "[::1"])
def test_an_invalid_server_is_an_error_of_the_kubeconfig(tmp_path: Path, host: str) -> None:
    with pytest.raises(HarnessError) as refused:
        Kube(kubeconfig(tmp_path, 1, host))
    assert refused.value.cause == "cluster.kubeconfig"


def test_an_exec_through_a_tls_proxy_is_refused(server: int, tmp_path: Path) -> None:
    """The WebSocket client would send its request to the proxy's TLS port without encryption."""
    kube = Kube(kubeconfig(tmp_path, server, **{"proxy-url": "https://127.0.0.1:1"}))
    with pytest.raises(UsageError, match="works only through an http:// proxy"):
        opening(kube, "n", "p", "c", "/root", "/control")("session", Deadline.after(60))
    [inspected] = inspect_pods(kube, [POD], network=False)
    assert "works only through an http:// proxy" in inspected.error


@pytest.mark.parametrize(
    "exceptions", ["[::1]", "::1/128", "fe80::/10", "localhost, [::1]:80", "http://x", "*.corp,.svc"]
)
def test_download_does_not_depend_on_no_proxy_in_httpx(
    proxy: ProxyServer, server: int, monkeypatch: pytest.MonkeyPatch, exceptions: str
) -> None:
    """httpx.Client() raises InvalidURL for some of these (httpx#3221, basic-memory#1541)."""
    monkeypatch.setenv("NO_PROXY", exceptions)
    proxy.elsewhere["files.invalid"] = server
    with client() as downloads:
        assert downloads.get("http://files.invalid/x").status_code == 200
        assert downloads.get(f"http://127.0.0.1:{server}/x").status_code == 200
    assert proxy.asked == ["GET http://files.invalid/x"]


def test_a_download_honours_an_address_range(
    proxy: ProxyServer, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")
    with client(timeout=0.2) as downloads, pytest.raises(httpx.TransportError):
        downloads.get("http://192.0.2.1/x")  # an address for documentation, which no host has
    assert proxy.asked == []


def test_unsupported_proxy_is_error_of_its_request_alone(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx cannot even create a client if ALL_PROXY is a SOCKS proxy and its extra is missing."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    with client() as downloads:
        assert downloads.get(f"http://127.0.0.1:{server}/x").status_code == 200
        with pytest.raises(
            httpx.ProxyError, match="ALL_PROXY: expected an http:// or https:// proxy"
        ) as failed:
            downloads.get("http://files.invalid/x")
    assert "secret" not in str(failed.value)


def test_credentials_reach_the_proxy_of_a_download(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with proxy_server(CREDENTIALS) as proxy, client() as downloads:
        proxy.elsewhere["files.invalid"] = server
        monkeypatch.setenv("HTTP_PROXY", f"{IN_URL}@127.0.0.1:{proxy.port}")
        assert downloads.get("http://files.invalid/x").status_code == 200
        assert proxy.refused == []


PROGRAMS = {
    "kubectl": ["kubectl", "--server", "{server}", "get", "--raw", "/version"],
    "curl": ["curl", "--silent", "--fail", "{server}/version"],
    "urllib": [sys.executable, "-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1])", "{server}"],
    "requests": [sys.executable, "-c", "import sys, requests; requests.get(sys.argv[1])", "{server}"],
    "aiohttp": [
        sys.executable,
        "-c",
        "import aiohttp, asyncio, sys\n"
        "async def main():\n"
        "    async with aiohttp.ClientSession(trust_env=True) as session:\n"
        "        (await session.get(sys.argv[1])).raise_for_status()\n"
        "asyncio.run(main())",
        "{server}",
    ],
    "httpx": [sys.executable, "-c", "import httpx, sys; httpx.get(sys.argv[1])", "{server}"],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("exceptions", [{}, {"NO_PROXY": "corp.example", "no_proxy": "other.example"}])
def test_programs_that_harness_starts_bypass_proxy_for_loopback(
    proxy: ProxyServer, server: int, monkeypatch: pytest.MonkeyPatch, name: str, exceptions: dict[str, str]
) -> None:
    """curl and most libraries would send these requests to the proxy."""
    if shutil.which(PROGRAMS[name][0]) is None:
        pytest.skip(f"there is no {name}")
    for variable, value in exceptions.items():
        monkeypatch.setenv(variable, value)
    command = [
        word.format(server=f"http://127.0.0.1:{server}") if "{server}" in word else word
        for word in PROGRAMS[name]
    ]
    processes.run(command, timeout=120)
    assert proxy.asked == []


PRINTS = """
import json
from kubernetes.client import Configuration
print(json.dumps([Configuration().proxy, Configuration().proxy_headers]))
"""


def test_konduktor_s_client_gets_proxy_of_api_server(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """konduktor's version of the client reads neither the variables nor proxy-url."""
    monkeypatch.setattr("harness.launch.konduktor.launch_process.LIBRARIES", ("json",))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "konduktor"
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.write_text(f"#!{sys.executable}\n{PRINTS}")
    for path in (tmp_path / "bin").iterdir():
        path.chmod(0o755)
    kube = Kube(kubeconfig(tmp_path, server, **{"proxy-url": f"http://{IN_URL}@127.0.0.1:1"}))
    assert kube.proxy is not None
    with Konduktor(tmp_path / "state", program) as konduktor:
        for _ in range(2):  # the second launch uses another process
            given = json.loads(konduktor.launch(program, kube.proxy).stdout)
            assert given == ["http://127.0.0.1:1", kube.proxy.headers]
        assert konduktor.launch(program).stdout == "[null, null]\n"
        assert not any(PASSWORD in word or IN_URL in word for word in konduktor._command(program))


def test_kind_gets_no_proxy_that_nodes_cannot_reach(proxy: ProxyServer, tmp_path: Path) -> None:
    """kind passes its environment variables to the nodes. In this test, a program in place of kind prints
    them."""
    program, seen = tmp_path / "kind", tmp_path / "seen"
    program.write_text(f"#!/bin/sh\nenv >{seen}\n")
    program.chmod(0o755)
    KindNodes(Settings(kind_bin=str(program), state_dir=tmp_path))._kind(["create"], timeout=30)
    variables = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert "HTTPS_PROXY" in os.environ
    assert not {"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} & set(variables)
    assert "localhost" in variables["NO_PROXY"].split(",")


def test_docker_build_gets_names_of_variables_and_no_values(proxy: ProxyServer) -> None:
    """Docker reads the values from its environment, so they are in no process list and in no log."""
    command = build_command()
    arguments = [value for option, value in pairwise(command) if option == "--build-arg"]
    names = {"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"}
    assert set(arguments) == names
    assert names <= set(processes.environment())


def test_every_docker_build_uses_this_command() -> None:
    """An image whose build does not get the arguments cannot be built behind a proxy."""
    sources = {path.name: path.read_text() for path in Path(provision.__file__).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if '"docker", "build"' in text] == ["shell.py"]


def test_without_a_proxy_docker_build_gets_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    assert "--build-arg" not in build_command()


def test_a_bundle_has_no_password_of_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{IN_URL}@proxy.example:3128")
    settings = Settings(runs_dir=tmp_path / "runs")
    context = run._new_bundle(RunContext(settings=settings, progress=lambda _: None))
    context.writer.text("kind/kubeadm.log", f"uses proxy http://{IN_URL}@proxy.example:3128 ({PASSWORD})\n")
    written = (context.writer.path / "kind/kubeadm.log").read_text()
    assert "uses proxy" in written
    assert PASSWORD not in written
    assert IN_URL.partition(":")[2] not in written


def test_errors_of_the_harness_have_no_password(server: int, tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as refused:
        Kube(kubeconfig(tmp_path, server, **{"proxy-url": f"ftp://{IN_URL}@proxy"}))
    assert PASSWORD not in str(refused.value)
    assert IN_URL not in str(refused.value)
