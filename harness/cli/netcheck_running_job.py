"""`harness netcheck RUN`: check whether the ranks of a running or hung job can reach each other.

netcheck runs inside each running pod (netcheck_exec.py). The API server provides the information that pods
cannot see: which pods are not running, and what is wrong with their Service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.attach.session import picture_now
from harness.cli.netcheck_exec import together
from harness.cli.shell import cluster_of, container_of
from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence.io.reader import Bundle
from harness.judge.case import Case
from harness.judge.cluster import headless_service
from harness.workers.netcheck import Diagnosis
from harness.workers.netcheck.finding import FAILED, Finding, failed, in_order, ok, unknown

DEADLINE = 10.0
"""The maximum number of seconds for netcheck to reach all ranks. It is short, because the pods are already
running."""
NOWHERE = "192.0.2.1"
"""The placeholder for the address of a pod that has no IP address. RFC 5737 reserves this address, so no host
has it."""


@dataclass(frozen=True)
class NetcheckResults:
    """The results of netcheck in a running job.

    `pods` contains the state of each rank's pod, and `results` contains the diagnoses.
    """

    nodes: int
    pods: Mapping[int, str]
    running: frozenset[int]
    results: Mapping[int, Diagnosis]
    errors: Mapping[int, str]
    """The reason why a rank with a running pod has no diagnosis, keyed by rank."""
    service: headless_service.ServiceProblem | str | None = None
    """The problem with the headless Service that provides the pods' DNS names, or a description of the
    Service if it is healthy. None means that the Service's state is not known."""

    def diagnosis(self, rank: int) -> Diagnosis:
        """Return a rank's diagnosis, with the findings from the API server.

        Raises UsageError if the rank has no diagnosis, and HarnessError if no rank has one.
        """
        if not self.results:
            first, reason = min(self.errors.items(), default=(0, "no pod is running"))
            raise HarnessError(
                f"netcheck could not run in any pod: rank {first}: {reason}", hint=_hint(reason)
            )
        if rank not in self.results:
            state = self.errors.get(rank) or self.pods.get(rank, "no such rank")
            available = ", ".join(map(str, sorted(self.results))) or "none"
            raise UsageError(
                f"rank {rank} has no diagnosis: {state}", hint=f"ranks with a diagnosis: {available}"
            )
        own = replace(self.results[rank], rank=rank)  # A diagnosis of all pairs comes from rank 0.
        from_server = self.findings()
        steps = {each.step for each in from_server}
        other_findings = [each for each in own.findings if each.step not in steps]
        findings = tuple(in_order([*from_server, *other_findings]))
        failure = next((each for each in findings if each.status == FAILED), None)
        if failure is None:
            return replace(own, findings=findings)
        cause, ranks = failure.cause, failure.ranks
        problem = self.service if isinstance(self.service, headless_service.ServiceProblem) else None
        if problem and cause in (
            None,
            *headless_service.NAMES,
        ):  # If a DNS name does not exist, `harness run` also reports the Service's problem as the cause.
            cause, ranks = problem.cause, tuple(problem.nodes)
        absent = tuple(sorted(set(range(self.nodes)) - self.running))
        missing = absent or own.missing
        return replace(own, verdict=FAILED, cause=cause, ranks=ranks, missing=missing, findings=findings)

    def findings(self) -> list[Finding]:
        """Return the findings for netcheck's `pods` and `service` steps. They come from the API server and
        from failed netcheck processes."""
        absent = sorted(set(range(self.nodes)) - self.running)
        results = [failed("peer.never_came", f"rank {rank}: {self.pods[rank]}", [rank]) for rank in absent]
        results += [
            unknown("pods", f"rank {rank}: netcheck failed in its pod: {self.errors[rank]}", [rank])
            for rank in sorted(self.errors)
        ]
        results = results or [ok("pods", f"{self.nodes} of {self.nodes} pods are running")]
        if isinstance(self.service, str):
            return [*results, ok("service", self.service)]
        if self.service is not None:
            results.append(Finding("service", FAILED, self.service.text, ranks=tuple(self.service.nodes)))
        return results

    def as_dict(self, rank: int) -> dict[str, Any]:
        """Return a rank's diagnosis as a document for `--json`, with the state of every pod."""
        return {
            **self.diagnosis(rank).as_dict(),
            "pods": {str(number): state for number, state in self.pods.items()},
            "errors": {str(number): text for number, text in self.errors.items()},
        }


def _hint(reason: str) -> str:
    if "forbidden" in reason.lower():
        return (
            "grant permission for pods/exec: `harness attach --print-rbac --probe` prints the necessary Role"
        )
    return "check that the containers have Python 3.9 or later, which netcheck needs"


def run_netcheck(bundle: Bundle, context: RunContext, deadline: float = DEADLINE) -> NetcheckResults:
    """Run netcheck in all of a launch's running pods. For an attached job, these are its current pods.

    Raises UsageError if nothing has been launched yet, no pod is running, or the cluster no longer exists.
    """
    kube, target = cluster_of(bundle, context.settings)
    manifest = bundle.manifest
    launch, expected = (manifest.launch, manifest.expected) if manifest else (None, None)
    if launch is None or expected is None:
        raise UsageError(
            f"the run {bundle.path} has not launched its job yet",
            hint="wait until the job is running; `harness status` shows what the launch is waiting for",
        )
    with TemporaryDirectory() as folder:
        if launch.attached:
            bundle = picture_now(bundle, kube, context, Path(folder))
        return _run(bundle, kube, target, context, deadline)


def _run(
    bundle: Bundle, kube: Kube, target: list[str], context: RunContext, deadline: float
) -> NetcheckResults:
    manifest = bundle.manifest
    assert manifest is not None
    launch, expected = manifest.launch, manifest.expected
    assert launch is not None
    assert expected is not None
    namespace, pods_of_ranks = launch.namespace, bundle.pods()
    objects = {
        rank: kube.get("v1", "Pod", pods_of_ranks[rank].name, namespace) if rank in pods_of_ranks else None
        for rank in range(expected.num_nodes)
    }
    pods = {
        rank: state(pod, pods_of_ranks[rank].name if rank in pods_of_ranks else None)
        for rank, pod in objects.items()
    }
    running = {
        rank: pod for rank, pod in objects.items() if pod is not None and runs(pod, container_of(pod, launch))
    }
    if not running:
        states = "; ".join(f"rank {rank}: {each}" for rank, each in pods.items())
        subject = f"{launch.kind} {launch.object_name}" if launch.attached else bundle.path
        raise UsageError(
            f"no pod of {subject} is running: {states}",
            hint="start the job again, and run netcheck while it is running",
        )
    base = [context.settings.kubectl_bin, *target, "-n", namespace, "exec", "-i"]
    commands = {
        rank: [*base, pod["metadata"]["name"], "-c", container_of(pod, launch), "--"]
        for rank, pod in running.items()
    }
    context.progress(f"running netcheck in {len(running)} of {expected.num_nodes} pods")
    addresses = [address(pod, names=launch.kind != "DaemonSet") for pod in objects.values()]
    parameters = {
        "nodes": expected.num_nodes,
        "deadline": deadline,
        # If the list of peers is empty, each pod derives its peers' names from its own name. This does not
        # work for a DaemonSet, whose pods have no DNS names.
        "peers": addresses if launch.attached or launch.kind == "DaemonSet" else [],
    }
    results, errors = together(commands, parameters)
    case = Case(Bundle.open(bundle.path), manifest, expected, launch, running=True)
    service = headless_service.problem(case) or headless_service.healthy(case)
    return NetcheckResults(expected.num_nodes, pods, frozenset(running), results, errors, service)


def runs(pod: Object, container: str) -> bool:
    """Return whether a container of the pod is running."""
    statuses = pod["status"].get("containerStatuses") or []
    return any(each["name"] == container and "running" in (each.get("state") or {}) for each in statuses)


def address(pod: Object | None, names: bool = True) -> str:
    """Return a pod's DNS name, relative to its namespace.

    If the pod has no DNS name, or if `names` is false, return its IP address.
    """
    spec = (pod or {}).get("spec", {})
    if names and spec.get("hostname") and spec.get("subdomain"):
        return f"{spec['hostname']}.{spec['subdomain']}"
    return str((pod or {}).get("status", {}).get("podIP") or NOWHERE)


def state(pod: Object | None, name: str | None) -> str:
    """Return a description of a pod's state, as reported by the API server."""
    if pod is None:
        return f"pod {name} is gone" if name else "it has no pod"
    phase = f"pod {pod['metadata']['name']} is {pod['status'].get('phase', 'in an unknown phase')}"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{phase}: {scheduled.get('reason')}: {scheduled.get('message')}"
    for each in pod["status"].get("containerStatuses") or []:
        for kind in ("waiting", "terminated"):
            if detail := (each.get("state") or {}).get(kind):
                code = f", exit code {detail['exitCode']}" if "exitCode" in detail else ""
                return f"{phase}: {detail.get('reason')}{code}: {detail.get('message') or 'no message'}"
    return f"{phase} on {pod['spec'].get('nodeName')}"
