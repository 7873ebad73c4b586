"""Write images that contain a single program to an archive in the format of `docker save`.

The images are not built with Docker, because this would leave registry.k8s.io/… tags in the user's Docker.
Docker's layers would also contain whiteouts, which containerd cannot unpack if its own folder is on an
overlay.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ProgramImage:
    """An image whose entrypoint is a single program. It can also contain a root file system."""

    tag: str
    program: Path
    at: str
    """The absolute path at which the image contains `program`."""
    user: str = "0:0"
    root: Path | None = None
    """A tar file with a complete root file system, or None if the image contains only the program."""


def write(images: Sequence[ProgramImage], target: Path, architecture: str) -> None:
    """Write an archive with all `images`, for `docker load` and `ctr images import`.

    `architecture` is Docker's name, such as arm64.
    """
    with tarfile.open(target, "w") as archive:
        index = []
        for image in images:
            program = target.with_suffix(".layer")
            _program_layer(image, program)
            layers = [layer for layer in (image.root, program) if layer is not None]
            digests = [_add_layer(archive, layer) for layer in layers]
            program.unlink()
            config = json.dumps(
                {
                    "architecture": architecture,
                    "os": "linux",
                    "config": {"Entrypoint": [image.at], "Env": [f"PATH={SEARCH_PATH}"], "User": image.user},
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
                },
                sort_keys=True,
            ).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, name, config)
            index.append(
                {"Config": name, "RepoTags": [image.tag], "Layers": [f"{digest}.tar" for digest in digests]}
            )
        _add(archive, "manifest.json", json.dumps(index).encode())


def _program_layer(image: ProgramImage, target: Path) -> None:
    with tarfile.open(target, "w") as layer:
        inside = Path(image.at.lstrip("/"))
        for folder in reversed(inside.parents[:-1]):
            directory = tarfile.TarInfo(str(folder))
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(directory)
        program = tarfile.TarInfo(str(inside))
        program.size, program.mode = image.program.stat().st_size, 0o755
        with image.program.open("rb") as content:
            layer.addfile(program, content)


def _add_layer(archive: tarfile.TarFile, layer: Path) -> str:
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        entry = tarfile.TarInfo(f"{digest}.tar")
        entry.size = layer.stat().st_size
        content.seek(0)
        archive.addfile(entry, content)
    return digest


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
