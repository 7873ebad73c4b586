"""Lay a mounted folder out as a kubelet does."""

from collections.abc import Sequence
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder


def lay_out(mounted: MountedFolder, folder: Path) -> Path:
    """Write what the volume shows of the ConfigMap into a new folder, and return it."""
    return lay_out_parts([mounted], folder)


def lay_out_parts(parts: Sequence[MountedFolder], folder: Path) -> Path:
    """Write what one projected volume shows of several ConfigMaps."""
    for part in parts:
        _lay_out(part, folder)
    return folder


def _lay_out(mounted: MountedFolder, folder: Path) -> None:
    data = mounted.config_map("ns")["data"]
    for item in mounted.volume()["configMap"]["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data[item["key"]])
