"""Detect a rendezvous that does not complete, by inspecting the containers at the deadline.

torchrun waits for other agents for ten minutes without printing anything. Once all of the job's pods have run
for the rendezvous time limit, the processes, connections and resolved names in each container are recorded.
If a torchrun agent is still waiting at that point, the launch is over. The judge determines the cause.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from harness.core.clock import CLOCK, Clock
from harness.core.kubernetes import Kube, Object
from harness.evidence import torchrun_processes
from harness.evidence.schema.bundle import Observation, RendezvousSnapshot
from harness.observe import container_inspection

AGAIN_SECONDS = 5
PATIENCE = 1.5
"""If a torchrun agent is still starting after this multiple of the time limit, the rendezvous counts as
failed.

The launch's own deadline is later and would only report a timeout.
"""


class RendezvousMonitor:
    """Processes pod watch events and determines whether the rendezvous has failed."""

    def __init__(
        self,
        kube: Kube,
        nodes: int,
        seconds: float,
        record: Callable[[RendezvousSnapshot], None],
        clock: Clock = CLOCK,
    ) -> None:
        """Create a monitor. The deadline is `seconds` after all `nodes` pods have started running."""
        self._kube = kube
        self._nodes = nodes
        self._seconds = seconds
        self._record = record
        self._clock = clock
        self._lock = threading.RLock()
        self._pods: dict[str, Object] = {}
        self._start_times: dict[str, float] = {}
        self._next: float | None = 0.0
        self._reason: str | None = None

    def observe(self, kind: str, observation: Observation) -> None:
        if kind != "pod":
            return
        pod, uid = observation.object, observation.object["metadata"]["uid"]
        with self._lock:
            if observation.type == "DELETED":
                self._pods.pop(uid, None)
                self._start_times.pop(uid, None)
                return
            self._pods[uid] = pod
            if pod["status"].get("phase") not in (None, "Pending"):
                self._start_times.setdefault(uid, self._clock.monotonic())

    def reason(self) -> str | None:
        """Return one sentence that explains why the rendezvous failed, or None if it has not failed.

        If the deadline has just passed, this method inspects the containers, which takes a few seconds.
        """
        if self._next is not None and self._clock.monotonic() >= self._next and (pods := self._due()):
            self._judge(container_inspection.inspect_pods(self._kube, pods))
        return self._reason

    def _judge(self, snapshots: list[RendezvousSnapshot]) -> None:
        """Evaluate the snapshots. If a busy torchrun agent is still starting, inspect it again later."""
        waiting = torchrun_processes.without_ranks(snapshots)
        if any(waiting.values()) and not self._past(PATIENCE * self._seconds):
            self._next = self._clock.monotonic() + AGAIN_SECONDS
            return
        self._next = None
        for inspection in snapshots:
            self._record(inspection)
        if waiting:
            pod_names = ", ".join(waiting)
            self._reason = (
                f"the rendezvous did not complete within {self._seconds:.0f} s: torchrun is "
                f"still waiting in {pod_names}"
            )

    def _due(self) -> list[Object]:
        """Return the running pods if all pods have run for the time limit, otherwise []."""
        with self._lock:
            if len(self._start_times) < self._nodes or len(self._start_times) < len(self._pods):
                return []
            if not self._past(self._seconds):
                return []
            return [pod for pod in self._pods.values() if pod["status"].get("phase") == "Running"]

    def _past(self, seconds: float) -> bool:
        """Return whether all pods have run for `seconds`."""
        with self._lock:
            return self._clock.monotonic() - max(self._start_times.values(), default=math.inf) >= seconds
