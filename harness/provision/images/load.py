"""Load local Docker images into kind nodes: unpack them once, and link them on all nodes concurrently.

The nodes of the harness's clusters mount a Docker volume that contains the unpacked images (unpacked.py). If
a node has no such mount, or if an image cannot be linked, the image is imported from a tar file. `kind load`
is not used, because it would save the image again for each node, and it fails on images with attestations
(kind issue 3795).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.context import RunContext
from harness.core import processes
from harness.provision.images import layered, unpacked
from harness.provision.images.containerd_import import (
    CAUSE,
    CTR,
    OVERLAYFS,
    SECONDS,
    LocalImage,
    import_command,
    node_name,
    saved,
)

T = TypeVar("T")
_CONFIGURATION = "/etc/containerd/config.toml"
_SNAPSHOTTER = (
    r"{ sed -n 's/^ *snapshotter *= *.\([a-z-]*\).*/SNAPSHOTTER \1/p'"
    f" {_CONFIGURATION} 2>/dev/null || true; }}"
)
"""A shell command that prints the snapshotter in a node's containerd configuration, which kind's entrypoint
sets."""


def load_images(images: Sequence[str | LocalImage], nodes: Sequence[str], context: RunContext) -> None:
    """Load every image into every node.

    `images` contains local images or their tags, and `nodes` the names of the node containers. Raises
    ToolError or HarnessError (cause image.load_failed).
    """
    local = [i if isinstance(i, LocalImage) else LocalImage.of(i) for i in dict.fromkeys(images)]
    if not local or not nodes:
        return
    start = time.monotonic()
    states = _each_node(nodes, lambda node: _inspect(node, local))
    missing = {node: [i for i in local if not has(states[node].listing, i)] for node in nodes}
    to_load = [image for image in local if any(image in lacks for lacks in missing.values())]
    if not to_load:
        context.progress(f"nodes: all {len(local)} images are already loaded")
        return
    linked = [node for node in nodes if missing[node] and states[node].mounted]
    if linked:
        _unpack(to_load, linked[0], context)
        unlinked = _each_node(linked, lambda node: _link(node, missing[node], context))
        missing = {**missing, **unlinked}
    for image in to_load:
        target_nodes = [node for node in nodes if image in missing[node]]
        if target_nodes:
            with saved(image, context) as tar:
                _each_node(target_nodes, lambda node, tar=tar: _import(node, tar, states[node].snapshotter))  # type: ignore[misc]
    for image in to_load:
        layered.archive(image, context).unlink(missing_ok=True)
    context.progress(
        f"nodes: loaded {len(to_load)} images into {len(nodes)} nodes in {time.monotonic() - start:.1f} s"
    )


def has(listing: str, image: LocalImage) -> bool:
    """Return whether a node's `ctr images ls` output contains an image with this tag and this id.

    containerd also lists each image under its id, in a separate line. If Docker uses containerd's image
    store, the id is the digest in the tag's line.
    """
    rows = {columns[0]: columns for columns in map(str.split, listing.splitlines()) if columns}
    row = rows.get(node_name(image.tag))
    return row is not None and (image.image_id in rows or image.image_id in row)


@dataclass(frozen=True)
class _Node:
    listing: str
    mounted: bool
    """Whether the node can use the volume of unpacked images, i.e. whether the node mounts the volume and its
    snapshotter is overlayfs."""
    snapshotter: str


def _inspect(node: str, images: Sequence[LocalImage]) -> _Node:
    """Return the images that a node already has, its snapshotter, and whether it mounts the volume of
    unpacked images."""
    # The listing is filtered to save time, because ctr adds up the layer sizes of every image that it lists.
    names = [name for image in images for name in (node_name(image.tag), image.image_id)]
    listing = " ".join([*CTR, "images", "ls", *(f"'name==\"{name}\"'" for name in names)])
    script = f"{listing} && {_SNAPSHOTTER} && if mountpoint -q {unpacked.MOUNT}; then echo MOUNTED; fi"
    out = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=60, cause=CAUSE).stdout
    snapshotters = [line.split()[1] for line in out.splitlines() if line.startswith("SNAPSHOTTER ")]
    snapshotter = snapshotters[0] if snapshotters else OVERLAYFS
    return _Node(out, out.rstrip().endswith("MOUNTED") and snapshotter == OVERLAYFS, snapshotter)


def _unpack(images: Sequence[LocalImage], node: str, context: RunContext) -> None:
    """Unpack the images that are not in the volume of unpacked images yet."""
    scripts = [unpacked.script(image) for image in images]
    tests = " && ".join(f"test -e {path}" for path in scripts)
    if processes.run(["docker", "exec", node, "sh", "-c", tests], timeout=60, check=False).returncode == 0:
        return
    node_image = processes.run(
        ["docker", "inspect", "--format", "{{.Image}}", node], timeout=60, cause=CAUSE
    ).stdout.strip()
    unpacked.attempt(images, node_image, context)


def _link(node: str, images: Sequence[LocalImage], context: RunContext) -> list[LocalImage]:
    """Link the unpacked images into a node's containerd.

    Return the images that could not be linked and must be imported.
    """
    unlinked = []
    for image in images:
        command = ["docker", "exec", node, "sh", unpacked.script(image)]
        result = processes.run(command, timeout=SECONDS, check=False)
        if result.returncode:
            context.progress(
                f"{node}: importing {image.tag}, because its unpacked layers could not be linked: "
                f"{_last(result.stdout)}"
            )
            unlinked.append(image)
    return unlinked


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def _import(node: str, tar: Path, snapshotter: str) -> None:
    with tar.open("rb") as content:
        command = ["docker", "exec", "-i", node, *import_command(snapshotter), "-"]
        processes.run(command, stdin=content, timeout=SECONDS, cause=CAUSE)


def _each_node(nodes: Sequence[str], function: Callable[[str], T]) -> dict[str, T]:
    """Call `function` for all nodes concurrently, and return the results keyed by node."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return dict(zip(nodes, pool.map(function, nodes), strict=True))
