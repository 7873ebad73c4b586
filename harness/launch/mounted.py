"""Mount a folder of Python modules into the ranks' containers.

The files travel in a ConfigMap of the launch. They work in any image with Python, because the sources are
there. Their bytecode is there too, for the Python that the harness itself runs on: that of the worker image.
A mount cannot be written, so without it every process would compile the modules anew, and for netcheck that
is three quarters of its work (bench/netcheck.py).
"""

from __future__ import annotations

import base64
import marshal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath

from harness.core.kubernetes import Object

_UNCHECKED = 0b01
"""The flag of a .pyc that is used as it is (PEP 552): its source lies beside it in the same ConfigMap."""


@dataclass(frozen=True)
class MountedFolder:
    """Files by their path below `folder`, an absolute path in the container."""

    name: str
    """Of the ConfigMap and the volume."""
    folder: str
    sources: Mapping[str, Path]

    @property
    def files(self) -> dict[str, bytes]:
        """Return what is mounted: path below the folder → content."""
        compiled = (bytecode(path, source) for path, source in self.sources.items() if source.suffix == ".py")
        return {**{path: source.read_bytes() for path, source in self.sources.items()}, **dict(compiled)}

    def config_map(self, namespace: str) -> Object:
        """Return the files as a ConfigMap of the launch's namespace."""
        data = {_key(path): base64.b64encode(content).decode() for path, content in self.files.items()}
        metadata = {"name": self.name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}

    def mount(self) -> Object:
        """Return the volumeMount of a rank's container."""
        return {"name": self.name, "mountPath": self.folder, "readOnly": True}

    def volume(self) -> Object:
        """Return the volume that `mount` refers to."""
        items = [{"key": _key(path), "path": path} for path in self.files]
        return {"name": self.name, "configMap": {"name": self.name, "items": items}}


def bytecode(path: str, source: Path) -> tuple[str, bytes]:
    """Return where the import system looks for a module's bytecode, and this.

    The code comes out of this Python's own cache where that is up to date.
    """
    code = SourceFileLoader(source.stem, str(source)).get_code(source.stem)
    head = util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + util.source_hash(source.read_bytes())
    where = PurePosixPath(path)
    pyc = where.parent / "__pycache__" / f"{where.stem}.{sys.implementation.cache_tag}.pyc"
    return str(pyc), head + marshal.dumps(code)


def _key(path: str) -> str:
    """Return a key for a ConfigMap: no slashes."""
    return path.replace("/", ".")
