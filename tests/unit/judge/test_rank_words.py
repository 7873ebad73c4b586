"""Sentences about one rank or several: verbs and pronouns agree with the list of ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import bundles
import pytest

from harness.judge import rank_words

_SINGULAR = re.compile(
    r"(?<!of )[Rr]anks \d+[\d, ]* and \d+( \([^)]*\))?( after step \d+)? "
    r"(was|is|has|waits|[^.;]*\b(while|when|before|where) (it|its)\b|[^.;]*\bits (own|pod|work|client|Job)\b)"
)
"""Pattern for a list of several ranks that is followed by a singular verb or pronoun."""


def _killed(job: bundles.Job) -> None:
    job.ended(1, 12, 137)


def _out_of_memory(job: bundles.Job) -> None:
    job.ended(1, 12, 137, reason="OOMKilled")


def _deleted(job: bundles.Job) -> None:
    job.drop_pod(1, after=10)
    gone = {"metadata": {"deletionTimestamp": bundles.at(11)}}
    for when, type_ in ((11, "MODIFIED"), (12, "DELETED")):
        job.pod(1, when, "Running", {"running": {"startedAt": bundles.at(5)}}, **gone, type_=type_)


def _running(job: bundles.Job) -> None:
    bundles.timed_out(bundles.stuck(job, keep=3))


def _never_started(job: bundles.Job) -> None:
    bundles.timed_out(bundles.stuck(job, keep=1))


@pytest.mark.parametrize("fault", [_killed, _out_of_memory, _deleted, _running, _never_started])
def test_verbs_agree_with_ranks_of_pod(judged, fault: Callable[[bundles.Job], None]) -> None:
    job = bundles.healthy(per_node=2)
    fault(job)
    verdict = judged(job)
    assert verdict.verdict != "PASS"
    for text in (verdict.explanation, *(check.explanation for check in verdict.checks)):
        assert not _SINGULAR.search(text), text


@pytest.mark.parametrize(
    ("per_node", "text"),
    [(1, "Rank 1 (pod {} on node e2e-worker2) was"), (2, "Ranks 2 and 3 (pod {} on node e2e-worker2) were")],
)
def test_one_rank_was_and_two_were_ended(judged, per_node: int, text: str) -> None:
    job = bundles.healthy(per_node=per_node)
    _killed(job)
    expected = f"{text.format(job.pod_name(1))} ended by signal 9 (SIGKILL)"
    assert judged(job).explanation.startswith(expected)


def test_words_for_one_rank_and_several() -> None:
    one, several = rank_words.of([3, 3]), rank_words.of([2, 3])
    assert (one.was, one.present, one.has, one.it, one.its) == ("was", "is", "has", "it", "its")
    assert (several.was, several.present, several.has) == ("were", "are", "have")
    assert (several.it, several.its) == ("they", "their")
    assert (one.add_s("wait"), several.add_s("wait")) == ("waits", "wait")
