"""Logs of launchers and libraries that print tracebacks in another form: the rank's own error still counts.

Hydra, Rich, SimpleTuner #1880, parcae #12, and exceptions with their reasons on the next lines.
"""

import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, Case, job_of, of

SHARD = "ValueError: bad shard 7"
BOX = [
    "╭───────────── Traceback (most recent call last) ──────────────╮",
    "│ ❱ 3 main()                                                   │",
    "╰──────────────────────────────────────────────────────────────╯",
]


def hydra(error: str) -> list[str]:
    return [
        "Error executing job with overrides: ['lr=1']",
        *TRACEBACK,
        error,
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]


def relogged(lines: list[str]) -> list[str]:
    return [f"2025-10-31 03:11:02,477 - SimpleTuner - INFO - {line}" for line in lines]


OF_TWO_RANKS = {
    "hydra": ([*hydra(SHARD), *hydra(PEER)], 3, [3], SHARD),
    "rich": ([*BOX, SHARD, *BOX, PEER], 3, [3], SHARD),
    "a logger's prefix": (relogged([*of(2, PEER), *of(3, SHARD)]), 2, [3], f"[rank3]: {SHARD}"),
    "the end of the data": ([*of(3, "StopIteration"), *of(2, PEER)], 2, [3], "[rank3]: StopIteration"),
    "a broken pool of processes": (
        [*of(3, "concurrent.futures.process.BrokenProcessPool: abrupt"), *of(2, PEER)],
        2,
        [3],
        "BrokenProcessPool: abrupt",
    ),
}


@pytest.mark.parametrize("name", OF_TWO_RANKS)
def test_error_of_one_rank_beside_lost_peer_of_another(judged, name: str) -> None:
    lines, reported, ranks, says = OF_TWO_RANKS[name]
    verdict = judged(job_of(Case(lines, "", [], "", rank=reported, per_node=2)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", ranks), verdict.explanation
    assert f"line: {says}" in verdict.explanation or says in verdict.explanation.partition("After it")[0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["ImportError: ", "AutoModel requires the PyTorch library", ""], "ImportError: AutoModel requires"),
        (
            [
                "pydantic_core.ValidationError: 1 validation error for Config",
                "lr",
                "  Input should be a number",
            ],
            "pydantic_core.ValidationError: 1 validation error for Config lr Input should be a number",
        ),
        (["RuntimeError: reason:", "[W1130 ProcessGroupNCCL.cpp:1250] Warning: x"], "RuntimeError: reason:"),
        (["RuntimeError: reason:"], "RuntimeError: reason:"),
    ],
)
def test_the_reason_below_an_exception_is_quoted(judged, lines: list[str], says: str) -> None:
    verdict = judged(job_of(Case(of(1, *lines), "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    quoted = verdict.explanation.partition("Its last log line: [rank1]: ")[2]
    assert quoted.startswith(says), verdict.explanation
    assert "Warning" not in quoted


def test_error_that_progress_bar_overwrote_is_quoted_whole(judged) -> None:
    """In public reports (tqdm #193 and #285), bars and messages of several processes share a line."""
    verdict = judged(job_of(Case([*TRACEBACK, f"{SHARD} of 9\r 20%|##  | 2/10"], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert f"Its last log line: {SHARD} of 9." in verdict.explanation


@pytest.mark.parametrize("before", [True, False])
def test_error_that_no_rank_can_be_given_is_mentioned(judged, before: bool) -> None:
    """Contract: if every rank seems to have lost its peer, an earlier error in a log is mentioned as a
    possible reason."""
    lines = [*TRACEBACK, SHARD, "step 6"] if before else []
    job = job_of(Case([], "", [], ""))
    for index in range(2):
        own = [*(lines if index else []), *of(index, "RuntimeError: Connection closed by peer [10.0.0.9]:2")]
        job.logs[job.pod_name(index)] = stamped(own) + stamped(REPORT, rank=index, code=1, shell=1)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation
    assert (f"may be the reason: {SHARD}" in verdict.explanation) == before
    assert ("no rank logged any other error" in verdict.explanation) != before
    assert ("--netcheck" in verdict.next[-1]) != before


def test_an_error_that_every_pod_logged_is_not_preferred(judged) -> None:
    """Contract: which error is quoted does not depend on the order of the ranks."""
    caught = [*TRACEBACK, "ImportError: cannot import name 'flash_attn' from line 7", "step 6"]
    job = job_of(Case([], "", [], ""))
    for index in range(2):
        own = [*caught, *([*TRACEBACK, SHARD] if index else [])]
        own += of(index, "RuntimeError: Connection closed by peer [10.0.0.9]:2")
        job.logs[job.pod_name(index)] = stamped(own) + stamped(REPORT, rank=index, code=1, shell=1)
    explanation = judged(job).explanation
    assert f"in the log of rank 1 (pod {job.pod_name(1)}" in explanation
    assert f"may be the reason: {SHARD}" in explanation


@pytest.mark.parametrize("title", ["Error", "Parsing error"])
def test_the_message_of_a_command_line_parser_is_quoted(judged, title: str) -> None:
    """Contract: Typer and tyro, which torchtitan uses, draw a box around their messages."""
    box = [
        f"╭─ {title} ────────────────╮",
        "│ No such option: --foo        │",
        "╰──────────────────────────────╯",
    ]
    verdict = judged(job_of(Case(["Usage: train.py [OPTIONS]", *box], "", [], "", code=2)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "Its last log line: No such option: --foo" in verdict.explanation


def test_the_prefix_of_a_logger_is_not_quoted(judged) -> None:
    verdict = judged(job_of(Case(relogged(of(1, SHARD)), "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1])
    assert f"Its last log line: [rank1]: {SHARD}" in verdict.explanation
