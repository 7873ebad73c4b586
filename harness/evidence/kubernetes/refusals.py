"""Find events about pods or Jobs of a launch that the API server refused, and the rule behind the refusal.

Such an event is a Warning about an object whose controller creates pods, and its reason means that an object
could not be created. The text of the event determines only whether another attempt can succeed, and which
rule caused the refusal. The texts are those of Kubernetes 1.36. A refusal with an unknown text is final.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import mapping

_MAKERS = ("JobSet", "Job", "StatefulSet", "DaemonSet", "ReplicaSet", "TorchrunJob")
"""Kinds whose controllers create pods, or Jobs that create pods."""
_REASONS = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed")
"""Event reasons of Kubernetes' controllers and of JobSet 0.12 for an object that could not be created."""
_PASSING = (
    "failed calling webhook",
    "no endpoints available",
    "connection refused",
    "context deadline exceeded",
    "timed out",
    "timeout",
    "etcdserver",
    "Internal error",
    "TLS handshake",
    "too many requests",
    "not yet ready",
    "object has been modified",
    "already exists",
    "is being terminated",
    "status unknown for quota",
    "error looking up service account",
)
"""Texts of transient refusals, after which the next attempt can succeed."""
_OF_THE_CONTROLLERS = re.compile(r'webhook "[mv](pod|job)\.kb\.io" denied')
"""Denials by JobSet's and Kueue's webhooks, which deny a pod or Job until they have read its owner."""
POD_SECURITY = "Pod Security Standard"
"""The kind that is reported for rules of Pod Security admission."""
_AGAIN = "(combined from similar events): "
_RULES = (
    (re.compile(r"(?:exceeded|failed) quota: (?P<name>[^,:\s]+)"), "ResourceQuota", True),
    (re.compile(r"(?:maximum|minimum) \S+ (?:usage|limit) per|limit to request ratio"), "LimitRange", True),
    (re.compile(r'violates PodSecurity "(?P<name>[^"]+)"'), POD_SECURITY, False),
    (re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'"), "ValidatingAdmissionPolicy", True),
    (re.compile(r'admission webhook "(?P<name>[^"]+)" denied'), "admission webhook", False),
)
"""(text of a refusal, kind of the rule, whether `kubectl describe` accepts this kind and name)."""


@dataclass(frozen=True)
class Refusal:
    """A refusal of an object of a launch by the API server.

    `at` is the time of the last refusal in seconds since the epoch, or 0.0 if the event has no time.
    """

    kind: str
    name: str
    message: str
    at: float
    final: bool
    """Whether the API server will refuse every further attempt too."""

    @property
    def webhook_down(self) -> bool:
        """Return whether the object was refused because the API server could not call a webhook."""
        return "failed calling webhook" in self.message

    @property
    def rule(self) -> tuple[str, str] | None:
        """Return kind and name of the rule that caused the refusal, or None if the rule is not known.

        The name of a LimitRange is "", because the message does not contain it.
        """
        return rule_of(self.message)

    def kubectl_arguments(self, namespace: str) -> str | None:
        """Return the arguments of the kubectl command that shows the rule, or None if it is not known."""
        rule = _rule(self.message)
        if rule is None:
            return None
        kind, name, described = rule
        if described:
            return f"-n {namespace} describe {kind.lower()} {name}".rstrip()
        if kind == POD_SECURITY:
            return f"get namespace {namespace} --show-labels"
        return "get validatingwebhookconfigurations,mutatingwebhookconfigurations"


def rule_of(message: str) -> tuple[str, str] | None:
    """Return kind and name of the rule in a message of the API server, or None."""
    rule = _rule(message)
    return rule[:2] if rule else None


def by_rule(message: str) -> bool:
    """Return whether a rule of the cluster or its access control refused a request, according to the message.

    The webhooks of JobSet and Kueue do not count, because they deny objects that lack the fields that these
    controllers set.
    """
    rule = rule_of(message)
    forbidden = 'is forbidden: User "' in message
    return forbidden or (rule is not None and not rule[1].endswith(".kb.io"))


def _rule(message: str) -> tuple[str, str, bool] | None:
    for pattern, kind, described in _RULES:
        if (match := pattern.search(message)) is not None:
            return kind, match.groupdict().get("name") or "", described
    return None


def refusal(event: object) -> Refusal | None:
    """Return the refusal that an event reports, or None for any other event."""
    item, about = mapping(event), mapping(event, "involvedObject")
    if (
        item.get("type") != "Warning"
        or item.get("reason") not in _REASONS
        or about.get("kind") not in _MAKERS
    ):
        return None
    message = str(item.get("message") or "").removeprefix(_AGAIN)
    times = [
        item.get("lastTimestamp"),
        item.get("eventTime"),
        mapping(item, "series").get("lastObservedTime"),
    ]
    at = max((seconds(str(text)) or 0.0 for text in times if text), default=0.0)
    return Refusal(str(about["kind"]), str(about.get("name") or ""), message, at, final(message))


def final(message: str) -> bool:
    """Return whether another attempt would be refused too, according to the message.

    Users write the text of a rule, so its words are not interpreted.
    """
    if _OF_THE_CONTROLLERS.search(message):
        return False
    if _rule(message) is not None and "failed calling webhook" not in message:
        return True
    return not any(text in message for text in _PASSING)


def last(events: Iterable[object], newest_pod: float) -> Refusal | None:
    """Return the latest final refusal, or the latest refusal if none is final, or None.

    Refusals before the creation of the newest pod do not count.

    `newest_pod` is the creation time of the newest pod in seconds since the epoch. All times are whole
    seconds, so a refusal in the same second as the pod still counts.
    """
    refusals = [each for event in events if (each := refusal(event)) is not None and each.at >= newest_pod]
    return max(refusals, key=lambda each: (each.final, each.at), default=None)


def created(pods: Iterable[object]) -> float:
    """Return the creation time of the newest pod in seconds since the epoch, or 0.0 if there is no pod."""
    texts = [mapping(pod, "metadata").get("creationTimestamp") for pod in pods]
    return max((seconds(str(text)) or 0.0 for text in texts if text), default=0.0)
