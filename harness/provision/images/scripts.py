"""Mount the ranks' scripts that have changed since the worker image was built.

An image's labels contain a hash of its inputs without the scripts, and a hash of each script. If an image
with the same inputs exists, only the changed scripts are sent to the cluster, in a ConfigMap that belongs to
the launch. No image is built or loaded, and the ranks run the checkout's scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.core import processes
from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.provision.images.docker_images import CAUSE, files_of, image_id, walked
from harness.settings import Settings

WORKSPACE = "/workspace"
CONFIG_MAP = "scripts"
MAKING = "pluto-e2e-harness.making"
SCRIPTS = "pluto-e2e-harness.scripts"
MAX_FILES = 500
"""The maximum number of scripts. It is limited, because each script needs its own mount."""
MAX_BYTES = 900_000
"""The maximum total size of the scripts in bytes. A ConfigMap is limited to 1 MiB."""


@dataclass(frozen=True)
class Near:
    """An image that was built from the same inputs except for the scripts, and the scripts that have changed
    or been added since then."""

    tag: str
    image_id: str
    changed: Mapping[str, bytes]


def read(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in `folder`, keyed by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_of(folder)}


def labels(making: str, scripts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the labels of an image that contains these scripts. `making` is a hash of all other inputs of
    the image."""
    return {MAKING: making, SCRIPTS: json.dumps(digests(scripts))}


def digests(scripts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each script."""
    return {name: _hash(text) for name, text in scripts.items()}


def near(repository: str, making: str, scripts: Mapping[str, bytes]) -> Near | None:
    """Return the newest local image that was built from the same inputs, except for changed or new scripts.

    Returns None if there is no such image. In that case, an image must be built.
    """
    # Only this repository is searched, because an image based on the worker image inherits its labels.
    options = ["--filter", f"label={MAKING}={making}", "--filter", f"reference={repository}"]
    options += ["--format", "{{.Repository}}:{{.Tag}}"]
    result = processes.run(["docker", "images", *options], timeout=30, cause=CAUSE)
    for tag in result.stdout.split():
        changed, local_id = changed_since(_hashes_of(tag), scripts), image_id(tag)
        if changed is not None and local_id is not None:
            return Near(tag, local_id, changed)
    return None


def changed_since(hashes: Mapping[str, str], scripts: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """Return the scripts to mount over an image whose scripts have these `hashes`.

    Return None if scripts were deleted after the image was built, or if the changes are too large.
    """
    if not set(hashes) <= set(scripts):
        return None
    changed = {name: text for name, text in scripts.items() if hashes.get(name) != _hash(text)}
    return changed if fits(changed) else None


def fits(scripts: Mapping[str, bytes]) -> bool:
    """Return whether all scripts fit into one ConfigMap."""
    return sum(map(len, scripts.values())) <= MAX_BYTES


def users(settings: Settings) -> dict[str, bytes]:
    """Return the scripts in the user's folder (HARNESS_SCRIPTS).

    Raises UsageError if they do not fit into a ConfigMap.
    """
    if settings.scripts is None:
        return {}
    if not settings.scripts.is_dir():
        raise UsageError(f"HARNESS_SCRIPTS {settings.scripts} is not a folder")
    sizes = [path.stat().st_size for path in islice(walked(settings.scripts), MAX_FILES + 1)]
    if not 0 < len(sizes) <= MAX_FILES or sum(sizes) > MAX_BYTES:
        bound = "at least " if len(sizes) > MAX_FILES else ""
        raise UsageError(
            f"HARNESS_SCRIPTS {settings.scripts}: expected 1 to {MAX_FILES} files with at most {MAX_BYTES} "
            "bytes in "
            f"total, found {bound}{len(sizes)} files with {sum(sizes)} bytes",
            hint="use this folder only for scripts, and put data into an image or a volume",
        )
    return read(settings.scripts)


def version_text(tag: str, changed: Mapping[str, bytes]) -> str:
    """Return the image's tag and the names of its changed scripts as one line of text, for the evidence."""
    return " + ".join([tag, *(f"{name}@{_hash(text)[:12]}" for name, text in sorted(changed.items()))])


def config_map(namespace: str, scripts: Mapping[str, bytes]) -> Object:
    """Return a ConfigMap with the scripts, to be created in a launch's namespace."""
    data = {_key(name): base64.b64encode(text).decode() for name, text in scripts.items()}
    metadata = {"name": CONFIG_MAP, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}


def mounts(scripts: Mapping[str, bytes]) -> list[Object]:
    """Return one mount per script. Each script replaces a file in the image or adds a file.

    Each mount has its own volume, because konduktor merges mounts with the same name.
    """
    return [
        {"name": f"{CONFIG_MAP}-{number}", "mountPath": f"{WORKSPACE}/{name}", "subPath": _key(name)}
        for number, name in enumerate(sorted(scripts))
    ]


def volumes(mounts: Sequence[Object]) -> list[Object]:
    """Return the volumes of `mounts`, which all refer to the same ConfigMap."""
    return [{"name": mount["name"], "configMap": {"name": CONFIG_MAP}} for mount in mounts]


def _hashes_of(tag: str) -> dict[str, str]:
    command = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{SCRIPTS}"}}}}', tag]
    result = processes.run(command, timeout=30, check=False, cause=CAUSE)
    try:
        return dict(json.loads(result.stdout))
    except ValueError:
        return {"": "an image without labels"}


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _key(name: str) -> str:
    """Return a ConfigMap key for a script.

    The key is a hash of the script's path, because paths are not valid keys.
    """
    return _hash(name.encode())[:16]
