"""Judge a container's environment: its shared memory, its locked-memory limit, and the host's clock."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import time
from pathlib import Path
from typing import Any

from .check import Check

TAG = "ENV"
SHM = Path("/dev/shm")  # noqa: S108 - the tests do not write to it
SHM_BYTES = 64 * 2**20
"""Minimum free shared memory in bytes. Eight ranks crashed with less (ai-cloud-validation #643)."""
RDMA_DEVICES = Path("/sys/class/infiniband")
CLOCK_ERROR_SECONDS = 1.0
_TIME_ERROR = 5
"""adjtimex's return value for a clock that is not synchronised."""
_GIB = 2**30


class _Timex(ctypes.Structure):
    """Linux's struct timex (adjtimex(2)). Padding replaces the fields that this module does not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def shared_memory(path: Path) -> Check:
    """Judge the shared memory in /dev/shm. At least SHM_BYTES bytes must be free."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Check(id="env.shm", tag=TAG, verdict="UNKNOWN", text=f"{path} cannot be read: {error}")
    return judge_space(usage.total, usage.free)


def judge_space(total: int, free: int) -> Check:
    """Judge the size of /dev/shm and the free space in it, both in bytes."""
    cause = "shm.small" if total < SHM_BYTES else "shm.full" if free < SHM_BYTES else None
    return Check(
        id="env.shm",
        tag=TAG,
        verdict="FAIL" if cause else "PASS",
        text=(
            f"{free / _GIB:.3g} of {total / _GIB:.3g} GiB of shared memory "
            "are free; at least 64 MiB are needed"
        ),
        cause=cause,
        measured=float(free),
        unit="bytes",
        limit=float(SHM_BYTES),
        limit_kind="limit",
        limit_source="docs/acceptance.md",
    )


def memlock() -> Check:
    """Judge this process's locked-memory limit."""
    return locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], _rdma_devices())


def locked_memory(limit: int, rdma_devices: int) -> Check:
    """Judge the locked-memory limit.

    With RDMA, it must be unlimited, because RDMA locks all memory that it sends.
    """
    unlimited = limit == resource.RLIM_INFINITY
    size = "unlimited" if unlimited else f"{limit / 2**20:.3g} MiB"
    devices = (
        f"{rdma_devices} RDMA devices" if rdma_devices else "no minimum is required without RDMA devices"
    )
    too_low = not unlimited and rdma_devices > 0
    return Check(
        id="env.memlock",
        tag=TAG,
        verdict="WARN" if too_low else "PASS",
        text=f"locked memory: {size}; {devices}",
        cause="memlock.low" if too_low else None,
        measured=None if unlimited else float(limit),
        unit="bytes",
    )


def clock() -> Check:
    """Judge the host's clock by the kernel's clock state.

    The clock must be synchronised. It must not be earlier than the time when the image was built.
    """
    build_time = Path(__file__).stat().st_mtime
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = _Timex()
        status = libc.adjtimex(ctypes.byref(state))
    except (OSError, AttributeError) as error:
        return judge_clock(None, 0.0, build_time, str(error))
    return judge_clock(status, state.maxerror / 1e6, build_time, os.strerror(ctypes.get_errno()))


def judge_clock(status: int | None, error: float, build_time: float, reason: str = "") -> Check:
    """Judge the clock. `status` is adjtimex's return value, and `error` is the maximum error in seconds."""
    id, now = "env.clock", time.time()
    if now < build_time - 86400:
        words = (
            f"the clock is {(build_time - now) / 86400:.0f} days behind the "
            "time at which this image was built"
        )
        return Check(id=id, tag=TAG, verdict="FAIL", text=words, cause="clock.wrong")
    if status is None or status < 0:
        return Check(
            id=id,
            tag=TAG,
            verdict="UNKNOWN",
            text=f"the state of the kernel's clock cannot be read: {reason}",
        )
    measurement: dict[str, Any] = {
        **{"measured": error, "unit": "s", "relation": "<=", "limit": CLOCK_ERROR_SECONDS},
        **{"limit_kind": "limit", "limit_source": "docs/acceptance.md"},
    }
    if status == _TIME_ERROR or error > CLOCK_ERROR_SECONDS:
        words = f"the clock is not synchronised; it may be off by {error:.3g} s"
        return Check(id=id, tag=TAG, verdict="WARN", text=words, cause="clock.wrong", **measurement)
    words = f"the clock is synchronised to within {error:.3g} s"
    return Check(id=id, tag=TAG, verdict="PASS", text=words, **measurement)


def _rdma_devices() -> int:
    try:
        return len(list(RDMA_DEVICES.iterdir()))
    except OSError:
        return 0
