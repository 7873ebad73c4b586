"""Detect the end of a launch in which each pod tests its own node.

The pods are independent of each other. If a pod fails, cannot start or loses its node, the harness still
waits for the other pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes import gpu_nodes, waiting_reasons
from harness.evidence.schema.bundle import Observation
from harness.observe.completion import CompletionDetector
from harness.observe.launch_state import container_statuses

REJECTIONS = 2
"""The number of pods rejected by a node's kubelet after which the node counts as unable to run its pod."""


@dataclass
class IndependentPods(CompletionDetector):
    """Processes all watch events. The launch is over when every command has ended or can never end."""

    rejected: dict[str, dict[str, str]] = field(default_factory=dict)
    """The pods that each node's kubelet rejected. Maps node name and pod uid to the kubelet's message.

    The DaemonSet controller replaces rejected pods.
    """

    def observe(self, kind: str, observation: Observation) -> None:
        """Process a watch event, and store pods that were rejected by a kubelet."""
        super().observe(kind, observation)
        rejection = gpu_nodes.rejection(observation.object) if kind == "pod" else None
        if rejection is not None:
            node = str((observation.object.get("spec") or {}).get("nodeName"))
            self.rejected.setdefault(node, {})[observation.object["metadata"]["uid"]] = rejection.text

    def reason(self) -> str | None:
        """Return one sentence that explains why the launch is over, or None if it is not over."""
        if self.deleted and not self.all(self.launched):
            return f"the {self.kind} was deleted"
        unreachable = self.out_of_reach()
        waiting = [pod for pod in self.all("pod") if pod["metadata"]["uid"] not in self.exits]
        stuck_pods = {
            pod["metadata"]["name"]: cause for pod in waiting if (cause := self._stuck(pod, unreachable))
        }
        refused = self._refused()
        occupied = {(pod.get("spec") or {}).get("nodeName") for pod in self.all("pod")}
        rejecting = {
            node: [*uids.values()][-1] for node, uids in self.rejected.items() if len(uids) >= REJECTIONS
        }
        stuck_pods |= {node: f"it {cause}" for node, cause in rejecting.items() if node not in occupied}
        absent = self.members - len(self.all("pod")) if refused else 0
        if 0 < self.members <= len(self.exits) + len(stuck_pods) + absent:
            each = [f"{name}: {cause}" for name, cause in sorted(stuck_pods.items())]
            text = f"{len(self.exits)} of {self.members} commands have ended"
            return "; ".join([text, *each, *([refused] if refused else [])])
        return self._idle()

    def _stuck(self, pod: Object, unreachable: set[str]) -> str | None:
        """Return the reason why the pod's command will never end, or None if it can still end."""
        rejections = self.rejected.get((pod.get("spec") or {}).get("nodeName") or "", {})
        if len(rejections) >= REJECTIONS:
            return f"its node {[*rejections.values()][-1]}"
        name, scheduled = pod["metadata"]["name"], condition(pod, "PodScheduled")
        unscheduled = scheduled.get("reason") == "Unschedulable"
        reason = ""
        for status in container_statuses(pod):
            waiting = (status.get("state") or {}).get("waiting") or {}
            meaning = waiting_reasons.not_started(waiting.get("reason", ""), waiting.get("message", ""))
            if meaning is not None and meaning.prospect != "open":
                reason = f"{waiting.get('reason')}: {waiting.get('message')}"
        has_ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        # Evaluate all timers, even if an earlier one has expired, so that each timer keeps its state.
        over = {
            f"{scheduled.get('reason')}: {scheduled.get('message')}": self._lasts(
                pod, "unschedulable", unscheduled
            ),
            reason: self._lasts(pod, "image", bool(reason)),
            "its node is not Ready": self._lasts(pod, "node", name in unreachable),
            f"it is {pod['status'].get('phase')}": self._lasts(pod, "pods", has_ended),
        }
        return next((text for text, expired in over.items() if expired), None)
