"""Build the base images of the worker and tracker images from Debian packages, without a registry.

Each base image is a single layer, from which files/*.Dockerfile remove unneeded files. Base images are cached
by a hash of the Dockerfiles and similar inputs, but not of Debian's archive. To get newer packages, remove
the base image.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.context import RunContext
from harness.provision import platforms
from harness.provision.images.docker_images import image_id, making
from harness.provision.platforms import Platform
from harness.provision.source import debian
from harness.provision.source.shell import build_command
from harness.provision.source.store import code_input, key

FILES = Path(__file__).parent / "files"
_INPUTS = {
    "torch": ["debian-torch.Dockerfile", "debian-torch.dpkg", "without_libuv.py", "torch_selftest.py"],
    "python": ["debian-python.Dockerfile"],
}


@dataclass(frozen=True)
class Bases:
    """The references of two base images: one for the worker image, and one for the tracker image."""

    torch_base: str
    python_base: str


def bases(suite: str, context: RunContext) -> Bases:
    """Return the references of both base images for a Debian suite.

    Missing images are built, which requires root privileges.

    Raises ToolError with the path of the log, or HarnessError if a tool or a Debian mirror is missing (cause
    image.build_failed).
    """
    return Bases(torch_base=base("torch", suite, context), python_base=base("python", suite, context))


def complete(suite: str) -> bool:
    """Return whether Docker has both base images for a Debian suite."""
    root = _root_tag(suite, platforms.target())
    return all(image_id(_tag(name, suite, root)) is not None for name in _INPUTS)


def base(name: Literal["torch", "python"], suite: str, context: RunContext) -> str:
    """Return the reference of one of the base images for a Debian suite.

    Raises the same errors as `bases`.
    """
    platform = platforms.target()
    root = _root_tag(suite, platform)
    tag = _tag(name, suite, root)
    if image_id(tag) is None:
        _make(name, tag, suite, root, platform, context)
    return tag


def _root_tag(suite: str, platform: Platform) -> str:
    return f"harness/debian-{suite}:{key(suite, platform.docker, code_input(str(debian.__file__)))}"


def _tag(name: str, suite: str, root: str) -> str:
    return f"harness/{name}-{suite}:{key(root, *((FILES / file).read_text() for file in _INPUTS[name]))}"


def _make(name: str, tag: str, suite: str, root: str, platform: Platform, context: RunContext) -> None:
    _make_root(suite, root, platform, context)
    with making(tag, context) as shell:
        if shell is not None:
            context.progress(f"{tag}: building from Debian packages (about a minute)")
            dockerfile = FILES / _INPUTS[name][0]
            shell.run([*build_command(), "--build-arg", f"BASE={root}", "-f", dockerfile, "-t", tag, FILES])


def _make_root(suite: str, root: str, platform: Platform, context: RunContext) -> None:
    if image_id(root) is not None:
        return
    with making(root, context) as shell:
        if shell is not None:
            context.progress(f"{root}: mmdebstrap from {debian.mirror()}")
            unfinished = context.settings.cache_dir / "images-unfinished" / root.replace("/", "_")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            with tempfile.TemporaryDirectory(dir=unfinished, ignore_cleanup_errors=True) as folder:
                debian.import_root(shell, suite, root, Path(folder), platform)
