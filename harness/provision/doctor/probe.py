"""Inspect the machine: run external programs with a time limit, and read kernel files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.processes import environment

# dockerd is in sbin, which is not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])

MAX_IMAGES = 3


@dataclass(frozen=True)
class ProgramResult:
    """A program's exit code, and its stdout and stderr in one string.

    The exit code is 127 if the program was not found, 126 if it could not be started, and 124 on a timeout.
    """

    code: int
    text: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        lines = self.text.strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}, no output"


def which(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


def run(*command: str, seconds: float = 20) -> ProgramResult:
    """Run a program and return its result. Never raises."""
    program = which(command[0])
    if program is None:
        return ProgramResult(127, f"{command[0]}: not found")
    try:
        result = subprocess.run(
            [program, *command[1:]],
            env=environment({"PATH": SEARCH_PATH, "DEBIAN_FRONTEND": "noninteractive"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProgramResult(124, f"{command[0]}: no response within {seconds:.0f} s")
    except OSError as error:
        return ProgramResult(126, f"{command[0]}: {error}")
    return ProgramResult(result.returncode, result.stdout)


def docker_info() -> tuple[dict[str, Any], str]:
    """Return the parsed `docker info` and "", or {} and the reason if the daemon does not respond."""
    result = run("docker", "info", "--format", "{{json .}}")
    for line in result.text.splitlines():
        try:
            info = json.loads(line)
        except ValueError:
            continue
        if isinstance(info, dict) and info.get("ServerVersion"):
            return info, ""
        if isinstance(info, dict) and info.get("ServerErrors"):
            return {}, str(info["ServerErrors"][0])
    errors = [line for line in result.text.splitlines() if line and not line.startswith("{")]
    return {}, errors[-1] if errors else result.last_line


def lacking_capabilities(status: str, last: int) -> list[int]:
    """Return the numbers of the capabilities, up to `last`, that are missing from the bounding set (CapBnd).
    `status` is the content of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            bounding_set = int(line.split()[1], 16)
            return [number for number in range(last + 1) if not bounding_set >> number & 1]
    return []


def capabilities_withheld() -> list[int]:
    """Return the Linux capabilities that are unavailable to every process on this machine.

    If the list is not empty, older versions of dockerd cannot run privileged containers.
    """
    try:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        return lacking_capabilities(Path("/proc/self/status").read_text(), last)
    except (OSError, ValueError):
        return []


_OF_THE_IMAGE = ("no such file", "not found", "exec format error")
"""Phrases in error messages of images that lack /bin/true or are for another architecture."""


def privileged_run() -> tuple[bool | None, str]:
    """Run a privileged container from a local image. Return whether it ran, and a description of the result.

    The first value is None if this could not be tested, for example because there is no local image.
    """
    images = run("docker", "image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=false")
    if not images.ok:
        return None, images.last_line
    reason = "not tested, because there is no local image"
    for image in list(dict.fromkeys(images.text.split()))[:MAX_IMAGES]:
        # fmt: off
        result = run(
            "docker", "run", "--rm", "--privileged", "--pull", "never", "--network", "none",
            "--entrypoint", "/bin/true", image, seconds=60,
        )
        # fmt: on
        if result.ok:
            return True, "a privileged container ran"
        if not any(text in result.text for text in _OF_THE_IMAGE):
            return False, result.last_line
        reason = "not tested, because no local image has /bin/true"
    return None, reason


def existing(path: Path) -> Path:
    """Return `path` if it is a folder, or else its nearest parent folder that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def kernel_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
