"""Define which changes in the cluster are disturbances, and which causes each disturbance explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.judge.case import Case
from harness.judge.catalogue import CAUSES
from harness.judge.change import STATUS, Change
from harness.judge.disturbance.node_and_service_outages import CONTROL_PLANE
from harness.judge.finding import LATE
from harness.judge.pod_end import SAME_MOMENT
from harness.judge.points import elastic

Explains = Callable[[str], bool]

BACK_SECONDS = 60.0
"""Maximum time, in seconds, between the consequences of a machine's reboot and the kubelet's report of the
restart."""
_OUT_OF_TIME = ("run.timed_out", "admission.max_execution_time")
"""Causes of jobs that ran out of time. Kueue's time limit ends a job shortly before the harness's own
deadline."""
UNEXPLAINED = {
    *("", "run.not_completed", *_OUT_OF_TIME, "run.evidence_missing", "run.log_incomplete"),
    *(
        "rank.missing",
        "rendezvous.timeout",
        "peer.never_came",
        "unification.wrong_status",
        "unification.truth_incomplete",
    ),
    *("tracker.unreachable", "tracker.incomplete"),
}
"""Causes that describe a consequence but not its reason. The empty string stands for a finding without a
cause."""
_UNSERVICED = {
    *("rank.tracker_unreachable", "rendezvous.dns", "rendezvous.timeout", "rendezvous.unreachable"),
    *("dns.server_silent", "dns.server_refused", "dns.server_failed", "dns.no_record"),
    *("dns.differs_by_node", "peer.never_came", "unification.no_run"),
}
"""Causes that can result if connections to the address of a Service reach no pod."""
_TAKEN_DOWN = {
    "rank.killed",
    "rank.pod_deleted",
    "rank.evicted",
    "rank.crashed",
    "rank.hung",
    "rank.restarted",
}
_NOT_STARTED = {
    *("image.config", "scheduling.not_started", "scheduling.sandbox_failed", "scheduling.volume_failed"),
    *_OUT_OF_TIME,
    "rank.missing",
    "rendezvous.timeout",
    "peer.never_came",
}
_NOT_ADMITTED = {
    *("admission.quota_exceeded", "admission.pending", "admission.no_flavor"),
    *("admission.resource_not_covered", "admission.not_seen", "queue.inactive"),
    *("admission.topology", "admission.refused"),
    *("queue.local_queue_missing", "queue.cluster_queue_missing"),
}
_CUT_OFF = {
    *(cause for cause in CAUSES if cause.startswith(("dns.", "tcp.", "peer.", "service."))),
    *("rank.tracker_unreachable", "rank.hung", "rank.crashed", "rendezvous.dns", "rendezvous.unreachable"),
    *("rendezvous.timeout", *_OUT_OF_TIME, "unification.no_run", "unification.not_attached"),
    *("unification.lost_points", "unification.truth_incomplete", "unification.wrong_status"),
}
_WITHOUT_TRACKER = {
    *(
        "rank.tracker_unreachable",
        "rank.hung",
        "rank.crashed",
        "unification.no_run",
        "unification.not_attached",
        "unification.lost_points",
    ),
    *("unification.truth_incomplete", "unification.wrong_status", *_OUT_OF_TIME),
}
_RELEASED = {
    *_TAKEN_DOWN,
    *UNEXPLAINED,
    *("rank.restarted_too_often", "rank.exited_early", "rendezvous.world_size"),
    *("unification.metric_collision", "unification.foreign_job", "unification.lost_points"),
    "controllers.jobset_not_reconciling",
}
"""Causes that can result if a controller no longer owns a pod and creates a replacement."""
_UNSERVED = {
    *("scheduling.not_started", "scheduling.unschedulable", "admission.pods_ready_timeout"),
    *("controllers.jobset_not_reconciling", "controllers.kueue_not_reconciling"),
    *UNEXPLAINED,
}
"""Causes that can result if the scheduler or the controller manager is not running."""
_UNRESOLVED = re.compile(
    r"Temporary failure in name resolution|Name or service not known|gaierror|getaddrinfo"
    r"|No address associated with hostname|dns error|failed to lookup address"
    r"|DNS server \S+ does not resolve",
    re.IGNORECASE,
)
_LOST_CONTAINER = 255
"""Exit code that containerd reports for a container that ended while containerd was not running."""


@dataclass(frozen=True)
class Disturbance:
    """A change that may have disturbed the job.

    `explains(cause)` returns whether the change explains the cause.
    """

    cause: CauseId
    change: Change
    explains: Explains
    ranks: tuple[int, ...]
    text: str = ""
    """Text appended to the sentence that describes the change."""
    late: float = SAME_MOMENT
    """Maximum number of seconds by which the record of the change can be later than its consequences."""


def _one_of(*causes: str) -> Explains:
    return frozenset(causes).__contains__


def named(case: Case, changes: list[Change]) -> Iterator[Disturbance]:
    """Yield a disturbance for each change that, according to one of the rules, may have caused a failure."""
    all_ranks = tuple(range(case.expected.ranks))
    for change in changes:
        if change.kind == "namespace" and change.verb == "deleted":
            yield Disturbance(
                "run.namespace_deleted",
                change,
                _of_the_job,
                all_ranks,
                "; Kubernetes does not record who deleted it",
            )
        elif change.kind in {"secret", "configmap"} and change.verb == "deleted":
            yield from _config(case, change)
        elif change.kind in {"localqueue", "clusterqueue"} and _of_our_queue(case, change):
            yield Disturbance("queue.changed", change, _one_of(*_NOT_ADMITTED), all_ranks)
        elif change.fields == (STATUS,):
            text = "; only its controller may write this status, and the controller then acted on the edit"
            explains = _one_of(*_TAKEN_DOWN, *UNEXPLAINED, "rank.missing", "run.deleted", "run.status_wrong")
            yield Disturbance("run.edited", change, explains, all_ranks, text)
        elif elastic.allows(case, change):
            continue
        elif change.kind in {"jobset", "job", "statefulset", "daemonset"} and _edits_spec(change):
            explains = _one_of("rank.killed", "rank.pod_deleted", "rank.missing", *UNEXPLAINED)
            yield Disturbance("run.edited", change, explains, all_ranks)
        elif change.kind in {"networkpolicy", "service"} and change.fields != ("metadata.annotations",):
            yield Disturbance("cluster.network_changed", change, _one_of(*_CUT_OFF), all_ranks)
        elif change.kind == "tracker-service" and change.fields != ("metadata.annotations",):
            text = "; the ranks reach the tracker through this Service, which is outside the job's namespace"
            yield Disturbance("cluster.network_changed", change, _one_of(*_WITHOUT_TRACKER), all_ranks, text)
        elif change.kind == "pod" and change.removed:
            yield from _released(case, change)
        elif change.verb == "away":
            yield from _AWAY.get(change.kind, _unserved)(case, change)
        elif change.kind == "node":
            yield from _of_a_node(case, change)


def _of_the_job(cause: str) -> bool:
    """Return whether deleting the job's namespace can explain this cause.

    It does not explain causes in Docker, the cluster, the controllers, the harness itself or a user's check.
    """
    family = cause.partition(".")[0]
    return family not in {"docker", "cluster", "controllers", "user"} and cause not in {
        *(
            "run.interrupted",
            "run.harness_killed",
            "run.no_manifest",
            "run.evidence_disk_full",
            "run.judge_error",
        ),
    }


def _edits_spec(change: Change) -> bool:
    return change.verb == "edited" and any(field.startswith("spec.") for field in change.fields)


def _config(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield the deletion of a Secret or ConfigMap if a container that needs it had not yet started."""
    unstarted = [
        index
        for index, pod in case.pods.items()
        if change.name in _required_names(pod, change.kind) and _first_run(case, pod) > change.at
    ]
    ranks = tuple(rank for index in unstarted for rank in case.ranks_of(index))
    if ranks:
        yield Disturbance(
            "launch.config_deleted",
            change,
            _one_of(*_NOT_STARTED),
            ranks,
            ", before the containers that need it had started",
        )


def _required_names(pod: Pod, kind: str) -> set[str]:
    """Return the names of the Secrets or ConfigMaps that a pod needs to start."""
    ref, plain = ("secret", "secretName") if kind == "secret" else ("configMap", "name")
    spec = mapping(pod.last.object, "spec")
    volumes = items(spec, "volumes")
    names = {mapping(volume, ref).get(plain) for volume in volumes}
    names |= {
        mapping(each, ref).get("name") for one in volumes for each in items(one, "projected", "sources")
    }
    for container in items(spec, "containers"):
        names |= {mapping(e, "valueFrom", f"{ref}KeyRef").get("name") for e in items(container, "env")}
        names |= {mapping(e, f"{ref}Ref").get("name") for e in items(container, "envFrom")}
    return {str(name) for name in names if name}


def _first_run(case: Case, pod: Pod) -> float:
    for recorded in pod.history:
        for status in items(recorded.object, "status", "containerStatuses"):
            state = mapping(status, "state")
            if status.get("name") == case.launch.container and ("running" in state or "terminated" in state):
                return seconds(recorded.received_at) or 0.0
    return LATE


def _of_our_queue(case: Case, change: Change) -> bool:
    """Return whether the change edits or deletes the job's LocalQueue or its ClusterQueue.

    Creating a queue during the launch does not count, because it does not disturb the job.
    """
    if change.verb == "created" or (change.verb == "edited" and not _edits_spec(change)):
        return False
    if change.kind == "localqueue":
        return change.name == case.queue
    local_queues = case.bundle.last("localqueue").values()
    return any(
        queue.name == case.queue and mapping(queue.object, "spec").get("clusterQueue") == change.name
        for queue in local_queues
    )


def _unresolved(case: Case, after: float) -> dict[int, str]:
    """Map each node index to its first log line after the time `after` that reports a failed name lookup."""
    unresolved: dict[int, str] = {}
    for index, pod in case.pods.items():
        path = case.bundle.log(pod.name, case.launch.container)
        for number, raw in case.bundle.lines(path):
            moment, _, line = raw.decode(errors="replace").partition(" ")
            if _UNRESOLVED.search(line) and (seconds(moment) or 0.0) >= after:
                unresolved.setdefault(index, f"{path}:{number}")
    return unresolved


def _without_dns(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield a cluster DNS outage if a rank could not resolve a name after the outage began."""
    unresolved = _unresolved(case, change.at)
    if unresolved:
        ranks = tuple(rank for index in unresolved for rank in case.ranks_of(index))
        text = f", and names could not be resolved ({', '.join(unresolved.values())})"
        yield Disturbance("cluster.dns_down", change, _one_of(*_CUT_OFF), ranks, text)


def _without_proxy(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield an outage of a node's service proxy if ranks ran on that node."""
    on_node = [index for index, pod in case.pods.items() if pod.node == change.name]
    ranks = case.ranks_of(*on_node)
    if ranks:
        text = ", so connections from this node to Services (DNS, the tracker) reached no pod"
        crashed = [index for index in _unresolved(case, change.at) if index in on_node]
        explains = _one_of(*_UNSERVICED, *(("rank.crashed",) if crashed else ()))
        yield Disturbance("cluster.service_proxy_down", change, explains, tuple(ranks), text)


def _released(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield each removal of a label or owner reference by which controllers identify a pod of the job."""
    for attempts in case.pod_attempts.values():
        for pod in attempts:
            if pod.name == change.name:
                text = ", so its controllers no longer treat it as a pod of the job"
                ranks = tuple(case.ranks_of(pod.index))
                yield Disturbance("run.edited", change, _one_of(*_RELEASED), ranks, text)


def _unserved(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield a control plane component's outage that did not end, if the job was waiting for the component."""
    pods = case.bundle.pod_attempts()
    waiting = [rank for index, each in pods.items() if not each[-1].node for rank in case.ranks_of(index)]
    missing = [rank for i in range(case.expected.num_nodes) if i not in pods for rank in case.ranks_of(i)]
    if change.name == CONTROL_PLANE["kube-scheduler"]:
        ranks, text = waiting, ", and pods are waiting for a node"
    else:
        phases = {mapping(each[-1].last.object, "status").get("phase") for each in pods.values()}
        unended = list(case.ranks) if phases <= {"Succeeded", "Failed"} and case.terminal is None else []
        ranks, text = (
            missing or unended,
            "; the controller manager creates a Job's pods and writes the Job's status",
        )
    if ranks and change.until == LATE:
        explains = _one_of(*_UNSERVED)
        yield Disturbance("cluster.component_down", change, explains, tuple(ranks), text)


def _of_a_node(case: Case, change: Change) -> Iterator[Disturbance]:
    """Yield a change to a node on which ranks ran, or on which a pending pod might have been scheduled."""
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    node_pods = [pod for pod in pods if pod.node == change.name]
    ranks = tuple(rank for pod in node_pods for rank in case.ranks_of(pod.index))
    without_exit_code = [pod for pod in node_pods if _exit_code_unknown(case, pod)]
    follows = _one_of(*_TAKEN_DOWN, *_CUT_OFF, *UNEXPLAINED, "cluster.node_lost", "tracker.data_lost")
    if change.verb == "rebooted" and without_exit_code:
        yield Disturbance("cluster.node_rebooted", change, follows, ranks)
    elif change.verb == "kubelet" and without_exit_code:
        text = (
            ", and containerd had lost the containers on this node (exit code 255), as it does after a reboot"
        )
        # The kubelet emits this event only after the restart, so consequences can be recorded before the
        # event.
        yield Disturbance("cluster.runtime_restarted", change, follows, ranks, text, BACK_SECONDS)
    elif change.verb == "clock" and ranks:
        yield Disturbance("cluster.clock_jumped", change, _one_of(*_CUT_OFF, *UNEXPLAINED), ranks)
    elif change.verb in {"edited", "deleted"} and change.fields != ("metadata.annotations",):
        waiting = tuple(
            rank for pod in case.pods.values() if not pod.node for rank in case.ranks_of(pod.index)
        )
        if waiting:
            explains = _one_of("scheduling.unschedulable", "scheduling.not_spread", "rendezvous.timeout")
            yield Disturbance("scheduling.node_changed", change, explains, waiting)


def _exit_code_unknown(case: Case, pod: Pod) -> bool:
    """Return whether the node lost track of the pod's container, so that its real exit code is unknown."""
    terminated = pod.container(case.launch.container, "terminated")
    return terminated is not None and (
        (terminated[1].get("exitCode") == _LOST_CONTAINER and terminated[1].get("reason") == "Unknown")
        or terminated[1].get("reason") == "ContainerStatusUnknown"
    )


_AWAY: dict[str, Callable[[Case, Change], Iterator[Disturbance]]] = {
    "dns-pod": _without_dns,
    "service-proxy": _without_proxy,
}
"""The rules for outages of DNS and the service proxy. `_unserved` is the rule for outages of other
services."""
