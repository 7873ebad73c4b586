"""What a job reports about the containers of its pods, and about pods that were evicted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from torchrun_objects import CREATED, job, jobset, pod, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobStatus
from harness.torchrun_controller.decide import events
from harness.torchrun_controller.decide.decisions import Decision, Snapshot
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.runtime.kinds import PODS

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SIDECAR = {"initContainers": [{"name": "exporter", "restartPolicy": "Always"}]}
EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def look(pods: list[Object], one: Object | None = None, now: datetime = NOW, **of: Any) -> Decision:
    """Return the decision about an admitted job with these pods."""
    found = Snapshot(**{"queue": queue(), "jobset": jobset(), "pods": pods, **of})
    return desired(one or job(status=CREATED), found, now)


def then(decision: Decision, **spec: Any) -> Object:
    """Return the job with the decision's status."""
    return job(status=decision.status.model_dump(by_alias=True, exclude_none=True), **spec)


def ready(decision: Decision) -> tuple[str, str]:
    [found] = [each for each in decision.status.conditions if each.type == "PodsReady"]
    return found.reason, found.message


def posted(decision: Decision) -> dict[str, str]:
    """Return the Warnings that the decision causes: their messages, by reason."""
    return {each.reason: each.message for each in events.of_job(JobStatus(), decision.status) if each.warning}


def _status(name: str, **state: Object) -> Object:
    return {"name": name, "state": state}


def test_an_init_container_that_failed_is_the_reason() -> None:
    """Contract: message and Event name the template's init container, its exit code and its last line."""
    ended = {"reason": "Error", "exitCode": 3, "message": "warming\ncache server says 403\n"}
    failed = pod(0, "Failed", initContainerStatuses=[_status("warm-cache", terminated=ended)])
    text = "demo-node-0-0-x0: init container warm-cache: Error, exit code 3: cache server says 403"
    assert posted(look([failed])) == {"RankFailed": text}
    over = look([failed], jobset=jobset(Failed={"reason": "FailedJobs"}))
    assert (over.status.phase, over.status.message) == ("Failed", text)


def test_a_helper_that_failed_is_the_reason() -> None:
    """Contract: a pod whose trainer ended with 0 failed because of the container that is named."""
    statuses = [
        _status(names.TRAINER, terminated={"exitCode": 0}),
        _status("exporter", terminated={"exitCode": 7, "reason": "Error"}),
    ]
    failed = pod(0, "Failed", containerStatuses=statuses)
    over = look([failed], jobset=jobset(Failed={"reason": "FailedJobs"}))
    assert over.status.message == "demo-node-0-0-x0: container exporter: Error, exit code 7"


def test_the_end_of_a_sidecar_is_no_failure() -> None:
    """Contract: a sidecar that Kubernetes ended by SIGKILL after the trainer is not the reason."""
    killed = _status("exporter", terminated={"exitCode": 137, "reason": "Error"})
    trainer = _status(names.TRAINER, terminated={"exitCode": 3, "reason": "Error"})
    failed = {
        **pod(0, "Failed", initContainerStatuses=[killed], containerStatuses=[trainer]),
        "spec": SIDECAR,
    }
    assert ready(look([failed]))[1] == "demo-node-0-0-x0: Error, exit code 3"


def test_a_running_init_container_is_named() -> None:
    """Contract: Pending names it with its run time, which changes twice a minute; after one there is an
    Event."""
    running = {"running": {"startedAt": "2026-11-23T11:59:20Z"}}
    waits = pod(0, "Pending", initContainerStatuses=[_status("warm-cache", **running)])
    pods = [waits, pod(1, "Pending")]
    pending = look(pods)
    assert pending.status.phase == "Pending"
    assert "demo-node-0-0-x0: init container warm-cache has been running for 30 s" in (
        pending.status.message or ""
    )
    assert pending.requeue_at == NOW + timedelta(seconds=20)
    assert look(pods, then(pending), NOW + timedelta(seconds=10)).status == pending.status
    assert posted(pending) == {}
    late = look(pods, then(pending), NOW + timedelta(seconds=20))
    assert posted(late) == {
        "PodsNotStarting": "demo-node-0-0-x0: init container warm-cache has been running for 60 s",
    }
    again = look(pods, then(late), NOW + timedelta(seconds=50))
    assert [each.order for each in events.of_job(JobStatus(), again.status) if each.warning] == [1]


@pytest.mark.parametrize("field", ["initContainerStatuses", "containerStatuses"])
def test_a_container_without_its_image_is_named(field: str) -> None:
    """Contract: message and Event have the kubelet's answer with the container that lacks its image."""
    waiting = _status("warm-cache", waiting={"reason": "ErrImagePull", "message": "not found"})
    role = "init container" if field.startswith("init") else "container"
    text = f"demo-node-0-0-x0: {role} warm-cache: ErrImagePull: not found"
    pending = look([pod(0, "Pending", **{field: [waiting]}), pod(1, "Pending")])
    assert pending.status.message == f"0 of 2 pods running: {text}"
    assert posted(pending) == {"PodsNotStarting": text}


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (7, "Error", ": no licence"),
        (
            0,
            "Completed",
            ": no licence; Kubernetes restarts a sidecar whenever it ends: make it a regular init "
            "container if it is to end",
        ),
    ],
)
def test_a_sidecar_that_ends_again_and_again_is_named(code: int, reason: str, advice: str) -> None:
    """Contract: before and after the start of the trainer, with its exit code and its last line."""
    last = {"terminated": {"exitCode": code, "reason": reason, "message": "no licence\n"}}
    crashing = {
        **_status("exporter", waiting={"reason": "CrashLoopBackOff", "message": "x"}),
        "lastState": last,
    }
    text = f"demo-node-0-0-x0: sidecar exporter: CrashLoopBackOff after {reason}, exit code {code}{advice}"
    waits = {**pod(0, "Pending", initContainerStatuses=[crashing]), "spec": SIDECAR}
    assert posted(look([waits, pod(1, "Pending")])) == {"PodsNotStarting": text}
    runs = {**pod(0, "Running", ready=False, initContainerStatuses=[crashing]), "spec": SIDECAR}
    running = look([runs, pod(1, "Running")])
    assert (running.status.phase, running.status.message) == ("Running", text)
    assert posted(running) == {"SidecarFailing": text}


def ended(index: int, code: int = 0, at: str = "2026-11-23T11:59:50Z", **helper: Object) -> Object:
    """Return a running pod whose trainer has ended, while the container `exporter` is in this state."""
    end = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": at}
    statuses = [_status(names.TRAINER, terminated=end), _status("exporter", **(helper or {"running": {}}))]
    return pod(index, "Running", ready=False, containerStatuses=statuses)


def test_a_container_that_outlives_the_trainers_is_named() -> None:
    """Contract: when every trainer has ended with 0, Running names the container that goes on, and after
    the grace period an Event does."""
    waits = look([ended(0), ended(1)])
    text = (
        "every trainer has ended with exit code 0, but the pods wait for container exporter of "
        "demo-node-0-0-x0 and 1 more: make it a native sidecar (an init container with restartPolicy: Always)"
    )
    assert (waits.status.phase, waits.status.message) == ("Running", text)
    assert (waits.requeue_at, posted(waits)) == (NOW + timedelta(seconds=20), {})
    late = look([ended(0), ended(1)], then(waits), NOW + timedelta(seconds=20))
    assert posted(late) == {"HelpersRunning": text}
    assert look([ended(0), pod(1, "Running")]).status.message is None


def test_a_container_that_outlives_a_failed_trainer_is_named() -> None:
    """Contract: the pod of a failed rank is not Failed while another container runs, so no rank restarts;
    the message has both."""
    waits = look([ended(0, 3), pod(1, "Running")], now=NOW + timedelta(minutes=1))
    assert waits.status.message is not None
    assert waits.status.message.startswith(
        "demo-node-0-0-x0: Error, exit code 3, but the pods wait for container exporter of demo-node-0-0-x0:"
    )
    assert posted(waits) == {"HelpersRunning": waits.status.message}
    assert look([ended(0, 3, terminated={"exitCode": 0}), pod(1, "Running")]).status.message is None


def test_sidecars_that_kubernetes_ends_are_named() -> None:
    """Contract: the message explains why a job runs on after its trainers; nothing is at fault."""
    end = {"exitCode": 0, "finishedAt": "2026-11-23T11:58:50Z"}
    of = {
        "initContainerStatuses": [_status("exporter", running={})],
        "containerStatuses": [_status(names.TRAINER, terminated=end)],
    }
    waits = look([{**pod(index, "Running", ready=False, **of), "spec": SIDECAR} for index in range(2)])
    assert waits.status.message == (
        "every trainer has ended with exit code 0; Kubernetes is terminating the sidecar exporter of "
        "demo-node-0-0-x0 and 1 more"
    )
    assert posted(waits) == {}


def evicted(phase: str, **metadata: Any) -> Object:
    """Return the cached fields of pod 1 while it is evicted from node a."""
    found = pod(1, phase, conditions=[EVICTED])
    found["metadata"] |= {"resourceVersion": "1", "deletionTimestamp": "2026-11-23T11:59:59Z", **metadata}
    return PODS.trim({**found, "spec": {"nodeName": "a"}})


LOST = "demo-node-0-1-x0 was evicted from node a (EvictionByEvictionAPI: Eviction API: evicting)"


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_an_evicted_pod_is_the_reason_with_its_node(phase: str) -> None:
    """Contract: message and Event name the pod, its node and the reason, and not the rank that fails next."""
    lost = look([pod(0, "Running"), evicted(phase)])
    again = "all ranks start again, which does not count towards maxRestarts"
    assert (lost.status.phase, lost.status.message) == ("Pending", f"{LOST}; {again}")
    assert posted(lost) == {"Disrupted": LOST}
    trainer = _status(names.TRAINER, terminated={"exitCode": 1, "reason": "Error"})
    peer = look([pod(0, "Failed", containerStatuses=[trainer])], then(lost))
    assert posted(peer) == {"Disrupted": LOST}
    failed = {"reason": "ReachedMaxRestarts", "message": "jobset failed"}
    over = look([pod(0, "Failed", containerStatuses=[trainer])], then(lost), jobset=jobset(Failed=failed))
    assert (over.status.phase, over.status.message) == (
        "Failed",
        f"{LOST}; then demo-node-0-0-x0: Error, exit code 1",
    )


def test_a_disruption_ends_with_its_attempt() -> None:
    """Contract: after the restart the pods are pending for a reason of their own."""
    lost = look([pod(0, "Running"), evicted("Running")])
    pods = [evicted("Failed"), pod(0, "Pending", attempt=1), pod(1, "Pending", attempt=1)]
    again = look(pods, then(lost), jobset=jobset(restarts=1))
    assert ready(again) == ("PodsNotReady", "")
    assert "evicted" not in str(again.status.message)


def test_job_that_must_not_restart_ends_with_disruption() -> None:
    """Contract: restartPolicy Never also means no restart after an eviction."""
    one = job(status=CREATED, reliability={"restartPolicy": "Never"})
    lost = look([pod(0, "Running"), evicted("Running")], one)
    assert lost.status.message == f"{LOST}; restartPolicy is Never, so this ends the job"


def test_an_elastic_job_runs_on_without_an_evicted_pod() -> None:
    """Contract: with minNodes left it is Running; with fewer it waits for the new pod."""
    one = job(numNodes=None, minNodes=1, maxNodes=2, status=CREATED)
    assert look([pod(0, "Running"), evicted("Running")], one).status.phase == "Running"
    two = job(numNodes=None, minNodes=2, maxNodes=3, status={**CREATED, "numNodes": 3})
    waits = look([pod(0, "Running"), evicted("Running")], two)
    assert waits.status.message == f"{LOST}; its pod is created again, and the ranks rejoin the rendezvous"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("PreemptionByScheduler", "was preempted on node a by a pod of higher priority"),
        ("DeletionByTaintManager", "was evicted from node a because of a taint"),
        ("DeletionByPodGC", "was lost with node a"),
        ("TerminationByKubelet", "was terminated by the kubelet of node a"),
        ("OfALaterVersion", "was disrupted on node a"),
    ],
)
def test_each_reason_of_a_disruption_has_a_sentence(reason: str, sentence: str) -> None:
    """Contract: a reason that this version does not know is reported as it is."""
    found = evicted("Running")
    found["status"]["conditions"] = [{**EVICTED, "reason": reason, "message": "m"}]
    assert ready(look([pod(0, "Running"), found]))[1] == f"demo-node-0-1-x0 {sentence} ({reason}: m)"


def test_a_disruption_that_did_not_happen_is_none() -> None:
    """Contract: a pod that succeeded first, or whose condition Kubernetes took back, is not evicted."""
    done = {**evicted("Succeeded"), "metadata": pod(1, "Succeeded")["metadata"]}
    assert look([pod(0, "Running"), done]).status.phase == "Running"
    kept = pod(1, "Running", conditions=[{**EVICTED, "status": "False"}])
    assert look([pod(0, "Running"), kept]).status.phase == "Running"
