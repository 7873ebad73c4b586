"""Build an image in which the user's packages replace those in the lock, by adding a layer to the worker
image."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.context import RunContext
from harness.core.locks import locked
from harness.core.replacements import Replacement
from harness.provision.images import layered, versions
from harness.provision.images.build import FILES, WORKER, ImageRef, built
from harness.provision.images.docker_images import making
from harness.provision.images.locked_packages import GLIBC, without_programs
from harness.provision.platforms import target
from harness.provision.replaced_wheels import Change, change, install
from harness.provision.source.store import key

SCRIPT = FILES / "replace_packages.py"
REPOSITORY = "harness/replaced-worker"
"""The repository of images with replaced packages. It differs from the worker image's repository, so that
other launches never reuse these images."""


def change_of(replacements: Sequence[Replacement], context: RunContext) -> Change:
    """Resolve the user's replacement packages, install them into the cache, and return them as a Change of
    the worker image.

    Raises UsageError if a package cannot be resolved or built, or has no wheel for the image.
    """
    package_change = change(replacements, WORKER.lock, target_options(context), context)
    _installed(package_change, context)
    return package_change


def with_change(worker: ImageRef, package_change: Change, context: RunContext) -> ImageRef:
    """Return the worker image with the replacement packages of a change.

    Raises ToolError (cause image.build_failed) with the path of the log.
    """
    tag = f"{REPOSITORY}:{key(worker.image_id, package_change.key, SCRIPT.read_text())}"
    folder = _installed(package_change, context)
    with making(tag, context) as shell:
        if shell is not None:
            layered.add(worker.tag, tag, _layer_command(worker.tag, tag, package_change, folder), context)
    arguments = {"BASE": worker.tag, "REMOVED": " ".join(package_change.changed)}
    built_id = built(tag, FILES / "replaced.Dockerfile", arguments, folder, context)
    components = dict(worker.components)
    for each in package_change.replaced:
        if each.name == "pluto-ml":
            components["pluto"] = each.version
    return replace(worker, tag=tag, image_id=built_id, components=components)


def _layer_command(base: str, tag: str, package_change: Change, folder: Path) -> list[str]:
    """Return the command that replaces the packages in a container of the image `base` and prints the changes
    as an image layer."""
    command = ["docker", "run", "--rm", "--network", "none", "--user", "0", "--env", f"IMAGE={tag}"]
    for path, destination in ((SCRIPT.resolve(), "/run/replace_packages.py"), (folder, "/packages")):
        command += ["--mount", f"type=bind,source={path},target={destination},readonly"]
    command += ["--entrypoint", "python3", base, "/run/replace_packages.py"]
    return [*command, "--layer", "/packages", *package_change.changed]


def target_options(context: RunContext) -> list[str]:
    """Return uv's options for the worker image's Python version and platform."""
    python = versions.load(context.settings).worker.python
    return ["--python-version", python, "--python-platform", f"{target().machine}-manylinux_2_{GLIBC[0]}"]


def _installed(package_change: Change, context: RunContext) -> Path:
    """Return the cache folder with the replacement packages of a change.

    If the folder does not exist, it is created and the packages are installed into it.
    """
    options = target_options(context)
    root = context.settings.cache_dir / "packages"
    folder = root / f"replaced-{key(package_change.key, *options)}"
    with locked(root / f"{folder.name}.lock"):
        if not folder.is_dir():
            unfinished = root / f"unfinished-{folder.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            install(package_change, ["--python", sys.executable, *options, "--target", str(unfinished)])
            without_programs(unfinished)
            unfinished.rename(folder)
    return folder
