"""Logs in which a launcher, Ray or a logger adds a prefix to each line: the first error is still found.

vllm#6042, vllm#14025, verl#2995, simpleRL-reason#25, awsome-distributed-ai#376, accelerate#1114,
sglang#5594.
"""

from __future__ import annotations

import time

import pytest
from failed_ranks import PEER, TRACEBACK, Case, job_of, of, watchdog

from harness.judge.logs import error_patterns

SHARD = "ValueError: bad shard 7"
DIED = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
TIMEOUT = (
    "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
AFTER = ["Shutting down the data service"] * 3


def ray(pid: int, lines: list[str]) -> list[str]:
    """Return lines as Ray relays them from one of its workers, with the prefix in colour."""
    return [f"\x1b[36m(RayTrainWorker pid={pid}, ip=10.0.0.7)\x1b[0m {line}" for line in lines]


PREFIXES = {
    "Ray": "(RayTrainWorker pid=4009, ip=10.0.0.7) ",
    "Ray, several times": "(RayWorkerWrapper pid=4009) ",
    "vLLM": "ERROR 02-27 20:44:06 engine.py:400] ",
    "vLLM with processes": "(Worker_TP1 pid=88) ERROR 02-27 20:44:06 [multiproc_executor.py:400] ",
    "logging": "2025-10-31 03:11:02,477 - train - ERROR - ",
    "hydra": "[2025-06-01 10:10:10,123][__main__][ERROR] - ",
    "pdsh": "worker-1: ",
    "pdsh with an address": "10.0.0.2: ",
    "srun --label": "1: ",
    "torchrun --log-line-prefix-template": "[trainer1|0]:",
    "torchrun --role --tee": "[trainer0]:",
    "Lightning": "[rank: 1] ",
    "docker compose": "worker-1  | ",
    "Determined": "[rank=1] || ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES.keys())
def test_an_error_behind_a_prefix_is_the_last_error(judged, prefix: str) -> None:
    """Contract: the error counts although other lines follow it, with or without the prefix."""
    lines = [f"{prefix}{line}" for line in ("step 5", *TRACEBACK, SHARD, "cleaning up")]
    verdict = judged(job_of(Case([*lines, DIED], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert f"Its last log line: {SHARD}." in verdict.explanation


@pytest.mark.parametrize(
    "lines",
    [
        [*ray(1, of(2, PEER)), *ray(2, of(3, SHARD))],
        [*ray(1, [*TRACEBACK, PEER]), *ray(2, [*TRACEBACK, SHARD])],
        [x for two in zip(ray(1, [*TRACEBACK, PEER]), ray(2, [*TRACEBACK, SHARD]), strict=True) for x in two],
        [*ray(2, [*TRACEBACK, SHARD]), *ray(1, watchdog(2, TIMEOUT.format(2)))],
    ],
    ids=["labels of PyTorch", "one after the other", "line by line", "a watchdog"],
)
def test_the_first_error_of_two_processes_with_prefixes(judged, lines: list[str]) -> None:
    """Contract: a rank that only lost its peer is not accused, neither here nor in the other pod."""
    verdict = judged(job_of(Case(lines, "", [], "", rank=3, per_node=2)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [3]), verdict.explanation
    assert SHARD in verdict.explanation.partition("After it")[0]


def test_the_local_rank_in_a_prefix_names_the_rank(judged) -> None:
    """Contract: torchrun reports the process whose end it detected first, which may have lost its peer."""
    lines = [f"[default{n}]:{line}" for n, error in enumerate((PEER, SHARD)) for line in (*TRACEBACK, error)]
    verdict = judged(job_of(Case(lines, "", [], "", rank=2, per_node=2)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [3]), verdict.explanation


@pytest.mark.parametrize("prefix", ["(RayWorkerWrapper pid=4009) ", "1: "])
def test_watchdog_behind_prefix_is_no_error_of_rank(judged, prefix: str) -> None:
    """Contract: vllm#6042. A rank that waited for a peer is not accused of a crash."""
    lines = [f"{prefix}{line}" for line in watchdog(1, TIMEOUT.format(1))]
    verdict = judged(job_of(Case(lines, "", [], "", code=-6)))
    assert (verdict.cause, verdict.ranks) != ("rank.killed", [1]), verdict.explanation
    quoted = error_patterns.last_line(list(enumerate(lines, 1)))[0]
    assert quoted.startswith("what():")
    assert "Watchdog caught" in quoted


@pytest.mark.parametrize(
    "line",
    [
        f"2025-10-31 03:11:02,477 ERROR train.py:44 {SHARD}",
        f"[2025-06-01 10:10:10,123][__main__][CRITICAL] - {SHARD}",
        f"2024-05-01 10:00:00.123 | ERROR    | __main__:main:33 - {SHARD}",
    ],
)
def test_an_error_that_a_logger_wrote_in_one_line(judged, line: str) -> None:
    verdict = judged(job_of(Case(["step 5", line, *AFTER], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert f"Its last log line: {SHARD}." in verdict.explanation


@pytest.mark.parametrize(
    "lines",
    [
        [f"WARNING 02-27 20:44:06 x.py:4] {line}" for line in (*TRACEBACK, SHARD)],
        [f"W0213 12:07:20.086000 870572 torch/_dynamo/x.py:4] [0/0] {line}" for line in (*TRACEBACK, SHARD)],
        [f"2025-10-31 03:11:02,477 WARNING train.py:44 {SHARD}"],
        [f"ERROR: the config mentions {SHARD}"],
    ],
)
def test_a_warning_is_no_error(lines: list[str]) -> None:
    """Contract: a program that logged a warning continued, so its last line is quoted."""
    text, _ = error_patterns.last_line(list(enumerate([*lines, "done"], 1)))
    assert text == "done"


def test_a_sentence_before_a_traceback_is_no_prefix() -> None:
    lines = ["Job failed: Traceback (most recent call last):", *TRACEBACK[1:], SHARD, "Job failed: cleaning"]
    text, _ = error_patterns.last_line(list(enumerate(lines, 1)))
    assert text == SHARD


def test_a_sentence_between_a_prefix_and_a_traceback() -> None:
    """Contract: sglang#5594. The prefix is the part that all lines of the traceback have."""
    lines = ["Scheduler hit an exception: Traceback (most recent call last):", *TRACEBACK[1:], SHARD, "bye"]
    text, _ = error_patterns.last_line(list(enumerate([f"[2025-04-21 07:28:41 TP5] {x}" for x in lines], 1)))
    assert text == SHARD


def test_many_prefixes_are_read_in_time() -> None:
    head = [f"{'x' * (n % 90)}: " for n in range(3_000)]
    lines = [f"{x}{line}" for x in head for line in ("Traceback (most recent call last):", '  File "a.py"')]
    start = time.process_time()
    error_patterns.read(list(enumerate(lines, 1)), "log", 8)
    assert time.process_time() - start < 5
