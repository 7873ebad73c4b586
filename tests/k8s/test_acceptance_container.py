"""The tests of one node, in a container of the worker image, on the CPU: healthy, and with faults.

A fault comes from outside, by a sitecustomize.py on PYTHONPATH. It changes what PyTorch does, and nothing of
the tests themselves.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from harness.context import RunContext
from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport
from harness.provision.images.build import SCRIPTS, build_worker
from harness.provision.images.stack import resolve
from harness.settings import Settings
from harness.workers.acceptance import frames
from harness.workers.acceptance.emit import MARK

pytestmark = pytest.mark.acceptance
NONCE = "n1"
GPU_TESTS = ("python3", "-m", "acceptance.gpu_tests", "--quick")
RUN_ALL = ("python3", "-m", "acceptance.run_all_tests", "--quick")
WRONG = """
right = torch.mm
def mm(a, b, *, out=None):
    made = right(a, b, out=out)
    made[3, 5] += 1
    return made
torch.mm = mm
"""
SLOW = """
import time
right = torch.mm
torch.mm = lambda *a, **k: (time.sleep(0.45), right(*a, **k))[1]
"""
UNSTEADY = """
import os
right = torch.Tensor.__matmul__
def matmul(a, b):
    made = right(a, b)
    return made + int.from_bytes(os.urandom(2)) if a.dtype == torch.bfloat16 else made
torch.Tensor.__matmul__ = matmul
"""
WITH_CUDA = "torch.version.cuda = '12.8'"
"""The worker image has no CUDA, which is a cause of its own."""
LAZY = "torch.optim.AdamW.step = lambda self, closure=None: None"
NOISY = """
import os
right = torch.nn.functional.cross_entropy
torch.nn.functional.cross_entropy = lambda *a: right(*a) * (1 + int.from_bytes(os.urandom(1)) / 1e4)
"""
BROKEN = """
def copy_(*_, **__):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
torch.Tensor.copy_ = copy_
"""


@dataclass(frozen=True)
class Ran:
    """How a container ended, and what it left."""

    code: int
    out: str
    report: AcceptanceReport
    termination: str

    def checks(self) -> dict[str, AcceptanceCheck]:
        """Return the checks by id."""
        return {check.id: check for check in self.report.checks}

    def bad(self) -> dict[str, tuple[str, str | None]]:
        """Return verdict and cause of what did not pass, but for what this machine's own clock spoils."""
        return {
            check.id: (check.verdict, check.cause)
            for check in self.report.checks
            if check.verdict != "PASS" and check.id != "env.clock"
        }


class Run(Protocol):
    """Runs a command in the worker image."""

    def __call__(self, *command: str, fault: str = "", options: tuple[str, ...] = ()) -> Ran: ...


@pytest.fixture(scope="session")
def worker_image(harness_settings: Settings) -> str:
    """Return the tag of the worker image. The tests' own files are mounted into it."""
    context = RunContext(settings=harness_settings, progress=print)
    return build_worker(resolve(context), context).tag


@pytest.fixture
def run(worker_image: str, tmp_path: Path) -> Run:
    """Return what runs a command in the worker image."""

    def ran(*command: str, fault: str = "", options: tuple[str, ...] = ()) -> Ran:
        site, termination, reports = tmp_path / "site", tmp_path / "termination", tmp_path / "reports"
        site.mkdir()
        if fault:
            (site / "sitecustomize.py").write_text(f"import torch\n{fault}")
        termination.touch()
        mounts = {
            SCRIPTS / "acceptance": "/workspace/acceptance:ro",
            SCRIPTS / "netcheck": "/workspace/netcheck:ro",
            site: "/site:ro",
            reports: "/reports",
            termination: "/dev/termination-log",
        }
        reports.mkdir()
        words = [word for path, at in mounts.items() for word in ("-v", f"{path}:{at}")]
        given = {"HARNESS_NONCE": NONCE, "PYTHONPATH": "/site", "PYTHONDONTWRITEBYTECODE": "1"}
        words += [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
        done = subprocess.run(
            ["docker", "run", "--rm", *words, *options, worker_image, *command, "--report-dir", "/reports"],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        written = reports / "summary.json"
        assert written.exists(), done.stdout + done.stderr
        report = AcceptanceReport.model_validate_json(written.read_text())
        return Ran(done.returncode, done.stdout, report, termination.read_text())

    return ran


@pytest.mark.nightly
def test_a_healthy_container(run: Run) -> None:
    """Contract: all is right but that no GPU was tested, which is never a pass; the log proves the report."""
    ran = run(*GPU_TESTS, "--device", "cpu")
    assert ran.bad() == {"env.gpus": ("WARN", "gpu.not_tested")}
    assert (ran.code, ran.report.verdict, ran.report.device) == (0, "WARN", "cpu")
    assert {check.tag for check in ran.report.checks} == {"ENV", "COMPUTE", "TRAIN"}
    assert "no GPU is accepted" in ran.termination
    collector = frames.Collector(NONCE, MARK)
    records = [found for line in ran.out.splitlines() if (found := collector.feed(line))]
    assert [AcceptanceCheck.model_validate(one["check"]) for one in records[:-1]] == ran.report.checks
    assert AcceptanceReport.model_validate(records[-1]["report"]) == ran.report


def test_every_test_of_a_node(run: Run) -> None:
    """Contract: the collectives of two local processes are in the node's report, each framed once."""
    ran = run(*RUN_ALL, "--device", "cpu")
    assert ran.bad() == {"env.gpus": ("WARN", "gpu.not_tested")}
    assert (ran.code, ran.report.verdict) == (0, "WARN")
    assert "ddp.all_reduce.correct" in ran.checks()
    assert ran.report.collectives
    collector = frames.Collector(NONCE, MARK)
    records = [found for line in ran.out.splitlines() if (found := collector.feed(line))]
    assert len(records) == len(ran.report.checks) + 1
    assert ran.out.count(" ddp.all_reduce.correct: ") == 1


@pytest.mark.nightly
def test_ddp_tests_that_do_not_start(run: Run) -> None:
    """Contract: no report of them is UNKNOWN, with the last words of torchrun."""
    torchrun = "import sys\nif 'torch.distributed.run' in sys.orig_argv: sys.exit('no rank starts today')"
    ran = run(*RUN_ALL, "--device", "cpu", fault=torchrun)
    assert ran.code == 2
    assert ran.bad()["ddp.run"] == ("UNKNOWN", None)
    assert "no rank starts today" in ran.checks()["ddp.run"].text


def test_an_image_without_cuda_judges_no_node(run: Run) -> None:
    """Contract: one check, which is about the image, and nothing that a node could be accused of."""
    ran = run(*RUN_ALL, "--gpus", "8")
    assert (ran.code, ran.report.verdict) == (2, "UNKNOWN")
    assert ran.bad() == {"env.image": ("UNKNOWN", "image.no_cuda")}
    assert list(ran.checks()) == ["env.image"]


def test_no_gpu_fails(run: Run) -> None:
    """Contract: a node without the GPUs that were asked for fails, and nothing of it passes for them."""
    ran = run(*RUN_ALL, "--gpus", "8", fault=WITH_CUDA)
    assert (ran.code, ran.report.verdict) == (1, "FAIL")
    assert ran.bad()["env.gpus"] == ("FAIL", "gpu.absent")
    assert {ran.checks()[id].verdict for id in ("compute", "train", "ddp.run")} == {"UNKNOWN"}
    assert ran.termination.splitlines()[1].startswith("[ENV] FAIL env.gpus")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "command", "cause"),
    [
        (("--shm-size", "32m"), GPU_TESTS, "shm.small"),
        (
            ("--shm-size", "256m"),
            ("sh", "-c", 'head -c 220M /dev/zero >/dev/shm/left; exec "$@"', "sh", *GPU_TESTS),
            "shm.full",
        ),
    ],
)
def test_small_and_full_shared_memory_have_separate_causes(
    run: Run, options: tuple[str, ...], command: tuple[str, ...], cause: str
) -> None:
    """Contract: too little of it and a full one are told apart."""
    ran = run(*command, "--gpus", "1", fault=WITH_CUDA, options=options)
    assert ran.bad()["env.shm"] == ("FAIL", cause)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "ids", "cause"),
    [
        (WRONG, {f"compute.gemm.{name}.correct" for name in ("fp32", "bf16", "fp16")}, "compute.wrong"),
        (SLOW, {"compute.gemm.fp32"}, "compute.slow"),
        (UNSTEADY, {"compute.equal"}, "compute.unequal"),
        (LAZY, {"train.learns"}, "training.not_learning"),
        (NOISY, {"train.reproducible"}, "training.not_reproducible"),
    ],
    ids=["wrong", "slow", "unsteady", "lazy", "noisy"],
)
def test_each_fault_fails_its_own_check(run: Run, fault: str, ids: set[str], cause: str) -> None:
    """Contract: the check fails with its cause, and no other check does."""
    ran = run(*GPU_TESTS, "--device", "cpu", fault=fault)
    assert ran.code == 1
    assert ran.bad() == {"env.gpus": ("WARN", "gpu.not_tested"), **dict.fromkeys(ids, ("FAIL", cause))}


@pytest.mark.nightly
def test_what_raises_is_unknown_and_the_others_go_on(run: Run) -> None:
    """Contract: the exception is in the text, and training, which comes after, was still tested."""
    ran = run(*GPU_TESTS, "--device", "cpu", fault=BROKEN)
    assert ran.code == 2
    assert ran.bad() == {"env.gpus": ("WARN", "gpu.not_tested"), "memory": ("UNKNOWN", None)}
    assert "illegal memory access" in ran.checks()["memory"].text
    assert ran.checks()["train.learns"].verdict == "PASS"


@pytest.mark.nightly
def test_limits_of_ones_own(run: Run, tmp_path: Path) -> None:
    """Contract: a limit that this CPU cannot reach fails, with the file's own source."""
    own = tmp_path / "own.toml"
    own.write_text(
        '[[row]]\nmodel = "cpu"\ncheck = "memory.copy"\nvalue = 1e5\nunit = "GB/s"\nkind = "limit"\n'
        'source = "mine"\n'
    )
    ran = run(*GPU_TESTS, "--device", "cpu", "--limits", "/own.toml", options=("-v", f"{own}:/own.toml:ro"))
    check = ran.checks()["memory.copy"]
    assert (check.verdict, check.cause, check.limit, check.limit_source) == (
        "FAIL",
        "memory.slow",
        1e5,
        "mine",
    )
    assert json.loads(ran.report.model_dump_json())["verdict"] == "FAIL"


def test_large_payloads_differ_from_place_to_place(worker_image: str) -> None:
    """Contract: also beyond 2^24 elements, where float32 has no odd numbers; one wrong element is seen."""
    script = """
from acceptance.collectives import PERIOD, Exchange
exchange = Exchange("all_reduce", (1 << 24) + 64, 0, 1, "cpu")
exchange.fresh(3)
last = list(range((1 << 24) + 56, (1 << 24) + 64))
assert exchange.sent[-8:].tolist() == [place % PERIOD + 3 for place in last], exchange.sent[-8:]
assert exchange.wrong() == 0
exchange.got[-2] += 1
assert exchange.wrong() == 1
"""
    mount = f"{SCRIPTS / 'acceptance'}:/workspace/acceptance:ro"
    command = ["docker", "run", "--rm", "-v", mount, "-w", "/workspace", worker_image]
    subprocess.run([*command, "python3", "-c", script], check=True, timeout=120)
