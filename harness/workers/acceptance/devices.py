"""Determine the GPUs that PyTorch sees, the requested number of GPUs, and the installed software versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .check import Check, Where
from .smi_parser import Gpu, Smi

TAG = "ENV"
REQUESTED = "ACCEPT_GPUS"
"""Environment variable with the number of GPUs that should be visible in this container."""


@dataclass(frozen=True)
class Device:
    """A device under test: the CPU, or one GPU. `index` is the GPU's index in PyTorch."""

    kind: Literal["cpu", "cuda"]
    index: int
    uuid: str
    name: str
    memory: int = 0

    @property
    def torch(self) -> str:
        """Return the device's name in PyTorch, such as `cuda:0`."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    @property
    def ids(self) -> list[int] | None:
        """Return the `device_ids` argument for a barrier. Without it, NCCL guesses the GPU and may hang."""
        return [self.index] if self.kind == "cuda" else None

    @property
    def where(self) -> Where:
        """Return the fields of Check that identify this GPU."""
        return {"gpu": self.uuid, "index": self.index} if self.kind == "cuda" else {}

    def as_dict(self) -> dict[str, Any]:
        """Return the device as a dictionary with the fields of AcceptanceGpu in the evidence schema."""
        return {key: value for key, value in asdict(self).items() if key != "kind"}


CPU = Device("cpu", 0, "", "cpu")


def visible() -> list[Device]:
    """Return the GPUs that PyTorch sees, or an empty list if CUDA is not available."""
    import torch

    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        Device("cuda", index, uuid(str(getattr(one, "uuid", ""))), one.name, one.total_memory)
        for index, one in enumerate(properties)
    ]


def without_cuda() -> str | None:
    """Return an error message if this PyTorch build supports neither NVIDIA nor AMD GPUs, otherwise None.

    This depends on the image, and not on the node.
    """
    import torch

    if torch.version.cuda or getattr(torch.version, "hip", None):
        return None
    return f"this image's PyTorch {torch.__version__} is built without CUDA, so it cannot test a GPU"


def image_check(id: str, tag: str) -> Check | None:
    """Return an UNKNOWN check if PyTorch cannot use GPUs, otherwise None.

    The check does not blame any node.
    """
    if text := without_cuda():
        return Check(id=id, tag=tag, verdict="UNKNOWN", text=text, cause="image.no_cuda")
    if paths := closed_devices():
        text = (
            f"user {os.getuid()} cannot open {paths[0]}: set runAsUser or supplementalGroups with --pod FILE"
        )
        return Check(id=id, tag=tag, verdict="UNKNOWN", text=text)
    return None


def closed_devices(folder: Path = Path("/dev")) -> list[Path]:
    """Return the NVIDIA GPU device files that this user cannot open.

    By default, the NVIDIA driver lets every user open them. Its parameter NVreg_DeviceFileMode can change
    this.
    """
    files = [*sorted(folder.glob("nvidia[0-9]*")), *folder.glob("nvidiactl"), *folder.glob("nvidia-uvm")]
    return [file for file in files if not os.access(file, os.R_OK | os.W_OK)]


def calm() -> None:
    """Limit PyTorch to one CPU thread.

    On a busy machine, several threads may wait for each other for minutes.
    """
    import torch

    torch.set_num_threads(1)


def uuid(text: str) -> str:
    """Return a GPU's UUID in nvidia-smi's format. PyTorch omits the prefix `GPU-`."""
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def of(smi: Smi | None, device: Device) -> Gpu | None:
    """Return nvidia-smi's data for a device, or None if nvidia-smi does not list the device.

    GPUs are matched by UUID, because PyTorch may number them differently.
    """
    gpus = smi.gpus if smi else ()
    return next((gpu for gpu in gpus if device.uuid and gpu.uuid == device.uuid), None)


def requested(option: int | None) -> int | None:
    """Return the number of GPUs that `option` or ACCEPT_GPUS requests, or None if both are unset.

    Raises ValueError if the number is invalid.
    """
    text = os.environ.get(REQUESTED, "").strip()
    number = int(text) if option is None and text else option
    if number is not None and number < 1:
        raise ValueError(f"the number of GPUs must be at least 1; found {number}")
    return number


def versions(smi: Smi | None) -> dict[str, str]:
    """Return the versions of the installed software, keyed by name.

    The software is Python, PyTorch and, if present, CUDA, NCCL, cuDNN and the GPU driver.
    """
    import torch

    versions_by_name = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions_by_name["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        versions_by_name["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    if torch.cuda.is_available() and torch.backends.cudnn.is_available():
        versions_by_name["cudnn"] = str(torch.backends.cudnn.version())
    if smi and smi.driver:
        versions_by_name |= {"driver": smi.driver, "driver_cuda": smi.cuda}
    return versions_by_name


def version_checks(versions_by_name: dict[str, str], device: str) -> Iterator[Check]:
    """Yield one check that lists the versions. The check is UNKNOWN if a required version is missing."""
    required = ("python", "torch", *(("cuda", "nccl", "driver") if device == "cuda" else ()))
    missing = [name for name in required if not versions_by_name.get(name)]
    text = ", ".join(f"{name} {value}" for name, value in versions_by_name.items())
    if missing:
        text += f"; unknown versions: {', '.join(missing)}"
    yield Check(id="env.versions", tag=TAG, verdict="UNKNOWN" if missing else "PASS", text=text)
