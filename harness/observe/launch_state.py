"""The current state of a launch, as received through watches, and how long each condition has lasted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from harness.core.clock import CLOCK, Clock
from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes import waiting_reasons
from harness.evidence.schema.bundle import Observation


@dataclass
class LaunchState:
    """Processes all watch events and keeps the latest state of each object."""

    launched: str = "jobset"
    """The name of the launched object's file in the bundle's objects/ folder, without ".jsonl"."""
    clock: Clock = CLOCK
    exits: dict[str, int] = field(default_factory=dict)
    """The exit code of the command in each pod's rank container, keyed by pod uid."""
    deleted: bool = False
    """Whether a launched object was deleted."""
    _objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    _since: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """The time at which each condition became true, keyed by (rule, object uid, part of the object)."""
    _changed: threading.Event = field(default_factory=threading.Event)

    def observe(self, kind: str, observation: Observation) -> None:
        objects = self._objects.setdefault(kind, {})
        uid = observation.object["metadata"]["uid"]
        if observation.type == "DELETED":
            objects.pop(uid, None)
            self.exits.pop(uid, None)
            self.deleted |= kind == self.launched
        else:
            objects[uid] = observation.object
        self._changed.set()

    def exited(self, pod: str, exit_code: int, uid: str | None = None) -> None:
        """Record that a rank's command has ended, even if its container is still running.

        Pass the pod's `uid` if there might be a new pod with the same name.
        """
        for item in self.all("pod"):
            if item["metadata"]["name"] == pod and uid in (None, item["metadata"]["uid"]):
                self.exits.setdefault(item["metadata"]["uid"], exit_code)
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait until an object or an exit code changes, for at most `seconds`."""
        self._changed.wait(seconds)
        self._changed.clear()

    def out_of_reach(self) -> set[str]:
        """Return the running pods on nodes that are not Ready. The states of these pods are no longer
        updated."""
        nodes = {n["metadata"]["name"] for n in self.all("node") if not_ready(n)}
        return {p["metadata"]["name"] for p in self.running() if p.get("spec", {}).get("nodeName") in nodes}

    def all(self, kind: str) -> list[Object]:
        """Return the latest state of each existing object of a kind, such as `pod` or `workload`."""
        return list(self._objects.get(kind, {}).values())

    def running(self) -> list[Object]:
        """Return the pods that have neither succeeded nor failed."""
        return [p for p in self.all("pod") if p["status"].get("phase") not in ("Succeeded", "Failed")]

    def workloads(self) -> list[Object]:
        """Return the launched objects' Workloads. Other Workloads in the namespace are ignored."""
        return [w for w in self.all("workload") if w["metadata"]["name"].startswith(f"{self.launched}-")]

    def lasts(self, item: Object, rule: str, is_true: bool, seconds: float, part: str = "") -> bool:
        """Return whether a condition of an object, or of a part of it, has lasted for `seconds`.

        `is_true` states whether the condition is currently true. If it is false, the timer is reset.
        """
        key = (rule, item["metadata"]["uid"], part)
        if not is_true:
            self._since.pop(key, None)
            return False
        now = self.clock.monotonic()
        return now - self._since.setdefault(key, now) >= seconds

    def begins_again(self, item: Object, rule: str) -> None:
        """Reset a condition's timer."""
        self._since.pop((rule, item["metadata"]["uid"], ""), None)


def ended_as(item: Object) -> str | None:
    """Return the terminal state of a JobSet or a Job, or None if the object has not ended."""
    state = next((word for word in ("Complete", "Failed") if true(item, word)), None)
    return (item.get("status") or {}).get("terminalState") or state


def gated(pod: Object) -> bool:
    """Return whether a pod has scheduling gates. If so, Kueue has not admitted it yet."""
    return bool((pod.get("spec") or {}).get("schedulingGates"))


def decided(pod: Object) -> bool:
    """Return whether a pod's containers have started, or whether its status shows why they cannot start."""
    if condition(pod, "PodScheduled").get("status") == "False":
        return True
    states = [item.get("state") or {} for item in pod["status"].get("containerStatuses") or []]
    initial = [item.get("state") or {} for item in pod["status"].get("initContainerStatuses") or []]
    if any(_blocked(state) for state in initial):
        return True
    return bool(states) and all("waiting" not in state or _blocked(state) for state in states)


def _blocked(state: Object) -> bool:
    """Return whether a container is waiting because it could not be started."""
    waiting = state.get("waiting") or {}
    return waiting_reasons.not_started(waiting.get("reason", ""), waiting.get("message", "")) is not None


def container_statuses(pod: Object) -> list[Object]:
    """Return a pod's container statuses, init containers first."""
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def not_ready(node: Object) -> bool:
    return str(condition(node, "Ready").get("status", "True")) != "True"


def is_down(deployment: Object) -> bool:
    """Return whether a Deployment is scaled to 0 and has no available pods.

    A Deployment that is only restarting is not down.
    """
    none_available = not (deployment.get("status") or {}).get("availableReplicas")
    return none_available and (deployment.get("spec") or {}).get("replicas") == 0


def true(item: Object, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"
