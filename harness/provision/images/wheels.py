"""Download the wheels of a lock on the host, because a container under build may lack its proxy and
certificates.
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

SOURCES = ("python-etcd",)
"""Packages without a wheel. Theirs is made here, of the source that the lock names."""
PLATFORMS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux_2_5"]
_SECONDS = 600


def lock_key(lock: str, python: str) -> str:
    """Return 12 hex digits that change with a package, a hash or the Python version, not with a comment."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join([python, *lines]).encode()).hexdigest()[:12]


def pinned(lock: str, package: str) -> str:
    """Return the version of a package that is in the lock."""
    words = (line.partition(" ")[0].partition("==") for line in lock.splitlines())
    return next(version for name, _, version in words if name == package)


def wheels(lock: Path, python: str, context: RunContext) -> Path:
    """Return a folder with every wheel of `lock` for `python` (as "3.13") on x86-64 Linux, and the lock as
    lock.txt, with the hashes of wheels that were made here.

    Raises ToolError (cause image.build_failed) when one cannot be downloaded or has another hash.
    """
    root = context.settings.cache_dir / "wheels"
    target = root / f"{lock.stem}-{lock_key(lock.read_text(), python)}"
    if target.is_dir():
        return target
    with locked(
        root / f"{target.name}.lock",
        lambda: context.progress(f"wheels of {lock.name}: waiting for another process"),
    ):
        if target.is_dir():
            return target
        context.progress(f"wheels of {lock.name}: downloading")
        unfinished = root / f"unfinished-{target.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _download(lock, python, unfinished)
        made = [_made(source, unfinished) for source in sorted(unfinished.glob("*.tar.gz"))]
        text = lock.read_text()
        for source, wheel in made:
            text = text.replace(source, wheel)
        (unfinished / "lock.txt").write_text(text)
        unfinished.rename(target)
    return target


def _download(lock: Path, python: str, into: Path) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    processes.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "--only-binary=:all:",
            *(f"--no-binary={name}" for name in SOURCES),
            "--no-deps",
            "--python-version",
            python,
            *platforms,
            "--dest",
            str(into),
            "-r",
            str(lock),
        ],
        timeout=_SECONDS,
        hint="this needs a package index; pip reads PIP_INDEX_URL and PIP_CERT",
        cause=CAUSE,
    )


def _made(source: Path, into: Path) -> tuple[str, str]:
    """Make a wheel of a source distribution, for any Python, and remove the source. Returns the SHA-256 of
    both.
    """
    words = ["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(into)]
    before = set(into.glob("*.whl"))
    processes.run([sys.executable, "-m", "pip", *words, str(source)], timeout=_SECONDS, cause=CAUSE)
    [wheel] = set(into.glob("*.whl")) - before
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (source, wheel)]
    source.unlink()
    return digests[0], digests[1]
