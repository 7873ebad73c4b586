"""`harness netcheck RUN`: what the API server says of pods, how the package goes in, and what is shown."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from harness.cli.netcheck_exec import Exec, free_port, together
from harness.cli.netcheck_running_job import NOWHERE, NetcheckResults, address, runs, state
from harness.core.errors import HarnessError, UsageError
from harness.judge.cluster.headless_service import ServiceProblem
from harness.workers.netcheck import Diagnosis
from harness.workers.netcheck.finding import Finding, failed, ok, unknown

OUTSIDE = unknown("pods", "known to the API server alone")


def pod(phase: str = "Running", waiting: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    of = {"waiting": waiting} if waiting else {"running": {}}
    statuses = [{"name": "worker", "state": of}]
    return {
        "metadata": {"name": "job-3"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "worker"}]},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def diagnosis(rank: int, *findings: Finding, verdict: str = "ok", cause: str | None = None) -> Diagnosis:
    return Diagnosis(verdict, cause, (), (), (OUTSIDE, *findings), {}, 4, rank, True, 0.3)


def seen(
    running: set[int], results: dict[int, Diagnosis], errors: dict[int, str] | None = None
) -> NetcheckResults:
    pods = {rank: "pod runs" if rank in running else "pod job-3 is Pending" for rank in range(4)}
    return NetcheckResults(4, pods, frozenset(running), results, errors or {})


def test_the_state_of_a_pod_in_words():
    """Contract: why a pod does not run is said as the API server says it."""
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
    }
    assert state(None, None) == "it has no pod"
    assert state(None, "job-3") == "pod job-3 is gone"
    assert state(pod(), "job-3") == "pod job-3 is Running on node-1"
    pending = pod("Pending", conditions=[unscheduled], containerStatuses=None)
    assert state(pending, "job-3") == "pod job-3 is Pending: Unschedulable: 0/3 nodes"
    pulling = pod("Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    assert state(pulling, "job-3") == "pod job-3 is Pending: ImagePullBackOff: no such image"
    assert [runs(each, "worker") for each in (pod(), pending, pulling)] == [True, False, False]
    assert not runs(pod(), "mesh")


def test_a_pending_pod_precedes_every_other_finding():
    """Contract: the API server's word replaces what no pod can know, and precedes every other finding."""
    other = failed("tcp.refused", "nobody listens", [1])
    here = diagnosis(0, other, verdict="failed", cause="tcp.refused")
    found = seen({0, 1, 2}, {0: here}).diagnosis(0)
    assert (found.verdict, found.cause, found.ranks, found.missing) == (
        "failed",
        "peer.never_came",
        (3,),
        (3,),
    )
    assert found.findings[0].text == "rank 3: pod job-3 is Pending"
    assert other in found.findings
    assert OUTSIDE not in found.findings


def test_when_all_pods_run_the_step_is_proved():
    """Contract: what netcheck found in the pods stays as it is. Rank 0's word is every rank's own."""
    found = seen({0, 1, 2, 3}, {2: diagnosis(0)}).diagnosis(2)
    assert (found.verdict, found.cause, found.rank) == ("ok", None, 2)
    assert [each for each in found.findings if each.step == "pods"] == [ok("pods", "4 of 4 pods are running")]


def test_rank_without_diagnosis_is_refused_with_reason():
    """Contract: no table of somebody else's is shown in its place."""
    looked = seen({0, 1, 2}, {0: diagnosis(0)}, {1: "sh: python3: not found"})
    for rank, reason in ((1, "python3: not found"), (3, "Pending"), (9, "no such rank")):
        with pytest.raises(UsageError, match=reason):
            looked.diagnosis(rank)


def test_no_pod_had_a_diagnosis():
    """Contract: that is no wrong usage of --rank, but a check that could not be done."""
    with pytest.raises(HarnessError, match=r"could not run in any pod: rank 1: .* forbidden") as error:
        seen({1}, {}, {1: 'pods "job-1" is forbidden'}).diagnosis(0)
    assert (error.value.exit_code, "--print-rbac" in (error.value.hint or "")) == (2, True)


def test_the_address_of_a_pod():
    """Contract: its name if a Service publishes one, else its IP address."""
    named = {"spec": {"hostname": "train-1", "subdomain": "train"}, "status": {"podIP": "10.0.0.7"}}
    alone = {"spec": {"hostname": "train-1"}, "status": {"podIP": "10.0.0.7"}}
    assert [address(each) for each in (named, alone, None)] == ["train-1.train", "10.0.0.7", NOWHERE]
    assert address(named, names=False) == "10.0.0.7"


def test_a_port_that_no_pod_uses():
    """Contract: the first one after the job's; from the beginning again where there is none."""
    assert free_port(29501, []) == 29501
    assert free_port(29501, [29501, 29502, 80]) == 29503
    assert free_port(65535, [65535, 1024]) == 1025


def test_the_package_works_from_memory_in_another_python():
    """Contract: nothing but Python is needed there: no file, no folder of ours, no variable."""
    command = ["env", "-i", f"PATH={sys.prefix}/bin:/usr/bin:/bin"]
    results, errors = together({0: command}, {"nodes": 1, "deadline": 5, "peers": ["127.0.0.1"]})
    assert errors == {}
    assert (results[0].nodes, results[0].whole) == (1, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["env", "-i", "PATH=/nowhere"], "python3"),
        ([sys.executable, "-c", "import sys; sys.exit('no such pod')"], "no such pod"),
    ],
)
def test_a_failed_exec_becomes_an_error_message(command, message):
    """Contract: an image without Python, or an exec that fails, is named and stops nobody else."""
    results, errors = together({2: command}, {"nodes": 1, "deadline": 5, "peers": []})
    assert results == {}
    assert message in errors[2]


def test_an_exec_is_ended():
    run = Exec(["env"], "")
    run.end()


def test_the_service_says_why_a_name_does_not_exist():
    """Contract: the same cause as a verdict's: the API server's reason, in place of what pods saw of it."""
    gone = diagnosis(0, failed("dns.no_record", "no name", [2]), verdict="failed", cause="dns.no_record")
    wrong = ServiceProblem("service.selector", "the selector matches nobody", "netcheck", [2], [])
    found = replace(seen({0, 1, 2, 3}, {0: gone}), service=wrong).diagnosis(0)
    assert (found.verdict, found.cause, found.ranks) == ("failed", "service.selector", (2,))
    assert [each.text for each in found.findings if each.step == "service"] == [wrong.text]


def test_a_service_that_is_right_is_proved():
    """Contract: what a pod cannot know is known to the API server."""
    found = replace(seen({0, 1, 2, 3}, {0: diagnosis(0)}), service="it selects all").diagnosis(0)
    assert (found.verdict, found.cause) == ("ok", None)
    assert ok("service", "it selects all") in found.findings
