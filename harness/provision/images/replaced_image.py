"""Build the worker image in which the user's packages replace those of the lock, as one layer on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from harness.context import RunContext
from harness.core.locks import locked
from harness.core.replacements import KONDUKTOR, Replacement, parse
from harness.provision.images.build import FILES, ROOT, WORKER, ImageRef
from harness.provision.images.docker import build_command, image_id, making
from harness.provision.images.packages import GLIBC, without_programs
from harness.provision.platforms import target
from harness.provision.replaced import Change, change, install, version_texts
from harness.provision.source.store import key

REPOSITORY = "harness/replaced-worker"
"""Not that of the worker image, because a launch without replacements looks there for an image to reuse."""


def with_replacements(worker: ImageRef, python: str, context: RunContext) -> ImageRef:
    """Return the worker image with the packages of settings.replace, or `worker` if there are none.

    `python` is the image's version, such as "3.13". Raises UsageError if a package cannot be resolved, built
    or installed, and ToolError (cause image.build_failed) with the path of the log.
    """
    wanted = of_worker(context)
    if not wanted:
        return worker
    platform = f"{target().machine}-manylinux_2_{GLIBC[0]}"
    options = ["--python-version", python, "--python-platform", platform]
    found = change(wanted, WORKER.lock, options, context)
    folder = _installed(found, [*options, "--only-binary", ":all:"], context)
    tag = f"{REPOSITORY}:{key(worker.image_id, found.key)}"
    with making(tag, context) as shell:
        if shell is not None:
            arguments = {"BASE": worker.tag, "IMAGE": tag, "REMOVED": " ".join(found.changed)}
            words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
            words += ["--build-context", f"packages={folder}"]
            shell.run([*build_command(), *words, "-f", FILES / "replaced.Dockerfile", "-t", tag, ROOT])
    versions = {each.name: each.version for each in found.replaced}
    components = dict(worker.components) | version_texts(found.replaced)
    if "pluto-ml" in versions:
        components["pluto"] = versions["pluto-ml"]
    return replace(
        worker, tag=tag, image_id=image_id(tag) or "", components=components, replaced=found.replaced
    )


def of_worker(context: RunContext) -> list[Replacement]:
    """Return the replaced packages of the worker image."""
    replaced = [parse(name, spec) for name, spec in context.settings.replace.items()]
    return [each for each in replaced if each.name != KONDUKTOR]


def _installed(found: Change, options: list[str], context: RunContext) -> Path:
    """Return the folder with the packages of a change, in the cache."""
    root = context.settings.cache_dir / "packages"
    folder = root / f"replaced-{key(found.key, *options)}"
    with locked(root / f"{folder.name}.lock"):
        if not folder.is_dir():
            unfinished = root / f"unfinished-{folder.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            install(found, [*options, "--target", str(unfinished)])
            without_programs(unfinished)
            unfinished.rename(folder)
    return folder
