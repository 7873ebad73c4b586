"""Find out from the scheduler's messages and from Events why pods of a job have no node.

Pods of one job can have different messages. With gang scheduling, most of the pods are only waiting for the
pod that fits on no node. A message can list several reasons, each with the number of nodes that it excludes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes import autoscalers
from harness.evidence.kubernetes.objects import ObjectState, group_name, mapping
from harness.judge.case import Case, names
from harness.judge.cluster import pod_deletion, pod_events

_REASON = re.compile(r"(?:^|, )(\d+) ((?:(?!, \d+ ).)+)")
_END = re.compile(r"[.;] (?:preemption|no new claims|still not schedulable)\b.*|\.$", re.DOTALL)
_ON_PURPOSE = re.compile(r"taint(?!.*(?:node\.kubernetes\.io/|not-ready))|affinity/selector|node selector")
"""Pattern for reasons why the pod's own spec excludes a node: taints, affinity and node selectors.

Only the other reasons are decisive. Taints that Kubernetes adds to cordoned or unready nodes do not match.
"""
_OF_VOLUMES = (
    (
        "volume node affinity conflict",
        "the volume is in another node or zone (see nodeAffinity in `kubectl get pv -o yaml`): run the pod "
        "there, or recreate the claim with a StorageClass whose volumeBindingMode is WaitForFirstConsumer",
    ),
    ("PersistentVolume's node affinity", ""),
    ("no available volume zone", ""),
    ("exceed max volume count", "these nodes cannot attach more volumes: use fewer volumes, or other nodes"),
    ("ReadWriteOncePod", "only one pod can use this claim: use ReadWriteMany, or a claim for each pod"),
    (
        "find available persistent volumes to bind",
        "create a volume for the claim on one of these nodes",
    ),
    ("enough free storage", "free storage on these nodes, or request a smaller volume"),
    ("non-existent", "the claim's volume was deleted: delete the claim and create it again"),
    (
        "is being deleted",
        "another client deleted the claim: delete the pods that use the claim, then recreate the claim",
    ),
    ("is lost", "the claim's volume was deleted: delete the claim and create it again"),
    (
        "binding volumes",
        "find out why the claim has no volume: `kubectl describe pvc` and its provisioner's log",
    ),
    ("persistentvolumeclaim", "create the claim that the pod uses, or correct its name"),
)
"""Pairs of (part of the scheduler's reason, advice) for volumes that exclude nodes.

If the advice is empty, the advice of the first pair applies.
"""
_ADVICE = (
    (
        re.compile(r"node\.kubernetes\.io/(?:disk|memory|pid)-pressure"),
        "free disk space, memory or process IDs on these nodes: `kubectl describe node` shows the condition",
    ),
    (
        re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable)"),
        "find out why these nodes are not ready: `kubectl describe node`",
    ),
    (
        re.compile(r"were unschedulable|node\.kubernetes\.io/unschedulable"),
        "wait until the cordoned nodes are uncordoned, or use other nodes: `kubectl get nodes`",
    ),
    (
        re.compile(r"(?:agent|driver|network)-not-ready"),
        "the component that removes this taint is not running on these nodes yet: check its DaemonSet",
    ),
    (
        re.compile(r"Too many pods"),
        "these nodes already run the kubelet's maximum number of pods (maxPods): remove pods, or use more "
        "nodes",
    ),
    (
        re.compile(r"topology spread constraints"),
        "relax topologySpreadConstraints, or label the nodes with its topologyKey",
    ),
    (
        re.compile(r"anti-affinity"),
        "other pods exclude these nodes by podAntiAffinity: use more nodes, or relax the rule",
    ),
    (
        re.compile(r"Insufficient nvidia\.com/(gpumem|gpucores)"),
        "only HAMi's scheduler supports this resource, but another scheduler handles the pod: check whether "
        "HAMi's webhook runs, and whether the namespace or pod has the label hami.io/webhook=ignore",
    ),
    (
        re.compile(r"\bnode unregistered"),
        "HAMi's device plugin has not registered these nodes: check whether the plugin runs there, and "
        "whether the nodes have the label gpu=on",
    ),
    (
        re.compile(r"cannot allocate all claims|resourceclaim"),
        "compare the pod's ResourceClaims with the free devices: `kubectl get resourceclaims,"
        "resourceslices -A`",
    ),
)
"""Pairs of (pattern for a reason, advice)."""
_FILTERED = "FilteringFailed"
"""The reason of an Event in which HAMi's scheduler reports why it excludes nodes."""
_FILTERED_ADVICE = (
    (
        re.compile(r"CardInsufficient|CardTimeSlicingExhausted|ExclusiveDeviceAllocateConflict"),
        "request less nvidia.com/gpumem or nvidia.com/gpucores for each GPU, or wait until other pods on "
        "these nodes end",
    ),
    (
        re.compile(r"AllocatedCardsInsufficientRequest|NodeInsufficientDevice"),
        "each GPU share of a container comes from a different GPU: request at most as many "
        "nvidia.com/gpu as a node "
        "has GPUs",
    ),
)
"""Pairs of (pattern for the message of a _FILTERED Event, advice)."""
_CLAIM_NOT_CREATED = "FailedResourceClaimCreation"
_NO_TEMPLATE = "create the ResourceClaimTemplate in the message, or correct its name in resourceClaims"
IGNORED_SECONDS = 30.0
"""Maximum time, in seconds, in which a working scheduler sets the PodScheduled condition of a new pod."""


@dataclass(frozen=True)
class Volume:
    """The reason why the pod's volume excludes nodes, and advice."""

    reason: str
    advice: str


@dataclass(frozen=True)
class Notes:
    """Sentences about Events of unscheduled pods, with references and advice."""

    texts: list[str]
    evidence: list[str]
    advice: str
    node_is_coming: bool
    """Whether an autoscaler is adding a node. If so, the reasons that exclude other nodes are not final."""


def reasons(message: str) -> list[str]:
    """Return the reasons in a scheduler's message, without the node counts.

    A message without counts is a single reason, which applies to all nodes.
    """
    _, has_counts, text = message.partition("nodes are available: ")
    text = _END.sub("", text if has_counts else message)
    return [reason.strip(" .") for _, reason in _REASON.findall(text)] or [text.strip(" .")]


def volume(message: str) -> Volume | None:
    """Return the volume problem that excludes nodes, or None if any other decisive reason excludes nodes too.

    Taints and the pod's own affinity and node selectors are not decisive.
    """
    decisive = [
        reason for reason in reasons(message) if _is_of_a_volume(reason) or not _is_on_purpose(reason)
    ]
    if not decisive or not all(map(_is_of_a_volume, decisive)):
        return None
    advice = next(text for part, text in _OF_VOLUMES if part in decisive[0])
    return Volume(decisive[0], advice or _OF_VOLUMES[0][1])


def advice(message: str) -> str:
    """Return advice for the decisive reasons, or "". Taints and the pod's own selectors are not decisive."""
    decisive = [reason for reason in reasons(message) if not _is_on_purpose(reason)]
    return next((text for pattern, text in _ADVICE for reason in decisive if pattern.search(reason)), "")


def _is_of_a_volume(reason: str) -> bool:
    return any(part in reason for part, _ in _OF_VOLUMES)


def _is_on_purpose(reason: str) -> bool:
    return _ON_PURPOSE.search(reason) is not None


def notes(case: Case, pending: Collection[int]) -> Notes:
    """Return the reports of autoscalers and controllers in Events about unscheduled pods.

    Only the newest report of each outcome counts, and the last two outcomes are quoted. A report that a node
    is being added is omitted if it is not the newest report.
    """
    newest: dict[str, tuple[float, str, str, str]] = {}
    for index in pending:
        for event in pod_events.of_pod(case, index):
            pod = f"the pod of {names(case.ranks_of(index))}"
            if (report := autoscalers.report(event.state.object)) is not None:
                text = report.text.replace(" for it: ", f" for {pod}: ", 1)
                newest[report.outcome] = (event.at, text, event.state.ref, report.advice)
            elif event.reason == _FILTERED:
                given = (advice for pattern, advice in _FILTERED_ADVICE if pattern.search(event.message))
                text = f"the scheduler excludes nodes for {pod}: {event.message}"
                newest[event.reason] = (event.at, text, event.state.ref, next(given, ""))
            elif event.reason == _CLAIM_NOT_CREATED:
                text = f"a ResourceClaim of {pod} was not created: {event.message}"
                newest[event.reason] = (event.at, text, event.state.ref, _NO_TEMPLATE)
    if newest.get("adding") != max(newest.values(), default=None):
        newest.pop("adding", None)
    last = sorted(newest.values())[-2:]
    advice = next((advice for *_, advice in reversed(last) if advice), "")
    return Notes([text for _, text, _, _ in last], [ref for _, _, ref, _ in last], advice, "adding" in newest)


def group(case: Case) -> list[ObjectState]:
    """Return the newest Event about the pods' PodGroup as a one-item list, or [] if there is none.

    The namespace can contain the groups of other jobs, so the result is [] if the pods do not name their
    group and several groups exist.
    """
    limit = case.stopped_at or float("inf")
    own = {group_name(pod.last.object) for pod in case.pods.values()} - {""}
    events: dict[str, list[ObjectState]] = {}
    for state in case.bundle.history("event"):
        involved = mapping(state.object, "involvedObject")
        if involved.get("kind") == "PodGroup" and (seconds(state.received_at) or 0.0) <= limit:
            events.setdefault(str(involved.get("name")), []).append(state)
    if not own:
        return next(iter(events.values()))[-1:] if len(events) == 1 else []
    return [state for name, states in events.items() if name in own for state in states][-1:]


def ignored(case: Case) -> list[int]:
    """Return the indexes of the nodes whose pods no scheduler has reported on for IGNORED_SECONDS."""
    until = case.waited_until
    return [
        index
        for index, pod in case.pods.items()
        if pod.node is None
        and not pod_deletion.leaving(pod.last)
        and pod.condition("PodScheduled") is None
        and mapping(pod.last.object, "status").get("phase") in (None, "Pending")
        and until is not None
        and until - _first_seen(case, pod.history[0]) >= IGNORED_SECONDS
    ]


def _first_seen(case: Case, state: ObjectState) -> float:
    """Return the time at which a pod's wait for a scheduler began, in seconds since the epoch.

    For an attached job, this is the pod's creation time. For a launched job, it is the time of the pod's
    first record, because the harness's clock also measures the wait.
    """
    created = mapping(state.object, "metadata").get("creationTimestamp") if case.launch.attached else None
    at = seconds(created) or seconds(state.received_at)
    return float("inf") if at is None else at
