"""Determine whether GPUs are shared through MIG, MPS, time slicing or vGPU, or used by other processes.

On a shared GPU, a slow result proves nothing, because other processes may use the GPU at the same time. So
the verdict is UNKNOWN if a result is slow. Wrong results still have the verdict FAIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .devices import Device, of
from .smi_parser import Smi

Cause = Literal["gpu.shared", "gpu.mig"]
CAUSES: tuple[Cause, ...] = ("gpu.shared", "gpu.mig")
UNPROVED = frozenset(
    {
        *("compute.slow", "memory.slow", "copy.slow", "gpu.clocks", "gpu.throttled"),
        *("collective.slow", "straggler.rank", "link.slow"),
        *("gpu.fewer", "gpu.absent"),
    }
)
"""A check with one of these causes is not judged on shared GPUs, because sharing reduces the speed and the
number of GPUs too."""
VISIBLE, MPS = "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
WHOLE = "ACCEPT_WHOLE"
"""An environment variable. The launch sets it to 1 if the labels of all tested nodes prove that no GPU is
shared."""
USED_SHARE, USED_BYTES = 0.02, 1 << 30
"""Other processes use a GPU if its memory use before the tests exceeds both this fraction of its memory and
this number of bytes. An idle driver uses less."""


@dataclass(frozen=True)
class Sharing:
    """The reason why this container does not have exclusive access to whole GPUs."""

    cause: Cause
    text: str


def sharing(
    devices: Sequence[Device], smi: Smi | None, expected: int | None, environ: Mapping[str, str]
) -> Sharing | None:
    """Return the reason why this container's GPUs are shared or partitioned, or None if nothing proves it.

    `smi` must have been read before the tests used the GPUs.
    """
    uuids = _assigned_uuids(environ)
    gpus = smi.gpus if smi else ()
    mig = any(one.startswith("MIG-") for one in [*uuids, *(device.uuid for device in devices)])
    if mig or any(gpu.mig == "Enabled" for gpu in gpus):
        return Sharing("gpu.mig", "MIG is enabled: this container has parts of GPUs, not whole GPUs")
    text = None
    if environ.get(MPS):
        text = f"the GPU is shared with other pods through MPS ({MPS} is set)"
    elif any((gpu.virtualization or "").upper() == "VGPU" for gpu in gpus):
        text = "this is a vGPU: other virtual machines can use the same GPU"
    elif expected and len(devices) < expected:
        text = _offered_several_times(len(devices), expected, len(uuids), environ)
    text = text or "; ".join(filter(None, (_usage_text(device, smi) for device in devices)))
    return Sharing("gpu.shared", text) if text else None


def _offered_several_times(
    visible: int, expected: int, assigned: int, environ: Mapping[str, str]
) -> str | None:
    """Return an explanation if sharing may be why fewer GPUs are visible than requested, otherwise None."""
    if 0 < assigned == visible:
        return (
            f"{expected} GPUs were requested, but the device plugin assigned only {assigned} ({VISIBLE}): it "
            "offers each GPU several times, as with time slicing"
        )
    # Only Kubernetes device plugins offer a GPU several times. They do so for all GPUs on a node.
    in_kubernetes = "KUBERNETES_SERVICE_HOST" in environ
    if not in_kubernetes or environ.get(WHOLE) == "1" or assigned >= expected or not visible:
        return None
    if expected % visible:
        return None
    return (
        f"{visible} of {expected} requested GPUs are visible. Either the device plugin offers each GPU "
        f"{expected // visible} times, or GPUs are missing. The node has no "
        "label nvidia.com/gpu.count, which would decide this"
    )


def _assigned_uuids(environ: Mapping[str, str]) -> set[str]:
    """Return the UUIDs of the GPUs and MIG devices that the device plugin assigned to this container.

    With device plugin strategies such as CDI, NVIDIA_VISIBLE_DEVICES does not contain UUIDs, and the result
    is empty.
    """
    visible = [one.strip() for one in environ.get(VISIBLE, "").split(",")]
    return {one.split("::")[0] for one in visible if one.startswith(("GPU-", "MIG-"))}


def _usage_text(device: Device, smi: Smi | None) -> str | None:
    """Return a clause about the GPU memory that other processes use, or None if they use none."""
    gpu = of(smi, device)
    if gpu is None or not isinstance(gpu.memory_used, float) or not gpu.memory:
        return None
    if gpu.memory_used <= max(USED_BYTES, USED_SHARE * gpu.memory):
        return None
    used, total = gpu.memory_used / 2**30, gpu.memory / 2**30
    return f"other processes used {used:.1f} of {total:.1f} GiB on GPU {device.index} before the tests"


def excuse(verdict: str, cause: str | None) -> bool:
    """Return whether a check with this verdict and cause must not be judged if the GPU is shared."""
    return verdict in ("FAIL", "WARN") and cause in UNPROVED


def excused(text: str, reason: str) -> str:
    """Return the text for a result that is not judged because the GPU is shared."""
    return f"{text}; not judged: {reason}"
