"""Mount files from a launch's ConfigMap into a folder in the ranks' containers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.kubernetes import Object


@dataclass(frozen=True)
class MountedFolder:
    """A folder to mount in a container. `sources` maps each path in the folder to a local file."""

    name: str
    """The name of the ConfigMap and the volume."""
    folder: str
    sources: Mapping[str, Path]

    def config_map(self, namespace: str) -> Object:
        """Return the files as a ConfigMap in the launch's namespace."""
        data = {_key(path): source.read_text() for path, source in self.sources.items()}
        metadata = {"name": self.name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def mount(self) -> Object:
        """Return the volumeMount for a rank's container."""
        return {"name": self.name, "mountPath": self.folder, "readOnly": True}

    def volume(self) -> Object:
        """Return the volume for the volumeMount that `mount` returns."""
        items = [{"key": _key(path), "path": path} for path in self.sources]
        return {"name": self.name, "configMap": {"name": self.name, "items": items}}

    def parts(self, limit: int) -> list[MountedFolder]:
        """Split the folder into folders whose ConfigMaps each have at most `limit` bytes of JSON.

        `kubectl apply` stores a copy of each object in an annotation, which is limited to 262144 bytes.
        """
        parts: list[dict[str, Path]] = [{}]
        size = 0
        for path, source in self.sources.items():
            entry_size = len(json.dumps(source.read_text())) + len(path) + 8
            if size + entry_size > limit and parts[-1]:
                parts.append({})
                size = 0
            parts[-1][path] = source
            size += entry_size
        if len(parts) == 1:
            return [self]
        return [replace(self, name=f"{self.name}-{at}", sources=part) for at, part in enumerate(parts, 1)]


def projected(name: str, parts: Sequence[MountedFolder]) -> Object:
    """Return the volume `name`, which combines the files of several ConfigMaps in one folder."""
    return {"name": name, "projected": {"sources": [_source(part) for part in parts]}}


def _source(part: MountedFolder) -> Object:
    return {"configMap": part.volume()["configMap"]}


def _key(path: str) -> str:
    """Return the ConfigMap key for a path, without slashes."""
    return path.replace("/", ".")
