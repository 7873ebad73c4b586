"""Unpack images into a Docker volume once, for all nodes of all clusters. Nodes link to the layers in it.

    containerd/         the root folder of a containerd that runs only while an image is added
    images/<name>.tar   an image without its layers: manifest and configuration
    images/<name>.sh    a script for a node, which links the node's snapshots to the layers in the
                        volume, and imports the tar

An import would write every file of an image into every node. Writing 1 GB twice took 30 s of the 57 s that a
cluster with three nodes needed to start. Links take no space and no time, and the page cache holds the
layers' files only once (docs/decisions/025). An image stays in the volume until the whole volume is removed,
because pods might still use the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError, ToolError
from harness.core.locks import locked
from harness.provision.images.containerd_import import (
    CAUSE,
    CTR,
    OVERLAYFS,
    SECONDS,
    LocalImage,
    import_command,
    node_name,
    pipe,
)
from harness.provision.images.layered import archive as layer_archive
from harness.provision.images.layered import layout
from harness.provision.source.store import key

MOUNT = "/harness-unpacked"
MAX_IMAGES = 24
_SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_CONFIGURATION = """version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
]
"""
_CONTAINERD = f"""mkdir -p {MOUNT}/images
printf %s '{_CONFIGURATION}' >/run/unpack.toml
exec containerd --config /run/unpack.toml --root {MOUNT}/containerd --state /run/unpack --log-level warn
"""
TRIAL_SECONDS = 300
"""The time limit, in seconds, for the container with which `mountable` tests the volume. Docker may have to
pull the node image first."""
_TRIAL = """set -e
mkdir -p {own}/trial
test -d {seen}/trial || {{ echo 'the path of a Docker volume is not a path of this machine' >&2; exit 1; }}
mkdir -p /var/trial/upper /var/trial/work /var/trial/all
cd /var/trial
mount -t overlay overlay -o lowerdir={seen}/trial,upperdir=upper,workdir=work all
"""
_NAMED = """{ctr} images tag --force {name} {kept} >/dev/null || exit 1
set -- $({ctr} images ls name=={name} | tail -n 1)
echo "$3" && {ctr} content get "$3"
"""
_LINK = """# Link the missing layers, and retry, because containerd's garbage collection may remove one.
s='ctr -n k8s.io snapshots --snapshotter overlayfs'
link() {
  case "$known" in *"$1"*) return 0 ;; esac
  made=$($s prepare --mounts link-$$ $3) || { $s rm link-$$; return 1; }
  folder=$(echo "$made" | sed -n 's/.*upperdir=\\([^",]*\\).*/\\1/p; s/.*"Source": "\\(.*shots.*\\)".*/\\1/p')
  rmdir "$folder" && ln -s "$2" "$folder" && $s commit "$1" link-$$
}
all() {
  known=$($s ls)
"""
_IMPORT_LINKED = """}}
for attempt in 1 2 3 4 5; do
  said=$(all 2>&1 && {command} 2>&1) && exit 0
done
echo "$said"
exit 1
"""


def volume(context: RunContext) -> str:
    """Return the name of the volume of unpacked images.

    Each cache folder has its own volume, whose lock is in that folder.
    """
    return f"harness-unpacked-{key(str(context.settings.cache_dir.resolve()))}"


def folder(context: RunContext) -> Path:
    """Return the host path of the volume of unpacked images, for kind's configuration.

    The volume is created if it does not exist.
    """
    name = volume(context)
    _docker("volume", "create", name)
    return Path(_docker("volume", "inspect", "--format", "{{.Mountpoint}}", name).strip())


def mountable(node_image: str, context: RunContext) -> Path | None:
    """Return the host path of the volume of unpacked images if nodes can use its layers.

    If they cannot, a progress message reports the reason, and None is returned.

    With Docker Desktop, the path is in a virtual machine, and containers cannot mount it. Some file systems
    do not support overlayfs. Therefore the path and overlayfs are tested in a container of the node image.
    """
    path, mount_path = folder(context), "/harness-seen"
    command = ["docker", "run", "--rm", "--privileged", "--network", "none", "--entrypoint", "sh"]
    command += ["--volume", f"{volume(context)}:{MOUNT}", "--volume", "/var"]
    command += ["--mount", f"type=bind,source={path},target={mount_path},readonly", node_image, "-c"]
    script = _TRIAL.format(own=MOUNT, seen=mount_path)
    result = processes.run([*command, script], timeout=TRIAL_SECONDS, check=False)
    if result.returncode == 0:
        return path
    reason = ((result.stdout + result.stderr).strip().splitlines() or ["no output"])[-1]
    context.progress(
        f"nodes: importing the images into each node, because the nodes cannot share layers: {reason}"
    )
    return None


def created_at(context: RunContext) -> str:
    """Return the creation time of the volume of unpacked images.

    A cluster template is valid only for one volume, because a new volume contains the same layers in
    different folders.
    """
    folder(context)
    return _docker("volume", "inspect", "--format", "{{.CreatedAt}}", volume(context)).strip()


def script(image: LocalImage) -> str:
    """Return the path, on a node, of the script that links an image's layers."""
    return f"{MOUNT}/images/{image.file}.sh"


def attempt(images: Sequence[LocalImage], node_image: str, context: RunContext) -> None:
    """Add images to the volume of unpacked images.

    If this fails, a progress message reports the failure, and the nodes import the images.
    """
    try:
        add(images, node_image, context)
    except HarnessError as error:
        context.progress(
            f"nodes: importing the images into each node, because unpacking them once failed: {error.message}"
        )


def add(images: Sequence[LocalImage], node_image: str, context: RunContext) -> None:
    """Unpack the images that the volume does not contain yet, with the containerd of a node image.

    A full volume that no node uses is emptied first. Only one process at a time can change the volume. Raises
    ToolError or HarnessError (cause image.load_failed).
    """
    with locked(context.settings.cache_dir / "unpacked.lock"):
        name = volume(context)
        with _containerd(name, node_image) as container:
            file_names = _inside(container, "ls", f"{MOUNT}/images").split()
            is_full = len(file_names) > 2 * MAX_IMAGES and not _used(container)
            for image in images if not is_full else ():
                if f"{image.file}.sh" not in file_names:
                    _add(container, image, context)
        if not is_full:
            return
        context.progress(f"the volume {name} was emptied, because it was full and no cluster uses it")
        _docker("volume", "rm", name)
        with _containerd(name, node_image) as container:
            for image in images:
                _add(container, image, context)


def _used(container: str) -> bool:
    """Return whether a container other than `container` mounts the volume. All such containers are nodes."""
    output = _docker("ps", "--all", "--filter", f"volume={MOUNT}", "--format", "{{.Names}}")
    return bool(set(output.split()) - {container})


def _add(container: str, image: LocalImage, context: RunContext) -> None:
    context.progress(f"{image.tag}: unpacking the image once for all clusters")
    name = node_name(image.tag)
    command = ["docker", "exec", "-i", container, *import_command(), "--discard-unpacked-layers", "-"]
    present = _present(container, image)
    try:
        _send(image, command, present, context)
    except ToolError as error:
        if not present:
            raise
        context.progress(
            f"{image.tag}: unpacking all layers, because unpacking only the new layers failed: "
            f"{error.message}"
        )
        pipe(image, command)
    # If another image took this name, containerd would delete this image's layers, although pods might still
    # use them.
    shell_script = _NAMED.format(ctr=" ".join(CTR), name=name, kept=f"kept.invalid/{image.file.lower()}")
    digest, _, manifest = _inside(container, "sh", "-c", shell_script).partition("\n")
    document = json.loads(manifest)
    if "config" not in document or _sha256(manifest.encode()) != digest:
        raise HarnessError(f"containerd did not import {image.tag} as a single image", cause=CAUSE)
    configuration = _inside(container, *CTR, "content", "get", document["config"]["digest"])
    chains = chain_ids(json.loads(configuration)["rootfs"]["diff_ids"])
    view = _inside(container, "sh", "-c", viewing(chains[-1]))
    links = list(zip(chains, layer_folders(json.loads(view)), strict=True))
    small_tar = small(name, manifest.encode(), configuration.encode())
    files = {"tar": small_tar, "sh": linking(links, image).encode()}
    # The script is written last, so that it never exists without the tar file.
    for ending, content in files.items():
        _write(container, f"{MOUNT}/images/{image.file}.{ending}", content)


def _send(image: LocalImage, command: Sequence[str], present: set[str], context: RunContext) -> None:
    """Pipe the image, without the layers in `present`, to a command.

    If only the last layer has to be sent and its archive exists (layered.py), the archive is used instead of
    `docker save`.
    """
    last = layer_archive(image, context)
    if len(present) == len(_diff_ids(image)) - 1 and last.is_file():
        with last.open("rb") as content:
            processes.run(command, stdin=content, timeout=SECONDS, cause=CAUSE)
    else:
        pipe(image, command, omit=present)


def _diff_ids(image: LocalImage) -> list[str]:
    layers = json.loads(_docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", image.tag))
    return [str(layer) for layer in layers]


def _present(container: str, image: LocalImage) -> set[str]:
    """Return the layers that the volume already has, by their names in the output of `docker save`.

    If Docker uses containerd's image store, compressed layers have other names and are sent again.
    """
    diff_ids = _diff_ids(image)
    snapshot_rows = _inside(container, *CTR, "snapshots", "--snapshotter", OVERLAYFS, "ls").splitlines()
    committed = {row.split()[0] for row in snapshot_rows if row.split()[-1:] == ["Committed"]}
    missing = {
        diff for diff, chain in zip(diff_ids, chain_ids(diff_ids), strict=True) if chain not in committed
    }
    return {f"blobs/{diff.replace(':', '/')}" for diff in diff_ids if diff not in missing}


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """Return the OCI ChainID of each layer, which containerd uses as the snapshot name."""
    chains: list[str] = []
    for diff_id in diff_ids:
        parent = f"{chains[-1]} " if chains else ""
        chains.append(_sha256(f"{parent}{diff_id}".encode()) if parent else diff_id)
    return chains


def linking(links: Sequence[tuple[str, str]], image: LocalImage) -> str:
    """Return the script that links an image into a node's containerd.

    `links` contains a (ChainID, folder) pair for each layer, lowest first.
    """
    lines, parent = [], ""
    for chain, path in links:
        lines.append(f"  link {chain} {path} {parent} || return 1\n")
        parent = chain
    command = " ".join([*import_command(), f"{MOUNT}/images/{image.file}.tar"])
    return _LINK + "".join(lines) + _IMPORT_LINKED.format(command=command)


def small(name: str, manifest: bytes, configuration: bytes) -> bytes:
    """Return a tar archive with an image's manifest and configuration in OCI layout, but without its
    layers."""
    buffer = io.BytesIO()
    with layout(buffer, name, manifest, configuration):
        pass
    return buffer.getvalue()


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def viewing(chain: str) -> str:
    """Return a shell script that prints, as JSON, the mounts of an image with the top layer `chain`."""
    # Nothing refers to the view, so containerd's garbage collector may remove it before `rm` does.
    ctr = "ctr -n k8s.io snapshots"
    return f"{ctr} view --mounts look-{chain} {chain} || exit 1; {ctr} rm look-{chain} >/dev/null 2>&1 || :"


def layer_folders(mounts: Sequence[dict[str, Any]]) -> list[str]:
    """Return the folders that contain the layers' files, lowest layer first.

    `mounts` is the output of `ctr snapshots view --mounts`: a bind mount for a single layer, or an overlay
    whose `lowerdir` option lists the top layer first.
    """
    lower = next((o for o in mounts[0]["Options"] if o.startswith("lowerdir=")), None)
    folders = [mounts[0]["Source"]] if lower is None else lower.removeprefix("lowerdir=").split(":")[::-1]
    for path in folders:
        if not path.startswith(f"{MOUNT}/containerd/{_SNAPSHOTS}/"):
            raise HarnessError(
                f"containerd keeps a layer at {path}, which is outside the volume of unpacked images",
                cause=CAUSE,
            )
    return folders


def _write(container: str, path: str, content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        command = f"cat >{path}.new && mv {path}.new {path}"
        processes.run(
            ["docker", "exec", "-i", container, "sh", "-c", command], stdin=file, timeout=60, cause=CAUSE
        )


@contextmanager
def _containerd(name: str, node_image: str) -> Iterator[str]:
    """Run containerd on the volume, and yield its container's name. The caller must hold the lock."""
    _docker("rm", "--force", "--volumes", name)  # A killed process may have left this container behind.
    # A node image's stop signal is meant for systemd. containerd ignores it and would be killed ten seconds
    # later.
    options = ["--volume", f"{name}:{MOUNT}", "--entrypoint", "sh", "--stop-signal", "TERM"]
    _docker("run", "--detach", "--privileged", "--name", name, *options, node_image, "-c", _CONTAINERD)
    try:
        deadline = time.monotonic() + 30
        probe_command = ["docker", "exec", name, "ctr", "--timeout", "1s", "version"]
        while processes.run(probe_command, timeout=10, check=False).returncode:
            if time.monotonic() > deadline:
                raise HarnessError(
                    "containerd does not respond in the volume of images",
                    hint=_docker("logs", "--tail", "5", name),
                    cause=CAUSE,
                )
            time.sleep(0.1)
        yield name
        # When containerd is stopped cleanly, it writes its database to disk.
        _docker("stop", "--time", "10", name)
    finally:
        _docker("rm", "--force", "--volumes", name)


def _inside(container: str, *command: str) -> str:
    return processes.run(["docker", "exec", container, *command], timeout=60, cause=CAUSE).stdout


def _docker(*arguments: str) -> str:
    return processes.run(["docker", *arguments], timeout=60, cause=CAUSE).stdout
