"""Judge whether every pod was scheduled and could start a container from its image.

In an attached job, pods without ranks are judged after the pods with ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes import node_images, waiting_reasons
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.evidence.kubernetes.unschedulable import never_fits
from harness.evidence.schema.bundle import DeviceHolder
from harness.judge.case import Case, gated, names
from harness.judge.cluster import gpu_supply, image_pull_advice, other_containers, pod_network, volume_claims
from harness.judge.finding import Finding, listed, not_passed, passed, unknown

_START_BLOCKERS: dict[str, CauseId] = {
    "FailedCreatePodSandBox": "scheduling.sandbox_failed",
    "NetworkNotReady": "scheduling.sandbox_failed",
    "FailedMount": "scheduling.volume_failed",
    "FailedAttachVolume": "scheduling.volume_failed",
    "FailedMapVolume": "scheduling.volume_failed",
}
"""Reasons of Events that explain why a scheduled pod's containers do not start, mapped to their causes."""
_CLAIMS = (
    "correct the storageClassName of the claim (`kubectl get storageclass`), or create a volume that fits it "
    "(`kubectl describe pvc`)"
)
LASTING_SECONDS = 5.0
"""A warning Event counts only if it recurs over at least this many seconds. A single warning may be
outdated."""


@dataclass(frozen=True)
class Blocked:
    """A container that could not start. `state` is the pod state with the longest message about it."""

    state: ObjectState
    container: str
    """The container's role and name, such as "init container warm-cache", or "" for the rank's container."""
    reason: str
    message: str
    image: str
    pulled_always: bool
    cause: CauseId

    @property
    def text(self) -> str:
        message = self.message or "no message"
        which = f"its {self.container}" if self.container else "a container"
        return f"could not start {which} of image {self.image}: {self.reason}: {message}"


def blocked(case: Case, index: int) -> Blocked | None:
    """Return why, according to the kubelet, a container in a node's pod did not start, or None.

    The rank's container takes precedence over the other containers in the pod.
    """
    pod = case.pods[index]
    own = _blocked(pod, "containers", case.launch.container, "")
    candidates = (
        obstacle
        for other in other_containers.of(case, index)
        if not other.exit_code and (obstacle := _blocked_other(pod, other)) is not None
    )
    return (None if case.started(index) else own) or next(candidates, None)


def _blocked_other(pod: Pod, other: other_containers.Other) -> Blocked | None:
    if mapping(other.status, "state").keys() & {"running", "terminated"}:
        return None  # The container started later.
    part = "containers" if other.role == "container" else "initContainers"
    return _blocked(pod, part, other.name, f"{other.role} {other.name}")


def _blocked(pod: Pod, part: str, name: str, text: str) -> Blocked | None:
    statuses = "containerStatuses" if part == "containers" else "initContainerStatuses"
    best: Blocked | None = None
    for recorded in pod.history:
        spec = next((c for c in items(recorded.object, "spec", part) if c.get("name") == name), {})
        for status in items(recorded.object, "status", statuses):
            for state in ("waiting", "terminated"):
                details = mapping(status, "state", state)
                reason, message = str(details.get("reason", "")), str(details.get("message", ""))
                meaning = waiting_reasons.not_started(reason, message)
                if status.get("name") != name or meaning is None:
                    continue
                if best is None or len(message) >= len(best.message):
                    image = str(status.get("image") or spec.get("image", ""))
                    pulls_always = spec.get("imagePullPolicy") == "Always"
                    best = Blocked(recorded, text, reason, message, image, pulls_always, meaning.cause)
    return best


def _without_rank(case: Case) -> list[Pod]:
    """Return the pods without ranks in an attached job, or [] if the job completed.

    The ranks may wait for these pods, such as an MPIJob's launcher or a TrainJob's initializer. Pods with a
    scheduling gate are omitted, as in `Case.pods`.
    """
    if not case.launch.attached or case.terminal == "Completed":
        return []
    ranked = {pod.last.uid for attempts in case.pod_attempts.values() for pod in attempts}
    other_pods = {uid: states for uid, states in case.bundle.objects("pod").items() if uid not in ranked}
    pods = [Pod(-1, tuple(states)) for states in other_pods.values() if states[-1].type != "DELETED"]
    return [pod for pod in pods if not gated(pod.last)]


def _image_without_rank(case: Case) -> Finding | None:
    """Return the finding for a pod without a rank whose container could not start, or None."""
    for pod in _without_rank(case):
        for part, role in (("initContainers", "init container"), ("containers", "container")):
            for status in items(pod.last.object, "status", f"{part.removesuffix('s')}Statuses"):
                name = str(status.get("name"))
                if "waiting" not in mapping(status, "state") or mapping(status, "lastState"):
                    continue  # The container has started.
                if (obstacle := _blocked(pod, part, name, f"{role} {name}")) is not None:
                    hint, advice = _on_nodes(case, obstacle, pod.node)
                    text = f"pod {pod.name}, which has no rank, {obstacle.text}"
                    refs = [obstacle.state.ref]
                    return not_passed("image", obstacle.cause, text, why=[hint], evidence=refs, advice=advice)
    return None


def _unscheduled_without_rank(case: Case) -> Finding | None:
    """Return the finding for a pod without a rank that could not be scheduled, or None."""
    for pod in _without_rank(case):
        scheduled = pod.condition("PodScheduled")
        if pod.node is None and scheduled is not None and scheduled[1].get("status") == "False":
            quote = f"{scheduled[1].get('reason', '')}: {scheduled[1].get('message', 'no message')}"
            text = f"pod {pod.name}, which has no rank, could not be scheduled: {quote}"
            refs = [scheduled[0].ref]
            return not_passed("scheduling", "scheduling.unschedulable", text, evidence=refs)
    return None


def image(case: Case) -> Finding:
    """Run the `image` check: every rank's container started from its image."""
    obstacles = {index: obstacle for index in case.pods if (obstacle := blocked(case, index)) is not None}
    if obstacles:
        index, first = next(iter(obstacles.items()))
        same_cause = [
            o
            for o, obstacle in obstacles.items()
            if (obstacle.cause, obstacle.container) == (first.cause, first.container)
        ]
        other_ranks = [f"neither could {names(case.ranks_of(*same_cause[1:]))}"] if same_cause[1:] else []
        hint, advice = _on_nodes(case, first, case.pods[index].node)
        outdated = image_pull_advice.outdated(case, index)
        if case.launch.attached and first.cause == "image.pull_denied":
            advice = advice or image_pull_advice.LOGIN
        advice = image_pull_advice.DELETE.format(pod=case.pods[index].name) if outdated else advice
        return not_passed(
            "image",
            first.cause,
            f"{case.place(index)} {first.text}",
            why=[hint, outdated, *image_pull_advice.secrets(case, index), *other_ranks],
            ranks=case.ranks_of(*same_cause),
            evidence=[obstacles[other].state.ref for other in same_cause],
            advice=advice,
        )
    if (other := _image_without_rank(case)) is not None:
        return other
    waiting = [i for i in range(case.expected.num_nodes) if not case.started(i)]
    if waiting:
        return unknown("image", f"the container of {case.place(waiting[0])} is not recorded as started")
    return passed("image", "every rank's container started", [pod.last.ref for pod in case.pods.values()])


def _on_nodes(case: Case, obstacle: Blocked, node: str | None) -> tuple[str, str]:
    """Return a clause about nodes that have the image that could not be pulled, and advice.

    Both can be "". `node` is the name of the pod's node.
    """
    if obstacle.reason not in waiting_reasons.PULL_REASONS:
        return "", ""
    nodes = [states[-1].object for states in case.bundle.objects("node").values()]
    if not obstacle.pulled_always:
        return node_images.instead(obstacle.image, node, nodes)
    if node not in node_images.holders(nodes).get(node_images.normal(obstacle.image), []):
        return "its pull policy is Always, so an image on the node is not used", ""
    use = "set imagePullPolicy: IfNotPresent, or use a tag other than latest, whose default policy is Always"
    return f"this image is on {node}, but the pull policy Always does not use it", use


def scheduling(case: Case) -> Finding:
    """Run the `scheduling` check: every pod was scheduled, and its node's kubelet could start containers."""
    pending = {
        index: scheduled
        for index, pod in case.pods.items()
        if pod.node is None
        and (scheduled := pod.condition("PodScheduled")) is not None
        and scheduled[1].get("status") == "False"
    }
    rejected = gpu_supply.rejected(case)
    if pending or rejected:
        return _rejected(case, rejected) if rejected and not pending else _unscheduled(case, pending)
    idle = [index for index, pod in case.pods.items() if pod.node and not case.started(index)]
    if any(other_containers.blocks_start(case, index) for index in idle):
        return unknown("scheduling", "see containers", ranks=case.ranks_of(*idle))
    blocked_by = {i: warning for i in idle if (warning := _start_warning(case, i)) is not None}
    if blocked_by:
        index, last = next(iter(blocked_by.items()))
        reason, message = (str(last.object.get(name, "")) for name in ("reason", "message"))
        same_reason = [i for i, other in blocked_by.items() if other.object.get("reason") == reason]
        return not_passed(
            "scheduling",
            _START_BLOCKERS[reason],
            f"no container of {case.place(index)} could start: {reason}: {message}",
            details=[f"neither could one of {names(case.ranks_of(*same_reason[1:]))}"]
            if same_reason[1:]
            else [],
            ranks=case.ranks_of(*same_reason),
            evidence=[blocked_by[i].ref for i in same_reason],
        )
    if case.timed_out and idle and not any(blocked(case, index) for index in case.pods):
        return not_passed(
            "scheduling",
            "scheduling.not_started",
            f"{case.place(idle[0])} was bound to its node, but its container never started",
            ranks=case.ranks_of(idle[0]),
            evidence=[case.pods[idle[0]].last.ref],
        )
    return _unscheduled_without_rank(case) or _assigned(case)


def _assigned(case: Case) -> Finding:
    """Return the finding that lists the node of each rank. It is UNKNOWN if a node was not recorded."""
    unseen = [index for index in range(case.expected.num_nodes) if index not in case.pods]
    unseen += [index for index, pod in case.pods.items() if pod.node is None]
    if unseen:
        return unknown("scheduling", f"no node was recorded for the pod of {names(case.ranks_of(unseen[0]))}")
    placements = ", ".join(f"{names(case.ranks_of(i))} got node {pod.node}" for i, pod in case.pods.items())
    return passed("scheduling", placements, [pod.last.ref for pod in case.pods.values()])


def _unscheduled(case: Case, pending: dict[int, tuple[ObjectState, dict[str, Any]]]) -> Finding:
    """Return the finding for unscheduled pods, with the nodes that lack the requested resources."""
    state, unschedulable = next(iter(pending.values()))
    supply = gpu_supply.of_pods(case, [state for state, _ in pending.values()])
    nodes = [states[-1].object for states in case.bundle.objects("node").values()]
    reason = supply.text if supply else never_fits(state.object, nodes)
    quote = f"{unschedulable.get('reason', '')}: {unschedulable.get('message', 'no message')}"
    shortages = supply.nodes if supply else {}
    holders = [one for one in device_holders(case) if one[1].node not in shortages]
    holders = holders if supply or not reason else []
    ports = pod_network.host_ports(case, pending) if "free ports" in quote else ""
    cause: CauseId = "scheduling.devices_held" if holders else "scheduling.unschedulable"
    claims = [] if supply or reason or holders else volume_claims.unbound(case, pending, quote)
    if claims:
        cause = "scheduling.volume_failed"
    return not_passed(
        "scheduling",
        supply.cause if supply else cause,
        f"{names(case.ranks_of(*pending))} could not be scheduled: "
        + (f"{reason} (the scheduler: {quote})" if reason else quote),
        why=[ports, listed([one.sentence for _, one in holders]), *(claim.text for claim in claims[:3])],
        ranks=case.ranks_of(*pending),
        evidence=[
            *(state.ref for state, _ in pending.values()),
            *(ref for ref, _ in holders),
            *(claim.evidence for claim in claims[:3]),
        ],
        advice=_CLAIMS if claims else "",
    )


def _rejected(case: Case, rejected: gpu_supply.Supply) -> Finding:
    """Return the finding for pods that were rejected by their nodes' kubelets."""
    rejections = gpu_supply.rejections(case).values()
    ranks = case.ranks_of(*(one.index for one in rejections if one.index is not None))
    text = f"{names(ranks) if ranks else 'a pod'} could not start: {rejected.text}"
    refs = [one.state.ref for one in rejections]
    return not_passed("scheduling", rejected.cause, text, ranks=ranks, evidence=refs)


def device_holders(case: Case) -> list[tuple[str, DeviceHolder]]:
    """Return the pods that use devices for which another pod is waiting, with references into the bundle."""
    return [(f"device-holders.jsonl:{line}", one) for line, one in case.bundle.device_holders()]


def _start_warning(case: Case, index: int) -> ObjectState | None:
    """Return the last warning event that explains why a scheduled pod's containers do not start, or None.

    Warnings that did not recur over at least LASTING_SECONDS are ignored.
    """
    pod = case.pods[index]
    warnings = [
        event
        for event in case.bundle.history("event")
        if mapping(event.object, "involvedObject").get("uid") == pod.last.uid
        and event.object.get("reason") in _START_BLOCKERS
    ]
    stamps = [event.received_at for event in warnings]
    if case.launch.attached:  # The Event's own timestamps also cover the time before the harness attached.
        stamps = [
            str(event.object.get(name)) for event in warnings for name in ("firstTimestamp", "lastTimestamp")
        ]
    times = [at for stamp in stamps if (at := seconds(stamp)) is not None]
    return warnings[-1] if times and max(times) - min(times) >= LASTING_SECONDS else None
