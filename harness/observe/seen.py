"""What the watches have shown of a launch so far, and since when."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from harness.core.clock import CLOCK, Clock
from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes import messages
from harness.evidence.schema.bundle import Observation


@dataclass
class Seen:
    """Takes every watch delivery, and keeps the newest state of each object."""

    launched: str = "jobset"
    """The evidence file of the launched object (harness/evidence/kubernetes/kinds.py)."""
    clock: Clock = CLOCK
    exits: dict[str, int] = field(default_factory=dict)
    """uid of a pod → exit code of its rank's command."""
    deleted: bool = False
    """Whether a launched object was deleted."""
    _objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    _since: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """When each state of an object, or of a part of it, began. Keys are rule, uid and part."""
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
        """Note that the command of a rank has ended. Its container may stay.

        `uid`: of the pod, where another one may have come under its name.
        """
        for item in self.all("pod"):
            if item["metadata"]["name"] == pod and uid in (None, item["metadata"]["uid"]):
                self.exits.setdefault(item["metadata"]["uid"], exit_code)
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait until something changed, or until `seconds` are over."""
        self._changed.wait(seconds)
        self._changed.clear()

    def out_of_reach(self) -> set[str]:
        """Return the names of pods on nodes that are not Ready. Nothing more comes of them."""
        lost = {n["metadata"]["name"] for n in self.all("node") if not_ready(n)}
        return {p["metadata"]["name"] for p in self.running() if p.get("spec", {}).get("nodeName") in lost}

    def all(self, kind: str) -> list[Object]:
        """Return the objects of a kind (harness/evidence/kubernetes/kinds.py) that are there."""
        return list(self._objects.get(kind, {}).values())

    def running(self) -> list[Object]:
        """Return the pods that have not ended."""
        return [p for p in self.all("pod") if p["status"].get("phase") not in ("Succeeded", "Failed")]

    def workloads(self) -> list[Object]:
        """Return the Workloads of launched objects.

        Other Workloads in the namespace belong to somebody else.
        """
        return [w for w in self.all("workload") if w["metadata"]["name"].startswith(f"{self.launched}-")]

    def lasts(self, item: Object, rule: str, holds: bool, seconds: float, part: str = "") -> bool:
        """Return whether a state of an object or its part has held for `seconds`."""
        key = (rule, item["metadata"]["uid"], part)
        if not holds:
            self._since.pop(key, None)
            return False
        now = self.clock.monotonic()
        return now - self._since.setdefault(key, now) >= seconds

    def begins_again(self, item: Object, rule: str) -> None:
        """Let the time of a state begin now."""
        self._since.pop((rule, item["metadata"]["uid"], ""), None)


def ended_as(item: Object) -> str | None:
    """Return how a JobSet or a Job says that it ended, or None while it does not."""
    ended = next((word for word in ("Complete", "Failed") if true(item, word)), None)
    return (item.get("status") or {}).get("terminalState") or ended


def gated(pod: Object) -> bool:
    """Return whether a pod may not be scheduled yet, because it was not admitted."""
    return bool((pod.get("spec") or {}).get("schedulingGates"))


def decided(pod: Object) -> bool:
    """Return whether a pod's containers have run, or it is said why they do not."""
    if condition(pod, "PodScheduled").get("status") == "False":
        return True
    states = [item.get("state") or {} for item in pod["status"].get("containerStatuses") or []]
    initial = [item.get("state") or {} for item in pod["status"].get("initContainerStatuses") or []]
    if any(_blocked(state) for state in initial):
        return True
    return bool(states) and all("waiting" not in state or _blocked(state) for state in states)


def _blocked(state: Object) -> bool:
    """Return whether a container waits because it could not be started."""
    waiting = state.get("waiting") or {}
    return messages.not_started(waiting.get("reason", ""), waiting.get("message", "")) is not None


def container_statuses(pod: Object) -> list[Object]:
    """Return the statuses of a pod's containers, its init containers first."""
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def not_ready(node: Object) -> bool:
    return str(condition(node, "Ready").get("status", "True")) != "True"


def is_down(deployment: Object) -> bool:
    """Return whether a Deployment is down for good. One that merely restarts is back soon."""
    none_available = not (deployment.get("status") or {}).get("availableReplicas")
    return none_available and (deployment.get("spec") or {}).get("replicas") == 0


def true(item: Object, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"
