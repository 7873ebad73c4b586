"""Inspect local Docker images, and build missing images. A lock prevents concurrent builds of an image."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.context import RunContext
from harness.core import processes
from harness.core.locks import locked
from harness.provision.source.shell import Shell

CAUSE: Final = "image.build_failed"


def image_id(tag: str) -> str | None:
    """Return a local image's id, `sha256:…`, or None if the image does not exist."""
    result = processes.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", tag], timeout=30, check=False, cause=CAUSE
    )
    if result.returncode == 0:
        return result.stdout.strip()
    if "no such image" in result.stderr.lower():
        return None
    # Docker does not respond, or it rejected the request. The next command raises an error with Docker's
    # message.
    processes.run(
        ["docker", "version"],
        timeout=30,
        hint="run `harness doctor` to find out how to repair Docker",
        cause=CAUSE,
    )
    return None


def status_id(tag: str) -> str | None:
    """Return the image id that pod statuses show for a local image, or None if it is unknown.

    The id is unknown with Docker's containerd image store, which identifies an image by its manifest, while
    the kubelet identifies it by its configuration.
    """
    result = processes.run(["docker", "image", "inspect", tag], timeout=30, check=False, cause=CAUSE)
    image = json.loads(result.stdout)[0] if result.returncode == 0 else {"Descriptor": tag}
    return None if image.get("Descriptor") else str(image["Id"])


@contextmanager
def making(tag: str, context: RunContext) -> Iterator[Shell | None]:
    """Yield a shell for building the image `tag`, or None if another process has just built it.

    Only one process at a time can build a tag. Programs that run in the shell write their output to
    <cache>/images-logs/<tag>.log, which is emptied first.
    """
    name = re.sub(r"[^\w.-]", "_", tag)
    logs = context.settings.cache_dir / "images-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with locked(
        logs / f"{name}.lock",
        lambda: context.progress(f"{tag}: waiting for another process that is building this image"),
    ):
        if image_id(tag) is not None:
            yield None
            return
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        start = time.monotonic()
        yield Shell(log, CAUSE)
        context.progress(f"{tag}: built in {time.monotonic() - start:.0f} s")


def files_of(folder: Path) -> list[Path]:
    """Return the files in `folder` that belong in an image, in a stable order."""
    return sorted(walked(folder))


def walked(folder: Path) -> Iterator[Path]:
    """Yield the files that `files_of` returns, in any order, without reading the whole folder first."""
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
