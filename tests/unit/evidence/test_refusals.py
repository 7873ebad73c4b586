"""What an event says of a pod that the API server refused, by its structure first and its text second."""

from __future__ import annotations

import pytest

from harness.evidence.kubernetes import refusals

QUOTA = 'pods "x-0" is forbidden: exceeded quota: team-a, requested: cpu=1, used: cpu=0, limited: cpu=500m'
NO_LIMITS = 'pods "x-0" is forbidden: failed quota: team-a: must specify limits.cpu'
RANGE = 'pods "x-0" is forbidden: maximum cpu usage per Container is 100m, but limit is 1'
RATIO = 'pods "x-0" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 4'
SECURITY = 'pods "x-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod …)'
POLICY = (
    "pods \"x-0\" is forbidden: ValidatingAdmissionPolicy 'nonroot' with binding 'b' denied request: no root"
)
WEBHOOK = 'admission webhook "validate.kyverno.svc-fail" denied the request: team label is missing'
OTHER = 'pods "x-0" is forbidden: no PriorityClass with name gold was found'


def event(message: str, at: int = 5, **more: object) -> dict[str, object]:
    about = {"kind": "Job", "name": "x"}
    when = f"2026-01-01T00:00:{at:02}Z"
    fields = {"type": "Warning", "reason": "FailedCreate", "involvedObject": about, "lastTimestamp": when}
    return {**fields, "message": message, **more}


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (QUOTA, ("ResourceQuota", "team-a")),
        (NO_LIMITS, ("ResourceQuota", "team-a")),
        (RANGE, ("LimitRange", "")),
        (RATIO, ("LimitRange", "")),
        (SECURITY, ("Pod Security Standard", "restricted:latest")),
        (POLICY, ("ValidatingAdmissionPolicy", "nonroot")),
        (WEBHOOK, ("admission webhook", "validate.kyverno.svc-fail")),
        (
            POLICY.replace("no root", "set a timeout; connection refused otherwise"),
            ("ValidatingAdmissionPolicy", "nonroot"),
        ),
        (
            WEBHOOK.replace("team label is missing", "probes timed out"),
            ("admission webhook", "validate.kyverno.svc-fail"),
        ),
        (OTHER, None),
        ("words of a controller that nobody here knows", None),
    ],
)
def test_a_refusal_does_not_change_and_names_its_rule(message, rule):
    """A text that is not known is a refusal too: the structure of the event decides."""
    found = refusals.refusal(event(message))
    assert found is not None
    assert (found.final, found.rule) == (True, rule)
    assert found.message == message


LEADER = "leader pod not yet scheduled, not creating follower pod. this is an expected, transient error"


@pytest.mark.parametrize(
    "reason",
    [
        "spec.containers[0].image: Invalid value: images of registry.example are required",
        "team label is missing",
        "pod is not permitted to time out; connection refused by policy",
        'ConfigMap "team-policy" not found',
    ],
)
@pytest.mark.parametrize("name", ["mpod.kb.io", "vpod.kb.io", "mjob.kb.io", "vjob.kb.io"])
def test_webhook_of_others_with_common_name_refuses_for_good(name, reason):
    """kubebuilder gives every webhook for pods the name mpod.kb.io, as in OpenKruise (kruise#666)."""
    found = refusals.refusal(event(f'admission webhook "{name}" denied the request: {reason}'))
    assert found is not None
    assert (found.final, found.rule) == (True, ("admission webhook", name))
    assert refusals.by_rule(found.message)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mpod.kb.io", 'JobSet.jobset.x-k8s.io "x" not found'),
        ("mjob.kb.io", 'JobSet.jobset.x-k8s.io "x" not found'),
        ("mpod.kb.io", "workload owner not found"),
        ("vpod.kb.io", LEADER),
        ("vpod.kb.io", f"expected 1 leader pod (x-0-0), but got 2. {LEADER[-36:]}"),
        ("vpod.kb.io", "follower pod node selector not set"),
        ("vpod.kb.io", 'leader pod "x-0" has no owner reference'),
        ("mpod.kb.io", 'Operation cannot be fulfilled on jobs.batch "x": the object has been modified'),
        ("mpod.kb.io", 'Get "https://10.96.0.1:443/api": context deadline exceeded'),
    ],
)
def test_jobset_and_kueue_refuse_for_a_moment(name, reason):
    """Their own texts (JobSet 0.8 to 0.12, Kueue 0.19) are about an owner or a leader pod (jobset#1187)."""
    found = refusals.refusal(event(f'admission webhook "{name}" denied the request: {reason}'))
    assert found is not None
    assert not found.final
    assert not refusals.by_rule(found.message)


@pytest.mark.parametrize(
    "message",
    [
        'Internal error occurred: failed calling webhook "p": no endpoints available for service "s"',
        'pods "x" is forbidden: status unknown for quota: team-a, resources: cpu',
        'pods "x" is forbidden: error looking up service account n/default: "default" not found',
        "etcdserver: request timed out",
        'admission webhook "mpod.kb.io" denied the request: Job.batch "x-workers-0" not found',
        'admission webhook "validatepod.volcano.sh" denied the request: failed to create pod <n/x> as the '
        "podgroup phase is Pending",
    ],
)
def test_a_refusal_that_may_pass_is_not_final(message):
    found = refusals.refusal(event(message))
    assert found is not None
    assert not found.final


@pytest.mark.parametrize(
    "other",
    [
        {"type": "Normal"},
        {"reason": "BackoffLimitExceeded"},
        {"reason": "FailedCreatePodSandBox", "involvedObject": {"kind": "Pod", "name": "x-0"}},
        {"involvedObject": None},
    ],
)
def test_another_event_is_no_refusal(other):
    assert refusals.refusal(event(POLICY, **other)) is None


@pytest.mark.parametrize(("newest", "refused"), [(4, True), (5, True), (6, False)])
def test_a_pod_that_came_later_ends_a_refusal(newest, refused):
    pod = {"metadata": {"creationTimestamp": f"2026-01-01T00:00:{newest:02}Z"}}
    found = refusals.last([event(QUOTA), event("etcdserver", at=5)], refusals.created([pod]))
    assert (found is not None) is refused


def test_the_command_that_shows_the_rule():
    shown = [
        refusals.refusal(event(message)).kubectl_arguments("ns")
        for message in (QUOTA, RANGE, SECURITY, OTHER)
    ]
    assert shown[:2] == ["-n ns describe resourcequota team-a", "-n ns describe limitrange"]
    assert shown[2:] == ["get namespace ns --show-labels", None]
