"""Determine why a container did not get its GPUs, using the messages of NVIDIA's container runtime.

The runtime calls the driver, so most of its errors are those of the driver. This module lists the errors that
have other reasons or that require a more specific action. The messages are those of libnvidia-container 1.17
and of the Container Device Interface (CDI) in containerd and CRI-O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.causes import CauseId


@dataclass(frozen=True)
class Fault:
    """A reason why a container did not get its GPUs.

    `advice` is "" if the cause's action in the catalogue is enough.
    """

    cause: CauseId
    advice: str = ""


_UNKNOWN_DEVICE = r"device error: (?=.{0,200}unknown device).{0,200}"
_FAULTS: tuple[tuple[str, Fault], ...] = (
    (
        rf"{_UNKNOWN_DEVICE}no-gpu-has-",
        Fault(
            "scheduling.not_started",
            "no GPU of this node has as much free memory as the pod requests. Check whether the scheduler of "
            "the GPU sharing plugin placed the pod, and whether all GPU pods on the node use this plugin",
        ),
    ),
    (
        rf"{_UNKNOWN_DEVICE}\bmig-",
        Fault(
            "scheduling.not_started",
            "the MIG devices of this node were changed after its device plugin listed them: restart the "
            "device plugin's pod on the node, and delete this pod",
        ),
    ),
    (rf"{_UNKNOWN_DEVICE}\bgpu-", Fault("gpu.lost")),
    (
        _UNKNOWN_DEVICE,
        Fault(
            "scheduling.not_started",
            "the node has no GPU with this name or index: compare NVIDIA_VISIBLE_DEVICES in the pod and the "
            "image with `nvidia-smi -L` on the node. If neither sets this variable, the node may have lost "
            "a GPU",
        ),
    ),
    (
        r"file creation failed: \S*\.so[.\d]*: file exists",
        Fault(
            "image.config",
            "the image contains a library of the driver, which the node must provide: remove packages such "
            "as libnvidia-compute from the image, and do not commit an image from a container with GPUs",
        ),
    ),
    (
        r"nvidia-persistenced/socket: no such device or address",
        Fault(
            "image.config",
            "the image or a volume already contains this socket: build the image from a Dockerfile, and do "
            "not mount the node's /run",
        ),
    ),
    (
        r"cgroup subsystem devices not found",
        Fault(
            "scheduling.not_started",
            "the NVIDIA Container Toolkit of this node does not support cgroup v2: update the toolkit",
        ),
    ),
    (
        r"nvidia-container-cli: ldcache error",
        Fault(
            "scheduling.not_started",
            "the NVIDIA Container Toolkit cannot run ldconfig: correct its path in "
            "/etc/nvidia-container-runtime/config.toml on the node",
        ),
    ),
    (
        r"load library failed: libnvidia-ml",
        Fault(
            "gpu.driver",
            "the NVIDIA Container Toolkit does not find a driver on this node: run `nvidia-smi` on the "
            "node. If you use the GPU operator, "
            "check whether its driver pod is running on the node",
        ),
    ),
    (
        r"nvidia-container-cli: requirement error",
        Fault(
            "gpu.driver",
            "the driver of this node is too old for the image: update the driver, or use an image with an "
            "older CUDA version",
        ),
    ),
    (
        r"nvidia-container-runtime\S*: (no such file|.{0,40}not found)",
        Fault(
            "scheduling.not_started",
            "NVIDIA's container runtime is not at the path that containerd or CRI-O is configured to use. "
            "If you use "
            "the GPU operator, check its toolkit pod on this node; otherwise, install the NVIDIA Container "
            "Toolkit",
        ),
    ),
    (
        r"unresolvable cdi devices \S*nvidia\.com/",
        Fault(
            "gpu.driver",
            "the CDI specifications on this node do not contain the device: compare the output of "
            "`nvidia-ctk cdi list` on the node with "
            "the message, and restart the pod that writes the specifications (toolkit, device plugin or "
            "DRA driver)",
        ),
    ),
)
"""Pairs of (pattern for a message in lower case, reason). The first match counts."""
_OF_THE_RUNTIME = ("nvidia-container-cli", "nvidia-ctk", "nvml error", "inject cdi devices")
"""Parts of messages, in lower case, from NVIDIA's container runtime."""


def fault(message: str) -> Fault | None:
    """Return why a container did not get its GPUs, or None if the message is not about GPUs.

    `message` is the kubelet's message about the container or its pod.
    """
    text = message.lower()
    known = next((one for pattern, one in _FAULTS if re.search(pattern, text)), None)
    of_the_runtime = any(part in text for part in _OF_THE_RUNTIME)
    return known or (Fault("gpu.driver") if of_the_runtime else None)
