"""List the commands to run next after a verdict that is not PASS."""

from __future__ import annotations

import shlex

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes import refusals
from harness.evidence.schema.bundle import Check, Launch, Manifest
from harness.judge.catalogue import CAUSES
from harness.judge.user_checks import FAMILY
from harness.workers.netcheck.finding import CAUSES as NETCHECK

_NETCHECK = {cause.partition(".")[0] for cause in NETCHECK}
"""Families of the causes that netcheck can report, such as `dns`."""


def commands(bundle: Bundle, check: Check) -> list[str]:
    """Return commands, most useful first, followed by advice on the cause. Never raises."""
    try:
        return _commands(bundle, check)
    except Exception:
        return [f"harness show {shlex.quote(str(bundle.path))}"]


def _commands(bundle: Bundle, check: Check) -> list[str]:
    path = shlex.quote(str(bundle.path))
    family = (check.cause or "").partition(".")[0]
    commands = [f"harness show {path}"]
    of_ranks = family in {"rank", "rendezvous", "run", "unification", FAMILY, *_NETCHECK}
    if of_ranks or check.name == "rank-exit":
        commands = [f"harness logs {path} --rank {rank}" for rank in check.ranks[:3]] + commands
    manifest = bundle.manifest
    if manifest:
        commands += [use.command for use in manifest.disk[:3]]
    if manifest and manifest.launch and manifest.launch.uid:
        commands += _kubectl(bundle, manifest, manifest.launch, family, check)
    if check.cause in CAUSES:
        commands.append(f"# {check.advice or CAUSES[check.cause].action}")
    return commands


def _kubectl(bundle: Bundle, manifest: Manifest, launch: Launch, family: str, check: Check) -> list[str]:
    cluster = manifest.cluster
    context = cluster.get("context") or (f"kind-{cluster['name']}" if cluster.get("name") else None)
    file = f" --kubeconfig {shlex.quote(str(cluster['kubeconfig']))}" if cluster.get("kubeconfig") else ""
    kubectl = f"kubectl{file}" + (f" --context {context}" if context else "") + f" -n {launch.namespace}"
    if check.cause == "launch.pods_refused":
        refs = [event for event in bundle.history("event") if event.ref in check.evidence]
        refusal = refusals.last([event.object for event in refs], 0.0)
        rule = (
            refusal.kubectl_arguments(launch.namespace)
            if refusal
            else f"-n {launch.namespace} describe limitrange"
        )
        return [f"{kubectl.removesuffix(f' -n {launch.namespace}')} {rule}"] if rule else []
    if family in {"queue", "admission"}:
        return [f"{kubectl} describe workloads.kueue.x-k8s.io", f"{kubectl} get localqueue"]
    if family == "service":
        return [f"{kubectl} get services,endpointslices,pods --show-labels"]
    if family in {"image", "scheduling", "rendezvous", "rank", *_NETCHECK} or check.name == "rank-exit":
        pods = bundle.ranks()
        names = {pods[rank].name: None for rank in check.ranks if rank in pods}
        return [f"{kubectl} describe pod {name}" for name in list(names)[:3]]
    if check.cause in {"run.not_completed", "run.timed_out", "rank.missing"} or family == "controllers":
        return [f"{kubectl} describe {launch.kind.lower()} {launch.object_name}"]
    return []
