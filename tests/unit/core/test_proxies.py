"""Which proxy a request uses, which variables other programs get, and that no credentials are shown."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import processes, proxies
from harness.core.errors import UsageError
from harness.core.proxies import Proxy, proxy_of, proxy_of_cluster

ROOT = Path(__file__).parents[3]
PROXY = "http://proxy.example:3128"
SECRET = "p@ss/word"  # written as p%40ss%2Fword in a URL
FULL = "http://me:p%40ss%2Fword@proxy.example:3128"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost", "LOCALHOST"])
@pytest.mark.parametrize("exceptions", [{}, {"NO_PROXY": "corp.example"}, {"no_proxy": ""}])
def test_a_loopback_address_never_uses_a_proxy(host: str, exceptions: dict[str, str]) -> None:
    environment = {"HTTPS_PROXY": PROXY, "http_proxy": PROXY, "ALL_PROXY": PROXY, **exceptions}
    for scheme in ("http", "https"):
        assert proxy_of(f"{scheme}://{host}:6443/api", environment) is None


@pytest.mark.parametrize("host", ["10.96.0.1", "tracker.harness-system.svc", "a.b.svc.cluster.local"])
def test_the_cluster_s_addresses_never_use_a_proxy(host: str) -> None:
    """Some clusters give every pod the variables of a proxy, which cannot resolve the cluster's names."""
    pod = {"HTTPS_PROXY": PROXY, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert proxy_of_cluster(f"https://{host}:443", None, pod) is None
    assert proxy_of_cluster("https://10.96.0.2:443", None, pod) is not None


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("*", "https://anything.example"),
        ("example.com", "https://example.com"),
        ("example.com", "https://api.example.com:6443"),
        (".example.com", "https://api.example.com"),
        (".example.com", "https://example.com"),
        ("*.example.com", "https://api.example.com"),
        ("EXAMPLE.com", "https://Api.Example.COM"),
        ("example.com", "https://api.example.com."),
        ("example.com:6443", "https://example.com:6443"),
        ("example.com:443", "https://example.com"),
        ("10.1.2.3", "https://10.1.2.3:6443"),
        ("10.0.0.0/8", "https://10.1.2.3:6443"),
        ("10.1.2.3/8", "https://10.9.9.9"),
        ("fd00::/8", "https://[fd00::1]:6443"),
        ("fd00::1", "https://[fd00::1]"),
        ("[fd00::1]", "https://[fd00::1]"),
        ("[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("a.example, b.example", "https://b.example"),
        ("a.example b.example", "https://b.example"),
    ],
)
def test_a_host_in_no_proxy_is_reached_directly(entry: str, url: str) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        assert proxy_of(url, {"HTTPS_PROXY": PROXY, name: entry}) is None


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("", "https://example.com"),
        (",", "https://example.com"),
        (".", "https://example.com"),
        ("ample.com", "https://example.com"),
        ("example.com:8443", "https://example.com:6443"),
        ("10.0.0.0/8", "https://192.0.2.1"),
        ("10.0.0.0/8", "https://ten.example"),
        ("0.0.1", "https://10.0.0.1"),
        ("[::1]", "https://example.com"),
        ("fe80::/10", "https://example.com"),
        ("::ffff:0:0/96:x", "https://example.com"),
    ],
)
def test_another_host_uses_the_proxy(entry: str, url: str) -> None:
    assert str(proxy_of(url, {"https_proxy": PROXY, "NO_PROXY": entry})) == PROXY


@given(entry=st.text(), host=st.sampled_from(["example.com", "[fd00::1]", "10.1.2.3"]))
def test_no_value_of_no_proxy_is_an_error(entry: str, host: str) -> None:
    """httpx cannot create a client for `[::1]` (basic-memory#1541) and `fe80::/10` (httpx#3221)."""
    assert proxy_of(f"https://{host}", {"HTTPS_PROXY": PROXY, "NO_PROXY": entry}) in (
        None,
        Proxy.parse(PROXY, ""),
    )


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"HTTPS_PROXY": "upper:1", "https_proxy": "lower:2"}, "https://a.example", "http://lower:2"),
        ({"HTTPS_PROXY": "upper:1", "https_proxy": ""}, "https://a.example", "None"),
        ({"HTTP_PROXY": "plain:1"}, "https://a.example", "None"),
        ({"ALL_PROXY": "every:1"}, "http://a.example", "http://every:1"),
        ({"HTTPS_PROXY": "https://tls.example"}, "https://a.example", "https://tls.example:443"),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128/"}, "https://a.example", "http://[fd00::1]:3128"),
        ({"HTTPS_PROXY": " proxy.example:3128 "}, "https://a.example", PROXY),
    ],
)
def test_the_variable_of_the_scheme_chooses_the_proxy(
    environment: dict[str, str], url: str, proxy: str
) -> None:
    assert str(proxy_of(url, environment)) == proxy


def test_a_kubeconfig_s_proxy_replaces_the_variables() -> None:
    """As in kubectl: proxy-url is for loopback addresses too, and for hosts in NO_PROXY."""
    environment = {"HTTPS_PROXY": "http://other:1", "NO_PROXY": "*"}
    assert str(proxy_of_cluster("https://127.0.0.1:6443", PROXY, environment)) == PROXY
    assert proxy_of_cluster("https://127.0.0.1:6443", "", environment) is None
    assert proxy_of_cluster("https://api.example", "", {"ALL_PROXY": PROXY}) is None  # kubectl ignores it


@pytest.mark.parametrize(
    "url", ["socks5://me:secret@proxy:1080", "socks5h://me:secret@proxy", "ftp://me:secret@proxy"]
)
def test_an_unsupported_proxy_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(UsageError, match=r"^proxy-url of the kubeconfig: .*found a \w+:// proxy") as refused:
        proxy_of_cluster("https://api.example", url, {})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://", "http://me:secret@:80", "http://me:secret@proxy:port", "http://me:secret@[::1"]
)
def test_an_invalid_proxy_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(UsageError, match="HTTPS_PROXY: expected the URL of a proxy") as refused:
        proxy_of("https://api.example", {"HTTPS_PROXY": url})
    assert "secret" not in str(refused.value)


def test_credentials_are_in_the_header_alone() -> None:
    proxy = Proxy.parse(FULL, "HTTPS_PROXY")
    assert proxy.credentials == ("me", SECRET)
    assert proxy.headers == {"proxy-authorization": "Basic bWU6cEBzcy93b3Jk"}
    assert SECRET not in repr(proxy) + str(proxy)
    assert str(proxy) == PROXY
    assert list(proxies.secrets({"HTTPS_PROXY": FULL})) == ["p%40ss%2Fword", SECRET]
    assert list(proxies.secrets({"http_proxy": PROXY, "all_proxy": "user@host:1"})) == []


def test_programs_connect_directly_to_loopback_addresses() -> None:
    """Both variables become equal, because each program reads another one."""
    given = {"HTTPS_PROXY": PROXY, "NO_PROXY": "a.example", "no_proxy": "b.example,[::1]", "PATH": "/bin"}
    changed = proxies.with_exceptions(given)
    assert changed["NO_PROXY"] == changed["no_proxy"]
    assert changed["NO_PROXY"].split(",") == [
        "a.example",
        "b.example",
        "::1",
        "localhost",
        "127.0.0.1",
        "127.0.0.0/8",
    ]
    assert changed["PATH"] == "/bin"
    assert proxies.with_exceptions({"NO_PROXY": "a"}) == {"NO_PROXY": "a"}
    assert proxies.with_exceptions({"http_proxy": PROXY, "NO_PROXY": "a,*"})["no_proxy"] == "*"


def test_containers_get_no_proxy_on_a_loopback_address() -> None:
    """A container with its own network cannot reach it (kind#1459, kind#4084)."""
    given = {"HTTPS_PROXY": "http://localhost:3128", "http_proxy": "127.0.0.1:3128", "HTTP_PROXY": PROXY}
    kept = proxies.for_containers(given)
    assert kept["HTTP_PROXY"] == PROXY
    assert not {"HTTPS_PROXY", "http_proxy"} & set(kept)
    assert proxies.unreachable_from_containers(given) == ["http_proxy", "HTTPS_PROXY"]


CLIENTS = {
    "Client",
    "AsyncClient",
    "HTTPTransport",
    "get",
    "head",
    "post",
    "put",
    "patch",
    "delete",
    "request",
    "stream",
}
ALLOWED = {"httpx": "core/http_client.py", "Configuration": "core/kubernetes.py"}
IN_PODS = ("workers/", "faults/files/", "provision/controllers/files/", "torchrun_sync/pod/")


def _unrouted(path: Path, where: str) -> Iterator[str]:
    """Yield the calls in a file that leave the choice of a proxy to a library or to a program."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = getattr(node.func.value, "id", ""), node.func.attr
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        alone = ast.unparse(given["trust_env"]) if "trust_env" in given else ""
        if owner == "httpx" and name in CLIENTS and where != ALLOWED["httpx"] and alone != "False":
            yield f"{where}:{node.lineno}: httpx.{name} instead of harness.core.http_client"
        if name == "Configuration" and where != ALLOWED[name]:
            yield f"{where}:{node.lineno}: a client of an API server instead of harness.core.kubernetes.Kube"
        if name == "urlopen":
            yield f"{where}:{node.lineno}: urlopen instead of harness.core.http_client"
        if owner == "subprocess" and name in {"run", "Popen", "call", "check_output"}:
            own = any(keyword.arg is None for keyword in node.keywords)
            if "env" not in given and not own:
                yield f"{where}:{node.lineno}: subprocess.{name} without env=environment()"


def test_no_code_leaves_choice_of_proxy_to_library() -> None:
    """Contract: requests use http_client or Kube, and programs get the variables of `environment`.

    Code that runs in pods is not meant, because pods get no proxy.
    """
    found = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        where = path.relative_to(ROOT / "harness").as_posix()
        if not where.startswith((*IN_PODS, "fixtures/")):
            found += _unrouted(path, where)
    assert found == []


def test_every_program_gets_the_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: with and without an environment of its own."""
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for env in (None, processes.environment({"A": "1"}), processes.environment(only=("PATH", "HTTPS_PROXY"))):
        done = processes.run(["sh", "-c", "echo $NO_PROXY $no_proxy"], timeout=30, env=env)
        assert done.stdout.count("127.0.0.1") == 2
    assert "NO_PROXY" not in processes.environment(only=("PATH",))
