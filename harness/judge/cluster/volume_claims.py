"""Determine from events why the PersistentVolumeClaims of unscheduled pods have no volume."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.evidence.kubernetes.objects import ObjectState, claim_names, mapping
from harness.judge.case import Case

_UNBOUND = ("ProvisioningFailed", "FailedBinding", "ExternalProvisioning")
"""Reasons of Events about a claim without a volume. FailedBinding Events have the type Normal."""


@dataclass(frozen=True)
class Unbound:
    """A claim without a volume, and the newest event about it."""

    text: str
    evidence: str


def unbound(case: Case, pending: Collection[int], message: str) -> list[Unbound]:
    """Return the claims for which unscheduled pods are waiting, one per reason.

    `message` is the scheduler's message. If the message does not mention a claim, the pods are waiting for
    something else.
    """
    if "persistentvolumeclaim" not in message.lower():
        return []
    claims = {name for index in pending for name in claim_names(case.pods[index].last.object)}
    newest: dict[str, ObjectState] = {}
    for event in case.bundle.history("event"):
        involved = mapping(event.object, "involvedObject")
        of_a_claim = (
            involved.get("kind") == "PersistentVolumeClaim" and event.object.get("reason") in _UNBOUND
        )
        if of_a_claim and involved.get("name") in claims:
            newest[str(involved["name"])] = event
    by_message: dict[str, Unbound] = {}
    for name, event in sorted(newest.items()):
        reason = f"{event.object.get('reason')}: {event.object.get('message', 'no message')}"
        by_message.setdefault(
            reason, Unbound(f"PersistentVolumeClaim {name} has no volume: {reason}", event.ref)
        )
    return list(by_message.values())
