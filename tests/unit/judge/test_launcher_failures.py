"""Launchers that report a failed process although their pod exits with 0.

horovod#410, #1376, #1421, #2656 and #3060, mpi-operator#90, composer#2251, llm-foundry#258, determined#3275,
fairseq#2527.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bundles
import pytest
from ended_pods import stamped
from failed_ranks import TRACEBACK

from harness.attach.rank_pods import describe
from harness.attach.recorded_objects import Recording
from harness.attach.resources import MPI_JOB
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.judge import judge
from harness.judge.logs import launcher_reports

BOX = "-" * 74
PRIMARY = [
    BOX,
    "Primary job  terminated normally, but 1 process returned",
    "a non-zero exit code. Per user-direction, the job has been aborted.",
    BOX,
]
DETECTED = [
    BOX,
    "mpirun detected that one or more processes exited with non-zero status, thus causing",
    "the job to be terminated. The first process to do so was:",
    "",
    "  Process name: [[29973,1],1]",
    "  Exit code:    3",
    BOX,
]
NOTICED = [
    BOX,
    "mpirun.real noticed that process rank 1 with PID 39 on node w-1 exited on signal 9 (Killed).",
    BOX,
]
HYDRA = [
    "=" * 60,
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "=   RANK 1 PID 51 RUNNING AT w-1",
    "=   KILLED BY SIGNAL: 9 (Killed)",
    "=" * 60,
]
HOROVOD = [
    "Process 1 exit with status code 1.",
    "Terminating remaining workers after failure of Process 1.",
    "Process 0 exit with status code 143.",
    *TRACEBACK,
    "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the "
    "job to be terminated. The first process to do so was:",
    "Process name: 1",
    "Exit code: 1",
    "",
]
SRUN = [
    "srun: error: w-0: task 0: Terminated",
    "srun: error: w-1: task 1: Exited with exit code 1",
    "slurmstepd: error: *** STEP 7.0 ON w-0 CANCELLED AT 2026-10-01T12:00:00 ***",
]


def masked(lines: Sequence[str], index: int = 0, *, first: bool = False, per_node: int = 1) -> bundles.Job:
    """Return a healthy job in which one pod's log also contains these lines, either after its points or
    before them."""
    job = bundles.healthy(per_node=per_node)
    name = job.pod_name(index)
    own = [f"{bundles.at(1 if first else 11)} {line}" for line in lines]
    job.logs[name] = [*own, *job.logs[name]] if first else [*job.logs[name], *own]
    return job


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([*PRIMARY, *NOTICED], "mpirun reports that rank 1 was ended by signal 9 (SIGKILL)"),
        ([*PRIMARY, *DETECTED], "mpirun reports that rank 1 failed with exit code 3"),
        (
            ["prterun noticed that process rank 1 with PID 39 on node w-1 exited on signal 11 (Segmentation"],
            "prterun reports that rank 1 was ended by signal 11",
        ),
        (
            [
                "prterun detected that one or more processes exited with non-zero status, thus",
                "causing the job to be terminated. The first process to do so was:",
                "",
                "   Process name: [prterun-w-0-17@1,1]",
                "   Exit code:    1",
            ],
            "prterun reports that rank 1 failed with exit code 1",
        ),
        (
            ["mpirun has exited due to process rank 1 with PID 12 on", "node w-1 exiting improperly."],
            "mpirun reports that rank 1 failed",
        ),
        (
            ["MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", "with errorcode 5.", ""],
            "MPI reports that rank 1 failed with exit code 5",
        ),
        (HYDRA, "mpiexec reports that rank 1 was ended by signal 9 (SIGKILL)"),
        (HOROVOD, "horovodrun reports that rank 1 failed with exit code 1"),
        (HOROVOD[3:], "horovodrun reports that rank 1 failed with exit code 1"),
        (SRUN, "srun reports that rank 1 failed with exit code 1"),
        (["srun: error: w-1: tasks 1,3-5: Out Of Memory"], "srun reports that rank 1 was ended by signal 9"),
        (
            [
                "ERROR:composer.cli.launcher:Rank 1 crashed with exit code -7.",
                "Waiting up to 30 seconds for all",
            ],
            "composer reports that rank 1 was ended by signal 7 (SIGBUS)",
        ),
        (
            [
                "ERROR:composer.cli.launcher:Global rank 1 (PID 12) exited with code 1",
                f"{'-' * 10}Begin global rank 1 STDERR{'-' * 10}",
                *(f"line {n}" for n in range(9)),
                f"{'-' * 10}End global rank 1 STDERR{'-' * 10}",
            ],
            "composer reports that rank 1 failed with exit code 1",
        ),
        (
            [
                *TRACEBACK,
                "torch.multiprocessing.spawn.ProcessRaisedException: ",
                "",
                "-- Process 1 terminated with the following error:",
                *TRACEBACK,
                "RuntimeError: bad shard",
            ],
            "torch.multiprocessing.spawn reports that rank 1 failed",
        ),
        (
            [
                *TRACEBACK,
                "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal "
                "SIGKILL",
            ],
            "torch.multiprocessing.spawn reports that rank 1 was ended by signal 9 (SIGKILL)",
        ),
        (
            [
                f"[2021-12-07 10:43:01] 087c0ee7 || {line}"
                for line in (HOROVOD[-4], "Exit code: 1", "Process name: 1")
            ],
            "horovodrun reports that rank 1 failed with exit code 1",
        ),
        (
            ["[rank: 1] Child process with PID 8 terminated with code 1. Forcefully terminating all other"],
            "Lightning reports that rank 1 failed with exit code 1",
        ),
    ],
)
@pytest.mark.parametrize("after", [[], ["=== training ended, copying results ===", "done"]])
def test_failure_that_launcher_reports_is_no_pass(
    judged, lines: list[str], text: str, after: list[str]
) -> None:
    verdict = judged(masked([*lines, *after]))
    expected = ("FAIL", "rank.exit_code_masked", [1])
    assert (verdict.verdict, verdict.cause, verdict.ranks) == expected, verdict.explanation
    assert f"exited with code 0 even though {text}" in verdict.explanation


def test_report_without_rank_names_all_ranks_of_pod(judged) -> None:
    verdict = judged(masked(PRIMARY, 1, per_node=2))
    assert (verdict.cause, verdict.ranks) == ("rank.exit_code_masked", [2, 3]), verdict.explanation
    assert "mpirun reports that a process failed" in verdict.explanation


def test_launcher_of_one_pod_numbers_ranks_of_this_pod(judged) -> None:
    verdict = judged(masked(["srun: error: w-1: task 0: Segmentation fault"], 1, per_node=2))
    assert (verdict.cause, verdict.ranks) == ("rank.exit_code_masked", [2]), verdict.explanation


@pytest.mark.parametrize("launcher", [[*PRIMARY, *NOTICED], HOROVOD, SRUN, HYDRA])
def test_failure_before_another_start_is_no_failure(judged, launcher: list[str]) -> None:
    """Contract: the rank logged points after the report, because a script started the launcher again."""
    assert judged(masked(launcher, 0, first=True)).verdict == "PASS"


@pytest.mark.parametrize("launcher", [[*PRIMARY, *NOTICED], HYDRA])
def test_later_output_shows_another_start(judged, launcher: list[str]) -> None:
    assert judged(masked([*launcher, *(f"epoch {n}" for n in range(6))])).verdict == "PASS"


@pytest.mark.parametrize("report", [HOROVOD[:1], SRUN[1:2]])
def test_other_ranks_can_run_on_after_failure(judged, report: list[str]) -> None:
    """Contract: horovod#3060. The failed rank logged no point after the report, so other ranks' points do not
    matter."""
    verdict = judged(masked([*report, *(f"[0]<stdout>:epoch {n}" for n in range(9))]))
    assert (verdict.cause, verdict.ranks) == ("rank.exit_code_masked", [1]), verdict.explanation


def test_rank_with_later_output_was_started_again(judged) -> None:
    verdict = judged(masked([*HOROVOD[:1], *(f"[{n % 2}]<stdout>:epoch {n}" for n in range(9))]))
    assert verdict.verdict == "PASS", verdict.explanation


@pytest.mark.parametrize(
    "line",
    [
        "Process 1 exit with status code 0.",
        "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
        "srun: Job 7 step creation temporarily disabled, retrying",
        "Rank 1 crashed with exit code 1 in my own words",
        "[rank: 1] Seed set to 3",
    ],
)
def test_other_lines_of_launchers_report_no_failure(judged, line: str) -> None:
    assert judged(masked([line])).verdict == "PASS"


def test_reports_of_two_starts_are_told_apart() -> None:
    lines = [*NOTICED, "trying again", *(f"[1,0]<stdout>:{n}" for n in range(3)), *PRIMARY, *DETECTED]
    reports = launcher_reports.find(line.encode() for line in stamped(lines))
    assert [(one.rank, one.code) for one in reports] == [(1, -9), (1, 3)]
    assert (reports[0].ranks_after, reports[1].lines_after) == ({0}, 0)


def of_mpi_job(role: str, index: int, state: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of the MPIJob "train"."""
    prefix = "training.kubeflow.org"
    labels = {f"{prefix}/job-name": "train", f"{prefix}/job-role": role}
    status = {"name": "main", "restartCount": 0, "state": state}
    return {
        "metadata": {
            "name": f"train-{role}-{index}",
            "uid": f"{role}-{index}",
            "creationTimestamp": bundles.at(1),
            "labels": {**labels, f"{prefix}/replica-index": str(index)},
        },
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


@pytest.mark.parametrize("report", [[], [*PRIMARY, *NOTICED], HYDRA])
def test_launcher_pod_of_mpi_job_hides_no_failure(report: list[str], tmp_path: Path) -> None:
    """Contract: mpi-operator#90. The workers run sshd until the end, and the launcher ends with 0."""
    template = {"spec": {"containers": [{"name": "main", "image": "i"}]}}
    replicas = {"Worker": {"replicas": 2, "template": template}, "Launcher": {"replicas": 1}}
    item = {
        "metadata": {"name": "train", "uid": "u", "creationTimestamp": bundles.at(1)},
        "spec": {"slotsPerWorker": 1, "mpiReplicaSpecs": replicas},
        "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
    }
    running = {"running": {"startedAt": bundles.at(2)}}
    ended = {"terminated": {"exitCode": 0, "finishedAt": bundles.at(12), "reason": "Completed"}}
    workers = [of_mpi_job("worker", index, running) for index in (0, 1)]
    job = describe(MPI_JOB, "team", "train", item, workers)
    (folder := tmp_path / "bundle").mkdir()
    writer = BundleWriter(folder, "nonce", Redactor())
    writer.update(launch=job.launch, expected=job.expected, attached_at=bundles.at(13))
    recording = Recording(job, writer)
    with writer.stage("observe"):
        recording.add(MPI_JOB.kind.name, item)
        for each in (*workers, of_mpi_job("launcher", 0, ended)):
            recording.add("pod", each)
        with writer.log_file("train-launcher-0", "main") as file:
            file.write("".join(f"{line}\n" for line in stamped(["[1,0]<stdout>:step 3", *report])))
    writer.close()
    verdict = judge(Bundle.open(folder))
    completed = next(check for check in verdict.checks if check.name == "completed")
    assert (completed.result, completed.ranks) == (("FAIL", [1]) if report else ("PASS", []))
    assert ("in the log of its launcher train-launcher-0, mpi" in completed.explanation) == bool(report)
