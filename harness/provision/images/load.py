"""Load local Docker images into kind nodes. Each is saved once and imported on all nodes at the same time.

The tar lies in <cache>/images, which the harness's clusters mount at /harness-images. A node without that
mount gets it on stdin. `kind load` saves again for each node, and fails on images with attestations (kind
issue 3795).
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError
from harness.core.locks import locked
from harness.core.progress import Progress
from harness.provision.images.docker import image_id

MOUNT = "/harness-images"
KEPT_TARS = 8
CAUSE: Final = "image.load_failed"
_SECONDS = 300
_CTR = ["ctr", "-n", "k8s.io", "images"]
_IMPORT = [*_CTR, "import", "--local", "--snapshotter=overlayfs"]
"""`--local`: ctr unpacks by itself. 780 MB onto two nodes at once on 2 busy cores took 6–9 s so, 8–11 s from
stdin, and 15–18 s through containerd's transfer service (the default)."""


@dataclass(frozen=True)
class LocalImage:
    """An image of the local Docker: its tag, and its id as `sha256:…`."""

    tag: str
    image_id: str

    @property
    def tar(self) -> str:
        """Return the file name of its tar. Another id or tag is another file."""
        return f"{re.sub(r'[^A-Za-z0-9.-]', '_', self.tag)}-{self.image_id.removeprefix('sha256:')[:12]}.tar"


def load_images(images: Sequence[str], nodes: Sequence[str], context: RunContext) -> None:
    """Load every image into every node. `nodes` are container names.

    Raises ToolError or HarnessError, cause image.load_failed.
    """
    local = [_local(tag) for tag in dict.fromkeys(images)]
    if not local or not nodes:
        return
    start = time.monotonic()
    with ThreadPoolExecutor(len(nodes)) as pool:
        seen = dict(zip(nodes, pool.map(_seen, nodes), strict=True))
    missing = {node: [i for i in local if not has(seen[node].listing, i)] for node in nodes}
    wanted = [image for image in local if any(image in lacks for lacks in missing.values())]
    if not wanted:
        context.progress(f"nodes: {len(local)} images are there")
        return
    folder = context.settings.cache_dir / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as saver, ThreadPoolExecutor(len(nodes)) as importer:
        tars = {image: saver.submit(_saved, image, folder, context.progress) for image in wanted}
        imports = [importer.submit(_import, node, missing[node], tars, seen[node].mounted) for node in nodes]
        try:
            for done in imports:
                done.result()
        except BaseException:
            saver.shutdown(wait=False, cancel_futures=True)
            importer.shutdown(wait=False, cancel_futures=True)
            raise
    prune(folder, keep=[image.tar for image in local])
    context.progress(
        f"nodes: {len(wanted)} images loaded into {len(nodes)} in {time.monotonic() - start:.1f} s"
    )


def node_name(tag: str) -> str:
    """Return containerd's name of a Docker tag: `a:1` is docker.io/library/a:1."""
    first, slash, _ = tag.partition("/")
    if not slash:
        return f"docker.io/library/{tag}"
    return tag if "." in first or ":" in first or first == "localhost" else f"docker.io/{tag}"


def has(listing: str, image: LocalImage) -> bool:
    """Whether `ctr images ls` of a node shows this tag and this id.

    The kubelet's side names an image by its id too; with Docker's containerd store the id is the digest.
    """
    rows = {columns[0]: columns for columns in map(str.split, listing.splitlines()) if columns}
    row = rows.get(node_name(image.tag))
    return row is not None and (image.image_id in rows or image.image_id in row)


def prune(folder: Path, keep: Sequence[str]) -> None:
    """Remove all but the newest tars. Those of `keep` stay."""
    tars = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for tar in tars[KEPT_TARS:]:
        if tar.name not in keep:
            tar.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Node:
    listing: str
    mounted: bool


def _seen(node: str) -> _Node:
    """Return in one call what the node's containerd has, and whether the cache is mounted there."""
    script = f"{' '.join(_CTR)} ls && if mountpoint -q {MOUNT}; then echo MOUNTED; fi"
    out = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=60, cause=CAUSE).stdout
    return _Node(out, out.rstrip().endswith("MOUNTED"))


def _local(tag: str) -> LocalImage:
    there = image_id(tag)
    if there is None:
        raise HarnessError(f"no local image {tag}", hint="`harness images build`", cause=CAUSE)
    return LocalImage(tag, there)


def _saved(image: LocalImage, folder: Path, progress: Progress) -> Path:
    tar = folder / image.tar
    with locked(folder / f".{image.tar}.lock"):
        if not tar.is_file():
            progress(f"{image.tag}: saving")
            with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as saving:
                partial = Path(saving, image.tar)
                processes.run(
                    ["docker", "save", "-o", str(partial), image.tag], timeout=_SECONDS, cause=CAUSE
                )
                partial.rename(tar)
        tar.touch()
    return tar


def _import(
    node: str, images: Sequence[LocalImage], tars: dict[LocalImage, Future[Path]], mounted: bool
) -> None:
    for image in images:
        tar = tars[image].result()
        if mounted:
            inside = ["docker", "exec", node, *_IMPORT, f"{MOUNT}/{tar.name}"]
            processes.run(inside, timeout=_SECONDS, cause=CAUSE)
        else:
            _pour(["docker", "exec", "-i", node, *_IMPORT, "-"], tar)


def _pour(command: list[str], tar: Path) -> None:
    with tar.open("rb") as content:
        processes.run(command, stdin=content, timeout=_SECONDS, cause=CAUSE)
