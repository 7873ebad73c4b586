"""The installed wheel for a user without root privileges, behind a proxy, with an ASCII locale."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
from built_wheel import build
from proxy_server import ProxyServer, proxy_server
from user_account import ASCII, Account, account, obstacle

from harness.faults.recorded_bundles import extract

ROOT = Path(__file__).parents[2]
HOSTS = ("registry-1.docker.io", "registry.k8s.io", "github.com")
pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@pytest.fixture(scope="module")
def user() -> Iterator[Account]:
    with account() as created:
        yield created


@pytest.fixture(scope="module")
def program(user: Account, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the installed command in a virtual environment of the account."""
    return user.install(build(tmp_path_factory.mktemp("built"))) / "harness"


@pytest.fixture
def proxy() -> Iterator[ProxyServer]:
    """Yield a proxy that reaches no host, because it connects to a closed port on this machine for each of
    HOSTS."""
    with proxy_server("me:secret-word") as running:
        running.elsewhere.update(dict.fromkeys(HOSTS, 9))
        yield running


def run(user: Account, program: Path, proxy: ProxyServer, *words: object) -> tuple[int, str, str]:
    """Run a command of the harness, assert that it prints no traceback, and return its exit code, stdout and
    stderr."""
    proxies = dict.fromkeys(("HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), proxy.url)
    done = user.run([program, *words], **ASCII, **proxies)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in out + err, out + err
    assert "secret-word" not in out + err
    return done.returncode, out, err


@pytest.mark.nightly
def test_a_user_s_machine(user: Account, program: Path, proxy: ProxyServer) -> None:
    """Contract: help, doctor, a verdict and a report work, and the user owns the report."""
    code, out, err = run(user, program, proxy, "--help")
    assert (code, err) == (0, ""), err
    assert "judge" in out

    code, out, err = run(user, program, proxy, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert code in (0, 2), err
    docker = subprocess.run(["docker", "info"], capture_output=True, check=False) if which("docker") else None
    assert checks["Docker daemon"]["ok"] == (docker is not None and docker.returncode == 0)
    assert "HTTP_PROXY is http://127.0.0.1:" in checks["HTTP proxy"]["seen"]
    assert {line for line in proxy.asked if "127.0.0.1" in line or "localhost" in line} == set()

    bundle = extract(ROOT / "tests/recorded/client-drop-point.tar.xz", user.home / "my runs" / "one")
    user.own(bundle.parent)
    code, out, err = run(user, program, proxy, "judge", "--json", bundle)
    verdict = json.loads(out)
    assert (code, verdict["verdict"], verdict["cause"]) == (1, "FAIL", "unification.lost_points"), err

    page = bundle / "report.html"
    page.unlink(missing_ok=True)
    code, _, err = run(user, program, proxy, "report", bundle)
    assert code == 0, err
    assert "unification.lost_points" in page.read_text(encoding="utf-8")
    assert page.stat().st_uid == user.home.stat().st_uid
    assert proxy.refused == []
