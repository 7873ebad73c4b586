"""A checkout of Pluto's client, with its own build backend, and an edit that drops a point."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

BACKEND = """
import base64, hashlib, os, pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    record, files = "", sorted(path for path in pathlib.Path("content").rglob("*") if path.is_file())
    info = next(pathlib.Path("content").glob("*.dist-info")).name
    name = info.removesuffix(".dist-info") + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as packed:
        for path in files:
            place, data = str(path.relative_to("content")), path.read_bytes()
            packed.writestr(place, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{place},sha256={digest},{len(data)}\\n"
        packed.writestr(info + "/RECORD", record + info + "/RECORD,,\\n")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
DROPPING = """

def _dropping(original):
    def enqueue(self, metrics, timestamp_ms, step):
        if step == 7 and os.environ.get("RANK") == "1":
            metrics = {name: value for name, value in metrics.items() if not name.startswith("loss/")}
        original(self, metrics, timestamp_ms, step)
    return enqueue

import os
SyncProcessManager.enqueue_metrics = _dropping(SyncProcessManager.enqueue_metrics)
"""


def checkout(folder: Path) -> Path:
    """Write the files of the client that this environment has, and return the folder."""
    installed = distribution("pluto-ml")
    for file in installed.files or ():
        source = Path(str(file.locate()))
        if source.is_file() and ".." not in file.parts and source.name not in ("RECORD", "INSTALLER"):
            copy = folder / "content" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    return folder
