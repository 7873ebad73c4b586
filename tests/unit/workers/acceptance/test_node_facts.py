"""What a container sees and gives: GPUs, versions, shared and locked memory, the clock. And what to do."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import smi_texts

from harness.workers.acceptance import devices, gpu_count, host_state
from harness.workers.acceptance import error_bounds as precision
from harness.workers.acceptance.causes import ADVICE
from harness.workers.acceptance.devices import Device
from harness.workers.acceptance.smi_errors import Reading
from harness.workers.acceptance.smi_parser import Smi, parse

MIB = 1 << 20
PACKAGE = Path(devices.__file__).parent


def seen(count: int) -> list[Device]:
    return [Device("cuda", index, smi_texts.uuid(index), "NVIDIA H100") for index in range(count)]


def listed(count: int) -> Smi | None:
    return parse(smi_texts.document(*(smi_texts.gpu(index) for index in range(count))))


@pytest.mark.parametrize(
    ("in_torch", "in_smi", "asked", "verdict", "cause"),
    [
        (8, 8, 8, "PASS", None),
        (7, 7, 8, "FAIL", "gpu.fewer"),
        (0, 0, 8, "FAIL", "gpu.absent"),
        (0, 0, None, "FAIL", "gpu.absent"),
        (0, 8, 8, "FAIL", "gpu.driver"),
        (8, 8, None, "UNKNOWN", None),
    ],
)
def test_gpus_asked_for_against_seen(
    in_torch: int, in_smi: int, asked: int | None, verdict: str, cause: str | None
) -> None:
    """Contract: no GPU is never a pass, and 7 of 8 are found out only by somebody who said 8."""
    check = gpu_count.count(seen(in_torch), Reading(listed(in_smi)), asked)
    assert (check.verdict, check.cause) == (verdict, cause)


def test_no_nvidia_smi_and_no_gpu() -> None:
    assert gpu_count.count([], Reading(None, "nvidia-smi is absent"), None).cause == "gpu.absent"


@pytest.mark.parametrize(("mode", "closed"), [(0o666, []), (0o660, ["nvidia0"]), (0o444, ["nvidia0"])])
def test_a_device_of_another_user_accuses_no_node(mode: int, closed: list[str]) -> None:
    """Contract: the verdict is UNKNOWN, and names the device and the user."""
    with TemporaryDirectory() as place:  # pytest's folders are closed to other users
        folder, root = Path(place), os.getuid() == 0
        folder.chmod(0o755)
        (folder / "nvidia0").touch()
        (folder / "nvidia0").chmod(mode if root else (mode & 0o007) << 6)
        (folder / "nvidia-caps").mkdir()
        script = (
            "import os, pathlib, sys; from harness.workers.acceptance import devices; "
            "os.getuid() or os.setgroups([]) or os.setgid(65532) or os.setuid(65532); "
            "print([path.name for path in devices.closed_devices(pathlib.Path(sys.argv[1]))])"
        )
        command = [sys.executable, "-c", script, place]
        done = subprocess.run(command, cwd=PACKAGE.parents[2], capture_output=True, text=True, check=False)
        assert done.stdout == f"{closed}\n", done.stderr


def test_how_many_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.REQUESTED, "8")
    assert devices.requested(None) == 8
    assert devices.requested(4) == 4
    monkeypatch.setenv(devices.REQUESTED, "")
    assert devices.requested(None) is None
    for bad in ("0", "many"):
        monkeypatch.setenv(devices.REQUESTED, bad)
        with pytest.raises(ValueError, match=r"0|many"):
            devices.requested(None)


def test_devices_are_paired_by_uuid() -> None:
    """Contract: PyTorch and nvidia-smi may number differently, and PyTorch leaves GPU- out."""
    second = Device("cuda", 0, devices.uuid(smi_texts.uuid(1).removeprefix("GPU-")), "NVIDIA H100")
    found = devices.of(listed(2), second)
    assert found is not None
    assert found.index == 1
    assert devices.of(listed(2), Device("cuda", 0, "", "NVIDIA H100")) is None


def test_a_version_that_is_not_known() -> None:
    whole = {"python": "3.13", "torch": "2.9", "cuda": "12.8", "nccl": "2.27.5", "driver": "550"}
    assert [check.verdict for check in devices.version_checks(whole, "cuda")] == ["PASS"]
    for name in whole:
        less = {key: value for key, value in whole.items() if key != name}
        assert [check.verdict for check in devices.version_checks(less, "cuda")] == ["UNKNOWN"]


@pytest.mark.parametrize(
    ("total", "free", "cause"),
    [
        (64 * MIB, 64 * MIB, None),
        (63 * MIB, 63 * MIB, "shm.small"),
        (1024 * MIB, 63 * MIB, "shm.full"),
        (0, 0, "shm.small"),
    ],
)
def test_small_or_full_shared_memory_fails(total: int, free: int, cause: str | None) -> None:
    check = host_state.judge_space(total, free)
    assert (check.verdict, check.cause) == ("FAIL" if cause else "PASS", cause)


def test_shared_memory_that_is_not_there(tmp_path: Path) -> None:
    assert host_state.shared_memory(tmp_path / "none").verdict == "UNKNOWN"


@pytest.mark.parametrize(
    ("limit", "devices_here", "verdict"),
    [(resource.RLIM_INFINITY, 8, "PASS"), (8 * MIB, 8, "WARN"), (8 * MIB, 0, "PASS")],
)
def test_a_locked_memory_limit_warns_only_with_rdma_devices(
    limit: int, devices_here: int, verdict: str
) -> None:
    """Contract: a limit matters where there is an RDMA device."""
    assert host_state.locked_memory(limit, devices_here).verdict == verdict


@pytest.mark.parametrize(
    ("answer", "error", "built", "verdict"),
    [
        (0, 0.01, 0.0, "PASS"),
        (5, 0.01, 0.0, "WARN"),
        (0, 16.0, 0.0, "WARN"),
        (-1, 0.0, 0.0, "UNKNOWN"),
        (None, 0.0, 0.0, "UNKNOWN"),
        (0, 0.01, 4e9, "FAIL"),  # the year 2096
    ],
)
def test_a_clock_before_the_image_build_time_fails(
    answer: int | None, error: float, built: float, verdict: str
) -> None:
    """Contract: a clock before the image's own files is wrong, whatever the kernel says of it."""
    check = host_state.judge_clock(answer, error, built)
    assert check.verdict == verdict
    assert check.limit is None or check.limit_source


def test_this_kernel_tells_of_its_clock() -> None:
    assert host_state.clock().verdict in ("PASS", "WARN")


@pytest.mark.parametrize(
    ("kind", "capability", "names"),
    [
        ("cpu", (0, 0), ["fp32", "bf16", "fp16"]),
        ("cuda", (7, 0), ["fp32", "fp16"]),
        ("cuda", (8, 0), ["fp32", "tf32", "bf16", "fp16"]),
        ("cuda", (9, 0), ["fp32", "tf32", "bf16", "fp16", "fp8"]),
    ],
)
def test_the_precisions_of_a_device(kind: str, capability: tuple[int, int], names: list[str]) -> None:
    assert [one.name for one in precision.offered(kind, capability)] == names


def test_the_bound_grows_with_the_root_of_k() -> None:
    one = precision.PRECISIONS["fp32"]
    assert precision.factor(one, 4096) == 2 * precision.factor(one, 1024) == 4 * 64 * 2.0**-23


def test_every_cause_has_advice() -> None:
    """Contract: each cause that a module names is in causes.py."""
    texts = [path.read_text() for path in PACKAGE.glob("*.py") if path.name != "causes.py"]
    # Of these families the checks have no ids, so that each such text is a cause.
    causes_alone = r'"((?:gpu|shm|memlock|clock|training|collective|straggler|link)\.\w+)"'
    given = r'cause=[^,\n]*"(\w+\.\w+)"'
    named = {cause for text in texts for rule in (causes_alone, given) for cause in re.findall(rule, text)}
    assert {"gpu.ecc", "shm.full", "compute.wrong", "training.not_learning"} <= named
    assert named <= set(ADVICE)
    assert all(advice.endswith(".") and ": " in advice for advice in ADVICE.values())
