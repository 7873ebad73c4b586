"""Install the packages of a lock file into a folder on the host, from which an image copies them.

The packages are not installed in the build container, because it can lack the host's proxy and certificates.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from harness.context import RunContext
from harness.core import processes
from harness.core.locks import locked
from harness.provision.images.docker import CAUSE
from harness.provision.uv import uv

SOURCES = ("python-etcd",)
"""Packages without a published wheel. Their wheels are built on this machine from the locked source."""
GLIBC = (28, 27, 17, 5)
"""Minor versions of glibc 2 for pip's platform tags.

The images have glibc 2.28 or newer. uv also accepts wheels for older versions.
"""
_SECONDS = 600
_INDEX = "this needs a package index; uv reads UV_DEFAULT_INDEX, and pip, where there is no uv, PIP_INDEX_URL"
_OPTIONS = (
    "--quiet",
    "--require-hashes",
    "--no-deps",
    "--only-binary=:all:",
    *(f"--no-binary={name}" for name in SOURCES),
)


def lock_key(lock: str, python: str) -> str:
    """Return 12 hex digits that depend on packages, their hashes and the Python version, not on comments."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join([python, *lines]).encode()).hexdigest()[:12]


def pinned(lock: str, package: str) -> str:
    """Return the version of a package in the lock."""
    words = (line.partition(" ")[0].partition("==") for line in lock.splitlines())
    return next(version for name, _, version in words if name == package)


def packages(lock: Path, python: str, context: RunContext) -> Path:
    """Return a folder with the packages of `lock` for `python` (such as "3.13") on x86-64 Linux.

    The folder contains no bytecode and no scripts. Raises ToolError (cause image.build_failed) if a package
    cannot be downloaded or has another hash.
    """
    root = context.settings.cache_dir / "packages"
    target = root / f"{lock.stem}-{lock_key(lock.read_text(), python)}"
    if target.is_dir():
        return target
    with locked(
        root / f"{target.name}.lock",
        lambda: context.progress(f"packages of {lock.name}: waiting for another process"),
    ):
        if target.is_dir():
            return target
        context.progress(f"packages of {lock.name}: downloading")
        unfinished = root / f"unfinished-{target.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [*_installer(python), *_OPTIONS, "--target", str(unfinished), "-r", str(lock)]
        processes.run(command, timeout=_SECONDS, hint=_INDEX, cause=CAUSE)
        _without_programs(unfinished)
        unfinished.rename(target)
    return target


def _without_programs(folder: Path) -> None:
    """Remove scripts, which contain the path of this machine's Python, and their entries in package metadata.

    The metadata must match, because a rank checks that its client is unchanged since its installation.
    """
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith(("bin/", "../../bin/"))))


def _installer(python: str) -> list[str]:
    """Return the command that installs packages for another Python version."""
    version = f"--python-version={python}"
    if program := uv():
        platform = f"--python-platform=x86_64-manylinux_2_{GLIBC[0]}"
        return [program, "pip", "install", f"--python={sys.executable}", version, platform]
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms.append("--platform=manylinux2014_x86_64")
    # --no-user: pip refuses --target if the user's pip.conf has `user = true`.
    own = ["--disable-pip-version-check", "--no-compile", "--no-user", "--ignore-requires-python"]
    return [sys.executable, "-m", "pip", "install", *own, version, *platforms]
