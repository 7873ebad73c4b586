"""Compare the number of GPUs that PyTorch sees with the requested number, and explain any difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .check import Check
from .devices import Device
from .gpu_sharing import Sharing
from .smi_reading import Reading, cause_of, fabric_problem, lost_gpus

ID, TAG = "env.gpus", "ENV"


def count(
    devices: Sequence[Device], reading: Reading, expected: int | None, shared: Sharing | None = None
) -> Check:
    """Return the check for the number of GPUs.

    If a GPU is missing because it is shared or split by MIG, the node is not to blame, and the verdict is
    UNKNOWN.
    """
    seen = len(devices)
    shown: dict[str, Any] = {"measured": float(seen), "unit": "GPUs", "relation": ">="}
    if expected is not None:
        shown["limit"] = float(expected)
    lost = lost_gpus(reading.smi)
    if shared is not None and not lost and (seen or shared.cause == "gpu.mig"):
        of = f" for {expected} requested" if expected is not None and seen < expected else ""
        text = f"{_gpus(seen)} visible{of}: {shared.text}. Only a whole GPU that is not shared is accepted"
        return Check(id=ID, tag=TAG, verdict="UNKNOWN", text=text, cause=shared.cause, **shown)
    if not seen:
        return _none(reading, lost, expected, shown)
    if expected is not None and seen < expected:
        text = f"{seen} of {expected} GPUs are visible"
        cause = "gpu.lost" if lost else "gpu.fewer"
        text += f"; nvidia-smi: {'; '.join(lost)}" if lost else ""
        return Check(id=ID, tag=TAG, verdict="FAIL", text=text, cause=cause, **shown)
    if expected is None:
        text = f"{seen} GPUs are visible, but the expected number is not set (--gpus N or ACCEPT_GPUS)"
        return Check(id=ID, tag=TAG, verdict="UNKNOWN", text=text, **shown)
    names = ", ".join(sorted({device.name for device in devices}))
    return Check(id=ID, tag=TAG, verdict="PASS", text=f"{seen} GPUs are visible: {names}", **shown)


def _none(reading: Reading, lost: Sequence[str], expected: int | None, shown: dict[str, Any]) -> Check:
    """Return the check for a container in which PyTorch does not see any GPU."""
    smi = reading.smi
    if smi is not None and smi.gpus:
        text = f"nvidia-smi lists {len(smi.gpus)} GPUs (driver {smi.driver}), but PyTorch sees none"
        if state := fabric_problem(smi):
            text += f"; the state of the NVLink fabric is {state}: check the fabric manager"
        cause = "gpu.driver"
    else:
        text, cause = f"no GPU is visible; {expected or 'at least 1'} should be", "gpu.absent"
        if reading.failed and reading.error:
            text, cause = f"{text}; {reading.error}", cause_of(reading.error) or cause
    if lost:
        text, cause = f"{text}; nvidia-smi: {'; '.join(lost)}", "gpu.lost"
    return Check(id=ID, tag=TAG, verdict="FAIL", text=text, cause=cause, **shown)


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"
