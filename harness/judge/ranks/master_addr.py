"""Find out why the workers could not use the MASTER_ADDR that they were given.

It can be a name that torchrun passed to them and that they cannot resolve, or an address of their own pod.
With a dynamic rendezvous and without --local-addr, torchrun uses the host name of one of the pods
(harness/workers/netcheck/torchrun_names.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.proxies import is_loopback as is_loopback_address
from harness.evidence import torchrun_processes
from harness.judge.case import Case
from harness.judge.logs import unresolved_hosts
from harness.judge.pod_end import End

_BACKENDS = ("c10d", "etcd-v2", "etcd", "etcd-server")
"""Rendezvous backends for which torchrun sets MASTER_ADDR to a pod's host name."""
_CONNECTS = re.compile(r"(?:connect to|network address of) \(?(localhost|127(?:\.\d+){3}|::1), (\d{1,5})\)")
"""Pattern for a loopback address and its port in PyTorch's messages about a failed connection."""
_FIRST_RANDOM_PORT = 32768
"""Lowest port that Linux assigns. A library can use such a port for processes of the same pod."""


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


def is_loopback(case: Case, index: int, error: str) -> bool:
    """Return whether a connection error shows that MASTER_ADDR is the pod of node `index` itself.

    Returns False for node 0, because rank 0 may use a loopback address, and if the pod's ranks have another
    MASTER_ADDR according to their process records.
    """
    match = _CONNECTS.search(error)
    if match is None or case.expected.num_nodes < 2 or index == 0 or int(match[2]) >= _FIRST_RANDOM_PORT:
        return False
    of_pod = case.processes.get(index)
    processes = [process for life in of_pod.lives for process in life.processes] if of_pod else []
    hosts = {start.env.get("MASTER_ADDR", "") for process in processes for start in process.starts} - {""}
    return all(host == "localhost" or is_loopback_address(host) for host in hosts)
