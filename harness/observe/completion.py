"""Detect when a launch is over. This decides only when to stop waiting. The judges say what it means.

A launch is over when its object (a JobSet, a Job) and all its pods have ended. Where the controller restarts
what ends (a StatefulSet, a DaemonSet), it is over when the command of every rank has ended. It is also over
when it can be seen that it will never end: an image that cannot be pulled, a queue or quota that will not
admit it, no node that fits, a node that was lost, or a controller that does nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from harness.core.clock import CLOCK, Clock
from harness.core.kubernetes import Object, condition
from harness.evidence import messages
from harness.evidence.fitting import never_fits
from harness.evidence.schema import Observation

GRACE = {
    "image": 4.0,
    "image, surely": 1.0,
    "queue": 3.0,
    "unschedulable": 20.0,
    "never": 2.0,
    "evicted": 2.0,
    "pods": 45.0,
    "node": 4.0,
    "controller": 5.0,
    "idle": 45.0,
}
"""Seconds that a state must last before it counts as the end. Transient states pass within it.

`image`: less than the kubelet's 10 s before its second try. `image, surely`: time for other ranks to show the
same. `never`: for a pod that no node could take, however empty. `controller`: nothing happens while a
controller is scaled to 0. `idle`: nothing happens otherwise.
"""
CONTROLLERS = ("jobset-controller", "kueue-controller")


@dataclass
class CompletionDetector:
    """Takes every watch delivery. `reason()` is None while the launch may still go on."""

    launched: str = "jobset"
    """The evidence file of the launched object (harness/evidence/kinds.py)."""
    kind: str = "JobSet"
    held: bool = False
    """Whether containers stay when their command has ended. Their ends then come through `exited`."""
    members: int = 0
    """How many pods must come. It is used only where containers are held."""
    admission_seconds: float = 300.0
    """Seconds that a job may wait for Kueue to admit it. After that it has no time left to run in."""
    clock: Clock = CLOCK
    _objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    _since: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """When each state of an object, or of a part of it, began. Keys are rule, uid and part."""
    _awaited: dict[str, str] = field(default_factory=dict)
    """What is missing of each launched object, by uid."""
    _deleted: bool = False
    _exits: dict[str, int] = field(default_factory=dict)
    """uid of a pod → exit code of its rank's command."""
    _changed: threading.Event = field(default_factory=threading.Event)

    def observe(self, kind: str, observation: Observation) -> None:
        objects = self._objects.setdefault(kind, {})
        uid = observation.object["metadata"]["uid"]
        if observation.type == "DELETED":
            objects.pop(uid, None)
            self._exits.pop(uid, None)
            self._deleted |= kind == self.launched
        else:
            objects[uid] = observation.object
        self._changed.set()

    def exited(self, pod: str, exit_code: int) -> None:
        """Note that the command of a rank has ended. Its container may stay."""
        for item in self._all("pod"):
            if item["metadata"]["name"] == pod:
                self._exits.setdefault(item["metadata"]["uid"], exit_code)
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait until something changed, or until `seconds` are over."""
        self._changed.wait(seconds)
        self._changed.clear()

    def reason(self) -> str | None:
        """Return in one sentence why nothing more will come, or None."""
        return (
            self._finished()
            or self._image()
            or self._admission()
            or self._pods()
            or self._nodes()
            or self._idle()
        )

    def finished(self) -> bool:
        """Return whether every launched object has ended by itself, so that none must be deleted."""
        launched = self._all(self.launched)
        return bool(launched) and all(_state(item) for item in launched)

    def summary(self) -> str:
        """Return what was last seen, for progress lines and deadlines."""
        phases = sorted(f"{self._short(p)} {self._doing(p)}" for p in self._all("pod"))
        if self.launched != "jobset" and not self._workloads():
            return f"pods: {', '.join(phases) or 'none'}"
        admitted = [w["metadata"]["name"] for w in self._workloads() if _true(w, "Admitted")]
        return f"workload {'admitted' if admitted else 'not admitted'}; pods: {', '.join(phases) or 'none'}"

    def out_of_reach(self) -> set[str]:
        """Return the names of pods on nodes that are not Ready. Nothing more comes of them."""
        lost = {n["metadata"]["name"] for n in self._all("node") if _not_ready(n)}
        return {p["metadata"]["name"] for p in self._running() if p.get("spec", {}).get("nodeName") in lost}

    def _all(self, kind: str) -> list[Object]:
        return list(self._objects.get(kind, {}).values())

    def _running(self) -> list[Object]:
        return [p for p in self._all("pod") if p["status"].get("phase") not in ("Succeeded", "Failed")]

    def _short(self, pod: Object) -> str:
        """Return a short name of a pod: <replicated job>-<job index>-<completion index> for a JobSet's
        pod, else its name."""
        name = str(pod["metadata"]["name"])
        return "-".join(name.split("-")[-4:-1]) if self.launched == "jobset" else name

    def _doing(self, pod: Object) -> str:
        code = self._exits.get(pod["metadata"]["uid"])
        return str(pod["status"].get("phase", "?")) if code is None else f"ended with {code}"

    def _workloads(self) -> list[Object]:
        """Return the Workloads of launched objects.

        Other Workloads in the namespace belong to somebody else.
        """
        return [w for w in self._all("workload") if w["metadata"]["name"].startswith(f"{self.launched}-")]

    def _lasts(
        self, item: Object, rule: str, holds: bool, seconds: float | None = None, part: str = ""
    ) -> bool:
        """Return whether a state of an object or its part has held for the rule's grace, or for `seconds`."""
        key = (rule, item["metadata"]["uid"], part)
        if not holds:
            self._since.pop(key, None)
            return False
        now = self.clock.monotonic()
        return now - self._since.setdefault(key, now) >= (GRACE[rule] if seconds is None else seconds)

    def _finished(self) -> str | None:
        if self._deleted and not self._all(self.launched):
            return f"the {self.kind} was deleted"
        if self.held:
            return self._every_command_ended()
        for item in self._all(self.launched):
            state = _state(item)
            if state:
                lost = self.out_of_reach()
                running = [p for p in self._running() if p["metadata"]["name"] not in lost]
                if not running or self._lasts(item, "pods", True):
                    return f"the {self.kind} is {state}"
        return None

    def _every_command_ended(self) -> str | None:
        """Return that the command of every rank has ended, or that one failed.

        After a command that failed, the others get some time to end as well.
        """
        if 0 < self.members <= len(self._exits):
            return "the command of every rank has ended"
        for pod in self._all("pod"):
            code = self._exits.get(pod["metadata"]["uid"], 0)
            if self._lasts(pod, "pods", code != 0):
                return f"the command in {pod['metadata']['name']} ended with exit code {code}"
        return None

    def _image(self) -> str | None:
        for pod in self._all("pod"):
            for status in pod["status"].get("containerStatuses") or []:
                waiting = (status.get("state") or {}).get("waiting") or {}
                name = pod["metadata"]["name"]
                reason, message = waiting.get("reason", ""), waiting.get("message", "")
                meaning = messages.not_started(reason, message)
                bad = meaning is not None and meaning.prospect != "open"
                sure = meaning is not None and meaning.prospect == "final"
                part = status.get("name", "")
                # A final reason needs no second try of the kubelet, so its grace is the shorter one.
                surely = self._lasts(pod, "image, surely", sure, part=part)
                if surely or self._lasts(pod, "image", bad, part=part):
                    return f"{name}: {reason}: {message}"
        return None

    def _admission(self) -> str | None:
        for workload in self._workloads():
            reserved = condition(workload, "QuotaReserved")
            message = reserved.get("message", "")
            never = messages.refusal(message).prospect == "final"
            refused = reserved.get("status") == "False" and never
            if self._lasts(workload, "queue", refused):
                return f"Kueue will not admit it: {message}"
            evicted = condition(workload, "Evicted")
            out = evicted.get("status") == "True" and not _true(workload, "Finished")
            if self._lasts(workload, "evicted", out):
                return f"evicted: {evicted.get('reason')}: {evicted.get('message')}"
            waits = not _true(workload, "Admitted") and not _true(workload, "Finished")
            if self._lasts(workload, "admission", waits, self.admission_seconds):
                return f"not admitted in {self.admission_seconds:.0f} s: {message or 'Kueue says nothing'}"
        return None

    def _pods(self) -> str | None:
        for pod in self._all("pod"):
            name, scheduled = pod["metadata"]["name"], condition(pod, "PodScheduled")
            waits = scheduled.get("reason") == "Unschedulable"
            never = never_fits(pod, self._all("node")) if waits else None
            # This timer is read before the `or` below, which would skip it.
            long = self._lasts(pod, "unschedulable", waits)
            if self._lasts(pod, "never", bool(never)) or long:
                return f"{name} cannot be scheduled: {never or scheduled.get('message')}"
        return None

    def _nodes(self) -> str | None:
        lost = self.out_of_reach()
        for pod in self._running():
            name = pod["metadata"]["name"]
            if self._lasts(pod, "node", name in lost):
                return f"{name}: its node {pod['spec']['nodeName']} is not Ready"
        return None

    def _idle(self) -> str | None:
        """Return which step a controller should take at once and does not take."""
        down = [name for name in CONTROLLERS for d in self._all(name) if _down(d)]
        for jobset in self._all(self.launched):
            what = self._missing(jobset)
            uid = jobset["metadata"]["uid"]
            if what != self._awaited.get(uid, ""):  # Another step is awaited, so its time begins now.
                self._awaited[uid] = what
                self._since.pop(("idle", uid, ""), None)
            late = self._lasts(jobset, "idle", bool(what))
            if late or self._lasts(jobset, "controller", bool(what and down)):
                return f"{what}" + (f"; not available: {', '.join(down)}" if down else "")
        return None

    def _missing(self, item: Object) -> str:
        """Return what has not come of the launched object, or "" when everything has."""
        pods, workloads = self._all("pod"), self._workloads()
        if _state(item):
            return ""
        # Kueue suspends a JobSet and a Job. The pods of a StatefulSet come, and wait behind its gate.
        if (item.get("spec") or {}).get("suspend") is True or (pods and all(map(_gated, pods))):
            silent = any(not condition(w, "QuotaReserved") for w in workloads)
            missing = "Kueue says nothing of the Workload" if silent else ""
            return missing if workloads else f"the {self.kind} waits, and Kueue made no Workload for it"
        if self.launched != "jobset":
            return "" if pods else f"the {self.kind} has no pods"
        if not self._all("job"):
            return "the JobSet was resumed, and no Job came of it"
        if not pods:
            return "the Job has no pods"
        return "" if self._running() else "every pod has ended, and the JobSet has not"


def _state(item: Object) -> str | None:
    """Return how a JobSet or a Job says that it ended, or None while it does not."""
    ended = next((word for word in ("Complete", "Failed") if _true(item, word)), None)
    return (item.get("status") or {}).get("terminalState") or ended


def _gated(pod: Object) -> bool:
    """Return whether a pod may not be scheduled yet, because it was not admitted."""
    return bool((pod.get("spec") or {}).get("schedulingGates"))


def _not_ready(node: Object) -> bool:
    return str(condition(node, "Ready").get("status", "True")) != "True"


def _down(deployment: Object) -> bool:
    """Return whether a Deployment is down for good. One that merely restarts is back soon."""
    none_available = not (deployment.get("status") or {}).get("availableReplicas")
    return none_available and (deployment.get("spec") or {}).get("replicas") == 0


def _true(item: Object, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"
