"""Check from inside the pods of a running or hung job whether its ranks can meet: `harness netcheck RUN`.

netcheck runs in each running pod (execs.py). The API server says what no pod can: which pods do not run, what
is wrong with their Service, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.cli.execs import together
from harness.cli.shell import cluster_of
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Object, condition
from harness.evidence.io.reader import Bundle
from harness.judge.case import Case
from harness.judge.cluster import services
from harness.workers.netcheck import Diagnosis
from harness.workers.netcheck.finding import FAILED, Finding, failed, in_order, ok, unknown

DEADLINE = 10.0
"""Seconds for all ranks to be heard. Their pods run, so nobody is waited for."""
NOWHERE = "192.0.2.1"
"""The address of a pod that has none (RFC 5737): nobody has it."""


@dataclass(frozen=True)
class Seen:
    """What was found out: `pods` is each rank's pod and its state, `rows` each rank's diagnosis."""

    nodes: int
    pods: Mapping[int, str]
    running: frozenset[int]
    results: Mapping[int, Diagnosis]
    errors: Mapping[int, str]
    """Why a running pod gave no diagnosis."""
    service: services.ServiceProblem | str | None = None
    """What is wrong with the Service that names the pods, or what is proved of it. None: not known."""

    def diagnosis(self, rank: int) -> Diagnosis:
        """Return a rank's diagnosis, with what the API server knows of the pods. Raises UsageError."""
        if rank not in self.results:
            state = self.errors.get(rank) or self.pods.get(rank, "no such rank")
            there = ", ".join(map(str, sorted(self.results))) or "none"
            raise UsageError(f"rank {rank} gave no diagnosis: {state}", hint=f"ranks that did: {there}")
        own = replace(self.results[rank], rank=rank)  # of all pairs, rank 0 tells the others
        known = self.findings()
        steps = {each.step for each in known}
        kept = [each for each in own.findings if each.step not in steps]
        findings = tuple(in_order([*known, *kept]))
        bad = next((each for each in findings if each.status == FAILED), None)
        if bad is None:
            return replace(own, findings=findings)
        cause, ranks = bad.cause, bad.ranks
        wrong = self.service if isinstance(self.service, services.ServiceProblem) else None
        if wrong and cause in (
            None,
            *services.NAMES,
        ):  # why a name does not exist, as a verdict says
            cause, ranks = wrong.cause, tuple(wrong.nodes)
        absent = tuple(sorted(set(range(self.nodes)) - self.running))
        missing = absent or own.missing
        return replace(own, verdict=FAILED, cause=cause, ranks=ranks, missing=missing, findings=findings)

    def findings(self) -> list[Finding]:
        """Return the steps `pods` and `service`, as the API server and the execs prove them."""
        absent = sorted(set(range(self.nodes)) - self.running)
        found = [failed("peer.never_came", f"rank {rank}: {self.pods[rank]}", [rank]) for rank in absent]
        found += [
            unknown("pods", f"rank {rank}: netcheck does not run there: {self.errors[rank]}", [rank])
            for rank in sorted(self.errors)
        ]
        found = found or [ok("pods", f"{self.nodes} of {self.nodes} pods run")]
        if isinstance(self.service, str):
            return [*found, ok("service", self.service)]
        if self.service is not None:
            found.append(Finding("service", FAILED, self.service.text, ranks=tuple(self.service.nodes)))
        return found

    def as_dict(self, rank: int) -> dict[str, Any]:
        """Return a rank's diagnosis for `--json`, with the state of every pod."""
        return {
            **self.diagnosis(rank).as_dict(),
            "pods": {str(number): state for number, state in self.pods.items()},
            "errors": {str(number): text for number, text in self.errors.items()},
        }


def look(bundle: Bundle, context: RunContext, deadline: float = DEADLINE) -> Seen:
    """Check in all pods of a launch that run. Raises UsageError when none does, or its cluster is gone."""
    kube, target = cluster_of(bundle, context.settings)
    manifest = bundle.manifest
    launch, expected = (manifest.launch, manifest.expected) if manifest else (None, None)
    if launch is None or expected is None:
        raise UsageError(
            f"{bundle.path} has launched nothing yet", hint="`harness status` says what it waits for"
        )
    namespace, known = launch.namespace, bundle.pods()
    objects = {
        rank: kube.get("v1", "Pod", known[rank].name, namespace) if rank in known else None
        for rank in range(expected.num_nodes)
    }
    pods = {rank: state(pod, known[rank].name if rank in known else None) for rank, pod in objects.items()}
    there = {rank: pod for rank, pod in objects.items() if pod is not None and runs(pod)}
    if not there:
        said = "; ".join(f"rank {rank}: {each}" for rank, each in pods.items())
        raise UsageError(f"no pod of {bundle.path} runs: {said}", hint="netcheck looks into pods that run")
    base = [context.settings.kubectl_bin, *target, "-n", namespace, "exec", "-i"]
    commands = {
        rank: [*base, pod["metadata"]["name"], "-c", container(pod), "--"] for rank, pod in there.items()
    }
    context.progress(f"netcheck in {len(there)} of {expected.num_nodes} pods")
    addresses = [(pod or {}).get("status", {}).get("podIP") or NOWHERE for pod in objects.values()]
    told = {
        "nodes": expected.num_nodes,
        "deadline": deadline,
        "peers": addresses if launch.kind == "DaemonSet" else [],  # its pods have no names of their own
    }
    results, errors = together(commands, told)
    assert manifest is not None
    case = Case(Bundle.open(bundle.path), manifest, expected, launch, running=True)
    service = services.problem(case) or services.healthy(case)
    return Seen(expected.num_nodes, pods, frozenset(there), results, errors, service)


def runs(pod: Object) -> bool:
    """Return whether the first container of a pod runs, the one of the rank."""
    statuses = pod["status"].get("containerStatuses") or []
    name = container(pod)
    return any(each["name"] == name and "running" in (each.get("state") or {}) for each in statuses)


def container(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def state(pod: Object | None, name: str | None) -> str:
    """Return in words what the API server says of a pod."""
    if pod is None:
        return f"pod {name} is gone" if name else "it has no pod"
    said = f"pod {pod['metadata']['name']} is {pod['status'].get('phase', 'of an unknown phase')}"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{said}: {scheduled.get('reason')}: {scheduled.get('message')}"
    for each in pod["status"].get("containerStatuses") or []:
        for kind in ("waiting", "terminated"):
            if detail := (each.get("state") or {}).get(kind):
                code = f", exit code {detail['exitCode']}" if "exitCode" in detail else ""
                return f"{said}: {detail.get('reason')}{code}: {detail.get('message') or 'no more is said'}"
    return f"{said} on {pod['spec'].get('nodeName')}"
