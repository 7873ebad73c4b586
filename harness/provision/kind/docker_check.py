"""Check Docker before a cluster is created: whether it responds, has enough disk space, and can use the API
server's port."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from harness.core import processes
from harness.core.causes import CauseId
from harness.core.errors import HarnessError, ToolError
from harness.settings import Settings

GIB = 1024**3
PROVIDER = "KIND_EXPERIMENTAL_PROVIDER"
PODMAN = "`docker` is Podman, which kind and the harness's image cache do not support"
NO_PODMAN = (
    "install Docker Engine or Docker Desktop, remove the package podman-docker, and unset DOCKER_HOST if it "
    "is Podman's socket"
)
CONTROL_PLANE_GIB, WORKER_GIB, SPARE_GIB = 1.2, 3.0, 1.0
"""The disk space, in GiB, that a new cluster requires: for its control plane, for each worker, and as a
reserve that stays free. The values were measured after a run in which each node had imported its own copy of
the images. Normally, the nodes share one unpacked copy (images/unpacked.py) and need less, but they import
the images if the copy cannot be linked, which is known only after the cluster has started.
"""
_CAUSES: tuple[tuple[str, CauseId], ...] = (
    ("permission denied", "docker.permission"),
    ("is too new. Maximum supported API version", "docker.unsupported"),
)


def daemon() -> None:
    """Check that Docker responds, and that it is not another program such as Podman.

    Raises HarnessError (cause docker.not_installed, docker.permission, docker.daemon_down or
    docker.unsupported).
    """
    if shutil.which("docker") is None:
        podman_note = ", and Podman cannot replace Docker" if shutil.which("podman") else ""
        raise HarnessError(
            f"`docker` is not on PATH{podman_note}",
            hint="run `harness doctor --fix` to install Docker",
            cause="docker.not_installed",
        )
    if (provider := os.environ.get(PROVIDER) or "docker") != "docker":
        raise HarnessError(
            f"expected kind to use Docker, but {PROVIDER} is {provider}",
            hint=f"unset {PROVIDER}, because the harness builds and loads images with `docker`",
            cause="docker.unsupported",
        )
    try:
        version = processes.run(["docker", "version"], timeout=20).stdout
    except ToolError as error:
        last_line = (error.output.strip().splitlines() or ["no output"])[-1]
        host_note = f" (DOCKER_HOST is {host})" if (host := os.environ.get("DOCKER_HOST")) else ""
        causes = [cause for text, cause in _CAUSES if text in last_line]
        raise HarnessError(
            f"the Docker daemon does not answer{host_note}: {last_line}",
            hint="run `harness doctor` to find out what is wrong with Docker",
            cause=causes[0] if causes else "docker.daemon_down",
        ) from None
    if is_podman(version):
        raise HarnessError(f"expected Docker, but {PODMAN}", hint=NO_PODMAN, cause="docker.unsupported")


def is_podman(version: str) -> bool:
    """Return whether the output of `docker version` shows that the client or the daemon is Podman."""
    return "podman engine" in version.lower()


def tools(settings: Settings) -> None:
    """Check that kind is installed. Raises HarnessError (cause cluster.tool_missing)."""
    if shutil.which(settings.kind_bin) is None:
        raise HarnessError(
            f"kind is needed to create a cluster, but `{settings.kind_bin}` cannot be run",
            hint="run `harness doctor --fix` to install kind, or set HARNESS_KIND_BIN to its path",
            cause="cluster.tool_missing",
        )


def check_disk_space(settings: Settings) -> None:
    """Check that Docker's disk has enough space for a new cluster.

    Raises HarnessError (cause docker.disk_full).
    """
    result = processes.run(["docker", "info", "--format", "{{.DockerRootDir}}"], timeout=20, check=False)
    root = Path(result.stdout.strip() or "/var/lib/docker")
    if not root.is_dir():  # Docker runs in a virtual machine, for example with Docker Desktop.
        return
    needed = CONTROL_PLANE_GIB + WORKER_GIB * (settings.workers or 1) + SPARE_GIB
    free = shutil.disk_usage(root).free / GIB
    if free < needed:
        raise HarnessError(
            f"{root}, where Docker stores containers, has only {free:.1f} GiB free; a cluster with "
            f"{settings.workers} workers needs {needed:.1f} GiB",
            hint="find out what uses the space with `docker system df`, and free space with `docker system "
            "prune`",
            cause="docker.disk_full",
        )


def port(settings: Settings) -> None:
    """Check that the API server's port is free, if one is set.

    Raises HarnessError (cause docker.port_taken).
    """
    if not settings.api_port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", settings.api_port))
        except OSError as error:
            raise HarnessError(
                f"the API server cannot use port {settings.api_port} on 127.0.0.1: {error.strerror}",
                hint="free this port, set HARNESS_API_PORT to another port, or unset HARNESS_API_PORT to "
                "use any free port",
                cause="docker.port_taken",
            ) from None
