"""Check that PyTorch sees the requested number of GPUs. If it does not, explain why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .check import Check
from .devices import Device
from .gpu_sharing import Sharing
from .smi_errors import Reading, fabric_problem, lost_gpus

ID, TAG = "env.gpus", "ENV"


def count(
    devices: Sequence[Device], reading: Reading, expected: int | None, shared: Sharing | None = None
) -> Check:
    """Return the check for the number of GPUs.

    If the visible GPUs are shared, or if MIG is enabled, the verdict is UNKNOWN, unless nvidia-smi reports a
    lost GPU.
    """
    visible = len(devices)
    measurement: dict[str, Any] = {"measured": float(visible), "unit": "GPUs", "relation": ">="}
    if expected is not None:
        measurement["limit"] = float(expected)
    lost = lost_gpus(reading.smi)
    if shared is not None and not lost and (visible or shared.cause == "gpu.mig"):
        note = f" ({expected} requested)" if expected is not None and visible < expected else ""
        text = (
            f"{_gpus(visible)} visible{note}: {shared.text}. Only a whole GPU that is not shared is accepted"
        )
        return Check(id=ID, tag=TAG, verdict="UNKNOWN", text=text, cause=shared.cause, **measurement)
    if not visible:
        return _none(reading, lost, expected, measurement)
    if expected is not None and visible < expected:
        text = f"{visible} of {expected} GPUs are visible"
        cause = "gpu.lost" if lost else "gpu.fewer"
        text += f"; nvidia-smi: {'; '.join(lost)}" if lost else ""
        return Check(id=ID, tag=TAG, verdict="FAIL", text=text, cause=cause, **measurement)
    if expected is None:
        text = f"{visible} GPUs are visible, but the expected number is unknown: set --gpus or ACCEPT_GPUS"
        return Check(id=ID, tag=TAG, verdict="UNKNOWN", text=text, **measurement)
    names = ", ".join(sorted({device.name for device in devices}))
    return Check(id=ID, tag=TAG, verdict="PASS", text=f"{visible} GPUs are visible: {names}", **measurement)


def _none(reading: Reading, lost: Sequence[str], expected: int | None, measurement: dict[str, Any]) -> Check:
    """Return the check for a container in which PyTorch does not see any GPU."""
    smi = reading.smi
    if smi is not None and smi.gpus:
        text = f"nvidia-smi lists {len(smi.gpus)} GPUs (driver {smi.driver}), but PyTorch sees none"
        if state := fabric_problem(smi):
            text += f"; the state of the NVLink fabric is {state}: check the fabric manager"
        cause = "gpu.driver"
    else:
        text, cause = f"no GPU is visible; expected {expected or 'at least 1'}", "gpu.absent"
        if reading.failed and reading.error:
            text, cause = f"{text}; {reading.error}", reading.cause or cause
    if lost:
        text, cause = f"{text}; nvidia-smi: {'; '.join(lost)}", "gpu.lost"
    return Check(id=ID, tag=TAG, verdict="FAIL", text=text, cause=cause, **measurement)


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"
