"""Ask the local Docker what it has, and build what it lacks, once however many processes ask."""

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
BUILD = ["docker", "build", "--network", "host", "--provenance=false", "--progress", "plain"]
"""With BuildKit. No attestations: they make an index of the image, which containerd's import may refuse."""


def image_id(tag: str) -> str | None:
    """Return `sha256:…` of a local image, or None when there is none."""
    done = processes.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", tag], timeout=30, check=False, cause=CAUSE
    )
    if done.returncode == 0:
        return done.stdout.strip()
    if "no such image" in done.stderr.lower():
        return None
    # The daemon does not answer, or refuses: ask again so that its own words are in the error.
    processes.run(["docker", "version"], timeout=30, hint="`harness doctor` says what to do", cause=CAUSE)
    return None


def status_id(tag: str) -> str | None:
    """Return the id that the status of a pod shows for a local image that was loaded into its node.

    None where that is not known: Docker's containerd store names an image by its manifest, and the kubelet by
    its configuration.
    """
    done = processes.run(["docker", "image", "inspect", tag], timeout=30, check=False, cause=CAUSE)
    found = json.loads(done.stdout)[0] if done.returncode == 0 else {"Descriptor": tag}
    return None if found.get("Descriptor") else str(found["Id"])


@contextmanager
def making(tag: str, context: RunContext) -> Iterator[Shell | None]:
    """Yield a shell to build `tag` with, or None when another process has just built it. One process builds
    a tag at a time.

    The output of the block's programs is in <cache>/images-logs/<tag>.log, which starts empty.
    """
    name = re.sub(r"[^\w.-]", "_", tag)
    logs = context.settings.cache_dir / "images-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with locked(
        logs / f"{name}.lock", lambda: context.progress(f"{tag}: waiting for a process that builds it")
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
    """Return every file below `folder` that belongs in an image, in a stable order."""
    return sorted(walked(folder))


def walked(folder: Path) -> Iterator[Path]:
    """Yield the same files one by one, as the folder is read."""
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
