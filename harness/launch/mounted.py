"""Mount a folder of files into the ranks' containers: a ConfigMap of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.kubernetes import Object


@dataclass(frozen=True)
class MountedFolder:
    """Files by their path below `folder`, an absolute path in the container."""

    name: str
    """Of the ConfigMap and the volume."""
    folder: str
    sources: Mapping[str, Path]

    def config_map(self, namespace: str) -> Object:
        """Return the files as a ConfigMap of the launch's namespace."""
        data = {_key(path): source.read_text() for path, source in self.sources.items()}
        metadata = {"name": self.name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def mount(self) -> Object:
        """Return the volumeMount of a rank's container."""
        return {"name": self.name, "mountPath": self.folder, "readOnly": True}

    def volume(self) -> Object:
        """Return the volume that `mount` refers to."""
        items = [{"key": _key(path), "path": path} for path in self.sources]
        return {"name": self.name, "configMap": {"name": self.name, "items": items}}


def _key(path: str) -> str:
    """Return a key for a ConfigMap: no slashes."""
    return path.replace("/", ".")
