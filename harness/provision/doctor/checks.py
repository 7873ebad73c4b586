"""Check whether the machine can run the harness.

Each result has the found and the expected state, and a fix.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.provision import platforms
from harness.provision.doctor import probe
from harness.provision.doctor.check import GIB, Check, at_least, version_of
from harness.settings import Settings

# From this version on, a privileged container gets only the capabilities that dockerd has. dockerd 20.10
# requires all capabilities.
DOCKER_BOUNDED = (23, 0)
KIND = (0, 33)
GO = (1, 26)
PYTHON = (3, 11)

DISK_SOURCE = 25 * GIB
DISK_REGISTRY = 12 * GIB
MEMORY = 6 * GIB
CORES = 2
INOTIFY = {"max_user_instances": 512, "max_user_watches": 65536}

REPAIR = "`harness doctor --fix` as root on Debian"


def checks(settings: Settings) -> list[Check]:
    """Run all checks, in the order in which to repair failures.

    This takes about a second and changes nothing.
    """
    registries = probe.registries()
    source = settings.images == "source" or (settings.images == "auto" and any(registries.values()))
    info, problem = probe.docker_info()
    found = [_python(), _client(), _daemon(info, problem)]
    if info:
        found += [_platform(info), _privileged(info), _cgroup(info)]
    found += [_buildx(), _kind(settings), _kubectl(settings), _go(source), _mmdebstrap(source)]
    found += _disk(settings, info, source)
    found += [_memory(info), _cores(info), *_inotify()]
    found += [_registry(name, problem) for name, problem in registries.items()]
    return found


def _python() -> Check:
    return Check(
        "Python",
        sys.version_info >= PYTHON,
        platform.python_version(),
        "≥ 3.11",
        "install Python 3.11 or newer, `make clean`, and run make again with PYTHON=python3.11",
    )


def _client() -> Check:
    answer = probe.ask("docker", "--version")
    fix = f"{REPAIR}; elsewhere install Docker Engine or Docker Desktop from your system's packages"
    return Check("Docker client", answer.ok, answer.last_line, "docker on PATH", fix)


def _daemon(info: dict[str, Any], problem: str) -> Check:
    if info:
        return Check("Docker daemon", True, f"{info['ServerVersion']}, {info.get('Driver', '?')}", "answers")
    if host := os.environ.get("DOCKER_HOST"):
        fix = f"DOCKER_HOST is {host}: start the daemon there, or unset DOCKER_HOST to use this machine's"
    elif "permission denied" in problem.lower():
        fix = "add yourself to the docker group (`sudo usermod -aG docker $USER`, then log in again)"
    else:
        fix = f"{REPAIR}; elsewhere `sudo systemctl start docker`, or start Docker Desktop"
    return Check("Docker daemon", False, problem, "answers `docker info`", fix)


def _platform(info: dict[str, Any]) -> Check:
    """Check that images exist for the platform of the Docker server, and that nothing is emulated.

    With another DOCKER_DEFAULT_PLATFORM, kind's nodes would run in an emulator, in which systemd fails.
    """
    server = f"{info.get('OSType', 'linux')}/{info.get('Architecture', '?')}"
    chosen = os.environ.get(platforms.DEFAULT, "")
    try:
        own = platforms.parse(server)
        ok = not chosen or platforms.parse(chosen) == own
    except UsageError:
        ok = False
    seen = f"{server}, {platforms.DEFAULT}={chosen}" if chosen else server
    fix = f"unset {platforms.DEFAULT}, and use a Docker server for Linux on amd64 or arm64"
    return Check("Docker platform", ok, seen, " or ".join(platforms.SUPPORTED), fix)


def _privileged(info: dict[str, Any]) -> Check:
    """Check that privileged containers work, because kind's nodes are privileged containers.

    If a local image exists, a privileged container is run from it.
    """
    worked, seen = probe.privileged_run()
    if worked is None:
        withheld = probe.capabilities_withheld()
        worked = at_least(version_of(info["ServerVersion"]), DOCKER_BOUNDED) or not withheld
        seen = f"{info['ServerVersion']}, {seen}"
        if withheld:
            seen += f"; this machine withholds capabilities {', '.join(map(str, withheld))}"
    return Check(
        "privileged containers",
        worked,
        seen,
        "work (kind's nodes need them); Docker ≥ 23 where the machine withholds capabilities",
        "doctor does not stop a running daemon: end its containers, stop it, then "
        + REPAIR
        + " installs a newer one; in a container without privileges of its own, use another machine",
    )


def _cgroup(info: dict[str, Any]) -> Check:
    version = str(info.get("CgroupVersion", "1"))
    seen = f"v{version}, {info.get('CgroupDriver', '?')}"
    if version == "1":
        seen += ": the kubelet gets failCgroupV1: false, and nodes need systemd < 257"
    return Check("cgroups", version in {"1", "2"}, seen, "v2, or v1", "boot with cgroups v2")


def _buildx() -> Check:
    answer = probe.ask("docker", "buildx", "version")
    fix = f"{REPAIR}; elsewhere install the buildx plugin of your Docker"
    return Check("docker buildx", answer.ok, answer.last_line, "builds the worker image", fix)


def _kind(settings: Settings) -> Check:
    answer = probe.ask(settings.kind_bin, "version")
    fix = f"{REPAIR}; elsewhere `go install sigs.k8s.io/kind@v0.33.0`, or set its path with --kind-bin"
    return Check(
        "kind", answer.ok and at_least(version_of(answer.text), KIND), answer.last_line, "≥ 0.33", fix
    )


def _kubectl(settings: Settings) -> Check:
    answer = probe.ask(settings.kubectl_bin, "version", "--client")
    version = version_of(answer.text) if answer.ok else None
    seen = ".".join(map(str, version)) if version else answer.last_line
    fix = f"{REPAIR}; elsewhere install kubectl, or set its path with --kind-kubectl-bin"
    return Check("kubectl", version is not None, seen, "any", fix)


def _go(source: bool) -> Check:
    answer = probe.ask("go", "version")
    ok = answer.ok and at_least(version_of(answer.text), GO)
    fix = f"{REPAIR}; elsewhere install Go 1.26 or newer"
    return Check("Go", ok, answer.last_line, _for_source("≥ 1.26", source), fix, required=source)


def _mmdebstrap(source: bool) -> Check:
    path = probe.which("mmdebstrap")
    expected = _for_source("installed", source)
    fix = f"{REPAIR}; elsewhere install mmdebstrap from your system's packages"
    return Check("mmdebstrap", path is not None, path or "not found", expected, fix, required=source)


def _for_source(expected: str, source: bool) -> str:
    return (
        f"{expected}, to build images from source"
        if source
        else f"{expected}; images come from registries here"
    )


def _disk(settings: Settings, info: dict[str, Any], source: bool) -> list[Check]:
    needed = DISK_SOURCE if source else DISK_REGISTRY
    places = {"disk, cache": probe.existing(settings.cache_dir)}
    root = Path(info.get("DockerRootDir") or "/var/lib/docker")
    if root.is_dir():  # Docker Desktop has this folder in a virtual machine
        places["disk, Docker"] = root
    found = []
    for name, place in places.items():
        free = shutil.disk_usage(place).free
        seen = f"{free / GIB:.1f} GiB free at {place}"
        fix = f"free {(needed - free) / GIB:.1f} GiB there (`docker system df`), or set HARNESS_CACHE_DIR"
        found.append(Check(name, free >= needed, seen, f"≥ {needed // GIB} GiB free", fix))
    return found


def _memory(info: dict[str, Any]) -> Check:
    total = info.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "give the machine (or Docker Desktop) more memory, or run with HARNESS_WORKERS=0"
    return Check("memory", total >= MEMORY, f"{total / GIB:.1f} GiB", f"≥ {MEMORY // GIB} GiB", fix)


def _cores(info: dict[str, Any]) -> Check:
    cores = info.get("NCPU") or os.cpu_count() or 0
    return Check(
        "cores", cores >= CORES, str(cores), f"≥ {CORES}", "give the machine (or Docker Desktop) more"
    )


def _inotify() -> list[Check]:
    """Check inotify limits.

    Each node runs systemd, a kubelet and containerd. If the limits are too low, one of these programs fails
    with 'too many open files'.
    """
    found = []
    for name, wanted in INOTIFY.items():
        seen = probe.kernel_number(Path("/proc/sys/fs/inotify") / name)
        if seen is not None:
            fix = f"`sudo sysctl fs.inotify.{name}={wanted}`, or {REPAIR}"
            ok = seen >= wanted
            found.append(Check(f"inotify {name}", ok, str(seen), f"≥ {wanted}", fix, required=False))
    return found


def _registry(name: str, problem: str) -> Check:
    expected = "reached, or images are built from source"
    return Check(f"registry {name}", not problem, problem or "reached", expected, required=False)
