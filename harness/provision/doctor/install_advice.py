"""Suggest how to install a program, with the package names used by this machine's operating system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from harness.provision.doctor import apt

REPAIR: Final = "`harness doctor --fix` as root"
"""The command that installs missing programs on Debian."""

_UBUNTU = {
    "docker": "`sudo apt-get install docker.io docker-buildx`",
    "buildx": "`sudo apt-get install docker-buildx`",
    "kubectl": "`sudo snap install kubectl --classic`",
    "go": "`sudo snap install go --classic`",
    "python": "`sudo apt-get install python3 python3-venv`",
}
_FEDORA = {
    "docker": "`sudo dnf install moby-engine docker-cli docker-buildx`",
    "buildx": "`sudo dnf install docker-buildx`",
    "kubectl": "`sudo dnf install /usr/bin/kubectl`",
    "go": "`sudo dnf install golang`",
    "python": "`sudo dnf install python3`",
}
_OTHER_SYSTEMS = {
    "docker": "install Docker Engine or Docker Desktop",
    "buildx": "install Docker's buildx plugin",
    "kubectl": "install kubectl",
    "go": "install Go 1.26 or newer",
    "python": "install Python 3.11 or newer",
}


def advice(program: str, os_release: str | None = None) -> str:
    """Return instructions for installing docker, buildx, kubectl, go or python on this machine.

    `os_release` is the text of /etc/os-release. By default, that file is read.
    """
    text = apt.text_of(Path("/etc/os-release")) if os_release is None else os_release
    fields = apt.fields_of(text)
    systems = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    if "ubuntu" in systems:
        return _UBUNTU[program]
    if fields.get("ID") == "fedora":
        return _FEDORA[program]
    return REPAIR if fields.get("ID") == "debian" else _OTHER_SYSTEMS[program]


def kind_advice(
    version: str, os_release: str | None = None, environment: Mapping[str, str] = os.environ
) -> str:
    """Return instructions for installing kind, or for using a kind binary that is not on PATH.

    `go install` puts kind into a folder that may not be on PATH.
    """
    for folder in _go_folders(environment):
        if os.access(folder / "kind", os.X_OK):
            return f'kind is in {folder}, which is not on PATH: `export PATH="{folder}:$PATH"`'
    if advice("docker", os_release) == REPAIR:
        return f"{REPAIR}, or set HARNESS_KIND_BIN to its path"
    return (
        f"`go install sigs.k8s.io/kind@{version}`, and add `$(go env GOPATH)/bin` to PATH; or set "
        "HARNESS_KIND_BIN to its path"
    )


def _go_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which `go install` might have put programs."""
    if folder := environment.get("GOBIN"):
        return [Path(folder)]
    paths = environment.get("GOPATH") or str(Path(environment.get("HOME") or "/") / "go")
    return [Path(paths.split(os.pathsep)[0]) / "bin"]
