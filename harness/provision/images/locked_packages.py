"""Install a lock file's packages into a folder on the host, from which an image build copies them.

The packages are not installed in the build container, which may not have the host's proxy and certificates. A
single lock file serves all platforms, because it lists the hashes of all published files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError
from harness.core.locks import locked
from harness.provision.images.docker_images import CAUSE
from harness.provision.platforms import Platform
from harness.provision.uv import uv

SOURCES = ("python-etcd",)
"""Packages for which no wheel is published. Their wheels are built on this machine from the sdists in the
lock. Each of these packages must be pure Python, so that its wheel is the same on every platform.
"""
BUILD_LOCK = Path(__file__).parents[2] / "locks" / "sdist.txt"
"""The build requirements of `SOURCES`. Without this lock, an installer would download them without hashes."""
GLIBC = (28, 27, 17, 5)
"""The minor versions of glibc 2 for which pip may install wheels. pip needs a platform tag for each of them,
whereas uv accepts wheels for older versions without one. The images have glibc 2.28 or newer."""
_SECONDS = 600
_INDEX = (
    "check the package index, which is set with UV_DEFAULT_INDEX (or PIP_INDEX_URL if uv is not installed)"
)
_HASHED = ("--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:")


def lock_key(lock: str, python: str) -> str:
    """Return a hash (12 hex digits) of the Python version and of the lock file without its comments."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join([python, *lines]).encode()).hexdigest()[:12]


def pinned(lock: str, package: str) -> str:
    """Return the version of a package in the lock file."""
    return pins(lock)[package]


def pins(lock: str) -> dict[str, str]:
    """Return the versions in a lock file, keyed by normalized package name."""
    matches = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in matches}


def packages(lock: Path, python: str, platform: Platform, context: RunContext) -> Path:
    """Return a folder with the packages of `lock` for `python` (such as "3.13") on `platform`.

    The folder contains no bytecode and no scripts. Raises ToolError (cause image.build_failed) if a package
    cannot be downloaded or has a different hash.
    """
    root = context.settings.cache_dir / "packages"
    text = lock.read_text()
    target = root / f"{lock.stem}-{platform.architecture}-{lock_key(text, python)}"
    if target.is_dir():
        return target
    with locked(
        root / f"{target.name}.lock",
        lambda: context.progress(f"waiting for another process that installs the packages of {lock.name}"),
    ):
        if target.is_dir():
            return target
        context.progress(f"packages of {lock.name}: downloading")
        unfinished = root / f"unfinished-{target.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        sources = [name for name in SOURCES if f"\n{name}==" in f"\n{text}"]
        builder = _build_environment(root) if sources else Path(sys.executable)
        command = [*_installer(python, platform, builder), *_HASHED, "--target", str(unfinished)]
        if sources:
            command += ["--no-build-isolation", *(f"--no-binary={name}" for name in sources)]
        processes.run([*command, "-r", str(lock)], timeout=_SECONDS, hint=_INDEX, cause=CAUSE)
        _require_pure(unfinished, sources)
        without_programs(unfinished)
        unfinished.rename(target)
    return target


def _build_environment(root: Path) -> Path:
    """Return the Python interpreter of a virtual environment with BUILD_LOCK's packages, for building sdists.

    The build of an sdist has access only to this environment, so it fails if the sdist has any other build
    requirement.
    """
    components_key = f"{sys.implementation.cache_tag}\n{sys.executable}"
    home = root / f"{BUILD_LOCK.stem}-{lock_key(BUILD_LOCK.read_text(), components_key)}"
    python = home / "bin" / "python"
    with locked(root / f"{home.name}.lock", lambda: None):
        if not (home / "complete").is_file() or not python.exists():
            shutil.rmtree(home, ignore_errors=True)
            words = [sys.executable, "-m", "venv", "--without-pip", str(home)]
            processes.run(words, timeout=_SECONDS, cause=CAUSE)
            processes.run(
                [*_pip(python), *_HASHED, "-r", str(BUILD_LOCK)], timeout=_SECONDS, hint=_INDEX, cause=CAUSE
            )
            (home / "complete").touch()
    return python


def _require_pure(folder: Path, sources: list[str]) -> None:
    """Raise HarnessError if the wheel of a package in `sources` is specific to this machine's platform."""
    for name in sources:
        (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.dist-info/WHEEL")
        if "Root-Is-Purelib: true" not in wheel.read_text():
            raise HarnessError(
                f"{name} has no published wheel, and a wheel built here works only on this machine's "
                "platform",
                hint="use a version with a published wheel",
                cause=CAUSE,
            )


def without_programs(folder: Path) -> None:
    """Remove the packages' scripts, which contain the path of this machine's Python, and their entries in the
    metadata. The entries must be removed too, because each rank compares its client's files with the
    metadata.
    """
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith(("bin/", "../../bin/"))))


def _pip(python: Path) -> list[str]:
    """Return the command that installs packages for an interpreter on this machine."""
    if program := uv():
        return [program, "pip", "install", f"--python={python}"]
    # --no-user is needed, because pip refuses --target if the user's pip.conf has `user = true`.
    own = ["--disable-pip-version-check", "--python", str(python), "install", "--no-compile", "--no-user"]
    return [sys.executable, "-m", "pip", *own]


def _installer(python: str, platform: Platform, builder: Path) -> list[str]:
    """Return the command that installs packages for another Python version and platform."""
    words = [*_pip(builder), f"--python-version={python}"]
    if uv():
        return [*words, f"--python-platform={platform.machine}-manylinux_2_{GLIBC[0]}"]
    platforms = [f"--platform=manylinux_2_{minor}_{platform.machine}" for minor in GLIBC]
    platforms.append(f"--platform=manylinux2014_{platform.machine}")
    return [*words, "--ignore-requires-python", *platforms]
