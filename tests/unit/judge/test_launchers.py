"""Launchers that report the end of a rank in their own words: the signal and the rank's own error count.

DeepSpeed#1722 and #3232, DeepSpeedExamples#626, simpleRL-reason#25, verl#2995, pytorch#194710, gloo#219,
pytorch-operator#329.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import bundles
import pytest
from ended_pods import stamped
from failed_ranks import PEER, TRACEBACK, Case, job_of, of

from harness.judge.logs import known_errors

SHARD = "ValueError: bad shard 7"
ACTOR_DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
TRAINING_FAILED = "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed."


def deepspeed(code: int) -> list[str]:
    return [
        "[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266",
        "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python3', 'main.py'] exits with "
        f"return code = {code}",
    ]


def ended(lines: Sequence[str], code: int, zero: Sequence[str] = ()) -> bundles.Job:
    """Return a job without torchrun, in which node 1 ended after node 0, with this log and exit code."""
    job = job_of(Case([], "", [], ""))
    job.logs[job.pod_name(0)] = stamped(zero or of(0, PEER))
    job.logs[job.pod_name(1)] = stamped(lines)
    job.ended(1, 13, code, message=json.dumps({"exit": code}))
    return job


@pytest.mark.parametrize(
    ("lines", "code", "signal"),
    [
        (deepspeed(-9), 247, "SIGKILL"),
        (deepspeed(-9), 1, "SIGKILL"),
        (deepspeed(-11), 245, "SIGSEGV"),
        ([], 247, "SIGKILL"),
        ([], 250, "SIGABRT"),
        (
            [
                *TRACEBACK,
                "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGSEGV: 11>.",
            ],
            1,
            "SIGSEGV",
        ),
        (
            [
                *TRACEBACK,
                "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal "
                "SIGKILL",
            ],
            1,
            "SIGKILL",
        ),
        (
            [
                "[rank: 1] Child process with PID 812 terminated with code -9. Forcefully terminating all "
                "other processes to avoid zombies"
            ],
            1,
            "SIGKILL",
        ),
    ],
)
def test_the_signal_that_a_launcher_reports_is_named(
    judged, lines: list[str], code: int, signal: str
) -> None:
    verdict = judged(ended(["step 3", *lines], code))
    assert (verdict.cause, verdict.ranks) == ("rank.killed", [1]), verdict.explanation
    assert signal in verdict.explanation
    assert ("memory ran out" in verdict.next[-1]) == (signal == "SIGKILL")


def test_signal_of_child_program_is_not_rank_s(judged) -> None:
    error = "subprocess.CalledProcessError: Command '['ffmpeg']' died with <Signals.SIGKILL: 9>."
    verdict = judged(ended(["step 3", *of(1, error)], 1))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "was ended by" not in verdict.explanation


@pytest.mark.parametrize("code", [246, 253, 255, 2])
def test_another_exit_code_is_no_signal(judged, code: int) -> None:
    """Contract: sys.exit(-1) results in 255, and programs can use any other exit code."""
    verdict = judged(ended(["step 3", *TRACEBACK, SHARD], code))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


def test_a_rank_that_deepspeed_stopped_is_not_accused(judged) -> None:
    """Contract: DeepSpeed sends SIGTERM to the other ranks of a pod, and may report one of them."""
    job = ended([*TRACEBACK, SHARD], 1, zero=["step 3", *deepspeed(-15)])
    job.ended(0, 12, 241, message=json.dumps({"exit": 241}))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


def test_worker_error_counts_more_than_driver_error(judged) -> None:
    driver = [*TRACEBACK, "ray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=2)", SHARD, ""]
    caused = "The above exception was the direct cause of the following exception:"
    verdict = judged(ended([*driver, caused, "", *TRACEBACK, TRAINING_FAILED], 1))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert f"Its last log line: {SHARD}." in verdict.explanation


def test_a_driver_that_lost_an_actor_is_not_accused(judged) -> None:
    """Contract: the actor may have run in another pod, whose log shows why it ended."""
    verdict = judged(ended([*TRACEBACK, SHARD], 1, zero=[*TRACEBACK, ACTOR_DIED]))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


@pytest.mark.parametrize("code", [1, -9, 0])
def test_failure_hidden_by_pdsh_is_no_pass(judged, code: int) -> None:
    """Contract: DeepSpeed#1722. Without -S, pdsh exits with 0 although a process on another host failed."""
    job = bundles.healthy()
    after = ["pdsh@launcher: worker-1: ssh exited with exit code 1"] if code else []
    report = [f"worker-1: {line}" for line in deepspeed(code)] if code else ["worker-1: done"]
    job.logs[job.pod_name(1)] = [*job.logs[job.pod_name(1)], *stamped([*report, *after])]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == (
        ("FAIL", "rank.exit_code_masked") if code else ("PASS", None)
    ), verdict.explanation
    assert (f"DeepSpeed reports that rank 1 failed with exit code {code}" in verdict.explanation) == bool(
        code
    )


@pytest.mark.parametrize(
    "error", ["No route to host", "Connection timed out", "Connection refused", "Network is unreachable"]
)
def test_rank_that_never_connected_does_not_count_as_crashed(judged, error: str) -> None:
    """Contract: gloo and early versions of PyTorch print only the reason, without the address."""
    job = ended([*TRACEBACK, f"RuntimeError: {error}"], 1, zero=["waiting for the others", *of(0, PEER)])
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.unreachable", [1]), verdict.explanation


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (ACTOR_DIED, "session_latest"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "memory"),
        ("AttributeError: 'NoneType' object has no attribute 'is_failed'", "--nnodes"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", ""),
    ],
)
def test_advice_for_an_error_of_a_launcher(error: str, part: str) -> None:
    assert part in known_errors.advice(error)
    assert bool(part) == bool(known_errors.advice(error))
