"""Determine why a job's pods are not running, do not terminate, or have ended.

Besides `trainer` and `workspace`, a pod has the init containers and helpers from its queue's template, and
containers added by admission webhooks. Any of these containers can keep a job from starting or ending, so
each message contains the names of the pod and the container.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes.unschedulable import waits_for_group
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import parsed
from harness.torchrun_controller.decide.trainer_exit import explained

RUNS_STEP = timedelta(seconds=30)
"""In the status, an init container's run time is rounded down to a multiple of this interval."""
LONG = timedelta(seconds=60)
"""An Event reports an init container that has been running for this long."""
LINGERS = timedelta(seconds=30)
"""If other containers are still running this long after the trainers have ended, an Event reports the other
containers. The value equals a pod's default grace period, within which Kubernetes terminates native
sidecars."""
STARTING = (None, "ContainerCreating", "PodInitializing")
DISRUPTIONS = {
    "EvictionByEvictionAPI": "was evicted from node {}",
    "PreemptionByScheduler": "was preempted on node {} by a pod of higher priority",
    "DeletionByTaintManager": "was evicted from node {} because of a taint",
    "DeletionByPodGC": "was lost with node {}",
    "TerminationByKubelet": "was terminated by the kubelet of node {}",
}
"""The message for each reason of a pod's DisruptionTarget condition. {} is replaced with the name of the
node."""


@dataclass(frozen=True)
class Problem:
    """The reason why pods do not start or do not terminate. The object is falsy if there is no problem."""

    text: str = ""
    changes_at: datetime | None = None
    """The time at which `text` or `warning` will change, or None if they do not change by themselves."""
    warning: bool = False
    """Whether the problem is unlikely to resolve itself, so that the user should be warned."""

    def __bool__(self) -> bool:
        return bool(self.text)


def hindrance(pods: list[Object], now: datetime) -> Problem:
    """Return the reason why pods are not running yet, as reported by the kubelet or the scheduler.

    If an init container is still running, this is the reason, and the text contains the container's run time.
    If a pod only waits for other pods of its group, the reasons of other pods take precedence.
    """
    waiting = Problem()
    for pod in pods:
        for container in _statuses(pod):
            text = _waiting(pod, container)
            if text:
                return Problem(text, warning=True)
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            message = f"{scheduled.get('reason')}: {scheduled.get('message', '')}{_gates(pod)}"
            problem = Problem(f"{pod['metadata']['name']}: {message}")
            if not waits_for_group(message):
                return problem
            waiting = waiting or problem
    return waiting or _initializing(pods, now)


def _gates(pod: Object) -> str:
    """Return a message suffix with the names of a pod's scheduling gates, or "" if the pod has none.

    The name of a gate shows which controller still has to remove the gate.
    """
    gates = [str(each.get("name")) for each in (pod.get("spec") or {}).get("schedulingGates") or []]
    return f" ({', '.join(gates)})" if gates else ""


def _waiting(pod: Object, container: Object) -> str:
    """Return why a container is waiting, with the exit code of its last run, or "" if the container is
    starting normally."""
    waiting = _state(container).get("waiting") or {}
    reason = waiting.get("reason")
    if reason in STARTING:
        return ""
    description = f"{pod['metadata']['name']}: {_container_prefix(pod, container)}{reason}"
    last = (container.get("lastState") or {}).get("terminated")
    if not last:
        return f"{description}: {waiting.get('message', '')}".rstrip(": ")
    text = f"{description} after {_exit(container['name'], last)}"
    if _endless(pod, container["name"]) and last.get("exitCode") == 0:
        text += (
            "; Kubernetes restarts a sidecar whenever it ends: make it a "
            "regular init container if it is to end"
        )
    return text


def _initializing(pods: list[Object], now: datetime) -> Problem:
    """Return a problem if an init container is still running. Otherwise, return an empty problem.

    The container's run time is rounded down to a multiple of RUNS_STEP. With the exact run time, each
    reconcile would change the status, and each change would trigger another reconcile.
    """
    for pod in pods:
        for container in (pod.get("status") or {}).get("initContainerStatuses") or []:
            running = _state(container).get("running") or {}
            sidecar = _endless(pod, container["name"])
            if not running.get("startedAt") or (container.get("started") and sidecar):
                continue
            runtime = max(now - parsed(running["startedAt"]), timedelta(0)) // RUNS_STEP * RUNS_STEP
            changes_at = parsed(running["startedAt"]) + runtime + RUNS_STEP
            startup_note = ", and its startup probe has not succeeded" if sidecar else ""
            role = f"{'sidecar' if sidecar else 'init container'} {container['name']}"
            seconds = runtime.seconds + runtime.days * 86400
            text = f"{pod['metadata']['name']}: {role} has been running for {seconds} s{startup_note}"
            return Problem(text, changes_at, warning=runtime >= LONG)
    return Problem()


def lingering(pods: list[Object], now: datetime) -> Problem:
    """Return a problem if other containers keep pods running after the pods' trainers have ended.

    If every trainer has exited with 0, all pods are considered. Otherwise, only the pods whose trainers have
    failed are considered.
    """
    finished = [
        (pod, trainer_end(pod)) for pod in pods if (pod.get("status") or {}).get("phase") == "Running"
    ]
    failed = [(pod, end) for pod, end in finished if end.get("exitCode")]
    exit_codes = [trainer_end(pod).get("exitCode") for pod in pods]
    if not failed and (not finished or any(code != 0 for code in exit_codes)):
        return Problem()
    affected = failed or finished
    helpers = _running(pod for pod, _ in affected)
    sidecars = {name: pod_names for (name, sidecar), pod_names in helpers.items() if sidecar}
    regular = {name: pod_names for (name, sidecar), pod_names in helpers.items() if not sidecar}
    if not helpers:
        return Problem()
    first, end = affected[0]
    cause = (
        f"{first['metadata']['name']}: {_exit(names.TRAINER, end)}"
        if failed
        else "every trainer has ended with exit code 0"
    )
    if not regular:
        return Problem(f"{cause}; Kubernetes is terminating the sidecar {_in_pods(sidecars)}")
    text = (
        f"{cause}, but the pods wait for container {_in_pods(regular)}: make it a native sidecar (an init "
        "container with restartPolicy: Always)"
    )
    last = max((str(each.get("finishedAt") or "") for _, each in affected), default="")
    changes_at = parsed(last) + LINGERS if last else None
    overdue = changes_at is not None and now >= changes_at
    return Problem(text, None if overdue else changes_at, warning=overdue)


def _running(pods: Iterator[Object]) -> dict[tuple[str, bool], list[str]]:
    """Map each running container except `trainer` to the names of the pods in which the container is running.

    The keys are pairs of the container's name and whether the container is a native sidecar.
    """
    pods_of: dict[tuple[str, bool], list[str]] = {}
    for pod in pods:
        for container in _statuses(pod):
            name = container["name"]
            if name != names.TRAINER and "running" in _state(container):
                pods_of.setdefault((name, _endless(pod, name)), []).append(pod["metadata"]["name"])
    return dict(sorted(pods_of.items()))


def _in_pods(pods_of: dict[str, list[str]]) -> str:
    return ", ".join(
        f"{name} of {pod_names[0]}" + (f" and {len(pod_names) - 1} more" if pod_names[1:] else "")
        for name, pod_names in pods_of.items()
    )


def restarting(pods: list[Object]) -> Problem:
    """Return a problem if Kubernetes repeatedly restarts a native sidecar while the trainer is running."""
    for pod in pods:
        for container in (pod.get("status") or {}).get("initContainerStatuses") or []:
            text = _waiting(pod, container) if _endless(pod, container["name"]) else ""
            if text:
                return Problem(text, warning=True)
    return Problem()


def failure(pods: list[Object]) -> str:
    """Return the name and the error of the pod that failed first, or "" if none failed.

    This failure may have caused the failures of other pods.
    """
    for pod in sorted(pods, key=lambda each: str(trainer_end(each).get("finishedAt") or "")):
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        if status.get("phase") != "Failed":
            continue
        if status.get("reason") and status.get("message"):
            # The kubelet ended the whole pod, so the containers' exit codes do not show the cause.
            return f"{name}: {status['reason']}: {' '.join(status['message'].split())}"
        containers = status.get("containerStatuses") or []
        own = [each for each in containers if each["name"] == names.TRAINER]
        other_containers = [each for each in containers if each["name"] != names.TRAINER]
        for container in [*(status.get("initContainerStatuses") or []), *own, *other_containers]:
            termination = _state(container).get("terminated") or {}
            if termination.get("exitCode") and not _endless(pod, container["name"]):
                return f"{name}: {_container_prefix(pod, container)}{_exit(container['name'], termination)}"
        return f"{name}: {status.get('reason', 'Failed')}: {status.get('message', '')}".rstrip(": ")
    return ""


def disruption(pods: list[Object]) -> str:
    """Return a message about a pod that was evicted, preempted or lost with its node, or "".

    Kubernetes sets the DisruptionTarget condition before it terminates a disrupted pod.
    """
    for pod in pods:
        target = condition(pod, "DisruptionTarget")
        if target.get("status") == "True" and (pod.get("status") or {}).get("phase") != "Succeeded":
            reason, message = str(target.get("reason")), str(target.get("message") or "")
            text = DISRUPTIONS.get(reason, "was disrupted on node {}")
            node = (pod.get("spec") or {}).get("nodeName") or "(none)"
            detail = f"{reason}: {message}".rstrip(": ")
            return f"{pod['metadata']['name']} {text.format(node)} ({detail})"
    return ""


def syncing(pods: list[Object]) -> bool:
    """Return whether a pod is still fetching its workspace."""
    return any(
        initial["name"] == "workspace" and "running" in _state(initial)
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
    )


def workspaces(pods: list[Object]) -> dict[str, str]:
    """Return the commit or digest of the workspace that each pod has fetched, keyed by pod name."""
    return {
        pod["metadata"]["name"]: str(termination["message"]).strip()
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
        if initial["name"] == "workspace"
        and (termination := _state(initial).get("terminated") or {}).get("exitCode") == 0
        and termination.get("message")
    }


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _state(container: Object) -> Object:
    return container.get("state") or {}


def trainer_end(pod: Object) -> Object:
    """Return the terminated state of the trainer in a pod, or {} if the trainer has not ended."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if container["name"] == names.TRAINER:
            return _state(container).get("terminated") or {}
    return {}


def _container_prefix(pod: Object, container: Object) -> str:
    """Return a prefix for a message that names the container, or "" for `trainer` and `workspace`."""
    name = container["name"]
    if name in (names.TRAINER, "workspace"):
        return ""
    if _endless(pod, name):
        return f"sidecar {name}: "
    initial = [each["name"] for each in (pod.get("status") or {}).get("initContainerStatuses") or []]
    return f"{'init container' if name in initial else 'container'} {name}: "


def _endless(pod: Object, name: str) -> bool:
    """Return whether a container is a native sidecar, which runs until Kubernetes terminates it with the
    pod."""
    initial = (pod.get("spec") or {}).get("initContainers") or []
    return any(each["name"] == name and each.get("restartPolicy") == "Always" for each in initial)


def _exit(container: str, termination: Object) -> str:
    code = f"{termination.get('reason', 'Error')}, exit code {termination['exitCode']}"
    message = str(termination.get("message") or "").strip()
    if container == names.TRAINER:
        return explained(code, message)
    if message and container != "workspace":  # The `workspace` container writes its own termination message.
        message = message.splitlines()[-1].strip()
    return f"{code}: {message}" if message else code
