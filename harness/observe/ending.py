"""When is a launch over? Decides only when to stop waiting; what it means is for the judges to say.

A launch is over when its JobSet and all its pods have ended, or when it can be seen that it never will:
an image that cannot be had, a queue or quota that will not admit it, no node that fits.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from harness.evidence.schema import Observation
from harness.kube import Object, condition

FATAL_NOW = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError")
IMAGE_WAITING = ("ErrImagePull", "ImagePullBackOff")
NOT_FOUND = (
    "not found",
    "does not exist",
    "manifest unknown",
    "pull access denied",
    "no such host",
    "lookup",
)
NEVER_ADMITTED = ("doesn't exist", "does not exist", "is inactive", "> maximum capacity", "not found")
GRACE = {"image": 8.0, "queue": 3.0, "unschedulable": 20.0, "evicted": 5.0, "pods": 45.0}
"""Seconds that a state must last before it counts as the end; transient ones pass by within it."""


@dataclass
class Ending:
    """Fed with every watch delivery; `reason()` is None while the launch may still go on."""

    _objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _changed: threading.Event = field(default_factory=threading.Event)

    def observe(self, kind: str, observation: Observation) -> None:
        objects = self._objects.setdefault(kind, {})
        uid = observation.object["metadata"]["uid"]
        if observation.type == "DELETED":
            objects.pop(uid, None)
        else:
            objects[uid] = observation.object
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Until something changed, or `seconds` are over."""
        self._changed.wait(seconds)
        self._changed.clear()

    def reason(self) -> str | None:
        """One sentence why nothing more will come."""
        return self._finished() or self._image() or self._admission() or self._pods()

    def finished(self) -> bool:
        """Whether every JobSet of the launch has ended by itself."""
        jobsets = self._all("jobset")
        return bool(jobsets) and all(j.get("status", {}).get("terminalState") for j in jobsets)

    def summary(self) -> str:
        """What was last seen, for progress lines and deadlines."""
        phases = sorted(f"{_short(p)} {p['status'].get('phase', '?')}" for p in self._all("pod"))
        admitted = [w["metadata"]["name"] for w in self._all("workload") if _true(w, "Admitted")]
        return f"workload {'admitted' if admitted else 'not admitted'}; pods: {', '.join(phases) or 'none'}"

    def _all(self, kind: str) -> list[Object]:
        return list(self._objects.get(kind, {}).values())

    def _lasts(self, key: str, grace: str, holds: bool) -> bool:
        if not holds:
            self._since.pop(key, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(key, now) >= GRACE[grace]

    def _finished(self) -> str | None:
        for jobset in self._all("jobset"):
            state = jobset.get("status", {}).get("terminalState")
            if state:
                running = [
                    p for p in self._all("pod") if p["status"].get("phase") not in ("Succeeded", "Failed")
                ]
                if not running or self._lasts("pods", "pods", True):
                    return f"the JobSet is {state}"
        return None

    def _image(self) -> str | None:
        for pod in self._all("pod"):
            for status in pod["status"].get("containerStatuses") or []:
                waiting = (status.get("state") or {}).get("waiting") or {}
                reason, message = waiting.get("reason", ""), waiting.get("message", "")
                bad = reason in IMAGE_WAITING
                sure = bad and any(text in message for text in NOT_FOUND)
                if reason in FATAL_NOW or sure or self._lasts(pod["metadata"]["name"], "image", bad):
                    return f"{pod['metadata']['name']}: {reason}: {message}"
        return None

    def _admission(self) -> str | None:
        for workload in self._all("workload"):
            reserved = condition(workload, "QuotaReserved")
            message = reserved.get("message", "")
            refused = reserved.get("status") == "False" and any(text in message for text in NEVER_ADMITTED)
            if self._lasts("queue", "queue", refused):
                return f"Kueue will not admit it: {message}"
            evicted = condition(workload, "Evicted")
            out = evicted.get("status") == "True" and not _true(workload, "Finished")
            if self._lasts("evicted", "evicted", out):
                return f"evicted: {evicted.get('reason')}: {evicted.get('message')}"
        return None

    def _pods(self) -> str | None:
        for pod in self._all("pod"):
            name, scheduled = pod["metadata"]["name"], condition(pod, "PodScheduled")
            if self._lasts(f"{name}/s", "unschedulable", scheduled.get("reason") == "Unschedulable"):
                return f"{name} cannot be scheduled: {scheduled.get('message')}"
        return None


def _short(pod: Object) -> str:
    """<replicated job>-<job index>-<completion index> of a JobSet's pod name."""
    return "-".join(pod["metadata"]["name"].split("-")[-4:-1])


def _true(item: Object, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"
