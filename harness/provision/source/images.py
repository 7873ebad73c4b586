"""Build the node image and the controllers' images from programs and a Debian root file system."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.provision.source.archive import ProgramImage, write
from harness.provision.source.shell import CAUSE, Shell, build_command
from harness.provision.source.store import FILES, key

NODE_FILES = [
    "cni.conflist",
    "crictl",
    "default-cni.yaml",
    "default-storage.yaml",
    "harness-cni",
    "harness-cni.service",
]
ON_NODE = ["kubeadm", "kubelet", "kubectl"]
"""Programs that are installed as files on the node. All other programs run in containers on the node."""

_START_SECONDS = 60.0
_OUT_OF_VAR = """mkdir -p /usr/local/share/harness/layers
for folder in /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs; do
  own=/usr/local/share/harness/layers/$(basename "$(dirname "$folder")")
  mv "$folder" "$own" && ln -s "$own" "$folder" || exit 1
done
"""
"""A script that moves the files of the node's images out of /var.

kind creates a volume for each node's /var, and Docker copies the node image's files in /var into this volume.
For three nodes, copying 0.5 GB per node would take 8 s of CPU time.
"""


@dataclass(frozen=True)
class NodeParts:
    """The parts from which a node image is built.

    `programs` maps a program's name to its path. `kind_files` is kind's images/base/files.
    """

    kubernetes: str
    expected: Mapping[str, str]
    """The versions of etcd and CoreDNS that were built. The build fails if kubeadm requires other
    versions."""
    programs: Mapping[str, Path]
    kind_files: Path
    root: str
    """The tag of the image with the Debian root file system."""
    architecture: str
    """The architecture of the programs and the root file system, as Docker names it."""


def build_node(shell: Shell, parts: NodeParts, tag: str, work: Path) -> None:
    """Build the node image as `tag`, including all images that kubeadm requires."""
    wanted = _wanted_images(shell, parts)
    context = work / "context"
    _fill_context(context, parts)
    build: list[str | Path] = [*build_command(), "-f", FILES / "node.Dockerfile"]
    arguments = ["--build-arg", f"BASE={parts.root}", "--build-arg", f"PAUSE={wanted['pause']}"]

    def target(name: str) -> str:
        shell.run([*build, *arguments, "--target", name, "--iidfile", work / name, context])
        return (work / name).read_text().strip()

    proxy_root = work / "proxy.tar"
    proxy = target("proxy")
    with _container(shell, "create", proxy, "true") as container:
        shell.run(["docker", "export", "-o", proxy_root, container])
    shell.run(["docker", "rmi", proxy])
    archive = work / "images.tar"
    write(
        [
            ProgramImage(
                image,
                parts.programs[name],
                f"/usr/local/bin/{name}",
                root=proxy_root if name == "kube-proxy" else None,
            )
            for name, image in wanted.items()
        ],
        archive,
        parts.architecture,
    )
    run = ["run", "--detach", "--privileged", "--entrypoint", "sleep"]
    with _container(shell, *run, target("node"), "infinity") as container:
        _preload(shell, container, archive, list(wanted.values()))
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        shell.run(["docker", "commit", "--change", entrypoint, "--change", "CMD []", container, tag])


def build_controller(shell: Shell, program: Path, tag: str, work: Path, architecture: str) -> None:
    """Build a controller's image as `tag`. As in published images, a non-root user runs /manager."""
    archive = work / "image.tar"
    write([ProgramImage(tag, program, "/manager", user="65532:65532")], archive, architecture)
    shell.run(["docker", "load"], stdin=archive)


def tags(shell: Shell) -> set[str]:
    """Return the tags of all images in Docker whose repository begins with harness/."""
    listed = [
        "docker",
        "image",
        "ls",
        "--format",
        "{{.Repository}}:{{.Tag}}",
        "--filter",
        "reference=harness/*",
    ]
    return set(shell.run(listed).split())


def _wanted_images(shell: Shell, parts: NodeParts) -> dict[str, str]:
    """Return the images that kubeadm requires, keyed by component name."""
    kubeadm = parts.programs["kubeadm"]
    listed = shell.run([kubeadm, "config", "images", "list", "--kubernetes-version", parts.kubernetes])
    wanted = {image.rpartition("/")[2].partition(":")[0]: image for image in listed.split()}
    for name, built in parts.expected.items():
        version = wanted.get(name, "nothing").rpartition(":")[2]
        if version.lstrip("v").partition("-")[0] != built.lstrip("v"):
            raise HarnessError(
                f"kubeadm {parts.kubernetes} requires {name} {version}, but versions.toml has {built}",
                hint=f"set {name} in [source] of versions.toml to the version that kubeadm requires",
                cause=CAUSE,
            )
    unknown = sorted(set(wanted) - set(parts.programs))
    if unknown:
        raise HarnessError(
            f"kubeadm {parts.kubernetes} requires images that are not built here: {', '.join(unknown)}",
            hint="harness/provision/source/golang.py lists what is built",
            cause=CAUSE,
        )
    return wanted


def _fill_context(context: Path, parts: NodeParts) -> None:
    shutil.copytree(parts.kind_files, context / "kind", copy_function=shutil.copyfile)
    for folder in [context / "kind", *(context / "kind").rglob("*/")]:
        folder.chmod(0o755)  # Folders in Go's module cache are read-only.
    for name, sources in {
        "bin": [parts.programs[program] for program in ON_NODE],
        "harness": [FILES / file for file in NODE_FILES],
    }.items():
        (context / name).mkdir()
        for source in sources:
            shutil.copy(source, context / name)
    (context / "version").write_text(parts.kubernetes)


def _preload(shell: Shell, container: str, archive: Path, images: list[str]) -> None:
    """Load `archive` into the containerd of a running container."""
    inside = ["docker", "exec", container]
    shell.run(
        ["docker", "exec", "--detach", container, "sh", "-c", "exec containerd >/run/containerd.log 2>&1"]
    )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            shell.run([*inside, "ctr", "--timeout", "2s", "version"])
            break
        except HarnessError:
            if time.monotonic() > deadline:
                shell.run([*inside, "cat", "/run/containerd.log"])
                raise
            time.sleep(0.3)
    ctr = ["ctr", "--namespace", "k8s.io", "images"]
    # The unpacked content is removed from the content store, because kind copies everything in it to each
    # node.
    unpack = [*ctr, "import", "--local", "--discard-unpacked-layers", "-"]
    shell.run(["docker", "exec", "--interactive", container, *unpack], stdin=archive)
    shell.run([*inside, "ctr", "--namespace", "k8s.io", "content", "prune", "references"])
    present = shell.run([*inside, *ctr, "list", "--quiet"]).split()
    missing = sorted(set(images) - set(present))
    if missing:
        raise HarnessError(
            f"the node image lacks {', '.join(missing)} after the import",
            hint=f"the whole output is in {shell.log}",
            cause=CAUSE,
        )
    shell.run(
        [*inside, "sh", "-c", "pkill -x containerd; while pgrep -x containerd >/dev/null; do sleep 0.1; done"]
    )
    shell.run([*inside, "sh", "-c", f"rm -rf /run/containerd /run/containerd.log; {_OUT_OF_VAR}"])


@contextmanager
def _container(shell: Shell, *arguments: str) -> Iterator[str]:
    """Yield the id of a container that runs until the end of the block."""
    verb, *rest = arguments
    container = shell.run(["docker", verb, "--name", _name(shell), *rest]).strip()
    try:
        yield container
    finally:
        shell.run(["docker", "rm", "--force", "--volumes", container])


def _name(shell: Shell) -> str:
    """Return the build container's name. There is only one such container per cache.

    The container of a killed build is found by this name. A label would not work, because `docker commit`
    would copy it to the image, and therefore to every node that is started from the image.
    """
    return f"harness-build-{key(str(shell.log.parent))}"


def remove_leftovers(shell: Shell) -> None:
    """Remove the containers that a killed build left behind. The caller must hold the build's lock."""
    leftovers = shell.run(["docker", "ps", "--all", "--quiet", "--filter", f"name=^/{_name(shell)}$"]).split()
    if leftovers:
        shell.run(["docker", "rm", "--force", "--volumes", *leftovers])
