"""Add a layer to a local image without copying the layers below it.

`docker save` always writes all layers, which takes 8 s for the worker image of 1 GB. This module writes an
archive that contains only the new layer, because `docker load` and containerd skip layers that they already
have. If Docker uses containerd's image store, `docker load` needs all layers, so the image is built with
`docker build` instead.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError, ToolError
from harness.provision.images.containerd_import import LocalImage, node_name
from harness.provision.images.docker_images import CAUSE

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIGURATION = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_SECONDS = 300


def archive(image: LocalImage, context: RunContext) -> Path:
    """Return the path at which `add` stores the archive with an image's last layer.

    The file might not exist.
    """
    return context.settings.cache_dir / "images" / f"{image.file}.layer.tar"


def add(base: str, tag: str, command: Sequence[str], context: RunContext) -> None:
    """Add the image `tag` to the local Docker daemon.

    The image consists of the image `base` and one more layer, which `command` writes to stdout. The archive
    with the layer is kept in the cache, for loading the image into nodes. If the image cannot be added, a
    progress message reports the reason, and no error is raised.
    """
    folder = context.settings.cache_dir / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".layer-", dir=folder) as name:
        layer, image_tar = Path(name, "layer.tar"), Path(name, "image.tar")
        try:
            base_image = _inspected(base)
            _run(command, layer)
            image = LocalImage(tag, _compose(base_image, tag, layer, image_tar))
            processes.run(
                ["docker", "load", "--quiet", "--input", str(image_tar)], timeout=_SECONDS, cause=CAUSE
            )
            os.replace(image_tar, archive(image, context))
        except HarnessError as error:
            context.progress(
                f"{tag}: building the image with Docker, because adding a layer failed: {error.message}"
            )


def _run(command: Sequence[str], output: Path) -> None:
    """Run a command and write its binary stdout to a file."""
    with (
        output.open("wb") as target,
        processes.started(command, cause=CAUSE, stdout=target, stderr=subprocess.PIPE) as process,
    ):
        result = processes.communicated(process, command, None, timeout=_SECONDS, cause=CAUSE)
    if result.returncode:
        raise ToolError(command, result.returncode, result.stderr, cause=CAUSE)


def _inspected(base: str) -> dict[str, Any]:
    """Return Docker's description of an image.

    Raises HarnessError if Docker uses containerd's image store, because descriptions in that store lack the
    storage driver's data.
    """
    base_image = json.loads(
        processes.run(["docker", "image", "inspect", base], timeout=60, cause=CAUSE).stdout
    )[0]
    if not (base_image.get("GraphDriver") or {}).get("Data"):
        raise HarnessError(
            "Docker uses containerd's image store, whose layers the harness cannot read", cause=CAUSE
        )
    return dict(base_image)


def _compose(base_image: Mapping[str, Any], tag: str, layer: Path, target: Path) -> str:
    """Write an archive with the new layer, the manifest and the configuration of an image.

    Return the image's id.

    Like an archive from `docker save`, it has the OCI layout and Docker's manifest.json.
    """
    with layer.open("rb") as content:
        layer_digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    layers = [*base_image["RootFS"]["Layers"], layer_digest]
    configuration = json.dumps(
        {
            "architecture": base_image["Architecture"],
            "os": base_image["Os"],
            **({"variant": base_image["Variant"]} if base_image.get("Variant") else {}),
            "created": datetime.now(UTC).isoformat(),
            "config": base_image["Config"],
            "rootfs": {"type": "layers", "diff_ids": layers},
        }
    ).encode()
    # containerd skips layers that it already has, so their sizes are not needed.
    sizes = [*(0 for _ in layers[:-1]), layer.stat().st_size]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIGURATION, configuration),
            "layers": [
                {"mediaType": _LAYER, "digest": digest, "size": size}
                for digest, size in zip(layers, sizes, strict=True)
            ],
        }
    ).encode()
    of_docker = [{"Config": _blob(_id(configuration)), "RepoTags": [tag], "Layers": list(map(_blob, layers))}]
    with target.open("wb") as file, layout(file, node_name(tag), manifest, configuration) as tar:
        _write(tar, "manifest.json", json.dumps(of_docker).encode())
        tar.add(layer, arcname=_blob(layer_digest))
    return _id(configuration)


@contextmanager
def layout(file: IO[bytes], name: str, manifest: bytes, configuration: bytes) -> Iterator[tarfile.TarFile]:
    """Write an image's OCI layout without layers, and yield the tar archive so that layers can be added.

    `name` is the image's name in containerd.
    """
    descriptor = _descriptor(json.loads(manifest)["mediaType"], manifest)
    descriptor["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(fileobj=file, mode="w") as archive:
        _write(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _write(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [descriptor]}).encode())
        for content in (manifest, configuration):
            _write(archive, _blob(_id(content)), content)
        yield archive


def _write(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _id(content), "size": len(content)}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _id(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
