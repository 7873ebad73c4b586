"""Find the proxies of a service mesh in the ranks' pods.

Such a proxy intercepts all TCP connections of its pod. It can accept a connection and then close it, because
ranks use ports that no Service lists, do not speak HTTP, and wait for data from the server first
(kubeflow/trainer#1585, #1636 and #1681). With mutual TLS, a pod without the proxy cannot connect to a pod
that has one (kubeflow/pytorch-operator#329).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import items
from harness.judge.case import Case, names

_PROXIES = {
    "istio-proxy": 'set the label sidecar.istio.io/inject: "false"',
    "linkerd-proxy": "set the annotation linkerd.io/inject: disabled",
    "kuma-sidecar": "set the label kuma.io/sidecar-injection: disabled",
    "consul-dataplane": 'set the annotation consul.hashicorp.com/connect-inject: "false"',
}
"""Maps the name of each proxy's container to what keeps the mesh from adding it to a pod."""
_PARTS = ("containers", "initContainers")
"""The lists of containers in a pod's spec. Newer proxies are init containers that run as long as the pod."""
_LONGEST_START = 3600.0
"""Maximum number of seconds for which a rank may have run if it never connected to the others. PyTorch's
timeouts are up to 30 minutes."""


@dataclass(frozen=True)
class Mesh:
    """The proxies of a service mesh in the pods of a job. `text` is a clause about them."""

    text: str
    advice: str


def at_start(case: Case) -> Mesh | None:
    """Return the service mesh to which pods of the job belong, or None.

    Returns None if a rank has logged a point or run for a long time, because the proxies then let the ranks
    connect.
    """
    if case.expected.num_nodes < 2 or any(map(case.first_logged, case.ranks)):
        return None
    if any(_run_time(case, index) > _LONGEST_START for index in case.pods):
        return None
    proxies: dict[int, str] = {}
    for index, pod in sorted(case.pods.items()):
        containers = [each for part in _PARTS for each in items(pod.last.object, "spec", part)]
        own = [str(each.get("name")) for each in containers if each.get("name") in _PROXIES]
        if own:
            proxies[index] = own[0]
    if not proxies:
        return None
    proxy = next(iter(proxies.values()))
    owners = names(case.ranks_of(*proxies))
    whose = "the pods" if len(proxies) == len(case.pods) else f"of the job's pods, only those of {owners}"
    text = f"{whose} contain the proxy of a service mesh ({proxy}), which may reject or close the connections"
    advice = f"keep the job's pods out of the service mesh, or try it: {_PROXIES[proxy]} in the pod template"
    return Mesh(text, advice)


def _run_time(case: Case, index: int) -> float:
    """Return the number of seconds for which a node's rank container ran, or 0.0 if it is unknown."""
    terminated = case.pods[index].container(case.launch.container, "terminated")
    started, ended = case.container_started(index), terminated and seconds(terminated[1].get("finishedAt"))
    return ended - started if started and ended else 0.0
