"""Compare the ranks' environments: clocks, package versions, shared memory and locked memory."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import site
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from .finding import Finding, failed, listed, ok, unknown
from .interfaces import infiniband

CLOCK_SECONDS = 5.0
"""Maximum clock offset in seconds. Larger offsets break tokens, timeouts and a tracker's time axis."""
SHM_PER_PROCESS = 16 * 1024 * 1024
"""Required size of /dev/shm in bytes for each process on a node. This project has chosen the limit. The
container default of 64 MiB is enough for four processes, but not for eight (nccl #525, #290;
ai-cloud-validation #643).
"""
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def facts(shm: str = "/dev/shm") -> dict[str, Any]:  # noqa: S108
    """Return the properties of this process's environment that `compare` needs.

    None is an unknown value. "" means that a package is not installed.
    """
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": _version("torch"),
        "nccl": next((version for name in _NCCL if (version := _version(name))), ""),
        "shm": _size(shm),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "infiniband": list(infiniband()),
        "processors": os.cpu_count(),
        "machine": os.environ.get("NODE_NAME") or _text("/proc/sys/kernel/random/boot_id"),
    }


def find_packages() -> None:
    """Make installed packages importable under `python -S`, without running their .pth files.

    A .pth file can run arbitrary code. For example, the Pluto client's .pth file imports the whole client,
    which takes 0.3 s of CPU time. Packages in folders that are listed only in a .pth file are not found.
    """
    site.addpackage = lambda *_: None
    site.main()


def compare(
    of: Mapping[int, Mapping[str, Any]], offsets: Mapping[int, tuple[float, float]], processes: int = 1
) -> list[Finding]:
    """Return findings about environments that differ between ranks or are unsuitable.

    `offsets` maps each rank to its clock's offset from rank 0's clock, and the error of that offset, in
    seconds. A finding blames the ranks that differ from the most common value, or all ranks if no value is
    the most common one.
    """
    found: list[Finding] = []
    for name in ("python", "torch", "nccl"):
        found += _differ(
            name, {rank: known[name] for rank, known in of.items() if known.get(name) is not None}
        )
    small = {
        rank: known["shm"]
        for rank, known in of.items()
        if known.get("shm") is not None and known["shm"] < SHM_PER_PROCESS * processes
    }
    if small:
        sizes = ", ".join(f"{_bytes(size)} on rank {rank}" for rank, size in sorted(small.items()))
        needed = f"{_bytes(SHM_PER_PROCESS * processes)} are needed for {processes} of its processes"
        found.append(failed("shm.small", f"/dev/shm has {sizes}; {needed}", small))  # noqa: S108
    for rank, known in sorted(of.items()):
        if known.get("shm") is None:
            found.append(unknown("surroundings", "there is no /dev/shm to measure", [rank]))
        if known.get("infiniband") and 0 <= known["memlock"] < 1 << 30:
            limit = _bytes(known["memlock"])
            found.append(
                failed("memlock.low", f"InfiniBand is available, but only {limit} may be locked", [rank])
            )
    found += _clocks({0: (0.0, 0.0), **offsets})
    if not any(finding.status == "failed" for finding in found) and of:
        one = next(iter(of.values()))
        torch = f"torch {one['torch']}" if one["torch"] else "no torch"
        found.append(
            ok(
                "surroundings",
                f"{len(of)} ranks: Python {one['python']}, {torch}, clocks within {CLOCK_SECONDS:.0f} s",
            )
        )
    return found


def _clocks(offsets: Mapping[int, tuple[float, float]]) -> list[Finding]:
    """Return a finding that blames the ranks whose clocks differ too much from the median of all clocks."""
    middle = median(offset for offset, _ in offsets.values())
    off = {
        rank: o - middle for rank, (o, error) in offsets.items() if abs(o - middle) - error > CLOCK_SECONDS
    }
    said = ", ".join(f"rank {rank} by {offset:+.1f} s" for rank, offset in sorted(off.items()))
    return [failed("clock.offset", f"clocks are off: {said}", off)] if off else []


def _differ(name: str, versions: Mapping[int, str]) -> list[Finding]:
    counted = Counter(versions.values()).most_common()
    if len(counted) < 2:
        return []
    several = counted[0][1] > counted[1][1]
    odd = [rank for rank, version in versions.items() if not several or version != counted[0][0]]
    said = "; ".join(
        f"{version or 'none'} on {listed(rank for rank, has in versions.items() if has == version)}"
        for version, _ in counted
    )
    return [failed(f"versions.{name}", f"{name} differs: {said}", odd)]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _size(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.0f} {unit}"
    return f"{number} bytes"
