"""A `docker` on PATH that answers as on another system, for systems that cannot run on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

PODMAN = """\
Client:       Podman Engine
Version:      5.4.2
API Version:  5.4.2
Go Version:   go1.24.2
OS/Arch:      linux/amd64
"""
PODMAN_SOCKET = """\
Client: Docker Engine - Community
 Version:           28.1.1

Server: linux/amd64/fedora-43
 Podman Engine:
  Version:          5.4.2
"""
ENGINE = """\
Client: Docker Engine - Community
 Version:           28.1.1

Server: Docker Engine - Community
 Engine:
  Version:          28.1.1
"""


def info(**fields: object) -> dict[str, object]:
    """Return `docker info` of a Docker Engine, with other values for some fields."""
    usual: dict[str, object] = {
        "ServerVersion": "28.1.1",
        "Driver": "overlay2",
        "OperatingSystem": "Ubuntu 24.04.2 LTS",
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
        "DockerRootDir": "/nowhere",
        "MemTotal": 16 << 30,
        "NCPU": 8,
    }
    return {**usual, **fields}


def install(folder: Path, version: str, docker_info: Mapping[str, object] | str) -> None:
    """Write the program. Its other commands succeed and print nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    info = docker_info if isinstance(docker_info, str) else json.dumps(docker_info)
    (folder / "version").write_text(version)
    (folder / "info").write_text(info)
    (folder / "docker").write_text(
        "#!/bin/sh\n"
        f'case "$1" in version) cat {folder}/version ;; info) cat {folder}/info ;; '
        "--version) echo Docker version 28.1.1 ;; esac\n"
    )
    (folder / "docker").chmod(0o755)
