"""Make small copies of bundles, which are committed to the repository as test data for the judges.

The copies omit everything that no judge reads: reports, the logs that kind exports, the launcher's own files,
image sizes on nodes, ground-truth frames in logs, and the middle of long logs. Paths on the machine are
replaced with placeholders, and boot ids with hashes.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.workers.ground_truth.truth_frames import MARK, PROCESS_MARK

KEPT = (
    *("manifest.json", "verdict.json", "training-audit.json", "*.jsonl"),
    *("objects/*", "logs/*", "truth/*", "tracker/*"),
)
LOG_LINES = 600
"""The number of lines that are kept at the start and at the end of a log. No judge reads more lines."""


def record(bundle: Path, archive: Path, places: Mapping[str, str]) -> int:
    """Write `archive` (.tar.xz) reproducibly, and return its size in bytes.

    `places` maps each string to the placeholder that replaces it.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({path for pattern in KEPT for path in bundle.glob(pattern) if path.is_file()}):
            raw = b"".join(_lines(path))
            for text, placeholder in places.items():
                raw = raw.replace(text.encode(), placeholder.encode())
            entry = tarfile.TarInfo(str(path.relative_to(bundle)))
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    archive.write_bytes(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return archive.stat().st_size


def extract(archive: Path, folder: Path) -> Path:
    """Unpack the bundle into `folder`, and return its path."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def _lines(path: Path) -> Iterator[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    if path.parent.name == "objects" or path.name == "events.jsonl":
        yield from map(_slim, lines)
    elif path.suffix == ".log":
        # Ground-truth frames make up most of a log, and truth/ contains the same points.
        lines = [line for line in lines if MARK.encode() not in line and PROCESS_MARK.encode() not in line]
        yield from lines[:LOG_LINES]
        yield from lines[max(LOG_LINES, len(lines) - LOG_LINES) :]
    else:
        yield from lines


def _slim(line: bytes) -> bytes:
    """Return a watch event without the fields that no judge reads. A damaged line is returned unchanged."""
    try:
        delivery = json.loads(line)
        status = delivery["object"].get("status") or {}
        for image in status.get("images") or []:  # The judges read only the images' tags.
            image.pop("sizeBytes", None)
        node = status.get("nodeInfo") or {}
        for identity in ("machineID", "systemUUID"):
            node.pop(identity, None)
        if "bootID" in node:  # The judges only compare boot ids, so a hash is sufficient.
            node["bootID"] = hashlib.sha256(node["bootID"].encode()).hexdigest()[:12]
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return json.dumps(delivery, separators=(",", ":")).encode() + b"\n"
