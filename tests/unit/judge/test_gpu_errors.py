"""Errors of CUDA, NVML and NCCL that depend on the driver, the image, or the GPUs of the rank's pod."""

from __future__ import annotations

from typing import Any

import bundles
import pytest
from failed_ranks import Case, job_of, of

from harness.evidence.kubernetes import gpu_nodes
from harness.judge.logs import known_errors

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
COUNT = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
    "calling NumCudaDevices() that might have already set an error? "
)
ALLOCATOR = 'INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1154, please report a bug'
NO_DEVICE = (
    'device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "CUDAContext.cpp":50. device=1, num_gpus=1'
)
NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error. Last error: "
DUPLICATE = f"{NCCL}Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1e0"
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
TIME_SLICED = {f"{GPU}.count": "2", f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing"}


def crashed(error: str, limits: dict[str, str] | None = None, *nodes: dict[str, Any]) -> bundles.Job:
    """Return a job whose pods have these resource limits and whose rank 1 ended with the error."""
    job = job_of(Case(of(1, error), "", [], ""))
    containers = [{"name": bundles.CONTAINER, "resources": {"limits": limits or {GPU: "8"}}}]
    for kind, observation in job.objects:
        if kind == "pod":
            observation.object["spec"]["containers"] = containers
    for node in nodes:
        job.see("node", 1, node)
    return job


def nodes(capacity: dict[str, str], labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return the nodes of both pods."""
    status = {"capacity": capacity, "allocatable": capacity, "conditions": []}
    names = [f"e2e-worker{number}" for number in (1, 2)]
    return [
        {
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "labels": labels},
            "spec": {},
            "status": status,
        }
        for name in names
    ]


@pytest.mark.parametrize(
    ("error", "cause", "advice"),
    [
        # pytorch#131117
        (
            "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
            "gpu.driver",
            "has lost its GPUs",
        ),
        (f"{COUNT}Error 304: OS call failed or operation not supported", "gpu.driver", "has lost its GPUs"),
        (f"{COUNT}Error 999: unknown error", "gpu.driver", "has lost its GPUs"),
        # LlamaFactory#7888
        (f"{COUNT}Error 802: system not yet initialized", "gpu.driver", "nvidia-fabricmanager"),
        # intelligent-machine-learning/atorch#2
        (
            f"{COUNT}Error 803: system has unsupported display driver / cuda driver combination",
            "gpu.driver",
            "/usr/local/cuda/compat",
        ),
        # divelab/GraphBP#2, Pointcept/PointTransformerV2#7
        (
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            "gpu.driver",
            "update the driver",
        ),
        (
            "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
            "gpu.driver",
            "reboot the node",
        ),
        (f"{NCCL}nvmlInit_v2() failed: Driver/library version mismatch", "gpu.driver", "reboot the node"),
        ("ImportError: libcuda.so.1: cannot open shared object file", "gpu.absent", "runtimeClassName"),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "gpu.absent",
            "nvidia.com/gpu",
        ),
        # pytorch#112377, pytorch#197312
        (f"RuntimeError: NVML_SUCCESS == r {ALLOCATOR}", "rank.crashed", "reduce the batch"),
        (f"RuntimeError: {NO_DEVICE}", "rank.crashed", "LOCAL_RANK"),
        (ORDINAL, "rank.crashed", "LOCAL_RANK"),
        (f"{NCCL}nvmlDeviceGetHandleByIndex(1) failed: Unknown Error", "rank.crashed", "has lost its GPUs"),
    ],
)
def test_an_error_of_cuda_has_a_cause_and_advice(judged, error: str, cause: str, advice: str) -> None:
    verdict = judged(crashed(error))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert advice in verdict.next[-1], verdict.next


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (f"{COUNT}Error 101: invalid device ordinal", "whether a GPU has failed"),
        (f"{COUNT}Error 2: out of memory", "memory is full"),
        (f"{COUNT}Error 3: initialization error", "spawn"),
        (f"{COUNT}Error 34: CUDA driver is a stub library", "stubs"),
        (f"{COUNT}Error 46: all CUDA-capable devices are busy or unavailable", "another process"),
        (f"{COUNT}Error 805: MPS client failed to connect to the MPS control daemon", "shared through MPS"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling x", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: CUDA error: device kernel image is invalid", "get_arch_list"),
        (f"{NCCL}Cuda failure 'peer access is not supported between these two devices'", "NCCL_P2P_DISABLE"),
        ("RuntimeError: Attempting to deserialize object on CUDA device 3 but x is 1.", "map_location"),
        ("libcudart.so.12: cannot open shared object file: No such file or directory", "compiled extension"),
    ],
)
def test_the_advice_on_an_error_of_cuda(error: str, advice: str) -> None:
    assert advice in known_errors.advice(error)


def test_old_driver_is_not_blamed_on_requests_of_pod(judged) -> None:
    """Contract: a pod can use GPUs without requesting them, if NVIDIA's runtime is the default."""
    error = "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."
    verdict = judged(crashed(error, {"cpu": "1"}))
    assert (verdict.cause, verdict.ranks) == ("gpu.driver", [1]), verdict.explanation


@pytest.mark.parametrize("error", [ORDINAL, f"RuntimeError: {NO_DEVICE}"])
@pytest.mark.parametrize(
    ("limits", "capacity", "labels"),
    [
        ({MIG: "4"}, {MIG: "7", GPU: "0"}, {"nvidia.com/mig.strategy": "mixed"}),
        ({GPU: "4"}, {GPU: "7"}, {f"{GPU}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}),
    ],
)
def test_a_process_can_use_only_one_mig_device(judged, error, limits, capacity, labels) -> None:
    """Contract: a pod with four MIG devices has one GPU for CUDA (k8s-device-plugin #446, #728)."""
    verdict = judged(crashed(error, limits, *nodes(capacity, labels)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "4 MIG devices, but a process can use only one" in verdict.next[-1]


@pytest.mark.parametrize(
    ("error", "amount", "advice"),
    [
        (ORDINAL, "4", "the 4 devices that the pod requests can be one gpu"),
        (DUPLICATE, "1", "two ranks can get the same gpu"),
        (FULL, "1", "other pods may use the same memory"),
    ],
)
def test_node_shows_that_several_devices_can_be_one_gpu(judged, error, amount, advice) -> None:
    verdict = judged(crashed(error, {GPU: amount}, *nodes({GPU: "8"}, TIME_SLICED)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "node e2e-worker2 has 2 GPUs, shared by 4 each (time-slicing)" in verdict.next[-1]
    assert advice in verdict.next[-1].lower()


def test_nccl_does_not_connect_mig_devices_of_one_gpu(judged) -> None:
    verdict = judged(crashed(DUPLICATE, {MIG: "1"}, *nodes({MIG: "7"}, {})))
    assert "does not connect MIG devices of the same GPU" in verdict.next[-1]


@pytest.mark.parametrize(("error", "advice"), [(ORDINAL, "LOCAL_RANK"), (FULL, "shard the model")])
def test_whole_gpus_and_single_device_keep_advice(judged, error, advice) -> None:
    whole = {f"{GPU}.count": "8", f"{GPU}.replicas": "1"}
    verdict = judged(crashed(error, {GPU: "8"}, *nodes({GPU: "8"}, whole)))
    assert advice in verdict.next[-1]
    assert "MIG" not in verdict.next[-1]


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    at = "2026-11-21T05:00:11Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


FAULTY = [
    # NVIDIA/NVSentinel#1481: a health event becomes a condition of the node.
    condition("SysLogsXIDError", "True", "SysLogsXIDErrorIsNotHealthy", "ErrorCode:79 GPU:0 RESTART_BM"),
    condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "GPU has fallen off the bus"),
    condition("GPUMissing", "True", "GPUMissing", "7 of 8 GPUs were found"),
]
FINE = [
    condition("SysLogsXIDError", "False", "SysLogsXIDErrorIsHealthy", "No Health Failures"),
    condition("AcceleratedHardwareReady", "True", "NvidiaAcceleratedHardwareIsReady", "ready"),
    condition("GPUHealthy", "True", "AllGPUsAreHealthy", "8 GPUs"),
    condition("GPUAvailable", "True", "GPUsAvailable", "8 GPUs"),
    condition("GPUMissing", "Unknown", "NoReport", ""),
    condition("DiskPressure", "True", "KubeletHasDiskPressure", "disk"),
]


def with_condition(at: int, one: dict[str, str]) -> list[dict[str, Any]]:
    both = nodes({GPU: "8"}, {})
    both[at]["status"] = {**both[at]["status"], "conditions": [one]}
    return both


@pytest.mark.parametrize("one", FAULTY, ids=lambda one: one["type"])
def test_a_fault_that_a_health_monitor_reports_is_named(judged, one: dict[str, str]) -> None:
    """Contract: the condition of the rank's own node takes precedence over a suspected error in the
    program."""
    error = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    verdict = judged(crashed(error, {GPU: "8"}, *with_condition(1, one)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    text = f"{one['type']} is {one['status']}, {one['reason']}: {one['message']}"
    assert (
        f"ode e2e-worker2 of rank 1 has had a GPU fault since 2026-11-21T05:00:11Z: {text}"
        in verdict.explanation
    )
    assert "drain it" in verdict.next[-1]


@pytest.mark.parametrize(("error", "says"), [(f"{NCCL}remote error", True), ("KeyError: 'text'", False)])
def test_fault_of_another_node_explains_only_gpu_errors(judged, error: str, says: bool) -> None:
    """Contract: the node of rank 0 is mentioned, and its rank is not accused."""
    verdict = judged(crashed(error, {GPU: "8"}, *with_condition(0, FAULTY[0])))
    assert verdict.ranks == [1], verdict.explanation
    assert ("of rank 0 has had a GPU fault" in verdict.explanation) == says
    assert "drain it" not in verdict.next[-1]


@pytest.mark.parametrize("one", FINE, ids=lambda one: one["type"])
def test_conditions_of_a_healthy_node_are_not_mentioned(judged, one: dict[str, str]) -> None:
    error = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    verdict = judged(crashed(error, {GPU: "8"}, *with_condition(1, one)))
    assert "GPU fault" not in verdict.explanation
    assert "CUDA_LAUNCH_BLOCKING" in verdict.next[-1]


def test_the_condition_explains_an_unhealthy_gpu() -> None:
    node = with_condition(0, FAULTY[0])[0]
    node["status"] = {**node["status"], "allocatable": {GPU: "7"}}
    shortage = gpu_nodes.shortage(node, GPU, 8)
    assert shortage is not None
    assert "SysLogsXIDError is True, SysLogsXIDErrorIsNotHealthy: ErrorCode:79" in shortage.text


LAUNCH = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def test_gpu_that_device_plugin_reports_as_unhealthy_is_named(judged) -> None:
    """Contract: an Xid error makes a device unhealthy while the rank uses it (k8s-device-plugin #189)."""
    both = nodes({GPU: "8"}, {})
    both[1]["status"] = {**both[1]["status"], "allocatable": {GPU: "7"}}
    verdict = judged(crashed(LAUNCH, {GPU: "8"}, *both))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "ode e2e-worker2 of rank 1 has 8 nvidia.com/gpu, of which 7 are allocatable" in verdict.explanation
    assert "drain it" in verdict.next[-1]


@pytest.mark.parametrize("error", [FULL, ORDINAL, DUPLICATE, "RuntimeError: CUDA error: device-side assert"])
def test_unhealthy_gpu_of_node_does_not_excuse_program(judged, error: str) -> None:
    """Contract: the unhealthy GPU may be that of another pod, so the node is not accused."""
    both = nodes({GPU: "8"}, {})
    both[1]["status"] = {**both[1]["status"], "allocatable": {GPU: "7"}}
    verdict = judged(crashed(error, {GPU: "8"}, *both))
    assert "allocatable" not in verdict.explanation
    assert "drain it" not in verdict.next[-1]


@pytest.mark.parametrize(("health", "says"), [("Unhealthy", True), ("Healthy", False), ("Unknown", False)])
def test_kubelet_reports_health_of_devices_of_pod(judged, health: str, says: bool) -> None:
    job = crashed(LAUNCH, {GPU: "8"})
    status = {"name": GPU, "resources": [{"resourceID": "GPU-7540a9b3", "health": health}]}
    for kind, observation in job.objects:
        if kind == "pod" and observation.object["metadata"]["name"] == job.pod_name(1):
            for one in observation.object["status"].get("containerStatuses", []):
                one["allocatedResourcesStatus"] = [status]
    verdict = judged(job)
    assert verdict.cause == "rank.crashed"
    assert ("GPU-7540a9b3 (nvidia.com/gpu)" in verdict.explanation) == says
    assert ("drain it" in verdict.next[-1]) == says


def test_share_of_memory_is_full_before_that_of_gpu(judged) -> None:
    """Contract: HAMi limits the memory of each pod (Project-HAMi/HAMi-core#170)."""
    verdict = judged(crashed(FULL, {GPU: "1", "nvidia.com/gpumem": "16000"}))
    assert "raise its limit nvidia.com/gpumem" in verdict.next[-1]
