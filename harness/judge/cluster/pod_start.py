"""Judge whether every pod was scheduled and could start a container from its image.

In an attached job, pods without ranks are judged after the pods with ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.core.causes import CauseId
from harness.evidence.kubernetes import node_images, waiting_reasons
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.evidence.kubernetes.unschedulable import never_fits, waits_for_group
from harness.evidence.schema.bundle import DeviceHolder
from harness.judge import rank_words
from harness.judge.case import Case, gated, names
from harness.judge.cluster import (
    container_start_advice,
    gpu_supply,
    image_pull_advice,
    other_containers,
    pod_network,
    start_events,
    unscheduled,
    volume_claims,
)
from harness.judge.cluster.pod_events import PodEvent
from harness.judge.finding import Finding, listed, not_passed, passed, unknown

_CLAIMS = (
    "correct the claim's storageClassName (`kubectl get storageclass`), or create a volume that "
    "matches the claim "
    "(`kubectl describe pvc`)"
)


@dataclass(frozen=True)
class Blocked:
    """A container that could not start.

    `state` is the pod state with the longest message about the container.
    """

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
        return f"could not start {which} from image {self.image}: {self.reason}: {message}"


def blocked(case: Case, index: int) -> Blocked | None:
    """Return the kubelet's reason why a container in a node's pod did not start, or None.

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
                    advice = advice or container_start_advice.of(obstacle.message)
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
        advice = advice or container_start_advice.of(first.message)
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
        event = start_events.last(case, waiting[0]) if waiting[0] in case.pods else None
        last_event = f": the last Event of its pod is {event.text}" if event else ""
        text = f"nothing shows that the container of {case.place(waiting[0])} started{last_event}"
        return unknown("image", text)
    return passed("image", "every rank's container started", [pod.last.ref for pod in case.pods.values()])


def _on_nodes(case: Case, obstacle: Blocked, node: str | None) -> tuple[str, str]:
    """Return (clause, advice) about nodes that have the image that could not be pulled, or a similar image.

    Either string can be empty. `node` is the name of the pod's node.
    """
    if obstacle.reason not in waiting_reasons.PULL_REASONS:
        return "", ""
    nodes = [states[-1].object for states in case.bundle.objects("node").values()]
    if not obstacle.pulled_always:
        return node_images.instead(obstacle.image, node, nodes)
    if node not in node_images.holders(nodes).get(node_images.normal(obstacle.image), []):
        return (
            "the pull policy is Always, so the kubelet does not use an image that is already on the node",
            "",
        )
    use = "set imagePullPolicy: IfNotPresent, or use a tag other than latest, whose default policy is Always"
    return f"this image is already on {node}, but is not used, because the pull policy is Always", use


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
    if ignored := unscheduled.ignored(case):
        return _ignored(case, ignored)
    idle = [index for index, pod in case.pods.items() if pod.node and not case.started(index)]
    if any(other_containers.blocks_start(case, index) for index in idle):
        return unknown("scheduling", "see containers", ranks=case.ranks_of(*idle))
    blocked_by = {i: warning for i in idle if (warning := start_events.blocking(case, i)) is not None}
    if blocked_by:
        return _not_started(case, blocked_by)
    if case.timed_out and idle and not any(blocked(case, index) for index in case.pods):
        return _never_started(case, idle)
    return _unscheduled_without_rank(case) or _assigned(case)


def _not_started(case: Case, blocked_by: dict[int, PodEvent]) -> Finding:
    """Return the finding for scheduled pods whose kubelets report why no container starts."""
    index, event = next(iter(blocked_by.items()))
    same_reason = [i for i, other in blocked_by.items() if other.reason == event.reason]
    other_ranks = names(case.ranks_of(*same_reason[1:]))
    others = [f"{names(case.ranks_of(i))}: {blocked_by[i].text}" for i in blocked_by if i not in same_reason]
    return not_passed(
        "scheduling",
        start_events.BLOCKERS[event.reason],
        f"no container of {case.place(index)} could start: {event.text}",
        details=[f"no container of {other_ranks} could start either"] if same_reason[1:] else [],
        why=others[:2],
        ranks=case.ranks_of(*same_reason),
        evidence=[blocked_by[i].state.ref for i in same_reason],
        advice=start_events.advice(event),
    )


def _never_started(case: Case, idle: list[int]) -> Finding:
    """Return the finding for scheduled pods that started no container, although no Event gives a reason.

    A pod with a warning Event comes first, because the other pods may still pull their images.
    """
    last_events = {index: start_events.last(case, index) for index in idle}
    warned = [index for index, event in last_events.items() if event and event.is_warning]
    index = next(iter([*warned, *idle]))
    event = last_events[index]
    same_reason = [i for i, other in last_events.items() if event and other and other.reason == event.reason]
    words = rank_words.of_node(case, index)
    other_ranks = names(case.ranks_of(*(i for i in same_reason if i != index)))
    return not_passed(
        "scheduling",
        "scheduling.not_started",
        f"{case.place(index)} {words.was} bound to {words.its} node, but the container never started",
        details=[f"the containers of {other_ranks} did not start either"] if same_reason[1:] else [],
        why=[f"the last Event of its pod is {event.text}"] if event else [],
        ranks=case.ranks_of(*(same_reason or [index])),
        evidence=[case.pods[index].last.ref, *([event.state.ref] if event else [])],
        advice=start_events.advice(event),
    )


def _assigned(case: Case) -> Finding:
    """Return the finding that lists the node of each rank.

    The finding is UNKNOWN if a node was not recorded.
    """
    unseen = [index for index in range(case.expected.num_nodes) if index not in case.pods]
    unseen += [index for index, pod in case.pods.items() if pod.node is None]
    if unseen:
        return unknown("scheduling", f"no node was recorded for the pod of {names(case.ranks_of(unseen[0]))}")
    placements = ", ".join(f"{names(case.ranks_of(i))} got node {pod.node}" for i, pod in case.pods.items())
    return passed("scheduling", placements, [pod.last.ref for pod in case.pods.values()])


def _unscheduled(case: Case, pending: dict[int, tuple[ObjectState, dict[str, Any]]]) -> Finding:
    """Return the finding for unscheduled pods, with the nodes that lack the requested resources.

    Pods that are only waiting for other pods of their group are mentioned, but the finding does not blame
    their ranks.
    """
    messages = {index: str(one.get("message", "no message")) for index, (_, one) in pending.items()}
    waiting = [index for index, message in messages.items() if waits_for_group(message)]
    waiting = [] if len(waiting) == len(pending) else waiting
    gang = unscheduled.group(case) if all(map(waits_for_group, messages.values())) else []
    pending = {index: one for index, one in pending.items() if index not in waiting}
    index, (state, unschedulable) = next(iter(pending.items()))
    supply = gpu_supply.of_pods(case, [state for state, _ in pending.values()])
    nodes = [states[-1].object for states in case.bundle.objects("node").values()]
    reason = supply.text if supply else never_fits(state.object, nodes)
    quote = f"{unschedulable.get('reason', '')}: {messages[index]}"
    shortages = supply.nodes if supply else {}
    holders = [one for one in device_holders(case) if one[1].node not in shortages]
    holders = holders if supply or not reason else []
    ports = pod_network.host_ports(case, pending) if "free ports" in quote else ""
    cause: CauseId = "scheduling.devices_held" if holders else "scheduling.unschedulable"
    others_decide = bool(supply or reason or holders)
    texts = [messages[other] for other in pending]
    volumes = [unscheduled.volume(text) for text in texts]
    only_volumes = all(
        volume or "persistentvolumeclaim" in text.lower() for volume, text in zip(volumes, texts, strict=True)
    )
    claims = [] if others_decide else volume_claims.unbound(case, pending, " ".join(texts))
    notes = unscheduled.notes(case, pending)
    volume = None if others_decide or notes.node_is_coming or not only_volumes else volumes[0]
    if only_volumes and (claims or volume):
        cause = "scheduling.volume_failed"
    waiting_ranks = case.ranks_of(*waiting)
    verb = rank_words.of(waiting_ranks).add_s("wait")
    gang_text = (
        f"{names(waiting_ranks)} only {verb} for the rest of the pod group: {messages[waiting[0]]}"
        if waiting
        else ""
    )
    return not_passed(
        "scheduling",
        supply.cause if supply else cause,
        f"{names(case.ranks_of(*pending))} could not be scheduled: "
        + (f"{reason} (the scheduler: {quote})" if reason else quote),
        why=[
            ports,
            listed([one.sentence for _, one in holders]),
            *(claim.text for claim in claims[:3]),
            *_other_messages(case, index, {other: messages[other] for other in pending}),
            *notes.texts,
            *(f"PodGroup {_about(event)}: {event.object.get('message')}" for event in gang),
            gang_text,
        ],
        ranks=case.ranks_of(*pending),
        evidence=[
            *(state.ref for state, _ in pending.values()),
            *(ref for ref, _ in holders),
            *(claim.evidence for claim in claims[:3]),
            *notes.evidence,
            *(event.ref for event in gang),
        ],
        advice=_CLAIMS
        if claims and only_volumes
        else volume.advice
        if volume
        else supply.advice
        if supply
        else notes.advice or unscheduled.advice(messages[index]),
    )


def _about(event: ObjectState) -> str:
    return str(mapping(event.object, "involvedObject").get("name"))


_NUMBER = re.compile(r"\d+")


def _other_messages(case: Case, index: int, messages: dict[int, str]) -> list[str]:
    """Return up to two scheduler messages about other pods.

    Messages that differ only in numbers count as equal.
    """
    known, texts = {_NUMBER.sub("", messages[index])}, list[str]()
    for other, message in messages.items():
        if (pattern := _NUMBER.sub("", message)) not in known:
            known.add(pattern)
            texts.append(f"for {names(case.ranks_of(other))}, the message is: {message}")
    return texts[:2]


def _ignored(case: Case, indexes: list[int]) -> Finding:
    """Return the finding for pods that no scheduler has reported on."""
    pod = case.pods[indexes[0]].last
    scheduler = str(mapping(pod.object, "spec").get("schedulerName") or "default-scheduler")
    ranks = case.ranks_of(*indexes)
    group = [f"PodGroup {_about(event)}: {event.object.get('message')}" for event in unscheduled.group(case)]
    advice = f"check whether {scheduler} is running (`kubectl get pods -A`)"
    if scheduler != "default-scheduler":
        advice += " and has accepted the job's PodGroup, or correct schedulerName in the pod template"
    text = (
        f"no scheduler has reported whether it can place the pods of {names(ranks)}, whose schedulerName "
        f"is {scheduler}"
    )
    refs = [case.pods[index].last.ref for index in indexes]
    return not_passed(
        "scheduling", "scheduling.unschedulable", text, why=group, ranks=ranks, evidence=refs, advice=advice
    )


def _rejected(case: Case, rejected: gpu_supply.Supply) -> Finding:
    """Return the finding for pods that were rejected by their nodes' kubelets."""
    rejections = gpu_supply.rejections(case).values()
    ranks = case.ranks_of(*(one.index for one in rejections if one.index is not None))
    text = f"{names(ranks) if ranks else 'a pod'} could not start: {rejected.text}"
    refs = [one.state.ref for one in rejections]
    advice = gpu_supply.advice_on(case, rejected)
    return not_passed("scheduling", rejected.cause, text, ranks=ranks, evidence=refs, advice=advice)


def device_holders(case: Case) -> list[tuple[str, DeviceHolder]]:
    """Return (reference, holder) for each pod that uses devices for which another pod is waiting."""
    return [(f"device-holders.jsonl:{line}", one) for line, one in case.bundle.device_holders()]
