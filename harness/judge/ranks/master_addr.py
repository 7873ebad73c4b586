"""Find the host name that torchrun passed to the workers as MASTER_ADDR and that they could not resolve.

With a dynamic rendezvous and without --local-addr, torchrun uses the host name of one of the pods
(harness/workers/netcheck/torchrun_names.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.evidence import torchrun_processes
from harness.judge.case import Case
from harness.judge.logs import unresolved_hosts
from harness.judge.pod_end import End

_BACKENDS = ("c10d", "etcd-v2", "etcd", "etcd-server")
"""Rendezvous backends for which torchrun sets MASTER_ADDR to a pod's host name."""


@dataclass(frozen=True)
class PublishedName:
    """A host name that torchrun passed to the workers.

    `ranks` contains the ranks in the pod with this name, or is empty if the pod is unknown.
    """

    ranks: list[int]
    text: str


def unresolved(case: Case, end: End) -> PublishedName | None:
    """Return the MASTER_ADDR that a rank could not resolve if torchrun took it from a pod, or None."""
    host = unresolved_hosts.unresolved_host(end.text)
    of_pod = case.processes.get(end.index)
    if not host or of_pod is None or not of_pod.agents:
        return None
    options = torchrun_processes.options(of_pod.agents[-1].argv)
    if not options or options.get("rdzv_backend") not in _BACKENDS or options.get("local_addr"):
        return None
    starts = [start for life in of_pod.lives for process in life.processes for start in process.starts]
    master_addrs = {start.env.get("MASTER_ADDR") for start in starts}
    if host not in master_addrs and master_addrs - {None}:
        return None  # The script itself chose this host.
    own = [index for index, pod in sorted(case.pods.items()) if host.partition(".")[0] in pod.hostnames]
    owner = f"the host name of {case.place(own[0])}" if own else "the host name of a pod"
    text = f"torchrun gave the workers {owner}, {host}, as MASTER_ADDR, but other pods cannot resolve it"
    return PublishedName(case.ranks_of(*own), text)
