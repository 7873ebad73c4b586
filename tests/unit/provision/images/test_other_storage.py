"""Nodes of a Docker in a virtual machine, or on a file system without overlayfs, import every image."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.context import RunContext
from harness.provision.images import containerd_import, load, unpacked
from harness.provision.images.containerd_import import LocalImage
from harness.provision.kind.configuration import configuration
from harness.settings import Settings

IMAGE = LocalImage("worker:1", "sha256:" + "ab" * 32)


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    return RunContext(settings=settings, progress=messages.append)


messages: list[str] = []


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that appends its words to a file and does what `answer` in the folder does."""
    messages.clear()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f'#!/bin/sh\necho "$*" >>{folder}/asked\n. {folder}/answer\n')
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("message", "warning"),
    [
        (
            "docker: Error response from daemon: Mounts denied: the path is not shared from the host",
            "Mounts denied",
        ),
        ("the path of a Docker volume is not a path of this machine", "not a path of this machine"),
        ("mount: /var/trial/all: wrong fs type, bad option, bad superblock on overlay", "wrong fs type"),
    ],
)
def test_layers_that_nodes_cannot_use_are_not_mounted(
    docker: Path, context: RunContext, message: str, warning: str
) -> None:
    """Docker Desktop (two forms), and ZFS or an overlay file system below Docker."""
    volume = "*Mountpoint*) echo /var/lib/docker/volumes/x/_data ;;"
    (docker / "answer").write_text(f'case "$*" in {volume} "run "*) echo "{message}" >&2; exit 1 ;; esac\n')
    assert unpacked.mountable("node:1", context) is None
    assert warning in messages[0]
    settings = context.settings
    nodes = configuration(settings, "node:1", (), None, settings.state_dir)["nodes"]
    assert isinstance(nodes, list)
    assert [mount["containerPath"] for mount in nodes[0]["extraMounts"]] == ["/harness-volumes"]


def test_layers_that_nodes_can_use_are_mounted(docker: Path, context: RunContext) -> None:
    (docker / "answer").write_text('case "$*" in *Mountpoint*) echo /data/x ;; esac\n')
    assert unpacked.mountable("node:1", context) == Path("/data/x")
    asked = (docker / "asked").read_text()
    assert "type=bind,source=/data/x" in asked
    assert messages == []


@pytest.mark.parametrize(
    ("snapshotter", "mounted"), [("native", True), ("fuse-overlayfs", True), ("zfs", False)]
)
def test_images_are_imported_for_the_snapshotter_of_the_node(
    docker: Path, context: RunContext, snapshotter: str, mounted: bool
) -> None:
    """kind's entrypoint chooses it by the file system. Links work with overlayfs alone."""
    listed = f"REF TYPE\\nSNAPSHOTTER {snapshotter}\\n" + ("MOUNTED\\n" if mounted else "")
    (docker / "answer").write_text(
        f'case "$*" in *"images ls"*) printf "{listed}" ;; "save -o "*) : >"$3" ;; esac\n'
    )
    load.load_images([IMAGE], ["node-1"], context)
    asked = (docker / "asked").read_text()
    assert f"images import --local --snapshotter={snapshotter} -" in asked
    assert unpacked.script(IMAGE) not in asked


def test_overlayfs_is_the_default(docker: Path, context: RunContext) -> None:
    (docker / "answer").write_text('case "$*" in "save -o "*) : >"$3" ;; esac\n')
    load.load_images([IMAGE], ["node-1"], context)
    assert "--snapshotter=overlayfs" in (docker / "asked").read_text()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('  snapshotter = "overlayfs"', "overlayfs"),
        ("snapshotter = 'native'", "native"),
        ('    snapshotter="fuse-overlayfs"', "fuse-overlayfs"),
        ("# snapshotter = 'zfs'", ""),
    ],
)
def test_the_snapshotter_is_read_from_the_node(tmp_path: Path, line: str, found: str) -> None:
    """The command of the node runs in a shell here."""
    file = tmp_path / "config.toml"
    file.write_text(f"version = 2\n[plugins]\n{line}\n")
    command = load._SNAPSHOTTER.replace(load._CONFIGURATION, str(file))
    done = containerd_import.processes.run(["sh", "-c", command], timeout=30)
    assert done.stdout == (f"SNAPSHOTTER {found}\n" if found else "")
