"""Find out what is wrong with the pods' headless Service, using the recorded API objects.

Inside a pod, netcheck can only detect that a name does not exist. The API objects show why.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.judge.case import Case, ever_ready, names

NAMES = ("dns.no_record", "dns.negative_cached", "dns.old_address")
"""Causes that a misconfigured Service can explain."""
_SLICES = "kubernetes.io/service-name"


@dataclass(frozen=True)
class ServiceProblem:
    """The reason why DNS has no records for some pods. `nodes` contains the node indexes of these pods."""

    cause: CauseId
    text: str
    service: str
    nodes: list[int]
    evidence: list[str]


def problem(case: Case) -> ServiceProblem | None:
    """Return the problem with the pods' Service.

    Returns None if the Service is correct, or if the evidence does not show its state.
    """
    pods = {index: pod for index, pod in case.pods.items() if _subdomain(pod)}
    if not pods or not _readable(case, "service"):
        return None
    name = _subdomain(next(iter(pods.values())))
    # When the harness has stopped waiting, it deletes the job, and the garbage collector deletes the Service.
    limit = case.waited_until or float("inf")
    recorded = [states for states in case.bundle.objects("service").values() if states[0].name == name]
    until = [[s for s in states if (seconds(s.received_at) or 0.0) <= limit] for states in recorded]
    services = [states for states in until if states]
    refs = [pod.last.ref for pod in pods.values()]
    if not services and not _watched(case, "service"):
        return None
    if not services or services[-1][-1].type == "DELETED":
        state = "was deleted" if services else "does not exist"
        text = f"the pods' subdomain is {name}, but the Service with this name {state}"
        return ServiceProblem("service.missing", text, name, [*pods], [*refs, *(s[-1].ref for s in services)])
    service = services[-1][-1]
    if (unselected := _selector(case, service, pods)) or not _watched(case, "service"):
        return unselected
    return _endpoints(case, service, pods) or _address(service, pods)


def healthy(case: Case) -> str | None:
    """Return a sentence if the evidence proves that the Service selects and publishes all pods, or None."""
    subdomains = {_subdomain(pod) for pod in case.pods.values()} - {""}
    if problem(case) or len(case.pods) < case.expected.num_nodes or len(subdomains) != 1:
        return None
    if not _watched(case, "service") or not case.bundle.has("objects/endpointslice.jsonl"):
        return None
    service = next(iter(subdomains))
    return f"Service {service} selects every pod of the job, and every pod was one of its endpoints"


def _readable(case: Case, kind: str) -> bool:
    """Return whether the harness could list the objects of the given kind."""
    return kind not in case.manifest.unread and (not case.launch.attached or kind in case.manifest.watched)


def _watched(case: Case, kind: str) -> bool:
    """Return whether the evidence contains all states of all objects of the given kind.

    States can be missing if the harness is not allowed to list this kind, if it was killed before it had
    recorded them all, or if a watch broke. In these cases, a recorded state is still evidence, but the
    absence of a state is not.
    """
    is_broken = any(retry.reason.startswith(f"objects/{kind}: ") for retry in case.manifest.retries)
    is_complete = case.manifest.ended_at is not None or case.running
    return _readable(case, kind) and is_complete and not is_broken


def _subdomain(pod: Pod) -> str:
    return str(mapping(pod.last.object, "spec").get("subdomain") or "")


def _selector(case: Case, service: ObjectState, pods: dict[int, Pod]) -> ServiceProblem | None:
    selector = mapping(service.object, "spec", "selector")
    unselected = [
        index
        for index, pod in pods.items()
        if not selector.items() <= mapping(pod.last.object, "metadata", "labels").items()
    ]
    if not selector or not unselected:  # Without a selector, Kubernetes does not manage the endpoints.
        return None
    labels = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
    mismatch = (
        "matches no pod of the job"
        if len(unselected) == len(pods)
        else f"does not match {_pods_of(case, unselected)}"
    )
    text = f"the selector of Service {service.name} ({labels}) {mismatch}"
    return ServiceProblem(
        "service.selector", text, service.name, unselected, [service.ref, pods[unselected[0]].last.ref]
    )


def _address(service: ObjectState, pods: dict[int, Pod]) -> ServiceProblem | None:
    """Return the problem with a Service that is not headless.

    Kubernetes' DNS specification defines names for individual pods only for headless Services. CoreDNS also
    resolves these names for other Services, so every other problem takes precedence.
    """
    address = mapping(service.object, "spec").get("clusterIP")
    if address in (None, "", "None"):
        return None
    text = (
        f"Service {service.name} has the clusterIP {address}, but not every DNS server resolves the "
        "names of individual pods if their Service is not headless"
    )
    refs = [service.ref, *(pod.last.ref for pod in pods.values())]
    return ServiceProblem("service.not_headless", text, service.name, [*pods], refs)


def _endpoints(case: Case, service: ObjectState, pods: dict[int, Pod]) -> ServiceProblem | None:
    started_nodes = [index for index in pods if case.started(index)]
    if mapping(service.object, "spec").get("publishNotReadyAddresses") is not True:
        unready = [index for index in started_nodes if not ever_ready(pods[index])]
        if unready:
            text = (
                f"Service {service.name} publishes only ready pods, which never included "
                f"{_pods_of(case, unready)}"
            )
            refs = [service.ref, *(pods[index].last.ref for index in unready)]
            return ServiceProblem("service.not_ready", text, service.name, unready, refs)
    if not _watched(case, "endpointslice") or not case.bundle.has("objects/endpointslice.jsonl"):
        return None
    published = {
        str(mapping(endpoint, "targetRef").get("name"))
        for state in case.bundle.history("endpointslice")
        if mapping(state.object, "metadata", "labels").get(_SLICES) == service.name
        for endpoint in items(state.object, "endpoints")
    }
    absent = [index for index in started_nodes if pods[index].name not in published]
    if not absent:
        return None
    absent_pods = _pods_of(case, absent)
    if not mapping(service.object, "spec", "selector"):
        text = (
            f"Service {service.name} has no selector, so Kubernetes did not add {absent_pods} to the "
            "Service's endpoints"
        )
        return ServiceProblem("service.selector", text, service.name, absent, [service.ref])
    text = (
        f"Service {service.name} never had {absent_pods} among its endpoints, although its selector matches"
    )
    return ServiceProblem("service.endpoints", text, service.name, absent, [service.ref])


def _pods_of(case: Case, indexes: list[int]) -> str:
    return f"the pod{'s' if len(indexes) > 1 else ''} of {names(case.ranks_of(*indexes))}"
