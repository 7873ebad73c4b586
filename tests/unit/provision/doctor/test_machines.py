"""What doctor says on machines that are not Debian with a Docker Engine of its own.

A program in place of `docker` prints what such a machine prints. It shows only that the output is understood.
"""

from __future__ import annotations

from pathlib import Path

import fake_docker
import pytest

from harness.core.errors import HarnessError
from harness.provision.doctor import checks, install_advice, probe, repair
from harness.provision.doctor.check_results import Check
from harness.provision.images import registry_access
from harness.provision.kind import docker_check
from harness.settings import Settings

UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.2 LTS"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n'
MINT = 'ID=linuxmint\nID_LIKE="ubuntu debian"\n'
FEDORA = 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=43\n'
DEBIAN = "ID=debian\nVERSION_CODENAME=trixie\n"
ARCH = "ID=arch\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH, on a machine without proxy and without a DOCKER_HOST."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(probe, "SEARCH_PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(registry_access, "unreached", lambda _registry: [])
    for name in ("DOCKER_HOST", docker_check.PROVIDER, *PROXIES):
        monkeypatch.delenv(name, raising=False)
    return folder


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def checked(tmp_path: Path, **fields: object) -> dict[str, Check]:
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state", **fields)
    return {check.name: check for check in checks.checks(settings)}


@pytest.mark.parametrize("version", [fake_docker.PODMAN, fake_docker.PODMAN_SOCKET])
def test_podman_is_refused_by_name(path: Path, tmp_path: Path, version: str) -> None:
    """As the program (podman-docker), and as the daemon behind DOCKER_HOST."""
    fake_docker.install(path, version, '{"host": {"arch": "amd64"}, "store": {}}')
    daemon = checked(tmp_path)["Docker daemon"]
    assert daemon.failed
    assert "Podman" in daemon.seen
    with pytest.raises(HarnessError, match="expected Docker, but `docker` is Podman") as refused:
        docker_check.daemon()
    assert refused.value.cause == "docker.unsupported"
    assert "DOCKER_HOST" in refused.value.hint


def test_podman_is_not_replaced(tmp_path: Path) -> None:
    """Docker's packages conflict with podman-docker, which apt would remove."""
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    podman = Check("Docker daemon", False, docker_check.PODMAN, "Docker", docker_check.NO_PODMAN)
    assert repair.needed_packages([podman], settings, None) == []


def test_podman_alone_is_no_docker(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "podman").write_text("#!/bin/sh\n")
    (path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(probe, "SEARCH_PATH", str(path))
    assert "Podman cannot replace Docker" in checked(tmp_path)["Docker client"].seen
    with pytest.raises(HarnessError, match="Podman cannot replace Docker"):
        docker_check.daemon()


@pytest.mark.parametrize("provider", ["podman", "nerdctl"])
def test_another_provider_of_kind_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    fake_docker.install(path, fake_docker.ENGINE, fake_docker.info())
    docker_check.daemon()
    monkeypatch.setenv(docker_check.PROVIDER, provider)
    with pytest.raises(HarnessError, match=f"{docker_check.PROVIDER} is {provider}"):
        docker_check.daemon()


@pytest.mark.parametrize(
    ("version", "driver", "fits"),
    [("2", "systemd", True), ("1", "none", False), ("2", "cgroupfs", False)],
)
def test_rootless_docker_needs_cgroups_v2_with_systemd(
    path: Path, tmp_path: Path, version: str, driver: str, fits: bool
) -> None:
    options = ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]
    info = fake_docker.info(CgroupVersion=version, CgroupDriver=driver, SecurityOptions=options)
    fake_docker.install(path, fake_docker.ENGINE, info)
    cgroups = checked(tmp_path)["cgroups"]
    assert cgroups.ok is fits
    assert "rootless" in cgroups.seen
    assert "Delegate=" in cgroups.fix


def test_docker_desktop_is_named(path: Path, tmp_path: Path) -> None:
    """Its folder of data is in a virtual machine, so its disk is not measured."""
    fake_docker.install(path, fake_docker.ENGINE, fake_docker.info(OperatingSystem="Docker Desktop"))
    found = checked(tmp_path)
    assert "Docker Desktop" in found["Docker daemon"].seen
    assert "disk, Docker" not in found


@pytest.mark.parametrize(
    ("system", "program", "advice"),
    [
        (UBUNTU, "docker", "apt-get install docker.io docker-buildx"),
        (MINT, "kubectl", "snap install kubectl"),
        (FEDORA, "docker", "dnf install moby-engine"),
        (FEDORA, "go", "dnf install golang"),
        (DEBIAN, "docker", "`harness doctor --fix` as root"),
        (ARCH, "docker", "install Docker Engine or Docker Desktop"),
        ("", "python", "install Python 3.11 or newer"),
    ],
)
def test_advice_has_the_package_names_of_the_system(system: str, program: str, advice: str) -> None:
    assert advice in install_advice.advice(program, system)


def test_advice_for_kind_names_a_version_and_path(tmp_path: Path) -> None:
    away = {"HOME": str(tmp_path)}
    assert "go install sigs.k8s.io/kind@v0.33.0" in install_advice.kind_advice("v0.33.0", FEDORA, away)
    assert "add `$(go env GOPATH)/bin` to PATH" in install_advice.kind_advice("v0.33.0", FEDORA, away)
    assert install_advice.kind_advice("v0.33.0", DEBIAN, away).startswith("`harness doctor --fix` as root")


@pytest.mark.parametrize("variable", ["HOME", "GOPATH", "GOBIN"])
def test_a_kind_that_go_installed_off_path_is_found(tmp_path: Path, variable: str) -> None:
    below = {"HOME": "go/bin", "GOPATH": "bin", "GOBIN": ""}[variable]
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kind").write_text("#!/bin/sh\n")
    (folder / "kind").chmod(0o755)
    advice = install_advice.kind_advice("v0.33.0", FEDORA, {variable: str(tmp_path)})
    assert advice == f'kind is in {folder}, which is not on PATH: `export PATH="{folder}:$PATH"`'


@pytest.mark.parametrize(
    ("variables", "daemon", "ok", "message"),
    [
        (
            {"HTTPS_PROXY": "http://me:secret@proxy:3128"},
            {"HttpsProxy": "http://xxxxx:xxxxx@proxy"},
            True,
            "",
        ),
        ({"HTTPS_PROXY": "http://me:secret@proxy:3128"}, {}, False, "Docker has none"),
        (
            {"https_proxy": "http://me:secret@127.0.0.1:1"},
            {"HttpsProxy": "http://p"},
            False,
            "nodes do not use this proxy, because they cannot reach",
        ),
        ({"ALL_PROXY": "socks5://me:secret@proxy"}, {}, False, "found a socks5:// proxy"),
    ],
)
def test_proxy_that_docker_or_nodes_cannot_use_is_warning(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    daemon: dict[str, str],
    ok: bool,
    message: str,
) -> None:
    fake_docker.install(path, fake_docker.ENGINE, fake_docker.info(**daemon))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = checked(tmp_path)["HTTP proxy"]
    assert (proxy.ok, proxy.required) == (ok, False)
    assert message in proxy.seen
    assert "secret" not in repr(proxy)


@pytest.mark.parametrize("images", ["auto", "registry"])
def test_doctor_asks_the_hosts_of_a_launch(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: str
) -> None:
    """The same function decides for both."""
    monkeypatch.setattr(
        registry_access, "unreached", lambda registry: [f"{registry.kueue.manifest}: HTTP 503"]
    )
    fake_docker.install(path, fake_docker.ENGINE, fake_docker.info())
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = checked(tmp_path, images=images)["images"]
    assert found.failed
    assert "HTTP 503" in found.seen
    assert ("only root can build them" in found.seen) == (images == "auto")
    assert "HTTPS_PROXY" in found.fix
