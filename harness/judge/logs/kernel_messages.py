"""Find the kernel's messages about GPU faults in a rank's log, if the rank's script prints them.

The number after "Xid" is NVIDIA's code for the fault. Most codes, such as 13, 31 and 43, stand for errors in
the program. The codes in this module stand for faults of the GPU, its memory, its NVLinks or its connection
to the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.causes import CauseId

_XID = re.compile(r"NVRM: Xid \([^()]{1,60}\): (\d{1,3}),")
_LOST = re.compile(r"NVRM: .*fallen off the bus")
_CODES: dict[int, CauseId] = {
    **dict.fromkeys((48, 64, 94, 95), "gpu.ecc"),
    74: "gpu.nvlink",
    **dict.fromkeys((79, 119, 120, 154), "gpu.lost"),
}
_OF_CUDA = re.compile(r"CUDA error|Cuda failure|unhandled cuda error|ncclUnhandledCudaError")
_OF_THE_PROGRAM = re.compile(
    r"illegal memory access|illegal instruction|misaligned address|device-side assert|out of memory"
    r"|invalid (argument|device ordinal|configuration)|no kernel image"
)


@dataclass(frozen=True)
class GpuFault:
    """The kernel's message about a GPU fault."""

    cause: CauseId
    text: str


def gpu_fault(lines: Iterable[tuple[int, str]]) -> GpuFault | None:
    """Return the last message about a GPU fault in a log's lines, or None."""
    faults = [fault for _, text in lines if (fault := of_line(text)) is not None]
    return faults[-1] if faults else None


def of_line(text: str) -> GpuFault | None:
    """Return the GPU fault that the kernel reports in a line, or None."""
    match = _XID.search(text)
    cause = _CODES.get(int(match[1])) if match else "gpu.lost" if _LOST.search(text) else None
    return GpuFault(cause, text.strip()) if cause else None


def explains(error: str) -> bool:
    """Return whether a GPU fault can be the reason for an error.

    Returns False for errors that usually result from a mistake in the program. A GPU fault in the log does
    not explain these, because `dmesg` also prints faults from before the launch.
    """
    return _OF_CUDA.search(error) is not None and _OF_THE_PROGRAM.search(error) is None
