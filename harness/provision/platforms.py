"""Determine the platform for which images are built, and its name in each tool. The default is the platform
of the Docker server."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from harness.core import processes
from harness.core.errors import HarnessError, UsageError

CAUSE: Final = "docker.unsupported"
DEFAULT = "DOCKER_DEFAULT_PLATFORM"
"""The environment variable with which Docker selects the platform of `docker build`, `docker run` and `docker
pull`."""


@dataclass(frozen=True)
class Platform:
    """A Linux platform for which images can be built."""

    architecture: Literal["amd64", "arm64"]
    """The architecture's name in Docker, Go and Debian: amd64 or arm64."""
    machine: Literal["x86_64", "aarch64"]
    """The architecture's name in the kernel and in wheels: x86_64 or aarch64."""

    @property
    def docker(self) -> str:
        """Return the platform as Docker writes it, such as linux/arm64."""
        return f"linux/{self.architecture}"

    @property
    def native(self) -> bool:
        """Return whether this machine runs programs of this platform without emulation."""
        return platform.machine().lower() in {self.architecture, self.machine}


AMD64 = Platform("amd64", "x86_64")
ARM64 = Platform("arm64", "aarch64")
SUPPORTED = {each.docker: each for each in (AMD64, ARM64)}


def parse(name: str) -> Platform:
    """Return the platform for a name in Docker's format, such as linux/arm64/v8.

    The kernel's name, as in linux/aarch64, is accepted too, because `docker info` reports it. Raises
    UsageError for other platforms.
    """
    system, _, rest = name.strip().lower().partition("/")
    architecture = rest.partition("/")[0]
    for each in SUPPORTED.values():
        if system == "linux" and architecture in {each.architecture, each.machine}:
            return each
    raise UsageError(
        f"expected the platform {' or '.join(SUPPORTED)}, found {name.strip() or 'none'}",
        hint=f"use a Docker server on one of these platforms, and select it with DOCKER_HOST or {DEFAULT}",
        cause=CAUSE,
    )


def here() -> Platform:
    """Return this machine's platform. Raises UsageError if there are no images for it."""
    return parse(f"linux/{platform.machine()}")


def target() -> Platform:
    """Return the platform of the images: DOCKER_DEFAULT_PLATFORM if it is set, and otherwise the Docker
    server's platform.

    Raises UsageError if there are no images for the platform, and ToolError if Docker does not respond.
    """
    return _target(*(os.environ.get(name, "") for name in (DEFAULT, "DOCKER_HOST", "DOCKER_CONTEXT", "PATH")))


@cache
def _target(default: str, *_server: str) -> Platform:
    if default:
        return parse(default)
    command = ["docker", "version", "--format", "{{.Server.Os}}/{{.Server.Arch}}"]
    result = processes.run(
        command, timeout=30, hint="run `harness doctor` to find out how to repair Docker", cause=CAUSE
    )
    return parse(result.stdout)


def require_native(target: Platform) -> None:
    """Raise HarnessError unless this machine can run programs for the platform.

    Building a node image runs kubeadm and kubectl, which are compiled for the node's platform.
    """
    if not target.native:
        raise HarnessError(
            f"node images for {target.docker} can be built from source only on a machine with this "
            "platform, but "
            f"this machine is {platform.machine()}",
            hint=f"set HARNESS_IMAGES=registry, or use this machine's own Docker server and unset {DEFAULT}",
            cause=CAUSE,
        )
