"""Messages of NVIDIA's container runtime from public bug reports: the cause, and what to do about it."""

import pytest

from harness.evidence.kubernetes.waiting_reasons import Meaning, not_started
from harness.judge.cluster import container_start_advice

HOOK = (
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container "
    "process: error during container init: error running hook #0: error running hook: exit status 1, stdout: "
    ", stderr: Auto-detected mode as 'legacy' nvidia-container-cli: "
)
SPEC = "could not apply required modification to OCI specification: error modifying OCI spec: "
LIBRARY = "/var/lib/docker/overlay2/ce57/merged/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
SOCKET = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/ab/rootfs/run/nvidia-persistenced/socket"
OF_THE_NODE, OF_THE_IMAGE, OF_THE_DRIVER = "scheduling.not_started", "image.config", "gpu.driver"


@pytest.mark.parametrize(
    ("message", "cause", "advice"),
    [
        # nvidia-container-toolkit #223, nvidia-docker #1042: a plugin for GPU sharing found no room.
        (f"{HOOK}device error: no-gpu-has-128MiB-to-run: unknown device", OF_THE_NODE, "free memory"),
        (f"{HOOK}device error: unknown device id: no-gpu-has-1MiB-to-run", OF_THE_NODE, "free memory"),
        (f"{HOOK}device error: MIG-41cd83d0-e55f: unknown device", OF_THE_NODE, "MIG devices of this node"),
        (f"{HOOK}device error: 7: unknown device: unknown", OF_THE_NODE, "NVIDIA_VISIBLE_DEVICES"),
        (f"{HOOK}device error: GPU-9a3f7c1e-0000: unknown device: unknown", "gpu.lost", ""),
        # nvidia-container-toolkit #176, #289
        (f"{HOOK}mount error: file creation failed: {LIBRARY}: file exists", OF_THE_IMAGE, "library"),
        # nvidia-docker #1690
        (
            f"{HOOK}mount error: file creation failed: {SOCKET}: no such device or address: unknown",
            OF_THE_IMAGE,
            "socket",
        ),
        # k8s-device-plugin #324
        (f"{HOOK}container error: cgroup subsystem devices not found: unknown", OF_THE_NODE, "cgroup v2"),
        # k8s-device-plugin #28
        (f"{HOOK}ldcache error: process /sbin/ldconfig failed with error code: 127", OF_THE_NODE, "ldconfig"),
        (f"{HOOK}initialization error: load library failed: libnvidia-ml.so.1", OF_THE_DRIVER, "driver pod"),
        (f"{HOOK}requirement error: unsatisfied condition: cuda>=12.4", OF_THE_DRIVER, "older CUDA"),
        (f"{HOOK}initialization error: driver error: failed to process request", OF_THE_DRIVER, ""),
        # nvidia-container-toolkit #1239, gpustack #4130
        (
            f"{SPEC}failed to inject CDI devices: unresolvable CDI devices management.nvidia.com/gpu=0",
            OF_THE_DRIVER,
            "nvidia-ctk cdi list",
        ),
        # dra-driver-nvidia-gpu #736
        (
            "CDI device injection failed: unresolvable CDI devices k8s.gpu.nvidia.com/device=gpu-1",
            OF_THE_DRIVER,
            "nvidia-ctk cdi list",
        ),
        # gpu-operator #575
        (
            "unable to retrieve OCI runtime error (open log.json): fork/exec "
            "/opt/nvidia-runtime/toolkit/nvidia-container-runtime: no such file or directory: unknown",
            OF_THE_NODE,
            "toolkit pod",
        ),
    ],
)
@pytest.mark.parametrize("reason", ["RunContainerError", "StartError", "CreateContainerError"])
def test_message_of_runtime_has_cause_and_advice(reason: str, message: str, cause: str, advice: str) -> None:
    """Contract: neither a GPU nor the driver is blamed for the image, the request or the toolkit."""
    assert not_started(reason, message) == Meaning(cause, "retried")
    given = container_start_advice.of(message)
    assert advice in given
    assert bool(given) == bool(advice)


@pytest.mark.parametrize(
    "message", ['configmap "nvidia-ctk" not found', 'secret "nvidia-container-cli" not found']
)
def test_object_named_after_runtime_is_not_its_message(message: str) -> None:
    assert not_started("CreateContainerConfigError", message) == Meaning("image.config", "final")
