"""Judge the other containers in the ranks' pods: init containers, sidecars and helpers.

Kubernetes starts a rank's container only after the init containers have completed, and a pod ends only when
all its containers have ended. Another container can therefore keep a job from starting or ending, or make it
fail although all its ranks succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.causes import CauseId
from harness.core.checks import CheckId
from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.judge.case import Case, condition, names
from harness.judge.catalogue import CAUSES, RUNNING, START
from harness.judge.cluster import pod_deletion
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.logs.error_patterns import last_line
from harness.judge.pod_end import End

CHECK: CheckId = "containers"
_LISTS = (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))
_WAITS_AGAIN = "CrashLoopBackOff"
_OOM_ADVICE = "raise the memory limit of container CONTAINER, or reduce its memory use"
_OF_A_WAITING_RANK = re.compile(
    r"[Tt]ime(d )?out|Rendezvous|Dist(Store|Network)Error|[Cc]onnection|connectFullMesh|name resolution"
    r"|not known"
)
"""Pattern for the errors of ranks that timed out while they waited for other ranks."""


@dataclass(frozen=True)
class Other:
    """A container in a rank's pod other than the rank's own container.

    `state` is the pod's last recorded state that lists this container.
    """

    index: int
    pod: Pod
    name: str
    role: Literal["init container", "native sidecar", "container"]
    image: str
    state: ObjectState
    status: dict[str, Any]

    @property
    def running(self) -> dict[str, Any] | None:
        """Return the container's `running` state, or None if it is not running."""
        state = mapping(self.status, "state").get("running")
        return state if isinstance(state, dict) else None

    @property
    def ended(self) -> dict[str, Any]:
        """Return the container's `terminated` state, or {} if it has not ended.

        While the container waits in CrashLoopBackOff, return the state of its last attempt.
        """
        is_waiting = mapping(self.status, "state", "waiting").get("reason") == _WAITS_AGAIN
        return mapping(self.status, "lastState" if is_waiting else "state", "terminated")

    @property
    def exit_code(self) -> int:
        """Return the exit code, or 0 if the container has not terminated."""
        code = self.ended.get("exitCode")
        return code if isinstance(code, int) else 0

    @property
    def oom_killed(self) -> bool:
        return self.ended.get("reason") == "OOMKilled"

    @property
    def outcome(self) -> str:
        """Return a description of the container's end, such as "exit code 137 (out of memory)"."""
        return f"exit code {self.exit_code}{' (out of memory)' * self.oom_killed}"

    @property
    def tries(self) -> int:
        count = self.status.get("restartCount")
        return count if isinstance(count, int) else 0

    @property
    def ended_at(self) -> float | None:
        return seconds(self.ended.get("finishedAt"))

    @property
    def endless(self) -> bool:
        """Return whether the pod can end while this container is running.

        This is true for native sidecars.
        """
        return self.role == "native sidecar"


def of(case: Case, index: int) -> list[Other]:
    """Return the containers of a node's pod, except the rank's container, in pod spec order."""
    pod = case.pods.get(index)
    return [] if pod is None else list(_of(case, index, pod))


def _of(case: Case, index: int, pod: Pod) -> Iterator[Other]:
    for specs, statuses in _LISTS:
        for spec in items(pod.last.object, "spec", specs):
            name = str(spec.get("name"))
            if name == case.launch.container:
                continue
            role: Literal["init container", "native sidecar", "container"] = "container"
            if specs == "initContainers":
                role = "native sidecar" if spec.get("restartPolicy") == "Always" else "init container"
            state, status = _last(pod, statuses, name)
            image = str(spec.get("image") or status.get("image") or "unknown")
            yield Other(index, pod, name, role, image, state, status)


def _last(pod: Pod, statuses: str, name: str) -> tuple[ObjectState, dict[str, Any]]:
    """Return a container's last status before its pod was deleted, with the pod state that contains it.

    Later states are ignored, because the deletion itself stops all containers.
    """
    for state in reversed([state for state in pod.history if not pod_deletion.leaving(state)] or pod.history):
        for status in items(state.object, "status", statuses):
            if status.get("name") == name:
                return state, status
    return pod.last, {}


def check(case: Case, ends: dict[int, End]) -> Finding:
    """Run the `containers` check: no other container in a pod blocked the start or end of a rank or job."""
    others = [other for index in sorted(case.pods) for other in of(case, index)]
    if not others:
        return passed(CHECK, "no pod has a container other than its rank's container")
    for judged in (_init_failed, _init_unended, _failed, _unended):
        if (finding := judged(case, ends, others)) is not None:
            return finding
    text = (
        f"{counted(len(others), 'other container')} in the ranks' pods did not keep any rank from starting "
        "or ending"
    )
    return passed(CHECK, text, list(dict.fromkeys(other.state.ref for other in others)))


def blocks_start(case: Case, index: int) -> bool:
    """Return whether an init container keeps this node's rank from starting."""
    return not case.started(index) and any(
        other.role != "container" and (other.exit_code or other.running is not None)
        for other in of(case, index)
    )


def before(case: Case, end: End) -> list[str]:
    """Return a sentence for each other container in the pod that ended before the rank."""
    helpers = [
        other
        for other in of(case, end.index)
        if other.role != "init container" and other.ended_at is not None and other.ended_at < end.at
    ]
    return [
        f"{other.role} {other.name} in the same pod had ended {end.at - (other.ended_at or end.at):.0f} s "
        f"earlier with {other.outcome}{_log_quote(case, other)}"
        for other in helpers
    ]


def _init_failed(case: Case, _ends: dict[int, End], others: list[Other]) -> Finding | None:
    """Return the finding for ranks that never started because an init container failed."""
    failed = [
        other
        for other in others
        if other.role != "container" and other.exit_code and not case.started(other.index)
    ]
    if not failed:
        return None
    first = failed[0]
    retries = f", {first.tries + 1} times" if first.tries else ""
    outcome = f"ended with {first.outcome}{retries}, so the rank never started"
    return _not_passed(case, "rank.init_container_failed", failed, outcome, START)


def _init_unended(case: Case, ends: dict[int, End], others: list[Other]) -> Finding | None:
    """Return the finding for init containers that were still running when the harness stopped waiting."""
    unended = [
        other
        for other in others
        if other.role != "container"
        and _existed_until_end(case, other.pod)
        and other.running is not None
        and not (other.endless and other.status.get("started") is True)
        and not case.started(other.index)
    ]
    if not unended or (case.terminal == "Completed" and not case.launch.attached):
        return None
    if any(_failed_by_itself(end) for end in ends.values()):
        return unknown(CHECK, "see rank-exit")  # The init container may be waiting for the rank that failed.
    removed = pod_deletion.removed(unended[0].pod)
    until = case.waited_until if removed is None else pod_deletion.requested_at(removed)
    since = seconds((unended[0].running or {}).get("startedAt"))
    duration_text = (
        f"has run for {until - since:.0f} s" if until and since and until > since else "is running"
    )
    progress = "is not ready" if unended[0].endless else "has not ended"
    outcome = f"{duration_text} and {progress}, so the rank has not started"
    return _not_passed(case, "rank.init_container_unended", unended, outcome, START)


def _failed_by_itself(end: End) -> bool:
    """Return whether a rank raised an error that is not about waiting for other ranks."""
    own = end.state == "failed" and end.cause == "rank.crashed" and not end.follows
    return own and "Error" in end.log_quote and not _OF_A_WAITING_RANK.search(end.log_quote)


def _existed_until_end(case: Case, pod: Pod) -> bool:
    """Return whether the pod existed until the harness stopped waiting or until the job's time limit."""
    removed = pod_deletion.removed(pod)
    if removed is None or pod_deletion.at_the_deadline(case, removed) is not None:
        return True
    evicted = any(condition(state, "Evicted").get("status") == "True" for state in case.workload)
    over = pod_deletion.by_torchrun_controller(case)
    return evicted or (over is not None and mapping(over.object, "status").get("phase") == "TimedOut")


def _failed(case: Case, ends: dict[int, End], others: list[Other]) -> Finding | None:
    """Return the finding for containers that caused a pod to fail although its rank exited with 0."""
    failed = [
        other
        for other in others
        if other.role == "container"
        and other.exit_code
        and ends[other.index].state == "succeeded"
        and mapping(other.pod.last.object, "status").get("phase") == "Failed"
    ]
    if not failed:
        return None
    outcome = f"ended with {failed[0].outcome}, so its pod failed even though the rank ended with exit code 0"
    return _not_passed(case, "rank.helper_failed", failed, outcome, RUNNING)


def _unended(case: Case, ends: dict[int, End], others: list[Other]) -> Finding | None:
    """Return the finding for containers still running in pods whose ranks have ended."""
    if case.launch.held or case.terminal is not None:
        return None
    running = [
        other
        for other in others
        if other.role == "container"
        and other.running is not None
        and ends[other.index].state in {"succeeded", "failed"}
    ]
    if not running:
        return None
    end = ends[running[0].index]
    outcome = (
        f"is still running although the rank ended with exit code {end.exit_code}, so the {case.launch.kind} "
        "cannot end"
    )
    return _not_passed(case, "rank.helper_unended", running, outcome, RUNNING, at=end.at)


def _not_passed(
    case: Case, cause: CauseId, culprits: list[Other], outcome: str, phase: float, at: float | None = None
) -> Finding:
    first = culprits[0]
    same_name = [other.index for other in culprits[1:] if other.name == first.name]
    reasons = [f"the same happened for {names(case.ranks_of(*same_name))}"] if same_name else []
    other_names = {f"{other.role} {other.name}": None for other in culprits if other.name != first.name}
    reasons += [f"other containers with this problem: {', '.join(other_names)}"] if other_names else []
    return not_passed(
        CHECK,
        cause,
        f"{first.role} {first.name} of {case.place(first.index)} {outcome}{_log_quote(case, first)}",
        why=[f"its image is {first.image}, and {added_by(case, first)}", *reasons],
        ranks=case.ranks_of(*(other.index for other in culprits)),
        evidence=[first.state.ref, *_log_ref(case, first)],
        phase=phase,
        at=first.ended_at if at is None else at,
        advice=(_OOM_ADVICE if first.oom_killed else CAUSES[cause].action)
        .replace("POD", first.pod.name)
        .replace("CONTAINER", first.name),
    )


def added_by(case: Case, other: Other) -> str:
    """Return a clause that names the source of the container according to the recorded pod templates."""
    launched = _templates(case.jobset) if case.jobset is not None else []
    workload = f"{case.launch.kind} {case.launch.object_name}"
    if case.jobset is None or not launched:
        return "who added the container is unknown, because no template was recorded"
    if _has(launched, other.name):
        return f"the container is in the template of {workload}"
    owners = {owner.get("uid") for owner in items(other.pod.last.object, "metadata", "ownerReferences")}
    for uid, job in case.bundle.last("job").items():
        if uid in owners and _has(_templates(job), other.name):
            return (
                f"the container is in Job {job.name}, not in {workload}: an admission webhook or "
                "policy added it "
                "to the Job"
            )
    return (
        f"the template of {workload} has no such container: "
        "an admission webhook or policy added it to the pod"
    )


def _templates(state: ObjectState) -> list[dict[str, Any]]:
    """Return the pod specs in an object's pod templates. A JobSet has one template per replicated job."""
    spec = mapping(state.object, "spec")
    jobs = [mapping(job, "template", "spec", "template", "spec") for job in items(spec, "replicatedJobs")]
    return [template for template in [*jobs, mapping(spec, "template", "spec")] if template]


def _has(templates: list[dict[str, Any]], name: str) -> bool:
    return any(
        container.get("name") == name
        for template in templates
        for part, _ in _LISTS
        for container in items(template, part)
    )


def _log_quote(case: Case, other: Other) -> str:
    """Return a clause that quotes a container's last log line, or "" if no log was collected."""
    line, _ = last_line(case.bundle.tail(case.bundle.log(other.pod.name, other.name)))
    message = str(other.ended.get("message") or "").strip()
    text = line or (message.splitlines()[-1] if message else "")
    return f"; its last log line: {text[:300]}" if text else ""


def _log_ref(case: Case, other: Other) -> list[str]:
    log = case.bundle.log(other.pod.name, other.name)
    _, number = last_line(case.bundle.tail(log))
    return [f"{log}:{number}"] if number else []
