"""Why pods are late, from Events: of the JobSet, its Job, the pods and their claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from torchrun_objects import CREATED, job, jobset, pod

from harness.torchrun_controller.decide.decisions import Decision, Snapshot
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.runtime.event_cache import OF_CLAIMS, OF_PULLS, SELECTOR, Warnings, needed
from harness.torchrun_controller.runtime.executor import Cluster

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ALL = [SELECTOR, OF_CLAIMS, OF_PULLS]
ADMITTED = "2026-11-23T11:59:30Z"
NOT_READY = {"type": "PodsReady", "status": "False", "lastTransitionTime": ADMITTED}
ADMITTED_JOB = job(status={**CREATED, "startTime": ADMITTED, "conditions": [NOT_READY]})


def event(kind: str, name: str, reason: str, message: str, at: str = ADMITTED) -> Object:
    return {
        "metadata": {"creationTimestamp": at},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def pending(
    index: int = 0, *, scheduled: bool | None = True, waiting: str = "ContainerCreating", **spec: Any
) -> Object:
    """Return a pod that waits, on a node where it is scheduled."""
    found = pod(index, "Pending")
    conditions = [] if scheduled is None else [{"type": "PodScheduled", "status": str(scheduled)}]
    state = [{"name": "trainer", "state": {"waiting": {"reason": waiting}}}]
    found["status"].update(conditions=conditions, containerStatuses=state if scheduled else [])
    found["spec"] = spec
    found["metadata"]["creationTimestamp"] = ADMITTED
    return found


def look(pods: list[Object], warnings: list[Object] | None, now: datetime = NOW, **seen: Any) -> Decision:
    return desired(ADMITTED_JOB, Snapshot(jobset=jobset(), pods=pods, warnings=warnings, **seen), now)


NOT_CREATED = 'pods "demo-node-0-0-" is forbidden: error looking up service account team/x: not found'
NO_CONFIG = 'MountVolume.SetUp failed for volume "a" : configmap "settings" not found'
NO_CLASS = 'storageclass.storage.k8s.io "fast" not found'
NO_SECRET = (
    "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed."
)
BOUND = {"metadata": {"name": "data"}, "status": {"phase": "Bound"}}


@pytest.mark.parametrize(
    ("pods", "warning", "says"),
    [
        (
            [],
            event("Job", "demo-node-0", "FailedCreate", NOT_CREATED),
            "2 of 2 pods cannot be created: Job demo-node-0: FailedCreate: " + NOT_CREATED,
        ),
        ([], event("JobSet", "demo", "JobCreationFailed", "no"), "JobSet demo: JobCreationFailed: no"),
        (
            [pending(), pending(1)],
            event("Pod", "demo-node-0-1-x0", "FailedMount", NO_CONFIG),
            f"Pod demo-node-0-1-x0: FailedMount: {NO_CONFIG}",
        ),
        (
            [pending(scheduled=False, claims=["data"])] * 2,
            event("PersistentVolumeClaim", "data", "ProvisioningFailed", NO_CLASS),
            "PersistentVolumeClaim data: ProvisioningFailed: " + NO_CLASS,
        ),
        (
            [pending(waiting="ErrImagePull", imagePullSecrets=[{"name": "regcred"}])] * 2,
            event("Pod", "demo-node-0-0-x0", "FailedToRetrieveImagePullSecret", NO_SECRET),
            NO_SECRET,
        ),
    ],
    ids=["pods", "jobset", "mount", "claim", "pull secret"],
)
def test_an_event_explains_why_pods_are_late(pods: list[Object], warning: Object, says: str) -> None:
    """Contract: the message names the object and has the Event's sentence. Events are asked for only then."""
    asking = look(pods, None)
    assert asking.unexplained
    decision = look(pods, [warning])
    assert not decision.unexplained
    assert says in str(decision.status.message)
    assert decision.requeue_at is not None


def test_events_are_read_of_pods_that_are_late_alone() -> None:
    """Contract: an admission of this second, or pods that run, ask the API server nothing."""
    fresh = desired(job(status=CREATED), Snapshot(jobset=jobset()), NOW)
    assert not fresh.unexplained
    assert fresh.requeue_at == NOW + timedelta(seconds=5)
    assert not look([pod(0, "Running"), pod(1, "Running")], None).unexplained


def test_old_events_and_those_of_others_explain_nothing() -> None:
    """Contract: an Event of an attempt before, of another job or of a bound claim is not repeated."""
    others = [
        event("Job", "demo-node-0", "FailedCreate", "old", "2026-11-23T11:00:00Z"),
        event("Pod", "other-node-0-0-x0", "FailedMount", "other"),
        event("PersistentVolumeClaim", "data", "ProvisioningFailed", "bound"),
    ]
    pods = [pending(claims=["data"]), pending(1, scheduled=False, claims=["data"])]
    assert (
        look(pods, others, claims=[BOUND]).status.message == "0 of 2 pods running: demo-node-0-1-x0: None: "
    )


@pytest.mark.parametrize("reason", ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"])
def test_the_end_of_the_attempt_before_is_no_reason(reason: str) -> None:
    """Contract: the Jobs of all attempts have one name; that one failed does not keep the next from its
    pods."""
    failed = event("Job", "demo-node-0", reason, "Job has reached the specified backoff limit")
    assert look([], [failed]).status.message == "0 of 2 pods running"
    quota = event("Job", "demo-node-0", "FailedCreate", "exceeded quota")
    assert "exceeded quota" in str(look([], [quota, failed]).status.message)


def test_what_a_pod_has_left_behind_is_not_repeated() -> None:
    """Contract: a pod on a node no longer waits for one, and a pod that pulls its image has its volumes."""
    name = "demo-node-0-0-x0"
    before = [
        event("Pod", name, "FailedScheduling", "0/3 nodes"),
        event("Pod", name, "FailedMount", NO_CONFIG),
    ]
    pods = [pending(), pending(1)]
    assert look(pods, before[:1]).status.message == "0 of 2 pods running"
    pulling = event("Pod", name, "Pulling", 'Pulling image "torch:1"', "2026-11-23T11:59:40Z")
    message = look(pods, [*before, pulling]).status.message
    assert message == f'0 of 2 pods running: Pod {name}: Pulling: Pulling image "torch:1"'


def test_a_message_with_a_reason_is_preferred() -> None:
    """Contract: a later message that a pod waits for its volumes does not hide the reason."""
    vague = "Unable to attach or mount volumes: unmounted volumes=[a]: timed out waiting for the condition"
    names = ("demo-node-0-1-x0", "demo-node-0-0-x0")
    warnings = [
        event("Pod", each, "FailedMount", text) for each, text in zip(names, (NO_CONFIG, vague), strict=True)
    ]
    text = f"0 of 2 pods running: Pod {names[0]}: FailedMount: {NO_CONFIG}"
    assert look([pending(), pending(1)], warnings).status.message == text
    assert vague in str(look([pending(), pending(1)], warnings[1:]).status.message)


def test_gang_pod_that_fits_no_node_is_named() -> None:
    """volcano-sh/volcano#3976: the other pods of the gang only wait for this one."""
    pods = [pending(scheduled=False), pending(1, scheduled=False)]
    gang = "pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Unschedulable, 1 Schedulable"
    for each, reason, message in zip(
        pods, ("Schedulable", "Unschedulable"), (gang, "0/3 nodes"), strict=True
    ):
        each["status"]["conditions"][0].update(reason=reason, message=message)
    assert "demo-node-0-1-x0: Unschedulable: 0/3 nodes" in str(look(pods, []).status.message)
    assert gang in str(look(pods[:1], []).status.message)


def test_a_scheduler_that_does_not_report() -> None:
    """Contract: a pod on which no scheduler has reported for 30 s is said to wait for it, by its name."""
    pods = [
        pending(scheduled=None, schedulerName="volcano"),
        pending(1, scheduled=None, schedulerName="volcano"),
    ]
    assert "scheduler volcano has not processed the pod" in str(look(pods, []).status.message)
    assert "volcano" not in str(look(pods, [], NOW - timedelta(seconds=1)).status.message)


def test_a_jobset_that_kueue_does_not_see() -> None:
    """Contract: without a Workload after 5 s, a warning about the JobSet is the message."""
    suspended = jobset(suspend=True)
    suspended["metadata"]["creationTimestamp"] = ADMITTED
    asking = desired(job(status=CREATED), Snapshot(jobset=suspended), NOW)
    assert asking.unexplained
    warnings = [event("JobSet", "demo", "FailedToCreate", "WorkloadPriorityClass low not found")]
    status = desired(job(status=CREATED), Snapshot(jobset=suspended, warnings=warnings), NOW).status
    assert (status.phase, status.message) == (
        "Queued",
        "JobSet demo: FailedToCreate: WorkloadPriorityClass low not found",
    )


def test_a_controller_that_does_nothing() -> None:
    """kubernetes/kubernetes#131917, kubernetes-sigs/kueue#2391: jobs without pods, and Workloads without a
    status, for hours, and no Event.

    Contract: after a minute the message says who should have acted.
    """
    later = NOW + timedelta(seconds=30)
    assert look([], [], later - timedelta(seconds=1)).status.message == "0 of 2 pods running"
    assert "check that JobSet's controller" in str(look([], [], later).status.message)
    suspended = jobset(suspend=True)
    suspended["metadata"]["creationTimestamp"] = ADMITTED
    seen = Snapshot(jobset=suspended, warnings=[])
    assert desired(job(status=CREATED), seen, NOW).status.message == "waiting for Kueue to admit the job"
    status = desired(job(status=CREATED), seen, later).status
    assert (status.phase, "no Workload" in str(status.message)) == ("Queued", True)


def test_jobs_of_namespace_share_events_that_are_read() -> None:
    """Contract: one read in five seconds for each namespace, however many jobs wait."""
    reads: list[tuple[str, str]] = []

    def read(namespace: str, selector: str) -> list[Object]:
        reads.append((namespace, selector))
        return []

    found = Warnings(read)
    for seconds in (0, 1, 4):
        found.of("a", NOW + timedelta(seconds=seconds), ALL)
    assert len(reads) == 3
    found.of("b", NOW, ALL)
    found.of("a", NOW + timedelta(seconds=5), ALL)
    assert len(reads) == 9


def test_only_events_that_can_explain_are_read() -> None:
    """Contract: Events about claims and images are read for pods that wait for claims and images."""
    place = {"type": "PodScheduled", "status": "True"}
    started = pod(0, "Pending", conditions=[place])
    with_claim = {**pod(1, "Pending"), "spec": {"claims": ["demo-data"]}}
    assert needed([pod(0, "Pending"), pod(1, "Running", conditions=[place])]) == [SELECTOR]
    assert needed([started]) == [SELECTOR, OF_PULLS]
    assert needed([started, with_claim]) == ALL
    reads: list[str] = []

    def read(_: str, selector: str) -> list[Object]:
        reads.append(selector)
        return []

    found = Warnings(read)
    for selectors in ([SELECTOR], ALL, [SELECTOR]):
        found.of("a", NOW, selectors)
    assert reads == ALL


def test_slow_events_are_read_less_often() -> None:
    """Contract: a namespace with ten thousand Events does not keep the API server busy."""
    clock, reads = [0.0], [0]

    def read(_: str, __: str) -> list[Object]:
        clock[0] += 0.5
        reads[0] += 1
        return []

    found = Warnings(read, lambda: clock[0])
    for seconds in (0, 10, 29):
        found.of("a", NOW + timedelta(seconds=seconds), ALL)
    assert reads[0] == 3
    found.of("a", NOW + timedelta(seconds=30), ALL)
    assert reads[0] == 6


class PagedEvents:
    """A connection to an API server with many Events, which returns them in pages, ordered by name."""

    def __init__(self, events: list[Object]) -> None:
        self.events, self.queries = events, list[dict[str, str]]()

    def fetch(self, path: str, query: dict[str, str]) -> PagedEvents:
        assert path == "/api/v1/namespaces/team/events"
        self.queries.append(dict(query))
        return self

    def json(self) -> Object:
        query = self.queries[-1]
        start, size = int(query.get("continue") or 0), int(query["limit"])
        rest = str(start + size) if start + size < len(self.events) else ""
        return {"metadata": {"continue": rest}, "items": self.events[start : start + size]}


def test_all_pages_of_events_are_read() -> None:
    """Contract: another job's 2,500 warnings do not hide the one about this job, which was posted earlier."""
    names = [f"a-{number:04}" for number in range(2500)] + ["demo"]
    server = PagedEvents(
        [
            {"metadata": {"name": name}, "lastTimestamp": f"2026-11-23T12:00:0{0 if name == 'demo' else 1}Z"}
            for name in names
        ]
    )
    found = Cluster(server).events("team", "type=Warning")  # type: ignore[arg-type]
    assert len(found) == 2501
    assert found[0]["metadata"]["name"] == "demo"
    assert [query.get("continue", "") for query in server.queries] == ["", "1000", "2000"]
    assert {query["fieldSelector"] for query in server.queries} == {"type=Warning"}
