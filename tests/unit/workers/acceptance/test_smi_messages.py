"""Outputs of nvidia-smi without data: the message or the exit code gives the cause, and a hint."""

from __future__ import annotations

import pytest

from harness.workers.acceptance import gpu_count, smi_errors
from harness.workers.acceptance.smi_errors import Reading

NVML = "Failed to initialize NVML: "


@pytest.mark.parametrize(
    ("text", "code", "cause", "hint"),
    [
        # nvidia-container-toolkit #48 and #1227, gpu-operator #485
        (f"{NVML}Unknown Error\n", 255, "gpu.driver", "delete the pod"),
        # WSL #9938
        (f"{NVML}GPU access blocked by the operating system\n", 17, None, "delete the pod"),
        (f"{NVML}Driver/library version mismatch\n", 18, "gpu.driver", "reboot the node"),
        (f"{NVML}Insufficient Permissions\n", 4, "gpu.driver", "supplementalGroups"),
        # open-gpu-kernel-modules #789
        ("No devices were found\n", 6, None, "RmInitAdapter"),
        (f"{NVML}GPU is lost\n", 15, "gpu.lost", ""),
        ("", 15, "gpu.lost", "the code means that a GPU has fallen off the bus"),
        ("", 9, "gpu.driver", "the code means that the driver is not loaded"),
        ("error: what\n", 8, "gpu.lost", "no external power"),
        ("", 139, None, ""),
    ],
)
def test_message_without_data_has_cause_and_hint(text: str, code: int, cause: str | None, hint: str) -> None:
    reading = Reading(None, smi_errors.unparsed(text, code), failed=True, code=code)
    [check] = smi_errors.checks(reading, [])
    assert (check.verdict, check.cause) == ("FAIL" if cause else "UNKNOWN", cause)
    assert hint in check.text
    counted = gpu_count.count([], reading, 8)
    assert (counted.verdict, counted.cause) == ("FAIL", cause or "gpu.absent")
    assert hint in counted.text


def test_a_container_without_nvidia_smi_proves_nothing() -> None:
    reading = Reading(None, "nvidia-smi is not in this container")
    [check] = smi_errors.checks(reading, [])
    assert (check.verdict, check.cause) == ("UNKNOWN", None)
