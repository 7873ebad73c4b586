"""Lay a mounted folder out as a kubelet does."""

from pathlib import Path

from harness.launch.mounted import MountedFolder


def lay_out(mounted: MountedFolder, folder: Path) -> Path:
    """Write what the volume shows of the ConfigMap into a new folder, and return it."""
    data = mounted.config_map("ns")["data"]
    for item in mounted.volume()["configMap"]["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data[item["key"]])
    return folder
