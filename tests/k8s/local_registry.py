"""Debian's docker-registry on this machine: a process to push to, and a read-only one that nodes pull from.

Docker accepts a registry without TLS on loopback only, and nodes reach this machine by another address. So
one process listens on loopback and can be written to. The other serves the same data to the nodes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
import yaml

from harness.core.locks import locked

PACKAGE = "docker-registry"
APT_SECONDS = 300
START_SECONDS = 30
_LISTENING = re.compile(r'msg="listening on \S*:(\d+)"')
_PULL = re.compile(r'^(\S+) .*"GET /v2/(\S+)/manifests/(sha256:[0-9a-f]{64})(?:\?\S*)? HTTP/1.1" 200 ')


@dataclass(frozen=True)
class Registry:
    """One serving process. `lines` holds its output up to now, including its access log."""

    port: int
    lines: list[str]

    def pulls(self) -> set[tuple[str, str]]:
        """Return who pulled which manifest by digest: (address, `repository@sha256:…`)."""
        found = [_PULL.match(line) for line in list(self.lines)]
        return {(pull[1], f"{pull[2]}@{pull[3]}") for pull in found if pull}


@contextmanager
def serving(
    program: Path, data: Path, address: str, *, readonly: bool, users: Path | None = None
) -> Iterator[Registry]:
    """Serve `data` on a free port of `address` until the block ends; for `users` (htpasswd) if given."""
    storage = {"filesystem": {"rootdirectory": str(data)}, "maintenance": {"readonly": {"enabled": readonly}}}
    settings: dict[str, object] = {"version": 0.1, "storage": storage, "http": {"addr": f"{address}:0"}}
    if users is not None:
        settings["auth"] = {"htpasswd": {"realm": "private", "path": str(users)}}
    config = data.parent / f"{data.name}-{'users' if users else 'nodes' if readonly else 'push'}.yml"
    config.write_text(yaml.safe_dump(settings))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    with subprocess.Popen(
        [program, "serve", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
        start_new_session=True,
    ) as process:
        lines: list[str] = []
        port: Future[int] = Future()
        reader = Thread(target=_read, args=(process, lines, port))
        reader.start()
        try:
            yield Registry(port.result(START_SECONDS), lines)
        finally:
            process.terminate()
            reader.join()


def _read(process: subprocess.Popen[str], lines: list[str], port: Future[int]) -> None:
    """Read every line to the end of the process, and set the port as soon as a line shows it."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if not port.done() and (found := _LISTENING.search(line)):
            port.set_result(int(found[1]))
    if not port.done():
        port.set_exception(RuntimeError(f"{PACKAGE} ended before it listened:\n{''.join(lines[-10:])}"))


def registry_program(cache: Path) -> Path:
    """Return docker-registry from PATH, or from Debian's package, unpacked into the cache.

    The package is not installed, because its service would start a registry for everybody on port 5000. Fails
    the test where neither is available.
    """
    on_path = shutil.which(PACKAGE)
    if on_path:
        return Path(on_path)
    unpacked = cache / PACKAGE
    program = unpacked / "usr/bin" / PACKAGE
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{PACKAGE}.lock"):
        if not program.is_file():
            shutil.rmtree(unpacked, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache) as work:
                package = _download(Path(work))
                _must("dpkg-deb", "--extract", str(package), f"{work}/root", folder=work)
                Path(work, "root").rename(unpacked)
    return program


def _download(folder: Path) -> Path:
    """Download Debian's package. root may need apt's lists first."""
    if _ask("apt-get", "-qq", "download", PACKAGE, folder=str(folder)).returncode != 0:
        if os.geteuid() == 0:
            _must("apt-get", "-qq", "update", folder=str(folder))
        _must("apt-get", "-qq", "download", PACKAGE, folder=str(folder))
    return next(folder.glob(f"{PACKAGE}_*.deb"))


def _must(*command: str, folder: str) -> None:
    done = _ask(*command, folder=folder)
    if done.returncode != 0:
        pytest.fail(
            f"this test needs a registry: {PACKAGE} is not on PATH, and `{' '.join(command)}` ended with "
            f"{done.returncode}: {done.stdout.strip()[-500:]}\n"
            f"  → install Debian's package {PACKAGE}, or repair apt (as root its lists are updated)",
            pytrace=False,
        )


def _ask(*command: str, folder: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, str(error))
