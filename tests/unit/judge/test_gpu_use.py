"""Ranks that used the CPU although their container requests GPUs, and the log messages that show it.

nnUNet#892 and #2573, yolov5#1891, fastai#2126, ilab-on-ocp#39, cog#310, pytorch#131117.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bundles
import pytest
from ended_pods import stamped
from process_events import PodEvents, recorded

GPU = {"nvidia.com/gpu": "1"}
INIT = "/opt/lib/python3.12/site-packages/torch/cuda/__init__.py:180: UserWarning: CUDA initialization: "
UNKNOWN = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
NONE = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
COUNT = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error "
TRIGGERED = " (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
CODE = "  return torch._C._cuda_getDeviceCount() > 0"
LIGHTNING = "GPU available: False, used: False"
HF = "10/01/2026 12:00:01 - WARNING - __main__ - Process rank: {}, device: cpu, n_gpu: 0, fp16: False"


def logged(
    lines: Mapping[int, Sequence[str]],
    limits: dict[str, Any] | None = None,
    per_node: int = 1,
    **resources: Any,
) -> bundles.Job:
    """Return a healthy job whose pods have these limits. Their logs begin with these lines."""
    job = bundles.healthy(per_node=per_node)
    given = {"limits": GPU if limits is None else limits, **resources}
    for kind, observation in job.objects:
        if kind == "pod":
            containers = [{"name": bundles.CONTAINER, "resources": given}]
            observation.object["spec"]["containers"] = containers
    for index, own in lines.items():
        job.logs[job.pod_name(index)] = [*stamped(own), *job.logs[job.pod_name(index)]]
    return job


@pytest.mark.parametrize(
    ("line", "cause", "quoted"),
    [
        (f"{INIT}{UNKNOWN}{TRIGGERED}", "gpu.driver", f"CUDA initialization: {UNKNOWN}"),
        (f"{INIT}{OLD}{TRIGGERED}", "gpu.driver", OLD),
        (f"{INIT}{NONE}{TRIGGERED}", "gpu.driver", NONE),
        (f"{INIT}{COUNT}803: system has unsupported display driver{TRIGGERED}", "gpu.driver", "Error 803"),
        (f"{INIT}{COUNT}100: no CUDA-capable device is detected{TRIGGERED}", "gpu.absent", "Error 100"),
        (f"[W CUDAFunctions.cpp:108] Warning: CUDA initialization: {OLD} (function operator())", "", OLD),
        (f"x.py:1: UserWarning: HIP initialization: {COUNT}101: hipErrorInvalidDevice", "", "HIP init"),
        ("x.py:1: UserWarning: XPU device count is zero! (Triggered internally at x.cpp)", "gpu.absent", "!"),
        (
            "dataloader.py:684: Warning: 'pin_memory' argument is set as true but no accelerator is found",
            "gpu.absent",
            "no accelerator is found",
        ),
        (
            "grad_scaler.py:132: Warning: torch.cuda.amp.GradScaler is enabled, but CUDA is not available.",
            "gpu.absent",
            "CUDA is not available",
        ),
        (
            "autocast_mode.py:265: Warning: User provided device_type of 'cuda', but CUDA is not available.",
            "gpu.absent",
            "CUDA is not available",
        ),
        (LIGHTNING, "gpu.absent", LIGHTNING),
        ("GPU available: True (cuda), used: False", "gpu.not_used", "used: False"),
        (
            "[2026-10-01 12:00:01,123] [INFO] [real_accelerator.py:203:get_accelerator] Setting "
            "ds_accelerator to cpu (auto detect)",
            "gpu.absent",
            "Setting ds_accelerator to cpu",
        ),
        (HF.format(1), "gpu.not_used", "device: cpu"),
        ("Training in distributed mode. Process 1, total 2, device cpu.", "gpu.not_used", "device cpu"),
        ("Distributed environment: DistributedType.MULTI_CPU  Backend: gloo", "gpu.not_used", "MULTI_CPU"),
        ("Ultralytics 8.3.0 Python-3.12.3 torch-2.5.1+cu124 CPU (Intel Xeon)", "gpu.not_used", "CPU (Intel"),
        ("YOLOv5 v4.0-6-g6ab5895 torch 1.8.0a0+1606899 CPU", "gpu.not_used", "CPU"),
        (
            "WARNING!!! You are attempting to run training on a CPU (torch.cuda.is_available() is False).",
            "gpu.absent",
            "is_available() is False",
        ),
        ("torch.cuda.is_available(): False", "gpu.absent", "False"),
        ("Is CUDA available: False", "gpu.absent", "False"),
    ],
)
def test_rank_on_the_cpu_is_no_pass(judged, line: str, cause: str, quoted: str) -> None:
    verdict = judged(logged({1: [line, CODE]}))
    expected = ("FAIL", cause or "gpu.driver", [1])
    assert (verdict.verdict, verdict.cause, verdict.ranks) == expected, verdict.explanation
    assert verdict.explanation.startswith("Rank 1 used the CPU, although the container requests GPUs")
    assert quoted in verdict.explanation
    assert "Triggered" not in verdict.explanation
    assert verdict.evidence == [f"logs/{bundles.healthy().pod_name(1)}-{bundles.CONTAINER}.log:1"]


@pytest.mark.parametrize(
    ("limits", "requested"),
    [
        ({"nvidia.com/mig-1g.10gb": "1"}, True),
        ({"nvidia.com/gpu.shared": 1}, True),
        ({"amd.com/gpu": "8"}, True),
        ({"gpu.intel.com/i915": "1"}, True),
        ({"nvidia.com/gpu": "0"}, False),
        ({"cpu": "4", "memory": "8Gi", "nvidia.com/hostdev": "1"}, False),
        ({}, False),
    ],
)
def test_only_containers_that_request_gpus_are_judged(
    judged, limits: dict[str, Any], requested: bool
) -> None:
    verdict = judged(logged({0: [f"{INIT}{NONE}"]}, limits))
    assert verdict.verdict == ("FAIL" if requested else "PASS"), verdict.explanation
    assert any(check.name == "gpus" for check in verdict.checks) == requested


def test_claim_of_gpu_is_request(judged) -> None:
    verdict = judged(logged({0: [f"{INIT}{NONE}"]}, {}, claims=[{"name": "gpu"}, {"name": "nic"}]))
    assert (verdict.cause, verdict.ranks) == ("gpu.driver", [0])
    assert "GPUs (claim gpu)" in verdict.explanation


@pytest.mark.parametrize(
    "line",
    [
        "",
        "cudart_stub.cc:28] Could not find cuda drivers on your machine, GPU will not be used.",
        "WARNING:absl:No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0)",
        "torch/cuda/__init__.py:789: UserWarning: Can't initialize NVML",
        "GPU available: True (cuda), used: True",
        "Setting ds_accelerator to cuda (auto detect)",
        "Process rank: 1, device: cuda:0, n_gpu: 1, distributed training: True",
        "epoch 3 device: cpu offload of the optimizer",
        "Distributed environment: MULTI_GPU  Backend: nccl",
        "torch.cuda.is_available(): True",
        "CUDA available: True",
        "Using device: cpu and later Using device: cuda",
        "moving the tokenizer's table: using device: cpu and numpy",
        "CUDAExecutionProvider is not available",
    ],
)
def test_sentences_of_healthy_ranks_prove_nothing(judged, line: str) -> None:
    """Contract: TensorFlow and JAX report only that they found no GPU themselves."""
    verdict = judged(logged({1: [line]}))
    assert verdict.verdict == "PASS", verdict.explanation


@pytest.mark.parametrize(
    "used",
    ["node-1:71:71 [0] NCCL INFO Bootstrap : Using eth0", "NCCL version 2.21.5+cuda12.4", "Device: cuda:0"],
)
def test_other_process_of_the_script_is_not_rank(judged, used: str) -> None:
    """Contract: a script may first prepare its data on the CPU."""
    assert judged(logged({1: [f"{INIT}{UNKNOWN}", used]})).verdict == "PASS"


def test_attempt_before_restart_does_not_count(judged) -> None:
    failed = "E1001 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0"
    assert judged(logged({1: [f"{INIT}{UNKNOWN}", failed]})).verdict == "PASS"


def test_every_pod_is_named_with_its_sentence(judged) -> None:
    job = logged({0: [f"{INIT}{OLD}"], 1: [f"{INIT}{UNKNOWN}"]})
    verdict = judged(job)
    assert verdict.ranks == [0, 1]
    assert verdict.explanation.startswith("Ranks 0 and 1 used the CPU, although the containers request GPUs")
    assert f"rank 0 (pod {job.pod_name(0)} on node e2e-worker1) logged: CUDA init" in verdict.explanation
    assert f"rank 1 (pod {job.pod_name(1)} on node e2e-worker2) logged: CUDA init" in verdict.explanation


@pytest.mark.parametrize(
    ("lines", "ranks", "text"),
    [
        ([f"{INIT}{OLD}"] * 2, [2, 3], "Ranks 2 and 3 used the CPU"),
        ([f"{INIT}{OLD}"], [2, 3], "At least one of ranks 2 and 3 used the CPU"),
        ([f"[default1]:{INIT}{OLD}"], [3], "Rank 3 used the CPU"),
        ([f"[1,3]<stderr>:{INIT}{OLD}"], [3], "Rank 3 used the CPU"),
        ([HF.format(2), HF.format(3)], [2, 3], "Ranks 2 and 3 used the CPU"),
        ([HF.format(3), "NCCL version 2.21.5+cuda12.4"], [3], "Rank 3 used the CPU"),
    ],
)
def test_ranks_of_one_pod_are_told_apart(judged, lines: list[str], ranks: list[int], text: str) -> None:
    verdict = judged(logged({1: lines}, {"nvidia.com/gpu": "2"}, per_node=2))
    assert (verdict.verdict, verdict.ranks) == ("FAIL", ranks), verdict.explanation
    assert verdict.explanation.startswith(text)


@pytest.mark.parametrize("line", ["Using device: cpu", "INFO: Using cpu device", "Device: cpu"])
def test_device_of_unknown_part_is_unknown(judged, line: str) -> None:
    """Contract: cog#310. Programs also print this about a part of themselves, such as a tokenizer's model."""
    verdict = judged(logged({1: [line]}))
    assert (verdict.verdict, verdict.ranks) == ("UNKNOWN", [1])
    assert verdict.explanation.startswith("Rank 1 may have used the CPU, although the container requests")


def test_certain_sentence_counts_more_than_uncertain_one(judged) -> None:
    verdict = judged(logged({0: ["Using device: cpu"], 1: ["Using device: cpu", f"{INIT}{OLD}"]}))
    assert (verdict.cause, verdict.ranks) == ("gpu.driver", [1])


def used(
    gpus: Sequence[bool | None],
    *,
    group: bool = True,
    lines: Mapping[int, Sequence[str]] = {},
    child: bool | str | None = "",
) -> bundles.Job:
    """Return a job whose containers request GPUs. Each rank's process recorded whether it used one."""
    job = recorded(logged(lines))
    for rank, gpu in enumerate(gpus):
        pod = PodEvents(job, rank)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, rank, 2)])
        pod.rank(20, rank, 2, group=group)
        if child != "":
            pod.start(30, "python", ppid=20)
        if child in (True, False, None):
            pod.end(30, gpu=child)
        pod.end(20, gpu=gpu)
        pod.result(7)
        pod.end(7)
    return job


def test_rank_whose_process_never_used_a_gpu_is_no_pass(judged) -> None:
    """Contract: a program that silently selects the CPU logs every point and exits with 0."""
    verdict = judged(used([True, False]))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "gpu.not_used", [1]), (
        verdict.explanation
    )
    assert verdict.explanation.startswith("Rank 1 used the CPU, although the container requests GPUs")
    assert "PyTorch did not initialise CUDA, ROCm or XPU in its process" in verdict.explanation


@pytest.mark.parametrize("gpus", [[True, True], [None, None], [True, None]])
def test_rank_that_used_gpu_or_is_unknown_passes(judged, gpus: list[bool | None]) -> None:
    verdict = judged(used(gpus))
    assert verdict.verdict == "PASS", verdict.explanation


def test_rank_without_process_group_may_only_start_others(judged) -> None:
    """Contract: without torch.distributed, the process can be a script that starts the training."""
    check = next(each for each in judged(used([True, False], group=False)).checks if each.name == "gpus")
    assert (check.result, check.ranks) == ("UNKNOWN", [1]), check


@pytest.mark.parametrize(
    ("child", "expected"), [(True, "PASS"), (None, "PASS"), ("running", "PASS"), (False, "FAIL")]
)
def test_child_of_a_rank_may_have_used_the_gpu(judged, child: bool | str | None, expected: str) -> None:
    """Contract: an inference engine uses the GPU in child processes of a rank."""
    verdict = judged(used([True, False], child=child))
    assert verdict.verdict == expected, verdict.explanation


@pytest.mark.parametrize(("gpus", "expected"), [("1", "UNKNOWN"), ("2", "FAIL")])
def test_rank_without_a_gpu_of_its_own_may_coordinate_others(judged, gpus: str, expected: str) -> None:
    """Contract: in a pod with two ranks and one GPU, only one of them can train on it."""
    job = recorded(logged({}, {"nvidia.com/gpu": gpus}, per_node=2))
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, 2 * index, 4), (21, 1, 2 * index + 1, 4)])
        for local in range(2):
            pod.rank(20 + local, 2 * index + local, 4, local=local)
        for local in range(2):
            pod.end(20 + local, gpu=local == 0)
        pod.result(7)
        pod.end(7)
    check = next(each for each in judged(job).checks if each.name == "gpus")
    assert (check.result, check.ranks) == (expected, [1, 3]), check


def test_evaluation_on_the_gpu_does_not_clear_the_training(judged) -> None:
    job = used([True, False])
    pod = PodEvents(job, 1, time_ms=5_000)
    pod.start(30, "python", ppid=1)
    pod.end(30, gpu=True)
    assert (judged(job).cause, judged(job).ranks) == ("gpu.not_used", [1])


def test_driver_error_in_log_explains_unused_gpu(judged) -> None:
    verdict = judged(used([True, False], lines={1: [f"{INIT}{OLD}"]}))
    assert (verdict.cause, verdict.ranks) == ("gpu.driver", [1]), verdict.explanation


def test_sentence_of_other_process_does_not_accuse_rank_with_gpu(judged) -> None:
    """Contract: the log of a pod also contains the lines of the rank's child processes."""
    verdict = judged(used([True, True], lines={1: [f"{INIT}{OLD}", "Using device: cpu"]}))
    assert verdict.verdict == "PASS", verdict.explanation
