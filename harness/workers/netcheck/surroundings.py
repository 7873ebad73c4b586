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
"""Maximum clock offset in seconds. With larger offsets, tokens may be invalid, timeouts may be wrong, and a
tracker's time axis is distorted."""
SHM_PER_PROCESS = 16 * 1024 * 1024
"""Minimum size of /dev/shm in bytes for each process on a node. This project chose the limit. The containers'
default of 64 MiB is enough for four processes, but not for eight (nccl #525, #290; ai-cloud-validation
#643)."""
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def facts(shm: str = "/dev/shm") -> dict[str, Any]:  # noqa: S108
    """Return the properties of this process's environment that `compare` needs.

    None means that a value is unknown, and "" means that a package is not installed.
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
    reports: Mapping[int, Mapping[str, Any]], offsets: Mapping[int, tuple[float, float]], processes: int = 1
) -> list[Finding]:
    """Return findings about environments that differ between ranks or are unsuitable.

    `offsets` maps each rank to two numbers in seconds: the offset of its clock from rank 0's clock, and the
    maximum error of this offset. If versions differ, the finding blames the ranks without the most common
    version. If no single version is the most common, it blames all ranks.
    """
    findings: list[Finding] = []
    for name in ("python", "torch", "nccl"):
        findings += _differ(
            name, {rank: own[name] for rank, own in reports.items() if own.get(name) is not None}
        )
    small_shm = {
        rank: own["shm"]
        for rank, own in reports.items()
        if own.get("shm") is not None and own["shm"] < SHM_PER_PROCESS * processes
    }
    if small_shm:
        sizes = ", ".join(f"{_bytes(size)} on rank {rank}" for rank, size in sorted(small_shm.items()))
        needed = f"{_bytes(SHM_PER_PROCESS)} are needed for each process ({processes} per node)"
        findings.append(failed("shm.small", f"/dev/shm has {sizes}; {needed}", small_shm))  # noqa: S108
    for rank, own in sorted(reports.items()):
        if own.get("shm") is None:
            findings.append(unknown("surroundings", "there is no /dev/shm to measure", [rank]))
        if own.get("infiniband") and 0 <= own["memlock"] < 1 << 30:
            limit = _bytes(own["memlock"])
            findings.append(
                failed(
                    "memlock.low",
                    f"InfiniBand is available, but only {limit} of memory may be locked",
                    [rank],
                )
            )
    findings += _clocks({0: (0.0, 0.0), **offsets})
    if not any(finding.status == "failed" for finding in findings) and reports:
        one = next(iter(reports.values()))
        torch = f"torch {one['torch']}" if one["torch"] else "no torch"
        findings.append(
            ok(
                "surroundings",
                f"{len(reports)} ranks: Python {one['python']}, {torch}, clocks within {CLOCK_SECONDS:.0f} s",
            )
        )
    return findings


def _clocks(offsets: Mapping[int, tuple[float, float]]) -> list[Finding]:
    """Return a finding that blames the ranks whose clocks differ too much from the median of all clocks."""
    middle = median(offset for offset, _ in offsets.values())
    deviations = {
        rank: o - middle for rank, (o, error) in offsets.items() if abs(o - middle) - error > CLOCK_SECONDS
    }
    text = ", ".join(f"rank {rank} by {offset:+.1f} s" for rank, offset in sorted(deviations.items()))
    return [failed("clock.offset", f"clocks are off: {text}", deviations)] if deviations else []


def _differ(name: str, versions: Mapping[int, str]) -> list[Finding]:
    counts = Counter(versions.values()).most_common()
    if len(counts) < 2:
        return []
    has_majority = counts[0][1] > counts[1][1]
    blamed = [rank for rank, version in versions.items() if not has_majority or version != counts[0][0]]
    text = "; ".join(
        f"{version or 'none'} on {listed(rank for rank, own in versions.items() if own == version)}"
        for version, _ in counts
    )
    return [failed(f"versions.{name}", f"the ranks' {name} versions differ: {text}", blamed)]


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
        stats = os.statvfs(path)
    except OSError:
        return None
    return stats.f_frsize * stats.f_blocks


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.0f} {unit}"
    return f"{number} bytes"
