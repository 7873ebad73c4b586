"""A launch is over when it has ended, or when it can be seen that it never will.

Transient states are neither.
"""

from typing import Any

import pytest

from harness.core.clock import Clock
from harness.evidence.schema.bundle import Observation
from harness.evidence.schema.processes import PROCESS_LINE
from harness.observe import completion
from harness.observe.completion import CompletionDetector, pods_in_line


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> CompletionDetector:
    """A detector with graces of 0 s, so that a state counts at once."""
    monkeypatch.setattr(completion, "GRACE", dict.fromkeys(completion.GRACE, 0.0))
    return CompletionDetector()


def why(
    end: CompletionDetector,
    kind: str,
    status: dict[str, Any],
    name: str = "",
    change: Any = "MODIFIED",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> str | None:
    name = name or ("jobset-x" if kind == "workload" else "x-0")
    metadata = {"name": name, "uid": f"{kind}/{name}", "labels": labels or {}}
    item = {"metadata": metadata, "spec": spec, "status": status}
    end.observe(kind, Observation(received_at="2026-01-01T00:00:00Z", type=change, object=item))
    return end.reason()


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize(
    "message",
    [
        "LocalQueue no-such-queue doesn't exist",
        "ClusterQueue cq is inactive",
        "request (64) > maximum capacity (4)",
        "resource nvidia.com/gpu unavailable in ClusterQueue",
        "resources didn't satisfy LimitRange constraints: spec: Invalid value",
        "couldn't assign flavors to pod set workers: untolerated taint {a b NoSchedule} in flavor f",
    ],
)
def test_a_job_that_kueue_never_admits(end: CompletionDetector, message: str) -> None:
    """The refusal is found whatever other conditions stand beside it, before or after."""
    others = condition("PodsReady", "False", "WaitForStart")
    refused = condition("QuotaReserved", "False", "Inadmissible", message)
    for conditions in ([refused], [refused, others], [others, refused]):
        assert message in (why(end, "workload", {"conditions": conditions}) or "")


def test_a_job_that_waits_for_quota_goes_on(end: CompletionDetector) -> None:
    waits = condition("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")
    assert why(end, "workload", {"conditions": [waits]}) is None


def test_an_eviction_by_kueue_ends_the_launch(end: CompletionDetector) -> None:
    evicted = condition("Evicted", "True", "MaximumExecutionTimeExceeded", "too long")
    assert "too long" in (why(end, "workload", {"conditions": [evicted]}) or "")


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError"]
)
def test_a_container_that_cannot_start(end: CompletionDetector, reason: str) -> None:
    assert reason in (why(end, "pod", waiting(reason, "manifest unknown")) or "")


def test_a_container_that_is_being_created_goes_on(end: CompletionDetector) -> None:
    assert why(end, "pod", waiting("ContainerCreating")) is None


def test_a_pull_that_failed_once_is_given_time() -> None:
    assert why(CompletionDetector(), "pod", waiting("ErrImagePull", "connection reset by peer")) is None


def test_a_pod_that_fits_nowhere(end: CompletionDetector) -> None:
    unschedulable = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")
    assert "0/3 nodes" in (why(end, "pod", {"conditions": [unschedulable]}) or "")


@pytest.mark.parametrize(
    ("reason", "component", "over"),
    [
        ("TriggeredScaleUp", "cluster-autoscaler", False),
        ("Nominated", "karpenter", False),
        ("NotTriggerScaleUp", "cluster-autoscaler", True),
        ("FailedScheduling", "karpenter", True),
        ("FailedScheduling", "default-scheduler", True),
    ],
)
def test_pod_for_which_node_is_being_added_goes_on(
    end: CompletionDetector, reason: str, component: str, over: bool
) -> None:
    """Contract: the harness waits while an autoscaler creates a node, which needs minutes."""
    event = {
        "metadata": {"name": "e", "uid": "e"},
        "involvedObject": {"kind": "Pod", "name": "x-0", "uid": "pod/x-0"},
        "reason": reason,
        "source": {"component": component},
    }
    end.observe("event", Observation(received_at="2026-01-01T00:00:00Z", type="ADDED", object=event))
    unschedulable = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")
    assert bool(why(end, "pod", {"conditions": [unschedulable]})) is over


def test_a_pod_larger_than_every_node_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node fits the pod although Kueue has admitted it.

    A pod that only waits for another one to end is given time.
    """
    monkeypatch.setitem(completion.GRACE, "never", 0.0)
    for asked, over in (("3", True), ("1", False)):
        end = CompletionDetector()
        node = {"metadata": {"name": "n", "uid": "n"}, "status": {"allocatable": {"cpu": "2"}}}
        end.observe("node", Observation(received_at="2026-01-01T00:00:00Z", type="ADDED", object=node))
        pod = {
            "metadata": {"name": "x-0", "uid": "x"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": asked}}}]},
            "status": {"conditions": [condition("PodScheduled", "False", "Unschedulable", "0/1 nodes")]},
        }
        end.observe("pod", Observation(received_at="2026-01-01T00:00:00Z", type="ADDED", object=pod))
        assert bool(end.reason()) is over


def test_a_finished_jobset_with_its_pods_ended(
    end: CompletionDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(completion.GRACE, "pods", 60.0)
    assert why(end, "pod", {"phase": "Running"}) is None
    assert why(end, "jobset", {"terminalState": "Failed"}) is None, "a pod still runs: its log is not whole"
    assert "Failed" in (why(end, "pod", {"phase": "Running"}, change="DELETED") or "")
    assert end.finished()


def test_workload_of_somebody_else_says_nothing_of_this_job(end: CompletionDetector) -> None:
    evicted = condition("Evicted", "True", "Preempted", "too low")
    assert why(end, "workload", {"conditions": [evicted]}, name="somebodys") is None


def test_a_job_that_gets_no_quota_in_time() -> None:
    waits = condition("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")
    assert "unused quota" in (
        why(CompletionDetector(admission_seconds=0), "workload", {"conditions": [waits]}) or ""
    )


def test_a_node_that_is_lost(end: CompletionDetector) -> None:
    """Only a node that runs a pod of the job counts, and its pods are no longer waited for."""
    ready = condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    assert why(end, "pod", {"phase": "Running"}, nodeName="worker") is None
    assert why(end, "node", {"conditions": [ready]}, name="other") is None
    assert "worker" in (why(end, "node", {"conditions": [ready]}, name="worker") or "")
    assert end.out_of_reach() == {"x-0"}
    why(end, "pod", {"phase": "Succeeded"}, nodeName="worker")
    assert end.out_of_reach() == set()


def test_a_node_that_comes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    end = CompletionDetector()
    why(end, "pod", {"phase": "Running"}, nodeName="worker")
    assert why(end, "node", {"conditions": [condition("Ready", "Unknown")]}, name="worker") is None
    assert why(end, "node", {"conditions": [condition("Ready", "True")]}, name="worker") is None
    monkeypatch.setattr(completion, "GRACE", dict.fromkeys(completion.GRACE, 0.0))
    assert end.reason() is None


def test_controllers_that_follow_nothing_up(end: CompletionDetector) -> None:
    """Each step that JobSet and Kueue should take at once is awaited."""
    assert "has not created a Workload" in (why(end, "jobset", {}, suspend=True) or "")
    assert "has not set a condition on the Workload" in (why(end, "workload", {}) or "")
    reserved = condition("QuotaReserved", "True")
    assert why(end, "workload", {"conditions": [reserved, condition("Admitted", "True")]}) is None
    assert "no Job" in (why(end, "jobset", {}, suspend=False) or "")
    assert "no pods" in (why(end, "job", {}) or "")
    assert why(end, "pod", {"phase": "Running"}) is None
    assert "every pod has ended" in (why(end, "pod", {"phase": "Succeeded"}) or "")
    assert why(end, "jobset", {"terminalState": "Completed"}) == "the JobSet is Completed"


def test_a_queued_job_waits_for_kueue_before_its_pods(end: CompletionDetector) -> None:
    """Contract: a suspended Job whose Workload waits is not idle; without a Workload it is."""
    end.launched, end.kind = "job", "Job"
    assert (
        why(end, "job", {}, suspend=True)
        == "the Job is waiting for admission, but Kueue has not created a Workload for it"
    )
    assert "has not set a condition on the Workload" in (why(end, "workload", {}, name="job-x-1") or "")
    pending = condition("QuotaReserved", "False", "Pending", "insufficient unused quota")
    end.admission_seconds = 300
    assert why(end, "workload", {"conditions": [pending]}, name="job-x-1") is None
    assert end.summary() == "workload not admitted; pods: none"
    admitted = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    assert why(end, "workload", {"conditions": admitted}, name="job-x-1") is None
    assert why(end, "job", {}, suspend=False) == "the Job has no pods"
    assert why(end, "pod", {"phase": "Running"}) is None
    assert end.summary() == "workload admitted; pods: x-0 Running"


def test_the_gated_pods_of_a_statefulset_wait_for_kueue(end: CompletionDetector) -> None:
    """Contract: pods behind Kueue's gate are no progress, and no reason to give up while a Workload waits."""
    end.launched, end.kind, end.keep_alive, end.members = "statefulset", "StatefulSet", True, 1
    assert why(end, "statefulset", {}) == "the StatefulSet has no pods"
    gate = [{"name": "kueue.x-k8s.io/admission"}]
    reason = why(end, "pod", {"phase": "Pending"}, schedulingGates=gate)
    assert reason == "the StatefulSet is waiting for admission, but Kueue has not created a Workload for it"
    end.admission_seconds = 300
    refused = condition("QuotaReserved", "False", "Pending", "insufficient unused quota")
    assert why(end, "workload", {"conditions": [refused]}, name="statefulset-x-1") is None
    never = condition("QuotaReserved", "False", "Inadmissible", "LocalQueue q doesn't exist")
    assert "will not admit" in (why(end, "workload", {"conditions": [never]}, name="statefulset-x-1") or "")
    admitted = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    assert why(end, "workload", {"conditions": admitted}, name="statefulset-x-1") is None
    assert why(end, "pod", {"phase": "Running"}) is None


def test_pods_that_were_scaled_away_are_not_waited_for(end: CompletionDetector) -> None:
    """Contract: a scalable StatefulSet needs the commands of as many pods as it has replicas now."""
    end.launched, end.kind, end.members = "statefulset", "StatefulSet", 2
    end.keep_alive = end.scalable = True

    def scaled(replicas: int) -> None:
        why(end, "statefulset", {}, name="t", replicas=replicas)

    scaled(4)
    for index in range(4):
        labels = {"apps.kubernetes.io/pod-index": f"{index}"}
        why(end, "pod", {"phase": "Running"}, name=f"t-{index}", labels=labels)
    for index in (0, 1):
        end.exited(f"t-{index}", 0)
    assert (end.reason(), end.members) == (None, 4)
    end.exited("t-3", 143)
    scaled(3)
    assert end.reason() is None, "pod 2 still runs"
    end.exited("t-2", 0)
    assert end.reason() == "the command of every rank has ended"


def test_a_controller_that_is_down_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(completion.GRACE, "controller", 0.0)
    end = CompletionDetector()
    assert why(end, "jobset", {}, suspend=True) is None
    assert why(end, "kueue-controller", {"availableReplicas": 0}, replicas=1) is None, "it may be restarting"
    assert "kueue-controller" in (why(end, "kueue-controller", {"availableReplicas": 0}, replicas=0) or "")


def test_each_object_has_timers_of_its_own() -> None:
    """Contract: a healthy object does not stop the timer of another, in whatever order they are looked at."""
    now = [100.0]
    end = CompletionDetector(clock=Clock(monotonic=lambda: now[0]))
    refused = condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue cq is inactive")
    well = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    for name, conditions in (("jobset-a", well), ("jobset-b", [refused]), ("jobset-c", well)):
        assert why(end, "workload", {"conditions": conditions}, name=name) is None
    now[0] += completion.GRACE["queue"]
    assert "is inactive" in (end.reason() or "")


def test_each_container_has_timers_of_its_own() -> None:
    """Contract: a container that runs does not stop the timer of one beside it."""
    now = [100.0]
    end = CompletionDetector(clock=Clock(monotonic=lambda: now[0]))
    bad, good = waiting("ErrImagePull", "manifest unknown"), {"name": "b", "state": {"running": {}}}
    statuses = [{"name": "a", **bad["containerStatuses"][0]}, good]
    assert why(end, "pod", {"containerStatuses": statuses}) is None
    now[0] += completion.GRACE["image, surely"]
    assert "manifest unknown" in (end.reason() or "")


@pytest.mark.parametrize("status", [waiting("ContainerCreating"), {}])
def test_the_other_ranks_get_time_to_show_the_same(status: dict[str, object]) -> None:
    """Contract: one rank cannot start, and nothing is known of the other: the wait goes on, so that the
    verdict can name both. It does not go on for ever."""
    now = [100.0]
    end = CompletionDetector(members=2, clock=Clock(monotonic=lambda: now[0]))
    assert why(end, "pod", waiting("InvalidImageName"), name="x-0") is None
    now[0] += completion.GRACE["image"]
    assert end.reason() is None  # The other pod has not come.
    assert why(end, "pod", status, name="x-1") is None
    now[0] += 1
    assert "InvalidImageName" in (why(end, "pod", waiting("InvalidImageName"), name="x-1") or "")
    why(end, "pod", status, name="x-1")
    now[0] += completion.GRACE["others"]
    assert "x-0: InvalidImageName" in (end.reason() or "")


def test_a_jobset_that_somebody_deletes(end: CompletionDetector) -> None:
    assert why(end, "jobset", {}, suspend=False, change="ADDED") is not None
    assert why(end, "jobset", {}, change="DELETED") == "the JobSet was deleted"


def test_pods_that_outlive_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a job has ended, and a pod of it has not: something in it may be frozen."""
    monkeypatch.setitem(completion.GRACE, "lingers", 0.0)
    end = CompletionDetector()
    pod = {"metadata": {"name": "x-0", "uid": "x"}, "status": {"phase": "Running"}}
    jobset = {"metadata": {"name": "j", "uid": "j"}, "status": {"conditions": []}}
    for kind, item in (("pod", pod), ("jobset", jobset)):
        end.observe(kind, Observation(received_at="2026-01-01T00:00:00Z", type="ADDED", object=item))
    assert not end.lingers()
    failed = {**jobset, "status": {"conditions": [condition("Failed", "True")]}}
    end.observe("jobset", Observation(received_at="2026-01-01T00:00:00Z", type="MODIFIED", object=failed))
    assert end.lingers()
    ended = {**pod, "status": {"phase": "Failed"}}
    end.observe("pod", Observation(received_at="2026-01-01T00:00:00Z", type="MODIFIED", object=ended))
    assert not end.lingers()


def test_of_many_pods_only_exceptions_are_named() -> None:
    """Contract: a line of progress can be read, however many pods there are."""
    many = {f"x-{number}": "Running" for number in range(256)}
    assert pods_in_line(many) == "256 Running"
    late = {**many, "x-7": "Pending", "x-8": "ended with 1"}
    assert pods_in_line(late) == "254 Running, 1 Pending (x-7), 1 ended with 1 (x-8)"
    assert pods_in_line({"x-1": "Running", "x-0": "Pending"}) == "x-0 Pending, x-1 Running"


def containers(*states: tuple[str, dict[str, Any]], init: bool = False, **status: Any) -> dict[str, Any]:
    listed = [{"name": name, "state": state} for name, state in states]
    return {"initContainerStatuses" if init else "containerStatuses": listed, **status}


def test_an_init_container_that_cannot_start(end: CompletionDetector) -> None:
    """Contract: an absent image of an init container ends the wait, though the rank's own only waits."""
    absent = {"waiting": {"reason": "ErrImagePull", "message": "tools:2: not found"}}
    own = containers(("rank", {"waiting": {"reason": "PodInitializing"}}))
    reason = why(end, "pod", {**own, **containers(("warm-cache", absent), init=True)})
    assert reason == "x-0: container warm-cache: ErrImagePull: tools:2: not found"


def test_an_init_container_that_fails_again_and_again(end: CompletionDetector) -> None:
    """Contract: a kubelet that waits between tries is given three tries, no more."""
    for restarts, over in ((1, False), (3, True)):
        waits = {"waiting": {"reason": "CrashLoopBackOff"}}
        status = containers(("licence", waits), init=True)
        ended = {"terminated": {"exitCode": 3}}
        status["initContainerStatuses"][0] |= {"restartCount": restarts, "lastState": ended}
        reason = why(end, "pod", status)
        assert (reason == f"x-0: init container licence ended {restarts + 1} times with exit code 3") is over


def test_a_helper_that_does_not_end(end: CompletionDetector) -> None:
    """Contract: when every rank has ended, a container that goes on ends the wait; native sidecars do not."""
    end.container, end.members = "rank", 2
    ended, runs = {"terminated": {"exitCode": 0}}, {"running": {}}
    both = containers(("rank", ended), ("proxy", runs), phase="Running")
    assert why(end, "pod", both) is None, "the other rank runs"
    assert why(end, "pod", containers(("rank", runs), phase="Running"), name="x-1") is None
    reason = why(end, "pod", containers(("rank", ended), phase="Succeeded"), name="x-1")
    assert reason == "every rank has ended; still running: container proxy of x-0"


def test_a_helper_is_given_time_to_end() -> None:
    end = CompletionDetector(container="rank", members=1)
    both = containers(("rank", {"terminated": {"exitCode": 0}}), ("proxy", {"running": {}}), phase="Running")
    assert why(end, "pod", both) is None


def refused(end: CompletionDetector, message: str, at: str = "2026-01-01T00:00:05Z") -> str | None:
    """The Job controller says that a pod could not be created."""
    event = {
        "metadata": {"name": "e", "uid": "e"},
        "type": "Warning",
        "reason": "FailedCreate",
        "involvedObject": {"kind": "Job", "name": "x"},
        "lastTimestamp": at,
        "message": message,
    }
    end.observe("event", Observation(received_at=at, type="ADDED", object=event))
    return end.reason()


FORBIDDEN = 'pods "x-1" is forbidden: exceeded quota: team, requested: cpu=1, used: cpu=1, limited: cpu=1'


def test_forbidden_pods_end_the_launch(end: CompletionDetector) -> None:
    """Also where some pods were let in, unless a job is content with those."""
    end.members = 2
    why(end, "jobset", {})
    why(end, "job", {})
    assert why(end, "pod", {"phase": "Running"}) is None
    assert FORBIDDEN in (refused(end, FORBIDDEN) or "")
    why(end, "torchrunjob", {}, minNodes=1)
    assert end.reason() is None


def test_a_refusal_that_may_pass_goes_on(end: CompletionDetector) -> None:
    end.members = 2
    why(end, "jobset", {})
    why(end, "job", {})
    why(end, "pod", {"phase": "Running"})
    assert refused(end, 'failed calling webhook "x": context deadline exceeded') is None


def test_a_refusal_is_given_a_moment() -> None:
    end = CompletionDetector(members=2)
    why(end, "jobset", {})
    assert refused(end, FORBIDDEN) is None


@pytest.mark.parametrize("ready", ["True", "False", None])
def test_a_pod_that_no_scheduler_looks_at(end: CompletionDetector, ready: str | None) -> None:
    """Also where the scheduler was never there. A control plane that is not in pods proves nothing."""
    why(end, "pod", {})
    assert end.reason() is None
    for part, state in (("kube-apiserver", "True"), ("kube-scheduler", ready)):
        labels = {"component": part}
        item = {"metadata": {"name": part, "uid": part, "labels": labels}, "status": {}}
        item["status"] = {"conditions": [condition("Ready", state or "")]}
        if state:
            seen = Observation(received_at="2026-01-01T00:00:00Z", type="ADDED", object=item)
            end.observe("control-plane", seen)
    assert ("no kube-scheduler" in (end.reason() or "")) is (ready != "True")


def test_a_missing_kueue_workload_is_awaited_with_its_request(end: CompletionDetector) -> None:
    pod = {"spec": {"serviceAccountName": "kueue-controller-manager"}}
    why(end, "kueue-controller", {"availableReplicas": 1}, "kueue", template=pod)
    why(end, "jobset", {}, suspend=True)
    found = end.awaited()
    assert found is not None
    assert (found[0].creates, found[0].of) == ("Workload", found[1])
    assert str(found[0].user).endswith(":kueue-controller-manager")
    assert end.awaited(at_once=True) == found


def test_a_launch_that_goes_on_awaits_no_step(end: CompletionDetector) -> None:
    why(end, "jobset", {})
    why(end, "job", {"active": 1})
    why(end, "pod", {"phase": "Running"})
    assert end.awaited(at_once=True) is None


def process(
    end: CompletionDetector, kind: str, pod: str = "pod/x-0", id_: str = "u/7/1", **fields: Any
) -> None:
    given = {"pid": 7, "ppid": 1, "host": "h", "argv": [], "env": {}} if kind == "start" else {}
    event = {"kind": kind, "id": id_, "pod": "x-0", "uid": pod, "time_ms": 1, **given, **fields}
    end.recorded(PROCESS_LINE.validate_python(event))


WORKERS: dict[str, Any] = {
    "restart": 0,
    "max_restarts": 3,
    "group_rank": 0,
    "nodes": 2,
    "run_id": "1",
    "workers": [],
}
ENDED_WELL = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def test_a_failure_hidden_by_the_script_ends_the_launch(
    end: CompletionDetector,
) -> None:
    """Contract: what the pod's processes recorded counts when the pod itself has ended with exit code 0."""
    end.container, end.members = "main", 2
    why(end, "pod", {"phase": "Running"}, name="x-1")
    process(end, "result", state="FAILED")
    assert why(end, "pod", {"phase": "Running"}) is None
    assert "x-0 exited with code 0 even though torchrun failed" in (why(end, "pod", ENDED_WELL) or "")


def test_a_rank_without_torchrun_that_failed_counts_too(end: CompletionDetector) -> None:
    end.container, end.members = "main", 2
    why(end, "pod", {"phase": "Running"}, name="x-1")
    process(end, "end", how="exit", code=5)
    assert why(end, "pod", ENDED_WELL) is None, "a helper"
    process(end, "group", rank=0, world=2)
    process(end, "end", how="exit", code=5)
    assert "a rank ended with exit code 5" in (why(end, "pod", ENDED_WELL) or "")


@pytest.mark.parametrize("again", ["torchrun", "the script", "the script, without torchrun"])
def test_a_failure_before_a_restart_does_not_count(end: CompletionDetector, again: str) -> None:
    """Contract: a restart by torchrun, or by a loop in the script, may still end well."""
    end.container, end.members = "main", 2
    why(end, "pod", {"phase": "Running"}, name="x-1")
    process(end, "start", role="rank", id_="u/8/1")
    process(end, "end", how="exit", code=1, id_="u/8/1")
    if again == "torchrun":
        process(end, "workers", **WORKERS)
    elif again == "the script, without torchrun":
        process(end, "start", role="python", id_="u/9/1")
        process(end, "group", rank=0, world=2, id_="u/9/1")
        process(end, "end", how="exit", code=0, id_="u/9/1")
    else:
        process(end, "result", state="FAILED")
        process(end, "start", role="agent", id_="u/9/1")
    assert why(end, "pod", ENDED_WELL) is None
