"""Check whether the machine can run the harness.

Each result contains the actual state, the expected state and a fix.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from harness.context import RunContext
from harness.core import proxies
from harness.core.errors import UsageError
from harness.core.proxies import Proxy
from harness.provision import platforms
from harness.provision.doctor import probe
from harness.provision.doctor.check_results import GIB, Check, at_least, version_of
from harness.provision.doctor.install_advice import REPAIR, advice, kind_advice
from harness.provision.images import versions
from harness.provision.images.origin import Origin, origin
from harness.provision.kind.docker_check import NO_PODMAN, PODMAN, is_podman
from harness.provision.source import versions as source_versions
from harness.settings import Settings

# Since Docker 23, a privileged container gets only the capabilities that dockerd itself has. Older versions,
# such as 20.10, fail unless dockerd has all capabilities.
DOCKER_BOUNDED = (23, 0)
KIND = (0, 33)
GO = (1, 26)
PYTHON = (3, 11)

DISK_SOURCE = 25 * GIB
DISK_REGISTRY = 12 * GIB
MEMORY = 6 * GIB
CORES = 2
INOTIFY = {"max_user_instances": 512, "max_user_watches": 65536}


def checks(settings: Settings) -> list[Check]:
    """Run all checks, in the order in which failures should be repaired.

    This takes about a second, or longer if registries do not respond. It changes nothing.
    """
    image_origin = origin(versions.load(settings), RunContext(settings=settings, progress=lambda _: None))
    source = image_origin.image_source == "source"
    info, problem = probe.docker_info()
    results = [_python(), _client(), _daemon(info, problem)]
    if info:
        results += [_platform(info), _privileged(info), _cgroup(info)]
    results += [_buildx(), _kind(settings), _kubectl(settings), _go(source), _mmdebstrap(source)]
    results += _disk(settings, info, source)
    results += [_memory(info), _cores(info), *_inotify()]
    return [*results, _images(image_origin), *_proxy(info, image_origin)]


def _python() -> Check:
    return Check(
        "Python",
        sys.version_info >= PYTHON,
        platform.python_version(),
        "≥ 3.11",
        f"{advice('python')}, run `make clean`, and run make again with PYTHON=python3.11",
    )


def _client() -> Check:
    result = probe.run("docker", "--version")
    state = result.last_line
    if not result.ok and probe.which("podman"):
        state += "; Podman cannot replace Docker"
    return Check("Docker client", result.ok, state, "docker on PATH", advice("docker"))


def _daemon(info: dict[str, Any], problem: str) -> Check:
    if is_podman(probe.run("docker", "version").text):
        return Check("Docker daemon", False, PODMAN, "Docker Engine or Docker Desktop", NO_PODMAN)
    if info:
        system = info.get("OperatingSystem") or "?"
        state = f"{info['ServerVersion']}, {info.get('Driver', '?')}, {system}"
        return Check("Docker daemon", True, state, "answers")
    if host := os.environ.get("DOCKER_HOST"):
        fix = (
            f"DOCKER_HOST is {host}: start the Docker daemon at this address, or unset DOCKER_HOST to use "
            "this machine's "
            "daemon"
        )
    elif "permission denied" in problem.lower():
        fix = "add yourself to the docker group (`sudo usermod -aG docker $USER`, then log in again)"
    else:
        fix = f"{advice('docker')}, then run `sudo systemctl start docker`, or start Docker Desktop"
    return Check("Docker daemon", False, problem, "answers `docker info`", fix)


def _platform(info: dict[str, Any]) -> Check:
    """Check that images exist for the Docker server's platform, and that nothing is emulated.

    With a different DOCKER_DEFAULT_PLATFORM, kind's nodes would run in an emulator, in which systemd fails.
    """
    server = f"{info.get('OSType', 'linux')}/{info.get('Architecture', '?')}"
    requested = os.environ.get(platforms.DEFAULT, "")
    try:
        own = platforms.parse(server)
        ok = not requested or platforms.parse(requested) == own
    except UsageError:
        ok = False
    state = f"{server}, {platforms.DEFAULT}={requested}" if requested else server
    fix = f"unset {platforms.DEFAULT}, and use a Docker server for Linux on amd64 or arm64"
    return Check("Docker platform", ok, state, " or ".join(platforms.SUPPORTED), fix)


def _privileged(info: dict[str, Any]) -> Check:
    """Check that privileged containers work, because kind's nodes are privileged containers.

    If a local image exists, a privileged container is run from it.
    """
    worked, text = probe.privileged_run()
    if worked is None:
        withheld = probe.capabilities_withheld()
        worked = at_least(version_of(info["ServerVersion"]), DOCKER_BOUNDED) or not withheld
        text = f"{info['ServerVersion']}, {text}"
        if withheld:
            text += f"; capabilities that this machine does not grant: {', '.join(map(str, withheld))}"
    return Check(
        "privileged containers",
        worked,
        text,
        (
            "privileged containers can run, which kind's nodes require; Docker ≥ 23 if the machine does "
            "not grant "
            "all capabilities"
        ),
        "stop all containers and the Docker daemon, then install a newer Docker version: "
        f"{advice('docker')}. If this machine is itself a container without privileges, use another machine",
    )


def _cgroup(info: dict[str, Any]) -> Check:
    version = str(info.get("CgroupVersion", "1"))
    if "name=rootless" in (info.get("SecurityOptions") or []):
        return Check(
            "cgroups",
            version == "2" and info.get("CgroupDriver") == "systemd",
            f"v{version}, {info.get('CgroupDriver', '?')}, rootless Docker",
            "v2 with the systemd driver, which rootless Docker needs",
            "boot with cgroups v2 and systemd, and delegate cpu, cpuset, io, memory and pids to users "
            "(Delegate= in user@.service); or use Docker as root",
        )
    text = f"v{version}, {info.get('CgroupDriver', '?')}"
    if version == "1":
        text += ": the kubelet runs with failCgroupV1: false, and the nodes need systemd < 257"
    return Check("cgroups", version in {"1", "2"}, text, "v2, or v1", "boot with cgroups v2")


def _buildx() -> Check:
    result = probe.run("docker", "buildx", "version")
    return Check("docker buildx", result.ok, result.last_line, "builds the worker image", advice("buildx"))


def _kind(settings: Settings) -> Check:
    result = probe.run(settings.kind_bin, "version")
    locked = source_versions.load(settings.model_copy(update={"versions_file": None}))
    fix = kind_advice(locked.kind)
    return Check(
        "kind", result.ok and at_least(version_of(result.text), KIND), result.last_line, "≥ 0.33", fix
    )


def _kubectl(settings: Settings) -> Check:
    result = probe.run(settings.kubectl_bin, "version", "--client")
    version = version_of(result.text) if result.ok else None
    text = ".".join(map(str, version)) if version else result.last_line
    fix = f"{advice('kubectl')}, or set HARNESS_KUBECTL_BIN to its path"
    return Check("kubectl", version is not None, text, "any", fix)


def _go(source: bool) -> Check:
    result = probe.run("go", "version")
    ok = result.ok and at_least(version_of(result.text), GO)
    return Check("Go", ok, result.last_line, _for_source("≥ 1.26", source), advice("go"), required=source)


def _mmdebstrap(source: bool) -> Check:
    path = probe.which("mmdebstrap")
    expected = _for_source("installed", source)
    return Check("mmdebstrap", path is not None, path or "not found", expected, REPAIR, required=source)


def _for_source(expected: str, source: bool) -> str:
    return (
        f"{expected}, to build images from source"
        if source
        else f"{expected} (optional, because images come from registries)"
    )


def _disk(settings: Settings, info: dict[str, Any], source: bool) -> list[Check]:
    needed = DISK_SOURCE if source else DISK_REGISTRY
    places = {"disk, cache": probe.existing(settings.cache_dir)}
    root = Path(info.get("DockerRootDir") or "/var/lib/docker")
    # With Docker Desktop, this folder exists only in a virtual machine.
    if root.is_dir():
        places["disk, Docker"] = root
    results = []
    for name, place in places.items():
        free = shutil.disk_usage(place).free
        text = f"{free / GIB:.1f} GiB free at {place}"
        other = (
            "run `docker system prune`, or move Docker's `data-root` to a larger disk"
            if place == root
            else "delete files, or set HARNESS_CACHE_DIR to a folder on a larger disk"
        )
        fix = f"free {(needed - free) / GIB:.1f} GiB there: {other}"
        results.append(Check(name, free >= needed, text, f"≥ {needed // GIB} GiB free", fix))
    return results


def _memory(info: dict[str, Any]) -> Check:
    total = info.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "give the machine (or Docker Desktop) more memory, or run with HARNESS_WORKERS=0"
    return Check("memory", total >= MEMORY, f"{total / GIB:.1f} GiB", f"≥ {MEMORY // GIB} GiB", fix)


def _cores(info: dict[str, Any]) -> Check:
    cores = info.get("NCPU") or os.cpu_count() or 0
    return Check(
        "cores", cores >= CORES, str(cores), f"≥ {CORES}", "give the machine (or Docker Desktop) more CPUs"
    )


def _inotify() -> list[Check]:
    """Check inotify limits.

    Each node runs systemd, a kubelet and containerd. If the limits are too low, one of these programs fails
    with 'too many open files'.
    """
    results = []
    for name, minimum in INOTIFY.items():
        limit = probe.kernel_number(Path("/proc/sys/fs/inotify") / name)
        if limit is not None:
            fix = f"`sudo sysctl fs.inotify.{name}={minimum}`"
            ok = limit >= minimum
            results.append(Check(f"inotify {name}", ok, str(limit), f"≥ {minimum}", fix, required=False))
    return results


def _images(image_origin: Origin) -> Check:
    """Check that images can be pulled from a registry or built on this machine."""
    state = "; ".join(
        filter(None, (f"from {image_origin.image_source}", *image_origin.missing, image_origin.obstacle))
    )
    fix = "give this machine access to these hosts, or set HTTPS_PROXY; or build the images as root on Debian"
    if image_origin.image_source == "source" and not image_origin.missing:
        fix = "unset HARNESS_IMAGES, or use a Debian machine on which you are root"
    expected = "registries and manifest hosts can be reached, or images can be built from source"
    return Check(
        "images",
        image_origin.usable and not image_origin.missing,
        state,
        expected,
        fix,
        not image_origin.usable,
    )


def _proxy(info: dict[str, Any], image_origin: Origin) -> list[Check]:
    """Check that the harness supports the configured proxy, and that Docker and the nodes can pull images
    through it."""
    variables = [name for name in proxies.names(os.environ) if name.upper() in proxies.VARIABLES]
    if not variables:
        return []
    expected = "an http:// or https:// proxy that Docker and the nodes can also use"
    try:
        state = ", ".join(f"{name} is {Proxy.parse(os.environ[name], name)}" for name in variables)
    except UsageError as error:
        return [Check("HTTP proxy", False, error.message, expected, error.hint, required=False)]
    fix = ""
    if (
        image_origin.image_source == "registry"
        and info
        and not (info.get("HttpsProxy") or info.get("HttpProxy"))
    ):
        state += "; Docker has none"
        fix = (
            "if Docker cannot reach registries directly, set `proxies` in Docker's daemon.json and "
            "restart Docker"
        )
    elif image_origin.image_source == "registry" and proxies.unreachable_from_containers(os.environ):
        state += "; the nodes do not use this proxy, because they cannot reach a loopback address"
        fix = (
            "if the nodes cannot reach registries directly, set the proxy's address as containers can "
            "reach it"
        )
    return [Check("HTTP proxy", not fix, state, expected, fix, required=False)]
