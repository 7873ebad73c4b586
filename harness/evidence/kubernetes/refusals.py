"""Find events about pods or Jobs that the API server refused to create, and the policy that refused them.

The code calls such a policy a rule. A rule is a Pod Security Standard, a quota, a LimitRange, an admission
policy or a webhook. A refusal is reported by a Warning event about an object whose controller creates pods.
The event's reason means that an object could not be created. Its message shows which rule caused the refusal,
and whether another attempt can succeed. The messages are those of Kubernetes 1.36. A refusal with an unknown
message counts as final.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import mapping

_MAKERS = (
    *("JobSet", "Job", "StatefulSet", "DaemonSet", "ReplicaSet", "TorchrunJob"),
    *("PyTorchJob", "MPIJob", "TrainJob", "LeaderWorkerSet"),
)
"""Kinds of objects whose controllers create pods, or create Jobs whose controller creates pods."""
_REASONS = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed", "FailedCreatePod")
"""Event reasons used by Kubernetes controllers, JobSet 0.12 and the Training Operator 1.9 for objects that
could not be created."""
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
"""Parts of messages about temporary refusals. Another attempt can succeed."""
_OF_THE_CONTROLLERS = re.compile(
    r'webhook "[mv](?:pod|job)\.kb\.io" denied the request: .*(?:'
    r'\b[A-Z]\w+\.[a-z0-9.-]+ "[^"]+" not found|workload owner not found'
    r"|expected, transient error|\bfollower pod\b|\bleader pod\b|pod missing (?:label|annotation): jobset\."
    r"|the object has been modified|context deadline exceeded|etcdserver: |dial tcp )"
    r'|webhook "validatepod\.volcano\.sh" denied .*podgroup phase is',
    re.DOTALL,
)
"""Matches temporary denials by webhooks of JobSet, Kueue and Volcano.

The webhooks of JobSet and Kueue deny a pod or Job until they have read its owner or its leader pod. Volcano's
webhook denies a pod until the scheduler has accepted its PodGroup (volcano#621). The pattern also checks the
message, because the names of the webhooks do not identify the project: kubebuilder generates the same names
for all projects.
"""
_MISSING_CLASS = re.compile(r'no (PriorityClass) with name \S+ was found|(RuntimeClass) "[^"]+" not found')
_TERMINATING = re.compile(r"unable to create new content in namespace \S+ because it is being terminated")
_UNCALLED = re.compile(r'failed calling webhook "([^"]+)"')
_JOBSET_OR_KUEUE = re.compile(r'webhook "[^"]*\.kb\.io"|(?:kueue|jobset)-webhook-service')
_CALLED = re.compile(r'Post "https://([\w.-]+)')
"""Pattern for the host of a webhook's Service. The names of webhooks do not identify the project."""
POD_SECURITY = "Pod Security Standard"
"""The kind of rule for refusals by Pod Security admission."""
_AGAIN = "(combined from similar events): "
_RULES = (
    (re.compile(r"(?:exceeded|failed) quota: (?P<name>[^,:\s]+)"), "ResourceQuota", True),
    (re.compile(r"(?:maximum|minimum) \S+ (?:usage|limit) per|limit to request ratio"), "LimitRange", True),
    (re.compile(r'violates PodSecurity "(?P<name>[^"]+)"'), POD_SECURITY, False),
    (re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'"), "ValidatingAdmissionPolicy", True),
    (re.compile(r'admission webhook "(?P<name>[^"]+)" denied'), "admission webhook", False),
)
"""Entries of (pattern for the message, kind of rule, whether `kubectl describe KIND NAME` works for the
rule)."""


@dataclass(frozen=True)
class Refusal:
    """The API server's refusal to create one of a launch's objects, as reported by an event.

    `at` is the time of the last such refusal in seconds since the epoch, or 0.0 if the event has no time.
    """

    kind: str
    name: str
    message: str
    at: float
    final: bool
    """Whether the API server will also refuse every further attempt."""

    @property
    def webhook_down(self) -> bool:
        """Return whether the object was refused because the API server could not call a webhook."""
        return "failed calling webhook" in self.message

    @property
    def of_another_webhook(self) -> str:
        """Return the name of the webhook that could not be called, or "" if it belongs to JobSet or Kueue."""
        match, called = _UNCALLED.search(self.message), _CALLED.search(self.message)
        is_known = _JOBSET_OR_KUEUE.search(self.message) is not None
        if called is not None:
            is_known = "kueue" in called[1] or "jobset" in called[1]
        return match[1] if match is not None and not is_known else ""

    @property
    def namespace_terminating(self) -> bool:
        """Return whether the object was refused because its namespace was being deleted."""
        return _TERMINATING.search(self.message) is not None

    @property
    def without_account(self) -> bool:
        """Return whether the pod's service account does not exist.

        A controller could still create the account.
        """
        return "error looking up service account" in self.message

    @property
    def rule(self) -> tuple[str, str] | None:
        """Return the kind and name of the policy, quota or webhook that refused the object, or None.

        For a LimitRange, the name is "", because the message does not contain it.
        """
        return rule_of(self.message)

    @property
    def advice(self) -> str:
        """Return how to make the API server accept the pods, or "" if the message does not show this."""
        if "has expired or is not yet valid" in self.message:
            return "compare the control plane's clock with the validity period of the webhook's certificate"
        if name := self.of_another_webhook:
            return (
                f"check whether the pods behind webhook {name} are running, or remove the webhook from this "
                "namespace"
            )
        if self.without_account:
            return "create the service account, or correct serviceAccountName"
        missing = _MISSING_CLASS.search(self.message)
        return (
            f"create this {missing[1] or missing[2]}, or correct its name in the pod template"
            if missing
            else ""
        )

    def kubectl_arguments(self, namespace: str) -> str | None:
        """Return the arguments of a kubectl command that shows the violated policy or quota, or None."""
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
    """Return the kind and name of the policy, quota or webhook in the API server's refusal message, or
    None."""
    rule = _rule(message)
    return rule[:2] if rule else None


def by_rule(message: str) -> bool:
    """Return whether, according to the message, a policy, quota, webhook or RBAC refused a request.

    Denials by the webhooks of JobSet and Kueue do not count, because these webhooks expect fields that only
    their own controllers set.
    """
    rule = rule_of(message)
    forbidden = 'is forbidden: User "' in message
    return forbidden or (rule is not None and not _of_jobset_or_kueue(rule[1], message))


def _of_jobset_or_kueue(webhook: str, message: str) -> bool:
    """Return whether a webhook of JobSet or Kueue denied the request.

    Many projects have webhooks with the names listed here, so for these names the message is checked too.
    """
    if webhook in ("mpod.kb.io", "vpod.kb.io", "mjob.kb.io", "vjob.kb.io"):
        return _OF_THE_CONTROLLERS.search(message) is not None
    return webhook.endswith(".kb.io")


def _rule(message: str) -> tuple[str, str, bool] | None:
    for pattern, kind, described in _RULES:
        if (match := pattern.search(message)) is not None:
            return kind, match.groupdict().get("name") or "", described
    return None


def refusal(event: object) -> Refusal | None:
    """Return the refusal that an event reports, or None if the event does not report a refusal."""
    item, involved = mapping(event), mapping(event, "involvedObject")
    if (
        item.get("type") != "Warning"
        or item.get("reason") not in _REASONS
        or involved.get("kind") not in _MAKERS
    ):
        return None
    message = str(item.get("message") or "").removeprefix(_AGAIN)
    return Refusal(
        str(involved["kind"]), str(involved.get("name") or ""), message, occurred(item), final(message)
    )


def occurred(event: object) -> float:
    """Return the time at which an event last occurred, in seconds since the epoch, or 0.0 if it has no
    time."""
    item = mapping(event)
    times = [
        item.get("lastTimestamp"),
        item.get("eventTime"),
        mapping(item, "series").get("lastObservedTime"),
    ]
    return max((seconds(str(text)) or 0.0 for text in times if text), default=0.0)


def final(message: str) -> bool:
    """Return whether the message means that another attempt would be refused too.

    The texts of policy and webhook denials are not interpreted, because users write them.
    """
    if _OF_THE_CONTROLLERS.search(message):
        return False
    if _rule(message) is not None and "failed calling webhook" not in message:
        return True
    return not any(text in message for text in _PASSING)


def last(events: Iterable[object], newest_pod: float) -> Refusal | None:
    """Return the latest final refusal or, if there is none, the latest refusal of any kind, or None.

    Only refusals since `newest_pod` count. This is the creation time of the newest pod, in seconds since the
    epoch. All times are whole seconds, so a refusal in the same second still counts.
    """
    refusals = [each for event in events if (each := refusal(event)) is not None and each.at >= newest_pod]
    return max(refusals, key=lambda each: (each.final, each.at), default=None)


def created(pods: Iterable[object]) -> float:
    """Return the creation time of the newest pod, in seconds since the epoch, or 0.0 if there are no pods."""
    texts = [mapping(pod, "metadata").get("creationTimestamp") for pod in pods]
    return max((seconds(str(text)) or 0.0 for text in texts if text), default=0.0)
